"""`mdlm-leaderboard show`: one result in a few lines."""

from pathlib import Path
from typing import Any

import pandas as pd

from mdlm_lm_eval.results.deviations import CHAT_TEMPLATE, deviations_of, prompts_of
from mdlm_lm_eval.results.frame import benchmarks, rows_of
from mdlm_lm_eval.results.result_file import UNKNOWN, ResultFile, read_chosen_file
from mdlm_lm_eval.results.samples import pair_accuracies, said_of, samples_paths, scores_by_question, unparsed_answers
from mdlm_lm_eval.results.text import audit_in_words, check_in_words, cost_in_words, kept_in_words, settings_in_words

_MOST = 4  # scores and unknown settings that are named
# Of many unknown settings, these are named and the others counted: they mean little if these are unknown.
_TELLING = ("n_masks", "steps", "block_length", "unmasking", "confidence_threshold", "sampler", "cache")


def show(path: Path) -> list[str]:
    """The lines about a file, or a folder's newest file: score, settings in effect, speed, audit if any, and path.

    Raises UnusableFile.
    """
    file = read_chosen_file(path)
    answers = scores_by_question(file)
    sets = [f"{name} {100 * share:.1f}% of {n} sets" for name, (share, n) in pair_accuracies(answers).items()]
    audits = [task.audit for task in file.tasks.values()]
    how = "with --model mdlm" if file.server else "without the cache"
    lines = {
        "score": _scores(file, pd.DataFrame(rows_of(file, answers))),
        "answers": "; ".join([*said_of(file), *_endings(file)]),
        "sets": f"right in all three askings: {', '.join(sets)}" if sets else "",
        "settings": _settings(file),
        "speed": _speed(file),
        "cache": kept_in_words(file.mdlm.get("kept_answers", 0)),
        "preset": "; ".join(file.mdlm.get("preset_mismatches", ())),
        "unparsed": _unparsed(file),
        "audit": audit_in_words(audits, how),
        "check": check_in_words(file.mdlm.get("check")),
        "file": file.path,
    }
    return [f"{name:<9} {line}" for name, line in lines.items() if line]


def _scores(file: ResultFile, frame: pd.DataFrame) -> str:
    words = [f"{row.benchmark} {row.in_words} (n={row.n})" for row in benchmarks(frame).itertuples()]
    more = f", and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return f"{file.model}{f' + {file.adapter}' if file.adapter else ''}: {', '.join(words[:_MOST])}{more}"


def _endings(file: ResultFile) -> list[str]:
    """The shares of answers that end at once or within thinking, for tasks with answers of several tokens."""
    return [
        f"{100 * n / sum(task.n_questions * task.repeats for task in file.tasks_of(result)):.1f}% of {result.name} "
        f"end {how}"
        for result in file.top
        if result.has_several_tokens
        for name, how in (("at_once", "at once"), ("unfinished_thinking", "before thinking does"))
        if (n := result.counts[name])
    ]


def _settings(file: ResultFile) -> str:
    """The settings in effect: masks, steps, block length, cache and template, then others that are no defaults."""
    first = file.top[0]
    unknown = [name for name, value in first.options.items() if value == UNKNOWN]
    telling = [name for name in unknown if len(unknown) <= _MOST or name in _TELLING]
    recorded: list[dict[str, Any]] = [
        {
            **task.effective,
            "cache": None if task.cache == UNKNOWN else task.cache,
            "endings": task.counts,
            "truncated_prompts": task.counts["truncated_prompts"],
        }
        for task in file.tasks.values()
    ]
    words = settings_in_words(recorded, file.chat_template)
    said = {"n_masks", "steps", "cache", CHAT_TEMPLATE} | {"block_length"}.intersection(*recorded)
    words += dict.fromkeys(word for result in file.top for word in prompts_of(file, result))
    deviations = (one for result in file.top for one in deviations_of(file, result))
    words += dict.fromkeys(str(one) for one in deviations if one.name not in said)
    words[:0] = [f"served by {file.served_by}"] if file.server else []
    more = f" and {len(unknown) - len(telling)} more" if len(telling) < len(unknown) else ""
    return ", ".join(words) + (f": {', '.join(telling)}{more}" if telling else "")


def _unparsed(file: ResultFile) -> str:
    """The numbers of answers in which a task's filter found nothing, for tasks with samples beside the file."""
    paths = samples_paths(file.place, file.tasks)
    counts = {(name, how): n for name, path in paths.items() for how, n in unparsed_answers(path).items()}
    return ", ".join(f"{n} answers of {name} ({how})" for (name, how), n in sorted(counts.items()))


def _speed(file: ResultFile) -> str:
    words = [cost_in_words([result.cost for result in file.top if result.cost])]
    rates = {name: file.server.get(f"{name}_per_second") for name in ("tokens", "requests")}
    words += [f"{rate:.3g} {name} per second" for name, rate in rates.items() if rate]
    if file.server:
        at_once = file.server["concurrency"]
        words.append(f"{at_once} request{'s' if at_once != 1 else ''} at once")
    return ", ".join(filter(None, words)) or "not recorded"
