"""Published configs whose keys are those of a class of transformers already."""

import json
from typing import Any, TypeVar

from transformers import PretrainedConfig

from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.values import must_be

ConfigClass = TypeVar("ConfigClass", bound=PretrainedConfig)
# What belongs to the checkpoint's own code, or to the machine that it was trained on.
OF_REMOTE_CODE = ("model_type", "auto_map", "architectures", "attn_implementation", "transformers_version", "use_cache")


def same_keys(config_class: type[ConfigClass], published: dict[str, Any], **settings: Any) -> ConfigClass:
    """A config of transformers' class with the published keys, and `settings` over them."""
    kept = {name: value for name, value in published.items() if name not in OF_REMOTE_CODE}
    return config_class(**kept | settings)


def published_block_length(published: dict[str, Any], key: str, default: int | None = None) -> int:
    """Tokens of a block, as `key` says. Raises OptionError for what is no whole number from 1."""
    length = published.get(key, default)
    if type(length) is not int or length < 1:
        raise must_be(f"{key} in config.json", "a whole number from 1", json.dumps(length))
    return length


def block_length_of(config: PretrainedConfig, argument: int | None) -> int:
    """Tokens of a block: the option `block_length`, else what the config says."""
    return published_block_length(config.to_dict(), "block_length") if argument is None else argument


def blocks_from_row_start(config: PretrainedConfig, argument: int | None) -> AttentionPattern:
    """Attention in blocks that are counted from a row's first token."""
    return AttentionPattern(block_length_of(config, argument))


def require(family: str, published: dict[str, Any], settings: dict[str, tuple[object, ...]]) -> None:
    """Raises OptionError where a published setting has none of the values that transformers' class stands for."""
    for name, values in settings.items():
        if name in published and published[name] not in values:
            raise OptionError(f"{family} config: {name}={published[name]!r} is not supported; it must be {values[0]!r}")
