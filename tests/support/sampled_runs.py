"""Two results with logged samples and traces, as lm-eval and `trace=true` write them."""

import json
import random
from pathlib import Path
from typing import Any

from mdlm_lm_eval.decoding.trace import Event, as_recorded, replay
from tests.conftest import data
from tests.support.leaderboard_files import result_file, write

MASK = 9
HOSTILE = "</script><img src=x onerror=\"document.title='hit'\">\u202e\x07\x00&lt;b&gt;"
WORDS = {MASK: "<|mask|>", **{10 + n: f" w{n}" for n in range(40)}, 60: "</script>", 61: "\u202eab", 62: "\n", 63: ""}


def events_of(draw: random.Random, n: int, passes: int) -> list[Event]:
    """Random changes of a canvas of `n` masks: fills, edits, tokens taken back, insertions and deletions."""
    canvas, events = [MASK] * n, []
    for step in range(1, passes + 1):
        own = []
        for place in sorted(draw.sample(range(n), max(1, n // passes))):
            sure = round(draw.uniform(0.01, 1), 4)
            kind = draw.choice(["fill", "fill", "fill", "fill", "back", "insert", "delete"])
            new = MASK if kind in ("back", "insert") else draw.choice([*WORDS][1:])
            if kind in ("insert", "delete"):  # at a pass's end the canvas is as long as before
                own += [Event(step, place, None, MASK, sure), Event(step, n - 1, canvas[n - 1], None, 0.0)]
                break
            if canvas[place] != new:
                own.append(Event(step, place, canvas[place], new, sure))
        own = [one for one in own if one.old is None or sum(one.position == each.position for each in own) == 1]
        if own and replay(canvas, own):
            after = replay(canvas, own)[-1][1]
            canvas, n = after, len(after)
            events += own
    return events


def trace_of(doc: int, text: str, n: int, passes: int, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    events = events_of(draw, n, passes)
    moved = [event._replace(position=event.position + 2) for event in events]  # after a prompt of two tokens
    recorded = as_recorded([1, 2, *[MASK] * n], 2, moved)
    kept = " ".join(["1"] * (n - 2))
    about = {"repetition": 0, "ending": "ended_by_stop", "text": text, "returned": n}
    about |= {"doc_id": doc + 100, "prompt_hash": f"p{doc}"}  # as under --samples
    return about | recorded | {"blocks": f"{n // 2} {n - n // 2}", "steps": kept}


def plain_trace(doc: int, n: int, text: str, draw: random.Random) -> dict[str, Any]:
    """One token a pass, as a model with a large vocabulary writes them."""
    order = draw.sample(range(n), n)
    events = [
        Event(step, place, MASK, draw.randrange(10, 30000), draw.random()) for step, place in enumerate(order, start=1)
    ]
    about = {"doc_id": doc, "prompt_hash": f"p{doc}", "repetition": 0, "ending": "cut", "text": text, "returned": n}
    columns = {name: " ".join(["1"] * n) for name in ("steps", "edits")}
    return about | as_recorded([MASK] * n, 0, events) | {"blocks": str(n), **columns}


def write_run(
    folder: Path,
    answers: list[str],
    rights: list[int],
    traces: list[dict[str, Any]],
    words: dict[int, str],
    **options: Any,
) -> Path:
    """A task `told` that generates, and a task `chosen` of two choices."""
    spelled = {str(id): text for id, text in words.items()}
    metrics = {"told": {"exact_match,none": sum(rights) / len(rights)}, "chosen": {"acc,none": 0.5}}
    content = result_file(metrics, asked=len(rights), limit=len(rights), **options)
    content["config"]["mdlm"]["tasks"]["told"] = content["config"]["mdlm"]["tasks"]["told"] | {
        "trace": traces,
        "trace_tokens": spelled,
    }
    write(folder, results_cell=content)
    samples, told = data("cases.json")["samples"], []
    for n, (text, right) in enumerate(zip(answers, rights, strict=True)):
        asked = {"gen_args_0": {"arg_0": f"{HOSTILE} prompt {n} " + "question " * 50, "arg_1": {"until": []}}}
        own = {"doc_id": n, "doc_hash": f"h{n}", "prompt_hash": f"p{n}", "target": f"target {n}", "resps": [[text]]}
        told.append(samples["told"] | own | {"exact_match": float(right), "arguments": asked})
    choices = {f"gen_args_{n}": {"arg_0": "red is", "arg_1": text} for n, text in enumerate((" hot", HOSTILE))}
    for task, lines in (("told", told), ("chosen", [samples["chosen"] | {"arguments": choices}])):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"samples_{task}_cell.jsonl").write_text(text, encoding="utf-8")
    return folder / "results_cell.json"


def two_runs(folder: Path) -> tuple[Path, Path]:
    """Of three questions A is right in the first two, B in the first alone; the last answer is hostile."""
    texts = ["the same words", "here one word differs from the other", HOSTILE]
    others = [texts[0], "here one token differs from the other", HOSTILE + " more"]
    first = write_run(
        folder / "a", texts, [1, 1, 0], [trace_of(n, texts[n], 12, 6, n) for n in range(3)], WORDS, steps=8
    )
    second = write_run(
        folder / "b", others, [1, 0, 0], [trace_of(n, others[n], 12, 4, 9 + n) for n in range(3)], WORDS, steps=4
    )
    return first, second
