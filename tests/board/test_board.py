"""From result files to rows: what shares a row, a table or nothing; and what the board says of its rows."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdlm_leaderboard.board import Board, Section
from mdlm_leaderboard.build import command_of, markdown, points, read_board
from mdlm_leaderboard.findings import after_table, headline, mask_lines, masks_finding, speed_findings
from mdlm_leaderboard.rows import Row, is_exact
from mdlm_leaderboard.show import show
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results import load
from mdlm_lm_eval.results.deviations import listed
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.suite import current_version
from tests.conftest import data
from tests.support.leaderboard_files import (
    TASKS,
    committed_board,
    gsm8k_file,
    result_file,
    served,
    six_cells,
    suite_file,
    write,
    write_answers,
)


def board(folder: Path, **contents: Any) -> Board:
    return read_board(write(folder, **contents))


def rows(of: Board | Section) -> list[Row]:
    return [row for section in of.sections for row in section.rows] if isinstance(of, Board) else list(of.rows)


def reasons(of: Board) -> dict[str, str]:
    return dict(of.scores.refused)


def test_all_experiments_of_one_model_are_one_row(tmp_path: Path) -> None:
    (row,) = rows(
        board(
            tmp_path,
            few=suite_file(n_masks=2),
            many=suite_file(n_masks=200, accuracy=0.6),
            no_dots=suite_file(variant="_slot", group="mdlm_slot"),
            dots=suite_file(variant="_slot", group="mdlm_slot", n_fillers=200, accuracy=0.7),
            first=suite_file(variant="_right_pos0", group="mdlm_locality_right_pos0"),
            last=suite_file(variant="_right_pos40", group="mdlm_locality_right_pos40"),
            first_open=suite_file(variant="_pos0", group="mdlm_position_pos0", n_masks=200),
            share=suite_file(mask_ratio=0.2),
        )
    )[:1]
    assert {key: list(curve) for key, curve in row.curves.items()} == {
        ("masks", ""): [2, 200],
        ("positions", "right"): [0, 40],
        ("positions_by_masks", 200): [0],
        ("dots", ""): [0, 200],
        ("shares", ""): [20],
    }
    assert (listed(row.who.decoding), row.who.family) == ("steps=1, bfloat16", "llada")
    estimate = row.curve("masks")[200]
    assert (estimate.mean, estimate.n_questions) == (pytest.approx(0.6), 16000)
    # Rules are fixed: six of eight at 0.6, one 0.1 above and one below, of 2000 questions each.
    error = ((6 * 0.6 * 0.4 + 0.7 * 0.3 + 0.5 * 0.5) / 2000) ** 0.5 / 8
    assert estimate.band.high - estimate.mean == pytest.approx(1.96 * error, rel=0.01)  # type: ignore[operator]


@pytest.mark.parametrize(("changes", "words"), data("cases.json")["rows of their own"])
def test_what_changes_a_score_makes_a_row(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    found = rows(board(tmp_path, plain=suite_file(n_masks=2), changed=suite_file(n_masks=2, **changes)))
    assert len(found) == 2
    assert any(words in row.label for row in found)
    assert not any("/home" in str(row.who) for row in found), "names are a path's last part"
    assert len({row.id for row in found}) == len({row.label for row in found}) == 2


@pytest.mark.parametrize(
    "changes", [{"early_exit": False}, {"seed": 5, "task_record": {"cache": "none"}}, {"max_gen_toks": None}]
)
def test_what_changes_no_score_makes_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert len(rows(board(tmp_path, a=suite_file(n_masks=2), b=suite_file(n_masks=200, **changes)))) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limit": 50}, "only 50 questions per task (--limit)"),
        ({"version": "1.0"}, f"suite version 1.0 asks other questions than {current_version()}"),
        ({"suite_hash": "b" * 64}, "the files of the suite (hash bbbbbbbbbbbb) differ"),
        ({"distractors": 20}, "fewshot_distractors=20 instead of the standard 40"),
    ],
)
def test_other_questions_share_no_table(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    plain = {f"n{n}": suite_file(n_masks=n) for n in (10, 200)}
    other = suite_file(n_masks=10, pretrained="other", **changes)
    main, apart = board(tmp_path, **plain, other=other, block=suite_file(n_masks=10, pretrained="third")).sections
    assert (len(main.rows), len(apart.rows)) == (2, 1)
    assert main.why_apart == ""
    assert why in apart.why_apart


def test_questions_that_only_examples_answer_are_a_table_of_their_own_and_the_first(tmp_path: Path) -> None:
    rules = suite_file(start="mdlm_rules_", group="mdlm_rules")
    first, second = board(tmp_path, context=suite_file(), rules=rules).sections
    assert "(mdlm_rules)" in first.title
    assert "(mdlm_context)" in second.title


def test_a_file_whose_tasks_have_different_settings_is_named(tmp_path: Path) -> None:
    content = suite_file(n_masks=2)
    content["configs"][next(iter(content["configs"]))]["metadata"] = {"fewshot_distractors": 10}
    found = reasons(board(tmp_path, mixed=content, good=suite_file(n_masks=200)))
    assert found == {"mixed.json": "asks its few-shot tasks in different settings"}


def test_scores_that_disagree_are_not_used_and_those_that_agree_count_once(tmp_path: Path) -> None:
    found = board(
        tmp_path,
        a=suite_file(n_masks=2),
        b=suite_file(n_masks=2, accuracy=0.7),
        c=suite_file(n_masks=10),
        d=suite_file(n_masks=10),
    )
    (row,) = rows(found)
    assert list(row.curve("masks")) == [10]
    said = "disagrees with 'b.json' (0.9 against 0.8 on country_smallest); neither is used"
    assert reasons(found) == {"a.json": said}


def test_a_cell_may_come_from_several_files_and_must_be_whole(tmp_path: Path) -> None:
    halves = []
    for n in range(2):
        half = suite_file(n_masks=2)
        for name in TASKS[8 * n : 8 * n + 8]:
            del half["configs"][f"mdlm_{name}"]
        half |= {"groups": {}, "group_subtasks": {}}
        halves.append(half)
    (row,) = rows(board(tmp_path / "both", a=halves[0], b=halves[1]))
    assert row.curve("masks")[2].n_questions == 16000
    found = board(tmp_path / "one", a=halves[0], b=suite_file(n_masks=200))
    assert [list(row.curve("masks")) for row in rows(found)] == [[200], []], "not ranked"
    assert len(found.sections[1].rows[0].benchmarks) == 8, "but shown, as any other task is"


def test_prompts_that_lost_examples_are_left_out_of_the_suite_and_marked_in_benchmarks(tmp_path: Path) -> None:
    cut = {"task_record": {"truncated_prompts": 7}}
    found = board(tmp_path, suite=suite_file(**cut), gsm8k=gsm8k_file(**cut), fine=suite_file(n_masks=2))
    said = "lost their first examples (7 of 1000 of mdlm_country_smallest), in 16 few-shot tasks"
    assert said in reasons(found)["suite.json"]
    (estimate,) = found.sections[1].rows[0].benchmarks.values()
    assert estimate.in_words.endswith("(7 prompts cut off)")
    assert ", 7 prompts cut off, no chat template" in show(tmp_path / "gsm8k.json")[1]
    thought = board(tmp_path / "thought", gsm8k=gsm8k_file(task_record={"endings": {"unfinished_thinking": 3}}))
    (estimate,) = thought.sections[0].rows[0].benchmarks.values()
    assert estimate.in_words.endswith("(3 unfinished)")
    endings = {"returned_tokens": [4, 4], "endings": {"at_once": 1319}}
    repeated = gsm8k_file(task_record=endings)
    repeated["configs"]["gsm8k"]["repeats"] = 4
    ended = board(tmp_path / "ended", gsm8k=repeated)
    (estimate,) = ended.sections[0].rows[0].benchmarks.values()
    assert estimate.in_words.endswith("(1319 end at once)")
    assert "answers   25.0% of gsm8k end at once" in show(tmp_path / "ended" / "gsm8k.json")


def test_continuations_longer_than_n_masks_set_a_row_apart(tmp_path: Path) -> None:
    longer = {"output_type": "multiple_choice", "n_masks": 9, "task_record": {"longer_continuations": 3}}
    whole = result_file({"choices": {"acc,none": 0.5}}, output_type="multiple_choice", n_masks=9)
    main, apart = board(tmp_path, whole=whole, longer=result_file({"choices": {"acc,none": 0.4}}, **longer)).sections
    assert (main.why_apart, apart.why_apart) == ("", "n_masks were too few for some continuations")
    assert "3 continuations longer than n_masks" in show(tmp_path / "longer.json")[1]


def test_a_task_has_the_options_of_all_its_requests(tmp_path: Path) -> None:
    content = gsm8k_file(cfg_scale=0.5)
    (first,) = content["config"]["mdlm"]["settings"]
    content["config"]["mdlm"]["settings"].append(first | {"options": first["options"] | {"end_think_boost": 2.0}})
    assert "end_think_boost=2.0" in show(write(tmp_path, a=content) / "a.json")[1]
    first["options"] = first["options"] | {"temperature": 0.5}
    found = board(tmp_path, a=content, b=gsm8k_file())
    assert "records temperature=0.5 and temperature=0.0 for 'gsm8k'" in reasons(found)["a.json"]


def test_other_models_need_a_mask_count(tmp_path: Path) -> None:
    found = board(
        tmp_path,
        hf=suite_file(model="hf", pretrained="Qwen/Qwen2.5-7B"),
        ours=suite_file(n_masks=2),
        llada=suite_file(model="some_diffusion_model", pretrained="x"),
        slots=suite_file(model="hf", variant="_slot", group="mdlm_slot"),
    )
    assert "states no mask count for its few-shot tasks" in reasons(found)["llada.json"]
    assert "whose slots need masks" in reasons(found)["slots.json"]
    (section,) = found.sections
    assert {row.who.family for row in section.rows} == {"autoregressive", "llada"}


def test_what_a_server_decoded_is_set_apart_and_marks_what_is_unknown(tmp_path: Path) -> None:
    ours, theirs = suite_file(n_masks=2), served(suite_file(n_masks=2))
    found = board(tmp_path, ours=ours, theirs=theirs, bench=served(gsm8k_file(), version="unknown"))
    main, apart, benchmarks = found.sections
    assert apart.title == f"{main.title}, served by sglang 0.5.23"
    assert apart.why_apart == "decoded by a server (sglang 0.5.23)"
    assert benchmarks.title == "Benchmarks, served by sglang, version unknown"
    (row,) = rows(apart)
    n = sum(value == "unknown" for value in theirs["config"]["mdlm"]["settings"][0]["options"].values())
    assert listed(row.who.decoding) == f"{n} settings unknown", "neither steps nor an order is claimed"
    assert list(row.curve("masks")) == [2]
    assert listed(rows(main)[0].who.decoding) == "steps=1, bfloat16"


def test_masks_of_a_block_diffusion_model_are_those_asked_for(tmp_path: Path) -> None:
    def file(n: int) -> dict[str, Any]:
        record = {"masks": [n + 7, n + 7], "steps": [n, n], "block_length": [8, 8], "masks_in_block": [7, 7]}
        return suite_file(n_masks=n, task_record=record, steps="auto")

    (row,) = rows(board(tmp_path, a=file(2), b=file(200)))
    assert list(row.curve("masks")) == [2, 200]
    assert listed(row.who.decoding) == "a step per token, unmasking=confidence, block_length=8, bfloat16"
    record = {"block_length": [4, 4], "cost": {"seconds": 2638, "canvases": 1}}
    arc: dict[str, Any] = {"metrics": {"arc": {"acc,none": 0.5}}, "output_type": "multiple_choice"}
    scored = rows(board(tmp_path / "scored", a=result_file(**arc), b=result_file(**arc, task_record=record)))
    assert [one.name for row in scored for one in row.who.other if one.name != "dtype"] == ["block_length"]
    assert "speed     2 s per request" in show(tmp_path / "scored" / "b.json")


def test_unreadable_files_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    other_layout, partial = suite_file(n_masks=10), suite_file(n_masks=50)
    del other_layout["config"]["mdlm"]["settings"]
    partial["n-samples"]["mdlm_verb_largest"]["effective"] = 10
    found = board(tmp_path, cut='{"results"', other={"accuracy": 1}, old=other_layout, part=partial, good=suite_file())
    assert len(rows(found)) == 1
    assert "cannot be read as JSON" in reasons(found)["cut.json"]
    assert "is no result file of lm-eval" in reasons(found)["other.json"]
    assert "differs from what this version reads (config.mdlm.settings: Field required)" in reasons(found)["old.json"]
    assert "answers 10 of 1000 questions of 'mdlm_verb_largest' without a --limit" in reasons(found)["part.json"]
    with pytest.raises(OptionError, match="holds no usable result file"):
        board(tmp_path / "none", cut="{")


def test_a_benchmark_column_says_what_its_prompts_were(tmp_path: Path) -> None:
    likelihood = result_file({"arc": {"acc,none": 0.5, "perplexity,none": 7.25}}, output_type="multiple_choice")
    (section,) = board(tmp_path, a=gsm8k_file(), b=gsm8k_file(0.6, shots=0, pretrained="x"), c=likelihood).sections
    assert section.benchmark_names == [
        "arc v3.0 (acc, 5-shot)",
        "arc v3.0 (perplexity, 5-shot)",
        "gsm8k v3.0 (exact_match,flexible-extract, 0-shot)",
        "gsm8k v3.0 (exact_match,flexible-extract, 5-shot)",
    ]
    ours = next(row for row in section.rows if row.who.model == "organisation/model")
    assert [one.in_words for one in ours.benchmarks.values()] == ["50.0 (47.6 to 52.4)", "50.0", "7.25"]
    one, other = (suite_file(n_masks=n) | {"chat_template": "x", "fewshot_as_multiturn": n > 2} for n in (2, 200))
    assert len(rows(board(tmp_path / "chats", one=one, other=other))) == 2, "examples in one turn or in several"


def test_a_group_stands_for_its_tasks(tmp_path: Path) -> None:
    metrics = {f"mmlu_{name}": {"acc,none": score} for name, score in (("law", 0.4), ("art", 0.6))}
    (row,) = rows(board(tmp_path, a=result_file(metrics, group="mmlu", output_type="multiple_choice")))
    assert {name: one.mean for name, one in row.benchmarks.items()} == {"mmlu v3.0 (acc, 5-shot)": 0.5}


def test_the_command_can_be_pasted(tmp_path: Path) -> None:
    content = gsm8k_file(pretrained="organisation/model", n_masks=64)
    content["config"]["gen_kwargs"] = {"until": ["a", "b"]}
    path = write(tmp_path, a=content, b=suite_file(relevant=5, limit=10)) / "a.json"
    words = shlex.split(command_of(read_result_file(path)))
    assert words[:5] == ["lm_eval", "--model", "mdlm", "--model_args", "pretrained=organisation/model,n_masks=64"]
    rest = """--tasks gsm8k --gen_kwargs '{"until": ["a", "b"]}' --num_fewshot 5 --batch_size 8"""
    assert words[5:] == shlex.split(rest)
    suite = command_of(read_result_file(tmp_path / "b.json"))
    assert "--tasks mdlm_context --metadata fewshot_relevant=5 --limit 10" in suite


def test_the_committed_results_are_all_used() -> None:
    found = committed_board()
    assert found.scores.refused == ()
    assert {path for row in rows(found) for path in row.files} == set(found.scores.files)
    assert {row.who.source for row in rows(found)} == {"measured here"}


def sweep(model: str, losses: dict[int, float], *, at_best: float = 0.8, **changes: Any) -> dict[str, Any]:
    """A file per mask count -> points lost there."""
    return {
        "-".join(map(str, (model, n, *changes.values()))).replace("/", "-"): suite_file(
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
    assert [one.head for one in section.columns][:3] == [
        "at 200 masks (%)",
        "at 2 masks (%)",
        "drop, 2 to 200 masks (points)",
    ]
    assert column(board, "loss", base).mean == pytest.approx(14)
    lines = mask_lines(section)
    assert [one.who.recipe for one in lines] == ["", "MA (CE + TV)", "SFT"], "all that were fine-tuned"
    said = masks_finding(section)
    assert "of base falls from 79.0% to 65.0%. Its adapters raise this to 76.0% (MA (CE + TV), median" in said
    assert said.endswith("of 2 seeds) and 74.0% (SFT).")
    assert "interval of the drop is 13.0 to 15.0 points for org/base" in after_table(section)
    _, drawn = headline(section)
    assert [line.name for line in drawn if line.name != "org/other"] == ["MA (CE + TV)", "SFT", "org/base"]
    assert {line.name for line in drawn} >= {row.who.model for row in section.rows if not row.who.adapter} - {"org/ar"}


def test_without_2_and_200_masks_the_pair_is_of_counts_that_all_have(tmp_path: Path) -> None:
    contents = sweep("a", {1: 0.0, 4: 0.0, 64: 0.1, 128: 0.2}) | sweep("b", {1: 0.0, 4: 0.0, 64: 0.1}, weights="b")
    board = read_board(write(tmp_path, **contents))
    assert board.sections[0].pair == (4, 64)
    one = read_board(write(tmp_path / "one", a=suite_file(n_masks=10)))
    assert [column.name for column in one.sections[0].columns] == ["most"]
    assert masks_finding(one.sections[0]) == ""


def test_rows_are_ranked_at_200_masks_and_share_ranks_within_the_interval(tmp_path: Path) -> None:
    board = study(tmp_path)
    ranks = [(str(one.who), one.rank) for one in board.sections[0].rows]
    assert ranks == [
        ("org/ar", "1="),
        # Of two seeds nothing can be told, so the row differs from no other.
        ("org/base + MA (CE + TV), median of 2 seeds", "1="),
        ("org/base + SFT", "2"),
        ("org/base", "3="),
        ("org/other", "3="),  # a point below, where 1.05 are significant without Holm's correction
    ]


def test_a_table_of_two_rows_shows_no_ranks(tmp_path: Path) -> None:
    """Two models were often chosen, such as the built-in ones, and are no competition."""
    found = board(tmp_path, one=suite_file(pretrained="org/one"), other=suite_file(pretrained="org/other"))
    said = markdown(found, [])
    assert "| model | at " in said
    assert not [words for words in ("rank", "Ranked") if words in said]
    assert "| rank | model |" in markdown(study(tmp_path / "study"), [])


def test_seeds_of_one_recipe_are_one_row_their_median(tmp_path: Path) -> None:
    board = study(tmp_path)
    mean = row(board, "org/base + MA (CE + TV), median of 2 seeds")
    assert [seed.who.adapter for seed in mean.seeds] == ["MA (CE + TV), seed 0", "MA (CE + TV), seed 1"]
    assert mean.curve("masks")[200].mean == pytest.approx(0.76)
    assert len(mean.files) == 4
    other = sweep("org/base", {2: 0.0, 200: 0.02}, adapter="MA (CE + TV), seed 2", weights="others")
    apart = read_board(write(tmp_path, **other))
    mean = row(apart, "org/base (org/bas) + MA (CE + TV), median of 2 seeds")
    assert len(mean.seeds) == 2, "seeds over other weights are of another recipe"


def test_a_loss_is_told_apart_into_reading_and_the_end_of_text(tmp_path: Path) -> None:
    """At 200 masks 40% are right, 10% another label and half EOS, of which three in five would be right."""
    few, many = "R" * 10, "RRRRWEEEee"
    for seed in (0, 1):
        name = f"MA (CE + TV), seed {seed}"
        for n_masks, letters in ((2, few), (200, many)):
            record = {"first_token": {"letters": letters, "entropy": 0.5}}
            file = suite_file(n_masks=n_masks, limit=10, adapter=name, task_record=record)
            write(tmp_path, **{f"{seed}-{n_masks}": file})
    board = read_board(tmp_path)
    (mean,) = board.sections[0].rows
    parts = mean.curve("masks")[200].decomposition
    assert parts
    assert parts.in_words == "40.0% as decoded, 70.0% among letters, 50.0% EOS, entropy 0.50"
    assert parts.shares["among_labels"].seeds == (0.7, 0.7)
    (among, eos) = (column(board, name, mean) for name in ("among_labels", "eos"))
    assert (among.mean, eos.mean) == (pytest.approx(70), pytest.approx(50))
    assert (among.low, among.values) == (None, pytest.approx((70, 70)))
    table = points(board).query("measure == 'masks' and x == 200")
    assert table["share_among_labels"].tolist() == pytest.approx([0.7] * 3)
    (shown,) = (line for line in show(tmp_path / "0-200.json") if line.startswith("answers"))
    assert shown == "answers   200 masks: 40.0% as decoded, 70.0% among letters, 50.0% EOS, entropy 0.50"


def test_names_leave_out_the_seed_if_each_adapter_has_one(tmp_path: Path) -> None:
    def names(**contents: Any) -> set[str]:
        (section,) = board(tmp_path, **contents).sections
        table, found = markdown(board(tmp_path)), {str(section.who(one)) for one in section.rows}
        assert all(f" | {name} | " in table for name in found)
        assert ("All rows: steps=1, bfloat16, one seed each." in table) == section.has_one_seed
        return found

    first = {name: suite_file(pretrained="m", adapter=name) for name in ("A, seed 0", "B, seed 3")}
    assert names(**first, m=suite_file(pretrained="m")) == {"m", "m + A", "m + B"}
    assert set(points(board(tmp_path))["adapter"]) == {"", *first}, "the CSV has the seeds"
    second = suite_file(pretrained="m", adapter="A, seed 1")
    assert names(second=second) == {"m", "m + A, median of 2 seeds", "m + B, seed 3"}
    assert "Of fewer than 8 trained models all values are shown and no interval" in markdown(board(tmp_path))
    for steps in (1, 2):
        apart = suite_file(pretrained="n", adapter=f"A, seed {steps}", steps=steps)
        (section,) = board(tmp_path / "apart", **{str(steps): apart}).sections
    assert {str(section.who(one)) for one in section.rows} == {"n + A, seed 1", "n + A, seed 2"}


@pytest.mark.parametrize(("recipes", "rows"), [(("a", "a"), 1), (("a", "b"), 2), (("", ""), 2), (("a", ""), 2)])
def test_only_runs_whose_recipes_are_equal_without_the_seed_are_seeds(
    tmp_path: Path, recipes: tuple[str, str], rows: int
) -> None:
    """Twenty steps and a full run are named alike; so are adapters whose recipe no card records."""
    files = {
        f"s{seed}": suite_file(pretrained="m", adapter=f"A, seed {seed}", adapter_recipe=recipe)
        for seed, recipe in enumerate(recipes)
    }
    (section,) = board(tmp_path, **files).sections
    assert [str(one.who) for one in section.rows] == (
        ["m + A, median of 2 seeds"] if rows == 1 else ["m + A, seed 0", "m + A, seed 1"]
    )


def test_points_that_not_all_seeds_have_are_in_no_mean(tmp_path: Path) -> None:
    contents = sweep("m", {2: 0.0, 200: 0.1}, adapter="A, seed 0") | sweep("m", {200: 0.2}, adapter="A, seed 1")
    (mean,) = read_board(write(tmp_path, **contents)).sections[0].rows
    assert list(mean.curve("masks")) == [200]
    assert list(mean.seeds[0].curve("masks")) == [2, 200]


def test_seeds_have_the_notes_and_marks_of_all(tmp_path: Path) -> None:
    fault = {"verdict": "fault: the logits differ", "stale": []}
    contents = {
        f"s{seed}": gsm8k_file(adapter=f"A, seed {seed}", adapter_recipe="r", task_record={"endings": endings})
        for seed, endings in enumerate(({"unfinished_thinking": 1}, {"unfinished_thinking": 3}))
    }
    contents["s1"]["config"]["mdlm"]["check"] = fault
    (row,) = board(tmp_path, **contents).sections[0].rows
    (estimate,) = row.benchmarks.values()
    assert (estimate.note, list(row.marks)) == ("4 unfinished", ["fault"])


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
    assert [(name, *numbers[:3]) for name, numbers in found.rows.items()] == [
        ("a", pytest.approx(81.833, abs=1e-3), pytest.approx(68.5), pytest.approx(20)),
        ("b", pytest.approx(76.833, abs=1e-3), pytest.approx(73.5), pytest.approx(5)),
        ("c", pytest.approx(51.833, abs=1e-3), pytest.approx(48.5), pytest.approx(10)),
    ]
    assert found.taus == pytest.approx([1 / 3, 1, 1 / 3])
    assert "a row is above chance in 0, 1, 2, and Kendall's tau between rankings by these is 0.56, at least 0.33." in (
        found.in_words
    )
    first, second = found.neighbours
    assert (first[:3], second[:3]) == (("a", "b", pytest.approx(2 / 3)), ("b", "c", 1))
    assert first[3].mean == pytest.approx(5)
    assert first[3].half_width == pytest.approx(4.3026527 * np.std([10, -5, 10], ddof=1) / 3**0.5)


def marks(section: Section) -> dict[str, str]:
    return {one.label: next(iter(one.benchmarks.values())).mark for one in section.rows}


def test_a_folder_of_settings_has_a_row_each_and_its_frontier_marked(tmp_path: Path) -> None:
    board = read_board(six_cells(tmp_path))
    (section,) = board.sections
    assert board.main is None
    assert section.common == "bfloat16"
    assert [(one.rank, *section.settings_of(one)) for one in section.rows] == [
        ("1=", "256", "–"),
        ("1=", "auto", "0.9"),
        ("1=", "128", "–"),
        ("2", "auto", "0.7"),
        ("4", "64", "–"),
        ("5", "auto", "0.6"),
    ]
    assert marks(section) == {
        "steps=256": "hollow",
        "confidence_threshold=0.9": "hollow",
        "steps=128": "near",
        "confidence_threshold=0.7": "on",
        "steps=64": "",
        "confidence_threshold=0.6": "",
    }
    (said,) = speed_findings(section, section.benchmark_names[0])
    assert said == "confidence_threshold=0.7 is 5.1 times faster and 5.0 (1.7 to 8.3) points worse than steps=256."
    first = section.rows[0]
    costs = {name: first.cost(name) for name in ("tokens_per_pass", "tokens_per_second", "seconds", "memory_gib")}
    assert [*costs.values()] == [pytest.approx(100 / 256), pytest.approx(100 / 2.56), pytest.approx(2.56), 2.0]
    assert section.costs == ["tokens_per_pass", "tokens_per_second", "memory_gib"], "seconds say the same"


def test_exact_settings_and_approximate_caches_have_a_frontier_and_a_finding_each(tmp_path: Path) -> None:
    """Three settings take one token a pass, the worst of them with a cache."""
    cells = {
        "whole": gsm8k_file(0.76, passes=100, steps=16),
        "blocks": gsm8k_file(0.80, passes=100, block_length=8),
        "fast": gsm8k_file(0.74, passes=50, steps=8),
        "faster": gsm8k_file(0.70, passes=20, steps=4),
        "dual": gsm8k_file(0.60, passes=90, block_length=8, cache="dual"),
        "dual-fast": gsm8k_file(0.50, passes=10, block_length=8, cache="dual", steps=2),
    }
    (section,) = read_board(write(tmp_path, **cells)).sections
    assert marks(section) == {
        "block_length=8": "on",
        "steps=16": "",
        "steps=8": "on",
        "steps=4": "on",
        "block_length=8, cache=dual": "on",
        "steps=2, block_length=8, cache=dual": "on",
    }
    assert speed_findings(section, section.benchmark_names[0]) == [
        "steps=4 is 5.0 times faster and 10.0 (6.7 to 13.3) points worse than block_length=8.",
        "steps=2, block_length=8, cache=dual is 10.0 times faster and 30.0 (26.7 to 33.3) points worse than "
        "block_length=8.",
    ]


def test_one_exact_setting_and_one_cache_are_a_finding(tmp_path: Path) -> None:
    """Neither has another on its frontier. Seconds depend on what else the machine did, positions do not."""
    for cache, score, positions, seconds in (("auto", 0.8, 150, 3.0), ("dual", 0.7, 75, 2.0)):
        spent = {"forward_passes": 100, "answer_tokens": 100, "layer_tokens": 100 * positions, "seconds": seconds}
        record = {"cost": spent, "requests": 1319, "cache": cache.replace("auto", "none")}
        write(tmp_path, **{cache: gsm8k_file(score, cache=cache, block_length=8, task_record=record)})
    (section,) = read_board(tmp_path).sections
    assert marks(section) == {"organisation/model": "on", "cache=dual": "on"}
    assert [section.settings_of(row) for row in section.rows] == [["none"], ["dual"]], "those in effect"
    assert speed_findings(section, section.benchmark_names[0]) == [
        "cache=dual is 2.0 times faster by positions per token (1.5 times by the clock) and 10.0 (6.7 to 13.3) points "
        "worse than the defaults."
    ]


def test_blocks_that_hold_all_masks_are_said_to_be_one(tmp_path: Path) -> None:
    cells = {f"b{length}": gsm8k_file(masks=16, block_length=length) for length in (8, 16, 32)}
    (section,) = read_board(write(tmp_path, **cells)).sections
    assert {row.label: [*row.marks] for row in section.rows} == {
        "block_length=8": [],
        "block_length=16": ["one block, as any longer"],
        "block_length=32": ["one block, as any longer"],
    }


def test_a_board_of_positions_alone_shows_these_and_ranks_nothing(tmp_path: Path) -> None:
    of_rules = {"start": "mdlm_rules_", "n_masks": 50, "limit": 4}
    shown = board(
        tmp_path,
        **{f"p{n}": suite_file(variant=f"_pos{n}", group=f"mdlm_rules_position_pos{n}", **of_rules) for n in (0, 40)},
    )
    said = markdown(shown)
    assert "| model | after 0 distractors, 50 masks (%) | after 40 distractors, 50 masks (%) |" in said
    assert "answers with a letter (64 questions; chance: 33.3%)." in said
    assert not [words for words in ("rank", "Ranked", "mdlm_position", "n = ") if words in said]


def test_the_newest_comparison_leads_unless_results_are_full(tmp_path: Path) -> None:
    """Not a larger table of one score, which a quick start left."""
    quick = {"quick": suite_file(n_masks=200, limit=50)}
    of_sweep = {
        f"{n}{adapter}": suite_file(n_masks=n, limit=10, adapter=adapter) for n in (2, 200) for adapter in (None, "a")
    }
    assert [one.setting.limit for one in board(tmp_path, **quick, **of_sweep).sections] == [10, 50]
    again = {f"later{n}": suite_file(n_masks=n, limit=20) | {"date": 2e9} for n in (2, 200)}
    assert [one.setting.limit for one in board(tmp_path, **again).sections] == [20, 10, 50]
    assert board(tmp_path, full=suite_file(n_masks=2)).sections[0].setting.limit is None


def test_what_is_apart_for_reasons_of_its_own_is_folded(tmp_path: Path) -> None:
    """Tables that share the first table's reason do not: a sweep with --limit is shown whole."""
    settings = [{"limit": 100}, {"limit": 100, "start": "mdlm_rules_", "group": "mdlm_rules"}, {"limit": 50}]
    shown = board(tmp_path, **{f"s{n}": suite_file(n_masks=2, **one) for n, one in enumerate(settings)})
    assert [shown.is_apart(section) for section in shown.sections] == [False, False, True]
    page = markdown(shown)
    assert page.count("<details><summary>") == page.count("</details>") == 1
    assert page.index("--limit 100") < page.index("<details>") < page.index("--limit 50")


def test_a_caches_speed_is_positions_through_the_layers_where_machines_differ(tmp_path: Path) -> None:
    for n, (cache, positions) in enumerate({"none": 153, "prefix": 107, "dual": 75}.items()):
        spent = {"forward_passes": 100, "answer_tokens": 100, "layer_tokens": 100 * positions, "seconds": 3.0 - n}
        file = gsm8k_file(0.8 - n / 10, cache=cache, block_length=8, task_record={"cost": spent, "requests": 1319})
        file["config"]["mdlm"]["batch_size"] = n
        write(tmp_path, **{cache: file})
    (section,) = read_board(tmp_path).sections
    assert [row.cost("positions_per_token") for row in section.rows] == [153, 107, 75]
    (said,) = speed_findings(section, section.benchmark_names[0])
    assert said.startswith("cache=dual is 2.0 times faster by positions per token and 20.0 (")


def paired(folder: Path) -> Path:
    """Settings of gsm8k with samples: right in 120 questions of 200, in 112 of these, and in 110, 20 of them others."""
    right = {16: range(120), 8: range(112), 4: [*range(90), *range(140, 160)]}
    for steps, own in right.items():
        content = gsm8k_file(len(own) / 200, steps=steps, passes=steps, asked=200, limit=200)
        write_answers(folder, f"s{steps}", content, [float(n in own) for n in range(200)])
    return folder


def test_differences_to_a_baseline_and_hollow_points_are_of_paired_questions(tmp_path: Path) -> None:
    """The intervals of 120 and 112 overlap by far; of their difference eight questions decide."""
    board = read_board(paired(tmp_path))
    shown = markdown(board, baseline="steps=16")
    for cell in ("| 60.0 (53.0 to 66.6) ◆ |", "| 56.0, -4.0 (-6.9 to -1.1) ◇ |", "| 55.0, -5.0 (-12.0 to +2.0) ◇ |"):
        assert cell in shown
    assert "Differences in points are from steps=16, paired by question." in shown
    assert board.sections[0].baseline("steps=9") is None


def test_guests_and_checked_results_are_marked(tmp_path: Path) -> None:
    """A guest may have a cache of its own, so it is on no frontier of exact settings."""
    guest, checked, stale = (gsm8k_file(0.7, passes=n, steps=n) for n in (10, 20, 40))
    plugin = {"name": "mine.py", "sha256": "0123456789", "registers": ["sampler=mine.py:generate"], "guest": True}
    mdlm = guest["config"]["mdlm"]
    mdlm |= {"plugins": [plugin]}
    mdlm["settings"][0]["options"] |= {"sampler": "mine.py:generate"}
    check = {"file": "c.json", "verdict": "no fault, compared logits", "stale": [], "noise_floor": None}
    checked["config"]["mdlm"]["check"] = check
    stale["config"]["mdlm"]["check"] = check | {"stale": ["options"]}
    write(tmp_path, guest=guest, checked=checked, stale=stale)
    board = read_board(tmp_path)
    found = {row.files[0]: row for row in rows(board)}
    assert found["guest.json"].marks == {"guest": "external code: sampler=mine.py:generate (guest, mine.py 01234567)"}
    assert found["checked.json"].marks == {"checked": "mdlm-check: no fault, compared logits"}
    assert found["stale.json"].marks == {"stale check": "mdlm-check: no fault, compared logits; stale: other options"}
    assert not is_exact(found["guest.json"])
    shown = markdown(board)
    assert "| organisation/model (guest) |" in shown
    assert "| organisation/model (checked) |" in shown
    table = load(tmp_path, columns="all").set_index("file")
    assert table["is_guest"].to_dict() == {"guest.json": True, "checked.json": False, "stale.json": False}


def test_parallel_benchs_pb90_is_over_all_tasks_and_counts_what_was_asked_for(tmp_path: Path) -> None:
    """A mean of 95 with 1.28 tokens an evaluation, of 90.5 with 5.12; one task alone would be below."""
    for k, scores in ((1, (0.99, 0.91)), (4, (0.98, 0.83))):
        tasks = zip(("mdlm_parallel_copy", "mdlm_parallel_shuffle"), scores, strict=True)
        metrics = {name: {"exact_match,none": score} for name, score in tasks}
        file = result_file(metrics, group="mdlm_parallel", shots=0, passes=100 // k, steps=64 // k)
        for record in file["config"]["mdlm"]["tasks"].values():
            record["cost"]["written_tokens"] = 128 * record["requests"]
        write(tmp_path, **{f"k{k}": file})
    (section,) = read_board(tmp_path).sections
    found = {name: one.parallel_bench for name, one in section.rows[0].benchmarks.items()}
    assert found["parallel v3.0 (exact_match, 0-shot)"] == {90: pytest.approx(5.12), 95: pytest.approx(1.28)}
    assert found["copy v3.0 (exact_match, 0-shot)"] == {}


def test_the_csv_is_tidy(tmp_path: Path) -> None:
    board = study(tmp_path)
    table = points(board)
    masks = table[(table["measure"] == "masks") & (table["adapter"] == "MA (CE + TV), seed 1")]
    assert masks.set_index("x")["value"].to_dict() == pytest.approx({2: 0.78, 200: 0.75})
    assert set(table["rank"]) == {"1=", "2", "3=", ""}, "seeds have none"
    losses = table[table["measure"] == "loss"].set_index("id")["value"]
    assert losses[row(board, "org/base").id] == pytest.approx(14)
