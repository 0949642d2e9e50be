"""What ranks the rows of a table: the worst accuracy over the mask counts that all share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mdlm_leaderboard.rows import NO_MASKS, Curve, LeaderboardRow
from mdlm_leaderboard.seeds import folded, shared_points, with_masks

Counts = tuple[int, ...]


@dataclass(frozen=True)
class TableCell:
    """`text` is shown, `band` and `note` after it, and `value` sorts; the text "–" stands for no value."""

    text: str
    band: str = ""
    value: float | None = None
    note: str = ""


def ranked(rows: Iterable[LeaderboardRow]) -> list[LeaderboardRow]:
    """Seeds of one recipe as one row, the largest accuracy at its worst first; those without one come last."""
    rows = folded(rows)
    counts = shared_counts(rows)
    return sorted(rows, key=lambda row: -(at_worst(row, counts).value or 0.0))


def shared_counts(rows: Iterable[LeaderboardRow]) -> Counts:
    """The mask counts that all rows with masks have."""
    return tuple(shared_points(curve for row in rows if (curve := with_masks(row.curve("masks")))))


def ranked_by(counts: Counts) -> str:
    """What ranks the rows of a table, in a sentence."""
    over = (
        f"the mask counts that all rows with masks share: {', '.join(map(str, counts))}"
        if counts
        else "each row's own mask counts, as none is common to all"
    )
    return f"Ranked by the worst accuracy over {over}."


def at_best(row: LeaderboardRow) -> TableCell:
    """The largest accuracy over the mask counts, and at how many it is."""
    return _at(row.curve("masks"), max)


def at_worst(row: LeaderboardRow, counts: Counts) -> TableCell:
    """The smallest over `counts`; over its own where it has none of them, as models without masks have."""
    curve = row.curve("masks")
    return _at({n: curve[n] for n in counts if n in curve} or curve, min)


def _at(curve: Curve, pick: Callable[..., int]) -> TableCell:
    if not curve:
        return TableCell("–")
    n = pick(curve, key=lambda x: curve[x].mean)
    note = "no masks" if n == NO_MASKS else f"at {n} mask{'s' if n > 1 else ''}"
    return TableCell(percent(curve[n].mean), value=curve[n].mean, note=note)


def percent(share: float) -> str:
    """A share as percent, without a sign, as everywhere on the page."""
    return f"{100 * share:.1f}"
