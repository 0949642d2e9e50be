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
from mdlm_lm_eval.results.text import UNMEASURED
from tests.board.conftest import Typed
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
    assert "accuracy of built-in-instruct falls from 70.7% to 0.1%, because 99.5% of its answers" in page.text
    assert "Other settings" in page.text
    markdown = (site / "out" / "LEADERBOARD.md").read_text()
    for line in markdown.splitlines():
        assert not line.startswith("|") or line.count("|") > 3
    assert "| 1 | built-in | 87.7 (87.2 to 88.2) | 98.4 (98.2 to 98.6) | 10.7 (10.2 to 11.2) | 88.0" in markdown
    notes = [line for line in markdown.splitlines() if line.startswith("- built-in ")]
    assert len(notes) == 1, "once, though the model is in three tables"
    assert notes[0].removeprefix("- ").replace("`", "") in page.text
    assert [path.name for path in (site / "out" / "figures").glob("*.svg")] == ["headline.svg"]


def test_details_show_labels_places_and_the_models_report(tmp_path: Path, typed: Typed) -> None:
    cells = {f"n{n}": suite_file(n_masks=n, limit=9) for n in (2, 200)}
    cells |= {f"p{n}": suite_file(variant=f"_right_pos{n}", limit=9, accuracy=0.5 + n / 100) for n in (0, 40)}
    cells["wrong"] = suite_file(n_masks=2, limit=9, accuracy=0.125, spread=0.0)
    for of_task in cells["wrong"]["configs"].values():
        of_task["metadata"] |= {"fewshot_labels": "wrong"}
    for name, content in cells.items():
        write(tmp_path / "results/built-in" / name, results_cell=content)
    plan = {"cells": {f"built-in/{name}": {"questions": 9} for name in cells}, "declared": {}, "left_out": {}}
    write(tmp_path / "results/built-in", plan=plan)
    typed("build", tmp_path / "results", "--output", tmp_path / "out")
    page = Page(tmp_path / "out" / "index.html")
    assert "report/index.html#model-0" in page.links
    assert "model-0" in Page(tmp_path / "out" / "report/index.html").ids
    text = " ".join(page.text.split())
    assert "Labels of the examples: accuracy (%) by number of appended masks" in text
    assert "true80.0 (" in text
    assert "wrong12.5 (" in text
    assert ", fewshot_labels=wrong," in typed("show", tmp_path / "results/built-in/wrong/results_cell.json")
    assert "8 billion parameters" in text
    assert "Position of the relevant block, question right: accuracy (%) by number of distractor examples" in text


def test_headline_table_and_figure_say_the_same(site: Path) -> None:
    page, markdown = Page(site / "out" / "index.html").text, (site / "out" / "LEADERBOARD.md").read_text()
    figure = (site / "out" / "figures" / "headline.svg").read_text()
    comments = re.findall(r"<!-- (.*?) -->", figure, re.DOTALL)  # matplotlib names every text that it draws
    losses = {text.partition(": drop ")[2].removesuffix(", not significant") for text in comments if ": drop " in text}
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
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / "CNAME").write_text("example.org")
    (out / "figures" / "old.svg").touch()
    assert main(["build", str(results), "--output", str(out)]) == 0, "an output inside the results is not read"
    assert {path: path.read_bytes() for path in before} == before
    assert (out / "CNAME").exists()
    assert not (out / "figures" / "old.svg").exists()
    assert {path.name for path in results.iterdir() if not path.name.endswith(".json")} == {"site"}


def test_a_failed_build_leaves_the_old_output(tmp_path: Path, six_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = shutil.copytree(six_built / "site", tmp_path / "site")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mdlm_leaderboard.build.write_page", fail)
    with pytest.raises(SystemExit):
        main(["build", str(six_built), "--output", str(out)])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_folder_of_ones_own_has_no_published_rows_and_its_settings_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    write(six_cells(tmp_path / "my-sweep"), cut="{")
    monkeypatch.chdir(tmp_path)
    said = typed("build", "my-sweep", "--output_path", "site")
    assert said.startswith("6 rows in site/index.html and site/LEADERBOARD.md\nnot used: cut.json: cannot be read as")
    page = Page(tmp_path / "site" / "index.html")
    assert "Results of organisation/model" in page.text
    assert "published" not in page.text.lower()
    assert "figures/frontier.svg" in page.links
    assert "confidence_threshold=0.7 is 5.1 times faster and 5.0 (1.7 to 8.3) points worse than steps=256." in page.text
    typed("build", "my-sweep", "--output", "site", "--baseline", "steps=128", "--strict", code=1)
    markdown = (tmp_path / "site" / "LEADERBOARD.md").read_text()
    unpaired = "Differences in points are from steps=128, unpaired (see --log_samples)."
    for words in ("| 69.5 (67.1 to 71.8) ◇ |", "| 71.0, +1.5 (", unpaired):
        assert words in markdown
    said = typed("build", "my-sweep", "--output", "site", "--baseline", "steps=7", code=2)
    assert re.search("--baseline steps=7: no row has these words, which are parts of .*steps=256", said)
    assert "holds no usable result file" in typed("build", "site", "--output", "x", code=2)


def test_what_is_not_significant_is_a_figure_and_no_finding(tmp_path: Path, typed: Typed) -> None:
    write(tmp_path / "r", a=gsm8k_file(0.50, passes=100), b=gsm8k_file(0.49, passes=50, steps=50))
    typed("build", tmp_path / "r", "--output", tmp_path / "site")
    page = Page(tmp_path / "site" / "index.html")
    assert "faster" not in page.text.replace("faster and no worse", "")
    assert "figures/frontier.svg" in page.links
    figure = (tmp_path / "site" / "figures" / "frontier.svg").read_text()
    assert "circles: exact" in figure
    for absent in ("guest", "approximate", "grey"):
        assert absent not in figure + page.text, "keys explain what is there"


def test_submitted_rows_are_told_from_measured_ones(tmp_path: Path, typed: Typed) -> None:
    write(tmp_path / "r", mine=suite_file())
    write(tmp_path / "r" / "submitted" / "theirs", a=suite_file(pretrained="other/model", weights="b"))
    typed("build", tmp_path / "r", "--output", tmp_path / "site")
    markdown = (tmp_path / "site" / "LEADERBOARD.md").read_text()
    assert "| other/model | submitted |" in markdown
    assert "| built-in | measured here |" in markdown


# show


def test_show_prints_five_lines_about_a_result(tmp_path: Path, typed: Typed) -> None:
    audit = {"audit": {"requests": 10, "same_strings": 9, "exact_answers": []}}
    content = gsm8k_file(0.705, passes=90, confidence_threshold=0.9, task_record=audit)
    path = write(tmp_path, a=content) / "a.json"
    assert typed("show", path).splitlines() == [
        "score     organisation/model: gsm8k (exact_match,flexible-extract) 70.5 (68.1 to 72.8) (n=1319)",
        "settings  masks 256, steps 256, cache auto, no chat template, 5-shot, confidence_threshold=0.9, bfloat16",
        "speed     1.11 tokens per forward pass, 0.9 s per question, 2.00 GiB",
        "audit     9 of 10 answers are the same without the cache",
        f"file      {path}",
    ]
    content = result_file({name: {"exact_match,none": 0.5} for name in ("one", "two")})
    content["config"]["mdlm"]["tasks"]["two"] = {"requests": 1, "asked_masks": [8, 8], "cache": "dual"}
    assert "masks 8 to 256, steps 256, cache auto and dual" in typed("show", write(tmp_path, b=content) / "b.json")


def test_results_are_shown_without_torch(tmp_path: Path) -> None:
    write(tmp_path, a=suite_file(n_masks=2))
    code = "main(['show', sys.argv[1]]); print({'torch', 'transformers', 'lm_eval'} & {*sys.modules})"
    code = f"import sys; from mdlm_leaderboard.__main__ import main; {code}"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n")


def test_show_says_what_was_not_parsed_and_what_the_preset_was_for(tmp_path: Path, typed: Typed) -> None:
    content = gsm8k_file()
    content["config"]["mdlm"]["preset_mismatches"] = ["preset=a/b is for c, and the task is gsm8k"]
    answers = [(how, text) for how in ("strict-match", "none") for text in ("[invalid]", "", "5")]
    found = [{"filter": how, "filtered_resps": [text]} for how, text in answers]
    found += [{"filter": "strict-match", "filtered_resps": [texts]} for texts in (["[invalid]"], ["", "5"])]  # lists
    of_question = {"doc_id": 0, "doc_hash": "a", "metrics": []}
    lines = [json.dumps(of_question | one) + "\n" for one in found]
    path = write(tmp_path, results_1=content) / "results_1.json"
    (tmp_path / "samples_gsm8k_1.jsonl").write_text("".join(lines))
    shown = typed("show", path)
    assert "preset    preset=a/b is for c, and the task is gsm8k\n" in shown
    assert "unparsed  3 answers of gsm8k (strict-match)\n" in shown


def test_show_says_how_many_sets_are_right_in_all_askings(tmp_path: Path, typed: Typed) -> None:
    path = write(tmp_path, results_1=suite_file(start="mdlm_rules_", group="mdlm_rules")) / "results_1.json"
    askings = {"verb": (1, 1), "animal": (1, 0), "emotion": (1, 1)}  # of two sets, under each rule
    for rule, right in askings.items():
        common = {"doc_hash": "", "filter": "none", "metrics": ["exact_match"]}
        lines = [{"doc_id": n, "doc": {"set": f"largest_{n}"}, "exact_match": one} for n, one in enumerate(right)]
        text = "".join(json.dumps(line | common) + "\n" for line in lines)
        (tmp_path / f"samples_mdlm_rules_{rule}_largest_1.jsonl").write_text(text)
    assert "sets      right in all three askings: mdlm_rules 50.0% of 2 sets\n" in typed("show", path)


def test_show_says_who_served_and_what_is_unknown(tmp_path: Path, typed: Typed) -> None:
    audit = {"audit": {"requests": 10, "same_strings": 9, "exact_answers": []}}
    content = served(gsm8k_file(passes=90, task_record=audit), known=("confidence_threshold", "max_gen_toks"))
    _, settings, speed, audited, _ = typed("show", write(tmp_path, a=content) / "a.json").splitlines()
    assert settings.startswith("settings  served by sglang 0.5.23, no chat template, ")
    assert "settings unknown: n_masks, steps, " in settings
    assert "cache" in settings.partition("unknown: ")[2], "an unknown cache is not named as the one in effect"
    assert settings.endswith(" more"), "those that mean little where others are unknown are counted"
    assert speed.endswith("80 tokens per second, 2 requests per second, 8 requests at once")
    assert audited == "audit     9 of 10 answers are the same with --model mdlm"


# compare


def compared(
    typed: Typed, folder: Path, first: Any, second: Any, answers: tuple[list[int], list[int]] | None = None, **ends: int
) -> str:
    """Both as lm-eval names them, with samples of gsm8k."""
    date = "2026-01-31T12-00-00"
    for n, content in enumerate((first, second)):
        place = folder / str(n)
        if answers:
            write_answers(place, date, content, answers[n])
        else:
            write(place, **{f"results_{date}": content})
    return typed("compare", *(folder / f"{n}" / f"results_{date}.json" for n in (0, 1)), **ends)


def test_compare_says_a_difference_for_other_word_rules(tmp_path: Path, typed: Typed) -> None:
    second = suite_file(n_masks=200, accuracy=0.6, spread=0.3)
    said = compared(typed, tmp_path, suite_file(n_masks=2, pretrained="m"), second | {"x": 1})
    assert f"A: m (n_masks=2), {tmp_path / '0' / 'results_2026-01-31T12-00-00.json'}\n" in said
    assert (
        "built-in (n_masks=200) is 20.0 points below m (n_masks=2) on 16 tasks (exact_match, 16000 questions): "
        "-20.0 (-34.3 to -10.1), significant for other word rules." in said
    )
    assert "| mdlm_country_smallest | 90.0 | 90.0 | +0.0 |" in said


def test_a_folder_stands_for_its_newest_file_and_a_missing_one_is_named(tmp_path: Path, typed: Typed) -> None:
    for folder, score in (("one", 0.5), ("two", 0.7)):
        write(tmp_path / folder, a=gsm8k_file(score))
    by_file = typed("compare", tmp_path / "one" / "a.json", tmp_path / "two" / "a.json")
    assert typed("compare", tmp_path / "one", tmp_path / "two") == by_file
    write(tmp_path / "two" / "other", b=gsm8k_file())
    said = typed("compare", tmp_path / "one", tmp_path / "two", code=1)
    assert said.endswith(f"two holds results in 2 folders; name one, such as {tmp_path}/two/other\n")
    for words in (["show", "nosuch"], ["compare", "nosuch", tmp_path / "one"]):
        assert typed(*words, code=1) == "mdlm-leaderboard: nosuch does not exist\n"
    for words in (["samples", tmp_path / "onne", "--output_path", "page"], ["show", tmp_path / "onne"]):
        assert typed(*words, code=1).endswith("onne does not exist; did you mean one?\n")


@pytest.mark.parametrize("words", ["show cut", "compare whole cut", "samples cut --output_path page", "audit cut"])
def test_a_broken_file_is_named(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "whole", a=gsm8k_file(0.5))
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.json").write_text('{"results": ')
    assert typed(*words.split(), code=1).startswith("mdlm-leaderboard: cut/a.json cannot be read as JSON (")


def test_compare_takes_questions_one_by_one(tmp_path: Path, typed: Typed) -> None:
    right, better = [1] * 600 + [0] * 719, [1] * 580 + [0] * 20 + [1] * 80 + [0] * 639
    first, second = gsm8k_file(600 / 1319), gsm8k_file(660 / 1319, masks=512, n_masks=512)
    said = compared(typed, tmp_path, first, second, (right, better))
    assert "organisation/model (n_masks=512) is 4.5 points above organisation/model (n_masks=auto) on gsm8k" in said
    assert "on gsm8k (exact_match,flexible-extract, 1319 questions): +4.5 (+3.1 to +6.0), significant (t test" in said
    assert "80 questions are right only with organisation/model (n_masks=512), and 20 only with" in said
    alike = [1] * 590 + [0] * 10 + [1] * 12 + [0] * 707
    said = compared(typed, tmp_path, first, gsm8k_file(602 / 1319, steps=8), (right, alike))
    assert ": +0.2 (-0.6 to +0.9), not significant (t test over 1319 questions, p = 0.677). 12 questions are" in said
    assert UNMEASURED in said
    noise = {"task": "gsm8k", "change": {"dtype": "float32"}, "share": 0.006, "interval": [0.002, 0.018]}
    for file in (first, second):
        file["config"]["mdlm"]["check"] = {"verdict": "no fault", "stale": [], "noise_floor": noise}
    said = compared(typed, tmp_path, first, second, (right, better))
    flips = "Rounding alone (dtype=float32) flips 0.6% of answers (0.2% to 1.8%), 7.91 of these."
    assert re.search(rf"1319 questions, p < 0.001\). [^\n]*\. {re.escape(flips)}", said)
    assert UNMEASURED not in said
    second["config"]["mdlm"]["check"] = first["config"]["mdlm"]["check"] = {
        **file["config"]["mdlm"]["check"],
        "stale": ["dtype"],
    }
    assert UNMEASURED in compared(typed, tmp_path, first, second, (right, better))
    assert "--log_samples" not in said


def test_compare_has_an_interval_over_sets_without_samples(tmp_path: Path, typed: Typed) -> None:
    """From the first tokens that a run of the suite records; whether each question is equal is not known then."""
    sets = " ".join(f"set_{n}" for n in range(20))
    record = {"first_token": {"letters": "RW" * 10, "sets": sets, "entropy": 0.5}}
    files = [suite_file(n_masks=n, accuracy=0.5, spread=0.0, limit=20, task_record=record) for n in (2, 200)]
    said = compared(typed, tmp_path, *files)
    assert "built-in (n_masks=200) is level with built-in (n_masks=2) on 16 tasks (exact_match, 320 " in said
    assert "not significant (t test over 20 sets of questions, p = 1.000). Range over other word rules: +0.0 (" in said
    assert "right with" not in said


def test_compare_takes_chosen_questions_only_with_samples(tmp_path: Path, typed: Typed) -> None:
    first, second = gsm8k_file(0.5, asked=20), gsm8k_file(0.5, asked=20, steps=8)
    said = compared(typed, tmp_path / "without", first, second, code=1)
    assert "asked 20 chosen questions of 1319 of gsm8k, which only samples name" in said
    right = [1] * 10 + [0] * 10
    assert "equals" in compared(typed, tmp_path / "with", first, second, (right, right))


def test_compare_says_how_to_get_an_interval_and_that_equals_are_equal(tmp_path: Path, typed: Typed) -> None:
    first, second = gsm8k_file(600 / 1319), gsm8k_file(600 / 1319, steps=8, block_length=8)
    said = compared(typed, tmp_path / "without", first, second)
    assert "For a test over questions, run both with lm_eval's --log_samples.\n" in said
    assert "None" not in said
    right = [1] * 600 + [0] * 719
    said = compared(typed, tmp_path / "with", first, second, (right, right))
    assert "equals organisation/model (steps=auto) on gsm8k" in said
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
    score: float, verdicts: list[str], tmp_path: Path, typed: Typed
) -> None:
    """GSM8K's 70.0 of LLaDA's authors and 70.7 of dLLM; within 3 points by two one-sided tests."""
    content = gsm8k_file(score, masks=256, n_masks=256, steps=256)
    content["config"]["mdlm"] |= {"preset": "llada-8b-base/gsm8k-256", "preset_mismatches": []}
    write(tmp_path, a=content)
    lines = typed("compare", tmp_path / "a.json", "--published").splitlines()
    assert all(verdict in line for verdict, line in zip(verdicts, lines, strict=True)), lines
    assert "(dllm/llada-8b-base/gsm8k-256, 2026-04-14)" in lines[1]
    typed("build", tmp_path, "--output_path", tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text()
    assert "70.0 (llada-8b-base/gsm8k-256, 2026-06-25), 70.7 (dllm/llada-8b-base/gsm8k-256, 2026-04-14)" in page


def test_what_is_not_as_published_is_said(tmp_path: Path, typed: Typed) -> None:
    content = gsm8k_file(0.79, masks=256, n_masks=256, steps=64)
    content["config"]["mdlm"] |= {"preset": "fast-dllm/llada-8b-instruct/gsm8k", "preset_mismatches": []}
    write(tmp_path, a=content, b=gsm8k_file())
    said = typed("compare", tmp_path / "a.json", "--published")
    assert "not as published: steps=64, and the preset's is 256" in said
    assert "not as published: block_length=None, and the preset's is 32" in said
    assert "is no run of a preset" in typed("compare", tmp_path / "b.json", "--published", code=1)
    for words in (["a.json"], ["a.json", "b.json", "--published"]):
        typed("compare", *words, code=2)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (suite_file(suite_hash="b" * 64), f"the state of the suite differs: {HASH} and {'b' * 64}"),
        (suite_file(version="1.0"), "the version of mdlm_country_smallest differs"),
        (suite_file(limit=10), "the number of questions of mdlm_country_smallest differs: 1000 and 10"),
        (gsm8k_file(), "have no task and metric in common"),
    ],
)
def test_compare_refuses_other_questions(tmp_path: Path, second: Any, reason: str, typed: Typed) -> None:
    assert reason in compared(typed, tmp_path, suite_file(), second, code=1)


def test_compare_has_one_verdict_and_respects_clusters(tmp_path: Path, typed: Typed) -> None:
    """Of 48 questions about eight texts, one run alone has the six of one text right, the other run alone another."""
    before = [1] * 6 + [0] + [1] * 23 + [0] * 18
    after = [0] * 6 + [1] + [1] * 23 + [0] * 18
    of_task = {"metadata": {"version": 3.0, "cluster": "text"}}
    paths = []
    for n, right in enumerate((before, after)):
        content = gsm8k_file(sum(right) / 48, steps=16 - n, asked=48, limit=48)
        documents = [{"text": n // 6} for n in range(48)]
        paths.append(write_answers(tmp_path / str(n), "1", content, right, documents))
    (sentence,) = re.findall(r"^organ.*$", typed("compare", *paths), re.MULTILINE)
    assert sentence == (
        "organisation/model (steps=15) is 10.4 points below organisation/model (steps=16) on gsm8k "
        "(exact_match,flexible-extract, 48 questions): -10.4 (-22.0 to +1.2), not significant (t test over 48 "
        "questions, p = 0.076). 1 question is right only with organisation/model (steps=15), and 6 only with "
        "organisation/model (steps=16)."
    )
    by_text = typed("compare", "--cluster", "text", *paths)
    assert "-10.4 (-41.5 to +20.6), not significant (t test over 8 clusters by text, p = 0.454)" in by_text
    for path in paths:
        content = json.loads(path.read_text())
        content["configs"]["gsm8k"] |= of_task
        path.write_text(json.dumps(content))
    assert typed("compare", *paths) == by_text, "the field that the task's metadata name"
    assert "has a document without the field 'author': it has text" in typed(
        "compare", "--cluster", "author", *paths, code=1
    )


def test_power_is_that_of_the_paired_test(typed: Typed) -> None:
    """In 1,000 draws of answers of which half are alike in both runs."""
    asked = ["power", "--accuracy=60", "--difference=2", "--correlation=0.5"]
    (row,) = (line for line in typed(*asked, "--questions=1319").splitlines() if line.startswith("| 0.5"))
    needed, power = int(row.split(" | ")[1].replace(",", "")), int(row.split(" | ")[2].removesuffix("% |"))
    rng = np.random.default_rng(0)
    for n, expected in ((1319, power), (needed, 80)):
        first, own = rng.random((2, 1000, n), dtype=np.float32)
        second = np.where(rng.random((1000, n), dtype=np.float32) < 0.5, first, own)
        found = ttest_rel((first < 0.6) * 1.0, (second < 0.62) * 1.0, axis=1).pvalue < 0.05
        assert 100 * found.mean() == pytest.approx(expected, abs=5)
    for words, often in ("--repeats=8", needed / 8), ("--cluster=5", needed * 5):
        (row,) = (line for line in typed(*asked, words).splitlines() if line.startswith("| 0.5"))
        assert int(row.split(" | ")[1].removesuffix(" |").replace(",", "")) == pytest.approx(often, rel=0.01)
    assert "must differ, between 0 and 100" in typed("power", "--accuracy=60", "--difference=50", code=2)


# audit


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
def test_audit_scores_exact_answers_by_the_tasks_own_metric(tmp_path: Path, task_folder: Path, typed: Typed) -> None:
    audit = {"audit": {"exact_answers": [{"doc_id": 0}, {"doc_id": 1, "exact": "1"}]}}
    content = result_file({"tiny_generate": {"exact_match,none": 0.5}}, task_record=audit)
    folder = write(tmp_path, results_1=content)
    common = {"doc_hash": "", "filter": "none", "metrics": ["exact_match"], "resps": [["0"]]}
    lines = [{"doc_id": n, "doc": {"q": "", "a": n}, "exact_match": 1.0 - n} | common for n in (0, 1, 2)]
    (tmp_path / "samples_tiny_generate_1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in (folder / "results_1.json", folder):
        row = "| tiny_generate | exact_match | 1 of 2 | 50.0 | 100.0 | -50.0 | -100.0 to 100.0 |"
        assert row in typed("audit", path, "--include_path", task_folder)
    line = lines[0] | {"metrics": ["length"], "length": 80.0}
    (tmp_path / "samples_tiny_generate_1.jsonl").write_text(json.dumps(line) + "\n")
    row = "| tiny_generate | length | 1 of 2 | 80 | 80 | +0 | – |"
    assert row in typed("audit", folder, "--include_path", task_folder), "what is no share is in no percent"


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
        (served(suite_file(n_masks=2), version="unknown"), "does not record the engine's version"),
        (served(suite_file(n_masks=2), known=()), "(--model mdlm-server; settings must state n_masks)"),
        ("{", "cannot be read as JSON"),
        (result_file({"gsm8k": {"acc,none": 0.5}}, model="hf", pretrained=""), "names no model"),
    ],
)
def test_validate_names_what_prevents_a_submission(tmp_path: Path, content: Any, problem: str, typed: Typed) -> None:
    write(tmp_path, bad=content, good=suite_file(n_masks=2), served=served(suite_file(n_masks=2)))
    said = typed("validate", tmp_path, code=1)
    assert said.startswith(f"{tmp_path / 'good.json'}: ok\n{tmp_path / 'served.json'}: ok\n{tmp_path / 'bad.json'}: ")
    assert problem in said


@pytest.mark.parametrize(
    "folder", sorted(path for path in RESULTS.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_committed_results_are_valid_but_for_their_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And but for their suite's version, 2.1."""
    code = main(["validate", str(folder)])
    said, problems = (text.splitlines() for text in capsys.readouterr())
    problems = [problem for problem in problems if "is of suite version '2.1'; it must be 2.2" not in problem]
    assert len(said) + len(problems) == len(list(folder.rglob("*.json*"))) > 0
    assert bool(problems) == code
    assert all("--limit" in problem for problem in problems)


def test_samples_need_questions_that_both_results_have(tmp_path: Path, typed: Typed) -> None:
    first, second = two_runs(tmp_path)
    assert "4 questions in" in typed("samples", first, "--output_path", tmp_path / "one")
    page = (tmp_path / "one" / "index.html").read_text()
    assert page.count("</script>") == 2, "no text of a model stands in it as it is"
    typed("samples", first, second, "--output_path", tmp_path / "two")
    for path in second.parent.glob("*.jsonl"):
        path.unlink()
    assert "no questions are logged beside" in typed(
        "samples", first, second, "--output_path", tmp_path / "none", code=1
    )


def test_rows_link_to_the_questions_of_their_results(tmp_path: Path, typed: Typed) -> None:
    two_runs(tmp_path / "results")
    for path in (tmp_path / "results" / "b").glob("*.jsonl"):
        path.unlink()
    for flags, expected in (["--samples"], 1), ([], 0):
        typed("build", tmp_path / "results", "--output_path", tmp_path / "site", *flags)
        linked = re.findall(r'<a href="(questions/[^"]+)"', (tmp_path / "site" / "index.html").read_text())
        assert len(linked) == expected
        assert all((tmp_path / "site" / one).is_file() for one in linked)
        assert (tmp_path / "site" / "questions").exists() == bool(expected)
