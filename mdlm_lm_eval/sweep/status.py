"""What a sweep says: which cells are done and missing, and the table of what was measured."""

from collections.abc import Sequence
from pathlib import Path

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, read_result_file
from mdlm_lm_eval.sweep.claims import RESULT_FILE, Claims
from mdlm_lm_eval.sweep.plan import Cell, Sweep

_HEADER = ["cell", "metric", "score", "questions", "tokens per pass", "seconds per question"]


def status(claims: Claims) -> str:
    """How many cells are done, missing, and of other settings; a line for each that is not done."""
    found: dict[str, list[str]] = {"done": [], "missing": [], "of other settings": []}
    for cell in claims.sweep.cells:
        try:
            state = "done" if claims.is_finished(cell) else "missing"
        except OptionError:
            state = "of other settings"
        found[state].append(claims.sweep.name(cell))
    counts = ", ".join(f"{len(names)} {state}" for state, names in found.items())
    undone = [f"{state}: {name}" for state, names in found.items() if state != "done" for name in names]
    return "\n".join([f"{len(claims.sweep.cells)} cells: {counts}", *undone])


def table(sweep: Sweep, cells: Sequence[Cell], output: Path) -> str:
    """A row for each cell: score with its 95% interval, tokens for each forward pass, seconds for each question."""
    return markdown_table(_HEADER, [_row(sweep, cell, output) for cell in cells])


def _row(sweep: Sweep, cell: Cell, output: Path) -> list[str]:
    file = read_result_file(output / sweep.name(cell) / RESULT_FILE)
    result = file.group_results.get(cell.task) or next(iter(file.tasks.values()))
    metric = next(iter(result.metrics), "")
    passes, seconds = result.cost.get("forward_passes"), result.cost.get("seconds")
    return [
        sweep.name(cell),
        metric.removesuffix(",none"),
        _score(file, result, metric) if metric else "",
        str(result.n_questions),
        f"{result.cost.get('answer_tokens', 0) / passes:.2f}" if passes else "",
        f"{seconds / result.n_questions:.3g}" if seconds else "",
    ]


def _score(file: ResultFile, result: TaskResult, metric: str) -> str:
    """With its 95% interval, as on the board."""
    interval = file.interval(result, metric)
    percent = result.is_accuracy(metric)
    score, half = (100 * value if percent else value for value in (interval.mean, interval.half_width or 0.0))
    digits = ".1f" if percent else ".4g"
    return f"{score:{digits}} ± {half:{digits}}" if half else f"{score:{digits}}"
