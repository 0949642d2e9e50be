"""Runs the cells of a sweep over one loaded model."""

import logging
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.plan import AUTOREGRESSIVE, Cell, Sweep
from mdlm_lm_eval.sweep.results import is_finished, write_cell

logger = logging.getLogger(__name__)


def run(sweep: Sweep, output: Path, *, log_samples: bool = False, include_path: str | None = None) -> list[str]:
    """Runs every cell that has no result yet and returns one sentence for every cell that failed.

    Raises OptionError, before the model is loaded, where a result of other settings lies in a cell's place or a task is
    unknown.
    """
    to_do = [cell for cell in sweep.cells if not is_finished(sweep, cell, output)]
    paths = [str(tasks_path()), *([include_path] if include_path else [])]
    _check_tasks(to_do, TaskManager(include_path=paths))
    finished = len(sweep.cells) - len(to_do)
    if finished:
        print(f"{finished} of {len(sweep.cells)} cells are finished already", file=sys.stderr)
    failures: list[str] = []
    lm: LM | None = None
    # Every process of several gets here, and all of them evaluate; one shows the bar and writes.
    main = PartialState().is_main_process
    with tqdm(total=len(sweep.cells), initial=finished, desc="cells", unit="cell", disable=not main) as bar:
        for cell in to_do:
            bar.set_postfix_str(f"{sweep.model_folder(cell.peft)} {cell.name}")
            lm = _load(sweep, cell) if lm is None else lm
            try:
                _run_cell(
                    sweep, cell, lm, output, TaskManager(include_path=paths, metadata=dict(cell.metadata)), log_samples
                )
            except (OptionError, ValueError) as error:
                failures.append(f"{cell.name}: {' '.join(str(error).split())}")
            bar.update()
    return failures


def _check_tasks(cells: list[Cell], manager: TaskManager) -> None:
    for cell in cells:
        for task in cell.tasks:
            if not manager.match_tasks([task]):
                raise OptionError(
                    f"tasks={task} is not allowed: lm-eval knows no such task or group; see lm_eval ls tasks"
                )


def _load(sweep: Sweep, cell: Cell) -> LM:
    adapter = {} if cell.peft is None else {"peft": cell.peft}
    options: dict[str, Any] = {} if sweep.model == AUTOREGRESSIVE else dict(cell.options)
    placement = {"batch_size": sweep.batch_size, "device": sweep.device}
    return get_model(sweep.model).create_from_arg_obj(
        {**sweep.model_args, **adapter, **({"seed": sweep.seed} if sweep.model != AUTOREGRESSIVE else {}), **options},
        {name: value for name, value in placement.items() if value is not None},
    )


def _run_cell(sweep: Sweep, cell: Cell, lm: LM, output: Path, tasks: TaskManager, log_samples: bool) -> None:
    if isinstance(lm, MDLM):
        lm.use_adapter(cell.peft or sweep.model_args.get("peft"))
        lm.use_options(sweep.arguments(cell))
    tracker = EvaluationTracker()
    results = simple_evaluate(
        lm,
        tasks=list(cell.tasks),
        limit=sweep.limit,
        log_samples=log_samples,
        task_manager=tasks,
        evaluation_tracker=tracker,
        torch_random_seed=sweep.seed,
    )
    if results is None:
        return
    # Of a model that was loaded before lm-eval knows nothing; the file says what the command line would have said.
    name = sweep.model_folder(cell.peft)
    tracker.general_config_tracker.log_experiment_args(
        model_source=sweep.model,
        model_args=f"pretrained={name}",
        system_instruction=None,
        chat_template=None,
        fewshot_as_multiturn=True,
    )
    write_cell(sweep, cell, output, results, tracker)
