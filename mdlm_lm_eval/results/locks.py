"""Claims: one process at a time works on a cell or a folder, on one machine or on many that share the disk."""

import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from filelock import OwnerRecord, SoftFileLease, Timeout

from mdlm_lm_eval.results.files import UnusableFile, read_bytes

# A claim that was not renewed for so long belongs to nobody; it is renewed three times as often.
LEASE_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 1.0  # at whether who is waited for is dead


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
        # What the file was at the last look, and when this process first saw it so.
        self._seen: tuple[tuple[bytes, int, int], float] | None = None
        self._breaking: Claim | None = None

    def take(self, *, wait: float = 0.0) -> bool:
        """Whether it is this process's now, after `wait` seconds at most."""
        until = time.monotonic() + wait
        while True:
            try:
                self._lease.acquire(timeout=min(max(until - time.monotonic(), 0.0), _SECONDS_BETWEEN_LOOKS))
            except Timeout:
                if not self._break() and time.monotonic() >= until:
                    return False
            else:
                return True

    def release(self) -> None:
        """Gives it back."""
        self._lease.release()

    @property
    def lost(self) -> bool:
        """Whether somebody else took it, as after this process was suspended for longer than `LEASE_SECONDS`.

        It is for who has taken it and not given it back.
        """
        # The thread that renews it notices too, but up to two renewals later.
        owner = self._lease.owner
        return self._lease.compromise is not None or owner is None or owner.token != self._lease.token

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

    def _break(self) -> bool:
        """Removes a claim whose process is gone, where filelock keeps it. Whether it did.

        filelock takes a claim over by exchanging two files, which NFS, SMB and some containers refuse, as all disks do
        where its name for the other file is too long. One that died before it wrote its name is kept everywhere.
        """
        with suppress(OSError, UnusableFile):  # it is gone, or no claim, or this process may not remove it
            found = self._look()
            if self._seen is None or self._seen[0] != found:
                self._seen = found, time.monotonic()
            owner = self._lease.owner
            if time.monotonic() - self._seen[1] > LEASE_SECONDS or (owner is not None and _is_dead(owner)):
                return self._remove(found)
        return False

    def _remove(self, found: tuple[bytes, int, int]) -> bool:
        """Removes the file if it still is what was found."""
        if self._breaking is None:
            digest = hashlib.sha256(os.fsencode(self.path.name)).hexdigest()
            self._breaking = Claim(self.path.with_name(digest))
        # Of two that found the same, the slower would remove the claim that the faster has taken since.
        if not self._breaking.take():
            return False
        try:
            if self._look() != found:
                return False
            self._file.unlink()
            return True
        finally:
            self._breaking.release()

    def _look(self) -> tuple[bytes, int, int]:
        """What the file holds, its inode and when it was renewed. NFS may tell old times of a file not just opened."""
        content = read_bytes(self._file)
        found = self._file.stat()
        return content, found.st_ino, found.st_mtime_ns


def _is_dead(owner: OwnerRecord) -> bool:
    """Whether a claim's process is gone for certain: it was one that this process could see."""
    if os.name != "posix" or owner.hostname != _own_host():  # on Windows, to ask for a process would end it
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return False


@cache
def _own_host() -> str | None:
    """As filelock writes it into claims: two containers of one name see other processes, and have other names there."""
    with tempfile.TemporaryDirectory() as folder, SoftFileLease(Path(folder) / "claim") as lease:
        return lease.owner.hostname if lease.owner else None


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
