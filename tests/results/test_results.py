"""The room results/: files, names, the suite's facts, statistics, samples, and all of a folder as one table."""

import gzip
import json
import math
import runpy
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results import load, plot, suite
from mdlm_lm_eval.results.files import UnusableFile, read_json, whole_folder, write_whole
from mdlm_lm_eval.results.frontier import Contender, frontier_marks, measure_of_speed, parallel_bench
from mdlm_lm_eval.results.names import adapter_name, model_name, recorded_name
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.samples import read_scores, samples_path
from mdlm_lm_eval.results.statistics import (
    Interval,
    Score,
    clustered_interval,
    comparisons,
    correlation_interval,
    difference,
    holm,
    interval_over_tasks,
    median_of_seeds,
    score_of_sets,
    score_of_tasks,
    score_over_rules,
    t_interval,
    wilson,
)
from mdlm_lm_eval.tasks.questions import N_TEST_QUESTIONS
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS
from tests.conftest import data
from tests.conftest import suite as suite_tasks
from tests.support.leaderboard_files import TASKS, gsm8k_file, result_file, six_cells, suite_file, write

# Statistics


def test_a_correlations_interval_is_fishers() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 8))
    r = stats.pearsonr(x, y)
    low, high = r.confidence_interval()
    assert correlation_interval(float(r.statistic), 8) == pytest.approx((low, high))
    assert correlation_interval(0.25, 8) == pytest.approx((-0.55, 0.81), abs=0.005), "-0.28 to 0.66 with 16"
    assert correlation_interval(0.25, 3) is None


def test_a_clustered_interval_is_that_of_the_clusters_means() -> None:
    rng = Random(0)
    scores = {task: rng.random() for task in TASKS}
    by_rule = [np.mean([scores[task] for task in TASKS if task.startswith(rule)]) for rule in {t[:4] for t in TASKS}]
    found, of_means = interval_over_tasks(scores), t_interval([*map(float, by_rule)])
    assert (found.mean, found.low) == pytest.approx((of_means.mean, of_means.low))
    # Clusters of several sizes: the residuals' sums, as in a regression on a constant with clustered errors.
    values, clusters = [1.0, 2.0, 6.0], ["a", "a", "b"]
    error = math.sqrt(2 / 1 * ((1 - 3 + 2 - 3) ** 2 + (6 - 3) ** 2)) / 3
    assert clustered_interval(values, clusters).half_width == pytest.approx(stats.t.ppf(0.975, 1) * error)
    assert t_interval([0.5]) == Interval(0.5)


def test_a_score_of_independent_questions_has_wilsons_interval() -> None:
    low, high = stats.binomtest(93, 96).proportion_ci(method="wilson")
    assert wilson(93 / 96, 96) == pytest.approx((low, high), abs=1e-6)
    found = score_of_sets({"task": [(n, float(n >= 30)) for n in range(1000)]}).interval
    expected = stats.binomtest(970, 1000).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=2e-4)
    assert score_of_tasks([0.97], [1000]).interval.low == pytest.approx(found.low, abs=1e-4)


def test_a_differences_interval_is_that_of_its_test() -> None:
    """Student's t over questions, with one more answer that differs; zero is outside just where p is below 0.05."""
    rng, seen = np.random.default_rng(0), set()
    for n in (8, 48, 164) * 40:
        right = rng.random((2, n)) < rng.uniform(0.02, 0.98, size=(2, 1))
        values = right[1] * 1.0 - right[0]
        error = math.sqrt(np.var(values, ddof=1) / n + n**-2)
        first, second = (score_of_sets({"task": [*enumerate(own * 1.0)]}) for own in right)
        found, p = difference(first, second), comparisons([first, second])[0, 1]
        assert found.mean == pytest.approx(values.mean())
        assert found.high == pytest.approx(min(values.mean() + stats.t.ppf(0.975, n - 1) * error, 1))
        assert p == pytest.approx(2 * stats.t.sf(abs(values.mean()) / error, n - 1))
        assert found.is_significant == (p < 0.05)
        seen.add(found.is_significant)
    assert seen == {True, False}


def answered(right: Iterable[bool], size: int = 3) -> Score:
    """Sets of `size` questions, one in each task."""
    of_tasks = [[(n // size, float(one)) for n, one in enumerate(right) if n % size == task] for task in range(size)]
    return score_of_sets(dict(zip(TASKS, of_tasks, strict=False)))


def test_no_interval_of_a_share_is_beyond_it_or_empty() -> None:
    full, one_wrong = answered([True] * 300), answered([False] + [True] * 299)
    assert full.interval.high == 1
    assert 0.95 < (full.interval.low or 0) < (one_wrong.interval.low or 0) < 1
    alike = difference(full, full)
    assert -0.05 < (alike.low or 0) < 0 < (alike.high or 0) < 0.05
    assert difference(answered([False] * 300), full).low == pytest.approx(1, abs=0.08)
    half = answered([True, True, True, False, False, False] * 50)
    assert 0 < (difference(half, half).half_width or 0) < (difference(half, full).half_width or 0), "paired by set"
    assert answered([True] * 3).interval == Interval(1.0), "one set says nothing"


def test_one_answer_of_several_is_no_mean() -> None:
    """Filters such as `take_first` leave one of a question's 64 answers: 4 changes of 38 questions decide nothing."""
    before, after = (score_of_sets({"": [*enumerate([0.0] * n + [1.0] * (38 - n))]}, 64) for n in (20, 16))
    assert not difference(before, after).is_significant
    assert score_of_sets({"": [*enumerate([0.0] * 19 + [0.25] + [1.0] * 18)]}, 64).n == 38 * 64


def test_a_score_of_many_slots_is_as_sure_as_its_slots_are() -> None:
    """Eight sheets of 16 slots, of which two settings fill two sheets differently, by a slot each."""
    right = [14, 15, 13, 16, 14, 15, 12, 16]
    first = score_of_sets({"sheet": [(n, slots / 16) for n, slots in enumerate(right)]})
    other = score_of_sets({"sheet": [(n, (slots - (n < 2)) / 16) for n, slots in enumerate(right)]})
    as_values = t_interval([-1 / 16, -1 / 16, *[0.0] * 6]).half_width or 0
    assert as_values < (difference(first, other).half_width or 0) < 3 * as_values, "16 times that by whole sheets"
    assert 0 < (difference(first, first).half_width or 0) < 0.05, "never empty"
    assert 0 < (score_of_sets({"sheet": [(n, 7 / 16) for n in range(8)]}).interval.half_width or 0) < 0.05


def test_a_sheets_interval_is_the_same_without_its_samples(tmp_path: Path) -> None:
    shares = [slots / 16 for slots in [14, 15, 13, 16, 14, 15, 12, 16] * 4]
    shutil.unpack_archive(Path(__file__).parents[2] / "leaderboard/generated_tasks.tar.xz", tmp_path, filter="data")
    content = read_json(tmp_path / "generated_tasks/traced/results_cell.json")
    shutil.rmtree(tmp_path / "generated_tasks")
    content["results"]["mdlm_sheet"] |= {"acc,none": fmean(shares), "acc_stderr,none": stdev(shares) / math.sqrt(32)}
    content["n-samples"]["mdlm_sheet"]["effective"] = 32
    (tmp_path / "results.json").write_text(json.dumps(content))
    (row,) = load(tmp_path, columns="all").query("metric == 'acc,none'").itertuples()
    expected = score_of_sets({"mdlm_sheet": [*enumerate(shares)]}).interval
    assert (row.low, row.high) == pytest.approx((expected.low, expected.high))


def test_answers_of_another_run_in_a_cache_give_no_interval(tmp_path: Path) -> None:
    """A request cache holds first tokens of questions that this run did not ask."""
    ends = []
    for n, letters in (("alone", "R" * 8 + "W" * 2), ("cached", "R" * 32 + "W" * 8)):
        record = {"first_token": {"letters": letters, "entropy": 0.5}}
        path = tmp_path / n / "results_2026.json"
        path.parent.mkdir()
        path.write_text(json.dumps(suite_file(limit=10, accuracy=0.8, spread=0.0, task_record=record)))
        rows = load(path.parent).query("not is_group")
        ends.append((rows["low"].iloc[0], rows["high"].iloc[0]))
    (low, high), other = ends
    assert other == pytest.approx((low, high), abs=0.02)
    assert high - low > 0.4


def test_a_score_that_is_no_share_has_the_interval_of_its_standard_error(tmp_path: Path) -> None:
    for error, expected in ((0.5, (5 - 0.98, 5 + 0.98)), (0.0, (None, None))):
        content = gsm8k_file(5.0)
        content["results"]["gsm8k"]["exact_match_stderr,flexible-extract"] = error
        (tmp_path / "results.json").write_text(json.dumps(content))
        (row,) = load(tmp_path, columns="all").replace({float("nan"): None}).itertuples()
        assert (row.low, row.high) == pytest.approx(expected, abs=0.001)


def test_questions_of_a_set_are_a_cluster_and_rules_are_fixed() -> None:
    together, apart = answered([True] * 150 + [False] * 150), answered([True, False] * 150)
    assert (together.interval.half_width or 0) > 1.5 * (apart.interval.half_width or 0)
    # One task is always right, the other never: with rules fixed there is next to nothing that varies.
    of_rules = {"verb_largest": [(n, 1.0) for n in range(500)], "object_largest": [(n, 0.0) for n in range(500)]}
    fixed = score_of_sets(of_rules)
    random = score_over_rules({"verb_largest": 1.0, "object_largest": 0.0}, 1000)
    assert (fixed.interval.half_width or 0) < 0.01 < 0.4 < (random.interval.half_width or 0)
    assert score_over_rules({"country_largest": 1.0, "capitalised_largest": 0.0}, 1000).n_clusters == 1, "related"


@pytest.mark.parametrize("n", [3, 20])
def test_seeds_are_random_and_paired_in_their_order(n: int) -> None:
    few = [score_of_tasks([0.9 - seed / 100], [1000]) for seed in range(n)]
    many = [score_of_tasks([0.85 - seed / 100], [1000]) for seed in range(n)]
    of_few, of_many = median_of_seeds(few), median_of_seeds(many)
    lost, to_one = difference(of_many, of_few), difference(few[0], of_few)
    assert lost.mean == pytest.approx(0.05)
    assert to_one.mean == pytest.approx(-0.005 * (n - 1))
    p = comparisons([of_few, of_many, few[0]])
    if n < 8:
        assert (lost.low, lost.values, p[0, 1]) == (None, pytest.approx((0.05,) * n), 1)
        assert of_few.interval.in_words == "0.9 (median of 0.9, 0.9, 0.9)"
    else:
        assert (lost.low, lost.high) == pytest.approx((0.05, 0.05))
        assert (of_few.interval.low, of_few.interval.high) == pytest.approx((0.76, 0.85))
        assert p[0, 1] == p[1, 0] < 0.001
        assert (to_one.is_significant, p[0, 2] < 0.001) == (True, True)
    assert median_of_seeds(few[:1]) == few[0]


@pytest.mark.parametrize("row", [3, 14])
def test_the_intervals_in_use_cover_95_percent(row: int) -> None:
    """Some rows of the table in benchmarks/README.md, with fewer repetitions."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/interval_coverage.py"))
    (found,) = script["coverage"](script["CASES"][row], 200)
    assert 90 <= found <= 99.5


def test_ranks_of_a_table_are_corrected_together() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])  # Holm: 0.005 * 4 and 0.01 * 3 are small, 0.03 * 2 is not
    assert holm(p).tolist() == [True, False, False, True]
    rng = np.random.default_rng(0)
    scores = [answered(rng.random(900) < accuracy) for accuracy in (0.95, 0.9, 0.9)]
    found = comparisons(scores)
    assert found[0, 1] < 1e-3 < 0.05 < found[1, 2]


# Files and names


def test_a_file_or_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "new" / "file.json", "one")
    assert read_json(write(tmp_path, a={"x": 1}) / "a.json") == {"x": 1}
    with pytest.raises(UnusableFile, match="cannot be read as JSON"):
        read_json(tmp_path / "new" / "file.json")
    with pytest.raises(UnusableFile, match="No such file"):
        read_json(tmp_path / "missing.json")
    (tmp_path / ".cell.unfinished").mkdir()
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "cell") as folder:
        (folder / "new" / "newer").write_text("")
    for text in ("1", "2"):
        with whole_folder(tmp_path / "cell") as folder:
            (folder / "new").write_text(text)
    assert (tmp_path / "cell" / "new").read_text() == "2"
    assert {path.name for path in tmp_path.iterdir()} == {"new", "a.json", "cell"}


def test_models_are_called_by_hub_id_or_last_part(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert (model_name(None), model_name("built-in-block")) == ("built-in", "built-in-block")
    assert model_name(str(tmp_path / "mine")) == "mine"
    assert recorded_name("GSAI-ML/LLaDA-8B-Base") == "GSAI-ML/LLaDA-8B-Base"
    assert recorded_name("/home/me/out/ce") == recorded_name("C:\\out\\ce") == recorded_name("../out/ce") == "ce"
    assert recorded_name("/venv/site-packages/mdlm_lm_eval/default_model") == "built-in"


@pytest.mark.parametrize(("card", "name"), data("cases.json")["cards of adapters"])
def test_an_adapter_is_called_what_its_card_says(tmp_path: Path, card: str, name: str) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "README.md").write_text(card)
    assert adapter_name(str(tmp_path / "adapter")) == name
    assert adapter_name("organisation/adapter") == "organisation/adapter"


# The suite


def test_the_suite_is_that_of_the_tasks_folder() -> None:
    task = suite_tasks().load(["mdlm_verb_smallest"])["tasks"]
    recorded = task["mdlm_verb_smallest"].config.metadata
    assert {name: recorded[name] for name in DEFAULT_SETTINGS} == DEFAULT_SETTINGS
    assert recorded["version"] == suite.current_version()
    assert len(task["mdlm_verb_smallest"].test_docs()) == N_TEST_QUESTIONS
    for folder in ("context", "slot", "position", "locality"):
        for path in (tasks_path() / folder).glob("mdlm_*_*est*.yaml"):
            found = suite.suite_task(path.stem)
            assert found
            assert found.group.startswith(f"mdlm_{folder}")
    rules = suite.suite_task("mdlm_rules_verb_largest_pos10")
    assert rules
    assert (rules.task, rules.asks, rules.group) == ("verb_largest", "mdlm_rules", "mdlm_rules_position_pos10")
    assert suite.suite_task("mdlm_context") is suite.suite_task("mdlm_country_smallest_slot_pos0") is None
    clusters = [
        suite.cluster_of(name) for name in ("mdlm_verb_largest_slot", "verb_smallest", "mdlm_rules_verb_largest")
    ]
    assert {*clusters, suite.cluster_of("gsm8k")} == {"verb", "gsm8k"}


# Samples


def test_tasks_of_a_group_have_one_name_in_all_releases_of_lm_eval(tmp_path: Path) -> None:
    """Version 0.5 writes `group::task`, also in the names of sample files."""
    content = suite_file()
    (group,) = content["group_subtasks"]
    (tmp_path / "results_now.json").write_text(json.dumps(content))
    for part in ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples"):
        content[part] = {name if name == group else f"{group}::{name}": one for name, one in content[part].items()}
    content["group_subtasks"] = {group: [f"{group}::{name}" for name in content["group_subtasks"][group]]}
    (tmp_path / "results_later.json").write_text(json.dumps(content))
    now, later = (read_result_file(tmp_path / f"results_{when}.json") for when in ("now", "later"))
    assert (now.tasks, now.groups, now.group_results) == (later.tasks, later.groups, later.group_results)
    name = f"samples_{group}::{next(iter(now.tasks))}_later.jsonl"
    (tmp_path / name).touch()
    assert samples_path(later.place, next(iter(now.tasks))) == tmp_path / name
    assert samples_path(now.place, next(iter(now.tasks))) is None


def test_samples_are_read_compressed_too(tmp_path: Path) -> None:
    result = tmp_path / "my_run_2026-01-31.json"
    of_all = {"doc_hash": "a", "filter": "none", "metrics": ["acc"]}
    text = "".join(json.dumps(of_all | {"doc_id": n, "acc": 1 - n}) + "\n" for n in (0, 1))
    with gzip.open(tmp_path / "samples_t_2026-01-31.jsonl.gz", "wt") as file:
        file.write(text)
    path = samples_path(result, "t")
    assert path
    assert samples_path(result, "u") is None
    assert read_scores(path) == {"acc,none": {(0, "a", ""): 1.0, (1, "a", ""): 0.0}}
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnusableFile, match="cannot be read"):
        read_scores(path)


# One table of a folder


def test_load_has_a_row_per_file_task_and_metric(tmp_path: Path) -> None:
    traced = {"trace": [{"doc_id": 0, "text": "a"}]}  # of one answer
    of_suite = suite_file(n_masks=200, task_record=traced)
    metrics = {"wikitext": {"acc,none": 0.5, "word_perplexity,none": 12.5}}
    of_texts = result_file(metrics, output_type="loglikelihood_rolling", mc_num=16)
    write(six_cells(tmp_path), cut='{"results": {', suite=of_suite, lik=of_texts)
    with pytest.warns(UserWarning, match=r"cut.json is left out: it cannot be read as JSON"):
        frame = load(tmp_path, columns="all")
    assert len(frame) == 6 + 17 + 2
    (row,) = frame[frame["file"] == "d.json"].itertuples()
    assert (row.task, row.metric, row.score, row.n) == ("gsm8k", "exact_match,flexible-extract", 0.705, 1319)
    assert row.confidence_threshold == 0.9
    assert row.setting == "5-shot, confidence_threshold=0.9, bfloat16"
    assert (row.tokens_per_pass, row.seconds, row.memory_gib) == (pytest.approx(100 / 90), pytest.approx(0.9), 2.0)
    n = 0.705 * 0.295 / 0.012**2
    assert (row.low, row.high) == pytest.approx(wilson(0.705, n), abs=1e-4), "and Student's t of 1318 degrees"
    (group,) = frame[frame["is_group"]].itertuples()
    assert (group.task, group.masks, group.group) == ("mdlm_context", 200, "")
    assert group.high - group.score == pytest.approx(1.96 * (0.8 * 0.2 / 16000) ** 0.5, rel=0.05)
    words = frame[frame["file"] == "lik.json"].set_index("metric")["is_accuracy"]
    assert words.to_dict() == {"acc,none": True, "word_perplexity,none": False}
    assert read_result_file(tmp_path / "suite.json").tasks["mdlm_verb_largest"].options["n_masks"] == 200


def test_a_groups_metric_and_settings_are_of_the_tasks_that_have_them(tmp_path: Path) -> None:
    metrics = {"a": {"acc,none": 0.5, "acc_stderr,none": 0.11}, "b": {"exact_match,none": 0.9}}
    content = result_file(metrics, asked=20) | {"groups": {"g": metrics["a"]}, "group_subtasks": {"g": ["a", "b"]}}
    (both,) = content["config"]["mdlm"]["settings"]
    other = both | {"options": both["options"] | {"temperature": 1.0, "steps": 4}, "tasks": ["b"]}
    content["config"]["mdlm"]["settings"] = [both | {"tasks": ["a"]}, other]
    content["n-shot"]["b"] = 0
    write(tmp_path, of=content)
    frame = load(tmp_path, "all").set_index(["task", "metric"])
    facts = ["n", "score", "low", "high"]
    assert [*frame.loc[("g", "acc,none"), facts]] == [*frame.loc[("a", "acc,none"), facts]]
    of = "5 and 0-shot, 40 chosen questions of 2638, bfloat16, steps=4 in 1 of 2 tasks, temperature=1.0 in 1 of 2 tasks"
    assert (frame.loc[("g", "acc,none"), "setting"], frame.loc[("b", "exact_match,none"), "temperature"]) == (of, 1)
    assert np.isnan([*frame.loc[("g", "acc,none"), ["shots", "temperature", "steps"]]]).all()


def of_03(content: dict[str, Any], remasking: str) -> dict[str, Any]:
    """The same as version 0.3 recorded it: `remasking` in the place of `sampler`."""
    content = json.loads(json.dumps(content))
    mdlm = content["config"]["mdlm"]
    for options in (mdlm["decoding"], *(one["options"] for one in mdlm["settings"])):
        del options["sampler"]
        options["remasking"] = remasking
    content["config"]["model_args"] |= {"remasking": remasking}
    return content


def test_results_of_version_03_compare_with_those_of_today(tmp_path: Path) -> None:
    taken_back = {"sampler": "rcr", "schedule": "maskgit_linear"}
    of_today = {"plain": gsm8k_file(steps=8), "rcr": gsm8k_file(**taken_back)}
    before = {"plain": of_03(gsm8k_file(steps=8), "none"), "rcr": of_03(gsm8k_file(**taken_back), "rcr")}
    write(tmp_path / "of_03", **before)
    write(tmp_path / "of_today", **of_today)
    frame = load(tmp_path, columns="all").set_index("file")
    for name, setting in {"plain": "steps=8", "rcr": "schedule=maskgit_linear, sampler=rcr"}.items():
        for folder in ("of_03", "of_today"):
            row = frame.loc[f"{folder}/{name}.json"]
            assert row["setting"] == f"5-shot, {setting}, bfloat16"
            assert row["sampler"] == ("auto" if name == "plain" else "rcr")


def test_load_has_the_columns_that_a_person_reads(tmp_path: Path) -> None:
    write(tmp_path, **{f"m{n}": gsm8k_file(masks=n, n_masks=n) for n in (2, 200)})
    frame = load(tmp_path)
    assert len(frame.columns) <= 13
    assert {*frame["masks"]} == {2, 200}
    with pytest.raises(OptionError, match="a figure needs all columns"):
        plot.masks(frame)


def test_a_frontier_of_equal_tokens_per_pass_is_of_tokens_per_second(tmp_path: Path) -> None:
    """Caches make passes cheaper and not fewer."""
    for cache, seconds in {"none": 256, "prefix": 192, "dual": 128}.items():
        spent = {"forward_passes": 256, "answer_tokens": 256, "seconds": seconds}
        write(tmp_path, **{cache: gsm8k_file(0.7, cache=cache, block_length=32, task_record={"cost": spent})})
    frame = load(tmp_path, columns="all")
    figure = plot.frontier(frame)
    assert figure.axes[0].get_xlabel() == "tokens per second"
    with pytest.raises(plot.NothingToDraw, match="differ in tokens per pass"):
        plot.frontier(frame, "tokens_per_pass")
    with pytest.raises(plot.NothingToDraw, match="differ in their number of masks"):
        plot.masks(frame)


def test_a_line_joins_only_what_the_board_would_put_into_one_table(tmp_path: Path) -> None:
    cells = {f"all{n}": gsm8k_file(0.7 - n / 1000, masks=n, n_masks=n) for n in (2, 200)}
    cells |= {f"few{n}": gsm8k_file(0.9, masks=n, n_masks=n, asked=10, limit=10) for n in (2, 50, 200)}
    cells |= {f"other{n}": gsm8k_file(0.4, masks=n, n_masks=n, weights="b" * 64) for n in (2, 200)}
    write(tmp_path, **cells)
    with pytest.warns(UserWarning, match="not comparable, and are not drawn together: all questions; limit=10.0"):
        figure = plot.masks(tmp_path)
    assert figure
    whole, limited = figure.axes
    assert [[*line.get_ydata()] for line in whole.lines] == [pytest.approx([69.8, 50.0]), pytest.approx([40, 40])]
    assert [[*line.get_xdata()] for line in limited.lines] == [[2, 50, 200]]
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert labels == [["organisation/model (aaaaaaa)", "organisation/model (bbbbbbb)"], ["organisation/model"]]
    write(tmp_path, again=gsm8k_file(0.6, masks=2, n_masks=2))
    with pytest.warns(UserWarning, match="disagree, and are left out: again.json, all2.json"):
        figure = plot.masks(tmp_path)
    assert figure
    assert [[*line.get_ydata()] for line in figure.axes[1].lines] == [pytest.approx([40, 40])]


@pytest.mark.parametrize(("points", "least", "tokens"), data("cases.json")["ParallelBench"])
def test_pb90_is_absolute_and_not_interpolated(points: list[list[float]], least: float, tokens: float | None) -> None:
    assert parallel_bench([(speed, score) for speed, score in points], least) == tokens


def test_a_clock_that_is_a_little_faster_beats_nothing() -> None:
    """Identical runs differ by as much; what is counted is the same in each run."""
    by_clock, counted = (
        [Contender(n, by, 50.0) for n in (37.4, 36.9)] for by in ("tokens_per_second", "tokens_per_pass")
    )
    assert (frontier_marks(by_clock), frontier_marks(counted)) == (["hollow", "hollow"], ["on", ""])
    costs = [{"tokens_per_second": speed, "positions_per_token": 153.0} for speed in (37.4, 36.9, 120.0)]
    assert measure_of_speed(costs[:2], is_one_machine=True) is None
    assert measure_of_speed(costs, is_one_machine=True) == "tokens_per_second"
    assert measure_of_speed([*costs, {"positions_per_token": 75.0}], is_one_machine=True) == "positions_per_token"
