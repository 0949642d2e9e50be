"""`mdlm-leaderboard compare A --published`: a run of a preset beside the published score and those of others.

*Reproduced* means within 3 points by two one-sided tests at 5%: the run's 90% interval, for other questions, lies
within 3 points of the published score, which is taken as it is.
"""

from math import ceil
from pathlib import Path

from mdlm_lm_eval.presets import Published, published, repeated_by, run_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.result_file import read_chosen_file
from mdlm_lm_eval.results.statistics import wilson

MARGIN = 0.03
_QUANTILE = 1.644854  # of one side's 5%


def beside_published(path: Path) -> list[str]:
    """A sentence for each accuracy of the file and each published score. Raises UnusableFile without a preset."""
    file = read_chosen_file(path)
    preset = file.mdlm.get("preset")
    if not preset:
        raise UnusableFile(f"{file.path} is no run of a preset (mdlm-sweep --preset NAME, or preset=NAME)")
    run, options = run_of(preset), file.top[0].options
    scores = _scores_of(preset, run)
    if not scores:
        raise UnusableFile(f"no score is published for {preset}")
    changed = [
        f"{name}={options[name]}, and the preset's is {value}"
        for name, value in run.options.items()
        if name in options and options[name] != value
    ]
    lines = [f"not as published: {one}" for one in [*file.mdlm.get("preset_mismatches", ()), *changed]]
    for result in file.top:
        n = sum(task.n_questions for task in file.tasks_of(result))
        for metric in filter(result.is_accuracy, result.metrics):
            for name, other in scores.items():
                verdict = _verdict(result.metrics[metric], n, other)
                on = f"{result.name} ({metric.removesuffix(',none')})"
                lines.append(f"{on} {verdict} ({name}, {other.dated})")
    return lines


def published_in_words(preset: str | None) -> str:
    """The scores that are published for a preset, with their dates; "" for none."""
    scores = _scores_of(preset, published()[preset]) if preset in published() else {}
    return ", ".join(f"{run.score} ({name}, {run.dated})" for name, run in scores.items())


def _scores_of(preset: str, run: Published) -> dict[str, Published]:
    """The published run of a preset, and those that others measured, if they have a score."""
    return {name: one for name, one in {preset: run, **repeated_by(preset)}.items() if one.score}


def _verdict(score: float, n: int, other: Published) -> str:
    target = float(other.score.rpartition("/")[2]) / 100
    low, high = wilson(score, n, _QUANTILE)
    gap = MARGIN - abs(score - target)
    if max(high - target, target - low) < MARGIN:
        verdict = "reproduced"
    elif low > target + MARGIN or high < target - MARGIN:
        verdict = "not reproduced"
    elif gap <= 0:
        verdict = "undecided"
    else:
        needed = ceil((_QUANTILE / gap) ** 2 * score * (1 - score))
        verdict = f"undecided: equal scores of about {max(needed, n + 1)} questions would tell"
    unlike = "" if other.is_target else "; the authors' task differs, so expect another number"
    shown = f"{100 * score:.1f} ({100 * low:.1f} to {100 * high:.1f}), published {other.score}"
    return f"{shown}: {100 * (score - target):+.1f}, {verdict}{unlike}"
