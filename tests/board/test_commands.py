"""The command as a user types it: build, show, compare, validate."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from mdlm_leaderboard.__main__ import main
from mdlm_lm_eval.results.in_words import UNMEASURED
from tests.support.leaderboard_files import (
    HASH,
    gsm8k_file,
    result_file,
    served,
    six_cells,
    suite_file,
    write,
    write_answers,
)
from tests.support.pages import Page
from tests.support.sampled_runs import two_runs

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "leaderboard" / "results"


# build


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed results' own page."""
    folder = tmp_path_factory.mktemp("site")
    title = "Leaderboard of masked diffusion language models"
    assert main(["build", str(RESULTS), "--output", str(folder / "out"), "--title", title]) == 0
    return folder


def test_the_page_of_the_committed_results(site: Path) -> None:
    page = Page(site / "out" / "index.html")
    local = [link for link in page.links if not link.startswith(("http", "#", "data:"))]
    assert all((site / "out" / link).exists() for link in local), "every figure and file is there"
    assert all(
        link.startswith(("https://huggingface.co/", "https://arxiv.org/")) for link in page.links if "//" in link
    )
    assert len(page.ids) == len(set(page.ids))
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    for words in (
        "Appended masks (from 2 to 200) cost built-in 10.7 (10.2 to 11.2) points of accuracy",
        "Other settings",
    ):
        assert words in page.text
    markdown = (site / "out" / "LEADERBOARD.md").read_text()
    for line in markdown.splitlines():
        assert not line.startswith("|") or line.count("|") > 3
    assert "| built-in | 87.7 (87.2 to 88.2) | 98.4 (98.2 to 98.6) | 10.7 (10.2 to 11.2) | 88.0" in markdown
    notes = [line for line in markdown.splitlines() if line.startswith("- built-in ")]
    assert len(notes) == 1, "once, though the model is in three tables"
    assert [path.name for path in (site / "out" / "figures").glob("*.svg")] == ["headline.svg"], "2 and 200 masks alone"


def test_details_show_labels_places_and_the_models_report(tmp_path: Path) -> None:
    cells = {f"n{n}": suite_file(n_masks=n, limit=9) for n in (2, 200)}
    cells |= {f"p{n}": suite_file(variant=f"_right_pos{n}", limit=9, accuracy=0.5 + n / 100) for n in (0, 40)}
    cells["wrong"] = suite_file(n_masks=2, limit=9, accuracy=0.125, spread=0.0)
    for of_task in cells["wrong"]["configs"].values():
        of_task["metadata"] |= {"fewshot_labels": "wrong"}
    for name, content in cells.items():
        write(tmp_path / "results/built-in" / name, results_cell=content)
    plan = {"cells": {f"built-in/{name}": {"questions": 9} for name in cells}, "declared": {}, "left_out": {}}
    write(tmp_path / "results/built-in", plan=plan)
    assert main(["build", str(tmp_path / "results"), "--output", str(tmp_path / "out")]) == 0
    page = Page(tmp_path / "out" / "index.html")
    assert "report/index.html#model-0" in page.links
    assert "model-0" in Page(tmp_path / "out" / "report/index.html").ids
    text = " ".join(page.text.split())
    assert "Labels of the examples: accuracy (%) by number of appended masks" in text
    assert "true80.0 (" in text
    assert "wrong12.5 (" in text
    assert "8 billion parameters" in text
    assert "Position of the relevant block, question right: accuracy (%) by number of distractor examples" in text


def test_headline_table_and_figure_say_the_same(site: Path) -> None:
    page, markdown = Page(site / "out" / "index.html").text, (site / "out" / "LEADERBOARD.md").read_text()
    figure = (site / "out" / "figures" / "headline.svg").read_text()
    comments = re.findall(r"<!-- (.*?) -->", figure, re.DOTALL)  # matplotlib names every text that it draws
    losses = {text.partition(": loss ")[2].removesuffix(", not significant") for text in comments if ": loss " in text}
    assert losses
    for loss in losses:
        assert f"{loss}" in page
        assert f"| {loss} |" in markdown


@pytest.fixture(scope="module")
def six_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results, and the page that was built of them inside their folder."""
    results = six_cells(tmp_path_factory.mktemp("six") / "results")
    assert main(["build", str(results), "--output", str(results / "site")]) == 0
    return results


def test_a_build_is_repeatable_and_replaces_only_its_own(tmp_path: Path, six_built: Path) -> None:
    results = shutil.copytree(six_built, tmp_path / "results")
    out = results / "site"
    build = ["build", str(results), "--output", str(out)]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / "CNAME").write_text("example.org")
    (out / "figures" / "old.svg").touch()
    assert main(build) == 0, "an output inside the results is not read"
    assert {path: path.read_bytes() for path in before} == before
    assert (out / "CNAME").exists()
    assert not (out / "figures" / "old.svg").exists()
    assert {path.name for path in results.iterdir() if not path.name.endswith(".json")} == {"site"}


def test_a_failed_build_leaves_the_old_output(tmp_path: Path, six_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = shutil.copytree(six_built / "site", tmp_path / "site")
    build = ["build", str(six_built), "--output", str(out)]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mdlm_leaderboard.page.write.write_page", fail)
    with pytest.raises(SystemExit):
        main(build)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_folder_of_ones_own_has_no_published_rows_and_its_settings_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(six_cells(tmp_path / "my-sweep"), cut="{")
    monkeypatch.chdir(tmp_path)
    assert main(["build", "my-sweep", "--output_path", "site"]) == 0
    said = capsys.readouterr()
    assert said.out == "6 rows in site/index.html and site/LEADERBOARD.md\n"
    assert said.err.startswith("not used: cut.json: cannot be read as JSON")
    page = Page(tmp_path / "site" / "index.html")
    assert "Results of organisation/model" in page.text
    assert "published" not in page.text.lower()
    assert "figures/frontier.svg" in page.links
    assert "confidence_threshold=0.7 is 5.1 times faster and 5.0 (1.7 to 8.3) points worse than steps=256." in page.text
    assert main(["build", "my-sweep", "--output", "site", "--baseline", "steps=128", "--strict"]) == 1
    assert "| 69.5 (67.1 to 71.8) ◇ |" in (tmp_path / "site" / "LEADERBOARD.md").read_text()
    assert "| 71.0, +1.5 (" in (tmp_path / "site" / "LEADERBOARD.md").read_text()
    unpaired = "Differences in points are to steps=128, unpaired (see --log_samples)."
    assert unpaired in (tmp_path / "site" / "LEADERBOARD.md").read_text()
    with pytest.raises(SystemExit, match="2"):
        main(["build", "my-sweep", "--output", "site", "--baseline", "steps=7"])
    said = capsys.readouterr().err
    assert "--baseline steps=7: no row has these words, which are parts of " in said
    assert "steps=256" in said
    with pytest.raises(SystemExit, match="2"):
        main(["build", "site", "--output", "x"])
    assert "holds no usable result file" in capsys.readouterr().err


def test_what_is_not_significant_is_a_figure_and_no_finding(tmp_path: Path) -> None:
    write(tmp_path / "r", a=gsm8k_file(0.50, passes=100), b=gsm8k_file(0.49, passes=50, steps=50))
    assert main(["build", str(tmp_path / "r"), "--output", str(tmp_path / "site")]) == 0
    page = Page(tmp_path / "site" / "index.html")
    assert "faster" not in page.text.replace("faster and no worse", "")
    assert "figures/frontier.svg" in page.links
    figure = (tmp_path / "site" / "figures" / "frontier.svg").read_text()
    assert "circles: exact" in figure
    for absent in ("guest", "approximate", "grey"):
        assert absent not in figure + page.text, "keys explain what is there"


def test_submitted_rows_are_told_from_measured_ones(tmp_path: Path) -> None:
    write(tmp_path / "r", mine=suite_file())
    write(tmp_path / "r" / "submitted" / "theirs", a=suite_file(pretrained="other/model", weights="b"))
    assert main(["build", str(tmp_path / "r"), "--output", str(tmp_path / "site")]) == 0
    markdown = (tmp_path / "site" / "LEADERBOARD.md").read_text()
    assert "| other/model | submitted |" in markdown
    assert "| built-in | measured here |" in markdown


# show


def test_show_prints_five_lines_about_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = {"audit": {"requests": 10, "same_strings": 9, "exact_answers": []}}
    content = gsm8k_file(0.705, passes=90, confidence_threshold=0.9, task_record=audit)
    path = write(tmp_path, a=content) / "a.json"
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "score     organisation/model: gsm8k (exact_match,flexible-extract) 70.5 (68.1 to 72.8) (n=1319)",
        "settings  masks 256, steps 256, cache auto, no chat template, confidence_threshold=0.9, bfloat16",
        "speed     1.11 tokens per forward pass, 0.9 s per question, 2.00 GiB",
        "audit     9 of 10 answers are the same without the cache",
        f"file      {path}",
    ]


def test_results_are_shown_without_torch(tmp_path: Path) -> None:
    write(tmp_path, a=suite_file(n_masks=2))
    code = "main(['show', sys.argv[1]]); print({'torch', 'transformers', 'lm_eval'} & {*sys.modules})"
    code = f"import sys; from mdlm_leaderboard.__main__ import main; {code}"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n")


def test_show_says_what_was_not_parsed_and_what_the_preset_was_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = gsm8k_file()
    content["config"]["mdlm"]["preset_mismatches"] = ["preset=a/b is for c, and the task is gsm8k"]
    answers = [(how, text) for how in ("strict-match", "none") for text in ("[invalid]", "", "5")]
    found = [{"filter": how, "filtered_resps": [text]} for how, text in answers]
    found += [{"filter": "strict-match", "filtered_resps": [texts]} for texts in (["[invalid]"], ["", "5"])]  # lists
    of_question = {"doc_id": 0, "doc_hash": "a", "metrics": []}
    lines = [json.dumps(of_question | one) + "\n" for one in found]
    path = write(tmp_path, results_1=content) / "results_1.json"
    (tmp_path / "samples_gsm8k_1.jsonl").write_text("".join(lines))
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "preset    preset=a/b is for c, and the task is gsm8k\n" in shown
    assert "unparsed  3 answers of gsm8k (strict-match)\n" in shown


def test_show_says_how_many_sets_are_right_in_all_askings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, results_1=suite_file(start="mdlm_rules_", group="mdlm_rules")) / "results_1.json"
    askings = {"verb": (1, 1), "animal": (1, 0), "emotion": (1, 1)}  # of two sets, under each rule
    for rule, right in askings.items():
        common = {"doc_hash": "", "filter": "none", "metrics": ["exact_match"]}
        lines = [{"doc_id": n, "doc": {"set": f"largest_{n}"}, "exact_match": one} for n, one in enumerate(right)]
        lines = [line | common for line in lines]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"samples_mdlm_rules_{rule}_largest_1.jsonl").write_text(text)
    assert main(["show", str(path)]) == 0
    assert "sets      right in all three askings: mdlm_rules 50.0% of 2 sets\n" in capsys.readouterr().out


def test_show_says_who_served_and_what_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = {"audit": {"requests": 10, "same_strings": 9, "exact_answers": []}}
    content = served(gsm8k_file(passes=90, task_record=audit), known=("confidence_threshold", "max_gen_toks"))
    assert main(["show", str(write(tmp_path, a=content) / "a.json")]) == 0
    _, settings, speed, audited, _ = capsys.readouterr().out.splitlines()
    assert settings.startswith("settings  served by sglang 0.5.23, no chat template, ")
    assert "settings unknown: n_masks, steps, " in settings
    assert "cache" in settings.partition("unknown: ")[2], "an unknown cache is not named as the one in effect"
    assert settings.endswith(" more"), "those that mean little where others are unknown are counted"
    assert speed.endswith("80 tokens per second, 2 requests per second, 8 requests at once")
    assert audited == "audit     9 of 10 answers are the same in process"


# compare


def compared(folder: Path, first: Any, second: Any, answers: tuple[list[int], list[int]] | None = None) -> Any:
    """Both as lm-eval names them, with samples of gsm8k."""
    date = "2026-01-31T12-00-00"
    for n, content in enumerate((first, second)):
        place = folder / str(n)
        if answers:
            write_answers(place, date, content, answers[n])
        else:
            write(place, **{f"results_{date}": content})
    return main(["compare", *(str(folder / f"{n}" / f"results_{date}.json") for n in (0, 1))])


def test_compare_says_a_difference_for_other_word_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = suite_file(n_masks=200, accuracy=0.6, spread=0.3)
    assert compared(tmp_path, suite_file(n_masks=2, pretrained="m"), second | {"x": 1}) == 0
    said = capsys.readouterr().out
    assert f"A: m, n_masks=2 ({tmp_path / '0' / 'results_2026-01-31T12-00-00.json'})\n" in said
    assert (
        "built-in, n_masks=200 is 20.0 points below m, n_masks=2 on 16 tasks (exact_match, 16000 questions): "
        "-20.0 (-34.3 to -10.1), significant for other word rules." in said
    )
    assert "| mdlm_country_smallest | 90.0 | 90.0 | +0.0 |" in said


def test_a_folder_stands_for_its_newest_file_and_a_missing_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, score in (("one", 0.5), ("two", 0.7)):
        write(tmp_path / folder, a=gsm8k_file(score))
    assert main(["compare", str(tmp_path / "one" / "a.json"), str(tmp_path / "two" / "a.json")]) == 0
    by_file = capsys.readouterr().out
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert capsys.readouterr().out == by_file
    for words in (["show", "nosuch"], ["compare", "nosuch", str(tmp_path / "one")]):
        assert main(words) == 1
        assert capsys.readouterr().err == "mdlm-leaderboard: nosuch does not exist\n"
    for words in (["samples", str(tmp_path / "onne"), "--output_path", "page"], ["show", str(tmp_path / "onne")]):
        assert main(words) == 1
        assert capsys.readouterr().err.endswith("onne does not exist; did you mean one?\n")


@pytest.mark.parametrize("words", ["show cut", "compare whole cut", "samples cut --output_path page", "audit cut"])
def test_a_broken_file_is_named(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "whole", a=gsm8k_file(0.5))
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.json").write_text('{"results": ')
    assert main(words.split()) == 1
    assert capsys.readouterr().err.startswith("mdlm-leaderboard: cut/a.json cannot be read as JSON (")


def test_compare_takes_questions_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, better = [1] * 600 + [0] * 719, [1] * 580 + [0] * 20 + [1] * 80 + [0] * 639
    first, second = gsm8k_file(600 / 1319), gsm8k_file(660 / 1319, masks=512, n_masks=512)
    assert compared(tmp_path, first, second, (right, better)) == 0
    said = capsys.readouterr().out
    assert "organisation/model, n_masks=512 is 4.5 points above organisation/model, n_masks=auto on gsm8k" in said
    assert "on gsm8k (exact_match,flexible-extract, 1319 questions): +4.5 (+3.1 to +6.0), significant (t test" in said
    assert "80 questions are right with organisation/model, n_masks=512 alone, 20 with" in said
    alike = [1] * 590 + [0] * 10 + [1] * 12 + [0] * 707
    assert compared(tmp_path, first, gsm8k_file(602 / 1319, steps=8), (right, alike)) == 0
    said = capsys.readouterr().out
    assert ": +0.2 (-0.6 to +0.9), not significant (t test over 1319 questions, p = 0.677); 12 questions are" in said
    assert UNMEASURED in said
    noise = {"task": "gsm8k", "change": {"dtype": "float32"}, "share": 0.006, "interval": [0.002, 0.018]}
    for file in (first, second):
        file["config"]["mdlm"]["check"] = {"verdict": "no fault", "stale": [], "noise_floor": noise}
    assert compared(tmp_path, first, second, (right, better)) == 0
    said = capsys.readouterr().out
    flips = "rounding alone (dtype=float32) flips 0.6% of answers (0.2% to 1.8%), 7.91 of these."
    assert re.search(rf"1319 questions, p < 0.001\); [^\n]*; {re.escape(flips)}", said)
    assert UNMEASURED not in said
    second["config"]["mdlm"]["check"] = first["config"]["mdlm"]["check"] = {
        **file["config"]["mdlm"]["check"],
        "stale": ["dtype"],
    }
    assert compared(tmp_path, first, second, (right, better)) == 0
    assert UNMEASURED in capsys.readouterr().out
    assert "--log_samples" not in said


def test_compare_has_an_interval_over_sets_without_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first tokens that a run of the suite records; whether each question is equal is not known then."""
    sets = " ".join(f"set_{n}" for n in range(20))
    record = {"first_token": {"letters": "RW" * 10, "sets": sets, "entropy": 0.5}}
    files = [suite_file(n_masks=n, accuracy=0.5, spread=0.0, limit=20, task_record=record) for n in (2, 200)]
    assert compared(tmp_path, *files) == 0
    said = capsys.readouterr().out
    assert "built-in, n_masks=200 is level with built-in, n_masks=2 on 16 tasks (exact_match, 320 questions): " in said
    assert "not significant (t test over 20 sets of questions, p = 1.000); range over other word rules: +0.0 (" in said
    assert "right with" not in said


def test_compare_says_how_to_get_an_interval_and_that_equals_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = gsm8k_file(600 / 1319), gsm8k_file(600 / 1319, steps=8, block_length=8)
    assert compared(tmp_path / "without", first, second) == 0
    said = capsys.readouterr().out
    assert "For a test over questions, run both with lm_eval's --log_samples.\n" in said
    assert "None" not in said
    right = [1] * 600 + [0] * 719
    assert compared(tmp_path / "with", first, second, (right, right)) == 0
    said = capsys.readouterr().out
    assert "equals organisation/model, steps=auto on gsm8k" in said
    assert "every question has the same score in both.\n" in said
    assert "0.0 to" not in said


@pytest.mark.parametrize(
    ("score", "verdicts"),
    [
        (0.70, ["+0.0, reproduced", "-0.7, reproduced"]),  # 90% interval 67.9 to 72.0
        (0.711, ["+1.1, undecided: equal scores of about", "+0.4, reproduced"]),
        (0.66, ["-4.0, undecided", "-4.7, undecided"]),
        (0.60, ["-10.0, not reproduced", "-10.7, not reproduced"]),
    ],
)
def test_a_run_of_a_preset_is_compared_with_the_published_scores(
    score: float, verdicts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GSM8K's 70.0 of LLaDA's authors and 70.7 of dLLM; within 3 points by two one-sided tests."""
    content = gsm8k_file(score, masks=256, n_masks=256, steps=256)
    content["config"]["mdlm"] |= {"preset": "llada-8b-base/gsm8k-256", "preset_mismatches": []}
    write(tmp_path, a=content)
    assert main(["compare", str(tmp_path / "a.json"), "--published"]) == 0
    authors, others = capsys.readouterr().out.splitlines()
    assert all(verdict in line for verdict, line in zip(verdicts, (authors, others), strict=True)), (authors, others)
    assert "(dllm/llada-8b-base/gsm8k-256, 2026-04-14)" in others
    assert main(["build", str(tmp_path), "--output_path", str(tmp_path / "site")]) == 0
    page = (tmp_path / "site" / "index.html").read_text()
    assert "70.0 (llada-8b-base/gsm8k-256, 2026-06-25), 70.7 (dllm/llada-8b-base/gsm8k-256, 2026-04-14)" in page


def test_what_is_not_as_published_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = gsm8k_file(0.79, masks=256, n_masks=256, steps=64)
    content["config"]["mdlm"] |= {"preset": "fast-dllm/llada-8b-instruct/gsm8k", "preset_mismatches": []}
    write(tmp_path, a=content, b=gsm8k_file())
    assert main(["compare", str(tmp_path / "a.json"), "--published"]) == 0
    said = capsys.readouterr().out
    assert "not as published: steps=64, and the preset's is 256" in said
    assert "not as published: block_length=None, and the preset's is 32" in said
    assert main(["compare", str(tmp_path / "b.json"), "--published"]) == 1
    assert "is no run of a preset" in capsys.readouterr().err
    for words in (["a.json"], ["a.json", "b.json", "--published"]):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *words])
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (suite_file(suite_hash="b" * 64), f"the state of the suite differs: {HASH} and {'b' * 64}"),
        (suite_file(version="1.0"), "the version of mdlm_country_smallest differs"),
        (suite_file(limit=10), "the number of questions of mdlm_country_smallest differs: 1000 and 10"),
        (gsm8k_file(), "have no task and metric in common"),
    ],
)
def test_compare_refuses_other_questions(
    tmp_path: Path, second: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(tmp_path, suite_file(), second) == 1
    assert reason in capsys.readouterr().err


def test_compare_has_one_verdict_and_respects_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 48 questions about eight texts, one run alone has the six of one text right, the other run alone another."""
    before = [1] * 6 + [0] + [1] * 23 + [0] * 18
    after = [0] * 6 + [1] + [1] * 23 + [0] * 18
    of_task = {"metadata": {"version": 3.0, "cluster": "text"}}
    date, paths = "2026-01-31T12-00-00", []
    for n, right in enumerate((before, after)):
        content = gsm8k_file(sum(right) / 48, steps=16 - n)
        content["n-samples"]["gsm8k"] = {"original": 48, "effective": 48}
        paths.append(str(tmp_path / str(n) / f"results_{date}.json"))
        write_answers(tmp_path / str(n), date, content, right, documents=[{"text": n // 6} for n in range(48)])
    assert main(["compare", *paths]) == 0
    (sentence,) = re.findall(r"^organ.*$", capsys.readouterr().out, re.MULTILINE)
    assert sentence == (
        "organisation/model, steps=15 is 10.4 points below organisation/model, steps=16 on gsm8k "
        "(exact_match,flexible-extract, 48 questions): -10.4 (-22.0 to +1.2), not significant (t test over 48 "
        "questions, p = 0.076); 1 question is right with organisation/model, steps=15 alone, 6 with "
        "organisation/model, steps=16 alone."
    )
    assert main(["compare", "--cluster", "text", *paths]) == 0
    by_text = capsys.readouterr().out
    assert "-10.4 (-41.5 to +20.6), not significant (t test over 8 clusters by text, p = 0.454)" in by_text
    for path in paths:
        content = json.loads(Path(path).read_text())
        content["configs"]["gsm8k"] |= of_task
        Path(path).write_text(json.dumps(content))
    assert main(["compare", *paths]) == 0
    assert capsys.readouterr().out == by_text, "the field that the task's metadata name"
    assert main(["compare", "--cluster", "author", *paths]) == 1
    assert "has a document without the field 'author': it has text" in capsys.readouterr().err


def test_power_is_that_of_the_paired_test(capsys: pytest.CaptureFixture[str]) -> None:
    """In 1,000 draws of answers of which half are alike in both runs."""
    asked = ["power", "--accuracy=60", "--difference=2", "--correlation=0.5"]
    assert main([*asked, "--questions=1319"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| 0.5"))
    needed, power = int(row.split(" | ")[1].replace(",", "")), int(row.split(" | ")[2].removesuffix("% |"))
    rng = np.random.default_rng(0)
    for n, expected in ((1319, power), (needed, 80)):
        first, own = rng.random((2, 1000, n), dtype=np.float32)
        second = np.where(rng.random((1000, n), dtype=np.float32) < 0.5, first, own)
        found = ttest_rel((first < 0.6) * 1.0, (second < 0.62) * 1.0, axis=1).pvalue < 0.05
        assert 100 * found.mean() == pytest.approx(expected, abs=5)
    for words, often in ("--repeats=8", needed / 8), ("--cluster=5", needed * 5):
        assert main([*asked, words]) == 0
        (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| 0.5"))
        assert int(row.split(" | ")[1].removesuffix(" |").replace(",", "")) == pytest.approx(often, rel=0.01)
    with pytest.raises(SystemExit, match="2"):
        main(["power", "--accuracy=60", "--difference=50"])
    assert "must differ, between 0 and 100" in capsys.readouterr().err


# audit


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
def test_audit_scores_exact_answers_by_the_tasks_own_metric(
    tmp_path: Path, task_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = {"audit": {"exact_answers": [{"doc_id": 0}, {"doc_id": 1, "exact": "1"}]}}
    content = result_file({"tiny_generate": {"exact_match,none": 0.5}}, task_record=audit)
    folder = write(tmp_path, results_1=content)
    common = {"doc_hash": "", "filter": "none", "metrics": ["exact_match"], "resps": [["0"]]}
    lines = [{"doc_id": n, "doc": {"q": "", "a": n}, "exact_match": 1.0 - n} | common for n in (0, 1, 2)]
    (tmp_path / "samples_tiny_generate_1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in (folder / "results_1.json", folder):
        assert main(["audit", str(path), "--include_path", str(task_folder)]) == 0
        row = "| tiny_generate | exact_match | 1 of 2 | 50.0 | 100.0 | -50.0 | -100.0 to 100.0 |"
        assert row in capsys.readouterr().out


# validate


def changed(**changes: Any) -> dict[str, Any]:
    """A file that is fine but for what `mdlm-...` or `results-...` keys replace in it."""
    content = suite_file()
    for name, value in changes.items():
        where, _, key = name.partition("_")
        place = content["config"]["mdlm"] if where == "mdlm" else content["results"]["mdlm_verb_largest"]
        place[key if where == "mdlm" else "exact_match,none"] = value
    return content


def lacking() -> dict[str, Any]:
    content = suite_file()
    del content["configs"]["mdlm_verb_largest"]
    return content | {"groups": {}, "group_subtasks": {}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (suite_file(limit=10), "--limit 10 leaves out questions; a submission answers all"),
        (suite_file(version="1.0"), "is of suite version '1.0'; it must be"),
        (lacking(), "mdlm_context lacks 1 of its 16 tasks: verb_largest"),
        (changed(mdlm_weights=""), "does not record 'weights' of --model mdlm"),
        (changed(mdlm_task_suite={"version": "2.0"}), "does not record the suite's sha256"),
        (changed(result_x=0.50005), "has exact_match=0.50005, which 1000 answers cannot give"),
        (changed(result_x=0.5), "mdlm_context reports"),
        (changed(result_x=1.5), "has exact_match=1.5 for 'mdlm_verb_largest'"),
        (suite_file(task_record={"truncated_prompts": 3}), "lost their first examples"),
        (served(suite_file(n_masks=2), version="unknown"), "does not record the engine's version"),
        (served(suite_file(n_masks=2), known=()), "states no mask count"),
        ("{", "cannot be read as JSON"),
        (result_file({"gsm8k": {"acc,none": 0.5}}, model="hf", pretrained=""), "names no model"),
    ],
)
def test_validate_names_what_prevents_a_submission(
    tmp_path: Path, content: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, bad=content, good=suite_file(n_masks=2), served=served(suite_file(n_masks=2)))
    assert main(["validate", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'good.json'}: ok\n{tmp_path / 'served.json'}: ok\n"
    assert problem in said.err


@pytest.mark.parametrize(
    "folder", sorted(path for path in RESULTS.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_committed_results_are_valid_but_for_their_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And but for their suite's version, 2.1."""
    code = main(["validate", str(folder)])
    said, problems = (text.splitlines() for text in capsys.readouterr())
    problems = [problem for problem in problems if "is of suite version '2.1'; it must be 2.2" not in problem]
    assert len(said) + len(problems) == len(list(folder.rglob("*.json"))) > 0
    assert bool(problems) == code
    assert all("--limit" in problem for problem in problems)


def test_samples_need_questions_that_both_results_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_runs(tmp_path)
    assert main(["samples", str(first), "--output_path", str(tmp_path / "one")]) == 0
    assert "4 questions in" in capsys.readouterr().out
    page = (tmp_path / "one" / "index.html").read_text()
    assert page.count("</script>") == 2, "no text of a model stands in it as it is"
    assert main(["samples", str(first), str(second), "--output_path", str(tmp_path / "two")]) == 0
    for path in second.parent.glob("*.jsonl"):
        path.unlink()
    assert main(["samples", str(first), str(second), "--output_path", str(tmp_path / "none")]) == 1
    assert "no questions are logged beside" in capsys.readouterr().err


def test_rows_link_to_the_questions_of_their_results(tmp_path: Path) -> None:
    two_runs(tmp_path / "results")
    for path in (tmp_path / "results" / "b").glob("*.jsonl"):
        path.unlink()
    for flags, expected in (["--samples"], 1), ([], 0):
        assert main(["build", str(tmp_path / "results"), "--output_path", str(tmp_path / "site"), *flags]) == 0
        linked = re.findall(r'<a href="(questions/[^"]+)"', (tmp_path / "site" / "index.html").read_text())
        assert len(linked) == expected
        assert all((tmp_path / "site" / one).is_file() for one in linked)
        assert (tmp_path / "site" / "questions").exists() == bool(expected)
