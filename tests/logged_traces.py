"""The canvas after every pass, from the events of a trace, and from what results keep of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from mdlm_lm_eval.decoding.trace import Event, in_order


def replay(token_ids: Sequence[int], events: Iterable[Event]) -> list[tuple[int, list[int]]]:
    """The canvas after every pass that changed it, with the pass's number, from the canvas as it began."""
    canvas, canvases = list(token_ids), {}
    for event in in_order(events):
        if event.old is None:
            canvas.insert(event.position, event.new or 0)
        elif event.new is None:
            del canvas[event.position]
        else:
            canvas[event.position] = event.new
        canvases[event.step] = list(canvas)
    return list(canvases.items())


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
