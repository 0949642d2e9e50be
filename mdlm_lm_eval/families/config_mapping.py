"""Translates published `config.json` files into configs of classes that transformers ships."""

from collections.abc import Mapping
from typing import Any, TypeVar

from transformers import GenerationConfig, PretrainedConfig

from mdlm_lm_eval.options import OptionError

# The source of a block length that neither the checkpoint's name nor its config states.
FAMILY_DEFAULT = "the family's default"
ConfigClass = TypeVar("ConfigClass", bound=PretrainedConfig)
# Keys of the checkpoint's own code, of the machine that it was trained on, or of generation.
OF_REMOTE_CODE = ("model_type", "auto_map", "architectures", "attn_implementation", "transformers_version", "use_cache")
_OF_ANY = (
    "name_or_path torch_dtype quantization_config tokenizer_class _attn_implementation_autoset pretraining_tp "
    "mask_token_id block_length block_length_from diffusion_family shift_logits is_causal"
)
OF_ANY_CHECKPOINT = {
    *OF_REMOTE_CODE,
    *PretrainedConfig().to_dict(),
    *GenerationConfig().to_dict(),
    *_OF_ANY.split(),
}


def require(
    family: str, published: Mapping[str, Any], values: Mapping[str, tuple[object, ...]], others: str = ""
) -> None:
    """Raises OptionError for settings of a published config that transformers' class may not compute.

    values: settings of the published code, with the values that the class computes. others: names, separated by spaces,
    of settings that are mapped or change no logits. Every other setting must be off (null, false, 0, empty), because it
    may belong to a newer variant of the model.
    """
    for name, allowed in values.items():
        if name in published and published[name] not in allowed:
            raise OptionError(
                f"{family} config: {name}={published[name]!r} is not supported; it must be {allowed[0]!r}"
            )
    known = {*values, *others.split(), *OF_ANY_CHECKPOINT}
    unknown = [f"{name}={value!r}" for name, value in published.items() if value and name not in known]
    if unknown:
        raise OptionError(
            f"{family} config: {', '.join(unknown)} may belong to a variant that computes something else; remove from "
            "config.json what changes no logits"
        )


def plain_rotary(family: str, published: Mapping[str, Any], *names: str, **defaults: object) -> dict[str, Any]:
    """`rope_parameters` of unscaled rotary positions, with the published values of `names` and `defaults`.

    The authors' configs have these values as separate keys. transformers 5 saves such a config with `rope_parameters`
    beside or instead of these keys, and reads `rope_parameters` first; so does this function. Raises OptionError for
    scaled positions, and for a missing value without default.
    """
    saved = published.get("rope_parameters") or {}
    rotary = {name: saved.get(name, published.get(name, defaults.get(name))) for name in (*names, *defaults)}
    plain = {"rope_type": "default", "type": "default"}
    if any(value not in (None, plain.get(name)) for name, value in saved.items() if name not in rotary):
        raise OptionError(
            f"{family} config: rope_parameters={saved!r} is not supported; its rope_type must be 'default'"
        )
    if missing := [name for name, value in rotary.items() if value is None]:
        raise OptionError(f"{family} config: {', '.join(missing)} is missing")
    return {"rope_type": "default", **rotary}


def block_length_of(published: Mapping[str, Any], default: int, key: str) -> dict[str, Any]:
    """`block_length` by the published config, which may have it under another `key`, and its source in words."""
    stated = published.get("block_length") or published.get(key)
    return {"block_length": stated or default, "block_length_from": "config.json" if stated else FAMILY_DEFAULT}


def same_keys(
    family: str,
    config_class: type[ConfigClass],
    published: Mapping[str, Any],
    unused: str = "",
    values: Mapping[str, tuple[object, ...]] | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
    blocks: tuple[int, str] | None = None,
    **settings: Any,
) -> ConfigClass:
    """A config of transformers' class with the published keys, overridden by `settings`.

    unused: published keys that change no logits. values: as for `require`. defaults: settings that a published config
    may leave out. blocks: as for `block_length_of`. Raises OptionError as `require` does.
    """
    values = values or {}
    of_class = {*config_class().to_dict(), *config_class.attribute_map, "head_dim", "rope_theta", "rope_scaling"}
    require(family, published, values, " ".join((*of_class, unused)))
    dropped = {*OF_REMOTE_CODE, *values, *(set(unused.split()) - of_class)}
    kept = {name: value for name, value in published.items() if name not in dropped}
    of_blocks = {} if blocks is None else block_length_of(published, *blocks)
    return config_class(**{**(defaults or {}), **kept, **of_blocks, **settings})
