"""Files of a checkpoint that strangers made to be more than weights: pickles, paths, and templates without an end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import read_json

_LONGEST = 10.0  # seconds; a template takes milliseconds


@contextmanager
def refused_pickles(given: str) -> Iterator[None]:
    """Raises OptionError for a pickle that torch refuses. Torch's own message advises to let it run.

    given: the option with its value.
    """
    try:
        yield
    except UnpicklingError as error:
        raise OptionError(
            f"{given}: torch refuses a file of weights, since it is a broken pickle or one that may run code; do not "
            "allow it, but ask for the weights as safetensors"
        ) from error


def refuse_files_outside(pretrained: str, subfolder: str) -> None:
    """Raises OptionError if a folder's index of weights names a file that is not in the folder itself."""
    for index in sorted(Path(pretrained, subfolder).glob("*.index.json")):
        if outside := [file for file in read_json(index)["weight_map"].values() if Path(file).name != file]:
            raise OptionError(f"pretrained={pretrained}: {index.name} names {outside[0]}, which is outside the folder")


@contextmanager
def ending_templates(name: str | None) -> Iterator[None]:
    """Ends a chat template that loops. Raises OptionError, which names the model.

    It needs a timer of the process: other threads than the main one, and programs with such a timer, go without.
    """

    def end(*_: Any) -> None:
        raise OptionError(f"pretrained={name}: its chat template has not ended after {_LONGEST:.0f} seconds")

    is_free = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not is_free or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
