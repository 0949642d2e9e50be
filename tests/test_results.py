"""The room results/: files, names, the suite's facts, statistics, samples, and all of a folder as one table."""

import gzip
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.results import load, plot, suite
from mdlm_lm_eval.results.files import UnusableFile, read_json, whole_folder, write_whole
from mdlm_lm_eval.results.names import adapter_name, model_name, recorded_name
from mdlm_lm_eval.results.parallelism import Point, accuracy_under_parallelism, frontier, tokens_at_quality
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.samples import read_scores, samples_path
from mdlm_lm_eval.results.statistics import (
    Interval,
    McNemar,
    clustered_interval,
    crossed_interval,
    interval_over_tasks,
    mcnemar,
    paired_bootstrap,
    paired_drop,
    paired_interval,
    t_interval,
)
from mdlm_lm_eval.tasks.questions import N_TEST_QUESTIONS
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS
from tests.conftest import data
from tests.conftest import suite as suite_tasks
from tests.leaderboard_files import TASKS, gsm8k_file, result_file, six_cells, suite_file, write

# Statistics


def test_a_t_interval_is_scipys() -> None:
    values = [0.5, 0.7, 0.6, 0.9]
    found = t_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    most = stats.t.ppf(0.95, 3, np.mean(values), stats.sem(values))
    assert found.most == pytest.approx(most)
    assert t_interval([0.5]) == Interval(0.5, None, None, 1)


def test_a_clustered_interval_is_that_of_the_clusters_means() -> None:
    rng = Random(0)
    scores = {task: rng.random() for task in TASKS}
    by_rule = [np.mean([scores[task] for task in TASKS if task.startswith(rule)]) for rule in {t[:4] for t in TASKS}]
    found, of_means = interval_over_tasks(scores), t_interval([*map(float, by_rule)])
    assert (found.mean, found.low, found.n) == pytest.approx((of_means.mean, of_means.low, 8))
    # Clusters of several sizes: the residuals' sums, as in a regression on a constant with clustered errors.
    values, clusters = [1.0, 2.0, 6.0], ["a", "a", "b"]
    error = math.sqrt(2 / 1 * ((1 - 3 + 2 - 3) ** 2 + (6 - 3) ** 2)) / 3
    assert clustered_interval(values, clusters).half_width == pytest.approx(stats.t.ppf(0.975, 1) * error)


@pytest.mark.parametrize("paired", [False, True], ids=["mean", "difference"])
def test_the_interval_over_tasks_covers_95_percent(paired: bool) -> None:
    """Two tasks of each of eight rules, whose scores share an effect of the rule (ICC 0.72, as measured)."""
    rng = np.random.default_rng(0)

    def drawn(mean: float) -> dict[str, float]:
        rules = np.repeat(rng.normal(0, math.sqrt(0.72), 8), 2)
        return dict(zip(TASKS, mean + 0.1 * (rules + rng.normal(0, math.sqrt(0.28), 16)), strict=True))

    n, clustered, independent, above = 1000, 0, 0, 0
    for _ in range(n):
        first, second = drawn(0.6), drawn(0.7)
        truth = 0.1 if paired else 0.7
        found = paired_interval(first, second) if paired else interval_over_tasks(second)
        values = [second[task] - first[task] if paired else second[task] for task in TASKS]
        naive = t_interval(values)
        clustered += found.low <= truth <= found.high  # type: ignore[operator]
        independent += naive.low <= truth <= naive.high  # type: ignore[operator]
        above += truth <= found.most  # type: ignore[operator]
    assert 0.93 < clustered / n < 0.97
    assert 0.93 < above / n < 0.97
    assert independent / n < 0.9, "tasks are not independent"


@pytest.mark.parametrize("effects", [(1, 1), (3, 1), (0.3, 3)], ids=str)
def test_the_interval_over_seeds_and_rules_covers_95_percent(effects: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    seeds, rules = rng.normal(0, effects[0], (1500, 5, 1)), rng.normal(0, effects[1], (1500, 1, 8))
    found = [crossed_interval(values.tolist()) for values in seeds + rules + rng.normal(0, 1, (1500, 5, 8))]
    covered = sum(one.low <= 0 <= one.high for one in found)  # type: ignore[operator]
    below = sum(one.most >= 0 for one in found)  # type: ignore[operator]
    assert 0.93 < covered / 1500 < 0.97
    assert 0.93 < below / 1500 < 0.97


def test_differences_are_paired() -> None:
    first, second = ({task: value + n / 100 for n, task in enumerate(TASKS)} for value in (0.5, 0.6))
    found = paired_interval(first, second)
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(0, abs=1e-12)
    assert paired_drop([second, first, second]).mean == pytest.approx(0.1)
    with pytest.raises(KeyError):
        paired_interval(first, {"verb_largest": 0.5})


def test_what_is_not_significant_is_said_with_its_bound() -> None:
    found = Interval(1.0, -0.9, 2.9, 8, -0.5, 2.5)
    assert found.with_significance == "1.0 ± 1.9, not significant (95%), at most 2.5"
    assert Interval(13.3, 4.0, 22.6, 8, 5.8, 20.8).with_significance == "13.3 ± 9.3"
    assert found.scaled(2).most == 5


def test_tests_on_questions() -> None:
    assert mcnemar([(1, 0)] * 2 + [(0, 1)] * 8 + [(1, 1)] * 5) == McNemar(2, 8, pytest.approx(0.109375))
    assert mcnemar([(1, 1)]).p == 1
    found = paired_bootstrap({"a": [(0, 1)] * 50 + [(1, 1)] * 50, "b": [(0, 0)] * 100})
    assert found.mean == pytest.approx(0.25)
    assert 0.18 < (found.low or 0) < (found.least or 0) < 0.25 < (found.high or 0) < 0.32


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


def test_samples_are_read_compressed_too(tmp_path: Path) -> None:
    result = tmp_path / "my_run_2026-01-31.json"
    of_all = {"doc_hash": "a", "filter": "none", "metrics": ["acc"]}
    text = "".join(json.dumps(of_all | {"doc_id": n, "acc": 1 - n}) + "\n" for n in (0, 1))
    with gzip.open(tmp_path / "samples_t_2026-01-31.jsonl.gz", "wt") as file:
        file.write(text)
    path = samples_path(result, "t")
    assert path
    assert samples_path(result, "u") is None
    assert read_scores(path) == {"acc,none": {(0, "a"): 1.0, (1, "a"): 0.0}}
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnusableFile, match="cannot be read"):
        read_scores(path)


# One table of a folder


def test_load_has_a_row_per_file_task_and_metric(tmp_path: Path) -> None:
    traced = {"trace": [{"doc_id": 0, "text": "a"}]}  # of one answer
    of_suite = suite_file(n_masks=200, task_record=traced)
    write(six_cells(tmp_path), cut='{"results": {', suite=of_suite, lik=likelihood_file())
    with pytest.warns(UserWarning, match=r"cut.json is left out: it cannot be read as JSON"):
        frame = load(tmp_path)
    assert len(frame) == 6 + 17 + 2
    (row,) = frame[frame["file"] == "d.json"].itertuples()
    assert (row.task, row.metric, row.score, row.n) == ("gsm8k", "exact_match,flexible-extract", 0.705, 1319)
    assert row.confidence_threshold == 0.9
    assert row.setting == "confidence_threshold=0.9, bfloat16"
    assert (row.tokens_per_pass, row.seconds, row.memory_gib) == (pytest.approx(100 / 90), pytest.approx(0.9), 2.0)
    assert row.high - row.score == pytest.approx(1.96 * 0.012)
    (group,) = frame[frame["is_group"]].itertuples()
    assert (group.task, group.masks, group.group) == ("mdlm_context", 200, "")
    assert group.high - group.score > 1.96 * 0.01, "clustered by word rule"
    words = frame[frame["file"] == "lik.json"].set_index("metric")["is_accuracy"]
    assert words.to_dict() == {"acc,none": True, "word_perplexity,none": False}
    assert read_result_file(tmp_path / "suite.json").tasks["mdlm_verb_largest"].options["n_masks"] == 200


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
    frame = load(tmp_path).set_index("file")
    for name, setting in {"plain": "steps=8", "rcr": "schedule=maskgit_linear, sampler=rcr"}.items():
        for folder in ("of_03", "of_today"):
            row = frame.loc[f"{folder}/{name}.json"]
            assert row["setting"] == f"{setting}, bfloat16"
            assert row["sampler"] == ("auto" if name == "plain" else "rcr")


def likelihood_file() -> dict[str, object]:
    metrics = {"wikitext": {"acc,none": 0.5, "word_perplexity,none": 12.5}}
    return result_file(metrics, output_type="loglikelihood_rolling", mc_num=16)


def test_a_frontier_of_equal_tokens_per_pass_is_of_seconds(tmp_path: Path) -> None:
    """Caches make passes cheaper and not fewer."""
    for cache, seconds in {"none": 256, "prefix": 192, "dual": 128}.items():
        spent = {"forward_passes": 256, "answer_tokens": 256, "seconds": seconds}
        write(tmp_path, **{cache: gsm8k_file(0.7, cache=cache, block_length=32, task_record={"cost": spent})})
    frame = load(tmp_path)
    figure = plot.frontier(frame)
    assert figure
    assert figure.axes[0].get_xlabel() == "seconds per question"
    with pytest.warns(plot.NothingToDrawWarning, match="differ in tokens per forward pass"):
        assert plot.frontier(frame, "tokens_per_pass") is None
    with pytest.warns(plot.NothingToDrawWarning, match="differ in their number of masks"):
        assert plot.masks(frame) is None


@pytest.mark.parametrize(("points", "best", "area"), data("parallelism.json")["area"])
def test_accuracy_under_parallelism(points: list[Point], best: float, area: float) -> None:
    """Five points less than the best are not more than five."""
    assert accuracy_under_parallelism(points, best) == pytest.approx(area, abs=5e-5)


def test_no_area_where_the_fastest_point_loses_too_much() -> None:
    assert accuracy_under_parallelism([(1, 80), (4, 74)], 80) is None
    assert accuracy_under_parallelism([], 80) is None


def test_the_frontier_is_what_nothing_beats() -> None:
    points: list[Point] = [(1, 80), (2, 80), (2, 79), (4, 70), (4, 70), (3, 60)]
    assert frontier(points) == [False, True, False, True, True, False]


@pytest.mark.parametrize(("points", "share", "tokens"), data("parallelism.json")["tokens at a share"])
def test_the_most_tokens_at_a_quality(points: list[Point], share: float, tokens: float | None) -> None:
    """Between settings that no other beats; without one token a pass there is nothing to compare with."""
    found = tokens_at_quality(points, share, 80)
    assert found == (None if tokens is None else pytest.approx(tokens))
    assert tokens_at_quality(points, share, 0) is None
