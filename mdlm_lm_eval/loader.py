"""Plug-ins: files and modules outside the package that register something when they are imported.

    load_plugins("my_rule.py:acme.sampler")

The user names them with the option `plugins`, or installs a package with entry points. No checkpoint, task or preset
can. Results record the digest of each file.
"""

import hashlib
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from mdlm_lm_eval.options import OptionError, built_in_names, short_name
from mdlm_lm_eval.registry import KINDS, ROW_DECODERS, SAMPLERS, digest_of

_named: list[str] = []  # modules that were named
_foreign: dict[tuple[str, str], "Foreign"] = {}  # by option and value


@dataclass(frozen=True)
class Foreign:
    """A function or class of others', which may use files beside its own.

    owner: the class of a method. modules: those of its folder, under names that another one's may have too, as `model`.
    files: the SHA-256 of each that was imported.
    """

    thing: Any
    owner: type | None
    path: Path | None
    modules: dict[str, ModuleType] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Imports find the files of its folder, and nothing of them is left to others."""
        if self.path is None:
            yield
            return
        others = {name: module for name, module in sys.modules.items() if name not in self.modules}
        hidden = {name: sys.modules[name] for name in self.modules.keys() & sys.modules.keys()}
        sys.modules.update(self.modules)
        sys.path.insert(0, str(self.path.parent))
        try:
            yield
        finally:
            sys.path.remove(str(self.path.parent))
            for name, module in [each for each in sys.modules.items() if each[0] not in others]:
                self._keep(name, module)
            sys.modules.update(hidden)

    def _keep(self, name: str, module: ModuleType) -> None:
        """Takes a module of its folder away from others."""
        assert self.path is not None
        known, folder = vars(module), self.path.parent  # as getattr() would make transformers' lazy modules import
        file = known.get("__file__")
        place = Path(file or next(iter(known.get("__path__", ())), "/"))
        if place.is_relative_to(folder) and "site-packages" not in place.relative_to(folder).parts:
            self.modules[name] = sys.modules.pop(name)
            name = place.relative_to(folder).as_posix()
            if file is not None and name not in self.files:
                self.files[name] = hashlib.sha256(place.read_bytes()).hexdigest()


def load_foreign(option: str, named: str) -> Foreign:
    """What FILE.py:NAME or module:NAME says, loaded once; NAME may be CLASS.METHOD. Raises OptionError."""
    if (option, named) not in _foreign:
        place, _, name = named.rpartition(":")
        path = Path(place).resolve() if place.endswith(".py") else None
        known = next((each for each in _foreign.values() if path is not None and each.path == path), None)
        found = known or Foreign(None, None, path)
        if path is None:
            module = import_module(place)
        else:
            with found.at_home():
                module = sys.modules[_load_file(path, option, alone=False)]
        thing = operator.attrgetter(name)(module)
        owner = operator.attrgetter(name.rpartition(".")[0])(module) if "." in name else None
        if path is None and (digest := digest_of(place)) is not None:
            found.files[place] = digest
        _foreign[option, named] = replace(found, thing=thing, owner=owner)
    return _foreign[option, named]


def foreign_files(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As `plugins`, those that these settings name: the file that holds the function or class, and those beside it."""
    found = []
    for option, named in settings.items():
        if (loaded := _foreign.get((option, str(named)))) is not None:
            word, files = short_name(str(named)), dict(sorted(loaded.files.items()))
            digest = next(iter(files.values()), None)
            if len(files) > 1:
                digest = hashlib.sha256(repr(files).encode()).hexdigest()
            entry = {"name": word.rpartition(":")[0], "sha256": digest, "registers": [f"{option}={word}"]}
            found.append(entry | {"guest": True, "files": files})
    return found


def load_plugins(named: object) -> None:
    """Imports files and modules, with colons between them, each once in a process.

    Raises OptionError where there is no such file or module, and ValueError where a name is taken: also by a file of
    which an earlier version was loaded.
    """
    for word in filter(None, str(named or "").split(":")):
        module = _load_file(Path(word)) if word.endswith(".py") else import_module(word).__name__
        if module not in _named:
            _named.append(module)


def plugins() -> list[dict[str, Any]]:
    """Every plug-in that this process has loaded: its name, the digest of its file, and what it `registers`.

    That is `sampler=NAME`, `unmasking=NAME` and so on, and the names of options that it alone declares.
    """
    words: dict[str, set[str]] = {module: set() for module in _named}
    built_in = built_in_names()
    for kind, registry in KINDS.items():
        for name, module in registry.guests.items():
            options = registry.get(name).declared().keys() if registry in (SAMPLERS, ROW_DECODERS) else set()
            words.setdefault(module, set()).update({f"{kind}={name}"}, options - built_in)
    return [
        {"name": _name(module), "sha256": digest_of(module), "registers": sorted(registered)}
        for module, registered in sorted(words.items())
    ]


def digests(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Name -> digest of the plug-ins that the user named, and of those that registered something in these settings."""
    words = {*settings, *(f"{name}={value}" for name, value in settings.items())}
    named = {_name(module) for module in _named}
    foreign = {each["registers"][0]: each["sha256"] for each in foreign_files(settings)}
    of_plugins = {
        each["name"]: each["sha256"] for each in plugins() if each["name"] in named or words & {*each["registers"]}
    }
    return foreign | of_plugins


def _load_file(path: Path, option: str = "plugins", *, alone: bool = True) -> str:
    """Imports a file as a module that is named after it and what it holds, so that objects of it can be pickled.

    alone: without the files beside it, which a file of a package imports by names that begin with a dot.
    """
    if not path.is_file():
        raise OptionError(f"{option}={path}: there is no such file")
    name = f"plugin_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    if not alone:
        package = sys.modules.setdefault(f"guest_{name}", ModuleType(f"guest_{name}"))
        package.__path__ = [str(path.parent)]
        name = f"{package.__name__}.{path.stem}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return name


def _name(module: str) -> str:
    """A file's name, or the module's."""
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).name if file and module.startswith(("plugin_", "__main__")) else module
