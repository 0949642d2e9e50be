"""One loaded model that evaluates cell after cell."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import sanitize_model_name, set_torch_seed

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.devices import best_device
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.privacy import published_text
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.sweep import results as files
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.tasks import Tasks

# What writes a cell's files into an empty folder.
Write = Callable[[Path], None]


class CellEvaluator:
    """Runs cells with lm-eval. `seconds` says where the time went."""

    def __init__(self, sweep: Sweep, tasks: Tasks) -> None:
        self.sweep, self.tasks = sweep, tasks
        self.seconds: dict[str, float] = {}
        self._lm: LM | None = None
        self._loaded_adapter: str | None = None

    def shares_weights(self, cell: Cell) -> bool:
        """Whether the cell needs the adapter that is loaded now, if any model is."""
        return self._lm is None or cell.peft == self._loaded_adapter

    def evaluate(self, cell: Cell, settings: dict[str, Any]) -> tuple[str, Write] | None:
        """A cell's first score and what writes its files; None in processes that only help another (`torchrun`)."""
        lm = self._prepared_model(cell)
        tracker = EvaluationTracker()
        arguments = self.sweep.model_arguments(cell)
        with self.timed("in cells"):
            results = simple_evaluate(
                lm,
                model_args=arguments,
                tasks=self.tasks.to_evaluate(cell),
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
        if results is None:
            return None
        # lm-eval calls a model that it did not load CUSTOM, and one without `pretrained` by random letters.
        tracked = tracker.general_config_tracker
        tracked.model_source = self.sweep.model
        if not arguments.keys() & {"pretrained", "peft"}:
            tracked.model_name = tracked.model_name_sanitized = self.sweep.model_folder(None)
        else:
            tracked.model_name = published_text(str(tracked.model_name))
            tracked.model_name_sanitized = sanitize_model_name(tracked.model_name)
        files.record_cell(self.sweep, cell, settings, results)
        return files.first_score(results), lambda folder: files.write_cell(folder, results, tracker)

    def load_model(self, peft: str | None) -> None:
        """Reads the weights. Raises OptionError where they cannot be loaded."""
        self._lm = None  # frees the memory first
        arguments = dict(self.sweep.model_args)
        if self.sweep.model != "mdlm" and peft is not None:
            arguments["peft"] = peft
        # HFLM's own default is a GPU, whether there is one or not.
        placement = {"batch_size": self.sweep.batch_size, "device": self.sweep.device or best_device()}
        set_torch_seed(self.sweep.cells[0].seeds[2])
        with self.timed("loading the model"):
            try:
                self._lm = get_model(self.sweep.model).create_from_arg_obj(
                    arguments, {name: value for name, value in placement.items() if name not in arguments}
                )
            except OptionError:
                raise
            except (OSError, ValueError, TypeError, RuntimeError, AssertionError) as error:
                raise OptionError(f"the model cannot be loaded: {one_line(error)}") from error
        self._loaded_adapter = peft

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the block's seconds to those of `what`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - started

    def _prepared_model(self, cell: Cell) -> LM:
        """The model with the cell's adapter and options; only `--model hf` reads its weights again for an adapter."""
        if self._lm is None or (cell.peft != self._loaded_adapter and not isinstance(self._lm, MDLM)):
            self.load_model(cell.peft)
        assert self._lm is not None
        if isinstance(self._lm, MDLM):
            try:
                self._lm.use_adapter(cell.peft)
            except OptionError:
                self._lm = None  # parts of the adapter may be in it
                raise
            self._lm.use_options(self.sweep.parsed_arguments(cell))
            self._loaded_adapter = cell.peft
        return self._lm
