"""Work that any number of processes share by claims in a folder, without anybody who deals it out."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from mdlm_lm_eval.results.locks import Claim

Item = TypeVar("Item")
# Between two looks at what others hold: a look is one file each, and on a network disk they add up.
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0


class Shared(Generic[Item]):
    """Items of work of which each is done once, whoever does it.

    path_of: the file or folder that an item makes; its claim lies beside it.
    is_done: whether it has been made. It is asked before an item is claimed and again after, as another process may
        have finished in between.
    """

    def __init__(self, items: Iterable[Item], path_of: Callable[[Item], Path], is_done: Callable[[Item], bool]) -> None:
        self._left = deque(items)
        self._path_of = path_of
        self._is_done = is_done
        # Of items that others hold. The same object sees over several looks whether a claim is renewed.
        self._waiting: dict[Path, Claim] = {}

    def __len__(self) -> int:
        """Items that nobody is known to have done, without those that this process took."""
        return len(self._left)

    def items(self) -> list[Item]:
        """Those items."""
        return list(self._left)

    def take(self, prefers: Callable[[Item], bool] = lambda _: True) -> tuple[Item, Claim] | None:
        """An item that is now claimed by this process, or None where others hold all that are left.

        Of two that are free, one that `prefers` holds for comes first.
        """
        for wanted in (True, False):
            for _ in range(len(self._left)):
                item = self._left.popleft()
                if bool(prefers(item)) is not wanted:
                    self._left.append(item)
                elif (claim := self._claimed(item)) is not None:
                    return item, claim
        return None

    def wait(
        self, prefers: Callable[[Item], bool] = lambda _: True, waiting: Callable[[list[str]], object] = lambda _: None
    ) -> tuple[Item, Claim] | None:
        """The same, but where others hold all that are left it waits for what they leave behind.

        None when all is done. `waiting` is told once who holds what is waited for.
        """
        seconds = SHORTEST_WAIT
        while (taken := self.take(prefers)) is None and self._left:
            if seconds == SHORTEST_WAIT:
                waiting(self.holders())
            time.sleep(seconds)
            seconds = min(1.5 * seconds, LONGEST_WAIT)
        return taken

    def put_back(self, item: Item, claim: Claim) -> None:
        """Leaves an item undone, for anybody."""
        claim.release()
        self._left.appendleft(item)

    def holders(self) -> list[str]:
        """Who holds the items that this process waits for."""
        return sorted({holder for claim in self._waiting.values() if (holder := claim.holder)})

    def __iter__(self) -> Iterator[tuple[Item, Claim]]:
        """Every item that falls to this process, until all are done by somebody."""
        while (taken := self.wait()) is not None:
            try:
                yield taken
            finally:
                taken[1].release()

    def _claimed(self, item: Item) -> Claim | None:
        """The item's claim if it could be taken; else the item is done, or goes to the end of those left."""
        path = self._path_of(item)
        claim = self._waiting.pop(path, None) or Claim(path)
        if self._is_done(item):
            return None
        if not claim.take():
            self._waiting[path] = claim
            self._left.append(item)
            return None
        if self._is_done(item):
            claim.release()
            return None
        return claim
