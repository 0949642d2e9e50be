"""Which figures a board has, and what is drawn in them."""

import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from mdlm_leaderboard.build import read_board
from mdlm_leaderboard.figures import draw_figures, figures_of, write_headline
from mdlm_leaderboard.figures.headline import line_label
from mdlm_leaderboard.figures.plan import MAX_MODELS, Figure, model_order
from mdlm_leaderboard.figures.style import clipped
from mdlm_leaderboard.headline import headline_of
from mdlm_leaderboard.rows import Board, Estimate, Section
from mdlm_lm_eval.results.figure_style import COLOURS, COLUMN_WIDTH, SETTINGS
from mdlm_lm_eval.results.suite import current_version
from tests.leaderboard_boards import estimate, falling, published_row, row, sample_board
from tests.leaderboard_files import TASKS

ROOT = Path(__file__).parents[1]
ALL = (
    "position",
    "position-by-question",
    "masks",
    "distractors",
    "dots",
    "unmasking",
    "position-by-masks",
    "masks-adapters",
    "position-by-masks-adapters",
)
BASE, INSTRUCT, DREAM = "GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Base-7B"


def board_of(*rows: object) -> Board:
    return Board((Section("Few-shot suite", "", tuple(rows)),), ())  # type: ignore[arg-type]


def figure(board: Board, name: str) -> Figure:
    return next(one for one in figures_of(board) if one.kind.name == name)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    draw_figures(sample_board(), output)
    return output


def test_every_figure_of_a_full_board_is_planned_once_a_section() -> None:
    stems = [one.stem for one in figures_of(sample_board())]
    version = current_version().replace(".", "-")
    assert stems == [*(f"figures/{name}" for name in ALL), f"figures/2-few-shot-suite-{version}-limit-50/masks"]


def test_figures_are_the_papers_1_2_and_4_to_10() -> None:
    assert [one.kind.paper for one in figures_of(sample_board())][:9] == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_there_are_only_figures_for_which_there_is_data() -> None:
    masks_only = board_of(row("m", is_full=False))
    assert [one.kind.name for one in figures_of(masks_only)] == ["masks"]
    assert figures_of(board_of(row("m", is_full=False, masks={200: estimate(0.8)}))) == []
    assert figures_of(board_of(published_row())) == []


def test_the_question_on_the_right_alone_is_no_figure_of_three_questions() -> None:
    positions = {"right": falling(0.9, 0.1, (0, 20, 40))}
    names = [one.kind.name for one in figures_of(board_of(row("m", is_full=False, masks={}, positions=positions)))]
    assert names == ["position"]


def test_settings_never_share_a_figure() -> None:
    main, apart = (one for one in figures_of(sample_board()) if one.kind.name == "masks")
    assert [line.model for line in main.panels[0].lines] == [BASE, INSTRUCT, DREAM, "Qwen/Qwen2.5-7B"]
    assert [line.model for line in apart.panels[0].lines] == [DREAM]


def test_models_as_they_are_and_with_adapters_are_in_figures_of_their_own() -> None:
    board = sample_board()
    assert [(p.model, [line.kind for line in p.lines]) for p in figure(board, "masks-adapters").panels] == [
        (BASE, ["no adapter", "ma-ce-tv", "ma-ce"]),
        (INSTRUCT, ["no adapter", "ma-ce-tv"]),
    ]
    assert [(p.model, p.detail) for p in figure(board, "position-by-masks").panels] == [
        (BASE, ""),
        (INSTRUCT, ""),
        (DREAM, ""),
    ]
    assert [(p.model, p.detail) for p in figure(board, "position-by-masks-adapters").panels] == [
        (BASE, "ma-ce-tv"),
        (BASE, "ma-ce"),
        (INSTRUCT, "ma-ce-tv"),
    ]


def test_orders_of_unmasking_share_a_models_panel() -> None:
    panels = figure(sample_board(), "unmasking").panels
    assert [[line.kind for line in panel.lines] for panel in panels] == [
        ["none (1 step)", "random (40 steps)", "confidence (40 steps)"],
        ["none (1 step)", "random (40 steps)"],
    ]


def test_of_many_models_those_of_most_points_are_shown() -> None:
    rows = [row(f"m{n}", is_full=False) for n in range(30)] + [row("measured-most")]
    shown = model_order(board_of(*rows))
    assert len(shown) == MAX_MODELS == len(COLOURS)
    assert shown[:2] == ("measured-most", "m0")
    lines = figure(board_of(*rows), "masks").panels[0].lines
    assert {line.model for line in lines} == set(shown)


def test_each_figure_is_there_as_svg_and_png(drawn: Path) -> None:
    for one in figures_of(sample_board()):
        root = ElementTree.parse(drawn / f"{one.stem}.svg").getroot()
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * COLUMN_WIDTH)
        with Image.open(drawn / f"{one.stem}.png") as image:
            assert image.width == pytest.approx(COLUMN_WIDTH * SETTINGS["savefig.dpi"], abs=1)


def test_axes_are_labelled_with_units(drawn: Path) -> None:
    labels = {
        "position": "number of distractor examples before the block",
        "masks": "number of appended masks",
        "dots": "number of appended masks or dots",
        "distractors": "number of distractor examples",
    }
    for name, label in labels.items():
        svg = (drawn / f"figures/{name}.svg").read_text(encoding="utf-8")
        # matplotlib draws text as outlines, and leaves it in a comment beside them.
        assert "<!-- accuracy (%) -->" in svg
        assert f"<!-- {label} -->" in svg


def test_text_is_readable_at_column_width() -> None:
    sizes = [value for name, value in SETTINGS.items() if name.endswith("size") and isinstance(value, int | float)]
    text = [value for name, value in SETTINGS.items() if name.endswith(("labelsize", "titlesize", "fontsize"))]
    assert sizes
    assert min(text) >= 7
    assert COLUMN_WIDTH <= 3.5


def test_a_model_has_one_colour_in_every_figure(drawn: Path) -> None:
    board = sample_board()
    models = model_order(board)
    for one in figures_of(board):
        svg = (drawn / f"{one.stem}.svg").read_text(encoding="utf-8").lower()
        plain = {panel.lines[0].model for panel in one.panels if panel.lines}
        present = {line.model for panel in one.panels for line in panel.lines}
        for model, colour in zip(models, COLOURS, strict=False):
            if model not in present:
                assert colour.lower() not in svg, (one.stem, model)
            elif model in plain and one.kind.name != "position-by-masks-adapters":
                assert colour.lower() in svg, (one.stem, model)


def test_a_rebuild_changes_no_byte(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; import sys; from mdlm_leaderboard.figures import draw_figures;"
        "from tests.test_leaderboard_figures import board_of, row;"
        "draw_figures(board_of(row('m', is_full=False)), Path(sys.argv[1]))"
    )
    for seed in ("1", "2"):
        path = os.pathsep.join([str(ROOT / "leaderboard"), str(ROOT)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", script, tmp_path / seed], check=True, env=environment)
    for name in ("masks.svg", "masks.png"):
        first, second = ((tmp_path / seed / "figures" / name).read_bytes() for seed in ("1", "2"))
        assert first == second


@pytest.mark.parametrize(
    "name", ["$x_{1", "_hidden", "--><script>alert(1)</script>", "a\nb\x00c", "m" * 500, "%s{0}", "\\alpha"]
)
def test_any_name_is_drawn_as_text(name: str, tmp_path: Path) -> None:
    rows = [row(name, is_full=False), row(name, is_full=False, adapter=name), row("other", is_full=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = draw_figures(board_of(*rows), tmp_path)
    tags = {element.tag for path in paths if path.suffix == ".svg" for element in ElementTree.parse(path).iter()}
    assert not any(tag.endswith("script") for tag in tags)


def test_a_point_without_a_band_is_drawn(tmp_path: Path) -> None:
    bare = type(estimate(0.5))(0.5, None, None, 1, 10)
    assert len(draw_figures(board_of(row("m", is_full=False, masks={1: bare, 200: bare})), tmp_path)) == 3


def test_long_names_keep_what_they_begin_and_end_with() -> None:
    assert clipped("LLaDA-8B-Base", 26) == "LLaDA-8B-Base"
    assert clipped("/a/long/path/to/adapters/ma-ce-tv", 20) == "/a/long/p…s/ma-ce-tv"
    assert len(clipped("m" * 500, 26)) == 26


def test_models_without_masks_are_levels_and_said_to_be(drawn: Path) -> None:
    svg = (drawn / "figures/masks.svg").read_text(encoding="utf-8")
    assert "<!-- Qwen2.5-7B, no masks -->" in svg
    assert "<!-- Dream-v0-Base-7B -->" in svg


def test_the_legend_names_an_adapter_also_where_it_stands_alone(tmp_path: Path) -> None:
    draw_figures(board_of(row("m", is_full=False, adapter="ma-ce-tv")), tmp_path)
    assert "<!-- ma-ce-tv -->" in (tmp_path / "figures/masks-adapters.svg").read_text(encoding="utf-8")


def test_the_headline_is_of_the_largest_drop_that_an_adapter_mends() -> None:
    ma, ce = (row(BASE, id=name, drop=drop, adapter=name) for name, drop in (("MA (CE + TV)", 0.03), ("A", 0.01)))
    found = headline_of(board_of(row("other", drop=0.5), row(BASE, drop=0.2), ma, ce))
    assert found.before
    assert (found.before.model, [one.adapter for one in found.after]) == (BASE, ["MA (CE + TV)"])
    assert found.sentence == (
        "Appended masks cost LLaDA-8B-Base 15.9 ± 0.2 points of accuracy; after mask-agnostic fine-tuning 2.4 ± 0.0."
    )
    assert headline_of(board_of(row("m"))).sentence == "Appended masks cost m 15.9 ± 0.2 points of accuracy."
    assert ": 23 points of LLaDA-8B's accuracy, as published" in headline_of(board_of(published_row())).sentence


def test_the_headline_has_one_line_for_the_seeds_of_an_adapter() -> None:
    starts = (0.7, 0.8, 0.9)
    seeds = [
        row(BASE, id=f"ma-{seed}", start=start, drop=0.05, adapter=f"MA (CE + TV), seed {seed}")
        for seed, start in enumerate(starts)
    ]
    found = headline_of(board_of(row(BASE), *seeds, row(BASE, id="ce", adapter="CE, seed 0")))
    assert [one.id for one in found.after] == ["ma-0", "ma-1", "ma-2"]
    _, after = found.lines
    assert line_label(after) == "after mask-agnostic\nfine-tuning (3 seeds)\nlost: 4.0 ± 0.0"
    assert after.curve[200].mean == pytest.approx(0.75)
    assert after.band(200) == pytest.approx((65, 85))
    assert found.sentence.endswith("; after mask-agnostic fine-tuning 4.0 ± 0.0 (mean of 3 seeds).")


def test_a_loss_is_between_mask_counts_that_both_lines_have() -> None:
    plain = {1: estimate(0.9), 2: estimate(0.85), 10: estimate(0.4), 200: estimate(0.7)}
    seeds = [{2: estimate(0.8), 50: estimate(0.9), 200: estimate(0.79)}, {2: estimate(0.8), 200: estimate(0.79)}]
    tuned = [
        row("m", id=f"ma-{n}", is_full=False, masks=masks, adapter=f"MA (CE), seed {n}")
        for n, masks in enumerate(seeds)
    ]
    found = headline_of(board_of(row("m", is_full=False, masks=plain), *tuned))
    assert found.sentence == (
        "Appended masks cost m 15.0 ± 0.2 points of accuracy; "
        "after mask-agnostic fine-tuning 1.0 ± 0.0 (mean of 2 seeds)."
    )
    assert found.bands.startswith("Lost: from 2 to 200 masks. ")
    assert list(found.lines[1].curve) == [2, 200]


def with_noise(mean: float, lost: float, noise: float) -> Estimate:
    """`lost` below `mean` over 16 tasks, of which one half loses `noise` more and the other as much less."""
    by_task = {task: mean - lost + noise * (-1) ** n for n, task in enumerate(TASKS)}
    return replace(estimate(mean - lost), by_task=by_task)


@pytest.mark.parametrize(
    ("lost", "noise", "words"),
    [
        ((0, 0, 0), 0, "none"),
        ((0, 0.0004, 0.0002), 0, "none"),
        ((0, 0.005, 0.01), 0.05, "1.0 ± 2.8, within chance"),
        ((0, 0.005, 0.01), 0, "1.0 ± 0.0"),
        ((0, -0.02, -0.1), 0.01, "none"),
        ((0, 0.1, 0.002), 0.01, "0.2 ± 0.6, within chance"),
    ],
    ids=["level", "rounded", "noise", "clear", "rise", "dip"],
)
def test_what_is_left_after_fine_tuning_is_said_as_it_is(
    lost: tuple[float, ...], noise: float, words: str, tmp_path: Path
) -> None:
    masks = {n: with_noise(0.8, points, noise * (n > 2)) for n, points in zip((2, 50, 200), lost, strict=True)}
    board = board_of(row(BASE), row(BASE, id="ma", adapter="MA (CE)", is_full=False, masks=masks))
    found = headline_of(board)
    loss = words.removesuffix(", within chance")
    assert found.lines[1].loss_in_words == loss
    assert found.sentence == (
        f"Appended masks cost LLaDA-8B-Base 15.9 ± 0.2 points of accuracy; after mask-agnostic fine-tuning {words}."
    )
    drawn = " ".join(texts(write_headline(board, tmp_path)[0]))
    assert f"after mask-agnostic fine-tuning lost: {loss}" in drawn
    assert f"Measured: 15.9 ± 0.2 points lost; fine-tuned {loss}" in drawn


def test_the_published_panel_says_at_which_mask_counts_its_ends_are(tmp_path: Path) -> None:
    drawn = texts(write_headline(board_of(row(BASE, start=0.7), published_row()), tmp_path)[0])
    assert {"at its best", "mask count", "at its worst"} <= set(drawn)
    assert drawn.count("number of appended masks") == 1, "of the measured panel alone"
    assert "70" in drawn
    assert "80" not in drawn, "the axis ends where the points do"


def texts(svg: Path) -> list[str]:
    """What is written in a figure: matplotlib draws text as outlines, and leaves it in a comment beside them."""
    return re.findall("<!-- (.*) -->", svg.read_text(encoding="utf-8"))


@pytest.mark.parametrize("masks", [falling(0.9, -0.2), {1: estimate(0.9), 200: estimate(0.9)}], ids=["rise", "level"])
def test_where_masks_cost_nothing_the_headline_says_so(masks: dict[int, Estimate]) -> None:
    level = row("built-in", is_full=False, masks=masks)
    assert headline_of(board_of(level)).sentence == (
        "Appended masks cost the built-in model no accuracy that can be measured."
    )
    found = headline_of(board_of(level, published_row()))
    assert found.sentence == (
        "Appended masks cost LLaDA-8B 23 points of accuracy, as published; the built-in model shows no clear loss."
    )
    assert found.title == "Measured: no clear drop"


def test_a_figures_finding_is_the_range_of_its_lines() -> None:
    one = figure(board_of(row("o/m", is_full=False, masks={1: estimate(0.8), 200: estimate(0.5)})), "masks")
    assert one.finding == "Between best and worst: 30.0 ± 0.4 points for m."
    found = figure(sample_board(), "masks").finding
    assert found == "Between best and worst: 6.1 ± 0.1 points for Dream-v0-Base-7B to 23.5 ± 0.3 for LLaDA-8B-Instruct."


def test_the_readmes_figure_is_the_one_that_the_command_writes(tmp_path: Path) -> None:
    """`mdlm-leaderboard build leaderboard/results --output site --readme_figures docs/figures` writes it."""
    for path in write_headline(read_board(ROOT / "leaderboard/results"), tmp_path):
        new, committed = (file.read_text(encoding="utf-8") for file in (path, ROOT / "docs/figures" / path.name))
        texts, others = (re.findall("<!-- .* -->", svg) for svg in (new, committed))
        assert texts == others, path.name
        version, other = (re.search("Matplotlib v[^,]*", svg) for svg in (new, committed))
        assert version
        assert other
        if version[0] == other[0]:  # another release may place things elsewhere
            assert new == committed, path.name
