"""Model families, one file each: what distinguishes them, and which family a config belongs to.

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

from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import OptionError, options_of
from mdlm_lm_eval.registry import FAMILIES, ROW_DECODERS, SAMPLERS, register

_AS_GUEST = "its authors' code: sampler=FILE.py:FUNCTION, with modeling=FILE.py:CLASS"
# What the names of checkpoints hold that were trained for a decoder of their own -> what that does, and how to have it.
_OWN_DECODERS = {
    "dreamon": ("expands and contracts the masks", _AS_GUEST),
    "dmax": ("feeds soft embeddings back", _AS_GUEST),
    "d3llm": ("fills several blocks at once, by entropy", "sampler=multi_block"),
    "dparallel": ("fills by thresholds", "confidence_threshold or entropy_threshold"),
}


def shift_of_config(config: PretrainedConfig) -> bool:
    """What the checkpoint's config says under `shift_logits`; without it, logits are not shifted."""
    shift = config.to_dict().get("shift_logits", False)
    if not isinstance(shift, bool):
        raise OptionError(f"shift_logits in config.json must be true or false, not {shift!r}")
    return shift


def shifted(_config: PretrainedConfig) -> bool:
    """The output at a position predicts the next token, as in the autoregressive model that the family began as."""
    return True


def blocks_from_row_start(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Attention in blocks that are counted from a row's first token: as long as the option says, else the config."""
    return AttentionPattern(block_length or config.block_length)


def tokenizer_of_file(_class_name: str | None) -> Any:
    """The class for families whose `tokenizer.json` says all.

    AutoTokenizer would see Llama's or Qwen's config and rebuild their pre-tokenizer in place of the file's.
    """
    return PreTrainedTokenizerFast


# What any model does that answers with logits, but for remembering keys and values.
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
    """A model family: how its checkpoints are published, and what must be known to denoise with them.

    name: recorded with every score.
    model_types: the `model_type`s in published `config.json` files that it answers to. Without any, a checkpoint
        belongs to the family only where `diffusion_family` says so.
    config_key: a key of `config.json` that only this one has among the families of its model types.
    published_as: what the names of its checkpoints hold in lower case, as a regular expression, where several families
        publish the same config. A name decides only where neither a key of the config nor `diffusion_family` does.
    native_config: a published `config.json`, with the checkpoint's `name_or_path`, as the config of the class that
        transformers ships; it raises OptionError for a setting without equivalent. None where transformers reads the
        config itself.
    check: what keeps a config from being a masked diffusion model's, as the end of a sentence; None where nothing does.
    model_class: transformers' class (or auto class) for a config; masks of decoder-only ones become bidirectional with
        `is_causal=False`.
    remote_code: whether the checkpoint's own code runs.
    weight_names: names of published weights, as regular expressions, -> transformers' names. Adapters that were trained
        on the published modules are renamed alike.
    weight_conversions: WeightConverters of transformers for published weights that are split or joined while they
        stream in, after `weight_names`.
    adapt: changes modules of transformers' class in place, once the weights are loaded.
    unused_weights: parts of names that a checkpoint may hold and the model does not need.
    reserved_positions: how many of the positions that the config names hold no token, from the model without weights;
        None where each can.
    tokenizer_class: the class that reads the tokenizer, from the class name in its files.
    end_of_turn: tokens that end an assistant's turn in the family's chat format, or fill the canvas after it.
    shift: whether the output at position i predicts the token at i + 1; it raises OptionError where it is unknown.
    attention: what a position sees, from the config and the option `block_length`; the whole canvas by default,
        whatever blocks it is decoded in.
    edits: whether decoding may change a token that it has written, until the token's block is done (LLaDA2.1).
    generate: generation by transformers' own method, where the family is decoded by that alone:
        (model, prompt_ids, options, n_tokens=, end_ids=, pad_token_id=, seed=) -> (token ids, forward passes, tokens
        written).
    read: where the noise is random tokens and not masks, one denoising step over noisy canvases after a prompt:
        (model, prompt_ids, batches of canvases [K, T], positions [N]) -> logits [K, N, V] of each batch.
    decoding_defaults: decoding options that its authors publish. The command line takes them for options that are not
        given.
    supports: decoding options, and `likelihood`, `infill` and `load_denoiser`, that work with the family; None for
        every one, also those that are added later. `sampler` stands for the options of all samplers, which refuse a
        model themselves, and `hindsight` for what some of them need: passes in which columns see what they are told to.
        Options of a row decoder work only where they are named.
    supports_in_slots: decoding options that work in requests with slots, where these differ; empty where they do not.
    instead: what to use in place of an option that does not, as a clause.
    """

    name: str
    model_types: tuple[str, ...] = ()
    config_key: str | None = None
    published_as: str | None = None
    native_config: Callable[[dict[str, Any]], PretrainedConfig] | None = None
    check: Callable[[PretrainedConfig], str | None] = lambda _config: None
    model_class: Callable[[PretrainedConfig], Any] = lambda _config: AutoModelForCausalLM
    remote_code: bool = False
    weight_names: Mapping[str, str] = field(default_factory=dict)
    weight_conversions: Callable[[], list[Any]] = list
    adapt: Callable[[Any], None] = lambda _model: None
    unused_weights: tuple[str, ...] = ()
    reserved_positions: Callable[[nn.Module], int] | None = None
    tokenizer_class: Callable[[str | None], Any] = lambda _class_name: AutoTokenizer
    end_of_turn: tuple[str, ...] = ()
    shift: Callable[[PretrainedConfig], bool] = shift_of_config
    attention: Callable[[PretrainedConfig, int | None], AttentionPattern] = lambda _config, _length: FULL_ATTENTION
    edits: bool = False
    generate: Callable[..., tuple[list[int], int, int]] | None = None
    read: Callable[..., Iterator[Tensor]] | None = None
    decoding_defaults: Mapping[str, object] = field(default_factory=dict)
    supports: frozenset[str] | None = None
    supports_in_slots: frozenset[str] = frozenset()
    instead: str = "leave it out"

    def shares_with(self, other: "Family") -> str:
        """The model types that both answer to although nothing else tells their configs apart, in words."""
        differ = (self.config_key, self.published_as) != (other.config_key, other.published_as)
        shared = set() if differ else set(self.model_types) & set(other.model_types)
        return f"model_type {', '.join(sorted(shared))}" if shared else ""

    def refuse(self, option: str, value: object, *, needs: str = "", in_slots: bool | None = None) -> None:
        """Raises OptionError where the family does not support `option`, or what it `needs`: names as in `supports`.

        `in_slots` says whether the request has slots; None where that is not known yet.
        """
        supports = self.supports
        if supports is not None and self.supports_in_slots and in_slots is not False:
            supports = self.supports_in_slots if in_slots else supports | self.supports_in_slots
        if supports is not None and "sampler" in supports:
            supports |= options_of(SAMPLERS).keys()
        is_free = supports is None and option not in options_of(ROW_DECODERS).keys() - options_of(SAMPLERS).keys()
        if not is_free and (needs or option) not in (supports or ()):
            raise OptionError(f"{option}={value} does not work with the family {self.name}: {self.instead}")


def own_decoder(pretrained: str) -> tuple[str, str] | None:
    """What the decoder does that a checkpoint of this name was trained for, and how to have it; None where any does."""
    name = PurePath(pretrained.lower())
    words = [part for part in (name.name, name.parent.name) if part]
    return next((said for key, said in _OWN_DECODERS.items() if any(key in word for word in words)), None)


def register_family(family: Family) -> None:
    """Makes the family known under its name and model types. Raises ValueError where they are another's."""
    register(name=family.name, family=family)


def published_family(published: Mapping[str, Any], pretrained: str) -> Family | None:
    """The family that reads a published `config.json`, None where its `model_type` is no family's.

    Of several with that `model_type`, `diffusion_family` in the config decides, then a key that only one of them has,
    then the name of the checkpoint, from its last part to its first: trainers write `name/checkpoint-10`. Raises
    OptionError where none of these does.
    """
    candidates = [family for family in FAMILIES.all().values() if published.get("model_type") in family.model_types]
    named = [family for family in candidates if family.name == published.get("diffusion_family")]
    keyed = [family for family in candidates if family.config_key in published]
    left = named or keyed or [family for family in candidates if family.config_key is None] or candidates
    if len(left) <= 1:
        return left[0] if left else None
    for part in reversed(PurePath(pretrained).parts):
        for family in left:
            if family.published_as and re.search(family.published_as, part.lower()):
                return family
    names = " or ".join(family.name for family in left)
    raise OptionError(
        f"pretrained={pretrained}: its config.json is of {names}; say which with diffusion_family= among the model "
        "arguments or as a key of config.json"
    )


def family_of(config: PretrainedConfig) -> Family:
    """The family of a config in transformers' terms. Raises OptionError where it names one that is unknown."""
    families = FAMILIES.all()
    name = config.to_dict().get("diffusion_family")  # where the class of transformers does not
    if name is None:
        native = (each for each in families.values() if each.native_config is None)
        found = next((each.name for each in native if config.model_type in each.model_types), None)
        name = found or ("autoregressive" if config.model_type in CONFIG_MAPPING else "remote")
    if name not in families:
        raise OptionError(f"diffusion_family={name!r} must be one of {', '.join(families)}")
    return families[name]
