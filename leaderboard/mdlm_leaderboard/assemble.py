"""Puts collected scores into rows, and rows into the sections of a board."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_leaderboard.checkpoint import Checkpoint, names_of
from mdlm_leaderboard.collect import Collected
from mdlm_leaderboard.experiments import DISTRACTOR_SERIES, speed_curves
from mdlm_leaderboard.rows import Board, Estimate, LeaderboardRow, Run, Section, Series
from mdlm_leaderboard.scores import Place
from mdlm_leaderboard.sections import RowKey, row_order, sections_of
from mdlm_leaderboard.slugs import slug

_PUBLISHED_TITLE = "Published"


@dataclass
class _RowDraft:
    """A row in the making."""

    estimates: dict[Place, Estimate] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)


def assemble(collected: Collected, published: Sequence[LeaderboardRow]) -> Board:
    """The board: the main table, what is set apart from it, and the published rows."""
    drafts: dict[RowKey, _RowDraft] = {}
    for place in _without_repeats(collected.estimates):
        draft = drafts.setdefault(_key(place), _RowDraft())
        draft.estimates[place] = collected.estimates[place]
        draft.runs |= {run.path: run for run in collected.runs[place]}
    drafts = _with_benchmarks(drafts)
    names = names_of(checkpoint for checkpoint, _, _ in drafts)
    taken = {row.id: 1 for row in published}
    built = [
        Section(title, why, tuple(_row(key, drafts[key], *names[key[0]], taken) for key in keys))
        for title, why, keys in sections_of(drafts)
    ]
    if published:
        why = "read off the cited paper, whose questions are not those of this suite"
        built.append(Section(_PUBLISHED_TITLE, why, tuple(published)))
    return Board(tuple(built), collected.refused)


def _without_repeats(places: Collection[Place]) -> list[Place]:
    """Leaves out curves over distractor examples (E5) of one point, which the row of that setting says already, and
    rows of fewer or more distractor examples that say only what the other curves over them show.
    """
    points = Counter(_curve(place) for place in places if place.experiment == "distractors")
    curves = {curve for curve, n in points.items() if n > 1 or curve.series not in DISTRACTOR_SERIES.values()}
    kept = [place for place in places if place.experiment != "distractors" or _curve(place) in curves]
    rows = {_key(place) for place in kept if not _is_repeat(place, curves)}
    return [place for place in kept if _key(place) in rows]


def _is_repeat(place: Place, curves: Collection[Place]) -> bool:
    if place.experiment != "masks" or place.x not in DISTRACTOR_SERIES:
        return False
    if place.setting.fewshot_distractors in (None, DEFAULT_SETTINGS["fewshot_distractors"]):
        return False
    setting = replace(place.setting, fewshot_distractors=DEFAULT_SETTINGS["fewshot_distractors"])
    series = DISTRACTOR_SERIES[place.x]
    return _curve(replace(place, setting=setting, experiment="distractors", series=series)) in curves


def _curve(place: Place) -> Place:
    return replace(place, x=0)


def _key(place: Place) -> RowKey:
    return place.checkpoint, place.decoding, place.setting


def _with_benchmarks(drafts: Mapping[RowKey, _RowDraft]) -> dict[RowKey, _RowDraft]:
    """Moves each model's standard benchmarks, whose columns name their own settings, beside its first suite row."""
    joined = {key: draft for key, draft in drafts.items() if key[2].suite_version is not None}
    homes: dict[tuple[Checkpoint, float | None], RowKey] = {}
    for key in sorted(joined, key=row_order):
        homes.setdefault((key[0], key[2].limit), key)
    for key, draft in drafts.items():
        if key[2].suite_version is not None:
            continue
        home = homes.get((key[0], key[2].limit), (key[0], key[1], replace(key[2], chat_template=False)))
        joined.setdefault(home, _RowDraft())
        joined[home].estimates |= draft.estimates
        joined[home].runs |= draft.runs
    return joined


def _row(key: RowKey, draft: _RowDraft, model: str, adapter: str | None, taken: dict[str, int]) -> LeaderboardRow:
    checkpoint, decoding, setting = key
    curves: dict[str, dict[Series, dict[int | str, Estimate]]] = {}
    for place in sorted(draft.estimates, key=_by_number_of_place):
        curve = curves.setdefault(place.experiment, {}).setdefault(place.series, {})
        curve[place.x] = draft.estimates[place]
    return LeaderboardRow(
        id=_row_id([model, adapter or "", decoding.steps and f"steps {decoding.steps}", decoding.unmasking], taken),
        model=model,
        adapter=adapter,
        origin="measured",
        citation="",
        family=checkpoint.family,
        setting=setting,
        steps=decoding.steps,
        unmasking=decoding.unmasking,
        other=", ".join(filter(None, [decoding.other, checkpoint.loading])),
        curves=curves | speed_curves(curves.get("benchmarks", {}).get("", {}).values()),
        runs=tuple(draft.runs[path] for path in sorted(draft.runs, key=_by_number)),
    )


def _by_number_of_place(place: Place) -> tuple[list[str | int], list[str | int]]:
    return _by_number(str(place.series)), _by_number(str(place.x))


def _by_number(text: str) -> list[str | int]:
    """Orders `n_masks=2` before `n_masks=10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def _row_id(parts: Iterable[str], taken: dict[str, int]) -> str:
    """A slug that no other row has; `taken` has the last number given to each."""
    named = slug(" ".join(parts))[:80] or "row"
    unique = named
    while unique in taken:
        taken[named] += 1
        unique = f"{named}-{taken[named]}"
    taken[unique] = 1
    return unique
