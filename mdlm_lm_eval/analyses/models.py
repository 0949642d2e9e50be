"""The model under analysis: masked diffusion checkpoints and, as the paper's references, autoregressive ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from mdlm_lm_eval import families
from mdlm_lm_eval.analyses.options import AUTOREGRESSIVE, AnalysisOptions
from mdlm_lm_eval.context import context_length
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.families.loading.errors import refusing
from mdlm_lm_eval.families.loading.hub import check_source
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import best_device
from mdlm_lm_eval.model_arguments import (
    BITSANDBYTES_NAMES,
    FROM_PRETRAINED_NAMES,
    bitsandbytes_arguments,
    check_loading,
)
from mdlm_lm_eval.options import MODEL_NAMES, ModelOptions, OptionError, unknown_option

WHERE_NAMES = frozenset({"revision", "subfolder", "trust_remote_code"})
OWN_NAMES = WHERE_NAMES | {"pretrained", "peft", "dtype", "add_bos_token", "mask_token_id", "shift_logits"}


@dataclass(frozen=True)
class PromptEncoding:
    """What of a checkpoint decides its input tokens, readable without its weights.

    `mask_token_id` is None for autoregressive models; `max_length` is in tokens. `attention` decides how many masks a
    canvas of a block diffusion model has.
    """

    tokenizer: PreTrainedTokenizerBase
    mask_token_id: int | None
    pad_token_id: int
    max_length: int
    attention: AttentionPattern = FULL_ATTENTION


def check_model_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises OptionError for a name that says nothing about loading, or a value that cannot be used."""
    known = OWN_NAMES | BITSANDBYTES_NAMES | FROM_PRETRAINED_NAMES
    for name, value in arguments.items():
        if name not in known:
            raise unknown_option("model argument of an analysis", name, value, known)
    ModelOptions().override({name: value for name, value in arguments.items() if name in MODEL_NAMES})
    check_loading(arguments)


def read_encoding(options: AnalysisOptions) -> PromptEncoding:
    """Tokenizer and special tokens of the checkpoint. Raises OptionError where it is no model of its kind."""
    arguments = options.model_args
    pretrained = pretrained_path(arguments)
    where = {name: arguments[name] for name in WHERE_NAMES & arguments.keys()}
    if options.model == AUTOREGRESSIVE:
        check_source("pretrained", pretrained, CONFIG_NAME)
        with refusing(f"pretrained={pretrained} cannot be read"):
            config = AutoConfig.from_pretrained(pretrained, **where)
            tokenizer = AutoTokenizer.from_pretrained(pretrained, **where)
        if config.to_dict().get("is_causal") is False:
            raise OptionError(f"pretrained={pretrained} is no autoregressive model; use --model mdlm for it")
        mask_token_id, attention = None, FULL_ATTENTION
    else:
        config = families.load_config(pretrained, **where)
        tokenizer = families.load_tokenizer(
            pretrained, config=config, add_bos_token=arguments.get("add_bos_token"), **where
        )
        mask_token_id = families.resolve_mask_token_id(config, tokenizer, arguments.get("mask_token_id"))
        attention = families.attention_of(config, None, arguments.get("attn_implementation"))
    if not tokenizer.is_fast:
        raise OptionError(f"pretrained={pretrained}: its tokenizer does not tell where in the text a token stands")
    # Padding is never attended to, so any id does where the tokenizer names none.
    pad_token_id = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return PromptEncoding(tokenizer, mask_token_id, pad_token_id, context_length(config, tokenizer), attention)


def load_model(options: AnalysisOptions, encoding: PromptEncoding) -> Denoiser:
    """The model with frozen weights, on the asked device or the machine's accelerator.

    An autoregressive model is a denoiser too: its output at a position predicts the next token (`shift`), and as its
    attention is causal, the token that stands at the predicted position has no influence.
    """
    arguments = bitsandbytes_arguments(dict(options.model_args))
    pretrained, peft = pretrained_path(arguments), arguments.get("peft")
    loading = {name: arguments[name] for name in arguments.keys() & (FROM_PRETRAINED_NAMES | WHERE_NAMES)}
    loading.setdefault("device_map", {"": options.device or best_device()})
    dtype = arguments.get("dtype", "auto")
    if options.model == AUTOREGRESSIVE:
        with refusing(f"pretrained={pretrained} cannot be read"):
            model: Any = AutoModelForCausalLM.from_pretrained(pretrained, dtype=dtype, **loading)
        if peft is not None:
            model = families.load_adapter(model, peft, revision=loading.get("revision"))
        denoiser = Denoiser(
            model.eval(), mask_token_id=encoding.pad_token_id, pad_token_id=encoding.pad_token_id, shift=True
        )
    else:
        denoiser = load_denoiser(
            pretrained,
            dtype=dtype,
            peft=peft,
            mask_token_id=encoding.mask_token_id,
            shift_logits=arguments.get("shift_logits"),
            **loading,
        )
    denoiser.model.requires_grad_(False)
    return denoiser


def pretrained_path(arguments: Mapping[str, Any]) -> str:
    """The checkpoint's folder or hub id; without `pretrained` the built-in model's folder."""
    return str(arguments.get("pretrained", default_model_path()))
