"""The cells of a sweep on disk: which are done, which have failed, and which this process may compute now.

OUTPUT/MODEL/CELL/            a finished cell, whole
OUTPUT/MODEL/.CELL.claim      who computes it
OUTPUT/MODEL/.CELL.failed     the sentence that its last attempt ended with
OUTPUT/.sweeps/DIGEST.plan    what a sweep is made of, for `--status`
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mdlm_lm_eval import families
from mdlm_lm_eval.default_model import BUILT_IN
from mdlm_lm_eval.fitting import fit
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import check_writable, whole_folder
from mdlm_lm_eval.results.locks import Claim, clear_claims
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.sharing import Shared
from mdlm_lm_eval.sweep import results as files
from mdlm_lm_eval.sweep.failures import failed_file, read_failure, write_failure
from mdlm_lm_eval.sweep.plan import AUTOREGRESSIVE, Cell, Sweep
from mdlm_lm_eval.sweep.status import write_plan
from mdlm_lm_eval.sweep.tasks import Tasks


class Board:
    """What is left to do, and a place for what has been done. Several processes may have one on the same folder.

    failures: one sentence for every cell that cannot be done, by the cell's name, whoever tried.
    before, own: how many cells were done before, and by this process.

    Raises OptionError, and leaves nothing behind, where the model's config or tokenizer cannot be read, or no cell can
    be computed.
    """

    def __init__(self, sweep: Sweep, tasks: Tasks, output: Path) -> None:
        self.sweep, self.output = sweep, output
        self.failures: dict[str, str] = {}
        self.before = self.own = 0
        self.settings: dict[str, dict[str, Any]] = {}  # by the cell's name
        self._failed_before: dict[str, str | None] = {}  # the attempts of earlier runs at the cells to do, by name
        check_writable(output, "--output_path")
        to_do = list(self._to_do(tasks))
        if self.failures and not self.settings:
            first, n = next(iter(self.failures.values())), len(self.failures)
            raise OptionError(first if n == 1 else f"none of the {n} cells can be computed, the first because: {first}")
        self.shared = Shared(to_do, self.folder, self._is_settled)
        planned: dict[str, dict[str, Any] | str] = {**self.settings, **self.failures}
        self._own_plan = write_plan(output, {self.folder(cell): planned[self.name(cell)] for cell in sweep.cells})

    @property
    def n_done(self) -> int:
        """Cells with a result, as far as this process has looked."""
        return len(self.sweep.cells) - len(self.failures) - len(self.shared)

    def name(self, cell: Cell) -> str:
        """Model and cell, as messages name it."""
        return f"{self.sweep.model_folder(cell.peft)} {cell.name}"

    def folder(self, cell: Cell) -> Path:
        """Where its files lie."""
        return files.cell_folder(self.sweep, cell, self.output)

    def finish(self, cell: Cell, claim: Claim, write: Callable[[Path], None]) -> None:
        """Puts a cell's files, which `write` writes into a folder, in their place.

        Where this process was suspended for so long that another took the cell over, it is that one's.
        """
        folder = self.folder(cell)
        if claim.lost:
            self.shared.put_back(cell, claim)
            return
        with whole_folder(folder, replaced=folder.exists()) as unfinished:
            write(unfinished)
        failed_file(folder).unlink(missing_ok=True)
        self.own += 1

    def fail(self, cell: Cell, error: Exception) -> str:
        """Keeps why a cell could not be done, so that no other process of these tries it too. Returns the sentence."""
        kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
        sentence = self.failures[self.name(cell)] = f"{kind}{one_line(error)}"
        write_failure(failed_file(self.folder(cell)), sentence)
        return sentence

    def withdraw(self) -> None:
        """Takes the plan back where this process made it, as nothing could begin."""
        if self._own_plan is not None:
            self._own_plan.unlink(missing_ok=True)
            with suppress(OSError):
                self._own_plan.parent.rmdir()

    def clear_claims(self) -> None:
        """Removes what processes left that died right after they had finished a cell."""
        for folder in {self.folder(cell).parent for cell in self.sweep.cells}:
            clear_claims(folder)

    def counts(self) -> str:
        """Who did how many cells."""
        others = self.n_done - self.before - self.own
        parts = [f"{self.own} by this process", f"{others} by others", f"{self.before} before"]
        return ", ".join(part for part in parts if part[0] != "0") or "none"

    def _to_do(self, tasks: Tasks) -> Iterator[Cell]:
        """Cells without a result."""
        unreadable = _unreadable_adapters({cell.peft for cell in self.sweep.cells if cell.peft is not None})
        digest = cache(families.files_digest)
        check = _fit_check(self.sweep)
        for cell in self.sweep.cells:
            try:
                if cell.peft in unreadable:
                    raise OptionError(unreadable[cell.peft])
                check(cell)
                settings = files.cell_settings(self.sweep, cell, tasks, digest)
                self.settings[self.name(cell)] = settings
                if files.is_finished(self.folder(cell), settings):
                    self.before += 1
                    continue
            except OptionError as error:
                self.failures[self.name(cell)] = one_line(error)
                continue
            self._failed_before[self.name(cell)] = read_failure(failed_file(self.folder(cell))).get("attempt")
            yield cell

    def _is_settled(self, cell: Cell) -> bool:
        """Whether a cell is done, or another process has found since this one began that it cannot be done."""
        try:
            if files.is_finished(self.folder(cell), self.settings[self.name(cell)]):
                return True
        except OptionError as error:  # put there while this sweep ran
            self.failures[self.name(cell)] = one_line(error)
            return True
        failure = read_failure(failed_file(self.folder(cell)))
        if not failure or failure["attempt"] == self._failed_before[self.name(cell)]:
            return False
        self.failures[self.name(cell)] = f"{failure['sentence']} ({failure['by']})"
        return True


def _fit_check(sweep: Sweep) -> Callable[[Cell], object]:
    """What raises OptionError for a cell that the model cannot do, as config and tokenizer say."""
    if sweep.model == AUTOREGRESSIVE:
        return lambda _: None
    given = sweep.model_args
    where = {name: given[name] for name in ("revision", "subfolder", "trust_remote_code") if name in given}
    config = families.load_config(given.get("pretrained", BUILT_IN), **where)
    more = {name: given[name] for name in ("use_fast_tokenizer", "add_bos_token") if name in given}
    source = given.get("tokenizer") or given.get("pretrained", BUILT_IN)
    tokenizer = families.load_tokenizer(source, config=config, **where, **more)
    return lambda cell: fit(sweep.parsed_arguments(cell), config, tokenizer)


def _unreadable_adapters(names: Iterable[str]) -> dict[str, str]:
    """What is wrong with adapters that are not there, known long before their turn comes."""
    sentences = {}
    for peft in names:
        try:
            families.load_adapter_config(peft)
        except OptionError as error:
            sentences[peft] = str(error)
    return sentences
