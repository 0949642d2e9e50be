"""One cell after the other over one loaded model: `lm_eval.simple_evaluate`, and the files that lm-eval writes."""

import getpass
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lm_eval import loggers, simple_evaluate
from lm_eval.api import registry
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from mdlm_lm_eval.decoding.guests import Snapshot
from mdlm_lm_eval.lm import MDLM, config_of, settings_of
from mdlm_lm_eval.model.devices import best_device
from mdlm_lm_eval.options import DecodingOptions, OptionError, defaults_of, did_you_mean, own_names
from mdlm_lm_eval.plugin import forget_task_files, task_manager
from mdlm_lm_eval.resolve import without_effect
from mdlm_lm_eval.sweep.claims import RESULT_FILE, Claims
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.tasks.repeated.placement import place_query
from mdlm_lm_eval.tasks.repeated.task import repeat

_MODULES = frozenset(sys.modules)  # before any task was loaded
# Arguments of `simple_evaluate`.
_AS_THEY_ARE = (
    "batch_size limit samples log_samples system_instruction apply_chat_template fewshot_as_multiturn".split()  # noqa: SIM905
)
_SEEDS = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
_gpu_locks: list[FileLock] = []  # held until this process ends


class Tasks:
    """What lm-eval knows of a sweep's tasks. It puts metadata into tasks as they load, so each set has its manager."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._managers: dict[str, TaskManager] = {}

    def expanded(self) -> Sweep:
        """The sweep with a cell for every task and group that a name with wildcards matches. Raises OptionError."""
        manager = self.manager(self.sweep.cells[0].metadata)
        names = {}
        for pattern in {cell.task for cell in self.sweep.cells}:
            names[pattern] = manager.match_tasks([pattern])
            if not names[pattern]:
                hint = did_you_mean(pattern, manager.all_tasks) or "`lm_eval ls tasks` lists them all"
                raise OptionError(f"tasks={pattern}: lm-eval knows no such task or group; {hint}")
        cells = [replace(cell, task=name) for cell in self.sweep.cells for name in names[cell.task]]
        return replace(self.sweep, cells=tuple({repr(cell): cell for cell in cells}.values()))

    def manager(self, metadata: Mapping[str, Any]) -> TaskManager:
        """The task manager for a cell's metadata, beside which lm-eval too shows tasks the model arguments."""
        metadata = {**self.sweep.model_args, **metadata}
        key = repr(metadata)
        if key not in self._managers:
            tasks = [cell.task for cell in self.sweep.cells]
            self._managers[key] = task_manager(tasks, self.sweep.include_path, metadata)
        return self._managers[key]

    def of(self, cell: Cell) -> list[Any]:
        """What lm-eval evaluates: a cell's task by its name, or built with its repetitions and place of questions."""
        if cell.repeats is None and cell.query_position is None:
            return [cell.task]
        built = self.manager(cell.metadata).load([cell.task])
        for task in built["tasks"].values():
            if cell.repeats is not None:
                repeat(task, cell.repeats)
            if cell.query_position is not None:
                place_query(task, cell.query_position)
        group = built["groups"].get(cell.task)
        return [group] if group else [*built["tasks"].values()]


def check_cells(sweep: Sweep) -> None:
    """Refuses options that the model cannot do, and cells that differ in name alone, from the model's config.

    Raises OptionError for the first cell.
    """
    if sweep.model != "mdlm":
        return
    config = config_of(sweep.model_args.get("pretrained"), sweep.model_args)
    defaults, own = defaults_of(DecodingOptions), own_names()
    seen: dict[Any, tuple[Cell, DecodingOptions]] = {}
    for cell in sweep.cells:
        try:
            settings = settings_of(config, cell.arguments)
        except OptionError as error:
            raise OptionError(f"{cell.name}: {error}") from error
        idle = without_effect(settings.decoding, settings.attention)
        effective = settings.decoding.override({name: defaults[name] for name in idle})
        others = {name: value for name, value in cell.arguments.items() if name not in own}
        bare = replace(cell, arguments=others)
        first, of_first = seen.setdefault(
            (repr(bare), effective, settings.likelihood, settings.model), (cell, settings.decoding)
        )
        if first is not cell:
            theirs, ours = of_first.as_dict(), settings.decoding.as_dict()
            differ = [name for name in idle if theirs[name] != ours[name]]
            why = "; ".join(f"{name} has no effect {idle[name]}" for name in differ) or "their options are the same"
            raise OptionError(f"{first.name} and {cell.name} would be the same: {why}")


class Evaluator:
    """A loaded model that evaluates cells. Whatever keeps the weights from being read is raised as it is."""

    def __init__(self, sweep: Sweep, tasks: Tasks, peft: str | None) -> None:
        self.sweep, self.tasks = sweep, tasks
        self._device = sweep.device or own_device(sweep.model_args)
        self._lm: LM | None = None
        self._load(peft, {})

    def files(self, cell: Cell, settings: dict[str, Any]) -> dict[str, bytes]:
        """Evaluates a cell and returns its files by name. Raises whatever lm-eval raises.

        `settings` are recorded as what decided its scores.
        """
        sweep, lm = self.sweep, self._prepared(cell)
        tracker = EvaluationTracker()
        forget_task_files(sys.modules.keys() - _MODULES)
        with self._as_it_was(lm):
            results = self._evaluate(lm, cell, tracker)
        # lm-eval cannot know by which name a model was loaded before.
        results["config"]["model"] = tracker.general_config_tracker.model_source = sweep.model
        results["config"]["mdlm_sweep"] = {"settings": settings, "command": sweep.command(cell)}
        samples = results.pop("samples", {}) if sweep.log_samples else {}
        files = _written(tracker, results, samples)
        if sweep.wandb_args or sweep.trackio_args:
            self._log(cell, results, samples)
        return files

    @contextmanager
    def _as_it_was(self, lm: LM) -> Iterator[None]:
        """A guest's changes to the code of the model are undone; a model that it changed is forgotten."""
        if not isinstance(lm, MDLM) or lm.settings.decoding.guest is None:
            yield
            return
        before = Snapshot(lm.model)
        try:
            yield
        finally:
            if not before.restore():
                say(f"{lm.settings.decoding.guest} changed the model, which is loaded again")
                self._lm = None

    def _evaluate(self, lm: LM, cell: Cell, tracker: EvaluationTracker) -> dict[str, Any]:
        sweep = self.sweep
        results: dict[str, Any] = simple_evaluate(
            lm,
            model_args=dict(cell.arguments),
            tasks=self.tasks.of(cell),
            gen_kwargs=dict(sweep.gen_kwargs),
            use_cache=None if sweep.use_cache is None else str(Path(sweep.use_cache) / cell.name),
            num_fewshot=cell.num_fewshot,
            device=self._device,
            confirm_run_unsafe_code=sweep.confirm_run_unsafe_code,
            evaluation_tracker=tracker,
            task_manager=self.tasks.manager(cell.metadata),
            **{name: getattr(sweep, name) for name in _AS_THEY_ARE},
            **dict(zip(_SEEDS, cell.seeds, strict=True)),
        )
        return results

    def _prepared(self, cell: Cell) -> LM:
        """The model with the cell's adapter and options; only models of lm-eval are read again for an adapter."""
        lm, peft = self._lm, cell.arguments.get("peft")
        of_guest = {name: cell.arguments[name] for name in ("modeling", "sampler") if cell.arguments.get("modeling")}
        if lm is None or of_guest != self._of_guest or (peft != self._peft and not isinstance(lm, MDLM)):
            lm = self._load(peft, of_guest)
        if isinstance(lm, MDLM):
            if peft != lm.peft:
                self._lm = None  # an adapter that does not fit leaves parts of itself in the model
                lm.use_adapter(peft)
                self._lm = lm
            torch.manual_seed(cell.seeds[2])  # the default of the option `seed`, as lm-eval sets it before it loads
            lm.use_options(cell.arguments)
        return lm

    def _load(self, peft: str | None, of_guest: dict[str, Any]) -> LM:
        self._lm = None  # frees the memory first
        arguments = {**self.sweep.model_args, **of_guest}
        self._of_guest = of_guest
        if self.sweep.model == "mdlm":  # which takes adapter, preset and options of a cell as that begins
            arguments.pop("preset", None)
        elif peft is not None:
            arguments["peft"] = peft
        placement = {"batch_size": self.sweep.batch_size, "device": self._device}
        self._peft = peft
        self._lm = lm = registry.get_model(self.sweep.model).create_from_arg_obj(arguments, placement)
        return lm

    def _log(self, cell: Cell, results: dict[str, Any], samples: dict[str, Any]) -> None:
        """Sends a cell to W&B and Trackio as a run of its own. Their failures cost no result, as in lm-eval."""
        for logger, arguments in ("WandbLogger", self.sweep.wandb_args), ("TrackioLogger", self.sweep.trackio_args):
            if not arguments:
                continue
            try:
                log = getattr(loggers, logger)({"name": cell.name, **arguments})
                log.post_init(results)
                log.log_eval_result()
                if samples:
                    log.log_eval_samples(samples)
                (log.run if logger == "WandbLogger" else log).finish()
            except Exception as error:
                say(f"{logger} failed: {error!r}")


def run_here(sweep: Sweep, tasks: Tasks, claims: Claims) -> None:
    """Computes every cell that is left, beside other processes on the same folder, and waits for those they hold."""
    evaluator = None
    with progress_bar(len(claims.left)) as bar:
        while claims.left:
            if (taken := claims.take()) is None:
                time.sleep(1)
                continue
            cell, lock = taken
            evaluator = evaluator or Evaluator(sweep, tasks, cell.arguments.get("peft"))
            try:
                claims.finish(cell, evaluator.files(cell, claims.settings(cell)))
            except Exception as error:  # other cells may do
                fail(claims, cell, error)
            lock.release()
            show_progress(bar, len(claims.left))


def fail(claims: Claims, cell: Cell, error: Exception) -> None:
    """Keeps why a cell could not be done, and shows where an error of a library came from."""
    kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
    claims.failures[cell.name] = f"{kind}{error}"
    say(f"failed: {cell.name}: {''.join(traceback.format_exception(error)) if kind else error}")


def progress_bar(n_cells: int) -> tqdm:
    """Over all cells to do, whoever does them."""
    return tqdm(total=n_cells, unit="cell", smoothing=0.0, disable=False)


def show_progress(bar: tqdm, n_left: int) -> None:
    """Moves the bar to what is left now."""
    bar.n = bar.total - n_left
    bar.refresh()


def say(line: str) -> None:
    """Above the progress bar."""
    tqdm.write(line, file=sys.stderr)


def own_device(model_args: Mapping[str, Any]) -> str | None:
    """A GPU that no other sweep of this user on this machine has, or what there is instead of GPUs.

    None for a model over several. Where all GPUs are taken, processes share the first.
    """
    if not torch.cuda.is_available():
        return best_device()  # HFLM's own default is a GPU, whether there is one or not
    if model_args.keys() & {"parallelize", "device_map", "tp_plan"}:
        return None
    for n in range(torch.cuda.device_count()):
        name = f"mdlm-sweep-{getpass.getuser()}-{torch.cuda.get_device_properties(n).uuid}.lock"
        lock = FileLock(Path(tempfile.gettempdir()) / name)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        _gpu_locks.append(lock)
        return f"cuda:{n}"
    return "cuda:0"


def _written(tracker: EvaluationTracker, results: dict[str, Any], samples: dict[str, Any]) -> dict[str, bytes]:
    """What lm-eval's tracker writes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        tracker.output_path = f"{folder}/results.json"
        tracker.save_results_aggregated(results, samples)
        for task, of_task in samples.items():
            tracker.save_results_samples(task, of_task)
        files = {path.name.replace(tracker.date_id, "cell"): path.read_bytes() for path in Path(folder).iterdir()}
    json.loads(files[RESULT_FILE])  # the tracker only logs what it could not write
    return files
