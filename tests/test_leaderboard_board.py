"""What the board says of its rows: ranks, losses, seeds, findings, frontiers, and what papers state."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mdlm_leaderboard.board import Board, Row, significantly_better
from mdlm_leaderboard.build import points, read_board
from mdlm_leaderboard.findings import mask_lines, masks_finding, speed_findings
from mdlm_leaderboard.published import published
from mdlm_lm_eval.results.statistics import paired_interval
from mdlm_lm_eval.results.suite import current_version
from tests.leaderboard_files import TASKS, gsm8k_file, result_file, six_cells, suite_file, write


def sweep(model: str, losses: dict[int, float], *, at_best: float = 0.8, **changes: Any) -> dict[str, Any]:
    """A file per mask count -> points lost there."""
    return {
        f"{abs(hash((model, n, str(changes))))}": suite_file(
            n_masks=n, accuracy=at_best - lost, pretrained=model, **{"weights": model, **changes}
        )
        for n, lost in losses.items()
    }


def study(folder: Path) -> Board:
    """A model and three adapters, one of them in two seeds; another model; an autoregressive one."""
    full = {1: 0.0, 2: 0.01, 200: 0.15}
    contents = sweep("org/base", full) | sweep("org/other", {2: 0.0, 200: 0.05}, at_best=0.69)
    for seed, lost in ((0, 0.01), (1, 0.03)):
        contents |= sweep("org/base", {2: 0.0, 200: lost}, at_best=0.78, adapter=f"MA (CE + TV), seed {seed}")
    contents |= sweep("org/base", {2: 0.0, 200: 0.06}, adapter="SFT", spread=0.2)
    return read_board(write(folder, **contents, hf=suite_file(model="hf", pretrained="org/ar", accuracy=0.9)))


def row(board: Board, name: str) -> Row:
    return next(row for section in board.sections for row in section.rows if str(row.who) == name)


def column(board: Board, name: str, of: Row) -> Any:
    (found,) = (one for one in board.sections[0].columns if one.name == name)
    return found.of(of, board.sections[0].pair)


def test_a_loss_is_from_2_to_200_masks_in_table_and_headline(tmp_path: Path) -> None:
    board = study(tmp_path)
    section, base = board.sections[0], row(board, "org/base")
    assert section.pair == (2, 200)
    assert [one.head for one in section.columns][:3] == ["at 200 masks (%)", "at 2 masks (%)", "loss, 2 to 200 masks"]
    assert column(board, "loss", base).mean == pytest.approx(14)
    lines = mask_lines(section)
    assert [one.who.recipe for one in lines] == ["", "MA (CE + TV)", "SFT"], "all that were fine-tuned"
    said = masks_finding(section)
    for line in lines:
        assert f"{column(board, 'loss', line).in_words}" in said
        assert f"{100 * line.curve('masks')[200].mean:.1f}%" in said


def test_without_2_and_200_masks_the_pair_is_of_counts_that_all_have(tmp_path: Path) -> None:
    contents = sweep("a", {1: 0.0, 4: 0.0, 64: 0.1, 128: 0.2}) | sweep("b", {1: 0.0, 4: 0.0, 64: 0.1}, weights="b")
    board = read_board(write(tmp_path, **contents))
    assert board.sections[0].pair == (4, 64)
    one = read_board(write(tmp_path / "one", a=suite_file(n_masks=10)))
    assert [column.name for column in one.sections[0].columns] == ["most"]
    assert masks_finding(one.sections[0]) == ""


def test_what_is_not_significant_has_its_bound(tmp_path: Path) -> None:
    few, many = suite_file(n_masks=2, accuracy=0.7), suite_file(n_masks=200, accuracy=0.69, spread=0.02)
    said = masks_finding(read_board(write(tmp_path, few=few, many=many)).sections[0])
    assert said.startswith(
        "Appended masks cost the built-in model 1.0 ± 3.6, not significant (95%), at most 3.9 points"
    )


def test_rows_are_ranked_at_200_masks_and_share_ranks_within_the_interval(tmp_path: Path) -> None:
    board = study(tmp_path)
    ranks = [(str(one.who), one.rank) for one in board.sections[0].rows]
    assert ranks == [
        ("org/ar", 1),
        ("org/base + MA (CE + TV), mean of 2 seeds", 2),
        ("org/base + SFT", 2),
        ("org/base", 3),  # the mean of two seeds, with one degree of freedom, is not significantly better
        ("org/other", 4),
    ]
    # Without seeds, the same by the paired intervals themselves.
    by_task = pd.DataFrame([one.curve("masks")[200].by_task for one in board.sections[0].rows[1:]])
    better = [
        sum(
            (low := paired_interval(dict(mine), dict(other)).low) is not None and low > 1e-9
            for _, other in by_task.iterrows()
        )
        for _, mine in by_task.iterrows()
    ]
    assert significantly_better(by_task).sum(axis=1).tolist() == better


def test_seeds_of_one_recipe_are_one_row_their_mean(tmp_path: Path) -> None:
    board = study(tmp_path)
    mean = row(board, "org/base + MA (CE + TV), mean of 2 seeds")
    assert [seed.who.adapter for seed in mean.seeds] == ["MA (CE + TV), seed 0", "MA (CE + TV), seed 1"]
    assert mean.curve("masks")[200].mean == pytest.approx(0.76)
    assert mean.curve("masks")[200].by_task["verb_largest"] == pytest.approx(0.76)
    assert len(mean.files) == 4
    other = sweep("org/base", {2: 0.0, 200: 0.02}, adapter="MA (CE + TV), seed 2", weights="others")
    apart = read_board(write(tmp_path, **other))
    assert len(row(apart, "org/base (org/bas) + MA (CE + TV), mean of 2 seeds").seeds) == 2, (
        "seeds over other weights are of another recipe"
    )


def test_points_that_not_all_seeds_have_are_in_no_mean(tmp_path: Path) -> None:
    contents = sweep("m", {2: 0.0, 200: 0.1}, adapter="A, seed 0") | sweep("m", {200: 0.2}, adapter="A, seed 1")
    (mean,) = read_board(write(tmp_path, **contents)).sections[0].rows
    assert list(mean.curve("masks")) == [200]
    assert list(mean.seeds[0].curve("masks")) == [2, 200]


def test_context_gain_is_what_the_examples_add(tmp_path: Path) -> None:
    contents = {"with": suite_file(n_masks=2), "without": suite_file(n_masks=2, relevant=0, accuracy=0.75, spread=0.0)}
    contents["many"] = suite_file(n_masks=200)
    board = read_board(write(tmp_path, **contents))
    gain = column(board, "context_gain", board.sections[0].rows[0])
    assert gain.mean == pytest.approx(5)
    assert gain.is_significant


def test_rankings_of_several_wordings_have_their_tau(tmp_path: Path) -> None:
    # Template 1 turns one of three pairs round, so that tau is 1/3; another draw of examples moves every score alike.
    accuracies = {"a": (0.9, 0.7, 0.9), "b": (0.8, 0.75, 0.8), "c": (0.6, 0.5, 0.5)}
    for model, by_template in accuracies.items():
        for template, accuracy in enumerate(by_template):
            for seed in (1, 2):
                metadata = {"fewshot_template": template, "fewshot_seed": seed}
                file = suite_file(n_masks=200, accuracy=accuracy - seed / 100, pretrained=model, weights=model)
                for config in file["configs"].values():
                    config["metadata"] |= metadata
                write(tmp_path, **{f"{model}{template}{seed}": file})
    write(tmp_path, lonely=suite_file(n_masks=10, pretrained="a", weights="a"))
    (found,) = read_board(tmp_path).wordings
    assert (found.title, found.n_seeds) == (f"mdlm_context {current_version()} at 200 masks", 2)
    assert [(row.label, *row.numbers[:3]) for row in found.rows] == [
        ("a", pytest.approx(81.833, abs=1e-3), pytest.approx(68.5), pytest.approx(20)),
        ("b", pytest.approx(76.833, abs=1e-3), pytest.approx(73.5), pytest.approx(5)),
        ("c", pytest.approx(51.833, abs=1e-3), pytest.approx(48.5), pytest.approx(10)),
    ]
    assert found.taus == pytest.approx([1 / 3, 1, 1 / 3])
    assert "3 templates, 2 draws of examples each; Kendall's tau between their rankings is 0.56, at least 0.33." in (
        found.in_words
    )
    first, second = found.neighbours
    assert (first[:3], second[:3]) == (("a", "b", pytest.approx(2 / 3)), ("b", "c", 1))
    assert first[3].mean == pytest.approx(5)
    assert first[3].half_width == pytest.approx(4.3026527 * np.std([10, -5, 10], ddof=1) / 3**0.5)


def test_a_folder_of_settings_has_a_row_each_and_its_frontier_marked(tmp_path: Path) -> None:
    board = read_board(six_cells(tmp_path))
    (section,) = board.sections
    assert board.main is None
    assert section.common == "bfloat16"
    marked = {one.label: next(iter(one.benchmarks.values())).on_frontier for one in section.rows}
    assert marked == {
        "steps=256": True,
        "steps=128": False,
        "steps=64": False,
        "confidence_threshold=0.9": True,
        "confidence_threshold=0.7": True,
        "confidence_threshold=0.6": False,
    }
    (said,) = speed_findings(section)
    speeds = "71.0 ± 2.4% at 0.39 tokens per forward pass (steps=256), 66.0 ± 2.4% at 2.00"
    assert said.startswith(f"{section.benchmark_names[0]}: {speeds}")
    first = section.rows[0]
    assert (first.cost("tokens_per_pass"), first.cost("seconds"), first.cost("memory_gib")) == (
        pytest.approx(100 / 256),
        pytest.approx(2.56),
        2.0,
    )


def test_speed_at_a_quality_is_between_the_settings_of_a_sweep(tmp_path: Path) -> None:
    names = ("mdlm_parallel_copy", "mdlm_parallel_shuffle")
    for k, score in ((1, 0.8), (2, 0.76), (4, 0.68), (8, 0.2)):
        metrics = {name: {"exact_match,none": score, "bound_2,none": 0.479, "bound_4,none": 1.0} for name in names}
        file = result_file(metrics, group="mdlm_parallel", shots=0, passes=100 // k, steps=64 // k)
        write(tmp_path, **{f"k{k}": file, f"gsm{k}": gsm8k_file(score, passes=100 // k, steps=64 // k)})
    benchmarks, parallel = read_board(tmp_path).sections
    found = [one for section in (benchmarks, parallel) for row in section.rows for one in row.benchmarks.values()]
    assert len(found) == 16
    assert all(one.at_quality == pytest.approx({90: 3.0, 95: 2.0}) for one in found)
    assert parallel.title == "Filled in parallel (mdlm_parallel)"
    assert parallel.benchmark_names == [
        f"{name} v3.0 (exact_match, 0-shot)" for name in ("parallel", "copy", "shuffle")
    ], "the mean first; a bound is no score"
    assert set(parallel.bounds.values()) == {"47.9 at 2"}
    (said,) = speed_findings(read_board(tmp_path).sections[1])
    speeds = "80.0% at 1.00 tokens per forward pass (steps=64), 20.0% at 8.33 (steps=8)."
    assert said.startswith(f"parallel v3.0 (exact_match, 0-shot): {speeds}")
    assert said.endswith(" Of the slowest setting's score it keeps 90% up to 3.00 (PB90), 95% up to 2.00 (PB95).")


def test_approximate_answers_have_a_frontier_of_their_own(tmp_path: Path) -> None:
    fast = gsm8k_file(0.8, passes=20, cache="dual", block_length=32)
    slower = gsm8k_file(0.7, passes=40, cache="dual", block_length=16)
    write(six_cells(tmp_path), fast=fast, slower=slower)
    rows = read_board(tmp_path).sections[0].rows
    on = {one.label for one in rows if next(iter(one.benchmarks.values())).on_frontier}
    assert {"steps=256", "confidence_threshold=0.9"} < on
    assert sum("cache=dual" in label for label in on) == 1


def test_what_papers_state_is_a_row_per_model_and_adapter() -> None:
    table = published().set_index(["model", "adapter"])
    assert len(table) == 6
    assert table.loc[("LLaDA-8B-Base", ""), "drop over mask counts (points), 1 step"] == 23
    assert table.loc[("LLaDA-8B-Base", "MA loss (CE + TV)"), "degradation (%), 4 steps"] == 7.4
    assert "figure 22" in table.loc[("LLaDA-8B-Instruct", ""), "citation"]


def test_the_csv_is_tidy(tmp_path: Path) -> None:
    board = study(tmp_path)
    table = points(board)
    masks = table[(table["measure"] == "masks") & (table["adapter"] == "MA (CE + TV), seed 1")]
    assert masks.set_index("x")["value"].to_dict() == pytest.approx({2: 0.78, 200: 0.75})
    assert set(masks["rank"]) != {0}
    losses = table[table["measure"] == "loss"].set_index("id")["value"]
    assert losses[row(board, "org/base").id] == pytest.approx(14)
    assert len(TASKS) == 16
