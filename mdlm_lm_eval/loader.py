"""Plug-ins: files and modules outside the package that register something when they are imported.

    load_plugins("my_rule.py:acme.sampler")

The user names them with the option `plugins`, or installs a package with entry points. No checkpoint, task or preset
can. Results record the digest of each file.
"""

import hashlib
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from mdlm_lm_eval.options import OptionError, built_in_names
from mdlm_lm_eval.registry import ROW_DECODERS, SAMPLERS, Registry, digest_of, guests

_named: list[str] = []  # modules that were named


def load_plugins(named: object) -> None:
    """Imports files and modules, with colons between them, each once in a process.

    Raises OptionError where there is no such file or module, and ValueError where a name is taken: also by a file of
    which an earlier version was loaded.
    """
    for word in filter(None, str(named or "").split(":")):
        module = _load_file(Path(word)) if word.endswith(".py") else _load_module(word)
        if module not in _named:
            _named.append(module)


def plugins() -> list[dict[str, Any]]:
    """Every plug-in that this process has loaded: its name, the digest of its file, and what it `registers`.

    That is `sampler=NAME`, `unmasking=NAME` and so on, and the names of options that it alone declares.
    """
    found, built_in = guests(), built_in_names()
    words = {module: {*registered} for module, registered in found.items()}
    registries: tuple[Registry[Any], ...] = (SAMPLERS, ROW_DECODERS)
    for registry in registries:
        for name, module in registry.guests().items():
            words[module] |= registry.get(name).declared().keys() - built_in
    return [
        {"name": _name(module), "sha256": digest_of(module), "registers": sorted(words.get(module, ()))}
        for module in sorted({*_named, *found})
    ]


def digests(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Name -> digest of the plug-ins that the user named, and of those that registered something in these settings."""
    words = {*settings, *(f"{name}={value}" for name, value in settings.items())}
    named = {_name(module) for module in _named}
    return {each["name"]: each["sha256"] for each in plugins() if each["name"] in named or words & {*each["registers"]}}


def _load_module(name: str) -> str:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # one that the plug-in itself imports
        raise OptionError(f"plugins={name}: there is no such module; a file ends in .py") from None
    return name


def _load_file(path: Path) -> str:
    """Imports a file as a module that is named after it and what it holds, so that objects of it can be pickled."""
    if not path.is_file():
        raise OptionError(f"plugins={path}: there is no such file")
    name = f"plugin_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
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
