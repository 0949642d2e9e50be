"""A checkpoint's config in transformers' terms, and the family that it belongs to."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import CONFIG_NAME

from mdlm_lm_eval.default_model import model_path
from mdlm_lm_eval.families.loading.errors import reason, refusing, remote_code_sentence
from mdlm_lm_eval.families.loading.hub import check_source
from mdlm_lm_eval.families.registry import all_families, family_names, family_of, published_family
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError, defaults_of
from mdlm_lm_eval.values import must_be, shown

_LARGEST_SIZE = 2**31 - 1
# Name -> the largest. A model of a million layers is built for hours before any weight is found to be missing.
_SIZES = {
    "vocab_size": _LARGEST_SIZE,
    "hidden_size": _LARGEST_SIZE,
    "num_hidden_layers": 10_000,
    "num_attention_heads": _LARGEST_SIZE,
    "max_position_embeddings": _LARGEST_SIZE,
}


# What a model would stumble over only while it runs.
_FLAGS = ("output_attentions", "output_hidden_states", "return_dict")


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
    pretrained = model_path(pretrained)
    check_source("pretrained", pretrained, CONFIG_NAME, revision=revision, subfolder=subfolder)
    with refusing(f"pretrained={pretrained}: cannot read its config.json"):
        published, _ = PretrainedConfig.get_config_dict(pretrained, revision=revision, subfolder=subfolder)
        if not isinstance(published, dict):
            raise TypeError("it holds no settings")
    if not published:
        raise OptionError(f"pretrained={pretrained}: there is no config.json, so this is no checkpoint of transformers")
    _check_published(published, pretrained)
    model_type = published.get("model_type")
    named = all_families().get(str(published.get("diffusion_family")))
    family = named if named and model_type in named.model_types else published_family(model_type, pretrained)
    if family is not None and family.native_config is not None:
        try:
            config = family.native_config(published | {"name_or_path": pretrained})
        except KeyError as error:
            raise OptionError(f"pretrained={pretrained}: its config.json lacks the key {error}") from error
        except OptionError as error:
            raise OptionError(f"pretrained={pretrained}: {error}") from error
        except ImportError as error:
            raise OptionError(
                f"pretrained={pretrained}: the family {family.name} needs a newer transformers than {__version__}: "
                f"{reason(error)}"
            ) from error
        except Exception as error:
            raise OptionError(f"pretrained={pretrained}: cannot use its config.json: {reason(error)}") from error
        check_sizes(config, pretrained)
        config.name_or_path = pretrained
        # transformers' class tells neither that attention is bidirectional nor whose checkpoint it was.
        config.is_causal, config.diffusion_family = False, family.name
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
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        if family is not None:
            raise OptionError(
                f"pretrained={pretrained}: the family {family.name} needs a newer transformers than {__version__}"
            )
        raise OptionError(
            f"pretrained={pretrained}: model_type={model_type!r} is not known; the family must be one of "
            f"{family_names()}; remote needs trust_remote_code=true, mask_token_id and shift_logits"
        )
    with refusing(f"pretrained={pretrained}: cannot use its config.json"):
        config = AutoConfig.from_pretrained(pretrained, revision=revision, subfolder=subfolder)
    check_sizes(config, pretrained)
    check_config(config, pretrained)
    return config


def check_config(config: PretrainedConfig, pretrained: str = "a model object") -> None:
    """Raises OptionError for what is no masked diffusion model, such as an autoregressive one."""
    complaint = family_of(config).check(config)
    if complaint is not None:
        raise OptionError(f"pretrained={pretrained}: {complaint}")


def _check_published(published: dict[str, Any], pretrained: str) -> None:
    """Raises OptionError for sizes, flags, a dtype and a quantisation that cannot be."""
    _check_size_values(published, pretrained)  # before a config class divides by them
    for name in _FLAGS:
        if not isinstance(published.get(name), (bool, NoneType)):
            raise OptionError(f"pretrained={pretrained}: {must_be(name, 'true or false', published[name])}")
    dtype = published.get("dtype", published.get("torch_dtype"))
    if dtype is not None and not isinstance(vars(torch).get(str(dtype).removeprefix("torch.")), torch.dtype):
        raise OptionError(f"pretrained={pretrained}: dtype in its config.json names no type of torch: {shown(dtype)}")
    quantisation = published.get("quantization_config")
    if quantisation is not None:
        with refusing(f"pretrained={pretrained}: quantization_config={shown(quantisation)} in its config.json"):
            AutoQuantizationConfig.from_dict(quantisation)


def check_sizes(config: PretrainedConfig, pretrained: str) -> None:
    """Raises OptionError for sizes that no model can have."""
    text = config.get_text_config()
    if not isinstance(text, PretrainedConfig):
        raise OptionError(f"pretrained={pretrained}: {must_be('text_config', 'settings', text)}")
    # Families call some of them otherwise, which the config itself translates.
    _check_size_values({name: getattr(text, name, 1) for name in _SIZES}, pretrained)
    vocab_size, pad_token_id = getattr(text, "vocab_size", _LARGEST_SIZE), getattr(text, "pad_token_id", None)
    # -1 stands in real configs for none; torch counts it from the end.
    if isinstance(pad_token_id, int) and not -vocab_size <= pad_token_id < vocab_size:
        what = f"an id below vocab_size={vocab_size}"
        raise OptionError(f"pretrained={pretrained}: {must_be('pad_token_id', what, pad_token_id)}")


def _check_size_values(sizes: Mapping[str, Any], pretrained: str) -> None:
    for name, largest in _SIZES.items():
        size = sizes.get(name)
        if isinstance(size, int) and not 1 <= size <= largest:
            what = f"a whole number from 1 up to {largest}"
            raise OptionError(f"pretrained={pretrained}: {must_be(name, what, size)}")


def attention_of(
    config: PretrainedConfig, block_length: int | None, attn_implementation: str | None = None
) -> AttentionPattern:
    """What a position sees. `block_length` is the option, `attn_implementation` what the model is loaded with.

    Raises OptionError for a block length that is no whole number from 1, and for an implementation that takes no mask
    by blocks, such as flash attention.
    """
    pattern = family_of(config).attention(config, block_length)
    implementation = attn_implementation or config._attn_implementation
    if pattern.is_block_causal and implementation not in (None, "sdpa", "eager"):
        raise OptionError(f"attn_implementation={implementation} must be sdpa or eager, which can mask by blocks")
    if pattern.is_block_causal:
        _check_sees_all(config, f"block_length={pattern.block_length}")
    return pattern


def _check_sees_all(config: PretrainedConfig, option: str) -> None:
    """Raises OptionError for a sliding window, of which the masks of passes over parts of a canvas know nothing."""
    settings = config.to_dict()
    window, longest = settings.get("sliding_window"), settings.get("max_position_embeddings")
    if window is None or not settings.get("use_sliding_window", True) or (longest is not None and window >= longest):
        return
    raise OptionError(
        f"{option} does not work with the checkpoint's sliding_window={window}; allowed are models whose positions see "
        "the whole canvas"
    )


def check_options(config: PretrainedConfig, options: DecodingOptions) -> None:
    """Raises OptionError for an option that is set and that the family cannot do."""
    family = family_of(config)
    for name, default in defaults_of(DecodingOptions).items():
        value = getattr(options, name)
        if value != default and (name, value) != ("cache", "none"):  # which asks for nothing
            family.refuse(name, value)
    if options.is_approximate:
        _check_sees_all(config, f"cache={options.cache}")


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
            f"it must be an id from 0 to {vocab_size - 1}"
        )
    if not isinstance(mask_token_id, int) or isinstance(mask_token_id, bool) or not 0 <= mask_token_id < vocab_size:
        raise OptionError(
            f"mask_token_id={mask_token_id!r} is no token of the vocabulary; it must be an id from 0 to "
            f"{vocab_size - 1}"
        )
    return int(mask_token_id)
