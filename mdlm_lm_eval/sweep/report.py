"""What a sweep says at its end: a table of what it found, what to type next, and who did what."""

from collections.abc import Mapping

from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.sweep.board import Board
from mdlm_lm_eval.sweep.results import read_score

MOST_LINES = 40  # a longer table is for `mdlm-leaderboard`


class SweepReport:
    """Of a sweep that has ended; `seconds` says where this process's time went."""

    def __init__(self, board: Board, seconds: Mapping[str, float]) -> None:
        self.board, self.seconds = board, seconds

    def table(self) -> str:
        """A line for every cell with a result: its first score and its number of questions."""
        lines = []
        done = [cell for cell in self.board.sweep.cells if self.board.name(cell) not in self.board.failures]
        for cell in done[:MOST_LINES]:
            score, questions = read_score(self.board.folder(cell)) or ("cannot be read", 0)
            lines.append([self.board.sweep.model_folder(cell.peft), cell.name, score, str(questions)])
        table = markdown_table(["model", "cell", "score", "questions"], lines)
        return table if len(done) <= MOST_LINES else f"{table}\nand {len(done) - MOST_LINES} more"

    def next_command(self) -> str:
        """What makes tables and figures of the results."""
        return f"mdlm-leaderboard build {self.board.output} --output site"

    def summary(self) -> str:
        """How many cells there are, who did them, and where the time went."""
        times = "".join(f", {seconds:.0f} s {what}" for what, seconds in self.seconds.items())
        n_cells = len(self.board.sweep.cells)
        done = f"{self.board.n_done} of {n_cells} cells are done in {self.board.output}"
        return f"{done}: {self.board.counts()}{times}"
