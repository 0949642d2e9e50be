"""Puts collected scores into rows, and rows into the sections of a board."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_leaderboard.checkpoint import Checkpoint
from mdlm_leaderboard.collect import Collected
from mdlm_leaderboard.experiments import speed_curves
from mdlm_leaderboard.rows import NO_MASKS, Board, Estimate, LeaderboardRow, Run, Section, Series
from mdlm_leaderboard.scores import Place
from mdlm_leaderboard.sections import RowKey, row_order, sections_of

_PUBLISHED_TITLE = "Published"


@dataclass
class _RowDraft:
    """A row in the making."""

    estimates: dict[Place, Estimate] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)


def assemble(collected: Collected, published: Sequence[LeaderboardRow]) -> Board:
    """The board: the main table, what is set apart from it, and the published rows."""
    drafts: dict[RowKey, _RowDraft] = {}
    for place, estimate in collected.estimates.items():
        draft = drafts.setdefault((place.checkpoint, place.decoding, place.setting), _RowDraft())
        draft.estimates[place] = estimate
        draft.runs |= {run.path: run for run in collected.runs[place]}
    drafts = _with_benchmarks(_without_repeats(drafts))
    names = _names(checkpoint for checkpoint, _, _ in drafts)
    taken = {row.id: 1 for row in published}
    built = [
        Section(title, why, tuple(_row(key, drafts[key], *names[key[0]], taken) for key in keys))
        for title, why, keys in sections_of(drafts)
    ]
    if published:
        why = "read off the cited paper, whose questions are not those of this suite"
        built.append(Section(_PUBLISHED_TITLE, why, tuple(published)))
    return Board(tuple(built), collected.refused)


def _without_repeats(drafts: Mapping[RowKey, _RowDraft]) -> dict[RowKey, _RowDraft]:
    """Leaves out rows of fewer or more distractor examples that say only what the curve over those (E5) shows."""
    return {
        key: draft
        for key, draft in drafts.items()
        if key[2].fewshot_distractors in (None, DEFAULT_SETTINGS["fewshot_distractors"])
        or any(place.experiment != "masks" or place.x not in (NO_MASKS, 2) for place in draft.estimates)
    }


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


def _names(checkpoints: Iterable[Checkpoint]) -> dict[Checkpoint, tuple[str, str | None]]:
    """Model and adapter as they are shown: where two of other weights have one name, with the weights' digest."""
    checkpoints = set(checkpoints)
    identities: dict[tuple[str, str | None], set[str]] = {}
    for one in checkpoints:
        identities.setdefault((one.model, one.adapter), set()).add(one.identity)
    names: dict[Checkpoint, tuple[str, str | None]] = {}
    for one in checkpoints:
        several = len(identities[one.model, one.adapter]) > 1
        digest = f" ({one.identity.rpartition('+')[2][:7]})" if several and one.identity else ""
        names[one] = (one.model, one.adapter + digest) if one.adapter else (one.model + digest, None)
    return names


def _row(key: RowKey, draft: _RowDraft, model: str, adapter: str | None, taken: dict[str, int]) -> LeaderboardRow:
    checkpoint, decoding, setting = key
    curves: dict[str, dict[Series, dict[int | str, Estimate]]] = {}
    for place in sorted(draft.estimates, key=_by_number_of_place):
        curve = curves.setdefault(place.experiment, {}).setdefault(place.series, {})
        curve[place.x] = draft.estimates[place]
    return LeaderboardRow(
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
        curves=curves | speed_curves(curves.get("benchmarks", {}).get("", {}).values()),
        runs=tuple(draft.runs[path] for path in sorted(draft.runs, key=_by_number)),
    )


def _by_number_of_place(place: Place) -> tuple[list[str | int], list[str | int]]:
    return _by_number(str(place.series)), _by_number(str(place.x))


def _by_number(text: str) -> list[str | int]:
    """Orders `n_masks=2` before `n_masks=10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def _slug(parts: Iterable[str], taken: dict[str, int]) -> str:
    """Letters, digits and hyphens only, and each once; `taken` has the last number given to each."""
    slug = "-".join(re.findall(r"[a-z0-9]+", " ".join(parts).lower()))[:80] or "row"
    unique = slug
    while unique in taken:
        taken[slug] += 1
        unique = f"{slug}-{taken[slug]}"
    taken[unique] = 1
    return unique
