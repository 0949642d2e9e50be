"""A checkpoint's config in transformers' terms, and the family that it belongs to."""

from dataclasses import asdict
from pathlib import Path
from textwrap import shorten

from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.default_model import model_path
from mdlm_lm_eval.families.attention import AttentionPattern
from mdlm_lm_eval.families.registry import all_families, family_names, family_of, published_family
from mdlm_lm_eval.options import DecodingOptions, OptionError


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
    check_path("pretrained", pretrained)
    try:
        published, _ = PretrainedConfig.get_config_dict(pretrained, revision=revision, subfolder=subfolder)
    except (OSError, ValueError) as error:
        raise OptionError(f"pretrained={pretrained}: cannot read its config.json: {one_line(error)}") from error
    if not published:
        raise OptionError(f"pretrained={pretrained}: there is no config.json, so this is no checkpoint of transformers")
    model_type = published.get("model_type")
    named = all_families().get(published.get("diffusion_family", ""))
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
                f"{one_line(error)}"
            ) from error
        except (TypeError, ValueError) as error:
            raise OptionError(f"pretrained={pretrained}: cannot use its config.json: {one_line(error)}") from error
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
    if model_type not in CONFIG_MAPPING:
        if family is not None:
            raise OptionError(
                f"pretrained={pretrained}: the family {family.name} needs a newer transformers than {__version__}"
            )
        raise OptionError(
            f"pretrained={pretrained}: model_type={model_type!r} is not known; the family must be one of "
            f"{family_names()}; remote needs trust_remote_code=true, mask_token_id and shift_logits"
        )
    try:
        config = AutoConfig.from_pretrained(pretrained, revision=revision, subfolder=subfolder)
    except (TypeError, ValueError) as error:
        raise OptionError(f"pretrained={pretrained}: cannot use its config.json: {one_line(error)}") from error
    check_config(config, pretrained)
    return config


def check_config(config: PretrainedConfig, pretrained: str = "a model object") -> None:
    """Raises OptionError for what is no masked diffusion model, such as an autoregressive one."""
    complaint = family_of(config).check(config)
    if complaint is not None:
        raise OptionError(f"pretrained={pretrained}: {complaint}")


def check_path(option: str, name: str) -> None:
    """Raises OptionError for what reads as a folder's path, as no hub id does, and is not there."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise OptionError(f"{option}={name}: there is no such folder")


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
    return pattern


def check_options(config: PretrainedConfig, options: DecodingOptions) -> None:
    """Raises OptionError for an option that is set and that the family cannot do."""
    family = family_of(config)
    for name, default in asdict(DecodingOptions()).items():
        value = asdict(options)[name]
        if value != default and (name, value) != ("cache", "none"):  # which asks for nothing
            family.refuse(name, value)


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
    if not isinstance(mask_token_id, int) or not 0 <= mask_token_id < vocab_size:
        raise OptionError(
            f"mask_token_id={mask_token_id} is no token of the vocabulary; it must be an id from 0 to {vocab_size - 1}"
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
