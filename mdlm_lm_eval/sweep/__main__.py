"""Evaluate a model with every combination of some settings, and compare the results.

    mdlm-sweep --tasks mdlm_context --n_masks 1,2,10,50,100,200 --steps 1 --limit 50 --output_path results
    mdlm-sweep --config e07 --model_args pretrained=GSAI-ML/LLaDA-8B-Base,dtype=bfloat16 --output_path results
    mdlm-sweep --config e09 --peft none,out/adapter --output_path results
    mdlm-sweep --preset llada-8b-base/gsm8k-256 --output_path results

Each combination is a cell. Its result becomes an ordinary lm-eval result file as soon as it is done. To continue a
killed sweep, repeat the command. To share the work, run the command several times on one folder. See docs/sweeps.md.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval._cli.utils import MergeDictAction, handle_cli_value_string

from mdlm_lm_eval.command_line import TORCHRUN, ending_well, parser_of, read_recipe, recipes_in, refuse_rest
from mdlm_lm_eval.loader import load_plugins
from mdlm_lm_eval.options import ModelOptions, OptionError, must_be
from mdlm_lm_eval.presets import run_of
from mdlm_lm_eval.results.names import named
from mdlm_lm_eval.silence import quiet_git, said_once
from mdlm_lm_eval.sweep.plan import COMMON_NAMES, Cell, Sweep, axes_of_options, distinct, plan

if TYPE_CHECKING:
    from mdlm_lm_eval.sweep.claims import Claims

COMMAND = "mdlm-sweep"
RECIPES = Path(__file__).parent / "recipes.yaml"
# Settings of where cells run and where results go; no cell depends on them.
_ON_RAY = ("address", "workers", "gpus_per_worker")
PLACES = ("output_path", "baseline", "status", "dry_run", "hours", "shard", "executor", *_ON_RAY)
_NAMED = ("model_args", "gen_kwargs", "wandb_args", "trackio_args")


def main() -> None:
    """The command line."""
    # Hides the progress bars that lm-eval shows while it builds prompts. Those of cells and requests still appear.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Processes that `torchrun` starts divide the cells among them. With its variables set, lm-eval would divide the
    # questions of each cell instead.
    for name in TORCHRUN:
        os.environ.pop(name, None)
    with (
        ending_well(COMMAND, after_stop="the same command goes on"),
        # lm-eval (0.4, 0.5) repeats its hint about `--metadata`, and asks git, in each cell.
        said_once("lm_eval.api.task", "lm_eval.api.task._task"),
        quiet_git(),
    ):
        sweep, places = sweep_of(sys.argv[1:])
        failures = _run(sweep, **places)
    sys.exit(1 if failures else 0)


def _run(
    sweep: Sweep,
    output_path: str = "",
    baseline: str = "",
    status: bool = False,
    dry_run: bool = False,
    hours: float | None = None,
    shard: str = "0/1",
    executor: str = "here",
    **on_ray: Any,
) -> dict[str, str]:
    """Runs a sweep and prints its table, or prints its status. Returns why cells failed, by name."""
    if not output_path:
        raise OptionError("--output_path is not set; name a folder, such as results")
    output, (index, n) = Path(output_path), _parsed_shard(shard)
    # Heavy imports wait until the command line is known to be right.
    from mdlm_lm_eval.sweep import planning
    from mdlm_lm_eval.sweep.claims import Claims
    from mdlm_lm_eval.sweep.run import Evaluator, Measured, Tasks, as_chats, check_cells, run_here

    tasks = Tasks(as_chats(sweep))
    sweep = tasks.expanded()
    if baseline and named(baseline, [cell.name for cell in sweep.cells]) is None:
        raise OptionError(f"--baseline {baseline}: no cell has these words, which are parts of {sweep.cells[0].name}")
    if not status:
        check_cells(sweep)  # also cells of other shards, which may equal ours

    def measure(ways: Mapping[str, Cell]) -> Measured:
        if executor == "ray":
            return _ray().measure_on_ray(sweep, ways, **on_ray)
        return Evaluator(sweep, tasks, next(iter(ways.values()))).measure(ways)._replace(processes=n)

    if sweep.study and not (status and not planning.path_of(sweep, output).exists()):
        sweep = planning.planned(sweep, tasks, output, hours=hours, measure=measure, write=not dry_run)
    if dry_run:
        print(planning.table(sweep))
        return {}
    claims = Claims(replace(sweep, cells=sweep.cells[index::n]), output)
    if status:
        print(claims.status())
        return {}
    if executor == "ray":
        _ray().run_on_ray(claims, **on_ray)
    else:
        run_here(tasks, claims)
    _summarise(claims, {cell.name for cell in sweep.cells}, baseline)
    return claims.failures


def _summarise(claims: "Claims", of_all_shards: set[str], baseline: str) -> None:
    """Prints scores, failures and the number of finished cells; writes the report of a whole study that is done."""
    from mdlm_lm_eval.sweep.claims import lock_of, say, table

    sweep, output = claims.sweep, claims.output
    done = [cell for cell in sweep.cells if cell.name not in claims.failures]
    if (with_scores := [cell for cell in done if not cell.analysis]) and not sweep.study:
        print(table(with_scores, output, baseline))
    for name, sentence in claims.failures.items():
        say(f"{COMMAND}: failed: {name}: {sentence}")
    say(f"{COMMAND}: {len(done)} of {len(sweep.cells)} cells are done in {output}, {claims.own} by this process")
    if not sweep.study:
        return
    missing = {name for name in of_all_shards if not (output / name).exists()}
    if not missing <= claims.failures.keys():
        say(f"{COMMAND}: {len(missing)} cells are missing; who computes the last one writes the report")
        return
    # The report has a process of its own, as the leaderboard knows sweeps, and not the reverse.
    command = [sys.executable, "-m", "mdlm_leaderboard", "report", str(output), f"--output_path={output / 'report'}"]
    with lock_of(output, "report"):
        subprocess.run(command, check=False)


def _ray() -> Any:
    try:
        from mdlm_lm_eval.sweep import ray_executor
    except ModuleNotFoundError as error:
        raise OptionError(
            "--executor ray needs Ray: pip install 'mdlm-lm-eval[ray]', or '.[ray]' in a clone"
        ) from error
    return ray_executor


def _parsed_shard(shard: str) -> tuple[int, int]:
    """Returns I and N of a shard "I/N". Raises OptionError unless 0 <= I < N."""
    index, _, n = shard.partition("/")
    if not (index.isdecimal() and n.isdecimal() and int(index) < int(n)):
        raise must_be("--shard", "I/N with I from 0 to N - 1, such as 0/4", shard)
    return int(index), int(n)


def sweep_of(words: Sequence[str]) -> tuple[Sweep, dict[str, Any]]:
    """The sweep of a command line, and its settings of places. The file may name recipes."""
    settings = settings_of(words)
    names, with_adapters = (settings.pop(name, []) for name in ("recipes", "with_adapters"))
    study = {name: settings.pop(name, {}) for name in ("claims", "most", "share")}
    places = {name: settings.pop(name) for name in PLACES if name in settings}
    if "hours" in places and "limit" in settings:
        raise OptionError("--hours and --limit both set the number of questions; name one of them")
    if not names:
        if alone := {"hours", "dry_run"} & places.keys():
            raise OptionError(f"--{min(alone)} is for --config paper; other sweeps have --limit and --status")
        return plan(settings), places
    return replace(_together(words, settings, names, with_adapters), study=study), places


def _together(words: Sequence[str], settings: Mapping[str, Any], names: list[str], with_adapters: list[str]) -> Sweep:
    """One sweep over the cells of several recipes.

    Those that need adapters are left out if --peft names none, and the others run without an adapter.
    """
    shared = {name: value for name, value in settings.items() if name in COMMON_NAMES}
    sweeps = {}
    for name in [*names, *(with_adapters if "peft" in settings else [])]:
        own = settings_of([*words, "--config", name]) | shared
        left_out = (*PLACES, "peft") if name in names else PLACES
        sweeps[name] = plan({key: value for key, value in own.items() if key not in left_out})
    # What all cells share is the same in all of these.
    cells = [replace(cell, recipes=(name,)) for name, sweep in sweeps.items() for cell in sweep.cells]
    return replace(next(iter(sweeps.values())), cells=distinct(cells))


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """The settings on a command line, over those of the file and the preset that it names.

    Raises OptionError for an unknown option.
    """
    settings, plugins = _file_and_plugins(words)
    load_plugins(plugins)  # they add options, so they are loaded before the others are parsed
    given = _typed(words)
    of_file = settings.pop("preset", None)
    if preset := given.pop("preset", None) or of_file:
        settings = _over_preset(preset, settings, {*given, *settings}.union(*settings.get("grids", ())))
    for name in (*_NAMED, "metadata"):
        if name in given:
            given[name] = (settings.get(name) or {}) | given[name]
    if "grids" in settings:  # the command line overrides every grid of the file
        settings["grids"] = [{name: grid[name] for name in grid if name not in given} for grid in settings["grids"]]
    settings |= given
    if plugins := settings.pop("plugins", None):
        settings["model_args"] = {"plugins": plugins} | (settings.get("model_args") or {})
    return settings


def _file_and_plugins(words: Sequence[str]) -> tuple[dict[str, Any], str | None]:
    """The settings of the file that a command line names, and the plug-ins that either names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "plugins"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--model_args", nargs="+", action=MergeDictAction, default={})
    typed = parser.parse_known_args(words)[0]
    settings = read_recipe(recipes_in(RECIPES), typed.config) if typed.config else {}
    places = ({"plugins": typed.plugins}, typed.model_args, settings, settings.get("model_args") or {})
    return settings, next((str(each["plugins"]) for each in places if each.get("plugins")), None)


def _typed(words: Sequence[str]) -> dict[str, Any]:
    """The settings that a command line itself holds. Raises OptionError for words that are none."""
    parser = _parser()
    known, rest = parser.parse_known_args(words)
    refuse_rest(rest, [action.dest for action in parser._actions], hint="commas separate values: --steps 1,2,4")
    given = {name: value for name, value in vars(known).items() if name != "config"}
    if without_value := [pair for pair in given.get("metadata", ()) if "=" not in pair]:
        raise OptionError(f"--metadata {without_value[0]}: must be KEY=VALUES, such as fewshot_distractors=0,10")
    if "metadata" in given:
        given["metadata"] = dict(pair.partition("=")[::2] for pair in given["metadata"])
    return given


def _over_preset(preset: str, settings: Mapping[str, Any], axes: set[str]) -> dict[str, Any]:
    """The settings over those of a preset, whose arguments do not count where an axis has their name."""
    run = settings_of(run_of(preset).flags)
    of_both = {
        name: {each: value for each, value in run.get(name, {}).items() if each not in axes}
        | (settings.get(name) or {})
        for name in ("model_args", "gen_kwargs")
    }
    return {**run, **settings, **of_both}


def samples(text: str) -> Any:
    """The questions of --samples, from JSON text or a JSON file."""
    return json.loads(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text)


def _parser() -> argparse.ArgumentParser:
    usage = "mdlm-sweep [--config NAME] --tasks NAME,NAME [--OPTION VALUE,VALUE ...] --output_path FOLDER"
    parser = parser_of(COMMAND, __doc__, usage=usage, argument_default=argparse.SUPPRESS)
    recipes = ", ".join(sorted(recipes_in(RECIPES)))
    parser.add_argument("--config", metavar="NAME", help=f"a YAML file with these settings, or one of {recipes}")
    parser.add_argument("--preset", metavar="NAME", help="published score whose model, task, shots and options to use")
    parser.add_argument("--output_path", metavar="FOLDER", help="folder for the results")
    parser.add_argument("--baseline", metavar="WORDS", help="cell to compare with, such as steps=8 (default: first)")
    where = parser.add_argument_group("where cells run; see docs/cluster.md")
    where.add_argument("--status", action="store_true", help="only list which cells are done or missing")
    where.add_argument("--dry_run", action="store_true", help="only show how many questions --config paper would ask")
    where.add_argument("--shard", metavar="I/N", help="run every N-th cell, beginning with cell I (0 to N - 1)")
    where.add_argument("--executor", choices=("here", "ray"), help="run here (default), or on a Ray cluster")
    where.add_argument("--address", help="address of the Ray cluster: auto, or HOST:PORT (default: start one here)")
    where.add_argument("--workers", type=int, help="maximum number of workers (default: one per GPU, or per node)")
    where.add_argument("--gpus_per_worker", type=float, help="GPUs of each worker (default: 1; without GPUs: 0)")
    axes = parser.add_argument_group("axes: one value, or several separated by commas")
    axes.add_argument("--tasks", help="tasks and groups, with a cell for each; * matches any text")
    axes.add_argument("--peft", help="adapters; none stands for the model without an adapter")
    axes.add_argument("--metadata", nargs="+", metavar="KEY=VALUES", help="settings of tasks: fewshot_distractors=0,10")
    axes.add_argument("--num_fewshot", help="number of examples, for tasks outside the suite")
    axes.add_argument("--repeats", help="how often to ask each question, for means and pass@k")
    axes.add_argument("--query_position", help="place of the question among its examples: prefix, middle or trailing")
    axes.add_argument("--seed", help="seed of lm_eval (one number)")
    for name, option in axes_of_options().items():
        words: dict[str, Any] = {"nargs": "?", "const": "true"} if bool in option.kinds else {}
        values = f". Values: {', '.join(option.choices())}" if option.choices else ""
        axes.add_argument(f"--{name}", metavar="VALUES", help=option.help + values, **words)
    common = parser.add_argument_group("the same in all cells, as in lm_eval")
    common.add_argument("--plugins", metavar="FILES", help=ModelOptions.declared()["plugins"].help)
    common.add_argument("--model", help="mdlm (default), or hf for an autoregressive model")
    for name in _NAMED:
        common.add_argument(f"--{name}", nargs="+", action=MergeDictAction, metavar="NAME=VALUE", help="also as JSON")
    common.add_argument("--limit", type=float, help="number of questions per task")
    common.add_argument("--hours", type=float, help="with --config paper: hours to spend, instead of --limit")
    common.add_argument("--samples", type=samples, metavar="JSON", help="numbers of the questions to ask, or a file")
    common.add_argument("--use_cache", metavar="FOLDER", help="keeps answers, so that a cell can be continued")
    common.add_argument("--batch_size", help="requests per batch (default: 8)")
    common.add_argument("--device", help="device of the model (default: the first GPU that no other sweep uses)")
    common.add_argument("--include_path", metavar="FOLDER", help="folder of your own tasks")
    common.add_argument("--log_samples", action="store_true", help="save prompts and answers beside each result")
    common.add_argument("--apply_chat_template", nargs="?", const=True, type=handle_cli_value_string, metavar="NAME")
    common.add_argument("--fewshot_as_multiturn", type=handle_cli_value_string, metavar="BOOL", help="default: true")
    common.add_argument("--system_instruction")
    common.add_argument("--confirm_run_unsafe_code", action="store_true")
    return parser


if __name__ == "__main__":
    main()
