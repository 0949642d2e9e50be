"""Evaluates cells one after the other over one loaded model, with `lm_eval.simple_evaluate` and lm-eval's own files."""

import getpass
import io
import json
import math
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import disable_caching, enable_caching
from filelock import FileLock, Timeout
from lm_eval import loggers, simple_evaluate
from lm_eval.api import registry
from lm_eval.api.instance import Instance
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from mdlm_lm_eval.analyses.__main__ import analyse
from mdlm_lm_eval.arguments import config_of, settings_of, source_of, tokenizer_of
from mdlm_lm_eval.declared import defaults_of, own_names
from mdlm_lm_eval.decoding.guests import Snapshot
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.devices import best_device
from mdlm_lm_eval.models import model_path
from mdlm_lm_eval.options import DecodingOptions, OptionError, did_you_mean
from mdlm_lm_eval.plugin import forget_task_files, task_manager, with_tasks
from mdlm_lm_eval.record import digest_of_settings
from mdlm_lm_eval.sweep.claims import Claims, say
from mdlm_lm_eval.sweep.plan import RESULT_FILE, Cell, Sweep, distinct
from mdlm_lm_eval.tasks.repeated.placement import place_query
from mdlm_lm_eval.tasks.repeated.task import repeat

_MODULES = frozenset(sys.modules)  # before any task was loaded
# Arguments of `simple_evaluate`.
_AS_THEY_ARE = (
    "batch_size samples log_samples system_instruction apply_chat_template fewshot_as_multiturn".split()  # noqa: SIM905
)
_LIKELIHOODS = ("loglikelihood", "loglikelihood_rolling")
_SEEDS = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
# Questions of each task by which a way is measured, unless one takes this many times as long as a cell's start.
_SEVERAL, _SLOW = 9, 4
_gpu_locks: list[FileLock] = []  # held until this process ends


def tokenizer_of_model(sweep: Sweep) -> Any:
    """The tokenizer of a sweep's model."""
    if not sweep.model_args.get("pretrained"):
        raise OptionError("pretrained is not set among --model_args; its tokenizer counts the tokens of prompts")
    arguments = sweep.model_args
    name = arguments.get("tokenizer") or model_path(str(arguments["pretrained"]))
    if sweep.model == "mdlm":
        return tokenizer_of(name, config_of(arguments["pretrained"], arguments), arguments)
    return AutoTokenizer.from_pretrained(name, **source_of(arguments))


def as_chats(sweep: Sweep) -> Sweep:
    """The sweep with chats or texts as prompts, where the tokenizer decides: models with a chat template get chats.

    The tokenizers of some base models have a template, too; such a model's name says "base".
    """
    if sweep.apply_chat_template != "auto":
        return sweep
    has_template = tokenizer_of_model(sweep).chat_template is not None
    name = str(sweep.model_args["pretrained"])
    chats = has_template and not re.search(r"(?<![a-z])base(?![a-z])", Path(name).name.lower())
    why = "its tokenizer has a chat template" if has_template else "its tokenizer has no chat template"
    why = "its name says base" if has_template and not chats else why
    say(f"{name} gets {'chats' if chats else 'plain text'}, as {why} (--apply_chat_template {not chats} changes this)")
    return replace(sweep, apply_chat_template=chats)


def check_analysis(sweep: Sweep, cell: Cell) -> None:
    """Raises OptionError if an analysis would have other prompts than the sweep's other cells, or no model."""
    if sweep.model != "mdlm":
        raise OptionError(f"analysis={cell.analysis} needs --model mdlm in a sweep; see mdlm-attribution")
    if sweep.system_instruction or isinstance(sweep.apply_chat_template, str) or not sweep.fewshot_as_multiturn:
        raise OptionError(
            f"analysis={cell.analysis} takes no --system_instruction, no named chat template and no "
            "--fewshot_as_multiturn false"
        )


class Tasks:
    """The tasks of a sweep. lm-eval adds metadata to tasks as it loads them, so each set has its own manager."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._managers: dict[str, TaskManager] = {}

    def expanded(self) -> Sweep:
        """The sweep with a cell for each task and group that a wildcard matches. Raises OptionError if none does."""
        manager = self.manager(self.sweep.cells[0].metadata)
        names = {}
        for pattern in {cell.task for cell in self.sweep.cells}:
            # lm-eval 0.5 returns what it does not know, and takes a task with a format (task@format).
            matched = manager.match_tasks([pattern])
            names[pattern] = [name for name in matched if name.partition("@")[0] in manager.all_tasks]
            if not names[pattern]:
                hint = did_you_mean(pattern, manager.all_tasks) or "`lm_eval ls tasks` lists them all"
                raise OptionError(f"tasks={pattern}: lm-eval knows no such task or group; {hint}")
        cells = [replace(cell, task=name) for cell in self.sweep.cells for name in names[cell.task]]
        return replace(self.sweep, cells=distinct(cells))

    def manager(self, metadata: Mapping[str, Any]) -> TaskManager:
        """The task manager for a cell's metadata and the model arguments, which lm-eval also passes to tasks.

        Its tasks draw what they draw at random as in a new process.
        """
        forget_task_files(sys.modules.keys() - _MODULES)
        metadata = {**self.sweep.model_args, **metadata}
        key = repr(metadata)
        if key not in self._managers:
            tasks = [cell.task for cell in self.sweep.cells]
            self._managers[key] = task_manager(tasks, self.sweep.include_path, metadata)
        return self._managers[key]

    def manager_for(self, cell: Cell) -> Any:
        """The manager for lm-eval; with the built task in it if the cell repeats or moves its questions."""
        manager = self.manager(cell.metadata)
        if cell.repeats is None and cell.query_position is None:
            return manager
        loaded = manager.load([cell.task])
        for task in loaded["tasks"].values():
            if cell.repeats is not None:
                repeat(task, cell.repeats)
            if cell.query_position is not None:
                place_query(task, cell.query_position)
        return with_tasks(manager, loaded)


def check_cells(sweep: Sweep) -> None:
    """Raises OptionError for the first cell with options that the model does not support, or equal to another cell.

    This needs only the model's config.
    """
    if sweep.model != "mdlm":
        return
    config = config_of(sweep.model_args.get("pretrained"), sweep.model_args)
    defaults, own = defaults_of(DecodingOptions), own_names()
    seen: dict[Any, tuple[Cell, dict[str, Any]]] = {}
    for cell in sweep.cells:
        try:
            settings = settings_of(config, cell.arguments)
        except OptionError as error:
            raise OptionError(f"{cell.name}: {error}") from error
        idle = settings.way.without_effect
        effective = replace(settings.decoding, **{name: defaults[name] for name in idle})
        others = {name: value for name, value in cell.arguments.items() if name not in own}
        key = repr(replace(cell, arguments=others)), effective, settings.likelihood, settings.model
        ours = settings.decoding.as_dict()
        first, theirs = seen.setdefault(key, (cell, ours))
        if first is not cell:
            differ = [name for name in idle if theirs.get(name) != ours.get(name)]
            why = "; ".join(f"{name} has no effect {idle[name]}" for name in differ) or "their options are the same"
            raise OptionError(f"{first.name} and {cell.name} would be the same: {why}")


def check_likelihoods(lm: MDLM, sweep: Sweep, tasks: Tasks) -> None:
    """Raises OptionError for the first cell whose options, chats or `n_masks` allow no likelihoods.

    lm-eval hands over one type of request at a time: without this check, a task's answers would all be generated before
    the model sees the likelihoods of the same cell. Tasks are loaded only where options could be at fault, and once for
    all their cells.
    """
    known: dict[str, list[Instance]] = {}
    for cell in sweep.cells:
        if cell.task.startswith("mdlm_"):  # the package's own tasks, which only generate
            continue
        lm.use_options(cell.arguments)
        with suppress(OptionError):
            for kind in _LIKELIHOODS:
                lm.check_likelihoods(kind)
            if lm.settings.likelihood.n_masks == "auto" and not sweep.apply_chat_template:
                continue  # no request could be refused
        key = repr((cell.task, cell.metadata))
        if key not in known:
            disable_caching()  # `datasets` would store what a task draws at random now, and its cells would ask that
            try:
                known[key] = _likelihoods(lm, sweep, tasks.manager(cell.metadata).load([cell.task])["tasks"])
            finally:
                enable_caching()
        try:
            for one in known[key]:
                lm.check_likelihoods(one.request_type)
                lm.scored(one.request_type, one, at_own_length=False)
        except OptionError as error:
            raise OptionError(f"{cell.name}: {error}") from error


def _likelihoods(lm: MDLM, sweep: Sweep, tasks: dict[str, Any]) -> list[Instance]:
    """The likelihood requests of some tasks, without examples and system prompts, which change no continuation."""
    found: list[Instance] = []
    for name, task in tasks.items():
        if task.OUTPUT_TYPE == "generate_until":
            continue
        task.set_config("num_fewshot", 0)
        limit = sweep.limit
        if limit is not None:
            limit = math.ceil(len(task.eval_docs) * limit) if limit < 1 else int(limit)
        task.build_all_requests(
            limit=limit,
            samples=None if sweep.samples is None else sweep.samples.get(name),
            apply_chat_template=bool(sweep.apply_chat_template),
            chat_template=lm.apply_chat_template,
        )
        found += [one for one in task.instances if one.request_type in _LIKELIHOODS]
    return found


class Measured(NamedTuple):
    """Seconds that one question of each task takes, by way of computing, and of the start of each cell.

    processes: how many share the cells.
    """

    seconds: dict[str, float]
    start: float
    processes: int = 1


class Evaluator:
    """A loaded model that evaluates cells.

    partial: a folder for analyses that are not finished, so that the same command continues a killed one. Raises
    OptionError if the likelihoods of a cell cannot be computed. Errors of loading the weights are raised unchanged.
    """

    def __init__(self, sweep: Sweep, tasks: Tasks, first: Cell, partial: Path | None = None) -> None:
        self.sweep, self.tasks, self.partial = sweep, tasks, partial
        self._device = sweep.device or own_device(sweep.model_args)
        self._lm: Any = None
        self._arguments: dict[str, Any] = {}
        lm = self._loaded(first)
        if isinstance(lm, MDLM):
            check_likelihoods(lm, sweep, tasks)

    def files(self, cell: Cell, settings: dict[str, Any]) -> dict[str, bytes]:
        """Evaluates a cell and returns the content of its files by name. Errors of lm-eval are raised unchanged.

        `settings` are those of `Claims.settings`, and are recorded in the result.
        """
        sweep = self.sweep
        if cell.analysis:
            check_analysis(sweep, cell)
            return self._analysed(self._prepared(cell), cell, settings)
        lm, tracker = self._prepared(cell), EvaluationTracker()
        guest = lm.settings.decoding.guest if isinstance(lm, MDLM) else None
        before = Snapshot(lm.model) if guest else None
        try:
            results = self._evaluate(lm, cell, tracker)
        finally:
            if before is not None and not before.restore():
                say(f"{guest} changed the model, which is loaded again")
                self._lm = None
        # lm-eval does not know the name of a model that is passed as an object.
        results["config"]["model"] = tracker.general_config_tracker.model_source = sweep.model
        results["config"]["mdlm_sweep"] = {"settings": settings, "command": sweep.command(cell)}
        samples = results.pop("samples", {}) if sweep.log_samples else {}
        files = _written(tracker, results, samples)
        self._log(cell, results, samples)
        return files

    def measure(self, ways: Mapping[str, Cell]) -> Measured:
        """Measures a cell of each way, a fast one first. Nothing is kept."""

        def seconds(cell: Cell, limit: int) -> float:
            began = time.perf_counter()
            with redirect_stdout(io.StringIO()):
                self.files(replace(cell, limit=limit), {})
            return time.perf_counter() - began

        seconds(next(iter(ways.values())), 1)  # the first passes of a process take longer
        found, start = {}, 0.0
        for way, cell in ways.items():
            one = seconds(cell, 1)
            if one > _SLOW * start > 0:
                found[way] = one - start
                continue
            found[way] = max((seconds(cell, _SEVERAL) - one) / (_SEVERAL - 1), 1e-3)
            start = start or max(one - found[way], 1e-3)
        return Measured(found, start)

    def _analysed(self, lm: MDLM, cell: Cell, settings: dict[str, Any]) -> dict[str, bytes]:
        """The files of an analysis, as `mdlm-attribution` writes them; their JSON also has the cell's settings."""
        command = self.sweep.command(cell)
        with tempfile.TemporaryDirectory() as scratch:
            folder = ((settings and self.partial) or Path(scratch)) / digest_of_settings(settings)
            analyse([*shlex.split(command)[1:], f"--output_path={folder}"], lm)
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
            shutil.rmtree(folder)
        content = json.loads(files[cell.result_file])
        content |= {"command": command, "config": {"mdlm_sweep": {"settings": settings, "command": command}}}
        return files | {cell.result_file: (json.dumps(content, indent=1) + "\n").encode()}

    def _evaluate(self, lm: Any, cell: Cell, tracker: EvaluationTracker) -> dict[str, Any]:
        sweep = self.sweep
        results: dict[str, Any] = simple_evaluate(
            lm,
            model_args=dict(cell.arguments),
            tasks=[cell.task],
            gen_kwargs=dict(sweep.gen_kwargs),
            use_cache=None if sweep.use_cache is None else str(Path(sweep.use_cache) / cell.name),
            num_fewshot=cell.num_fewshot,
            limit=cell.limit,
            device=self._device,
            confirm_run_unsafe_code=sweep.confirm_run_unsafe_code,
            evaluation_tracker=tracker,
            task_manager=self.tasks.manager_for(cell),
            **{name: getattr(sweep, name) for name in _AS_THEY_ARE},
            **dict(zip(_SEEDS, cell.seeds, strict=True)),
        )
        return results

    def _prepared(self, cell: Cell) -> Any:
        """The model with the cell's adapter and options. Only lm-eval's models are loaded again for an adapter."""
        lm, peft = self._loaded(cell), cell.arguments.get("peft")
        if isinstance(lm, MDLM):
            if peft != lm.peft:
                self._lm = None  # if the adapter does not fit, parts of it stay in the model
                lm.use_adapter(peft)
                self._lm = lm
            lm.use_options(cell.arguments)
        return lm

    def _loaded(self, cell: Cell) -> Any:
        """The model of a cell, which is loaded again only if its arguments differ from those of the cell before."""
        arguments = own = dict(cell.arguments)
        if self.sweep.model == "mdlm":  # adapter, preset and options are set at the beginning of each cell
            kept = [*self.sweep.model_args, *(("modeling", "sampler") if own.get("modeling") else ())]
            arguments = {name: own[name] for name in kept if name in own and name != "preset"}
        if self._lm is None or arguments != self._arguments:
            self._lm, self._arguments = None, dict(arguments)  # frees the memory first
            placement = {"batch_size": self.sweep.batch_size, "device": self._device}
            self._lm = registry.get_model(self.sweep.model).create_from_arg_obj(arguments, placement)
        return self._lm

    def _log(self, cell: Cell, results: dict[str, Any], samples: dict[str, Any]) -> None:
        """Sends a cell to W&B and Trackio, if wanted, as a run of its own. Failures cost no result, as in lm-eval."""
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


def run_here(tasks: Tasks, claims: Claims) -> None:
    """Computes every cell that is left, and waits for cells that other processes compute in the same folder."""
    evaluator = None
    with claims.progress_bar() as bar:
        while claims.left:
            if (taken := claims.take()) is None:
                if claims.left:
                    time.sleep(1)
                continue
            cell, lock = taken
            evaluator = evaluator or Evaluator(claims.sweep, tasks, cell, claims.partial)
            try:
                claims.finish(cell, evaluator.files(cell, claims.settings(cell)))
            except Exception as error:  # other cells may succeed
                claims.fail_aloud(cell, error)
            finally:
                lock.release()
            bar.update(bar.total - claims.size - bar.n)


def own_device(model_args: Mapping[str, Any]) -> str | None:
    """A GPU that no other sweep of this user on this machine uses, or the best other device if there is no GPU.

    It is the first GPU if all are in use, and None for a model over several GPUs.
    """
    if not torch.cuda.is_available():
        return best_device()  # HFLM's own default is a GPU, whether there is one or not
    if model_args.keys() & {"parallelize", "device_map", "tp_plan"}:
        return None
    for n in range(torch.cuda.device_count()):
        name = f"mdlm-sweep-{getpass.getuser()}-{torch.cuda.get_device_properties(n).uuid}.lock"
        lock = FileLock(Path(tempfile.gettempdir()) / name)
        with suppress(Timeout):
            lock.acquire(timeout=0)
            _gpu_locks.append(lock)
            return f"cuda:{n}"
    return "cuda:0"


def _written(tracker: EvaluationTracker, results: dict[str, Any], samples: dict[str, Any]) -> dict[str, bytes]:
    """The files that lm-eval's tracker writes: content by name."""
    with tempfile.TemporaryDirectory() as folder:
        tracker.output_path = f"{folder}/results.json"
        tracker.save_results_aggregated(results, samples)
        for task, of_task in samples.items():
            tracker.save_results_samples(task, of_task)
        files = {path.name.replace(tracker.date_id, "cell"): path.read_bytes() for path in Path(folder).iterdir()}
    json.loads(files[RESULT_FILE])  # raises an error if the result is missing, which the tracker only logs
    return files
