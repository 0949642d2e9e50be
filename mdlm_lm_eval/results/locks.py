"""Claims: one process at a time works on a cell or a folder, on one machine or on many that share the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import SoftFileLease, Timeout

# A claim that was not renewed for so long belongs to nobody; it is renewed three times as often.
LEASE_SECONDS = 60.0


class Claimed(RuntimeError):
    """Another process holds the claim; the message says which."""


@contextmanager
def claim(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Holds `path` for this process while the block runs.

    A claim lies beside `path` as a file with the holder's host and process, and is renewed as long as that lives. That
    of a dead process on this machine is taken over at once, of another machine after `LEASE_SECONDS` of waiting.
    Raises Claimed where somebody else still holds it after `wait` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lease = SoftFileLease(path.with_name(f".{path.name}.claim"), lease_duration=LEASE_SECONDS)
    try:
        lease.acquire(timeout=wait)
    except Timeout as error:
        owner = lease.owner
        holder = f"process {owner.pid} on {owner.hostname}" if owner else "another process"
        raise Claimed(f"{path} is being written by {holder}") from error
    try:
        yield
    finally:
        lease.release()
