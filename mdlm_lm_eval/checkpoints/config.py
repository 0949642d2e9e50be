"""A checkpoint's config in transformers' terms, and checks of options against it."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.families import family_of, published_family
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.grouped_attention import NAME as GROUPED_ATTENTION
from mdlm_lm_eval.models import model_path
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.registry import FAMILIES


def load_config(
    pretrained: str,
    *,
    revision: str = "main",
    subfolder: str = "",
    trust_remote_code: bool = False,
    diffusion_family: str | None = None,
) -> PretrainedConfig:
    """The config of transformers' own class for the checkpoint, with `is_causal=False`.

    `diffusion_family` names the family if `config.json` does not. Raises OptionError for a path without a config, an
    unknown family, a setting without equivalent, and a causal language model.
    """
    if trust_remote_code not in (True, False):  # the text "false" would count as true
        raise OptionError(f"trust_remote_code must be true or false, not {trust_remote_code}")
    pretrained = model_path(pretrained)
    published = _published(pretrained, revision, subfolder)
    if diffusion_family is not None:
        published["diffusion_family"] = diffusion_family
    model_type, named = published.get("model_type"), published.get("diffusion_family")
    family = published_family(published, pretrained)
    if family is not None and family.native_config is not None:
        config = family.native_config(published | {"name_or_path": pretrained})
        config.name_or_path = pretrained
        # transformers' class does not state the family, or that attention is bidirectional.
        config.is_causal, config.diffusion_family = False, named or family.name
        family_of(config)  # raises OptionError for an unknown family
        return config
    is_remote = trust_remote_code and bool(published.get("auto_map"))
    if not is_remote and model_type not in CONFIG_MAPPING:
        raise OptionError(
            f"pretrained={pretrained}: model_type={model_type!r} is not known; the family must be one of "
            f"{', '.join(sorted(FAMILIES.all()))}; remote needs trust_remote_code=true, mask_token_id and shift_logits"
        )
    config = AutoConfig.from_pretrained(pretrained, revision=revision, subfolder=subfolder, trust_remote_code=is_remote)
    if is_remote or named is not None:
        config.diffusion_family = "remote" if is_remote else named
    check_config(config, pretrained)
    return config


def _published(pretrained: str, revision: str, subfolder: str) -> dict[str, Any]:
    """The checkpoint's `config.json`. Raises OptionError if there is none."""
    is_path = pretrained.startswith((".", "/")) or pretrained.count("/") > 1  # no name on the hub looks like this
    if is_path and not Path(pretrained).is_dir():
        raise OptionError(f"pretrained={pretrained}: there is no such folder")
    if Path(pretrained).is_dir() and not Path(pretrained, subfolder, "config.json").is_file():
        is_adapter = Path(pretrained, subfolder, "adapter_config.json").is_file()
        hint = f" (an adapter is pretrained=BASE,peft={pretrained})" if is_adapter else ""
        raise OptionError(f"pretrained={pretrained}: the folder has no config.json{hint}")
    try:
        published, _ = PretrainedConfig.get_config_dict(pretrained, revision=revision, subfolder=subfolder)
    except OSError as error:  # neither a folder nor on the hub, or the hub cannot be reached
        raise OptionError(f"pretrained={pretrained}: {str(error).partition(chr(10))[0]}") from error
    return published


def check_config(config: PretrainedConfig, pretrained: str = "a model object") -> None:
    """Raises OptionError unless the config is a masked diffusion model's."""
    if config.to_dict().get("is_encoder_decoder"):
        raise OptionError(
            f"pretrained={pretrained}: this {config.model_type} is an encoder-decoder, whose decoder writes from left "
            "to right, and no masked diffusion model"
        )
    if complaint := family_of(config).check(config):
        raise OptionError(f"pretrained={pretrained}: {complaint}")


def attention_of(
    config: PretrainedConfig, block_length: int | None, attn_implementation: str | None = None
) -> AttentionPattern:
    """The attention pattern under the option `block_length`, for a model loaded with `attn_implementation`.

    Raises OptionError if attention is block-causal and the implementation does not support such masks, as flash
    attention, or the model has a sliding window.
    """
    pattern = family_of(config).attention(config, block_length)
    implementation = attn_implementation or config._attn_implementation
    if pattern.is_block_causal and implementation not in (None, "sdpa", GROUPED_ATTENTION, "eager"):
        raise OptionError(f"attn_implementation={implementation} must be sdpa or eager, which can mask by blocks")
    if pattern.is_block_causal:
        check_sees_all(config, f"block_length={pattern.block_length}")
    return pattern


def check_sees_all(config: PretrainedConfig, option: str) -> None:
    """Raises OptionError for a sliding window, because masks of passes over parts of a canvas ignore it."""
    settings = config.to_dict()
    window, longest = settings.get("sliding_window"), settings.get("max_position_embeddings")
    if window is None or not settings.get("use_sliding_window", True) or (longest is not None and window >= longest):
        return
    raise OptionError(
        f"{option} does not work with the checkpoint's sliding_window={window}; allowed are models whose positions see "
        "the whole canvas"
    )


def check_options(config: PretrainedConfig, options: DecodingOptions, *, in_slots: bool | None = None) -> None:
    """Raises OptionError for options that are set and that the family does not support.

    `in_slots`: whether the request has slots; None if that is not known yet.
    """
    family = family_of(config)
    if options.guest is not None:  # a guest's own signature decides which options it takes
        return
    if options.noise_num != DecodingOptions.noise_num and family.read is None:
        raise OptionError(f"noise_num={options.noise_num} is of models that denoise random tokens, not {family.name}")
    for name, value in options.changes().items():
        if (name, value) != ("cache", "none"):  # every family works without a cache
            family.refuse(name, value, in_slots=in_slots)
    if options.is_approximate:
        check_sees_all(config, f"cache={options.cache}")


def resolve_mask_token_id(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None, override: int | None
) -> int:
    """The id of the mask token: `override`, else the config's, else the tokenizer's, as an id of the vocabulary.

    Raises OptionError if there is none, if it is outside the vocabulary, and if config and tokenizer name different
    ones. Families whose noise is random tokens need no mask token; their slots are marked by id 0.
    """
    of_config, of_tokenizer = config.to_dict().get("mask_token_id"), getattr(tokenizer, "mask_token_id", None)
    candidates: list[Any] = [override, of_config, of_tokenizer]
    candidates += [] if family_of(config).read is None else [0]
    found = next((candidate for candidate in candidates if candidate is not None), None)
    vocab_size = config.get_text_config().vocab_size
    if found is None:
        raise OptionError(
            "mask_token_id is not set and neither the checkpoint's config nor its tokenizer names a mask token; "
            f"it must be an id from 0 to {vocab_size - 1}"
        )
    if not isinstance(found, int) or not 0 <= found < vocab_size:
        raise OptionError(
            f"mask_token_id={found!r} is no token of the vocabulary; it must be an id from 0 to {vocab_size - 1}"
        )
    if override is None and of_tokenizer not in (None, found):
        raise OptionError(
            f"the tokenizer's mask token is {of_tokenizer} and the config's {found}: take the model's own tokenizer, "
            "or say which is right with mask_token_id="
        )
    return found
