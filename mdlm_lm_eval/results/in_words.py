"""Sentences about a run, from its result: for the end of a run and for `mdlm-leaderboard show`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

_RANGES = {"masks": "asked_masks", "steps": "steps", "block": "block_length"}


def settings_in_words(tasks: Collection[Mapping[str, Any]], has_chat_template: bool) -> list[str]:
    """The masks, steps, block length, cache and closed thinking, as tasks recorded them, and the chat template."""
    words = []
    for name, recorded in _RANGES.items():
        bounds = [bound for of_task in tasks for bound in of_task.get(recorded, ())]
        words += [f"{name} {' to '.join(map(str, sorted({min(bounds), max(bounds)})))}"] if bounds else []
    caches = sorted({of_task["cache"] for of_task in tasks if of_task.get("cache")})
    words += [f"cache {' and '.join(caches)}"] if caches else []
    if n_closed := sum(of_task.get("endings", {}).get("thinking_closed", 0) for of_task in tasks):
        words.append(f"{n_closed} prompts close thinking")
    if longer := sum(of_task.get("longer_continuations", 0) for of_task in tasks):
        words.append(longer_in_words(longer))
    return [*words, "chat template" if has_chat_template else "no chat template"]


def longer_in_words(n: int) -> str:
    """The number of continuations that were longer than `n_masks`."""
    return f"{n} continuations longer than n_masks"


def cost_in_words(costs: Sequence[Mapping[str, float]]) -> str:
    """Tokens per forward pass, seconds per question, peak memory and occupancy; `costs` are those of tasks."""
    names = ("forward_passes", "requests", "answer_tokens", "seconds", "slot_passes")
    passes, requests, tokens, seconds, slots = (sum(cost.get(name, 0) for cost in costs) for name in names)
    memory = max((cost.get("peak_memory_bytes", 0) for cost in costs), default=0)
    words = [f"{tokens / passes:.2f} tokens per forward pass"] if passes and tokens else []
    words += [f"{seconds / requests:.3g} s per question"] if requests else []
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


UNMEASURED = "How many answers rounding alone flips was not measured on these tasks (see mdlm-check --task)."


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
