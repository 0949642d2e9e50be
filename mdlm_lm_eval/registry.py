"""Registries of everything that has a name: samplers, row decoders, unmasking rules, families, objectives.

    register(name="right_to_left", unmasking=UnmaskingRule(rank))

Built-in objects are files of their folders. Others are registered by a program, by a file that the option `plugins`
loads, or by an entry point `mdlm_lm_eval.sampler` (`.unmasking`, ...) of an installed package. An entry point
has the name of its object, and is loaded when this name is first asked for. Registering a name twice is an error.
"""

import hashlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

_OWN_PACKAGES = ("mdlm_lm_eval", "mdlm_finetune")


class Registry:
    """Objects of one `kind` by name. It knows no class of these objects: rooms above say which ones they are.

    room: a package with one file for each built-in object, or a module that registers several.
    shared: for two objects of different names, the thing that both claim and only one can have, in words; "" if none.
    """

    def __init__(self, kind: str, room: str, shared: Callable[[Any, Any], str] = lambda one, other: "") -> None:
        self.kind, self.room, self.shared = kind, room, shared
        self._known: dict[str, Any] = {}
        self._is_complete = False  # True after all built-in files and entry points have been loaded
        self.guests: dict[str, str] = {}  # name of an object that is not built in -> the module that registered it

    def add(self, name: str, thing: Any, module: str) -> None:
        """Adds an object. Raises ValueError if another one has its name or, by `shared`, something it claims."""
        if self._known.get(name, thing) != thing:
            raise ValueError(f"a {self.kind} named {name!r} is registered already")
        for other, known in self._known.items():
            if other != name and (shared := self.shared(thing, known)):
                raise ValueError(f"{self.kind} {name}: the {shared} belongs to the {self.kind} {other}")
        self._known[name] = thing
        if module.partition(".")[0] not in _OWN_PACKAGES:
            self.guests[name] = module
            digest_of(module)

    def names(self) -> tuple[str, ...]:
        """Returns all names. Imports no built-in file and no installed package."""
        return tuple(sorted({*self._files, *self._known, *self._installed}))

    def get(self, name: str) -> Any:
        """Returns the object with this name. Raises KeyError if there is none."""
        if name not in self._known and name in self._files:
            import_module(f"{self.room}.{name}")
        if (entry := self._installed.get(name)) is not None:
            thing = entry.load()
            if not isinstance(thing, ModuleType):  # a module registers its objects itself
                self.add(name, thing, entry.module)
            del self._installed[name]
        return self._known[name]

    def all(self) -> dict[str, Any]:
        """Returns every object by its name."""
        if not self._is_complete:
            for file in self._files:
                import_module(f"{self.room}.{file}")
            for name in tuple(self._installed):
                self.get(name)
            self._is_complete = True
        return dict(self._known)

    @cached_property
    def _files(self) -> tuple[str, ...]:
        module = import_module(self.room)
        return tuple(file.name for file in pkgutil.iter_modules(getattr(module, "__path__", ())))

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:  # those that are not loaded yet
        return {entry.name: entry for entry in _all_entry_points().select(group=f"mdlm_lm_eval.{self.kind}")}


_all_entry_points = cache(entry_points)  # reads all installed packages

SAMPLERS = Registry("sampler", "mdlm_lm_eval.decoding.samplers")
ROW_DECODERS = Registry("row_decoder", "mdlm_lm_eval.decoding.row_decoders")
UNMASKING = Registry("unmasking", "mdlm_lm_eval.decoding.rules")
FAMILIES = Registry("family", "mdlm_lm_eval.families", lambda one, other: one.shares_with(other))
OBJECTIVES = Registry("objective", "mdlm_finetune.objectives")
KINDS = {each.kind: each for each in (SAMPLERS, ROW_DECODERS, UNMASKING, FAMILIES, OBJECTIVES)}


def register(*, name: str, **things: Any) -> None:
    """Adds an object of yours under a name, as in `register(name="mine", sampler=Mine)`.

    The keyword says what the object is: `sampler`, `row_decoder`, `unmasking`, `family` or `objective`. Raises
    ValueError if the name is already taken.
    """
    module = str(sys._getframe(1).f_globals.get("__name__", "__main__"))  # the caller; results record its file
    for kind, thing in things.items():
        KINDS[kind].add(name, thing, module)


def guest_of(sampler: object) -> str | None:
    """Returns FILE.py:FUNCTION or module:function if `sampler` is that or the name of an entry point for it, else None.

    The group of these entry points is `mdlm_lm_eval.guest`.
    """
    if not isinstance(sampler, str):
        return None
    installed = _all_entry_points().select(group="mdlm_lm_eval.guest", name=sampler)
    return sampler if ":" in sampler else next((entry.value for entry in installed), None)


@cache
def package_digest() -> str:
    """The SHA-256 of this package's Python files, which differ between states of one version; without the tasks."""
    digest, folder = hashlib.sha256(), Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith("tasks/"):
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def digest_of(module: str) -> str | None:
    """Returns the SHA-256 of an imported module's file, computed at the first call; None if it has no file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
