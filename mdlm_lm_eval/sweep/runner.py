"""Runs the cells of a sweep over one loaded model."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import set_torch_seed
from tqdm import tqdm

from mdlm_lm_eval import families
from mdlm_lm_eval.devices import best_device
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import check_writable
from mdlm_lm_eval.results.locks import LEASE_SECONDS, Claimed, claim
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.sweep import results as files
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.tasks import Tasks

# About a standard few-shot prompt's, for the estimate of the time left.
_PROMPT_TOKENS = 500
# Seconds to wait for a cell that another process holds, once all others are done: longer than a dead one's claim lives.
_PATIENCE = 1.5 * LEASE_SECONDS


class SweepRun:
    """A sweep at work. `failures` holds one sentence for every cell that could not be done.

    Raises OptionError for tasks that lm-eval does not know.
    """

    def __init__(self, sweep: Sweep, output: Path) -> None:
        self.tasks = Tasks(sweep)
        self.sweep = replace(sweep, cells=tuple(self.tasks.expand(sweep.cells)))
        self.output = output
        self.failures: list[str] = []
        self.elsewhere: list[Cell] = []  # those that another process holds
        self.seconds: dict[str, float] = {}
        self._lm: LM | None = None
        self._loaded_adapter: str | None = None
        # All processes of several evaluate; one of them shows the bar and writes.
        self._is_main = os.environ.get("RANK", "0") == "0"

    def run(self) -> None:
        """Runs every cell that has no result yet.

        Raises OptionError where results cannot be written or the model cannot be loaded.
        """
        check_writable(self.output, "--output_path")
        to_do = self._to_do()
        if to_do:
            self._load_model(to_do[0][0].peft)
        with tqdm(
            total=sum(_tokens_per_question(cell) for cell, _ in to_do),
            bar_format="cells {percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left{postfix}",
            smoothing=0.0,
            disable=not self._is_main or not to_do,
        ) as bar:
            numbered = list(enumerate(to_do, start=1))
            # Cells that another process holds come again at the end, as it may have died.
            for patience in (0.0, _PATIENCE):
                self.elsewhere = []
                for number, (cell, settings) in numbered:
                    bar.set_postfix_str(f"{number} of {len(to_do)}: {self._name(cell)}")
                    try:
                        with self._claimed(cell, patience):
                            self._do(cell, settings, bar)
                    except Claimed as error:
                        self.elsewhere.append(cell)
                        self._say(f"{self._name(cell)}: {error}")
                numbered = [one for one in numbered if one[1][0] in self.elsewhere]

    def summary(self) -> str:
        """How many cells there are, and where the time went."""
        n_cells = len(self.sweep.cells)
        times = "".join(f", {seconds:.0f} s {what}" for what, seconds in self.seconds.items())
        elsewhere = f", {len(self.elsewhere)} are another process's" if self.elsewhere else ""
        return f"{n_cells - len(self.failures) - len(self.elsewhere)} of {n_cells} cells are done{elsewhere}{times}"

    def _claimed(self, cell: Cell, patience: float) -> AbstractContextManager[None]:
        """The right to run a cell. The processes of one evaluation run each cell together, and claim none."""
        is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
        return claim(self._folder(cell), wait=patience) if is_alone else nullcontext()

    def _do(self, cell: Cell, settings: dict[str, Any], bar: "tqdm[Any]") -> None:
        """Runs a cell, unless another process did while this one was at others, and says what came of it."""
        started = time.perf_counter()
        try:
            is_new = not files.is_finished(self._folder(cell), settings)
            scores = self._run_cell(cell, settings) if is_new else "done by another process"
        except Exception as error:  # whatever it was, other cells may do
            bar.update(_tokens_per_question(cell))
            self._fail(cell, error)
        else:
            bar.update(_tokens_per_question(cell))
            self._say(f"{self._name(cell)}: {scores} ({time.perf_counter() - started:.0f} s)")

    def _to_do(self) -> list[tuple[Cell, dict[str, Any]]]:
        """Cells without a result, each with its settings as the result will name them."""
        to_do = []
        unreadable = _unreadable_adapters({cell.peft for cell in self.sweep.cells if cell.peft is not None})
        with self._timed("for the tasks"):
            for cell in self.sweep.cells:
                try:
                    if cell.peft in unreadable:
                        raise OptionError(unreadable[cell.peft])
                    settings = files.cell_settings(self.sweep, cell, self.tasks.names(cell))
                    if not files.is_finished(self._folder(cell), settings):
                        to_do.append((cell, settings))
                except OptionError as error:
                    self._fail(cell, error)
        if finished := len(self.sweep.cells) - len(to_do) - len(self.failures):
            self._say(f"{finished} of {len(self.sweep.cells)} cells are finished already")
        return to_do

    def _run_cell(self, cell: Cell, settings: dict[str, Any]) -> str:
        lm = self._prepared_model(cell)
        tracker = EvaluationTracker()
        arguments = self.sweep.model_arguments(cell)
        with self._timed("in cells"):
            results = simple_evaluate(
                lm,
                model_args=arguments,
                tasks=self.tasks.load(cell),
                gen_kwargs={},
                num_fewshot=cell.num_fewshot,
                batch_size=self.sweep.batch_size,
                device=self.sweep.device,
                limit=self.sweep.limit,
                log_samples=self.sweep.log_samples,
                evaluation_tracker=tracker,
                system_instruction=self.sweep.system_instruction,
                apply_chat_template=self.sweep.apply_chat_template,
                task_manager=self.tasks.manager(cell),
                random_seed=cell.seeds[0],
                numpy_random_seed=cell.seeds[1],
                torch_random_seed=cell.seeds[2],
                fewshot_random_seed=cell.seeds[3],
                confirm_run_unsafe_code=self.sweep.confirm_run_unsafe_code,
            )
        if results is None:  # another process has them
            return "done"
        # lm-eval calls a model that it did not load CUSTOM, and one without `pretrained` by random letters.
        tracked = tracker.general_config_tracker
        tracked.model_source = self.sweep.model
        if not arguments.keys() & {"pretrained", "peft"}:
            tracked.model_name = tracked.model_name_sanitized = self.sweep.model_folder(None)
        files.record_cell(self.sweep, cell, settings, results)
        scores = _scores(results)
        with self._timed("writing"):
            files.write_cell(self._folder(cell), results, tracker)
        return scores

    def _prepared_model(self, cell: Cell) -> LM:
        """The model with the cell's adapter and options; only `--model hf` reads its weights again for an adapter."""
        if self._lm is None or (cell.peft != self._loaded_adapter and not isinstance(self._lm, MDLM)):
            self._load_model(cell.peft)
        assert self._lm is not None
        if isinstance(self._lm, MDLM):
            try:
                self._lm.use_adapter(cell.peft)
            except OptionError:
                self._lm = None  # parts of the adapter may be in it
                raise
            self._lm.use_options(self.sweep.parsed_arguments(cell))
        return self._lm

    def _load_model(self, peft: str | None) -> None:
        self._lm = None  # frees the memory first
        arguments = dict(self.sweep.model_args)
        if self.sweep.model != "mdlm" and peft is not None:
            arguments["peft"] = peft
        # HFLM's own default is a GPU, whether there is one or not.
        placement = {"batch_size": self.sweep.batch_size, "device": self.sweep.device or best_device()}
        set_torch_seed(self.sweep.cells[0].seeds[2])
        with self._timed("loading the model"):
            try:
                self._lm = get_model(self.sweep.model).create_from_arg_obj(
                    arguments, {name: value for name, value in placement.items() if name not in arguments}
                )
            except OptionError:
                raise
            except (OSError, ValueError, TypeError, RuntimeError, AssertionError) as error:
                raise OptionError(f"the model cannot be loaded: {one_line(error)}") from error
        self._loaded_adapter = peft

    def _folder(self, cell: Cell) -> Path:
        return files.cell_folder(self.sweep, cell, self.output)

    def _name(self, cell: Cell) -> str:
        return f"{self.sweep.model_folder(cell.peft)} {cell.name}"

    def _fail(self, cell: Cell, error: Exception) -> None:
        kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
        self.failures.append(f"{self._name(cell)}: {kind}{one_line(error)}")
        self._say(f"failed: {self.failures[-1]}")

    def _say(self, line: str) -> None:
        if self._is_main:
            tqdm.write(line, file=sys.stderr)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - started


def _unreadable_adapters(names: Iterable[str]) -> dict[str, str]:
    """What is wrong with adapters that are not there, known long before their turn comes."""
    sentences = {}
    for peft in names:
        try:
            families.load_adapter_config(peft)
        except OptionError as error:
            sentences[peft] = str(error)
    return sentences


def _tokens_per_question(cell: Cell) -> int:
    """Tokens that pass through the model for one question, about; only their ratios matter."""
    masks, steps = cell.options.get("n_masks"), cell.options.get("steps")
    n_masks = masks if isinstance(masks, int) else 1
    passes = min(steps, n_masks) if isinstance(steps, int) else 1
    return passes * (_PROMPT_TOKENS + n_masks)


def _scores(results: dict[str, Any]) -> str:
    values = next(iter((results.get("groups") or results["results"]).values()))
    scores = [f"{key} {value:.4g}" for key, value in values.items() if "," in key and isinstance(value, float)]
    return scores[0].replace(",none", "") if scores else "no score"
