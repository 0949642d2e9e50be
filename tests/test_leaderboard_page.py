"""The leaderboard's page, read as HTML; tests/test_leaderboard_browser.py opens it in a browser."""

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from mdlm_leaderboard.figures import figures_of
from mdlm_leaderboard.page import write_page
from mdlm_leaderboard.page.columns import ColumnGroup, column_groups, overview
from mdlm_leaderboard.page.curve_tables import curve_tables
from mdlm_leaderboard.page.per_task import compared_numbers, heat_map
from mdlm_leaderboard.page.provenance import provenance_of
from mdlm_leaderboard.page.write import weights_url
from mdlm_leaderboard.ranking import at_worst, ranked, ranked_by, shared_counts
from mdlm_leaderboard.rows import Board, LeaderboardRow, Refused, Section
from mdlm_leaderboard.seeds import folded, seeds_of
from mdlm_lm_eval.results.statistics import t_interval
from mdlm_lm_eval.results.suite import current_version
from tests.leaderboard_boards import MASKS, estimate, published_row, row, run, sample_board
from tests.leaderboard_files import TASKS

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
VOID = {"meta", "link", "input", "img", "br", "wbr", "source"}


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.raw: dict[str, str] = {}
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
        else:
            self.text += data

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def page_of(board: Board, output: Path) -> Page:
    path = write_page(board, output)
    assert path == output / "index.html"
    return Page(path.read_text(encoding="utf-8"))


def hostile_board() -> Board:
    made = replace(run("x"), path=HOSTILE, command=HOSTILE, settings={HOSTILE: HOSTILE}, versions={HOSTILE: HOSTILE})
    bad = row(
        HOSTILE, id="bad", adapter=HOSTILE, family=HOSTILE, unmasking=HOSTILE, other=HOSTILE, steps=HOSTILE,
        citation=HOSTILE, benchmarks={HOSTILE: estimate(0.5)}, runs=(made,),
    )  # fmt: skip
    return Board((Section(HOSTILE, HOSTILE, (bad, row("good"))),), (Refused(HOSTILE, HOSTILE),))


def test_every_row_has_its_numbers_command_settings_and_versions(tmp_path: Path) -> None:
    board = sample_board()
    page = page_of(board, tmp_path)
    text = " ".join(page.text.split())
    bodies = [attributes.get("id") for attributes in page.named("tbody")]
    assert sorted(filter(None, bodies)) == sorted(one.id for one in board.rows)
    for one in board.rows:
        assert one.model in text
        for made in one.runs:
            assert made.command in text
            assert made.path in text
            for name, value in {**made.settings, **made.versions}.items():
                assert f"{name}\n{value}" in page.text or f"{name}{value}" in page.text or f"{name} {value}" in text
    assert "87.4 ±3.0" in text  # LLaDA-8B-Base at one mask
    head = f"Few-shot suite {current_version()}, --limit 50 Set apart: --limit 50 leaves out questions. Ranked by the "
    assert head in text
    assert "broken.json: is no JSON: it ends in the middle" in text


def test_published_rows_are_marked_and_cite_their_source(tmp_path: Path) -> None:
    page = page_of(sample_board(), tmp_path)
    assert 'Published, not measured here: Authors, "A Paper", figure 4.' in page.text
    assert 'Sources: 1 Authors, "A Paper", figure 4.' in page.text


def test_the_page_shows_and_links_every_figure(tmp_path: Path) -> None:
    page = page_of(sample_board(), tmp_path)
    stems = [figure.stem for figure in figures_of(sample_board())]
    assert [image["src"] for image in page.named("img")] == [
        "figures/masks-light.svg",
        *(f"{stem}.svg" for stem in stems),
    ]
    dark = [source["srcset"] for source in page.named("source") if "dark" in (source["media"] or "")]
    assert dark[2:] == [f"{figure.dark_stem}.svg" for figure in figures_of(sample_board())]
    links = {link["href"] for link in page.named("a")}
    assert {f"{stem}.{suffix}" for stem in stems for suffix in ("svg", "png")} <= links
    assert all(image["alt"] for image in page.named("img"))


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    page = page_of(sample_board(), tmp_path)
    for tag, attributes in page.tags:
        for name in ("src", "action", "srcset", *(["href"] if tag != "a" else [])):  # a link is followed when wanted
            assert not re.match(r"(\w+:)?//|https?:", attributes.get(name) or "")
    assert "url(" not in page.raw["style"]
    assert "@import" not in page.raw["style"]
    assert "fetch(" not in page.raw["script"]


def test_text_out_of_files_is_shown_and_never_run(tmp_path: Path) -> None:
    page = page_of(hostile_board(), tmp_path)
    assert len(page.named("script")) == 1
    assert page.named("img") == [image for image in page.named("img") if (image["src"] or "").startswith("figures/")]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    assert page.text.count(HOSTILE) >= 10
    assert next(body for body in page.named("tbody") if body.get("id") == "bad")["data-family"] == HOSTILE


def test_the_content_security_policy_allows_this_script_and_style_only(tmp_path: Path) -> None:
    page = page_of(hostile_board(), tmp_path)
    policy = next(meta["content"] for meta in page.named("meta") if meta.get("http-equiv")) or ""
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.raw[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_tables_are_made_for_screen_readers(tmp_path: Path) -> None:
    page = page_of(sample_board(), tmp_path)
    assert len(page.named("caption")) == len(page.named("table")) == 5  # sections, compared rows, heat map
    assert {head["scope"] for head in page.named("th")} == {"col", "colgroup", "row"}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for region in page.named("div"):
        if region.get("role") == "region":
            assert region["tabindex"] == "0"
            assert region["aria-labelledby"] in ids
    assert all(chart["aria-label"] for chart in page.named("svg") if chart.get("role") == "img")


def test_a_thousand_rows_make_a_page_that_can_be_sent(tmp_path: Path) -> None:
    rows = tuple(row(f"organisation/model-{n}", is_full=False) for n in range(1000))
    path = write_page(Board((Section("Suite", "", rows),), ()), tmp_path)
    assert path.stat().st_size < 10e6


def test_no_head_is_empty_and_no_heading_skips_a_level(tmp_path: Path) -> None:
    html = write_page(sample_board(), tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"<th[^>]*>\s*</th>", html)
    levels = [int(level) for level in re.findall(r"<h([1-6])", html)]
    assert levels[0] == levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_measured_full_results_stand_first_and_the_rest_behind_a_switch(tmp_path: Path) -> None:
    page = page_of(sample_board(), tmp_path)
    sections = [(div["class"] or "").split() for div in page.named("div") if "section" in (div.get("class") or "")]
    assert [("apart" in classes) for classes in sections] == [False, True, False]
    assert "There are no full results" not in page.text
    limited = page_of(Board(sample_board().sections[1:], ()), tmp_path)
    assert "There are no full results of the current suite yet" in limited.text
    sections = [(div["class"] or "").split() for div in limited.named("div") if "section" in (div.get("class") or "")]
    assert [("apart" in classes) for classes in sections] == [False, False]


@pytest.mark.parametrize(
    ("model", "url"),
    [
        ("GSAI-ML/LLaDA-8B-Base", "https://huggingface.co/GSAI-ML/LLaDA-8B-Base"),
        ("built-in", ""),
        ("../out", ""),
        ("a/b/c", ""),
        ("javascript:alert(1)/x", ""),
        ("a/b?c", ""),
    ],
)
def test_hub_ids_lead_to_their_weights(model: str, url: str) -> None:
    assert weights_url(model) == url


def masked(name: str, **accuracies: float) -> LeaderboardRow:
    """With an accuracy for each mask count, such as n2=0.8."""
    return row(name, is_full=False, masks={int(n[1:]): estimate(mean) for n, mean in accuracies.items()})


def test_rows_are_ranked_by_their_worst_accuracy_over_the_mask_counts_that_all_have() -> None:
    falls, holds = masked("falls", n2=0.9, n200=0.5), masked("holds", n2=0.8, n200=0.7)
    assert [one.model for one in ranked([falls, published_row(), holds])] == ["holds", "falls", "LLaDA-8B-Base"]
    assert ranked_by(shared_counts([falls, published_row(), holds])) == (
        "Ranked by the worst accuracy over the mask counts that all rows with masks share: 2, 200."
    )
    rows = [falls, holds, masked("at two", n2=0.85, n50=0.1), masked("without", n0=0.82)]
    assert [one.model for one in ranked(rows)] == ["falls", "at two", "without", "holds"], "of 2 masks, which all have"
    assert shared_counts(rows) == (2,)
    assert (at_worst(falls, (2,)).note, at_worst(falls, (2, 200)).note) == ("at 2 masks", "at 200 masks")
    assert (at_worst(rows[3], (2,)).text, at_worst(rows[3], (2,)).note) == ("82.0", "no masks")
    apart = [masked("a", n2=0.7, n10=0.5), masked("b", n50=0.6)]
    assert [one.model for one in ranked(apart)] == ["b", "a"]
    assert "each row's own mask counts" in ranked_by(shared_counts(apart))


def seed(n: int, **changes: Any) -> LeaderboardRow:
    return row("m", id=f"seed-{n}", adapter=f"MA (CE), seed {n}", start=0.7 + n / 10, drop=n / 10, **changes)


def test_seeds_of_one_recipe_are_one_row_their_mean() -> None:
    other = row("m", id="ce", adapter="CE, seed 0")
    mean, *rest = folded([seed(0), other, seed(1), row("n"), seed(2)])
    assert [one.id for one in rest] == ["ce", "n"]
    assert (mean.id, mean.adapter) == ("seed-0", "MA (CE), mean of 3 seeds")
    assert [one.id for one in seeds_of(mean)] == ["seed-0", "seed-1", "seed-2"]
    at_most = mean.curve("masks")[200]
    assert at_most.mean == pytest.approx(0.7)
    assert at_most.by_task[TASKS[0]] == pytest.approx(
        fmean(seed(n).curve("masks")[200].by_task[TASKS[0]] for n in range(3))
    )
    band = t_interval(list(at_most.by_task.values()))
    assert (at_most.low, at_most.high) == (band.low, band.high)
    assert len(mean.runs) == 3 * len(seed(0).runs)
    assert mean.curves.keys() == seed(0).curves.keys()


def test_rows_that_differ_in_more_than_the_seed_are_not_one() -> None:
    rows = [
        seed(0),
        seed(1, masks={3: estimate(0.5)}),
        seed(2, steps="40"),
        seed(3, other="float32"),
        row("m", adapter="MA (CE)"),
    ]
    assert folded(rows) == rows


def test_seeds_are_one_row_over_the_mask_counts_that_all_have() -> None:
    (mean,) = folded([seed(0), seed(1, masks={2: estimate(0.5), 50: estimate(0.5)})])
    assert sorted(mean.curve("masks")) == sorted(set(seed(0).curve("masks")) & {2, 50})


def test_a_row_of_seeds_opens_to_each_of_them(tmp_path: Path) -> None:
    page = page_of(Board((Section("Suite", "", (seed(0), seed(1), row("n"))),), ()), tmp_path)
    bodies = [body["id"] for body in page.named("tbody") if "entry" in (body.get("class") or "")]
    assert sorted(filter(None, bodies)) == ["n", "seed-0"]
    text = " ".join(page.text.split())
    assert "m + MA (CE), mean of 2 seeds" in text
    assert "MA (CE), seed 0: Masks appended: accuracy (%)" in text
    assert "MA (CE), seed 1: Masks appended: accuracy (%)" in text


def test_the_page_says_which_rows_are_hidden(tmp_path: Path) -> None:
    page = page_of(sample_board(), tmp_path)
    assert [output["data-hidden"] for output in page.named("output")] == ["part of the questions"]
    assert "Also rows of part of the questions" in page.text
    main, limited, published = sample_board().sections
    old = Section("Few-shot suite 1.0", "suite version 1.0 asks other questions", (row("old"),))
    page = page_of(Board((main, limited, old, published), ()), tmp_path)
    assert "Also rows of part of the questions, other suite versions or settings" in page.text
    assert page_of(Board((main, published), ()), tmp_path).named("output")[0]["data-hidden"] == ""


def test_the_heat_map_has_what_each_task_loses() -> None:
    one = row("m", is_full=False, masks={1: estimate(0.8), 200: estimate(0.6)})
    found = heat_map([row("none", masks={}), one])
    assert found is not None
    assert len(found.tasks) == 16
    ((shown, cells),) = found.lines
    assert shown is one
    assert {(cell.text, cell.shade) for cell in cells} == {("19.4", 4), ("19.8", 4), ("20.2", 4), ("20.6", 4)}
    assert heat_map([published_row()]) is None
    assert json.loads(compared_numbers(one))["200"][:2] == [61.8, 60.6]
    autoregressive = row("ar", is_full=False, masks={0: estimate(0.5)})
    assert heat_map([autoregressive]) is None
    assert json.loads(compared_numbers(autoregressive))["0"][:2] == [51.5, 50.5]


def test_a_board_without_curves_refused_files_or_choices_has_a_page(tmp_path: Path) -> None:
    page = page_of(
        Board((Section("Suite", "", (row("m", is_full=False, masks={1: estimate(0.5)}, runs=()),)),), ()), tmp_path
    )
    assert [image["src"] for image in page.named("img")] == ["figures/masks-light.svg"]
    assert not page.named("select")
    assert "Not used" not in page.text


def test_columns_are_those_with_a_value() -> None:
    few = ["best accuracy (%)", "worst accuracy (%)", "drop (points)", "degradation (%)"]
    assert heads(overview([row("m", is_full=False)], MASKS)) == few
    assert heads(overview([row("m")], MASKS)) == [*few, "locality gap (points)"]
    assert heads(overview([published_row()], ())) == ["drop (points)"]
    fast = row("m", is_full=False)
    fast = replace(
        fast, curves={**fast.curves, "tokens_per_forward": {"gsm8k": {1.5: estimate(0.6), 4.0: estimate(0.5)}}}
    )
    assert overview([fast], MASKS).columns[-1].cell(fast).text == "4.00"
    groups = column_groups([row("m", is_full=False)])
    assert [(group.name, heads(group)) for group in groups] == [("masks", ["1", "2", "10", "50", "100", "200"])]
    full = {group.name: heads(group) for group in column_groups([row("m")])}
    assert full["positions-right"] == full["positions-left"] == ["0", "10", "20", "30", "40"]
    assert full["dots"] == ["0", "50", "100", "200", "dots drop (points)"]
    assert full["benchmarks"] == ["gsm8k v3.0"]
    assert {group.name: heads(group) for group in column_groups([published_row()])} == {"dots": ["dots drop (points)"]}


def heads(group: ColumnGroup) -> list[str]:
    return [column.head for column in group.columns]


def test_bands_in_a_ranked_table_are_those_of_differences() -> None:
    one = row("m", is_full=False, masks={2: estimate(0.9, 0.031), 200: estimate(0.675)})
    cells = [column.cell(one) for column in overview([one], (2, 200)).columns]
    assert [(cell.text, cell.band, cell.note) for cell in cells] == [
        ("90.0", "", "at 2 masks"),
        ("67.5", "", "at 200 masks"),
        ("22.5", "0.3", ""),
        ("25.0", "0.3", ""),
    ]
    assert [cell.value for cell in cells] == pytest.approx([0.9, 0.675, 22.5, 25.0])
    points = [column.cell(one) for column in column_groups([one])[0].columns]
    assert [(cell.text, cell.band) for cell in points] == [("90.0", ""), ("67.5", "")]
    other = row("n", is_full=False, masks={50: estimate(0.5)})
    assert column_groups([one, other])[0].columns[0].cell(other).text == "–"


def test_all_numbers_of_a_row_stand_with_its_details() -> None:
    found = curve_tables(row("m"))
    assert [(table.title, [series for series, _ in table.lines]) for table in found] == [
        ("Masks appended", [""]),
        ("Position of the relevant block", ["question left", "question middle", "question right"]),
        ("Position of the relevant block at each mask count", ["n = 2", "n = 50", "n = 100", "n = 200"]),
        ("Dots after the answer", [""]),
        ("Number of distractor examples", ["n = 2", "n = 20%"]),
        ("Standard benchmarks", [""]),
    ]
    assert found[1].heads == ("0", "10", "20", "30", "40", "best minus worst")
    assert [cell.text for cell in found[1].lines[2][1]] == ["77.5", "81.2", "85.0", "88.8", "92.5", "15.0"]
    assert found[1].lines[2][1][0].band == "3.0"
    gaps = [cells[-1] for _, cells in found[2].lines]
    assert [(gap.text, gap.band) for gap in gaps] == [
        ("10.2", "0.1"),
        ("15.0", "0.2"),
        ("20.0", "0.2"),
        ("30.0", "0.4"),
    ]
    assert len(found[-1].heads) == 1, "benchmarks have no gap"
    assert curve_tables(row("m", is_full=False, masks={1: estimate(0.5)})) == []


def test_shared_settings_are_said_once_and_commands_name_their_files() -> None:
    one = row("m", is_full=False)
    made = provenance_of(one)
    assert dict(made.settings) == {"model": "mdlm", "dtype": "bfloat16", "batch_size": "8"}
    assert dict(made.versions) == {"lm_eval": "0.4.13", "torch": "2.13.0"}
    (command,) = made.commands
    assert [dict(file.own) for file in command.files] == [{"n_masks": str(n)} for n in (1, 2, 10, 50, 100, 200)]
    newer = replace(run("m", n_masks=1), command="lm_eval again", versions={"lm_eval": "0.4.14", "torch": "2.13.0"})
    mixed = provenance_of(replace(one, runs=(*one.runs, newer)))
    assert dict(mixed.versions) == {"torch": "2.13.0"}
    assert mixed.commands[1].files[0].own["lm_eval"] == "0.4.14"


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(theme: int) -> None:
    style = files("mdlm_leaderboard.page").joinpath("page.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", block))
    for name in ("ink", "quiet", "link", "focus", "tag"):
        for ground in ("paper", "open"):
            light, dark = sorted((_luminance(colours[name]), _luminance(colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)
