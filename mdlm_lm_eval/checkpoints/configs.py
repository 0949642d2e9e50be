"""A checkpoint's config in transformers' terms, and the family that it belongs to."""

from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.checkpoints import dream, llada, llada_moe
from mdlm_lm_eval.checkpoints.masked_lm import is_masked_lm
from mdlm_lm_eval.options import OptionError

# `model_type` as published -> the config of the class that transformers ships.
NATIVE_CONFIGS: dict[str, Callable[[dict[str, Any]], PretrainedConfig]] = {
    "llada": llada.native_config,
    "Dream": dream.native_config,
    "lladamoe": llada_moe.native_config,
}
# Decoder-only classes whose masks become bidirectional with is_causal=False in the config.
BIDIRECTIONAL_DECODERS = ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")


def load_config(
    pretrained: str,
    *,
    revision: str | None = "main",
    subfolder: str | None = "",
    trust_remote_code: bool | None = False,
) -> PretrainedConfig:
    """The config of transformers' own class for the checkpoint, with `is_causal=False`.

    Raises OptionError for a folder without config.json, a family that is not known, a setting of the family that has no
    equivalent, and a causal language model.
    """
    revision, subfolder = revision or "main", subfolder or ""
    check_path("pretrained", pretrained)
    try:
        published, _ = PretrainedConfig.get_config_dict(pretrained, revision=revision, subfolder=subfolder)
    except (OSError, ValueError) as error:
        raise OptionError(f"pretrained={pretrained}: cannot read its config.json: {one_line(error)}") from error
    if not published:
        raise OptionError(f"pretrained={pretrained}: there is no config.json, so this is no checkpoint of transformers")
    model_type = published.get("model_type")
    if model_type in NATIVE_CONFIGS:
        try:
            config = NATIVE_CONFIGS[model_type](published)
        except KeyError as error:
            raise OptionError(f"pretrained={pretrained}: its config.json lacks the key {error}") from error
        except OptionError:
            raise  # names a setting already, and is a ValueError
        except (TypeError, ValueError) as error:
            raise OptionError(f"pretrained={pretrained}: cannot use its config.json: {one_line(error)}") from error
        config.name_or_path = pretrained
        return config
    if trust_remote_code and published.get("auto_map"):
        try:
            config = AutoConfig.from_pretrained(
                pretrained, revision=revision, subfolder=subfolder, trust_remote_code=True
            )
        except Exception as error:  # whatever other people's code raises
            raise OptionError(remote_code_sentence(pretrained, error)) from error
        config.diffusion_family = "remote"
        return config
    if model_type not in CONFIG_MAPPING:
        raise OptionError(
            f"pretrained={pretrained}: model_type={model_type!r} is not known; allowed "
            f"are {', '.join(NATIVE_CONFIGS)}, "
            f"{', '.join(BIDIRECTIONAL_DECODERS)} with is_causal=false, masked language models of transformers, "
            "and others with trust_remote_code=true, mask_token_id and shift_logits"
        )
    try:
        config = AutoConfig.from_pretrained(pretrained, revision=revision, subfolder=subfolder)
    except (TypeError, ValueError) as error:
        raise OptionError(f"pretrained={pretrained}: cannot use its config.json: {one_line(error)}") from error
    check_bidirectional(config, pretrained)
    return config


def check_bidirectional(config: PretrainedConfig, pretrained: str = "a model object") -> None:
    """Raises OptionError for an autoregressive model, and for one of transformers that cannot be made bidirectional."""
    if family_of(config) != config.model_type:
        return  # no decoder of transformers
    if config.to_dict().get("is_causal") is not False:
        raise OptionError(
            f"pretrained={pretrained}: its config does not say is_causal=false, so this {config.model_type} is an "
            "autoregressive model and no masked diffusion model; use --model hf for it"
        )
    if config.model_type not in BIDIRECTIONAL_DECODERS:
        raise OptionError(
            f"pretrained={pretrained}: is_causal=false is supported for {', '.join(BIDIRECTIONAL_DECODERS)}, "
            f"not for model_type={config.model_type!r}"
        )


def family_of(config: PretrainedConfig) -> str:
    """ "llada", "dream", "llada_moe", "remote", "masked_lm", or the `model_type` of a bidirectional decoder."""
    family = config.to_dict().get("diffusion_family")
    if family is not None:
        return family
    if is_masked_lm(config):
        return "masked_lm"
    return config.model_type if config.model_type in CONFIG_MAPPING else "remote"


def check_path(option: str, name: str) -> None:
    """Raises OptionError for what reads as a folder's path, as no hub id does, and is not there."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise OptionError(f"{option}={name}: there is no such folder")


def shifts_logits(config: PretrainedConfig) -> bool:
    """Whether the output at position i predicts the token at i + 1, as Dream's does.

    Raises OptionError for remote code, whose habits are unknown.
    """
    family = family_of(config)
    if family == "remote":
        raise OptionError("shift_logits is not set; remote code needs shift_logits=true or shift_logits=false")
    return family == "dream" or bool(config.to_dict().get("shift_logits", False))


def check_guidance(config: PretrainedConfig, cfg_scale: float) -> None:
    """Raises OptionError for classifier-free guidance with a masked LM of transformers.

    Guidance compares with the same canvas whose prompt is masked whole. Masked diffusion models are trained on every
    mask ratio up to that one; masked LMs on a small share of a text, and predict nothing in particular there.
    """
    if cfg_scale > 0.0 and is_masked_lm(config):
        raise OptionError(
            f"cfg_scale={cfg_scale} is not allowed with model_type={config.model_type!r}: a masked language model has "
            "no unconditional form, as it was not trained to fill a text whose prompt is masked whole; allowed is 0"
        )


def resolve_mask_token_id(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None, override: int | None
) -> int:
    """The mask token: `override`, else the config's, else the tokenizer's. Raises OptionError if missing or no id."""
    in_tokenizer = None if tokenizer is None else tokenizer.mask_token_id
    candidates = (override, config.to_dict().get("mask_token_id"), in_tokenizer)
    mask_token_id = next((candidate for candidate in candidates if candidate is not None), None)
    vocab_size = config.get_text_config().vocab_size
    if mask_token_id is None:
        raise OptionError(
            "mask_token_id is not set and neither the checkpoint's config nor its tokenizer names a mask token; "
            f"allowed are ids from 0 to {vocab_size - 1}"
        )
    if not isinstance(mask_token_id, int) or not 0 <= mask_token_id < vocab_size:
        raise OptionError(
            f"mask_token_id={mask_token_id} is no token of the vocabulary; allowed are ids from 0 to {vocab_size - 1}"
        )
    return int(mask_token_id)


def remote_code_sentence(pretrained: str, error: Exception) -> str:
    """What to say where a checkpoint's own code fails."""
    return (
        f"pretrained={pretrained}: its own code does not run with the installed packages: "
        f"{type(error).__name__}: {one_line(error)}"
    )


def one_line(error: Exception) -> str:
    """The beginning of an exception's message, for messages of one sentence."""
    return shorten(str(error) or type(error).__name__, 300, placeholder=" ...")
