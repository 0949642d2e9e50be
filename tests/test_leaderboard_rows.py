"""Which scores share a row and a section, which files disagree, and the figures derived from rows."""

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from mdlm_leaderboard.build import LeaderboardError, read_board
from mdlm_leaderboard.experiments import SUMMARIES, summary_of
from mdlm_leaderboard.published import published_rows
from mdlm_leaderboard.ranking import ranked
from mdlm_leaderboard.rows import NO_MASKS, Board, LeaderboardRow
from mdlm_lm_eval.results.suite import current_version
from tests.leaderboard_files import gsm8k_file, suite_file, write


def board_of(folder: Path, **contents: Any) -> Board:
    return read_board(write(folder / "results", **contents))


def measured(board: Board) -> list[LeaderboardRow]:
    return [row for row in board.rows if row.origin == "measured"]


def summary(row: LeaderboardRow, name: str) -> Any:
    """A summary's number, None where there is none."""
    found = {one.name: summary_of(row, experiment, one) for experiment, one in SUMMARIES}[name]
    return found and found.mean


def test_mask_counts_positions_and_dots_of_one_model_are_one_row(tmp_path: Path) -> None:
    contents = {f"masks{n}": suite_file(n_masks=n, accuracy=0.9 - n / 1000) for n in (1, 50, 200)}
    contents |= {f"dots{n}": suite_file(variant="_slot", n_masks=None, n_fillers=n, accuracy=0.8) for n in (0, 100)}
    for place, position, accuracy in (("right", 0, 0.6), ("right", 40, 0.85), ("left", 0, 0.7)):
        variant = f"_{place}_pos{position}"
        contents[variant] = suite_file(variant=variant, n_masks=None, accuracy=accuracy)
    contents["e8"] = suite_file(variant="_pos20", n_masks=100, accuracy=0.7)
    board = board_of(tmp_path, **contents)
    (row,) = measured(board)
    assert board.refused == ()
    assert (row.model, row.adapter, row.family, row.steps, row.unmasking) == ("built-in", None, "llama", "1", "none")
    assert {n: round(estimate.mean, 4) for n, estimate in row.curve("masks").items()} == {1: 0.899, 50: 0.85, 200: 0.7}
    assert list(row.curve("dots")) == [0, 100]
    assert {place: list(curve) for place, curve in row.series("positions").items()} == {"right": [0, 40], "left": [0]}
    assert round(row.series("positions_by_masks")[100][20].mean, 4) == 0.7
    assert summary(row, "drop_points") == pytest.approx(19.9)
    assert summary(row, "degradation_percent") == pytest.approx(100 * 0.199 / 0.899)
    assert summary(row, "dots_drop_points") == pytest.approx(0)
    assert summary(row, "locality_gap_points") == pytest.approx(25)
    assert [run.path for run in row.runs if "masks" in run.path] == ["masks1.json", "masks50.json", "masks200.json"]
    assert {run.path for run in row.runs} == {f"{name}.json" for name in contents}
    assert row.runs[0].versions == {
        "lm_eval": "0.4.13",
        "mdlm_lm_eval": "0.1.0",
        "transformers": "5.23.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
    }
    assert row.runs[0].date == "2026-11-21T03:25:48+00:00"


def test_the_band_is_students_over_tasks(tmp_path: Path) -> None:
    (row,) = measured(board_of(tmp_path, one=suite_file(n_masks=50, accuracy=0.8)))
    estimate = row.curve("masks")[50]
    deviation = math.sqrt(2 * 0.1**2 / 15)  # two of 16 tasks are 0.1 away from the mean
    assert estimate.mean == pytest.approx(0.8)
    assert estimate.high == pytest.approx(0.8 + 2.1314 * deviation / 4, abs=1e-5)
    assert estimate.low == pytest.approx(0.8 - 2.1314 * deviation / 4, abs=1e-5)
    assert (estimate.n_tasks, estimate.n_questions) == (16, 16000)
    assert (
        summary(row, "drop_points")
        is summary(row, "degradation_percent")
        is summary(row, "locality_gap_points")
        is None
    )


def test_models_adapters_and_ways_of_decoding_are_rows_of_their_own(tmp_path: Path) -> None:
    board = board_of(
        tmp_path,
        plain=suite_file(),
        adapter=suite_file(adapter="/home/someone/adapters/ma"),
        random=suite_file(steps=40, unmasking="random"),
        other=suite_file(model_args={"pretrained": "GSAI-ML/LLaDA-8B-Base"}),
        quantised=suite_file(model_args={"pretrained": "GSAI-ML/LLaDA-8B-Base", "load_in_4bit": True}),
    )
    assert [(row.model, row.adapter, row.steps, row.other) for row in measured(board)] == [
        ("built-in", None, "1", "float32"),
        ("built-in", None, "40", "float32"),
        ("built-in", "ma", "1", "float32"),
        ("GSAI-ML/LLaDA-8B-Base", None, "1", "float32"),
        ("GSAI-ML/LLaDA-8B-Base", None, "1", "float32, load_in_4bit=True"),
    ]
    ids = [row.id for row in board.rows]
    assert len(set(ids)) == len(ids)


def test_rows_of_the_same_name_get_ids_of_their_own(tmp_path: Path) -> None:
    loadings = [{"pretrained": "some/model", "max_length": n} for n in (100, 200, 300)]
    contents = {f"file{n}": suite_file(model_args=loading) for n, loading in enumerate(loadings)}
    ids = [row.id for row in measured(board_of(tmp_path, **contents))]
    assert ids == [f"some-model-steps-1-none{number}" for number in ("", "-2", "-3")]


def test_checkpoints_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = ["/runs/one/final", "/runs/two/final", "/runs/two/other"]
    contents = {f"file{n}": suite_file(model_args={"pretrained": path}) for n, path in enumerate(paths)}
    names = [row.model for row in measured(board_of(tmp_path, **contents))]
    digests = [hashlib.sha256(path.encode()).hexdigest()[:7] for path in paths]
    assert sorted(names) == sorted([f"final ({digests[0]})", f"final ({digests[1]})", "other"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limit": 50}, "--limit 50 leaves out questions"),
        ({"version": "0.9"}, f"suite version 0.9 asks other questions than {current_version()}"),
        ({"version": "99.0"}, f"suite version 99.0 asks other questions than {current_version()}"),
        ({"relevant": 5}, "5 relevant and 40 distractor examples are not the standard 10 and 40"),
        ({"distractors": 0}, "10 relevant and 0 distractor examples are not the standard 10 and 40"),
    ],
)
def test_other_settings_share_no_section_with_the_standard_one(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    board = board_of(tmp_path, apart=suite_file(n_masks=50, **changes), standard=suite_file(n_masks=50))
    assert [section.why_apart for section in board.sections[:-1]] == ["", why]
    assert all(len(section.rows) == 1 for section in board.sections[:-1])


def test_results_of_an_older_suite_stand_apart_below_those_of_the_newer(tmp_path: Path) -> None:
    board = board_of(tmp_path, older=suite_file(version="1.0"), newer=suite_file(version="2.0"))
    assert [section.why_apart for section in board.sections[:-1]] == [
        "",
        "suite version 1.0 asks other questions than 2.0",
    ]


def test_sections_begin_with_the_newest_suite_and_the_most_questions(tmp_path: Path) -> None:
    versions = {f"v{n}": suite_file(version=version) for n, version in enumerate(("0.9", "1.0"))}
    limits = {f"limit{n}": suite_file(limit=n) for n in (5, 50)}
    board = board_of(tmp_path, **versions, **limits, standard=suite_file())
    assert [
        (section.rows[0].setting.suite_version, section.rows[0].setting.limit) for section in board.sections[:-1]
    ] == [
        (current_version(), None),
        (current_version(), 50),
        (current_version(), 5),
        ("1.0", None),
        ("0.9", None),
    ]


def test_benchmarks_with_and_without_a_chat_template_are_columns_of_one_row(tmp_path: Path) -> None:
    plain, chat = gsm8k_file(model="mdlm"), gsm8k_file(model="mdlm") | {"chat_template": "{{ messages }}"}
    (row,) = measured(board_of(tmp_path, plain=plain, chat=chat))
    assert len(row.curve("benchmarks")) == 2


def test_another_state_of_the_suite_and_chat_templates_stand_apart(tmp_path: Path) -> None:
    changed, chat = suite_file(), suite_file() | {"chat_template": "{{ messages }}"}
    changed["config"]["mdlm"]["task_suite"]["sha256"] = "0" * 64
    board = board_of(tmp_path, a=changed, b=suite_file(), c=suite_file(steps=4), d=chat)
    assert [section.why_apart for section in board.sections[:-1]] == [
        "",
        f"the files of suite version {current_version()} (hash 000000000000) differ from those of the main table "
        "(1cfd7802b888)",
        "prompts follow the models' chat templates",
    ]


def test_the_only_section_says_what_is_not_standard_about_it(tmp_path: Path) -> None:
    board = board_of(tmp_path, only=suite_file(limit=5))
    assert board.sections[0].why_apart == "--limit 5 leaves out questions"


def test_an_autoregressive_model_has_no_mask_count_and_shares_the_table(tmp_path: Path) -> None:
    board = board_of(tmp_path, hf=suite_file(model="hf", model_args={"pretrained": "gpt2"}), ours=suite_file())
    (section, _) = board.sections
    row = section.rows[1]
    assert (row.model, row.steps, row.family) == ("gpt2", "autoregressive", "autoregressive")
    assert list(row.curve("masks")) == [NO_MASKS]
    assert summary(row, "drop_points") is None
    assert board.refused == ()


def test_the_curve_over_distractor_examples_is_in_the_row_of_the_standard_setting(tmp_path: Path) -> None:
    contents = {f"two{n}": suite_file(n_masks=2, distractors=n) for n in (0, 10, 40)}
    contents |= {f"share{n}": suite_file(n_masks=None, mask_ratio=0.2, distractors=n) for n in (0, 10)}
    board = board_of(tmp_path, **contents)
    (ours,) = measured(board)
    assert {masks: list(curve) for masks, curve in ours.series("distractors").items()} == {
        "2": [0, 10, 40],
        "20%": [0, 10],
    }
    assert list(ours.curve("masks")) == [2]
    assert len(board.sections) == 2


def test_one_number_of_distractor_examples_is_a_row_of_its_setting(tmp_path: Path) -> None:
    contents = {
        "two": suite_file(n_masks=2, distractors=10, accuracy=0.8),
        "few": suite_file(n_masks=2, distractors=0, relevant=5, accuracy=0.7),
        "many": suite_file(n_masks=2, distractors=0, relevant=25, accuracy=0.6),
        "hf": suite_file(model="hf", model_args={"pretrained": "gpt2"}, distractors=0, accuracy=0.5),
    }
    found = {
        (row.setting.fewshot_relevant, row.setting.fewshot_distractors): (row.curves.keys(), row.curve("masks"))
        for row in measured(board_of(tmp_path, **contents))
    }
    assert {setting: [round(point.mean, 4) for point in curve.values()] for setting, (_, curve) in found.items()} == {
        (10, 10): [0.8],
        (5, 0): [0.7],
        (25, 0): [0.6],
        (10, 0): [0.5],
    }
    assert {name for names, _ in found.values() for name in names} == {"masks"}


def block_file(n_masks: int | None, *, filled: tuple[int, int], **changes: Any) -> dict[str, Any]:
    """Of a model with blocks of 8, whose prompts differ in length: `filled` to the end of the last block."""
    content = suite_file(n_masks=n_masks, **changes)
    for record in content["config"]["mdlm"]["tasks"].values():
        record |= {"masks": list(filled), "steps": [-(-filled[0] // 8), -(-filled[1] // 8)]}
        record |= {"block_length": [8, 8], "masks_in_block": [1, 8]}
    return content


@pytest.mark.parametrize("steps", [1, "auto"])
def test_masks_of_a_block_diffusion_model_are_those_asked_for(tmp_path: Path, steps: int | str) -> None:
    few, many = block_file(2, filled=(2, 9), steps=steps), block_file(200, filled=(200, 207), steps=steps)
    board = board_of(tmp_path, few=few, many=many)
    (row,) = measured(board)
    assert board.refused == ()
    assert list(row.curve("masks")) == [2, 200]
    assert (row.steps, row.other) == ("1", "block_length=8, float32")


def test_without_a_number_of_masks_a_block_diffusion_model_has_those_of_its_answer(tmp_path: Path) -> None:
    content = block_file(None, filled=(1, 8), steps_per_block=4)
    (row,) = measured(board_of(tmp_path, auto=content))
    assert (list(row.curve("masks")), row.steps) == ([1], "4 a block")


def test_steps_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    board = board_of(tmp_path, **{f"steps{n}": suite_file(steps=n) for n in (10, 2, 40)})
    assert [row.steps for row in measured(board)] == ["2", "10", "40"]


def test_revisions_and_system_instructions_are_rows_of_their_own(tmp_path: Path) -> None:
    revised, told = suite_file(), suite_file() | {"system_instruction": "Be brief."}
    revised["config"]["mdlm"]["revision"] = "v2"
    board = board_of(tmp_path, plain=suite_file(), revised=revised, told=told)
    assert sorted(row.other for row in measured(board)) == [
        "float32",
        "float32, system instruction 'Be brief.'",
        "revision v2, float32",
    ]


def test_a_sweep_over_masks_with_fewer_distractors_keeps_its_own_section(tmp_path: Path) -> None:
    contents = {f"masks{n}": suite_file(n_masks=n, distractors=10) for n in (2, 50)}
    board = board_of(tmp_path, **contents, standard=suite_file())
    assert [list(row.curve("masks")) for row in measured(board)] == [[50], [2, 50]]


def test_two_files_that_disagree_are_both_named_and_neither_is_used(tmp_path: Path) -> None:
    board = board_of(
        tmp_path, a=suite_file(accuracy=0.8), b=suite_file(accuracy=0.7), c=suite_file(n_masks=100, accuracy=0.6)
    )
    (row,) = measured(board)
    assert list(row.curve("masks")) == [100]
    (refused,) = board.refused
    assert refused.path == "a.json"
    assert refused.reason == (
        "disagrees with 'b.json' on Masks appended (`mdlm_context`), 50 masks of 'built-in', steps 1 "
        "(0.9 against 0.8); neither is used"
    )


def test_a_name_of_a_file_that_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, a=suite_file())
    (tmp_path / os.fsdecode(b"\xff.json")).write_text("{")
    (refused,) = read_board(tmp_path).refused
    assert refused.path == "?.json"


def test_a_file_without_the_suites_hash_replaces_no_other_score(tmp_path: Path) -> None:
    whole, other, bare = suite_file(n_masks=50, accuracy=0.8), suite_file(n_masks=2), suite_file(accuracy=0.5)
    bare["config"]["mdlm"]["task_suite"] = {}
    board = read_board(write(tmp_path, a=whole, b=bare, c=other))
    assert list(board.rows[0].curve("masks")) == [2]
    assert [one.path for one in board.refused] == ["a.json"]
    assert "disagrees with 'b.json'" in board.refused[0].reason


def test_two_files_that_agree_count_once(tmp_path: Path) -> None:
    board = board_of(tmp_path, a=suite_file(), b=suite_file())
    (row,) = measured(board)
    assert (row.curve("masks")[50].n_questions, len(row.runs), board.refused) == (16000, 1, ())


def test_tasks_of_one_cell_may_come_from_several_files_but_must_be_whole(tmp_path: Path) -> None:
    first, second = suite_file(), suite_file()
    for content, tasks in ((first, slice(None, 8)), (second, slice(8, None))):
        content["configs"] = dict(list(content["configs"].items())[tasks])
        content["groups"], content["group_subtasks"] = {}, {}
    (row,) = measured(board_of(tmp_path / "whole", first=first, second=second))
    assert (row.curve("masks")[50].n_tasks, len(row.runs)) == (16, 2)
    board = board_of(tmp_path / "half", first=first, other=suite_file(n_masks=2))
    assert [list(row.curve("masks")) for row in measured(board)] == [[2]]
    first["configs"] = dict(list(first["configs"].items())[:1])
    (alone,) = board_of(tmp_path / "one", first=first, other=suite_file(n_masks=2)).refused
    assert alone.reason.startswith("only 1 of mdlm_context's 16 tasks was run with 50 masks of 'built-in', steps 1; ")
    assert [one.reason for one in board.refused] == [
        "only 8 of mdlm_context's 16 tasks were run with 50 masks of 'built-in', steps 1; the leaderboard needs all 16"
    ]


def test_benchmarks_stand_beside_the_suite_scores_of_the_same_model(tmp_path: Path) -> None:
    ours = suite_file(model_args={"pretrained": "organisation/model"})
    steps = suite_file(model_args={"pretrained": "organisation/model"}, steps=40)
    board = board_of(tmp_path, a=gsm8k_file(model="mdlm"), b=ours, c=steps, d=gsm8k_file(model="mdlm", masks=512))
    one_step, forty_steps = measured(board)
    assert len(one_step.curve("benchmarks")) == 2
    assert forty_steps.curve("benchmarks") == {}
    estimate = one_step.curve("benchmarks")["gsm8k v3.0 (exact_match,strict-match; 5-shot; n_masks=256, steps=256)"]
    assert (estimate.mean, estimate.low, estimate.n_questions) == (0.5, pytest.approx(0.5 - 0.0196), 1319)


def test_benchmarks_without_a_mask_count_or_with_a_limit_stand_apart(tmp_path: Path) -> None:
    board = board_of(
        tmp_path, a=gsm8k_file(), b=gsm8k_file(model="llada_dist"), c=gsm8k_file(limit=10, asked=10), d=suite_file()
    )
    assert [(section.title, section.why_apart) for section in board.sections[:-1]] == [
        (f"Few-shot suite {current_version()}, 10 relevant and 40 distractor examples", ""),
        ("Standard benchmarks", ""),
        ("Standard benchmarks without a mask count", "the result files state no mask count"),
        ("Standard benchmarks, --limit 10", "--limit 10 leaves out questions"),
    ]


def test_published_rows_are_marked_and_hold_what_the_file_says(tmp_path: Path) -> None:
    board = board_of(tmp_path, one=suite_file())
    section = board.sections[-1]
    assert section.title == "Published"
    assert list(section.rows) == published_rows()
    assert all(
        row.origin == "published" and "2511.21338" in row.citation and not row.curve("masks") for row in section.rows
    )
    instruct = {(row.steps, row.adapter): row for row in section.rows if row.model == "LLaDA-8B-Instruct"}
    assert (summary(instruct["1", None], "drop_points"), summary(instruct["1", None], "dots_drop_points")) == (27, 10)
    assert summary(instruct["6", None], "degradation_percent") == 22.8
    source = Path(__file__).parents[1] / "leaderboard/mdlm_leaderboard/published.yaml"
    assert len(section.rows) == sum(len(one["rows"]) for one in yaml.safe_load(source.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({}, "holds no *.json file"),
        ({"a": "{", "b": {}}, "none of the 2 *.json files in"),
    ],
)
def test_nothing_to_build_is_one_sentence(tmp_path: Path, contents: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LeaderboardError, match=sentence.replace("*", r"\*")):
        board_of(tmp_path, **contents)


def test_the_results_of_the_built_in_model_are_all_used() -> None:
    board = read_board(Path(__file__).parents[1] / "leaderboard" / "results")
    assert board.refused == ()
    masks: dict[str, set[int]] = {}
    for row in measured(board):
        masks.setdefault(row.model, set()).update(row.curve("masks"))
    assert masks == {"built-in": {1, 2, 10, 50, 100, 200}, "built-in-block": {2, 200}}
    text = "".join(path.read_text() for path in (Path(__file__).parents[1] / "leaderboard" / "results").rglob("*.json"))
    assert not {folder for folder in ("/home/", "/root/", "/tmp/", "/Users/") if folder in text}


def test_adapters_of_one_name_and_other_weights_are_rows_of_their_own(tmp_path: Path) -> None:
    contents = {}
    for n, digest in enumerate(("a" * 64, "b" * 64, "a" * 64)):
        contents[f"file{n}"] = suite_file(adapter="MA, seed 0", n_masks=10 + n)
        contents[f"file{n}"]["config"]["mdlm"]["adapter_weights"] = digest
    rows = measured(board_of(tmp_path, **contents))
    assert [(row.adapter, list(row.curve("masks"))) for row in rows] == [
        ("MA, seed 0 (aaaaaaa)", [10, 12]),
        ("MA, seed 0 (bbbbbbb)", [11]),
    ]


def test_seeds_over_other_weights_are_no_seeds_of_one_recipe(tmp_path: Path) -> None:
    contents = {f"seed{n}": suite_file(adapter=f"MA, seed {n}") for n in (0, 1)}
    for n, digest in enumerate(("a" * 64, "b" * 64)):
        contents[f"seed{n}"]["config"]["mdlm"] |= {"weights": digest, "adapter_weights": str(n) * 64}
        contents[f"plain{n}"] = suite_file()
        contents[f"plain{n}"]["config"]["mdlm"]["weights"] = digest
    board = board_of(tmp_path, **contents)
    assert [(row.model, row.adapter) for row in ranked(board.sections[0].rows)] == [
        ("built-in (aaaaaaa)", None),
        ("built-in (bbbbbbb)", None),
        ("built-in (aaaaaaa)", "MA, seed 0"),
        ("built-in (bbbbbbb)", "MA, seed 1"),
    ]


def test_a_drop_has_the_band_of_its_differences_task_by_task(tmp_path: Path) -> None:
    few, many = suite_file(n_masks=1, accuracy=0.8), suite_file(n_masks=200, accuracy=0.6)
    name = "mdlm_animal_largest"
    many["results"][name]["exact_match,none"] = 0.4
    (row,) = measured(board_of(tmp_path, few=few, many=many))
    (found, *_) = (summary_of(row, experiment, one) for experiment, one in SUMMARIES)
    # 15 tasks lose 20 points, one loses 40.
    assert found is not None
    assert found.mean == pytest.approx(21.25)
    assert found.half_width == pytest.approx(2.1314 * 20 / 16, abs=1e-3)


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [("cache", "dual", "cache=dual"), ("no_option_of_this_version", 7, "no_option_of_this_version=7")],
)
def test_an_option_that_this_version_does_not_know_makes_another_row(
    tmp_path: Path, option: str, value: Any, shown: str
) -> None:
    board = board_of(tmp_path, exact=suite_file(), other=suite_file(**{option: value}))
    assert [row.other for row in measured(board)] == ["float32", f"{shown}, float32"]
    assert board.refused == ()
    silent = board_of(tmp_path / "silent", exact=suite_file(), other=suite_file(early_exit=False))
    assert [row.other for row in measured(silent)] == ["float32"]
