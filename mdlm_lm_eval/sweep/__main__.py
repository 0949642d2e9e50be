"""Evaluate a model under every combination of some settings, over weights that are loaded once.

    mdlm-sweep --tasks mdlm_context --n_masks 1,2,10,50,100,200 --steps 1 --limit 50 --output_path results
    mdlm-sweep --config e07 --model_args pretrained=GSAI-ML/LLaDA-8B-Base,dtype=bfloat16 --output_path results
    mdlm-sweep --config e09 --peft none,out/adapter --output_path results

Every cell of the grid is written as an ordinary lm-eval result file as soon as it is done. The same command continues
a killed sweep; started several times at once, on one machine or many, it shares the work. docs/sweeps.md says more.
"""

import argparse
import os
import signal
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from mdlm_lm_eval import __version__
from mdlm_lm_eval.command_line import NamedValues
from mdlm_lm_eval.ending import ending_well, importing
from mdlm_lm_eval.options import (
    DecodingOptions,
    LikelihoodOptions,
    OptionError,
    about,
    options_of,
    requirement,
    unknown_option,
)
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.sweep.ray_options import EXECUTORS, RayOptions
from mdlm_lm_eval.values import must_be
from mdlm_lm_eval.yaml_settings import read_yaml

COMMAND = "mdlm-sweep"
RECIPES = Path(__file__).parent / "recipes"
_LARGEST_FILE = 1_000_000  # bytes


def main() -> None:
    """The command line."""
    # lm-eval shows a bar for every task whose prompts it builds; those of cells and of requests are shown all the same.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, _stop)  # as schedulers stop a job; claims are given back
    with ending_well(COMMAND, after_stop="the same command goes on"):
        settings = _settings()
        for name in ("status", "output_path"):
            if not isinstance(settings.get(name, ""), str):
                raise OptionError(f"{name} must be the name of a folder, not {settings[name]}")
        if "status" in settings:
            if not settings["status"]:
                raise OptionError("--status is not set; name a sweep's --output_path")
            from mdlm_lm_eval.sweep.status import status_of

            print(status_of(Path(settings["status"])))
            return
        failures = _run(settings)
    sys.exit(1 if failures else 0)


def _run(settings: dict[str, Any]) -> list[str]:
    """Runs a sweep and says what came out; returns the failures."""
    output = settings.pop("output_path", None)
    if not output:
        raise OptionError("--output_path is not set; name a folder, such as results")
    executor, on_ray = _executor(settings)
    # Heavy imports wait until the command line is known to be right.
    with importing(COMMAND):
        from mdlm_lm_eval.sweep.plan import plan

    sweep = plan(settings)
    if executor == "ray":
        if find_spec("ray") is None:
            raise OptionError("--executor ray needs Ray: pip install 'mdlm-lm-eval[ray]'")
        from mdlm_lm_eval.sweep.ray_executor import RaySweep

        run: Any = RaySweep(sweep, Path(output), on_ray)
    else:
        from mdlm_lm_eval.sweep.runner import SweepRun

        run = SweepRun(sweep, Path(output))
    run.run()
    if run.board is None:
        return []  # the first process of a `torchrun` says it all
    report = run.report()
    print(report.table())
    for failure in run.failures:
        print(f"{COMMAND}: failed: {failure}", file=sys.stderr)
    if command := report.next_command():
        print(f"{COMMAND}: next: {command}", file=sys.stderr)
    print(f"{COMMAND}: {report.summary()}", file=sys.stderr)
    return list(run.failures)


def _executor(settings: dict[str, Any]) -> tuple[str, RayOptions]:
    """Takes what says where cells run out of the settings."""
    executor = str(settings.pop("executor", EXECUTORS[0]))
    if executor not in EXECUTORS:
        raise must_be("executor", f"one of {', '.join(EXECUTORS)}", executor)
    given = {field.name: settings.pop(field.name) for field in fields(RayOptions) if field.name in settings}
    if given and executor != "ray":
        raise OptionError(f"--{next(iter(given))} is for --executor ray")
    return executor, RayOptions.parse(given)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        usage="mdlm-sweep [--config NAME] --tasks NAME,NAME [--OPTION VALUE,VALUE ...] --output_path FOLDER",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--config", metavar="NAME", help=f"a YAML of these settings: a file, or one of {', '.join(_packaged())}"
    )
    parser.add_argument("--output_path", metavar="FOLDER", help="where results go")
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    parser.add_argument("--status", metavar="FOLDER", help="say what is done, running, failed and missing there")
    where = parser.add_argument_group("where cells run; docs/cluster.md says more")
    where.add_argument("--executor", help="here (default), in this process; ray, on a Ray cluster")
    where.add_argument("--address", help="of the Ray cluster: auto, or HOST:PORT; one is started here without it")
    where.add_argument("--workers", help="how many at once; one a GPU, or a node without")
    where.add_argument("--gpus_per_worker", help="1; 0 where the cluster has none")
    axes = parser.add_argument_group("axes of the grid: one value, or several with commas between them")
    axes.add_argument("--tasks", help="tasks and groups, each a cell of its own; * stands for anything")
    axes.add_argument("--peft", help="adapters; none is the model without one")
    axes.add_argument("--metadata", nargs="+", metavar="KEY=VALUES", help="of tasks: fewshot_distractors=0,10,20,30")
    axes.add_argument("--num_fewshot", help="shots of tasks outside the suite")
    axes.add_argument("--seed", help="as lm_eval's with one number")
    declared = {each.name: each for kind in (LikelihoodOptions, DecodingOptions) for each in options_of(kind)}
    for name in [name for name in declared if name != "seed"]:
        words: dict[str, Any] = {"nargs": "?", "const": "true"} if declared[name].type is bool else {}
        axes.add_argument(
            f"--{name}", metavar="VALUES", help=f"{about(declared[name]).help} ({requirement(declared[name])})", **words
        )
    common = parser.add_argument_group("the same in all cells, as lm_eval's")
    common.add_argument("--model", help="mdlm (default), or hf for autoregressive models, which have no masks")
    common.add_argument(
        "--model_args", nargs="+", action=NamedValues, help="name=value,... or JSON; the built-in model without it"
    )
    common.add_argument("--limit", help="questions a task")
    common.add_argument("--batch_size", help="8 by default")
    common.add_argument("--device")
    common.add_argument("--include_path", help="a folder with tasks of your own")
    common.add_argument("--log_samples", action="store_true", help="keep prompts and answers beside each result")
    common.add_argument("--apply_chat_template", nargs="?", const=True, metavar="NAME")
    common.add_argument("--system_instruction")
    common.add_argument("--confirm_run_unsafe_code", action="store_true")
    return parser


def _settings() -> dict[str, Any]:
    """The file's settings with the command line's on top."""
    parser = _parser()
    known, rest = parser.parse_known_args()
    if rest:
        name, _, value = rest[0].removeprefix("--").partition("=")
        if rest[0] == f"--{name}" or value:
            names = [action.dest for action in parser._actions]
            raise unknown_option("option", name, value or " ".join(rest[1:2]), names)
        raise OptionError(f"{rest[0]} is not understood; options are typed as --OPTION VALUE,VALUE")
    given = vars(known)
    settings = _read(given.pop("config")) if "config" in given else {}
    if "metadata" in given:
        given["metadata"] = _named("--metadata", given["metadata"])
    for name in ("model_args", "metadata"):
        if name in given and isinstance(settings.get(name, {}), dict):
            given[name] = settings.get(name, {}) | given[name]
    grids = settings.get("grids")
    if isinstance(grids, list) and all(isinstance(grid, dict) for grid in grids):
        # What the command line says holds for every grid of the file.
        settings["grids"] = [{name: value for name, value in grid.items() if name not in given} for grid in grids]
    return settings | given


def _read(config: str) -> dict[str, Any]:
    """A file, or the packaged one whose name begins so."""
    try:
        path = Path(config) if Path(config).is_file() else _recipe(config)
        if path.stat().st_size > _LARGEST_FILE:
            raise OptionError("too large to be settings")
        settings = read_yaml(path.read_text(encoding="utf-8"))
    except OptionError as error:
        raise OptionError(f"--config {config}: {error}") from None
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise OptionError(f"--config {config}: cannot be read: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise OptionError(f"--config {config}: must hold settings, a line each")
    for name in ("model_args", "metadata"):
        if isinstance(settings.get(name), str):
            settings[name] = _named(name, settings[name].split(","))
    return settings


def _recipe(name: str) -> Path:
    matches = [packaged for packaged in _packaged() if packaged.startswith(name)]
    if not matches:
        raise OptionError(f"no such file; packaged are {', '.join(_packaged())}")
    if len(matches) > 1:
        raise OptionError(f"several begin so: {', '.join(matches)}")
    return RECIPES / f"{matches[0]}.yaml"


def _packaged() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def _named(option: str, pairs: list[str]) -> dict[str, str]:
    named = {}
    for pair in filter(None, pairs):
        name, equals, value = pair.partition("=")
        if not equals:
            raise OptionError(f"{option} {pair}: must be name=value")
        if name in named:
            raise OptionError(f"{option} {pair}: {name} stands there twice; give it once")
        named[name] = value
    return named


if __name__ == "__main__":
    main()
