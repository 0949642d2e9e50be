"""`LEADERBOARD.md`: a board as Markdown tables."""

import html
import re
from collections.abc import Iterable, Sequence

from mdlm_leaderboard.experiments import EXPERIMENTS, SUMMARIES, Experiment, summary_of
from mdlm_leaderboard.ranking import at_best, at_worst, ranked, ranked_by, shared_counts
from mdlm_leaderboard.rows import Board, Estimate, LeaderboardRow, Section
from mdlm_leaderboard.speed import speed_points
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.statistics import Interval

_INTRODUCTION = """# Leaderboard

Accuracy in percent is the mean over the 16 few-shot tasks; chance is 33.3. "Best" and "worst" are over the mask counts;
"drop" is the largest minus the smallest in percentage points, "degradation" that in percent of the largest, the
"locality gap" the best minus the worst block position with the question on the right. Scores share a table only where
suite version, examples and `--limit` are the same, and a column only where the mask count is. Written by
`mdlm-leaderboard build`.
"""
_ABOUT_SPEED = """Tokens of answers (up to the end of text) per forward pass of their rows, and seconds per request.
"Frontier": nothing of that model on the benchmark is both faster and better, by tokens, or by seconds on the same
machine; approximate answers (`cache=prefix`, `cache=dual`) have a frontier of their own. AUP is the area under a way's
accuracy over its tokens per pass (arXiv 2601.07568), "–" where its fastest point is more than 5 points below its
slowest.
"""
_OF_DIFFERENCES = "± is half the 95% interval of the difference, task by task (Student's t)."
_OVER_TASKS = "± is half the 95% interval over tasks (Student's t)."
_OVER_QUESTIONS = "± is 1.96 standard errors over questions."
_WHO = ("model", "adapter", "steps", "unmasking", "other settings")


def leaderboard_markdown(board: Board) -> str:
    """The whole file. Text out of result files is escaped: it can neither break a table nor become HTML."""
    parts = [_INTRODUCTION]
    for section in board.sections:
        parts.append(f"## {escape(section.title)}\n")
        if section.why_apart:
            parts.append(f"Set apart: {escape(section.why_apart)}.\n")
        parts += _published(section.rows) if section.rows[0].stated else _measured(section)
    if board.refused:
        parts.append("## Not used\n")
        parts.append("".join(f"- {escape(one.path)}: {escape(one.reason)}\n" for one in board.refused))
    return "\n".join(parts)


def escape(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line and inside a table cell."""
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", html.escape(_on_one_line(text).strip(), quote=False))


def _on_one_line(text: str) -> str:
    """`text` with blanks for line ends and other control characters."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)


def _measured(section: Section) -> list[str]:
    parts = []
    counts = shared_counts(section.rows)
    if table := _ranking(section.rows, counts):
        parts += ["### Ranking\n", f"{ranked_by(counts)} {_OF_DIFFERENCES}\n", table + "\n"]
    for experiment in EXPERIMENTS:
        if experiment.speed is not None:
            continue
        is_benchmark = experiment.name == "benchmarks"
        make = _benchmark_table if is_benchmark else _curve_table
        if table := make(section.rows, experiment):
            said = _OVER_QUESTIONS if is_benchmark else _OVER_TASKS
            parts += [f"### {experiment.title}\n", said + "\n", table + "\n"]
    if table := _speed_table(section.rows):
        parts += ["### Accuracy against speed\n", _ABOUT_SPEED, table + "\n"]
    return [*parts, "### Commands\n", _commands(section.rows)]


def _ranking(rows: Sequence[LeaderboardRow], counts: tuple[int, ...]) -> str:
    """The page's ranked table, with the summaries of all experiments."""
    measured = [row for row in ranked(rows) if any(summary_of(row, *one) for one in SUMMARIES) or row.curve("masks")]
    used = [one for one in SUMMARIES if any(summary_of(row, *one) for row in measured)]
    lines = [
        [
            *_who(row),
            *(f"{cell.text} {cell.note}".strip() for cell in (at_best(row), at_worst(row, counts))),
            *(_interval(summary_of(row, *one)) for one in used),
        ]
        for row in measured
    ]
    return (
        markdown_table([*_WHO, "best accuracy", "worst accuracy", *(one.head for _, one in used)], lines)
        if lines
        else ""
    )


def _published(rows: Sequence[LeaderboardRow]) -> list[str]:
    stated = [(experiment, summary) for experiment, summary in SUMMARIES if any(summary.name in r.stated for r in rows)]
    lines = [[*_who(row), *(_interval(summary_of(row, *one)) for one in stated), escape(row.citation)] for row in rows]
    heads = [f"{experiment.name}: {summary.head}" for experiment, summary in stated]
    return [markdown_table([*_WHO, *heads, "source"], lines) + "\n"]


def _who(row: LeaderboardRow) -> list[str]:
    return [escape(text) or "–" for text in (row.model, row.adapter or "", row.steps, row.unmasking, row.other)]


def _curve_table(rows: Iterable[LeaderboardRow], experiment: Experiment) -> str:
    """A line for every row and series."""
    found = [(row, series, curve) for row in rows for series, curve in row.series(experiment.name).items()]
    if not found:
        return ""
    xs = sorted({x for _, _, curve in found for x in curve})
    lines = [
        [
            *_who(row),
            *([escape(experiment.series_words(series))] if experiment.series_head else []),
            *(_percent(curve[x]) if x in curve else "–" for x in xs),
        ]
        for row, series, curve in found
    ]
    heads = [
        *([experiment.series_head] if experiment.series_head else []),
        *(experiment.head(x)[1] for x in xs),
    ]
    return markdown_table([*_WHO, *heads], lines)


def _benchmark_table(rows: Iterable[LeaderboardRow], experiment: Experiment) -> str:
    """A line for every score, as their columns would be many and long."""
    scores = [(row, column, score) for row in rows for column, score in row.curve(experiment.name).items()]
    lines = [
        [escape(text) or "–" for text in (row.model, row.adapter or "", row.other, column)]
        + [_percent(score), str(score.n_questions)]
        for row, column, score in sorted(scores, key=lambda one: one[1])
    ]
    heads = ["model", "adapter", "other settings", "benchmark", "score", "questions"]
    return markdown_table(heads, lines) if lines else ""


def _speed_table(rows: Iterable[LeaderboardRow]) -> str:
    """A line for every point, those of one curve together."""
    lines = [
        [
            *(escape(text) or "–" for text in (point.row.model, point.row.adapter or "", point.row.other)),
            *(escape(text) for text in (point.speed.benchmark, point.speed.method, point.speed.pace)),
            "exact" if point.speed.is_exact else "approximate",
            f"{point.speed.tokens_per_forward:.2f}",
            f"{point.speed.seconds:.3g} ({escape(point.speed.machine)})",
            _percent(point.accuracy),
            " and ".join(point.frontiers) or "–",
            "–" if point.area is None else f"{point.area:.1f}",
        ]
        for point in speed_points(rows)
    ]
    heads = ["model", "adapter", "other settings", "benchmark", "way of decoding", "pace", "answers"]
    heads += ["tokens per pass", "seconds (machine)", "accuracy", "frontier", "AUP"]
    return markdown_table(heads, lines) if lines else ""


def _commands(rows: Iterable[LeaderboardRow]) -> str:
    """Every row's commands as code, which Markdown shows as it is, each with its result file."""
    blocks = []
    for row in rows:
        name = row.model + (f" with {row.adapter}" if row.adapter else "")
        settings = ", ".join(filter(None, [f"steps {row.steps}" if row.steps else "", row.unmasking, row.other]))
        blocks.append(f"{escape(name)} ({escape(settings)}):\n")
        lines = [f"    {_on_one_line(run.command)}  # {_on_one_line(run.path)}" for run in row.runs]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _percent(estimate: Estimate) -> str:
    return _interval(Interval(estimate.mean, estimate.low, estimate.high, estimate.n_tasks).scaled(100))


def _interval(interval: Interval | None) -> str:
    return "–" if interval is None else interval.in_words
