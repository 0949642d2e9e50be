"""`mdlm-leaderboard show`: one result in five lines."""

from collections.abc import Iterable
from pathlib import Path

from mdlm_lm_eval.results.frame import benchmarks, frame_of, setting_of
from mdlm_lm_eval.results.result_file import UNKNOWN, ResultFile, TaskResult, read_result_file

_RANGES = {"masks": "asked_masks", "steps": "steps", "block": "block_length"}
_MOST = 4  # scores named; the file has all


def show(path: Path) -> list[str]:
    """Score, settings in effect, speed, audit (if any), and where the file is. Raises UnusableFile."""
    file = read_result_file(path)
    results = [*file.group_results.values(), *file.tasks.values()]
    inside = {member for members in file.groups.values() for member in members}
    top = [result for result in results if result.name not in inside]
    lines = {"score": _scores(file), "settings": _settings(file, top), "speed": _speed(file, top)}
    lines |= {"audit": _audit(file), "file": str(path)}
    return [f"{name:<9} {line}" for name, line in lines.items() if line]


def _scores(file: ResultFile) -> str:
    words = [f"{row.benchmark} {row.in_words} (n={row.n})" for row in benchmarks(frame_of([file])).itertuples()]
    more = f", and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return f"{file.model}{f' + {file.adapter}' if file.adapter else ''}: {', '.join(words[:_MOST])}{more}"


def _settings(file: ResultFile, top: Iterable[TaskResult]) -> str:
    """In effect: masks, steps, block, cache, template, then whatever else is not the default."""
    first = next(iter(top))
    unknown = [name for name, value in first.options.items() if value == UNKNOWN]
    ranges = {name: first.effective.get(of) for name, of in _RANGES.items()}
    words = [f"{name} {' to '.join(map(str, sorted({*bounds})))}" for name, bounds in ranges.items() if bounds]
    words += [f"cache {first.options['cache']}"] if first.options.get("cache", UNKNOWN) != UNKNOWN else []
    words += ["chat template" if file.chat_template else "no chat template"]
    named = ("n_masks=", "steps=", "block_length=", "cache=", "chat template")
    words += [word for word in setting_of(file, first) if not word.startswith(named)]
    if cut := sum(task.truncated_prompts for task in file.tasks.values()):
        words.append(f"{cut} prompts cut off")
    words[:0] = [f"served by {file.served_by}"] if file.server else []
    return ", ".join(words) + (f": {', '.join(unknown)}" if unknown else "")


def _speed(file: ResultFile, top: Iterable[TaskResult]) -> str:
    costs = [result.cost for result in top if result.cost]
    passes, requests = (sum(cost.get(name, 0) for cost in costs) for name in ("forward_passes", "requests"))
    memory = max((cost.get("peak_memory_bytes", 0) for cost in costs), default=0)
    tokens, seconds = (sum(cost.get(name, 0) for cost in costs) for name in ("answer_tokens", "seconds"))
    words = [f"{tokens / passes:.2f} tokens per forward pass"] if passes and tokens else []
    words += [f"{seconds / requests:.3g} s per question"] if requests else []
    words += [f"{memory / 2**30:.2f} GiB"] if memory else []
    slots = sum(cost.get("slot_passes", 0) for cost in costs)
    words += [f"{passes / slots:.0%} of batch slots busy"] if slots else []
    rates = {name: file.server.get(f"{name}_per_second") for name in ("tokens", "requests")}
    words += [f"{rate:.3g} {name} per second" for name, rate in rates.items() if rate]
    words += [f"{file.server['concurrency']} requests at once"] if file.server else []
    return ", ".join(words) or "not recorded"


def _audit(file: ResultFile) -> str:
    audits = [task.audit for task in file.tasks.values() if task.audit]
    same, requests = (sum(audit[name] for audit in audits) for name in ("same_strings", "requests"))
    how = "in process" if file.server else "without the cache"
    return f"{same} of {requests} answers are the same {how}" if audits else ""
