"""A way of decoding: options, joined once with the sampler, the attention and the cache that they choose."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from mdlm_lm_eval.declared import asked_sampler, declarations, sampler_of
from mdlm_lm_eval.decoding.caches import KINDS, Cache
from mdlm_lm_eval.decoding.sampler import Needs, Sampler
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import DEFAULT_SAMPLER, DecodingOptions, OptionError, Options, check_names, shown
from mdlm_lm_eval.registry import SAMPLERS

T = TypeVar("T", bound=Options)


@dataclass(frozen=True)
class Way:
    """Checked options with what follows from them.

    sampler: the sampler in effect; its fields are its options.
    attention: the model's pattern, as the options and the sampler change it.
    """

    options: DecodingOptions
    sampler: Sampler
    attention: AttentionPattern

    @cached_property
    def name(self) -> str:
        """The sampler's name."""
        return sampler_of(self.options)

    @cached_property
    def needs(self) -> Needs:
        """What the sampler reads of a pass."""
        return self.sampler.needs(self.options)

    @cached_property
    def cache_name(self) -> str:
        """The name of the cache in effect: `auto` is `exact` under block-causal attention, and else `none`."""
        if self.options.cache == "auto":
            return "exact" if self.attention.is_block_causal else "none"
        return self.options.cache

    @property
    def cache(self) -> Cache:
        """The cache in effect."""
        return KINDS[self.cache_name]

    @cached_property
    def exits_early(self) -> bool:
        """Whether a row may leave the batch when its answer is decided, before its canvas is complete."""
        return self.options.early_exit and self.sampler.settled != "with the canvas"


def way_of(options: DecodingOptions, attention: AttentionPattern = FULL_ATTENTION) -> Way:
    """Joins options with their sampler, for a model with this attention.

    The options are those given with the values of samplers' options parsed, and `sampler` is auto if auto chooses the
    same one. Raises OptionError for an unknown name, a value that cannot be used, an option of a sampler that is not in
    effect, and one of a guest without a guest.
    """
    if options.sampler_args is not None and options.guest is None:
        raise OptionError(f"sampler_args={options.sampler_args} needs sampler=FILE.py:FUNCTION")
    known = declarations(DecodingOptions) if options.of_ways else {}
    check_names("option", dict(options.of_ways), known)
    values = {name: known[name].parse(value) for name, value in options.of_ways}
    set_ = {name: value for name, value in values.items() if value not in (None, known[name].default)}
    options = replace(options, of_ways=tuple(set_.items()))
    name = DEFAULT_SAMPLER if options.guest else sampler_of(options)
    if options.guest is None and name == (asked_sampler(set_) or DEFAULT_SAMPLER):
        options = replace(options, sampler="auto")
    kind: type[Sampler] = SAMPLERS.get(name)
    _check_owners(set_, kind, name)
    sampler = own_options(kind, options)
    return Way(options, sampler, _in_effect(attention, options, sampler))


def own_options(kind: type[T], options: DecodingOptions) -> T:
    """A sampler or row decoder with its options as they are set."""
    return kind(**{name: value for name, value in options.of_ways if name in kind.declared()})


def _check_owners(given: Mapping[str, object], kind: type[Sampler], name: str) -> None:
    """Raises OptionError for an option of a sampler that is not in effect."""
    for option, value in given.items():
        owners = [each for each, other in sorted(SAMPLERS.all().items()) if option in other.declared()]
        if owners and option not in kind.declared():
            choosing = {SAMPLERS.get(each).asked_by for each in owners} - {None, option}
            hint = f" (set {' or '.join(sorted(map(str, choosing)))})" if choosing else ""
            raise OptionError(
                f"{option}={shown(value)} is an option of sampler={' and '.join(owners)}{hint}, and sampler={name} is "
                "in effect"
            )


def _in_effect(attention: AttentionPattern, options: DecodingOptions, sampler: Sampler) -> AttentionPattern:
    """The attention pattern under these options, which may have other blocks than the model's own.

    With `mode=ar`, blocks hold one token. A sampler may have a pattern of its own.
    """
    attention = sampler.attention(attention, options)
    if attention.is_block_causal and options.block_length is not None:
        attention = replace(attention, block_length=options.block_length)
    if options.mode == "ar":
        attention = replace(attention, block_length=1)
    return attention if options.causal_context else replace(attention, causal_context=False)
