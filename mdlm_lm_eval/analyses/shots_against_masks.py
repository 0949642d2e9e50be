"""The gain of tasks from more shots against their loss to more masks (paper, figure 20; E12).

Reads lm-eval result files. Gain: accuracy with many shots minus accuracy with few, both with few masks. Loss: accuracy
with few masks minus accuracy with many, both with many shots. The paper does not state the number of shots of its
losses.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from mdlm_lm_eval.analyses.report import Row, over_tasks, read_results
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.frame import frame_of
from mdlm_lm_eval.results.statistics import correlation_interval
from mdlm_lm_eval.results.suite import cluster_of

METRIC = "exact_match,none"
# Columns that must have one value in all rows of a model, a task of it, a number of shots of that, and of masks.
_SAME = {
    "model": ("weights", "adapter_weights", "suite_hash"),
    "task": ("version", "fewshot_seed", "n"),
    "shots": ("fewshot_relevant", "fewshot_distractors"),
    "masks": ("score",),
}


def read_scores(paths: Iterable[Path]) -> pd.DataFrame:
    """Accuracies in all result files of `--model mdlm` at or below `paths`, as `mdlm_lm_eval.results.load` has them.

    `model` also names the adapter and all settings except the mask count. Raises OptionError as `read_results` does.
    """
    scores = frame_of(read_results(paths))
    scores = scores[(scores["metric"] == METRIC) & ~scores["is_group"]].dropna(subset=["masks"])
    names = ("+" + scores["adapter"].astype(object)).fillna("") + " " + scores["setting_without_masks"]
    return scores.assign(model=(scores["model"] + names).str.strip())


def gains_and_losses(scores: pd.DataFrame, *, shots: tuple[int, int], masks: tuple[int, int]) -> list[Row]:
    """One row for each model and task that has all three accuracies.

    `shots` and `masks` are (few, many). Raises OptionError if two files have different conditions, numbers of
    questions, or accuracies for the same setting.
    """
    (few_shots, many_shots), (few_masks, many_masks) = shots, masks
    cells = [(few_shots, few_masks), (many_shots, few_masks), (many_shots, many_masks)]
    pairs = [*zip(scores["shots"], scores["masks"], strict=True)]
    compared = scores[[pair in cells for pair in pairs]]
    cell_of = ["model", "task", "shots", "masks"]
    table = compared.drop_duplicates(cell_of).set_index(cell_of)["score"].unstack(["shots", "masks"])
    if not {*cells} <= {*table.columns} or (table := table[cells].dropna()).empty:
        found = "; ".join(f"{s} shots with {m:g} masks" for s, m in sorted({*pairs}))
        raise OptionError(
            f"no task has scores at {few_shots} and {many_shots} shots with {few_masks} masks and at {many_shots} "
            f"shots with {many_masks} masks; found are {found}"
        )
    _check_conditions(compared)
    few, many, distracted = (table[cell] for cell in cells)
    rows = pd.DataFrame({"questions": compared.groupby(["model", "task"])["n"].first().loc[table.index]})
    rows = rows.assign(few_shots=few_shots, many_shots=many_shots, few_masks=few_masks, many_masks=many_masks)
    records: list[Row] = rows.assign(gain=many - few, loss=many - distracted).reset_index().to_dict("records")
    return records


def by_model(rows: Sequence[Row]) -> list[Row]:
    """Mean gain and loss of each model over its tasks, with the half widths of their 95% t intervals; and Pearson's r.

    The interval of r is Fisher's, in which the tasks of a word rule count once. A band is None for a single task. r is
    None for fewer than three tasks, or if gain or loss is the same in all.
    """
    summary, frame = [], pd.DataFrame(rows)
    for gain, loss in zip(*(over_tasks(rows, name, ["model"]) for name in ("gain", "loss")), strict=True):
        own = frame[frame["model"] == gain["model"]]
        r = own["gain"].corr(own["loss"], min_periods=3)
        r = None if pd.isna(r) else float(r)
        row = {"model": gain["model"], "tasks": gain["tasks"], "gain": gain["gain"], "gain_band": gain["band"]}
        n_rules = own["task"].map(cluster_of).nunique()
        low, high = (correlation_interval(r, n_rules) if r is not None else None) or (None, None)
        of_r = {"pearson_r": r, "pearson_r_low": low, "pearson_r_high": high}
        summary.append(row | {"loss": loss["loss"], "loss_band": loss["band"]} | of_r)
    return summary


def _check_conditions(scores: pd.DataFrame) -> None:
    """Raises OptionError if two scores of one model were made under different conditions."""
    by = []
    for level, names in _SAME.items():
        by.append(level)
        for name in (name for name in names if name in scores):
            for key, own in scores.groupby(by):
                different = own.drop_duplicates(name)
                if len(different) > 1:
                    files, values = (" and ".join(map(str, different[of].iloc[:2])) for of in ("file", name))
                    of_what = ", ".join(f"{one} {value}" for one, value in zip(by, key, strict=True))
                    raise OptionError(f"{files} do not compare ({name} of {of_what}: {values}); leave one of them out")
