"""What results keep of a trace, read back."""

from typing import Any

from mdlm_lm_eval.decoding.trace import Event, replay


def canvases_of(recorded: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """The part of the canvas that is recorded, as it began and after every pass that changed it."""
    runs = [run.partition("*") for run in recorded["canvas"].split()]
    begin = [int(id) for id, _, n in runs for _ in range(int(n or 1))]
    columns = [recorded["events"].get(name, "").split() for name in ("steps", "places", "tokens", "confidence")]
    events = [
        Event(
            step=int(step),
            position=int(place),
            old=None if token.startswith("+") else 0,
            new=None if token == "-" else int(token),
            confidence=float(confidence),
        )
        for step, place, token, confidence in zip(*columns, strict=True)
    ]
    return begin, [canvas for _, canvas in replay(begin, events)]
