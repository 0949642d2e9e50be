"""The Markdown, CSV and JSON of a board, hostile names included."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mdlm_leaderboard.build import read_board
from mdlm_leaderboard.exports import leaderboard_csv, leaderboard_json
from mdlm_leaderboard.rows import Board
from mdlm_leaderboard.tables import escape, leaderboard_markdown
from mdlm_lm_eval.results.suite import current_version
from tests.leaderboard_files import gsm8k_file, suite_file, write

HOSTILE = "<script>alert(1)</script>| x | [y](javascript:z) `q` \n# head &amp; **b**"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    folder = tmp_path_factory.mktemp("results")
    contents: dict[str, Any] = {f"masks{n}": suite_file(n_masks=n, accuracy=0.85 - n / 1000) for n in (2, 100)}
    contents |= {f"right{n}": suite_file(variant=f"_right_pos{n}", n_masks=None, accuracy=0.6) for n in (0, 40)}
    contents |= {f"dots{n}": suite_file(variant="_slot", n_masks=None, n_fillers=n) for n in (0, 100)}
    contents["e8"] = suite_file(variant="_pos20", n_masks=100)
    contents |= {f"e5{n}": suite_file(n_masks=2, distractors=n, accuracy=0.9) for n in (0, 20)}
    contents["hf"] = suite_file(model="hf", model_args={"pretrained": "gpt2"})
    contents["hostile"] = suite_file(model_args={"pretrained": HOSTILE}, adapter="ma")
    contents["gsm8k"] = gsm8k_file()
    contents["limited"] = suite_file(limit=10)
    contents["broken"] = '{"results": '
    return read_board(write(folder, **contents))


def tables(markdown: str) -> dict[str, list[list[str]]]:
    """Cells of every table, by the heading above it, which has a number where it is not the first of its name."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in markdown.splitlines():
        if line.startswith("#"):
            name = line.lstrip("# ")
            heading = next(one for one in (name, *(f"{name} {n}" for n in range(2, 9))) if one not in found)
        elif line.startswith("| "):
            cells = re.split(r"(?<!\\)\|", line)
            found.setdefault(heading, []).append([cell.strip() for cell in cells[1:-1]])
    return found


def test_every_line_of_a_table_has_the_cells_of_its_head(board: Board) -> None:
    found = tables(leaderboard_markdown(board))
    assert len(found) > 6
    for heading, lines in found.items():
        assert len({len(line) for line in lines}) == 1, heading


def test_each_table_has_one_meaning_of_its_bands_and_says_it(board: Board) -> None:
    markdown = leaderboard_markdown(board)
    found = tables(markdown)
    head, _, *lines = found["Ranking"]
    (line,) = [one for cells in lines if (one := dict(zip(head, cells, strict=True)))["model"] == "built-in"]
    assert (line["best accuracy"], line["worst accuracy"]) == ("84.8 at 2 masks", "75.0 at 100 masks")
    assert (line["drop (points)"], line["degradation (%)"]) == ("9.8 ± 0.0", "11.6 ± 0.0")
    assert (line["locality gap (points)"], line["dots drop (points)"]) == ("0.0 ± 0.0", "0.0 ± 0.0")
    head, _, *lines = found["Masks appended (`mdlm_context`)"]
    (line,) = [one for cells in lines if (one := dict(zip(head, cells, strict=True)))["model"] == "built-in"]
    assert (line["2 masks"], line["100 masks"]) == ("84.8 ± 1.9", "75.0 ± 1.9")
    assert line["autoregressive"] == line["50 masks"] == "–"
    parts = [part.splitlines() for part in markdown.split("\n### ")]
    said = {lines[0]: lines[2] for lines in reversed(parts)}
    assert said["Ranking"].startswith("Ranked by the worst accuracy over ")
    assert "± is half the 95% interval of the difference" in said["Ranking"]
    assert said["Masks appended (`mdlm_context`)"].startswith("± is half the 95% interval over tasks")
    assert said["Standard benchmarks"] == "± is 1.96 standard errors over questions."


def test_positions_dots_distractors_and_benchmarks_have_tables(board: Board) -> None:
    found = tables(leaderboard_markdown(board))
    positions = found["Position of the relevant block (`mdlm_locality`)"]
    assert positions[0][-3:] == ["question", "after 0 distractors", "after 40 distractors"]
    assert positions[2][-3] == "question right"
    assert found["Dots after the answer (`mdlm_slot`)"][0][-2:] == ["0 dots", "100 dots"]
    assert found["Position of the relevant block at each mask count (`mdlm_position`)"][2][5] == "n = 100"
    assert found["Number of distractor examples"][0][-3:] == ["0 distractors", "20 distractors", "40 distractors"]
    assert found["Standard benchmarks"][2][-3:] == [
        r"gsm8k v3.0 (exact\_match,strict-match; 5-shot; autoregressive)",
        "50.0 ± 2.0",
        "1319",
    ]


def test_what_is_set_apart_published_or_not_used_is_said(board: Board) -> None:
    markdown = leaderboard_markdown(board)
    assert "Set apart: --limit 10 leaves out questions." in markdown
    published = tables(markdown)["Published"]
    assert published[2][0] == "LLaDA-8B-Base"
    assert "2511.21338" in published[2][-1]
    assert "- broken.json: is no whole JSON file" in markdown


def test_text_of_result_files_is_shown_and_never_becomes_html_or_markdown(board: Board) -> None:
    markdown = leaderboard_markdown(board)
    tables_only = "".join(line for line in markdown.splitlines() if not line.startswith("    "))
    assert "<script" not in tables_only
    assert not re.search(r"(?<!\\)\]\(javascript", tables_only)
    assert "\n# head" not in markdown
    assert any(r"\*\*b\*\*" in line[0] for line in tables(markdown)["Masks appended (`mdlm_context`)"])
    assert all(line.isprintable() for line in markdown.splitlines())


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a|b", r"a\|b"), ("<b>&", "&lt;b&gt;&amp;"), ("a\nb\x1b[1m", r"a b \[1m"), ("my_model`", r"my\_model\`")],
)
def test_escapes(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_csv_is_tidy(board: Board) -> None:
    lines = list(csv.DictReader(io.StringIO(leaderboard_csv(board))))
    (value,) = [
        line
        for line in lines
        if (line["model"], line["measure"], line["x"], line["limit"]) == ("built-in", "masks", "100", "")
    ]
    assert float(value["value"]) == pytest.approx(0.75)
    assert float(value["low"]) < 0.75 < float(value["high"])
    assert (value["n_tasks"], value["n_questions"], value["suite_version"]) == ("16", "16000", current_version())
    assert {line["measure"] for line in lines} == {
        *("masks", "dots", "positions", "positions_by_masks", "distractors", "benchmarks"),
        *("drop_points", "dots_drop_points", "degradation_percent", "locality_gap_points"),
    }
    assert any(line["model"].startswith("<script>") for line in lines)


def test_json_holds_rows_runs_and_refusals(board: Board) -> None:
    content = json.loads(leaderboard_json(board))
    (row,) = [row for row in content["sections"][0]["rows"] if row["model"] == "built-in"]
    assert round(row["curves"]["masks"][""]["100"]["mean"], 4) == 0.75
    assert round(row["drop_points"]["mean"], 4) == 9.8
    assert row["runs"][0]["command"].startswith("lm_eval --model mdlm")
    assert content["refused"][0]["path"] == "broken.json"
    assert content["sections"][-1]["rows"][0]["stated"]["drop_points"] == 23


def test_a_spreadsheet_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    names = ("=HYPERLINK(1)", "+cmd|x", "@SUM(A1)", "-1+1", "plain")
    contents = {f"f{n}": suite_file(model_args={"pretrained": name}) for n, name in enumerate(names)}
    lines = csv.DictReader(io.StringIO(leaderboard_csv(read_board(write(tmp_path, **contents)))))
    found = {line["model"] for line in lines if line["origin"] == "measured"}
    assert found == {"'=HYPERLINK(1)", "'+cmd|x", "'@SUM(A1)", "'-1+1", "plain"}
