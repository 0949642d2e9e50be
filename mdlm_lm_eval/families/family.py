"""Everything that tells one model family from another, in one object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.values import parse_flag

NativeConfig = Callable[[dict[str, Any]], PretrainedConfig]


def shift_of_config(config: PretrainedConfig) -> bool:
    """What the checkpoint's config says under `shift_logits`; without it, logits are not shifted."""
    return parse_flag("shift_logits", config.to_dict().get("shift_logits") or False)


def shifted(_config: PretrainedConfig) -> bool:
    """The output at a position predicts the next token, as in the autoregressive model that the family began as."""
    return True


def full_attention(_config: PretrainedConfig, _block_length: int | None) -> AttentionPattern:
    """Every position sees the whole canvas, whatever blocks it is decoded in."""
    return FULL_ATTENTION


def no_weights(_config: PretrainedConfig) -> set[str]:
    """No names, for a family without experts."""
    return set()


def no_complaint(_config: PretrainedConfig) -> str | None:
    """Every config of the family is a masked diffusion model's."""
    return None


def auto_tokenizer(_class_name: str | None) -> Any:
    """transformers finds the tokenizer's class."""
    return AutoTokenizer


def causal_lm(_config: PretrainedConfig) -> Any:
    """transformers' decoder-only class; its masks become bidirectional with `is_causal=False`."""
    return AutoModelForCausalLM


@dataclass(frozen=True)
class Family:
    """A model family: how its checkpoints are published, and what must be known to denoise with them.

    name: recorded with every score.
    model_types: the `model_type`s in published `config.json` files that it answers to.
    published_as: what the names of its checkpoints hold in lower case, as a regular expression, where other families
        share its model types. None for the one that is meant where no name tells.
    native_config: a published `config.json`, with the checkpoint's `name_or_path`, as the config of the class that
        transformers ships; it raises OptionError for a setting without equivalent. None where transformers reads the
        config itself.
    check: what keeps a config from being a masked diffusion model's, as the end of a sentence; None where nothing does.
    model_class: transformers' class (or auto class) for a config.
    remote_code: whether the checkpoint's own code runs.
    weight_names: names of published weights, as regular expressions, -> transformers' names. Adapters that were trained
        on the published modules are renamed alike.
    weight_conversions: WeightConverters of transformers for published weights that are split or joined while they
        stream in, after `weight_names`.
    expert_weight_names: published names of all experts' weights, which are fused while loading.
    unused_weights: beginnings or parts of names that a checkpoint may hold and nobody needs.
    reserved_positions: how many of the positions that the config names hold no token, told from the model without
        weights; None where each can.
    tokenizer_class: the class that reads the tokenizer, told from the name that its files give.
    end_of_turn: tokens that end an assistant's turn in the family's chat format.
    shift: whether the output at position i predicts the token at i + 1; it raises OptionError where nobody knows.
    attention: what a position sees, from the config and the option `block_length`.
    edits: whether decoding may change a token that it has written, until the token's block is done (LLaDA2.1).
    generate: generation by transformers' own method, where the family is decoded by that alone:
        (model, prompt_ids, options, n_tokens=, end_ids=, pad_token_id=, seed=) -> (token ids, forward passes, tokens
        written).
    decoding_defaults: decoding options that its authors publish. The command line takes them for options that are not
        given.
    refusals: what the family cannot do ("cfg_scale", "likelihood", ...) -> why, and what to use instead.
    """

    name: str
    model_types: tuple[str, ...] = ()
    published_as: str | None = None
    native_config: NativeConfig | None = None
    check: Callable[[PretrainedConfig], str | None] = no_complaint
    model_class: Callable[[PretrainedConfig], Any] = causal_lm
    remote_code: bool = False
    weight_names: Mapping[str, str] = field(default_factory=dict)
    weight_conversions: Callable[[], list[Any]] = list
    expert_weight_names: Callable[[PretrainedConfig], set[str]] = no_weights
    unused_weights: tuple[str, ...] = ()
    reserved_positions: Callable[[nn.Module], int] | None = None
    tokenizer_class: Callable[[str | None], Any] = auto_tokenizer
    end_of_turn: tuple[str, ...] = ()
    shift: Callable[[PretrainedConfig], bool] = shift_of_config
    attention: Callable[[PretrainedConfig, int | None], AttentionPattern] = full_attention
    edits: bool = False
    generate: Callable[..., tuple[list[int], int, int]] | None = None
    decoding_defaults: Mapping[str, object] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, option: str, value: object) -> None:
        """Raises OptionError where the family cannot do what `option` asks for."""
        if option in self.refusals:
            raise OptionError(f"{option}={value} does not work with the family {self.name}: {self.refusals[option]}")
