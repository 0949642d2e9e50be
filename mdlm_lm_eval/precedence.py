"""Which decoding options stand where several say them: a user, a preset, the authors of a model's family."""

from collections.abc import Callable, Mapping
from typing import Any

from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.options import APPROXIMATE_CACHES, EXCLUSIVE_NAMES, DecodingOptions

_EXCLUSIVE = (*EXCLUSIVE_NAMES, ("cache", "cfg_scale"), ("cache", "unmasking"))
_NEEDS = {"max_post_steps": "editing_threshold", "cache": "block_length"}
# When an option excludes others, and needs one; the rest do wherever they are set, be it to auto.
_IN_FORCE: dict[str, Callable[[Any], bool]] = {
    "cache": lambda value: value in APPROXIMATE_CACHES,
    "cfg_scale": lambda value: bool(value),
    "unmasking": lambda value: value is not None and unmasking_rule(value).is_random,
}


def over(lower: Mapping[str, object], higher: Mapping[str, object], *, full_attention: bool) -> dict[str, Any]:
    """The options of both, parsed. `higher` wins, and drops from `lower` what it excludes or leaves without meaning.

    `full_attention` says that the model is known to have it: more tokens of a block than masks are one block there, and
    blocks of their own in block diffusion. Raises OptionError for a value that cannot be used, and for options of one
    side that exclude each other.
    """
    below, above = _parsed(lower), _parsed(higher)
    below = {name: value for name, value in below.items() if name not in above}
    dropped = _excluded(below, above) | _misfits(below, above, full_attention=full_attention)
    merged = {name: value for name, value in (below | above).items() if name not in dropped}
    for name in below.keys() & _NEEDS.keys():
        lost = _NEEDS[name] in above.keys() | dropped and merged.get(_NEEDS[name]) is None
        if lost and _in_force(name, below[name]):
            merged.pop(name, None)
    return merged


def _excluded(below: Mapping[str, Any], above: Mapping[str, Any]) -> set[str]:
    return {
        name
        for names in _EXCLUSIVE
        if any(_in_force(name, above.get(name)) for name in names)
        for name in names
        if _in_force(name, below.get(name))
    }


def _misfits(below: Mapping[str, Any], above: Mapping[str, Any], *, full_attention: bool) -> set[str]:
    """Lengths that do not go with those above."""
    misfits = set()
    length, small = above.get("block_length"), below.get("small_block_length")
    if length is not None and small is not None and length % small:
        misfits.add("small_block_length")
    length, n_masks = below.get("block_length"), above.get("n_masks")
    if full_attention and length is not None and isinstance(n_masks, int) and length > n_masks:
        misfits.add("block_length")
    return misfits


def _in_force(name: str, value: Any) -> bool:
    return _IN_FORCE.get(name, lambda value: value is not None)(value)


def _parsed(options: Mapping[str, object]) -> dict[str, Any]:
    parsed = DecodingOptions().override(options)
    return {name: getattr(parsed, name) for name in options}
