"""What a sweep says at its end: a table of what it found, what to type next, and who did what."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.suite import suite_task, task_names
from mdlm_lm_eval.sweep.board import Board
from mdlm_lm_eval.sweep.plan import Cell
from mdlm_lm_eval.sweep.results import RESULT_FILE, read_score

MOST_LINES = 40  # a longer table is for `mdlm-leaderboard`


class SweepReport:
    """Of a sweep that has ended; `seconds` says where this process's time went."""

    def __init__(self, board: Board, seconds: Mapping[str, float]) -> None:
        self.board, self.seconds = board, seconds

    @property
    def done(self) -> list[Cell]:
        """Cells with a result."""
        return [cell for cell in self.board.sweep.cells if self.board.name(cell) not in self.board.failures]

    def table(self) -> str:
        """A line for every cell with a result: its first score and its number of questions."""
        lines = []
        done = self.done
        for cell in done[:MOST_LINES]:
            score, questions = read_score(self.board.folder(cell)) or ("cannot be read", 0)
            lines.append([self.board.sweep.model_folder(cell.peft), cell.name, score, str(questions)])
        table = markdown_table(["model", "cell", "score", "questions"], lines)
        return table if len(done) <= MOST_LINES else f"{table}\nand {len(done) - MOST_LINES} more"

    def next_command(self) -> str:
        """What makes tables and figures, or compares two results of a task where the leaderboard takes none; or ""."""
        if _is_for_leaderboard(self.done):
            return shlex.join(["mdlm-leaderboard", "build", str(self.board.output), "--output", "site"])
        first_of: dict[str, Cell] = {}
        for cell in self.done:
            first = first_of.setdefault(cell.task, cell)
            if first is not cell:
                files = [str(self.board.folder(one) / RESULT_FILE) for one in (first, cell)]
                return shlex.join(["mdlm-leaderboard", "compare", *files])
        return ""

    def summary(self) -> str:
        """How many cells there are, who did them, and where the time went."""
        times = "".join(f", {seconds:.0f} s {what}" for what, seconds in self.seconds.items())
        n_cells = len(self.board.sweep.cells)
        done = f"{self.board.n_done} of {n_cells} cells are done in {self.board.output}"
        return f"{done}: {self.board.counts()}{times}"


def _is_for_leaderboard(cells: Sequence[Cell]) -> bool:
    """Whether one is of a group or of a task outside the suite, or several are all tasks of a group of the suite."""
    if any(suite_task(cell.task) is None for cell in cells):
        return True
    groups = Counter((c.peft, replace(c, task=task.group).name) for c in cells if (task := suite_task(c.task)))
    return len(task_names()) in groups.values()
