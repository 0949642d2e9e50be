"""Texts that are shown: those that anybody may have written, tables in Markdown, and sentences about a run.

In a README, tables stand between `<!-- name -->` and `<!-- end -->`.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_RANGES = {"masks": "asked_masks", "steps": "steps", "block": "block_length"}
UNMEASURED = "Not measured: how many answers rounding alone changes (see mdlm-check --task)."
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # control and formatting characters, halves of one, line ends
_ACTIVE = re.compile(r"[\\`*\[\]|~$#>]|(?<!\w)_|_(?!\w)")  # an underscore inside a word has no meaning
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;"})


def printable(text: str, *, keep: str = "") -> str:
    """The text with an escape such as `\\x1b` for each control or formatting character that is not in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in _UNSEEN and one not in keep else one
        for one in text
    )


def in_markdown(text: str) -> str:
    """Markdown, on one line, that shows this text: no cell, heading, picture, link or HTML of its own."""
    return _ACTIVE.sub(r"\\\g<0>", printable(text)).translate(_ENTITIES)


# Tables


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, without a line end after its last row."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def aligned(values: Iterable[float | None]) -> list[str]:
    """A column of numbers with equally many decimals: as many as the smallest needs for three digits, at most four."""
    known = [value if value is not None and math.isfinite(value) else None for value in values]
    least = min((abs(value) for value in known if value), default=1)
    decimals = min(max(2 - math.floor(math.log10(least)), 0), 4)
    return ["–" if value is None else f"{value:.{decimals}f}" for value in known]


def compact(text: str) -> str:
    """The same Markdown without spaces around the bars of its tables."""
    return "\n".join(line.replace(" | ", "|").replace("| ", "|").replace(" |", "|") for line in text.splitlines())


def replace_table(readme: Path, name: str, text: str) -> None:
    """Replaces the text in the place of a README that is marked with `name`; tables become compact."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    old = readme.read_text(encoding="utf-8")
    readme.write_text(marked.sub(lambda match: f"{match[1]}{compact(text)}\n{match[2]}", old), encoding="utf-8")


# A run, from its result: for its end, and for `mdlm-leaderboard show`


def settings_in_words(tasks: Collection[Mapping[str, Any]], has_chat_template: bool) -> list[str]:
    """The masks, steps, block length, cache, and counts of answers and prompts of tasks' records; the chat template."""
    words = []
    for name, recorded in _RANGES.items():
        bounds = [bound for of_task in tasks for bound in of_task.get(recorded, ())]
        words += [f"{name} {' to '.join(map(str, sorted({min(bounds), max(bounds)})))}"] if bounds else []
    caches = sorted({of_task["cache"] for of_task in tasks if of_task.get("cache")})
    words += [f"cache {' and '.join(caches)}"] if caches else []
    words += _counts_in_words(tasks)
    return [*words, "chat template" if has_chat_template else "no chat template"]


def _counts_in_words(tasks: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Limits and counts of answers and prompts that the scores depend on, but for answers of one token."""
    texts = [of_task for of_task in tasks if of_task.get("returned_tokens", (0, 0))[1] > 1]
    if any(of_task["returned_tokens"][1] < of_task.get("asked_masks", (0, 0))[0] for of_task in texts):
        lengths = [n for of_task in texts for n in of_task["returned_tokens"]]
        yield f"{' to '.join(map(str, sorted({min(lengths), max(lengths)})))} tokens returned"
    repeated = [of_task["repeated"] for of_task in texts if of_task.get("repeated")]
    if any(one["answers"] > one["distinct"] == one["questions"] for one in repeated):
        yield "all answers to a question are equal"
    endings = sum((Counter(of_task.get("endings", {})) for of_task in tasks), Counter[str]())
    counts = {
        "{} empty answers": sum(of_task.get("endings", {}).get("empty", 0) for of_task in texts),
        "{} prompts close thinking": endings["thinking_closed"],
        "{} answers with their thinking": endings["thinking_kept"],
        longer_in_words("{}"): sum(of_task.get("longer_continuations", 0) for of_task in tasks),
        "{} prompts cut off": sum(of_task.get("truncated_prompts", 0) for of_task in tasks),
    }
    yield from (words.format(n) for words, n in counts.items() if n)


def longer_in_words(n: int | str) -> str:
    """The number of continuations that were longer than `n_masks`."""
    return f"{n} continuations longer than n_masks"


def cost_in_words(costs: Sequence[Mapping[str, float]]) -> str:
    """Tokens per forward pass, seconds per question, peak memory and occupancy; `costs` are those of tasks.

    Seconds are per request where canvases are scored: a multiple-choice question has one request for each choice.
    """
    names = ("forward_passes", "requests", "answer_tokens", "seconds", "slot_passes")
    passes, requests, tokens, seconds, slots = (sum(cost.get(name, 0) for cost in costs) for name in names)
    memory = max((cost.get("peak_memory_bytes", 0) for cost in costs), default=0)
    words = [f"{tokens / passes:.2f} tokens per forward pass"] if passes and tokens else []
    of = "request" if any(cost.get("canvases") for cost in costs) else "question"
    words += [f"{seconds / requests:.3g} s per {of}"] if requests else []
    words += [f"{memory / 2**30:.2f} GiB"] if memory else []
    words += [f"{passes / slots:.0%} of batch slots busy"] if slots else []
    return ", ".join(words)


def audit_in_words(audits: Sequence[Mapping[str, Any]], how: str = "without the cache") -> str:
    """The number of answers that are the same when they are decoded exactly; "" without an audit."""
    same, requests = (sum(audit.get(name, 0) for audit in audits) for name in ("same_strings", "requests"))
    return f"{same} of {requests} answers are the same {how}" if requests else ""


def kept_in_words(kept: int) -> str:
    """The number of answers that `--use_cache` has kept from earlier runs; "" if there are none."""
    return f"{kept} answers and their cost are an earlier run's (use_cache)" if kept else ""


def noise_in_words(check: Mapping[str, Any] | None, tasks: Collection[str], n_questions: int) -> str:
    """The share of answers that rounding alone flips, also as a number of these questions; "" without a measurement.

    A check counts only for results of its own task and options.
    """
    noise = (check or {}).get("noise_floor")
    if not noise or noise.get("task") not in tasks or (check or {}).get("stale"):
        return ""
    low, high = noise["interval"]
    change = " ".join(f"{name}={value}" for name, value in (noise.get("change") or {}).items())
    share, flips = noise["share"], noise["share"] * n_questions
    return f"rounding alone ({change}) flips {share:.1%} of answers ({low:.1%} to {high:.1%}), {flips:.3g} of these"


def check_in_words(check: Mapping[str, Any] | None) -> str:
    """The verdict of `mdlm-check`, its noise floor, and the facts in which the run differs; "" without a check."""
    if not check:
        return ""
    words = [str(check["verdict"])]
    if noise := check.get("noise_floor"):
        low, high = noise["interval"]
        words.append(f"noise floor {noise['share']:.1%} of answers ({low:.1%} to {high:.1%})")
    return ", ".join(words) + (f"; stale: other {' and '.join(check['stale'])}" if check["stale"] else "")
