"""Claims: one process at a time works on a cell or a folder, on one machine or on many that share the disk."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import SoftFileLease, Timeout

# A claim that was not renewed for so long belongs to nobody; it is renewed three times as often.
LEASE_SECONDS = 60.0


class Claimed(RuntimeError):
    """Another process holds the claim; the message says which."""


class Claim:
    """A path that one process at a time holds, from `take` to `release`.

    It lies beside the path as a file with the holder's host and process, and a thread renews it as long as that lives.
    That of a dead process on this machine is taken over at once. That of another machine is taken over when it was not
    renewed for `LEASE_SECONDS` between two calls of `take` of the same object: nobody compares clocks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.with_name(f".{path.name}.claim")
        # A claim may be released by another thread than took it, such as one that cleans up.
        self._lease = SoftFileLease(self._file, lease_duration=LEASE_SECONDS, thread_local=False)
        self._empty_since: tuple[int, float] | None = None  # inode, and when this process first saw it so

    def take(self, *, wait: float = 0.0) -> bool:
        """Whether it is this process's now, after `wait` seconds at most."""
        try:
            self._lease.acquire(timeout=wait)
        except Timeout:
            self._clear_if_unwritten()
            return False
        return True

    def release(self) -> None:
        """Gives it back."""
        self._lease.release()

    @property
    def lost(self) -> bool:
        """Whether somebody else took it, as after this process was suspended for longer than `LEASE_SECONDS`."""
        return self._lease.compromise is not None

    @property
    def holder(self) -> str | None:
        """Who has it, None where nobody can be told."""
        owner = self._lease.owner
        return f"process {owner.pid} on {owner.hostname.partition('?')[0]}" if owner else None

    @property
    def renewed(self) -> float | None:
        """When the holder last renewed it, by the clock of the disk, in seconds since 1970."""
        try:
            return self._file.stat().st_mtime
        except FileNotFoundError:
            return None

    def _clear_if_unwritten(self) -> None:
        """Removes a claim whose owner died before it wrote its name, which filelock keeps forever."""
        try:
            found = self._file.stat()
            if found.st_size:
                self._empty_since = None
            elif self._empty_since is None or self._empty_since[0] != found.st_ino:
                self._empty_since = found.st_ino, time.monotonic()
            elif time.monotonic() - self._empty_since[1] > LEASE_SECONDS:
                self._file.unlink()
        except FileNotFoundError:
            pass


@contextmanager
def claim(path: Path, *, wait: float = 0.0) -> Iterator[Claim]:
    """Holds `path` for this process while the block runs.

    Raises Claimed where somebody else still holds it after `wait` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = Claim(path)
    if not held.take(wait=wait):
        raise Claimed(f"{path} is being written by {held.holder or 'another process'}")
    try:
        yield held
    finally:
        held.release()


def clear_claims(folder: Path) -> None:
    """Removes the claims that dead processes left beside what they had finished in `folder`."""
    for marker in folder.glob(".*.claim"):
        path = marker.with_name(marker.name[1:].removesuffix(".claim"))
        left = Claim(path)
        if path.exists() and left.take():
            left.release()


def this_process() -> str:
    """As `Claim.holder` names it to others."""
    return f"process {os.getpid()} on {platform.node()}"
