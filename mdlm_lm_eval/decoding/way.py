"""A way of decoding: options, joined once with the sampler, the attention and the cache that they choose.

The cache says which columns a pass over a block of a row runs, whether the finished block is run once more, and which
passes are wide: those over whole canvases or text, which the engine runs apart from passes over blocks. Nothing here
imports torch, so that commands can check options without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from mdlm_lm_eval.declared import asked_sampler, declarations, sampler_of
from mdlm_lm_eval.decoding.guests import signature_of
from mdlm_lm_eval.decoding.sampler import Needs, Sampler
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import (
    DEFAULT_SAMPLER,
    PARALLEL_RULES,
    DecodingOptions,
    OptionError,
    Options,
    check_names,
    must_be,
    shown,
)
from mdlm_lm_eval.registry import SAMPLERS, UNMASKING

T = TypeVar("T", bound=Options)
# Options that change something only with another option: at this value, or (None) at any value but its default.
_PARTNERS: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("position_decay", "calibration_cap", "token_frequencies"), ("unmasking", "position_calibrated")),
    "end_think_power": ("end_think_boost", None),
    "filler": ("n_fillers", None),
}
# The options that left-to-right decoding takes: with both modes, and with each.
_OF_ANY_MODE = {"mode", "n_masks", "mask_ratio", "max_gen_toks", "early_exit", "seed", "suppress_eos", "end_think"}
_OF_ANY_MODE |= {"escape_until", "unfinished_thinking"}
_OF_MODE = {
    "ar": {"temperature", "top_p", "top_k", "cache", "max_thinking_tokens", "trace"},
    "linear_spec": {"block_length", "confidence_threshold", "trace"},
}


@dataclass(frozen=True)
class Cache:
    """The keys and values that passes keep for later ones.

    none: nothing is kept, and every pass runs all columns that the block sees.
    exact: the finished blocks of block-causal attention, which see nothing after them. A pass runs its block. Text that
        follows a finished block runs in the pass that stores it.
    prefix: Fast-dLLM's cache for full attention (arXiv 2505.22618). A block's first pass runs the whole canvas. For the
        columns before the block, its other passes use the keys and values of the first one, although tokens change
        meanwhile.
    dual: the same, also for the columns after the block.

    remembers: whether keys and values are kept.
    stores_blocks: whether a finished block is run once more, for the keys and values of its final tokens.
    runs_blocks: whether a pass that is not wide runs a block alone.
    is_renewed: whether a block's first pass renews all keys and values. It waits until half of the rows need such a
        pass, as one over one row costs about as much as over many.
    """

    remembers: bool = False
    stores_blocks: bool = False
    runs_blocks: bool = False
    is_renewed: bool = False

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Returns a sentence about an option or attention that this cache does not work with; None if it works."""
        if self.stores_blocks and not attention.is_block_causal:
            return "cache=exact needs a model with block-causal attention"
        if not self.is_renewed:
            return None
        if attention.is_block_causal:
            only = "auto or none for a block diffusion model, whose remembered blocks are exact"
            return f"cache must be {only}, not {options.cache}"
        if options.block_length is None:
            return f"cache={options.cache} needs block_length: what it remembers is renewed at every block"
        if options.cfg_scale > 0.0:
            return f"cfg_scale must be 0 with cache={options.cache}, not {options.cfg_scale:g}"
        if UNMASKING.get(options.unmasking).is_random:
            return f"unmasking must be an order that asks the model with cache={options.cache}, not {options.unmasking}"
        return None

    def is_wide(self, n_passes: int, *, stores_text: bool) -> bool:
        """Whether the next pass over a block, after `n_passes`, is wide. `stores_text`: it keeps text after a block."""
        return n_passes == 0 if self.is_renewed else self.stores_blocks and stores_text

    def columns(self, start: int, stop: int, limit: int, *, is_wide: bool) -> tuple[int, int]:
        """The first column that a pass runs, and the one after the last; a block start:stop sees all before `limit`."""
        if not self.remembers or (self.is_renewed and is_wide):
            return 0, limit
        return start, stop if self.is_renewed and self.runs_blocks else limit


_CACHES = {
    "none": Cache(),
    "exact": Cache(remembers=True, stores_blocks=True, runs_blocks=True),
    "prefix": Cache(remembers=True, is_renewed=True),
    "dual": Cache(remembers=True, runs_blocks=True, is_renewed=True),
}


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
        return _CACHES[self.cache_name]

    @cached_property
    def exits_early(self) -> bool:
        """Whether a row may leave the batch when its answer is decided, before its canvas is complete."""
        return self.options.early_exit and self.sampler.settled != "with the canvas"

    @cached_property
    def without_effect(self) -> dict[str, str]:
        """The options that are set but change nothing, each with the reason as the end of a sentence."""
        options, changes, found = self.options, self.options.changes(), {}
        for name, (partner, value) in _PARTNERS.items():
            if partner not in changes if value is None else getattr(options, partner) != value:
                found[name] = f"without {partner}" if value is None else f"without {partner}={value}"
        if not self.sampler.reads_priority:
            found["unmasking"] = f"with sampler={options.sampler}"
        rules = [name for name in PARALLEL_RULES if getattr(options, name) is not None]
        if rules and not self.attention.is_block_causal and self.sampler.steps_of(1, options) is not None:
            rule = f"with {rules[0]}={shown(getattr(options, rules[0]))}"
            found |= dict.fromkeys(("steps", "steps_per_block", "schedule"), rule)
        return {name: why for name, why in found.items() if name in changes}


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


def check_decoding(way: Way, *, edits: bool) -> None:
    """Raises OptionError for an option that does not work with this attention, or with a model that does not edit."""
    options, sampler, attention = way.options, way.sampler, way.attention
    if options.guest is not None:
        signature_of(options).check(options)
        return
    if sampler.edits and not edits:
        asked_by = sampler.asked_by or "sampler"
        raise must_be(asked_by, "none for a model that does not edit", getattr(sampler, asked_by, options.sampler))
    _check_mode(options, attention)
    if sampler.runs_whole_canvases and (attention.is_block_causal or options.is_approximate):
        others = f"block-causal attention or cache={options.cache}"
        raise OptionError(f"sampler={way.name} does not work with {others}")
    for reason in (sampler.refuses(options, attention), way.cache.refuses(options, attention)):
        if reason is not None:
            raise OptionError(reason)
    if options.append_blocks and (attention.is_block_causal or options.is_approximate or options.n_fillers):
        raise must_be("append_blocks", "false with block-causal attention, cache=prefix|dual and fillers", "true")
    _check_blocks(options, attention)


def _check_mode(options: DecodingOptions, attention: AttentionPattern) -> None:
    """Raises OptionError unless left-to-right decoding has a causal context and only options that it takes."""
    if options.mode != "diffusion" and not attention.causal_context and options.causal_context:
        raise must_be("mode", "diffusion for a model without a causal context", options.mode)
    if options.mode != "diffusion":
        for name, value in options.changes().items():
            if name not in _OF_ANY_MODE | _OF_MODE[options.mode]:
                raise OptionError(f"{name}={value} does not work with mode={options.mode}")
    if not options.causal_context and (options.mode != "diffusion" or not attention.whole_prompt):
        raise must_be("causal_context", "true, but for mode=diffusion of a model that has one", "false")


def _check_blocks(options: DecodingOptions, attention: AttentionPattern) -> None:
    """Raises OptionError unless small blocks divide the model's, and a block under full attention fits the canvas."""
    length, small = options.block_length, options.small_block_length
    if attention.block_length is not None:
        length = length or attention.block_length
        if small is not None and length % small:
            raise must_be("small_block_length", f"a divisor of the model's block length {length}", small)
        return
    if small is not None:
        raise must_be("small_block_length", "none for a model with full attention", small)
    if isinstance(options.n_masks, int) and length is not None and length > options.n_masks:
        raise must_be("block_length", f"at most n_masks={options.n_masks}", length)
