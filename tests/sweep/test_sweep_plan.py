"""What a sweep plans: cells, their folders, commands, tasks and questions, and what it refuses before it loads."""

import fnmatch
import json
import random
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from lm_eval.tasks import TaskManager
from lm_eval.utils import sanitize_model_name

from mdlm_lm_eval.command_line import recipes_in
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.verdict import claims, power
from mdlm_lm_eval.sweep.__main__ import RECIPES, settings_of, sweep_of
from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.planning import Work, budget, powers, seconds_of
from mdlm_lm_eval.sweep.run import Tasks, as_chats, check_cells
from tests.conftest import LM_EVAL_05, data, refused, tasks_of
from tests.support.commands import run
from tests.sweep.test_sweep import stored, sweep


@pytest.mark.parametrize(("settings", "expected"), data("cases.json")["cells of a sweep"])
def test_every_value_of_an_axis_meets_every_other_once(settings: dict[str, Any], expected: list[str]) -> None:
    """An audit skips exact cells, autoregressive models no axes of masks; blocks have steps beside a threshold."""
    planned = plan(settings)
    check_cells(planned)
    assert [cell.name.partition("/")[2] for cell in planned.cells] == expected
    seed = planned.cells[0].seed
    assert planned.cells[0].seeds == ((0, 1234, 1234, 1234) if seed is None else (seed,) * 4)  # lm-eval's own


def test_adapters_are_an_axis_and_have_folders_of_their_own(tmp_path: Path) -> None:
    adapters = f"none,out/a/final,out/b/final,{tmp_path}/c"
    planned = plan({"tasks": ["mdlm_slot"], "peft": adapters, "model_args": {"pretrained": "org/model"}})
    models = ["org__model", "org__model+out__a__final", "org__model+out__b__final", "org__model+c"]
    assert [cell.name for cell in planned.cells] == [f"{model}/mdlm_slot" for model in models]
    assert models[0] == sanitize_model_name("org/model")  # the folder of one `lm_eval`
    assert all(shlex.quote(cell.name) == cell.name for cell in planned.cells)


def test_options_among_model_arguments_are_axes_of_one_value() -> None:
    settings = {"tasks": "mdlm_context", "model_args": {"n_masks": "5", "peft": "out/a", "dtype": "float32"}}
    planned = plan(settings)
    assert planned.model_args == {"pretrained": "built-in", "dtype": "float32"}
    (cell,) = planned.cells
    assert cell.name == "built-in+out__a/mdlm_context,n_masks=5"
    assert cell.arguments == {**planned.model_args, "peft": "out/a", "n_masks": 5}


def test_the_recorded_command_says_everything() -> None:
    words = "--tasks mdlm_context --n_masks 200 --metadata fewshot_distractors=10 --num_fewshot 2 --seed 3 --limit 5"
    words += " --model_args pretrained=org/model --gen_kwargs max_gen_toks=512 --apply_chat_template"
    planned = plan(settings_of([*words.split(), "--system_instruction=Be brief."]))
    assert planned.command(planned.cells[0]) == (
        "lm_eval --model mdlm --model_args pretrained=org/model,n_masks=200 --tasks mdlm_context "
        "--gen_kwargs max_gen_toks=512 --metadata fewshot_distractors=10 --num_fewshot 2 --limit 5 --seed 3 "
        "--batch_size 8 --system_instruction 'Be brief.' --apply_chat_template"
    )
    planned = plan({"tasks": "mdlm_context", "filler": [","]})
    assert """'{"pretrained": "built-in", "filler": ","}'""" in planned.command(planned.cells[0])


@pytest.mark.parametrize(
    "typed",
    [
        ["--model_args", '{"pretrained": "org/model", "filler": ",", "revision": "12"}'],
        pytest.param(
            ["--model_args", "pretrained=org/model,filler=',',revision='12'"],
            marks=pytest.mark.skipif(LM_EVAL_05, reason="lm-eval 0.5.0.dev1 splits at quoted commas"),
        ),
    ],
)
def test_model_arguments_are_typed_as_for_lm_eval(typed: list[str]) -> None:
    planned = plan(settings_of(["--tasks=mdlm_context", "--early_exit", "--n_masks=3", *typed]))
    assert planned.model_args == {"pretrained": "org/model", "revision": "12"}
    assert planned.cells[0].arguments == {**planned.model_args, "n_masks": 3, "filler": ",", "early_exit": True}


@pytest.mark.parametrize(("settings", "message"), refused("mdlm-sweep settings"))
def test_bad_settings_are_refused_before_anything_loads(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        plan({"tasks": "mdlm_context"} | settings)
    assert message in str(error.value)


@pytest.mark.parametrize(("settings", "message"), refused("mdlm-sweep cells"))
def test_cells_that_cannot_run_or_are_equal_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        check_cells(plan({"tasks": "mdlm_context"} | settings))
    assert message in str(error.value)


@pytest.mark.parametrize(("words", "message"), refused("mdlm-sweep words"))
def test_bad_command_lines(words: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        sweep_of(words.split())
    assert str(error.value).startswith(message)


def test_the_command_line_wins_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "tasks: mdlm_slot\nmodel_args: {pretrained: a, dtype: float32}\nmetadata: {fewshot_seed: 1}\n"
        "grids: [{n_masks: 1}, {n_masks: 2, steps: 1}]\n"
    )
    words = ["--config", str(tmp_path / "mine.yaml"), "--n_masks=7", "--model_args", "pretrained=b"]
    planned = plan(settings_of([*words, "--metadata", "fewshot_distractors=0,5"]))
    assert planned.model_args == {"pretrained": "b", "dtype": "float32"}
    assert [cell.name for cell in planned.cells] == [
        f"b/mdlm_slot,n_masks=7{steps},fewshot_seed=1,fewshot_distractors={n}"
        for steps in ("", ",steps=1")
        for n in (0, 5)
    ]


def test_the_paper_is_a_recipe_of_recipes_and_shared_cells_run_once() -> None:
    """Every number of the paper is also a recipe of its own, and the paper has the cells of all."""
    names = fnmatch.filter(recipes_in(RECIPES), "[et]*[0-9]_*")
    alone = {name: sweep_of(["--config", name])[0].cells for name in names}
    assert [name.partition("_")[0] for name in sorted(alone)] == [*(f"e{n:02}" for n in range(1, 16)), "table1"]
    words = ["--config=paper", "--peft=none,a", "--limit=4", "--output_path=out"]
    paper, places = sweep_of(words)
    assert places == {"output_path": "out"}
    assert (paper.limit, paper.apply_chat_template) == (4.0, "auto")
    names = Counter(cell.name for cell in paper.cells)
    assert set(names.values()) == {1}
    assert {cell.name for cells in alone.values() for cell in cells} < names.keys()
    recipes = {cell.name.removeprefix("built-in"): cell.recipes for cell in paper.cells}
    assert recipes["/mdlm_context,n_masks=200,steps=1"] == ("e04", "e07", "e09")
    assert recipes["+a/mdlm_context,n_masks=200,steps=1"] == ("e09",), "others run without an adapter"
    assert recipes["/mdlm_rules,n_masks=200,steps=1,fewshot_labels=hidden"] == ("labels",)
    assert not {"e09", "e10", "e11"} & {name for cell in sweep_of(["--config=paper"])[0].cells for name in cell.recipes}


def test_the_tokenizer_decides_about_chats_unless_the_model_is_a_base(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "x-Base-v0")

    def gets_chats(pretrained: object, *words: str) -> object:
        sweep, _ = sweep_of(["--config=e04", "--model_args", f"pretrained={pretrained}", *words])
        return as_chats(sweep).apply_chat_template

    assert gets_chats(checkpoint) is True
    assert gets_chats(checkpoint, "--apply_chat_template=false") is False
    assert gets_chats(tmp_path / "x-Base-v0") is False
    assert gets_chats(tmp_path / "x-Base-v0", "--apply_chat_template") is True
    assert gets_chats("built-in") is False


def test_the_recipe_for_speed_audits_cached_cells_alone() -> None:
    cells = plan(settings_of(["--config", "fast", "--tasks", "t"])).cells
    assert len(cells) == 30
    assert all(("cache_audit" in cell.arguments) == (cell.arguments["cache"] != "none") for cell in cells)


# Two steps, forty of them, gradients of 20 questions at most, and a cell that is only drawn.
WORK = {
    "near": Work(1, 0.5),
    "far": Work(1, 0.5),
    "masks": Work(1, 0.7),
    "slow": Work(1, 12.0, most=900),
    "gradients": Work(1, 60.0, most=20, share=0.2),
    "drawn": Work(1, 0.6),
}
NEEDS = {
    "locality_right": ["near", "far"],
    "masks": ["near", "masks"],
    "unmasking_random": ["near", "slow"],
    "gradients_near": ["gradients"],
}


def test_hours_are_used_and_not_exceeded_and_more_of_them_never_ask_less() -> None:
    before = dict.fromkeys(WORK, 0)
    for hours in (0.25, 0.5, 1, 2, 4):
        found = budget(WORK, NEEDS, hours)
        assert all(found[cell] >= before[cell] for cell in WORK)
        assert 0.95 * 3600 * hours < seconds_of(WORK, found) <= 3600 * hours, hours
        assert found["gradients"] * WORK["gradients"].seconds <= 0.2 * 3600 * hours
        before = found
    assert found["masks"] > found["slow"] > 20 >= found["gradients"]
    assert found["near"] == max(found["far"], found["masks"], found["slow"]), "a shared cell takes the largest number"
    assert found["drawn"] < found["masks"] / 3
    assert budget(WORK, NEEDS, 2, processes=2) == budget(WORK, NEEDS, 4)


def test_the_least_hours_reproduce_every_claim_and_less_is_refused_with_their_number() -> None:
    with pytest.raises(OptionError, match=r"--hours 0\.001 is too little: .*4 times its delta with 80% power") as error:
        budget(WORK, NEEDS, 0.001)
    found = re.search(r"little: ([\d.]+)", str(error.value))
    assert found
    least = float(found[1])
    questions = budget(WORK, NEEDS, least)
    for name, cells in NEEDS.items():
        claim = claims()[name]
        n = min(questions[cell] for cell in cells)
        assert power(claim, 4 * claim.delta, n, len(NEEDS)) >= 0.8
    assert min(powers(name, questions[cells[1 % len(cells)]], len(NEEDS))[1] for name, cells in NEEDS.items()) < 0.5
    with pytest.raises(OptionError):
        budget(WORK, NEEDS, least - 0.02)


# Tasks


@pytest.fixture
def drawing_tasks(tmp_path: Path) -> Path:
    """Tasks `reordered` and `with_choices`, which draw random numbers as they are loaded."""
    return tasks_of("drawing_tasks", tmp_path / "drawing")


def prompts(folder: Path) -> list[tuple[Any, ...]]:
    """Each question's documents, as asked and as scored, in lm-eval's order."""
    (path,) = folder.rglob("samples_*.jsonl")
    samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return [(sample["doc"], sample["arguments"]["gen_args_0"]["arg_0"]) for sample in samples]


@pytest.mark.skipif(LM_EVAL_05, reason="lm-eval 0.5.0.dev1 refuses few-shot examples whose answers are digits")
@pytest.mark.parametrize("task", ["reordered", "with_choices"])
def test_every_cell_asks_what_its_command_asks(
    tmp_path: Path, checkpoint: Path, drawing_tasks: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(5)  # of whatever ran before
    # What `datasets` keeps of the sweep must not help the command.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    output = tmp_path / "out"
    more = (f"--tasks={task}", "--n_masks=4,5", "--limit=3", "--log_samples")
    assert sweep(output, checkpoint, drawing_tasks, *more).code == 0
    ((path, result),) = [(path, result) for path, result in stored(output).items() if "n_masks=5" in path]
    command = shlex.split(result["config"]["mdlm_sweep"]["command"])
    run(*command, "--log_samples", "--output_path", str(tmp_path / "alone"))
    expected = prompts(tmp_path / "alone")
    cells = sorted((output / path).parent.parent.glob(f"{task},*"))
    assert [prompts(cell) for cell in cells] == [expected] * 2
    shutil.rmtree((output / path).parent)
    assert sweep(output, checkpoint, drawing_tasks, *more).code == 0
    assert prompts((output / path).parent) == expected
    if task == "reordered":
        sweep(output, checkpoint, drawing_tasks, *more, "--seed=7", "--n_masks=5")
        (another,) = (output / path).parent.parent.glob("*n_masks=5*seed=7")
        assert prompts(another) != expected


@pytest.mark.parametrize(("tasks", "expected", "is_indexed"), data("cases.json")["tasks of a sweep"])
def test_lm_evals_own_tasks_are_known_where_they_may_be_meant(
    tmp_path: Path,
    task_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tasks: str,
    expected: list[str],
    is_indexed: bool,
) -> None:
    """Indexing them takes many seconds; here, the others stand for all."""
    mine = shutil.copytree(task_folder, tmp_path / "mine")
    (mine / "group.yaml").write_text(yaml.safe_dump({"group": "my_group", "task": ["tiny_choice"]}))
    indexed = []

    def manager(include_path: Any, metadata: Any, include_defaults: bool = True) -> TaskManager:
        indexed.append(include_defaults)
        return TaskManager(include_path=include_path, include_defaults=False, metadata=metadata)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", manager)
    expanded = Tasks(plan({"tasks": tasks, "include_path": str(mine)})).expanded()
    assert [cell.task for cell in expanded.cells] == expected
    assert any(indexed) == is_indexed
