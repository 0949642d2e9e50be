"""What a sweep plans: cells, their folders and commands, and what it refuses before anything loads."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.__main__ import RECIPES, _settings, main
from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.results import cell_folder, command


def names(settings: dict[str, Any]) -> list[str]:
    return [cell.name for cell in plan(settings).cells]


def test_every_value_of_an_axis_meets_every_other_once() -> None:
    settings = {
        "tasks": "mdlm_context",
        "metadata": {"fewshot_distractors": [0, 10]},
        "grids": [{"steps": 1, "n_masks": "1,2"}, {"n_masks": [2], "steps": "1"}, {"mask_ratio": 0.2}],
    }
    assert names(settings) == [
        "mdlm_context,n_masks=1,steps=1,fewshot_distractors=0",
        "mdlm_context,n_masks=2,steps=1,fewshot_distractors=0",
        "mdlm_context,n_masks=1,steps=1,fewshot_distractors=10",
        "mdlm_context,n_masks=2,steps=1,fewshot_distractors=10",
        "mdlm_context,mask_ratio=0.2,fewshot_distractors=0",
        "mdlm_context,mask_ratio=0.2,fewshot_distractors=10",
    ]


def test_tasks_shots_and_seeds_are_axes() -> None:
    assert names({"tasks": "mdlm_sst2,mdlm_rte", "num_fewshot": "5,25", "seed": [1, 2]}) == [
        f"mdlm_{task},num_fewshot={shots},seed={seed}"
        for task in ("sst2", "rte")
        for shots in (5, 25)
        for seed in (1, 2)
    ]


def test_a_seed_is_that_of_everything_and_lm_evals_own_stand_without_one() -> None:
    planned = plan({"tasks": "mdlm_context", "seed": [7]})
    assert planned.cells[0].seeds == (7, 7, 7, 7)
    assert planned.parsed_arguments(planned.cells[0]).decoding.seed == 7
    planned = plan({"tasks": "mdlm_context"})
    assert planned.cells[0].seeds == (0, 1234, 1234, 1234)
    assert planned.parsed_arguments(planned.cells[0]).decoding.seed == 1234


def test_the_metadata_of_a_grid_wins_over_what_all_share() -> None:
    metadata = {"fewshot_distractors": 10, "fewshot_relevant": 5}
    settings = {"tasks": "t", "metadata": metadata, "grids": [{"metadata": {"fewshot_distractors": 0}}]}
    assert names(settings) == ["t,fewshot_distractors=0,fewshot_relevant=5"]


def test_adapters_are_an_axis_and_have_folders_of_their_own(tmp_path: Path) -> None:
    adapters = f"none,out/a/final,out/b/final,{tmp_path}/c"
    planned = plan({"tasks": ["mdlm_slot"], "peft": adapters, "model_args": {"pretrained": "org/model"}})
    folders = [cell_folder(planned, cell, Path("results")).as_posix() for cell in planned.cells]
    models = ["org_model", "org_model+out_a_final", "org_model+out_b_final", "org_model+c"]
    assert folders == [f"results/{model}/mdlm_slot" for model in models]


def test_options_among_model_arguments_are_axes_of_one_value() -> None:
    settings = {"tasks": "mdlm_context", "model_args": {"n_masks": "5", "peft": "out/a", "dtype": "float32"}}
    planned = plan(settings)
    assert planned.model_args == {"dtype": "float32"}
    assert [(cell.peft, cell.name) for cell in planned.cells] == [("out/a", "mdlm_context,n_masks=5")]


def test_autoregressive_models_have_no_mask_axes() -> None:
    settings = {
        "tasks": ["mdlm_context"],
        "model": "hf",
        "metadata": {"fewshot_distractors": [0, 9]},
        "grids": [{"n_masks": [1, 2]}, {"mask_ratio": 0.2}],
    }
    assert names(settings) == ["mdlm_context,fewshot_distractors=0", "mdlm_context,fewshot_distractors=9"]


def test_the_recorded_command_says_everything() -> None:
    planned = plan(
        {
            "tasks": "mdlm_context",
            "n_masks": 200,
            "filler": [","],
            "metadata": {"fewshot_distractors": 10},
            "num_fewshot": 2,
            "seed": 3,
            "limit": 5,
            "model_args": {"pretrained": "org/model"},
        }
    )
    assert command(planned, planned.cells[0]) == (
        "lm_eval --model mdlm --model_args "
        """'{"pretrained": "org/model", "n_masks": 200, "filler": ","}' --tasks mdlm_context """
        "--metadata fewshot_distractors=10 --num_fewshot 2 --limit 5 --batch_size 8 --seed 3"
    )


@pytest.mark.parametrize(
    "typed",
    [
        ["--model_args", '{"pretrained": "org/model", "filler": ",", "revision": "12"}'],
        ["--model_args", "pretrained=org/model,filler=',',revision=12"],
    ],
)
def test_model_arguments_are_typed_as_for_lm_eval(typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-sweep", "--tasks=mdlm_context", "--early_exit", "--n_masks=3", *typed])
    planned = plan(_settings())
    assert planned.model_args == {"pretrained": "org/model", "revision": "12"}
    assert planned.cells[0].options == {"n_masks": 3, "filler": ",", "early_exit": True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_mask": "1,2"}, "unknown option n_mask=1,2; did you mean n_masks?"),
        ({"grids": [{"step": 1}]}, "unknown option step=1; did you mean steps?"),
        ({"n_masks": "1,0"}, "n_masks must be auto or a whole number from 1, not 0"),
        ({"steps": "few"}, "steps must be auto or a whole number from 1, not few"),
        (
            {"unmasking": "random,confident"},
            "unmasking must be one of confidence, entropy, left_to_right, margin, random, not confident",
        ),
        ({"tasks": None}, "tasks is not set"),
        ({"n_masks": ","}, "n_masks has no value"),
        ({"metadata": {"fewshot_seed": None}}, "fewshot_seed has no value"),
        ({"limit": 0}, "limit must be a whole number from 1, or a share below 1, not 0"),
        ({"limit": True}, "limit must be a whole number from 1, or a share below 1, not true"),
        ({"log_samples": "sometimes"}, "log_samples must be true or false, not sometimes"),
        ({"grids": [1]}, "grids must be a list of settings, not [1]"),
        ({"limit": "some"}, "limit must be a whole number from 1, or a share below 1, not some"),
        ({"num_fewshot": "1.5"}, "num_fewshot must be a whole number from 0, not 1.5"),
        ({"model": "vllm"}, "model must be one of mdlm, hf in a sweep, not vllm"),
        ({"grids": "n_masks"}, "grids must be a list of settings, not n_masks"),
        ({"grids": [{"limit": 5}]}, "limit stands in grids and is the same in all cells"),
        ({"model_args": {"pretraned": "x"}}, "did you mean pretrained?"),
        ({"model_args": {"n_masks": 5}, "n_masks": [1, 2]}, "n_masks is both in model_args (5) and an axis"),
        ({"model_args": {"seed": 5}, "seed": [1, 2]}, "seed is both in model_args (5) and an axis"),
        ({"model_args": {"seed": 5}, "grids": [{"seed": 1}]}, "seed is both in model_args (5) and an axis"),
        ({"filler": ["x" * 250]}, "the settings make a folder name of 270 bytes, mdlm_context,filler=xxx"),
        ({"peft": "/here/final,/there/final"}, "two cells would lie in the folder built-in+final/mdlm_context"),
    ],
)
def test_bad_settings_are_refused_before_anything_loads(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        plan({"tasks": "mdlm_context"} | settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=e99"], "--config e99: no such file; packaged are e01_position"),
        (["--config=e0"], "--config e0: several begin so"),
        (["--tasks=mdlm_context", "more"], "more is not understood"),
        (["--metadata", "fewshot_seed"], "--metadata fewshot_seed: must be name=value"),
        (
            ["--metadata", "fewshot_seed=1", "fewshot_seed=2"],
            "--metadata fewshot_seed=2: fewshot_seed stands there twice; give it once",
        ),
        (["--tasks=mdlm_context", "--n_mask", "1,2"], "unknown option n_mask=1,2; did you mean n_masks?"),
    ],
)
def test_bad_command_lines(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-sweep", f"--output_path={tmp_path}", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value.code).startswith(f"mdlm-sweep: {message}")
    assert not list(tmp_path.iterdir())


def test_packaged_sweeps_parse() -> None:
    paths = sorted(RECIPES.glob("e*.yaml"))
    assert [path.stem[:3] for path in paths] == ["e01", "e02", "e04", "e05", "e06", "e07", "e08", "e09", "e10", "e11"]
    for path in paths:
        assert path.read_text().startswith("# Figure")
        assert plan(yaml.safe_load(path.read_text())).cells


def test_the_recipe_for_speed_audits_cached_cells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-sweep", "--config", "fast", "--tasks", "t"])
    cells = plan(_settings()).cells
    assert len(cells) == 30
    assert all(("cache_audit" in cell.options) == (cell.options["cache"] != "none") for cell in cells)
