"""Reverse diffusion: schedules (how many masks a step fills), unmasking rules (which), the loops.

Nothing is imported before it is asked for: options need the names of the rules without torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdlm_lm_eval.decoding.generate import decode, decode_canvases

__all__ = ["decode", "decode_canvases"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mdlm_lm_eval.decoding import generate

    return getattr(generate, name)
