"""Model families, one file each: how they differ, and which family a config belongs to.

A new family is one file in this folder, or outside the package, that calls `register(name=..., family=Family(...))`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.declared import options_of
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import FAMILIES, ROW_DECODERS, SAMPLERS, register
from mdlm_lm_eval.results.names import hub_id


@dataclass(frozen=True)
class OwnDecoder:
    """The decoder that a checkpoint was trained for.

    does: its behaviour. use: how to use it. is_only: whether other decoders leave out an input of the network.
    """

    does: str
    use: str = "its authors' code: sampler=FILE.py:FUNCTION, with modeling=FILE.py:CLASS"
    is_only: bool = False


# Words in the names of checkpoints that were trained for a decoder of their own.
_OWN_DECODERS = {
    "dreamon": OwnDecoder("expands and contracts the masks"),
    "dmax": OwnDecoder("feeds soft embeddings back"),
    "rcd[-_](?:sdar|llada)": OwnDecoder(
        "feeds residuals of the pass before back (Residual Context Diffusion)", is_only=True
    ),
    "d3llm": OwnDecoder("fills several blocks at once, by entropy", "sampler=multi_block"),
    "dparallel": OwnDecoder("fills by thresholds", "confidence_threshold or entropy_threshold"),
}


def shift_of_config(config: PretrainedConfig) -> bool:
    """Whether logits are shifted: the key `shift_logits` of the checkpoint's config, False without it."""
    shift = config.to_dict().get("shift_logits", False)
    if not isinstance(shift, bool):
        raise OptionError(f"shift_logits in config.json must be true or false, not {shift!r}")
    return shift


def blocks(**pattern: Any) -> Callable[[PretrainedConfig, int | None], AttentionPattern]:
    """Block-causal attention, in blocks of the option `block_length` or else the config's.

    pattern: other fields of `AttentionPattern`. By default, blocks are counted from a row's first token.
    """
    return lambda config, block_length: AttentionPattern(block_length or config.block_length, **pattern)


def tokenizer_of_file(_class_name: str | None) -> Any:
    """The tokenizer class of families with a complete `tokenizer.json`.

    AutoTokenizer would see Llama's or Qwen's config, and replace the file's pre-tokenizer by theirs.
    """
    return PreTrainedTokenizerFast


# Options that work with any model that returns logits, also without a KV cache.
_NAMES = (
    "load_denoiser likelihood infill n_masks mask_ratio max_gen_toks steps steps_per_block block_length "
    "small_block_length unmasking schedule confidence_threshold parallel_factor entropy_bound sampler "
    "temperature top_p top_k cfg_scale filler n_fillers suppress_eos eos_last early_exit seed "
    "append_blocks end_think end_think_boost end_think_power "
    "position_decay calibration_cap token_frequencies trace escape_until unfinished_thinking"
)
WITHOUT_CACHE = frozenset(_NAMES.split())


@dataclass(frozen=True)
class Family:
    """A model family: how its checkpoints are published, and how to denoise with them.

    name: recorded with every score.
    model_types: values of `model_type` in the `config.json` files of its checkpoints. If empty, a checkpoint belongs to
        the family only if `diffusion_family` says so.
    config_key: a key of `config.json` that no other family with the same model types has.
    published_as: a regular expression for names of its checkpoints in lower case, if several families publish the same
        config. The name decides only if neither `diffusion_family` nor a key of the config does.
    native_config: turns a published `config.json`, with the checkpoint's `name_or_path`, into the config of a class
        that transformers ships. It raises OptionError for a setting without equivalent. None if transformers reads the
        config itself.
    check: returns why a config is not that of a masked diffusion model, as the end of a sentence; None if it is one.
    model_class: transformers' class (or auto class) for a config. Attention of decoder-only classes becomes
        bidirectional with `is_causal=False`.
    remote_code: whether the checkpoint's own code runs.
    may_see_padding: whether padding may change the logits of some of its models, so that each is tried when it loads.
    closes_texts: whether its models were trained on texts that end with the tokenizer's closing token, such as BERT's
        [SEP], which then follows the answer.
    weight_names: names of published weights, as regular expressions, -> transformers' names. Adapters that were trained
        on the published modules are renamed in the same way.
    weight_conversions: WeightConverters of transformers for published weights that are split or joined while they are
        loaded, after `weight_names`.
    adapt: changes modules of transformers' class in place, after the weights are loaded.
    unused_weights: parts of names of weights that a checkpoint may have and the model does not need.
    reserved_positions: returns the number of positions in the config that cannot hold a token, from the model without
        weights. None if all can.
    tokenizer_class: returns the class that reads the tokenizer, from the class name in its files.
    end_of_turn: tokens that end an assistant's turn in the family's chat format, or fill the canvas after it.
    shift: whether the output at position i predicts the token at i + 1. It raises OptionError if that is unknown.
    attention: the attention pattern, from the config and the option `block_length`. By default every position sees the
        whole canvas, also if it is decoded in blocks.
    draws: whether answers may depend on the seed at any temperature.
    edits: whether decoding may change tokens that it has written, until their block is done (LLaDA2.1).
    generate: transformers' own generation, for families that are decoded only by it:
        (model, prompt_ids, options, n_tokens=, end_ids=, pad_token_id=, seed=) -> (token ids, forward passes, tokens
        written).
    read: for families whose noise is random tokens instead of masks, one denoising step over noisy canvases after a
        prompt: (model, prompt_ids, batches of canvases [K, T], positions [N]) -> logits [K, N, V] of each batch.
    decoding_defaults: decoding options that its authors publish. The command line uses them for options that are not
        given.
    supports: names of supported decoding options, and of `likelihood`, `infill` and `load_denoiser`. None means all,
        also those that are added later. `sampler` stands for the options of all samplers, which refuse models
        themselves. `hindsight` stands for passes with an attention mask of the sampler's own. Options of a row decoder
        are supported only if they are named.
    supports_in_slots: names of decoding options that are supported in requests with slots; empty if they are the same.
    instead: what to use in place of an unsupported option, as a clause.
    """

    name: str
    model_types: tuple[str, ...] = ()
    config_key: str | None = None
    published_as: str | None = None
    native_config: Callable[[dict[str, Any]], PretrainedConfig] | None = None
    check: Callable[[PretrainedConfig], str | None] = lambda _config: None
    model_class: Callable[[PretrainedConfig], Any] = lambda _config: AutoModelForCausalLM
    remote_code: bool = False
    may_see_padding: bool = False
    closes_texts: bool = False
    weight_names: Mapping[str, str] = field(default_factory=dict)
    weight_conversions: Callable[[], list[Any]] = list
    adapt: Callable[[Any], None] = lambda _model: None
    unused_weights: tuple[str, ...] = ()
    reserved_positions: Callable[[nn.Module], int] | None = None
    tokenizer_class: Callable[[str | None], Any] = lambda _class_name: AutoTokenizer
    end_of_turn: tuple[str, ...] = ()
    shift: Callable[[PretrainedConfig], bool] = shift_of_config
    attention: Callable[[PretrainedConfig, int | None], AttentionPattern] = lambda _config, _length: FULL_ATTENTION
    draws: bool = False
    edits: bool = False
    generate: Callable[..., tuple[list[int], int, int]] | None = None
    read: Callable[..., Iterator[Tensor]] | None = None
    decoding_defaults: Mapping[str, object] = field(default_factory=dict)
    supports: frozenset[str] | None = None
    supports_in_slots: frozenset[str] = frozenset()
    instead: str = "leave it out"

    def shares_with(self, other: "Family") -> str:
        """The model types that both have, in words, if nothing else distinguishes their configs; otherwise empty."""
        differ = (self.config_key, self.published_as) != (other.config_key, other.published_as)
        shared = set() if differ else set(self.model_types) & set(other.model_types)
        return f"model_type {', '.join(sorted(shared))}" if shared else ""

    def refuse(self, option: str, value: object, *, needs: str = "", in_slots: bool | None = None) -> None:
        """Raises OptionError if the family does not support `option`, or `needs` in its place: names as in `supports`.

        `in_slots`: whether the request has slots; None if that is not known yet.
        """
        supports = self.supports
        if supports is not None and self.supports_in_slots and in_slots is not False:
            supports = self.supports_in_slots if in_slots else supports | self.supports_in_slots
        if supports is not None and "sampler" in supports:
            supports |= options_of(SAMPLERS).keys()
        is_free = supports is None and option not in options_of(ROW_DECODERS).keys() - options_of(SAMPLERS).keys()
        if not is_free and (needs or option) not in (supports or ()):
            raise OptionError(f"{option}={value} does not work with the family {self.name}: {self.instead}")


def own_decoder(pretrained: str) -> OwnDecoder | None:
    """The decoder that a checkpoint of this name was trained for; None for others."""
    name = PurePath(hub_id(pretrained).lower())
    parts = f"{name.parent.name} {name.name}"
    return next((one for key, one in _OWN_DECODERS.items() if re.search(f"(?<![a-z]){key}(?![a-z])", parts)), None)


def refuse_other_decoders(pretrained: str) -> None:
    """Raises OptionError for a checkpoint whose network has an input that only its own decoder fills."""
    known = own_decoder(pretrained)
    if known is not None and known.is_only:
        raise OptionError(
            f"pretrained={pretrained}: by its name it was trained for a decoder of its own, which {known.does}; use "
            f"{known.use}"
        )


def register_family(family: Family) -> None:
    """Registers a family under its name and model types. Raises ValueError if another family has them."""
    register(name=family.name, family=family)


def published_family(published: Mapping[str, Any], pretrained: str) -> Family | None:
    """The family of a published `config.json`, None if no family has its `model_type`.

    If several have it, `diffusion_family` in the config decides; then a key of the config that only one of them has;
    then the checkpoint's name, from its last part to its first, as trainers write `name/checkpoint-10`. Raises
    OptionError if none of these decides.
    """
    candidates = [family for family in FAMILIES.all().values() if published.get("model_type") in family.model_types]
    named = [family for family in candidates if family.name == published.get("diffusion_family")]
    keyed = [family for family in candidates if family.config_key in published]
    left = named or keyed or [family for family in candidates if family.config_key is None] or candidates
    if len(left) <= 1:
        return left[0] if left else None
    for part in reversed(PurePath(hub_id(pretrained)).parts):
        for family in left:
            if family.published_as and re.search(family.published_as, part.lower()):
                return family
    names = " or ".join(family.name for family in left)
    raise OptionError(
        f"pretrained={pretrained}: its config.json is of {names}; say which with diffusion_family= among the model "
        "arguments or as a key of config.json"
    )


def family_of(config: PretrainedConfig) -> Family:
    """The family of a config of transformers' class. Raises OptionError if it names an unknown family."""
    families = FAMILIES.all()
    name = config.to_dict().get("diffusion_family")  # set if transformers' class does not say which family it is
    if name is None:
        native = (each for each in families.values() if each.native_config is None)
        found = next((each.name for each in native if config.model_type in each.model_types), None)
        name = found or ("autoregressive" if config.model_type in CONFIG_MAPPING else "remote")
    if name not in families:
        raise OptionError(f"diffusion_family={name!r} must be one of {', '.join(families)}")
    return families[name]
