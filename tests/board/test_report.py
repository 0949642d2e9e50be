"""`mdlm-leaderboard report`: verdicts on planted models, numbers equal to lm-eval's, and a page that is complete."""

import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from mdlm_leaderboard.__main__ import main
from mdlm_leaderboard.report import judged, sections
from mdlm_lm_eval.paper.answers import read_models
from mdlm_lm_eval.paper.evidence import evidence_of
from mdlm_lm_eval.paper.verdict import decide
from tests.board.test_strangers_files import VALUES, changed, leaves
from tests.support.leaderboard_files import TASKS, result_file, served, suite_file, write
from tests.support.pages import Page
from tests.support.planted_model import cells, write_analysis, write_run

pytestmark = pytest.mark.slow


def _near_is_better(cell):
    """A model that loses context to distance, and nothing to masks."""
    far = {"right": 40, "left": 0, "middle": 20}.get(cell.get("question"))
    return (0.85 if far is None else 0.85 - 0.3 * abs(cell["position"] - far) / 40), 0.02


def _masks_distract(cell):
    """A model that loses to masks in one step."""
    n = cell.get("n_masks", 100 if "mask_ratio" in cell else 0)
    return 0.85 - (0.25 * n / 200 if cell.get("steps", 1) == 1 else 0), 0.02


def _ends_the_text(cell):
    """A model that knows the answers, and with many masks ends the text instead."""
    n = cell.get("n_masks", 0)
    return (0.3, 0.7) if n > 2 and cell.get("steps", 1) == 1 else (0.85, 0.02)


def _anything_hurts(cell):
    """A model that loses as much to dots as to masks."""
    n = cell.get("n_masks", 0) + cell.get("n_fillers", 0)
    return 0.85 - 0.25 * n / 200, 0.02


def _steady(cell):
    return 0.85, 0.02


_LOCALITY = ("locality_right", "locality_left")
PLANTED = {
    "distance": (_near_is_better, {*_LOCALITY}),
    "masks": (
        _masks_distract,
        {"masks", "masks_among_letters", "worst_masks", "dots", "unmasking_random", "unmasking_confidence"},
    ),
    "nothing": (_steady, set()),
}


def _verdicts(folder: Path):
    (model,) = read_models(folder)[0]
    return decide(evidence_of(model))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_models_are_told_apart(tmp_path, name):
    planted, reproduced = PLANTED[name]
    write_run(tmp_path, planted, n=150)
    verdicts = _verdicts(tmp_path)
    assert len(verdicts) == 10
    assert reproduced <= {claim for claim, one in verdicts.items() if one.kind == "reproduced"}
    others = {claim: one.kind for claim, one in verdicts.items() if claim not in {*reproduced, "locality_middle"}}
    assert {*others.values()} <= {"not reproduced", "nothing to recover", "too few questions"}


def test_a_loss_says_what_it_is_due_to(tmp_path):
    write_run(tmp_path / "ends", _ends_the_text)
    (ends,) = judged(read_models(tmp_path / "ends")[0])
    assert ends.verdicts["masks"].words.endswith("by ending the text")
    assert re.search(r"with 200, where (69|70|71)% of answers begin with the end of text", ends.findings[0])
    write_run(tmp_path / "dots", _anything_hurts)
    assert "masks no more than dots" in _verdicts(tmp_path / "dots")["masks"].words


def test_a_model_that_ends_the_text_everywhere_is_still_judged_among_letters(tmp_path):
    write_run(tmp_path, lambda cell: (0.5 - 0.2 * (cell.get("n_masks", 0) > 2), 0.4))
    found = _verdicts(tmp_path)
    assert found["masks"].words.startswith("cannot tell: ")
    assert found["masks"].words.endswith("are no letter")
    assert found["masks_among_letters"].kind == "reproduced"


def test_an_adapter_is_judged_against_the_base_with_its_weights(tmp_path):
    masks_alone = {"n": 60, "only": {"n_masks"}}
    for weights, planted in (("a" * 64, _masks_distract), ("b" * 64, _steady)):
        write_run(tmp_path / weights[0], planted, weights=weights, **masks_alone)
    write_run(tmp_path / "adapted", _steady, weights="a" * 64, adapter="out/ma", **masks_alone)
    found = {one.model.title: one.verdicts for one in judged(read_models(tmp_path)[0])}
    assert found["built-in + out/ma"]["fine_tuning"].kind == "reproduced"
    assert "fine_tuning" not in found["built-in (weights aaaaaaa)"]
    (tmp_path / "a").rename(tmp_path.parent / "elsewhere")
    (adapted,) = (one for one in judged(read_models(tmp_path)[0]) if one.model.adapter)
    assert "fine_tuning" not in adapted.verdicts


def test_results_that_disagree_are_not_used(tmp_path):
    for name, change in {"a": {}, "b": {}, "c": {"accuracy": 0.7}, "d": {"accuracy": 0.7, "limit": 900}}.items():
        write(tmp_path / name, results_cell=suite_file(n_masks=2, **{"limit": 800, **change}))
    write(tmp_path / "e", results_cell=suite_file(n_masks=200))
    (model,), refused = read_models(tmp_path)
    assert {condition.masks: len(of_tasks) for condition, of_tasks in model.answers.items()} == {2: 16, 200: 16}
    assert {path: reason.split(" on ")[0] for path, reason in refused.items()} == {
        "c/results_cell.json": "disagrees with another file"
    }
    banned, without = suite_file(n_masks=50), suite_file(n_masks=100)
    banned["config"]["mdlm"]["tasks"]["mdlm_animal_largest"] |= {
        "first_token": {"letters": 500 * "RE", "entropy": 0.5},
    }
    del without["results"]["mdlm_animal_largest"]["exact_match,none"]
    write(tmp_path / "f", banned=banned, without=without)
    (model,), refused = read_models(tmp_path)
    assert refused["f/banned.json"].startswith("is used for accuracies alone, as first tokens of")
    assert refused["f/without.json"] == "has no exact_match for mdlm_animal_largest"
    assert {condition.masks for condition in model.answers} == {2, 50, 200}
    (tmp_path / "d/results_cell.json").unlink()
    (tmp_path / "f/banned.json").unlink()
    assert [one.masks for one in read_models(tmp_path)[0][0].answers] == [200]


def _gradients(ratio):
    """Rows of table 1 in which masks have `ratio` times the gradient of the last text."""
    facts = {"predicted": "A", "answer": "A"}
    return [
        {"task": f"mdlm_{task}", "question": n, "group": group, "gradient": value * (1 + n / 10), **facts}
        for task in TASKS
        for n in range(2)
        for group, value in (("masks", 0.1 * ratio), ("last 50 non-masks", 0.1))
    ]


def test_an_analysis_is_of_the_model_with_its_weights_loading_and_prompts(tmp_path):
    """Two models of one name have their own; an analysis of neither, or of other prompts, is not used."""
    for weights, ratio in (("a" * 64, 2.0), ("b" * 64, 0.5)):
        content = suite_file(n_masks=2, weights=weights)
        own = {"weights": weights, "task": "mdlm_context", "model_args": {}, "metadata": {}}
        cell = {**own, "model_args": {"n_masks": 2, "steps": 1}}
        content["config"]["mdlm_sweep"] = {"settings": cell}
        write(tmp_path / weights[0], results_cell=content)
        folder = tmp_path / f"{weights[0]}-analyses"
        write_analysis(folder / "own", "attribution_groups", _gradients(ratio), **own)
        changes = {"weights": "c" * 64, "model_args": {"load_in_4bit": True}, "metadata": {"fewshot_distractors": 0}}
        for name, value in {**changes, "task": "mdlm_rules", "apply_chat_template": True}.items():
            write_analysis(folder / name, "attribution_groups", _gradients(9), **own | {name: value})
    models, refused = read_models(tmp_path)
    ratios = {
        model.weights[0]: math.exp(fmean(evidence_of(model)["gradients_masks"].effects.values())) for model in models
    }
    assert ratios == pytest.approx({"a": 2.0, "b": 0.5})
    assert {model.title for model in models} == {f"built-in (weights {7 * name})" for name in "ab"}
    assert len(refused) == 10
    assert {reason.split()[0] for reason in refused.values()} == {"is", "was"}


def test_no_value_of_a_strangers_plan_or_analysis_ends_a_report(tmp_path):
    """Each is used or named with a reason."""
    own = {"weights": "a" * 64, "task": "mdlm_context", "model_args": {}, "metadata": {}}
    content = suite_file(n_masks=2)
    content["config"]["mdlm_sweep"] = {"settings": own}
    write(tmp_path / "model/cell", results_cell=content)
    write_analysis(tmp_path / "model/analyses/groups", "attribution_groups", _gradients(2.0), **own)
    plan = {"cells": {"model/cell": {"questions": 9}}, "declared": {"masks": {}}, "left_out": {"model/x": "why"}}
    write(tmp_path / "model", plan=plan, looks=["2026"])
    for path in (*tmp_path.rglob("plan.json"), *tmp_path.rglob("looks.json"), *tmp_path.rglob("attribution_*.json")):
        good = path.read_text("utf-8")
        n_used = 0
        for place in leaves(json.loads(good)):
            for value in (*VALUES, -1):
                path.write_text(json.dumps(changed(json.loads(good), place, value)), encoding="utf-8")
                models, refused = read_models(tmp_path)
                judged(models)
                assert sections(models) is not None
                assert {*refused} <= {path.relative_to(tmp_path).as_posix(), "model/plan.json"}
                n_used += not refused
        assert n_used
        path.write_text(good, encoding="utf-8")


def _other_experiments(pretrained):
    """Results of E12 (the n-th task gains n points from examples, and loses half of them to masks), E14 and E15."""
    files = {}
    for (shots, masks), part in {(5, 1): 0, (25, 1): 1, (25, 200): 0.5}.items():
        files[f"shots{shots}-{masks}"] = content = suite_file(n_masks=masks, relevant=shots, distractors=0)
        for n, of_task in enumerate(content["results"].values()):
            of_task["exact_match,none"] = 0.5 + part * n / 100
    of_e15 = {f"mdlm_classification_{name}_random": {"exact_match,none": 0.5} for name in ("moons", "circles")}
    given = {"masks": 1, "steps": 1}
    for n in (1, 200):
        own = {"masks": n, "n_masks": n, "steps": 1, "shots": 30}
        files[f"points{n}"] = result_file(of_e15, group="mdlm_classification_random", **own)
    for ratio in (None, 0.1, 0.2):
        options = given | ({"mask_ratio": ratio} if ratio else {"n_masks": 1})
        files[f"hotpotqa{ratio}"] = result_file({"mdlm_hotpotqa": {"exact_match,none": 0.9}}, shots=1, **options)
    for content in files.values():
        content["config"]["model_args"]["pretrained"] = content["config"]["mdlm"]["pretrained"] = pretrained
    return files


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "results/base", _masks_distract, n=40, pretrained="GSAI-ML/LLaDA-8B-Base")
    write_run(folder / "results/other", _steady, n=40, pretrained="organisation/<b>odd")
    write(folder / "results/beside", **_other_experiments("GSAI-ML/LLaDA-8B-Base"))
    assert main(["report", str(folder / "results"), "--output_path", str(folder / "page")]) == 0
    return folder


def test_the_page_holds_every_experiment_and_asks_no_server(report):
    page = Page(report / "page/index.html")
    for words in ("Masks after the prompt", "figure 8", "organisation/<b>odd", "loses 23 (Base)"):
        assert words in page.text
    local = [source for source in page.links if not source.startswith(("data:", "https://arxiv.org/"))]
    assert len(local) > 20
    assert all((report / "page" / source).is_file() for source in local)


def _places(cell):
    """Experiment, line and x of a planted cell in the report."""
    if question := cell.get("question"):
        line = f"question {'in the middle' if question == 'middle' else f'on the {question}'}"
        return [("e02", line, cell["position"]), *([("e01", line, cell["position"])] * (question == "right"))]
    if "position" in cell:
        return [("e08", f"{cell['n_masks']} masks", cell["position"])]
    if "distractors" in cell:
        return [("e05", "2 masks" if "n_masks" in cell else "masks of 20% of the prompt", cell["distractors"])]
    if "n_fillers" in cell:
        return [("e06", "as decoded", cell["n_fillers"])]
    if "steps" in cell:
        rule = {"random": "at random", "confidence": "by confidence"}[cell["unmasking"]]
        return [("e07", f"40 steps, {rule}", cell["n_masks"])]
    return [("e04", "as decoded", cell["n_masks"]), ("e07", "one step", cell["n_masks"])]


def test_numbers_are_those_of_the_result_files(report):
    """Every point of E1, E2 and E4 to E8 is the mean of lm-eval's scores in the files of its cell."""
    content = json.loads((report / "page/report.json").read_text("utf-8"))
    n_checked = 0
    for number, cell in enumerate(cells()):
        path = report / f"results/base/cell-{number}/results_cell.json"
        scores = [one["exact_match,none"] for one in json.loads(path.read_text("utf-8"))["results"].values()]
        for experiment, line, x in _places(cell):
            curves = content["experiments"][experiment]["curves"]["GSAI-ML/LLaDA-8B-Base"]
            (points,) = (one["points"] for one in curves if one["label"] == line)
            assert points[str(x)]["mean"] == pytest.approx(100 * fmean(scores))
            n_checked += 1
    assert n_checked == 5 + 15 + 9 + 8 + 6 + 10 + 9 + 20
    (card, _) = yaml.safe_load((report / "page/model-index.yaml").read_text("utf-8"))["model-index"]
    metrics = {one["name"]: one["value"] for one in card["results"][0]["metrics"]}
    decoded = content["experiments"]["e04"]["curves"]["GSAI-ML/LLaDA-8B-Base"][0]["points"]
    assert metrics["200 masks, 640 questions"] == pytest.approx(decoded["200"]["mean"], abs=0.005)


def test_experiments_on_other_tasks_are_drawn(report):
    found = json.loads((report / "page/report.json").read_text("utf-8"))["experiments"]
    (of_e12,) = found["e12"]["table"][1:]
    assert [float(cell.split()[0]) for cell in of_e12[1:]] == pytest.approx([7.5, 3.75, 1, 16], abs=0.06)
    shares, points = (found[name]["curves"]["GSAI-ML/LLaDA-8B-Base"] for name in ("e14", "e15"))
    assert {x: round(one["mean"]) for x, one in shares[0]["points"].items()} == {"0": 90, "0.1": 90, "0.2": 90}
    assert {x: round(one["mean"]) for x, one in points[0]["points"].items()} == {"1": 50, "200": 50}


def test_an_autoregressive_model_is_a_reference(tmp_path, typed):
    write_run(tmp_path / "results/ours", _steady, n=9, pretrained="organisation/ours")
    given = {"model": "hf", "pretrained": "organisation/theirs", "accuracy": 0.5, "limit": 9}
    cells = {f"d{n}": suite_file(distractors=n, **given) for n in (0, 40)}
    cells |= {f"p{n}": suite_file(variant=f"_pos{n}", **given) for n in (0, 40)}
    write(tmp_path / "results/theirs", **cells)
    said = typed("report", tmp_path / "results", "--output_path", tmp_path / "page")
    assert "organisation/theirs: It is autoregressive" in said
    found = json.loads((tmp_path / "page/report.json").read_text("utf-8"))["experiments"]
    curves = {name: found[name]["curves"].get("organisation/theirs") for name in ("e04", "e05", "e06", "e08")}
    points = {
        name: own and {x: round(one["mean"]) for x, one in own[0]["points"].items()} for name, own in curves.items()
    }
    assert points == {"e04": {"0": 50}, "e05": {"0": 50, "40": 50}, "e06": None, "e08": {"0": 50, "40": 50}}
    assert [[one["label"] for one in own] for own in curves.values() if own] == [["no masks"]] * 3


def test_the_papers_number_stands_beside_its_own_model_only(report):
    text = (report / "page/report.md").read_text("utf-8")
    own, other = text.split("## organisation")[:2]
    assert "|23|" in own
    assert "23 to 27 (other models)" in other


def test_a_server_that_states_no_steps_ends_no_report(tmp_path, typed):
    write(tmp_path, theirs=served(suite_file(n_masks=2)))
    assert "No claim was asked in full." in typed("report", tmp_path, "--output_path", tmp_path / "page")


def test_a_folder_without_answers_is_refused(tmp_path, typed):
    said = typed("report", tmp_path, "--output_path", tmp_path / "page", code=2)
    assert "holds no answers of all tasks" in said


def test_a_context_too_short_for_the_examples_is_said_first(tmp_path, typed):
    write(tmp_path / "results/model/cell", results_cell=suite_file(n_masks=2, distractors=0, limit=9))
    why = "takes 559 tokens, but the model's context has 512"
    plan = {"cells": {"model/cell": {"questions": 9}}, "declared": {}, "left_out": {"model/other": why}}
    write(tmp_path / "results/model", plan=plan)
    said = typed("report", tmp_path / "results", "--output_path", tmp_path / "page")
    assert f"No claim was asked in full: the first cell that was left out {why}." in said


def test_a_plan_cuts_fuller_cells_and_unfinished_runs_are_counted(tmp_path, typed):
    """Cells of an older run count as the plan says, and reports before the end are counted."""
    folder = tmp_path / "results/model"
    write_run(folder, _steady, n=40)
    names = [f"model/cell-{number}" for number, _ in enumerate(cells())]
    plan = {
        "cells": {name: {"questions": 25} for name in names} | {"model/cell-missing": {"questions": 25}},
        "declared": dict.fromkeys(["masks", "dots", "gradients_near"]),
        "left_out": {"model/other": "its data set did not load"},
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    for looks in (1, 2):
        typed("report", tmp_path / "results", "--output_path", tmp_path / "page")
        (model,) = json.loads((tmp_path / "page/report.json").read_text("utf-8"))["models"]
        assert model["unfinished"].startswith(f"1 of {len(names) + 1} cells have no result yet.")
        assert model["unfinished"].endswith(f": {looks}.")
    assert {one["questions"] for one in model["verdicts"].values()} == {25}
    assert "its data set did not load" in (tmp_path / "page/index.html").read_text("utf-8")
    (folder / "cell-missing").mkdir()
    (folder / "cell-missing/results_cell.json").write_bytes((folder / "cell-0/results_cell.json").read_bytes())
    said = typed("report", tmp_path / "results", "--output_path", tmp_path / "page")
    (model,) = json.loads((tmp_path / "page/report.json").read_text("utf-8"))["models"]
    assert model["unfinished"] == "Reports made before the end of the run: 2."
    assert "not used" not in said
