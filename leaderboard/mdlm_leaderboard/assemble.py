"""Puts collected cells into rows, and rows into the sections of a board."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from mdlm_leaderboard import suite
from mdlm_leaderboard.checkpoint import Checkpoint, display_name
from mdlm_leaderboard.collect import Collected
from mdlm_leaderboard.rows import NO_MASKS, Board, Estimate, Row, Run, Section
from mdlm_leaderboard.scores import Cell
from mdlm_leaderboard.sections import RowKey, row_order, sections_of

_PUBLISHED_TITLE = "Published"


@dataclass
class _Draft:
    """A row in the making."""

    cells: dict[Cell, Estimate] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)


def assemble(collected: Collected, published: Sequence[Row]) -> Board:
    """The board: the main table, what is set apart from it, and the published rows."""
    drafts: dict[RowKey, _Draft] = {}
    for cell, estimate in collected.estimates.items():
        _add(drafts.setdefault((cell.checkpoint, cell.decoding, cell.setting), _Draft()), cell, estimate, collected)
    drafts = _with_benchmarks(_without_repeats(drafts))
    names = _names(checkpoint.model for checkpoint, _, _ in drafts)
    adapters = _names(checkpoint.adapter for checkpoint, _, _ in drafts if checkpoint.adapter)
    taken = {row.id: 1 for row in published}
    built = [
        Section(title, why, tuple(_row(key, drafts[key], names, adapters, taken) for key in keys))
        for title, why, keys in sections_of(drafts)
    ]
    if published:
        why = "read off the cited paper, whose questions are not those of this suite"
        built.append(Section(_PUBLISHED_TITLE, why, tuple(published)))
    return Board(tuple(built), collected.refused)


def _add(draft: _Draft, cell: Cell, estimate: Estimate, collected: Collected) -> None:
    draft.cells[cell] = estimate
    draft.runs |= {run.path: run for run in collected.runs[cell]}


def _without_repeats(drafts: Mapping[RowKey, _Draft]) -> dict[RowKey, _Draft]:
    """Leaves out rows of fewer or more distractor examples that say only what the curve over those (E5) shows."""
    return {
        key: draft
        for key, draft in drafts.items()
        if key[2].fewshot_distractors in (None, suite.STANDARD_DISTRACTORS)
        or any(cell.experiment != "masks" or cell.x not in (NO_MASKS, 2) for cell in draft.cells)
    }


def _with_benchmarks(drafts: Mapping[RowKey, _Draft]) -> dict[RowKey, _Draft]:
    """Moves each model's standard benchmarks, whose columns name their own settings, beside its first suite row."""
    joined = {key: draft for key, draft in drafts.items() if key[2].suite_version is not None}
    homes: dict[tuple[Checkpoint, float | None], RowKey] = {}
    for key in sorted(joined, key=row_order):
        homes.setdefault((key[0], key[2].limit), key)
    for key, draft in drafts.items():
        if key[2].suite_version is not None:
            continue
        home = homes.get((key[0], key[2].limit))
        if home is None:
            joined.setdefault((key[0], key[1], replace(key[2], chat_template=False)), _Draft())
            home = (key[0], key[1], replace(key[2], chat_template=False))
        joined[home].cells |= draft.cells
        joined[home].runs |= draft.runs
    return joined


def _names(full_names: Iterable[str]) -> dict[str, str]:
    """Short names to show, with more of the path where two would be the same."""
    full = set(full_names)
    shown = {name: display_name(name) for name in full}
    n_parts = 1
    while clashing := {name for name, count in Counter(shown.values()).items() if count > 1}:
        n_parts += 1
        for name in full:
            if shown[name] in clashing:
                shown[name] = "/".join(PurePosixPath(name).parts[-n_parts:])
        if n_parts > max(len(PurePosixPath(name).parts) for name in full):
            return {name: name if shown[name] in clashing else shown[name] for name in full}
    return shown


def _row(
    key: RowKey, draft: _Draft, names: Mapping[str, str], adapters: Mapping[str, str], taken: dict[str, int]
) -> Row:
    checkpoint, decoding, setting = key
    curves: dict[str, dict[Any, dict[Any, Estimate]]] = {}
    for cell, estimate in sorted(draft.cells.items(), key=lambda item: (str(item[0].series).zfill(9), _by_x(item[0]))):
        curves.setdefault(cell.experiment, {}).setdefault(cell.series, {})[cell.x] = estimate
    model = names[checkpoint.model]
    adapter = adapters[checkpoint.adapter] if checkpoint.adapter else None
    return Row(
        id=_slug([model, adapter or "", decoding.steps and f"steps {decoding.steps}", decoding.unmasking], taken),
        model=model,
        adapter=adapter,
        origin="measured",
        citation="",
        family=checkpoint.family,
        setting=setting,
        steps=decoding.steps,
        unmasking=decoding.unmasking,
        other=", ".join(filter(None, [decoding.other, checkpoint.loading])),
        masks=curves.get("masks", {}).get("", {}),
        dots=curves.get("dots", {}).get("", {}),
        positions=curves.get("positions", {}),
        positions_by_masks=curves.get("positions_by_masks", {}),
        distractors=curves.get("distractors", {}),
        benchmarks=curves.get("benchmarks", {}).get("", {}),
        runs=tuple(draft.runs[path] for path in sorted(draft.runs, key=_by_number)),
    )


def _by_x(cell: Cell) -> tuple[int, str]:
    return (cell.x, "") if isinstance(cell.x, int) else (0, cell.x)


def _by_number(path: str) -> list[str | int]:
    """Orders `n_masks=2` before `n_masks=10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


def _slug(parts: Iterable[str], taken: dict[str, int]) -> str:
    """Letters, digits and hyphens only, and each once; `taken` has the last number given to each."""
    slug = "-".join(re.findall(r"[a-z0-9]+", " ".join(parts).lower()))[:80] or "row"
    unique = slug
    while unique in taken:
        taken[slug] += 1
        unique = f"{slug}-{taken[slug]}"
    taken[unique] = 1
    return unique
