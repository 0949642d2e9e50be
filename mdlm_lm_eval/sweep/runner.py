"""A sweep in this process, beside any others that work on the same output."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from mdlm_lm_eval.model.devices import usable_device
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.locks import Claim
from mdlm_lm_eval.sweep.board import Board
from mdlm_lm_eval.sweep.evaluator import CellEvaluator
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.ranks import Ranks
from mdlm_lm_eval.sweep.report import SweepReport
from mdlm_lm_eval.sweep.tasks import Tasks

# About a standard few-shot prompt's, for the estimate of the time left.
_PROMPT_TOKENS = 500


class SweepRun:
    """A sweep at work. `failures` holds one sentence for every cell that could not be done.

    Raises OptionError for tasks that lm-eval does not know.
    """

    def __init__(self, sweep: Sweep, output: Path) -> None:
        self.tasks = Tasks(sweep)
        self.sweep = replace(sweep, cells=tuple(self.tasks.expand(sweep.cells)))
        self.output = output
        self.evaluator = CellEvaluator(self.sweep, self.tasks)
        self.board: Board | None = None
        self._ranks = Ranks()
        self._claim: Claim | None = None

    def start(self) -> None:
        """Looks at what has been done before. Raises OptionError where results cannot be written."""
        with self.evaluator.timed("for the tasks"):
            usable_device(self.sweep.device)
            self._ranks.check_limit(self.sweep.limit)
            # Of the processes of one `torchrun`, the first alone claims and writes.
            self.board = Board(self.sweep, self.tasks, self.output) if self._ranks.is_first else None

    def run(self) -> None:
        """Computes every cell that nobody has done, and returns when all are done or have failed.

        Raises OptionError where results cannot be written or the model cannot be loaded.
        """
        if self.board is None:
            self.start()
        if self.board is not None:
            announce(self.board)
        with progress_bar(self.board) as bar:
            first = True
            while (cell := self._next_cell()) is not None:
                try:
                    if first:
                        self._load_model(cell)
                        first = False
                    self._run_cell(cell)
                finally:
                    if self._claim is not None:
                        self._claim.release()
                show_progress(bar, self.board)
        if self.board is not None:
            self.board.clear_claims()

    @property
    def failures(self) -> list[str]:
        """One sentence for every cell that could not be done, by anybody."""
        return [f"{name}: {sentence}" for name, sentence in self.board.failures.items()] if self.board else []

    def report(self) -> SweepReport:
        """What was found, and where the time went."""
        assert self.board is not None
        return SweepReport(self.board, self.evaluator.seconds)

    def _next_cell(self) -> Cell | None:
        """A cell for all processes of this run, which the first of them claims; None when all cells are done."""
        taken = None
        if self.board is not None:
            taken = self.board.shared.wait(self.evaluator.shares_weights, _say_who_is_waited_for)
        self._claim = taken[1] if taken else None
        return self._ranks.told(taken[0] if taken else None)

    def _load_model(self, cell: Cell) -> None:
        """What keeps the model from loading keeps all cells from it, so it ends the run."""
        try:
            self.evaluator.load_model(cell.peft)
        except OptionError:
            if self.board is not None:
                self.board.withdraw()
            raise

    def _run_cell(self, cell: Cell) -> None:
        started = time.perf_counter()
        board, claim = self.board, self._claim
        try:
            found = self.evaluator.evaluate(cell, board.settings[board.name(cell)] if board else {})
            self._ranks.settle(None)
            if found is None or board is None or claim is None:
                return  # the first process has the scores
            scores, write = found
            with self.evaluator.timed("writing"):
                board.finish(cell, claim, write)
            say(f"{board.name(cell)}: {scores} ({time.perf_counter() - started:.0f} s)")
        except Exception as error:  # whatever it was, other cells may do
            self._ranks.settle(error)
            if board is not None:
                say(f"failed: {board.name(cell)}: {board.fail(cell, error)}")


def announce(board: Board) -> None:
    """Says what there is before work starts."""
    for failure in board.failures.items():
        say(f"failed: {': '.join(failure)}")
    if board.before:
        say(f"{board.before} of {len(board.sweep.cells)} cells are finished already")


def progress_bar(board: Board | None) -> tqdm:
    """Over the tokens of all cells to do, whoever does them."""
    return tqdm(
        total=sum(map(tokens_per_question, board.shared.items())) if board else 0,
        bar_format="cells {percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left{postfix}",
        smoothing=0.0,
        disable=board is None or not len(board.shared),
    )


def show_progress(bar: tqdm, board: Board | None, running: Iterable[Cell] = ()) -> None:
    """Moves the bar to what is left now, beside the cells that run."""
    if board is not None:
        bar.set_postfix_str(f"{board.n_done - len(list(running))} of {len(board.sweep.cells)}", refresh=False)
        bar.n = bar.total - sum(map(tokens_per_question, [*board.shared.items(), *running]))
        bar.refresh()


def say(line: str) -> None:
    """Above the progress bar."""
    tqdm.write(line, file=sys.stderr)


def tokens_per_question(cell: Cell) -> int:
    """Tokens that pass through the model for one question, about; only their ratios matter."""
    masks, steps = cell.options.get("n_masks"), cell.options.get("steps")
    n_masks = masks if isinstance(masks, int) else 1
    passes = min(steps, n_masks) if isinstance(steps, int) else 1
    return passes * (_PROMPT_TOKENS + n_masks)


def _say_who_is_waited_for(holders: list[str]) -> None:
    say(f"waiting for the cells of {', '.join(holders) or 'others'}")
