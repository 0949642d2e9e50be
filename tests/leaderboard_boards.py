"""Boards of invented numbers, for the tests of figures and page."""

import math
import re
from typing import Any

from mdlm_leaderboard.rows import Board, Curve, Estimate, LeaderboardRow, Refused, Run, Section, Setting
from mdlm_lm_eval.results.suite import current_version
from tests.leaderboard_files import TASKS

MASKS = (1, 2, 10, 50, 100, 200)
POSITIONS = (0, 10, 20, 30, 40)
_CURVES = ("masks", "dots", "benchmarks")
STANDARD = Setting(current_version(), "1cfd7802", 10, 40, 1, None, False)


def estimate(mean: float, half_band: float = 0.03) -> Estimate:
    """Of 16 tasks up to 3% better and worse."""
    mean = min(mean, 0.97)
    by_task = {task: mean * (1 + 0.02 * (n % 4 - 1.5)) for n, task in enumerate(TASKS)}
    return Estimate(mean, max(mean - half_band, 0.0), min(mean + half_band, 1.0), 16, 16000, by_task)


def falling(start: float, drop: float, xs: tuple[int, ...] = MASKS) -> Curve:
    """From `start` down by `drop`, most of it over the first tenth of `xs`' range."""
    return {x: estimate(start - drop * math.log1p(x) / math.log1p(xs[-1])) for x in xs}


def by_position(start: float, bias: float) -> Curve:
    return {x: estimate(start + bias * (x / 40 - 0.5)) for x in POSITIONS}


def run(name: str, **settings: Any) -> Run:
    return Run(
        path=f"{name}.json",
        command=f"lm_eval --model mdlm --model_args pretrained={name} --tasks mdlm_context",
        settings={"model": "mdlm", "dtype": "bfloat16", "batch_size": 8, **settings},
        versions={"lm_eval": "0.4.13", "torch": "2.13.0"},
        date="2026-01-31T12:00:00+00:00",
    )


def row(model: str, *, start: float = 0.9, drop: float = 0.2, is_full: bool = True, **changes: Any) -> LeaderboardRow:
    """One step, no adapter, every curve (`is_full`) or the masks' only."""
    name = re.sub(r"[^a-z0-9]+", "-", model.lower())
    fields: dict[str, Any] = {
        "id": name,
        "model": model,
        "adapter": None,
        "origin": "measured",
        "citation": "",
        "family": "llada",
        "setting": STANDARD,
        "steps": "1",
        "unmasking": "none",
        "other": "bfloat16",
        "masks": falling(start, drop),
        "runs": tuple(run(name, n_masks=n) for n in MASKS),
    }
    if is_full:
        fields |= {
            "dots": {n: estimate(start - 0.0004 * n) for n in (0, 50, 100, 200)},
            "positions": {
                "left": by_position(start - 0.05, -0.15),
                "middle": {x: estimate(start - 0.004 * abs(x - 20)) for x in POSITIONS},
                "right": by_position(start - 0.05, 0.15),
            },
            "positions_by_masks": {n: by_position(start - drop * n / 300, 0.1 + n / 1000) for n in (2, 50, 100, 200)},
            "distractors": {
                "2": {n: estimate(start - 0.001 * n) for n in (0, 10, 20, 30)},
                "20%": {n: estimate(start - 0.006 * n) for n in (0, 10, 20, 30)},
            },
            "benchmarks": {"gsm8k v3.0 (exact_match,strict-match; 5-shot; n_masks=256, steps=256)": estimate(0.7)},
        }
    fields |= changes
    single = {name: {"": fields.pop(name)} for name in ("masks", "dots", "benchmarks") if fields.get(name)}
    several = {name: fields.pop(name) for name in ("positions", "positions_by_masks", "distractors") if name in fields}
    return LeaderboardRow(curves=single | several, **{name: fields[name] for name in fields if name not in _CURVES})


def published_row() -> LeaderboardRow:
    return row(
        "LLaDA-8B-Base",
        is_full=False,
        id="published-llada-8b-base",
        origin="published",
        citation='Authors, "A Paper", figure 4',
        setting=Setting("of the paper", None, 10, 40, None, None, False),
        other="",
        masks={},
        runs=(),
        stated={"drop_points": 23, "dots_drop_points": 3},
    )


def sample_board() -> Board:
    """Four models, one of them autoregressive, one with adapters and more steps; a set-apart and a published row."""
    base, instruct, dream = "GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Base-7B"
    main = (
        row(base),
        row(base, drop=0.24, is_full=False, id="base-40-random", steps="40", unmasking="random"),
        row(base, drop=0.12, is_full=False, id="base-40-confidence", steps="40", unmasking="confidence"),
        row(base, start=0.92, drop=0.03, id="base-ma", adapter="ma-ce-tv"),
        row(base, start=0.91, drop=0.11, id="base-ce", adapter="ma-ce"),
        row(instruct, start=0.82, drop=0.27),
        row(instruct, start=0.84, drop=0.1, id="instruct-ma", adapter="ma-ce-tv"),
        row(instruct, drop=0.3, is_full=False, id="instruct-40-random", steps="40", unmasking="random"),
        row(dream, start=0.94, drop=0.07, family="dream"),
        row(
            "Qwen/Qwen2.5-7B",
            is_full=False,
            family="autoregressive",
            steps="autoregressive",
            unmasking="",
            masks={0: estimate(0.95)},
            distractors={"autoregressive": {n: estimate(0.97 - 0.001 * n) for n in (0, 10, 20, 30)}},
        ),
    )
    limited = row(
        dream,
        is_full=False,
        id="dream-limit",
        family="dream",
        setting=Setting(current_version(), "1cfd7802", 10, 40, 1, 50, False),
    )
    return Board(
        sections=(
            Section(f"Few-shot suite {current_version()}, 10 relevant and 40 distractor examples", "", main),
            Section(f"Few-shot suite {current_version()}, --limit 50", "--limit 50 leaves out questions", (limited,)),
            Section(
                "Published", "read off the cited paper, whose questions are not those of this suite", (published_row(),)
            ),
        ),
        refused=(Refused("broken.json", "is no JSON: it ends in the middle"),),
    )
