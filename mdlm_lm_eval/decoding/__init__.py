"""Reverse diffusion: canvases go in, and masks become tokens, pass by pass.

    generate          prompts in, answers out, from Python
    engine            the loop: canvases take slots, a pass is chosen and run, what it left is looked at
    passes            one pass on the device: what is run, proposed, filled and written
    rows              the state of the rows on the device, and what the host knows of them
    program, blocks   of each row, the passes that it can take; of each canvas, its blocks
    canvas            prompt, masks and steps of a request, and its completion
    schedules         how many masks a pass fills
    candidates        what is proposed for each mask
    rules, selection  the order of the masks, and which of them are filled
    remasking         samplers that take tokens back or compare passes
    end_of_thinking   what makes a model end its thinking
    host_loop         the other loop, of `speculative` and `indel`, whose passes depend on what was written
    requirements      which options a model can serve
    memory            how many rows fit

    row     a canvas that is being decoded: its tensors on the device
    slot    a place for a row in the batch; in a canvas, a mask that is decoded
    window  the columns of a row that a pass runs
    canvas  the whole text of a request, with its masks
    look    the copy of a pass's outcome that the host reads, on a GPU a pass later

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
