"""What runs on the nodes of a Ray cluster: a model that evaluates the cells it is given."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mdlm_lm_eval.sweep.evaluator import CellEvaluator
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.tasks import Tasks


class Files(dict[str, bytes]):
    """A cell's files by name, on their way to the process that writes them."""

    def __call__(self, folder: Path) -> None:
        """Writes them."""
        for name, content in self.items():
            (folder / name).write_bytes(content)


class Worker:
    """An actor; `folder` is where paths of the sweep begin, on nodes that have it."""

    def __init__(self, sweep: Sweep, folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)
        self.evaluator = CellEvaluator(sweep, Tasks(sweep))

    def load(self, peft: str | None) -> None:
        """Reads the weights. Raises OptionError where they cannot be loaded."""
        self.evaluator.load_model(peft)

    def evaluate(self, cell: Cell, settings: dict[str, Any]) -> tuple[str, Files]:
        """A cell's first score and its files. Raises whatever evaluating it raises."""
        found = self.evaluator.evaluate(cell, settings)
        assert found is not None
        scores, write = found
        with TemporaryDirectory() as folder:
            write(Path(folder))
            return scores, Files({path.name: path.read_bytes() for path in Path(folder).iterdir()})
