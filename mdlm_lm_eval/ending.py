"""How every command ends: with one sentence where something is wrong, and without a traceback where it is stopped."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.values import OptionError

_STOPPED, _NOBODY_READS = 130, 141  # as a shell counts SIGINT and SIGPIPE


@contextmanager
def ending_well(command: str, *, after_stop: str) -> Iterator[None]:
    """The whole of a command. `after_stop` says what to do after Ctrl-C: "the same command goes on"."""
    try:
        yield
        _leave_process_group()
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on; what is left would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_NOBODY_READS)
    except (OptionError, OSError) as error:
        _end_progress_bars()
        # Our sentences are whole; the system's are those of a disk that is full, or not there any more.
        sys.exit(f"{command}: {error if isinstance(error, OptionError) else one_line(error)}")
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{command}: stopped; {after_stop}\n")
        sys.exit(_STOPPED)


@contextmanager
def importing(command: str) -> Iterator[None]:
    """Around imports of heavy packages, which fail in ways of their own where Ctrl-C interrupts them."""

    def stop_at_once(*_: object) -> None:
        os.write(2, f"\n{command}: stopped; it had not begun\n".encode())
        os._exit(_STOPPED)

    before = signal.signal(signal.SIGINT, stop_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave_process_group() -> None:
    """torch.distributed asks for it before a process ends; one that is still in its group may be aborted there."""
    if "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


def _end_progress_bars() -> None:
    """Puts the cursor on a line of its own. Bars would else be drawn once more behind the sentence, as Python ends."""
    from tqdm import tqdm

    for bar in list(tqdm._instances):
        bar.close()
