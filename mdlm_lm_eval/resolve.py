"""`resolve()` merges options: a request's over the model arguments, a preset, the family's defaults and the defaults.

They are merged once per distinct setting, into an immutable object that all later code reads.
"""

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mdlm_lm_eval.declared import aliases, asked_sampler, declarations, options_of, own_names, parsed
from mdlm_lm_eval.decoding.way import Way, way_of
from mdlm_lm_eval.model.attention import FULL_ATTENTION
from mdlm_lm_eval.options import (
    APPROXIMATE_CACHES,
    BITSANDBYTES,
    DEFAULT_SAMPLER,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    OptionError,
    check_names,
    is_random,
    parse_flag,
    parse_whole,
    shown,
)
from mdlm_lm_eval.registry import SAMPLERS, guest_of
from mdlm_lm_eval.script_arguments import without_script_arguments

# Arguments of lm-eval's HFLM and of transformers' from_pretrained, which they check themselves.
_LOADING = """
    pretrained backend revision subfolder tokenizer truncation logits_cache max_length device dtype softmax_dtype
    mixed_precision_dtype batch_size max_batch_size trust_remote_code use_fast_tokenizer add_bos_token
    prefix_token_id parallelize max_memory_per_gpu max_cpu_memory offload_folder tp_plan peft think_end_token
    enable_thinking chat_template_args attn_implementation cache_dir code_revision device_map device_mesh
    distributed_config experts_implementation force_download fusion_config kernel_config local_files_only
    low_cpu_mem_usage max_memory offload_buffers proxies quantization_config torch_dtype tp_size
    use_kernels use_safetensors variant weights_only disable_mmap
"""
LOADING_NAMES = frozenset(_LOADING.split())

# Name of a loading argument in other scripts -> its name here.
_LOADING_ALIASES = {"model_path": "pretrained"}
# Names of `n_masks` in scripts, where it is the length of answers and changes no likelihood.
_OF_ANSWERS = frozenset({"gen_length", "max_new_tokens"})
# lm-eval's four names for the same limit, in lm-eval's order of priority.
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# The first keys of lm-eval's `default_gen_kwargs`, for a task without generation_kwargs; --gen_kwargs come after them.
_FILLED_IN = ("temperature", "do_sample", "max_gen_toks")
SAMPLING_NAMES = ("temperature", "top_p", "top_k")
# Keys of autoregressive generation in task files, which have no meaning for masked diffusion.
_IGNORED = """
    diversity_penalty early_stopping encoder_repetition_penalty epsilon_cutoff eta_cutoff frequency_penalty
    length_penalty max_length min_length min_new_tokens min_p no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences pad_token_id penalty_alpha presence_penalty repetition_penalty skip_special_tokens
    typical_p use_cache
"""
_MEANINGLESS = frozenset(_IGNORED.split())
_REQUEST_NAMES = frozenset({"until", "infill", "do_sample", *LENGTH_NAMES, *_MEANINGLESS})
_OF_REQUESTS = "generation options, of the task or of --gen_kwargs"  # lm-eval merges them

_EXCLUSIVE = (*DecodingOptions.exclusive, ("cache", "cfg_scale"), ("cache", "unmasking"))
# Options that exclude others only at values for which the function is true. Any other does so once set, even to auto.
_EXCLUDES: dict[str, Callable[[Any], bool]] = {
    "cache": lambda value: value in APPROXIMATE_CACHES,
    "unmasking": is_random,
    "cfg_scale": bool,
}

Layer = Mapping[str, Any]
# Returns the AttentionPattern for the option `block_length`; None if the model is not known.
AttentionOf = Callable[[int | None], Any]
# (way, whether the request has slots, or None): raises OptionError if the model does not support it.
Check = Callable[[Way, bool | None], None]


@dataclass(frozen=True)
class ResolvedRequest(Way):
    """The options of one generation request, merged with all others and joined with what they choose.

    until: the stop strings. infill: whether the text has slots.
    sampled: whether repetitions of the request have different answers.
    ignored: keys of the request that have no meaning for masked diffusion.
    typed: names of the options that the user or the task set.
    thinks: whether the answer may begin with thinking. in_thought: whether the prompt has begun it.
    """

    until: tuple[str, ...]
    infill: bool
    sampled: bool
    ignored: frozenset[str]
    typed: frozenset[str]
    thinks: bool = True
    in_thought: bool = False

    @cached_property
    def alike(self) -> Hashable:
        """Equal for requests that may share a batch."""
        return replace(self.options, max_gen_toks=None), self.until, self.infill

    @cached_property
    def as_thought(self) -> "ResolvedRequest":
        """The same request for a prompt that leaves thinking open."""
        return replace(self, in_thought=True)

    @cached_property
    def without_thinking(self) -> "ResolvedRequest":
        """The same request for a prompt that closes thinking: no option writes its end into the answer."""
        return replace(self, options=replace(self.options, end_think_boost=0.0, max_thinking_tokens=None), thinks=False)


@dataclass(frozen=True)
class Settings:
    """Model arguments, merged with a preset and the family's defaults.

    way: decoding without a request's own options.
    attention: the model's AttentionPattern under these options, whatever the sampler; None if the model is not known.
    explicit: names of decoding and likelihood options that the user set, directly or by a preset.
    from_family: names of options with the value that the family's authors publish.
    arguments: what the user typed, under our names. loading: those of HFLM and transformers among them.
    layers: decoding options of the family, of the preset and of the user; a later layer counts more.
    """

    way: Way
    likelihood: LikelihoodOptions
    model: ModelOptions
    attention: Any
    explicit: frozenset[str]
    from_family: frozenset[str]
    arguments: Layer
    loading: dict[str, Any]
    layers: tuple[Layer, ...]
    attention_of: AttentionOf
    check: Check
    _requests: dict[str, ResolvedRequest] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def decoding(self) -> DecodingOptions:
        """The options of the way."""
        return self.way.options

    def seeded(self, seed: int) -> "Settings":
        """Returns the same settings with this seed, unless the user set one."""
        if "seed" in self.explicit or seed == self.decoding.seed:
            return self
        way = replace(self.way, options=replace(self.decoding, seed=seed))
        return replace(self, way=way, likelihood=replace(self.likelihood, seed=seed))

    def request(self, gen_kwargs: Mapping[str, Any]) -> ResolvedRequest:
        """Merges a request's options over these, once for requests with equal options.

        A sampling key of the request counts only if the user did not set it, as task files for autoregressive models
        contain such keys anyway. Raises OptionError for an unknown key, a value that cannot be used, and options that
        the model does not support.
        """
        key = json.dumps(gen_kwargs, default=str)
        if key not in self._requests:
            self._requests[key] = self._request(gen_kwargs)
        return self._requests[key]

    def _request(self, gen_kwargs: Mapping[str, Any]) -> ResolvedRequest:
        names = {alias: name for alias, name in aliases().items() if alias not in _REQUEST_NAMES}
        given = _without_filled_in_length(_renamed(gen_kwargs, names, _OF_REQUESTS), self.layers)
        check_names("generation option", given, _REQUEST_NAMES.union(declarations(DecodingOptions)))
        changes = _sampling_of(given)
        changes = {name: changes[name] for name in changes.keys() - self.explicit.intersection(SAMPLING_NAMES)}
        if (length := _length_of(given)) is not None:
            changes["max_gen_toks"] = length
        family, preset, typed = self.layers
        merged, attention = _merge((family, preset, {**typed, **changes}), self.attention_of)
        way = way_of(DecodingOptions(**{"seed": self.decoding.seed, **merged}), attention or FULL_ATTENTION)
        until = given.get("until") or ()
        stops = () if way.options.escape_until else tuple(filter(None, [until] if isinstance(until, str) else until))
        infill = "infill" in given and parse_flag("infill", given["infill"])
        self.check(way, infill)
        return ResolvedRequest(
            options=way.options,
            sampler=way.sampler,
            attention=way.attention,
            until=stops,
            infill=infill,
            sampled=way.options.temperature > 0.0 or is_random(way.options.unmasking),
            ignored=_MEANINGLESS & given.keys(),
            typed=frozenset({*typed, *changes}),
        )


def resolve(
    arguments: Mapping[str, Any],
    *,
    family: Mapping[str, object] | None = None,
    attention_of: AttentionOf = lambda block_length: None,
    check: Check = lambda way, in_slots: None,
    default_seed: int = 0,
) -> Settings:
    """Merges model arguments with a preset and the `decoding_defaults` of a `family` of models.

    `check` refuses options that the model does not support. Raises OptionError for an unknown name (and names the
    nearest known one), and for values and combinations of our options that cannot be used. HFLM and transformers check
    their own arguments.
    """
    typed = {str(name).strip(): value for name, value in arguments.items()}
    given = _renamed(without_script_arguments(typed), aliases(), "model arguments")
    if given.pop("token", None) not in (None, False):
        raise OptionError("token does not work with --model mdlm: results would show it; set HF_TOKEN")
    named = {name: value for name, value in given.items() if not name.startswith(BITSANDBYTES)}
    check_names("model argument", named, own_names() | LOADING_NAMES)
    model = ModelOptions(**parsed(ModelOptions, given))
    preset = {} if model.preset is None else _options_of_preset(model.preset)
    published = family or {}
    layers, is_guest = _layers_of(published, preset, given, attention_of)
    _check_guest(model, given.get("peft"), is_guest=is_guest)
    merged, attention = _merge(layers, attention_of)
    scored = {name: published[name] for name in published.keys() - declarations(DecodingOptions)}
    scoring = dict(given)
    if typed.keys() & _OF_ANSWERS:
        scoring.pop("n_masks", None)
    likelihood = parsed(LikelihoodOptions, {**scored, **preset, **scoring})
    explicit = frozenset(merged.keys() & {*layers[1], *layers[2]})
    _check_audit(model, merged.get("cache", "auto"))
    way = way_of(DecodingOptions(**{"seed": default_seed, **merged}), attention or FULL_ATTENTION)
    check(way, None)
    return Settings(
        way=way,
        likelihood=LikelihoodOptions(**{"seed": default_seed, **likelihood}),
        model=model,
        attention=attention,
        explicit=explicit | (frozenset(likelihood) & {*preset, *given}),
        from_family=(frozenset(merged) | scored.keys()) - explicit - given.keys(),
        arguments={name: value for name, value in given.items() if value is not None},
        loading={name: value for name, value in given.items() if name not in own_names() and value is not None},
        layers=layers,
        attention_of=attention_of,
        check=check,
    )


def _layers_of(
    published: Layer, preset: Layer, given: Layer, attention_of: AttentionOf
) -> tuple[tuple[Layer, Layer, Layer], bool]:
    """Returns the decoding options of the family, of the preset and of the user, and whether they name a guest.

    A guest has its own defaults, except for the model's blocks.
    """
    of_family, of_preset, of_user = (parsed(DecodingOptions, layer) for layer in (published, preset, given))
    is_guest = ":" in of_user.get("sampler", "")
    if is_guest:
        blocks = getattr(attention_of(None), "block_length", None)
        of_family = {} if blocks is None else {"block_length": blocks}
    return (of_family, of_preset, of_user), is_guest


def _sampling_of(given: Layer) -> dict[str, Any]:
    """Returns a request's decoding options but its length; `do_sample` becomes a temperature."""
    typed = given.keys() - {*LENGTH_NAMES, *(name for name in SAMPLING_NAMES if given.get(name) is None)}
    changes = parsed(DecodingOptions, {name: given[name] for name in typed})
    _refuse_guest("a generation option", changes)
    if given.get("do_sample") is None:
        return changes
    if parse_flag("do_sample", given["do_sample"]):
        return {"temperature": 1.0, **changes}
    return {name: changes[name] for name in changes.keys() - SAMPLING_NAMES} | {"temperature": 0.0}


def _length_of(given: Layer) -> int | None:
    """Returns how many tokens a request asks for. Raises OptionError if its names for that say different numbers."""
    lengths = {name: parse_whole(name, given[name], least=1) for name in LENGTH_NAMES if given.get(name) is not None}
    if len(set(lengths.values())) > 1:
        settings = " and ".join(f"{name}={value}" for name, value in lengths.items())
        raise OptionError(f"{settings} exclude each other: the task sets one of them; set that one")
    return next(iter(lengths.values()), None)


def _options_of_preset(name: str) -> Layer:
    """Returns the options of a preset. Raises OptionError if it names code, which only the user can."""
    from mdlm_lm_eval.presets import load_preset

    preset = load_preset(name)
    for code in ("plugins", "modeling"):
        if code in preset:
            raise OptionError(f"preset={name} names {code}, which the user alone can")
    _refuse_guest(f"preset={name}", preset)
    return preset


def _check_guest(model: ModelOptions, peft: object, *, is_guest: bool) -> None:
    """Raises OptionError for model options that do not work with a guest, or that need one."""
    if is_guest and model.compile:
        raise OptionError("compile=true does not work with a guest, which calls the model as it is")
    if model.modeling is not None and not is_guest:
        raise OptionError(f"modeling={model.modeling} needs sampler=FILE.py:FUNCTION, which decodes with it")
    if model.modeling is not None and peft:
        raise OptionError(f"modeling={model.modeling} does not work with peft={peft}, which adapts our network")


def _check_audit(model: ModelOptions, cache: str) -> None:
    """Raises OptionError for an audit of a cache that is exact."""
    if model.cache_audit is not None and cache not in APPROXIMATE_CACHES:
        caches = " or cache=".join(APPROXIMATE_CACHES)
        raise OptionError(
            f"cache_audit={shown(model.cache_audit)} needs cache={caches}; with cache={cache} everything is decoded "
            "exactly"
        )


def _refuse_guest(where: str, options: Layer) -> None:
    """Raises OptionError if these options name a guest, as it runs code: neither a task nor a preset may name one."""
    if guest_of(options.get("sampler")):
        raise OptionError(f"{where} names sampler={options['sampler']}, which only the user can, as a model argument")


def _without_filled_in_length(given: Layer, layers: Sequence[Layer]) -> Layer:
    """Drops the limit that lm-eval fills in for a task without one, if the user sets it in another way.

    That is by another name, in the `layers` of model arguments, or as a number of masks, to which it is then equal.
    """
    is_filled_in = [*given][: len(_FILLED_IN)] == [*_FILLED_IN] and given["max_gen_toks"] == 256
    is_set = any(given.get(name) is not None for name in LENGTH_NAMES if name != "max_gen_toks")
    is_set |= any("max_gen_toks" in layer for layer in layers)
    is_set |= any(layer.get("n_masks", "auto") != "auto" for layer in (*layers, given))
    return {name: value for name, value in given.items() if name != "max_gen_toks" or not (is_filled_in and is_set)}


def loading_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns model arguments with aliases of loading arguments replaced by our names."""
    return _renamed(given, _LOADING_ALIASES, "model arguments")


def _renamed(given: Mapping[str, Any], names: Mapping[str, str], source: str) -> dict[str, Any]:
    """Returns options under our names; `names` are aliases of them. Raises OptionError if two become one option."""
    found: dict[str, Any] = {}
    typed_as: dict[str, str] = {}
    for key, value in given.items():
        typed = str(key).strip()
        name = names.get(typed, typed)
        if typed == "remasking" and str(value) in {"auto", "none", *SAMPLERS.names()}:
            name = "sampler"  # its name in version 0.3 of this package; `unmasking` in LLaDA's scripts
        if name in found:
            both = f"{typed_as[name]}={shown(found[name])} and {typed}={shown(value)}"
            raise OptionError(f"{both} are the same option; both are {source}")
        found[name], typed_as[name] = value, typed
    return found


def _merge(layers: tuple[Layer, ...], attention_of: AttentionOf) -> tuple[dict[str, Any], Any]:
    """Merges layers of options, of which the last counts most. Returns the options and their AttentionPattern.

    A layer drops options of lower layers that it excludes or that have no meaning with it.
    """
    length = next((layer["block_length"] for layer in reversed(layers) if "block_length" in layer), None)
    attention, own_length = attention_of(length), getattr(attention_of(None), "block_length", None)
    block_length = length if attention is None else attention.block_length
    merged: dict[str, Any] = {}
    for layer in layers:
        below = {name: value for name, value in merged.items() if name not in layer}
        excluded = _excluded_by(layer, below)
        below = _of_one_sampler({name: value for name, value in below.items() if name not in excluded}, layer)
        if _is_above_masks(below.get("block_length"), layer.get("n_masks"), attention):
            del below["block_length"]
        before, after = (each.get("block_length") or own_length for each in (merged, {**merged, **layer}))
        below = _fitted_into_blocks(below, before, after, block_length)
        if merged.get("block_length") is not None and {**below, **layer}.get("block_length") is None:
            below.pop("cache", None)  # it needs blocks
        merged = {**below, **layer}
    return merged, attention


def _is_above_masks(block_length: int | None, n_masks: Any, attention: Any) -> bool:
    """Returns whether blocks are longer than the masks that are asked for, which only block diffusion allows."""
    is_full = attention is not None and not attention.is_block_causal
    return is_full and isinstance(n_masks, int) and (block_length or 0) > n_masks


def _fitted_into_blocks(below: Layer, before: int | None, after: int | None, final: int | None) -> dict[str, Any]:
    """Returns options of lower layers, with those that divide blocks of `before` tokens as they divide `after`.

    final: the block length of all layers together.
    """
    fitted = dict(below)
    if before and after and fitted.get("steps_per_block"):  # so that each step still fills as many tokens
        fitted["steps_per_block"] = math.ceil(fitted["steps_per_block"] * after / before)
    if final and final % (fitted.get("small_block_length") or 1):
        del fitted["small_block_length"]  # made for other blocks
    return fitted


def _excluded_by(layer: Layer, below: Layer) -> set[str]:
    """Returns the options in force that options of a layer exclude."""
    in_force = {
        name
        for name, value in {**below, **layer}.items()
        if value is not None and (name not in _EXCLUDES or _EXCLUDES[name](value))
    }
    in_layer = in_force & layer.keys()
    return {name for names in _EXCLUSIVE if in_layer.intersection(names) for name in names} & in_force


def _of_one_sampler(below: Layer, layer: Layer) -> dict[str, Any]:
    """Returns the options of lower layers without those of samplers that are not in effect with `layer`."""
    asked = asked_sampler(layer)
    kept = {name: value for name, value in below.items() if name != "sampler" or asked is None}
    sampler = asked or asked_sampler({**kept, **layer}) or DEFAULT_SAMPLER
    own = {} if ":" in sampler else SAMPLERS.get(sampler).declared()
    others = options_of(SAMPLERS).keys() - own
    return {name: value for name, value in kept.items() if name not in others}
