"""Reverse diffusion: schedules (how many masks a step fills), unmasking rules (which), the engine that runs them.

Nothing is imported before it is asked for: options need the names of the rules without torch, and a GPU's benchmark
decodes without lm-eval.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdlm_lm_eval.decoding.engine import decode_canvases
    from mdlm_lm_eval.decoding.generate import decode

__all__ = ["decode", "decode_canvases"]

_WHERE = {"decode": "generate", "decode_canvases": "engine"}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
