"""Plug-ins: files and modules outside the package that register something when they are imported. Foreign functions.

    load_plugins("my_rule.py:acme.sampler")

The user names plug-ins with the option `plugins`, or installs a package with entry points. A checkpoint, task or preset
cannot. Results record the digest of each file.
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

from mdlm_lm_eval.declared import built_in_names
from mdlm_lm_eval.options import OptionError, did_you_mean, short_name, shown
from mdlm_lm_eval.registry import KINDS, ROW_DECODERS, SAMPLERS, digest_of

_named: set[str] = set()  # modules that the user named
_foreign: dict[tuple[str, str], "Foreign"] = {}  # (option, its value) -> the object that it loaded


@dataclass(frozen=True)
class Foreign:
    """A function or class that is not part of this package, which may import the files beside its own.

    thing: the function or class. owner: the class of a method, else None. path: its file; None if it is in a module.
    modules: imported modules of its folder by name. Modules of another folder may have the same names, such as `model`.
    files: the SHA-256 of each imported file, by its path in the folder.
    """

    thing: Any
    owner: type | None
    path: Path | None
    modules: dict[str, ModuleType] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Lets imports inside the `with` block find the files of its folder, and hides these modules afterwards.

        Does nothing for an object of a module.
        """
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
        """Moves a module from `sys.modules` to `modules` if its file is in the folder."""
        assert self.path is not None
        known, folder = vars(module), self.path.parent  # getattr() would make transformers' lazy modules import
        file = known.get("__file__")
        place = Path(file or next(iter(known.get("__path__", ())), "/"))
        if place.is_relative_to(folder) and "site-packages" not in place.relative_to(folder).parts:
            self.modules[name] = sys.modules.pop(name)
            name = place.relative_to(folder).as_posix()
            if file is not None and name not in self.files:
                self.files[name] = hashlib.sha256(place.read_bytes()).hexdigest()


def load_foreign(option: str, named: str) -> Foreign:
    """Loads the object that FILE.py:NAME or module:NAME names, once in a process. NAME may be CLASS.METHOD.

    Raises OptionError if there is no such file or name.
    """
    if (option, named) not in _foreign:
        place, _, name = named.rpartition(":")
        path = Path(place).resolve() if place.endswith(".py") else None
        known = next((each for each in _foreign.values() if path is not None and each.path == path), None)
        found = known or Foreign(None, None, path)
        with found.at_home():
            module = _module(place, f"{option}={named}") if path is None else _load_file(path, option, alone=False)
        if name.partition(".")[0] not in dir(module):
            hint = did_you_mean(name, dir(module))
            raise OptionError(f"{option}={named}: {place} has no {name}" + (f"; {hint}" if hint else ""))
        thing = operator.attrgetter(name)(module)
        owner = operator.attrgetter(name.rpartition(".")[0])(module) if "." in name else None
        if path is None and (digest := digest_of(place)) is not None:
            found.files[place] = digest
        _foreign[option, named] = replace(found, thing=thing, owner=owner)
    return _foreign[option, named]


def foreign_files(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns entries like those of `plugins` for the foreign functions and classes that these settings name.

    `files` has the digest of the file with the function or class, and of each file beside it that was imported.
    """
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
    """Imports the named files and modules, which colons separate. Each is imported once in a process.

    Raises OptionError if there is no such file, and ValueError if a registered name is taken. An earlier version of the
    same file takes its names, too.
    """
    for word in filter(None, str(named or "").split(":")):
        module = _load_file(Path(word)) if word.endswith(".py") else _module(word, f"plugins={named}")
        _named.add(module.__name__)


def plugins() -> list[dict[str, Any]]:
    """Returns the name, the digest of the file and the list `registers` of every plug-in loaded in this process.

    The list has words such as `sampler=NAME` or `unmasking=NAME`, and the options that only this plug-in declares.
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
    """Returns the digests of plug-ins that the user named or that registered something in these settings, by name."""
    words = {*settings, *(f"{name}={value}" for name, value in settings.items())}
    named = {_name(module) for module in _named}
    foreign = {each["registers"][0]: each["sha256"] for each in foreign_files(settings)}
    of_plugins = {
        each["name"]: each["sha256"] for each in plugins() if each["name"] in named or words & {*each["registers"]}
    }
    return foreign | of_plugins


def _load_file(path: Path, option: str = "plugins", *, alone: bool = True) -> ModuleType:
    """Imports a file as a module with a name that is made from the file's name and content.

    Such a name lets objects of the module be pickled.
    alone: if false, the file can import those beside it by names that begin with a dot, as in a package.
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
    return sys.modules[name]


def _module(name: str, given: str) -> ModuleType:
    """Imports a module. Raises OptionError, which begins with the option as it was `given`, if there is none."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise OptionError(f"{given}: {shown(name)} is neither a file that ends in .py nor a module")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):  # and no other module that it imports
            raise OptionError(f"{given}: there is no module {error.name}") from error
        raise


def _name(module: str) -> str:
    """Returns the name of a plug-in's file, or of its module if it was not loaded as a file."""
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).name if file and module.startswith(("plugin_", "__main__")) else module
