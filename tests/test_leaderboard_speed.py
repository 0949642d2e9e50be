"""Accuracy against tokens per forward pass and against seconds: curves, frontiers and areas on the leaderboard."""

from pathlib import Path
from typing import Any

import pytest

from mdlm_leaderboard.build import read_board
from mdlm_leaderboard.figures.kinds import KINDS
from mdlm_leaderboard.rows import Board
from mdlm_leaderboard.speed import speed_points
from mdlm_leaderboard.tables import leaderboard_markdown
from tests.leaderboard_files import gsm8k_file, write


def fast_file(score: float, tokens_per_forward: float, seconds: float, **options: Any) -> dict[str, Any]:
    """lm-eval's gsm8k, 256 masks, with what its 1319 answers of 100 tokens took."""
    content = gsm8k_file(model="mdlm", score=score)
    mdlm = content["config"]["mdlm"]
    mdlm["decoding"] |= {"block_length": 32, "cache": "auto", **options}
    mdlm["explicit_options"] = list(options)
    mdlm["device_name"] = "a GPU"
    mdlm["tasks"]["gsm8k"]["cost"] = {
        "forward_passes": 131900 / tokens_per_forward,
        "answer_tokens": 131900,
        "seconds": 1319 * seconds,
    }
    return content


def board(folder: Path, **contents: Any) -> Board:
    write(folder, **contents)
    return read_board(folder)


@pytest.fixture
def fast_board(tmp_path: Path) -> Board:
    """AUP's worked example under dual, and exact answers beside it."""
    return board(
        tmp_path,
        exact=fast_file(0.8, 1, 6),
        exact_parallel=fast_file(0.79, 2, 3, confidence_threshold=0.9),
        dual=fast_file(0.8, 1, 3, cache="dual", confidence_threshold=0.99),
        dual_9=fast_file(0.79, 2, 1, cache="dual", confidence_threshold=0.9),
        dual_7=fast_file(0.76, 4, 1.5, cache="dual", confidence_threshold=0.7),
    )


def test_points_frontiers_and_areas(fast_board: Board) -> None:
    assert fast_board.refused == ()
    found = [
        (one.speed.method, one.speed.pace, one.speed.tokens_per_forward, one.speed.seconds, one.frontiers, one.area)
        for one in speed_points(fast_board.rows)
    ]
    exact, cached = "n_masks=256, block_length=32", "n_masks=256, block_length=32, cache=dual"
    dual = pytest.approx(299.5523, abs=1e-4)
    both = ("tokens", "seconds")
    assert found == [
        (f"{exact}, by confidence_threshold", "confidence_threshold=0.9", 2, 3, both, pytest.approx(158)),
        (f"{exact}, by steps", "steps=256", 1, 6, both, pytest.approx(80)),
        (f"{cached}, by confidence_threshold", "confidence_threshold=0.99", 1, 3, both, dual),
        (f"{cached}, by confidence_threshold", "confidence_threshold=0.9", 2, 1, both, dual),
        (f"{cached}, by confidence_threshold", "confidence_threshold=0.7", 4, 1.5, ("tokens",), dual),
    ]


def test_seconds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    slow = fast_file(0.8, 2, 60, confidence_threshold=0.9)
    slow["config"]["mdlm"]["device_name"] = "another GPU"
    points = speed_points(board(tmp_path, fast=fast_file(0.8, 1, 6), slow=slow).rows)
    assert {one.speed.machine: one.frontiers for one in points} == {
        "a GPU, float32, batches of 8": ("seconds",),
        "another GPU, float32, batches of 8": ("tokens", "seconds"),
    }


def test_exact_answers_do_not_take_approximate_ones_off_their_frontier(tmp_path: Path) -> None:
    contents = {"exact": fast_file(0.9, 4, 1), "dual": fast_file(0.8, 2, 3, cache="dual")}
    points = speed_points(board(tmp_path, **contents).rows)
    assert {one.speed.is_exact: one.frontiers for one in points} == {
        True: ("tokens", "seconds"),
        False: ("tokens", "seconds"),
    }


def test_an_area_is_against_the_best_accuracy_on_the_same_benchmark(tmp_path: Path) -> None:
    contents = {n: fast_file(score, n, 1, confidence_threshold=0.9 / n) for n, score in ((1, 0.8), (2, 0.79))}
    other = fast_file(0.95, 1, 1)
    other["n-shot"]["gsm8k"] = 8
    points = speed_points(board(tmp_path, **{f"file{n}": content for n, content in contents.items()}, other=other).rows)
    # Under weights against 80%: 80 + (80 + 79 exp(-3 / 80)) / 2.
    assert [round(one.area or 0, 2) for one in points if "5-shot" in one.speed.benchmark] == [158.05, 158.05]


def test_the_table_and_the_figures_keep_approximate_answers_apart(fast_board: Board) -> None:
    table = leaderboard_markdown(fast_board).partition("### Accuracy against speed")[2]
    (line,) = [line for line in table.splitlines() if "threshold=0.7" in line]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[7:12] == ["approximate", "4.00", "1.5 (a GPU, float32, batches of 8)", "76.0 ± 2.0", "tokens"]
    assert cells[12] == "299.6"
    (kind,) = [kind for kind in KINDS if kind.name == "tokens-per-forward"]
    panels = kind.panels(fast_board.rows)
    assert [(panel.detail.rpartition(", ")[2], [sorted(line.curve) for line in panel.lines]) for panel in panels] == [
        ("exact", [[1.0], [2.0]]),
        ("approximate", [[1.0, 2.0, 4.0]]),
    ]


def test_a_file_that_does_not_say_what_its_answers_took_has_no_point(tmp_path: Path) -> None:
    content = gsm8k_file(model="mdlm")
    assert speed_points(board(tmp_path, old=content).rows) == []
