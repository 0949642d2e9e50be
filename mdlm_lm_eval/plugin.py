"""Makes `--model mdlm`, `--model mdlm-server` and the task suite known to lm-eval releases that discover no plugins.

No other file touches lm-eval's internals.

`mdlm_lm_eval_hook.pth` calls `arm` when an interpreter starts, so this module imports nothing but `sys` until lm-eval's
modules are imported. `arm` adds one entry to `sys.meta_path`, which waits for two of these modules and runs an action
after each. An action that fails prints one line, and lm-eval works as it would without this package.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MODELS = {"mdlm": "mdlm_lm_eval.lm:MDLM", "mdlm-server": "mdlm_lm_eval.server:MDLMServer"}


def register_model(lm_eval_models: "ModuleType") -> None:
    """Adds lazy placeholders for our models to lm-eval's model registry, unless lm-eval finds entry points itself.

    This must run after `lm_eval.models`: `get_model` imports that module only while the registry is empty, so a name
    that was there before would hide every built-in model.
    """
    from lm_eval.api import registry

    discovers = "import_plugins" in {*vars(registry), *vars(lm_eval_models)}
    known = dict(registry.model_registry.items())
    for name, target in MODELS.items() if not discovers else ():
        if name not in known:
            registry.model_registry.register(name, target=_Placeholder(target))
        elif target not in (known[name], _place_of(known[name])):
            _say_that_ours_is_hidden(name)


class _Placeholder(str):
    """The place of a class that a registry imports when it is asked for; a program's own class may take its place.

    lm-eval's registry refuses a second class for a name if what is there is unequal to it.
    """

    def __ne__(self, other: object) -> bool:
        if isinstance(other, type) and _place_of(other) != str(self):
            _say_that_ours_is_hidden(next(name for name, target in MODELS.items() if target == str(self)))
            return False
        return str.__ne__(self, other)


def _place_of(kind: "Any") -> str:
    return f"{getattr(kind, '__module__', '')}:{getattr(kind, '__name__', '')}"


def _say_that_ours_is_hidden(name: str) -> None:
    print(f"mdlm-lm-eval: --model {name} is this program's own class, not the one of mdlm-lm-eval", file=sys.stderr)


def add_tasks(task_manager_module: "ModuleType") -> None:
    """Lets lm-eval index the task suite after its own tasks and before the user's `--include_path`.

    In lm-eval, the last folder with a task of some name wins, so a user's task replaces one of the suite's. The
    index's function is wrapped and not `TaskManager` itself, whose warnings name the line that calls it.
    """
    from functools import wraps
    from inspect import signature
    from pathlib import Path

    from mdlm_lm_eval import tasks_path

    index, build = task_manager_module.TaskIndex, task_manager_module.TaskIndex.build
    if "paths" not in signature(build).parameters:
        raise TypeError(f"TaskIndex.build{signature(build)} takes no paths")

    @wraps(build)
    def with_suite(paths: "Iterable[Path]", **named: "Any") -> "Any":
        folders, suite = [Path(path) for path in paths], Path(tasks_path())
        own = Path(str(task_manager_module.__file__)).parent
        if own in folders and suite not in folders:
            folders.insert(folders.index(own) + 1, suite)
        return build(folders, **named)

    index.build = staticmethod(with_suite)


def forget_task_files(loaded: "Iterable[str]") -> None:
    """Makes lm-eval import the Python files of tasks again, as a new `lm_eval` process would.

    Otherwise a random generator in such a file would continue from its last state and draw other questions.
    `loaded`: names of modules, among them those of the task files.
    """
    from os.path import isabs

    from lm_eval.api import registry

    files = {name for name in loaded if name.startswith("lm_eval.tasks.") or isabs(name)}
    for name in files:
        del sys.modules[name]
    for registered in vars(registry).values():
        if isinstance(registered, registry.Registry):  # it refuses a second filter or metric of the same name
            for name in [name for name, value in registered.items() if getattr(value, "__module__", None) in files]:
                del registered._objs[name]


def task_manager(
    tasks: "Iterable[str]", include_path: str | None, metadata: "Mapping[str, Any] | None" = None
) -> "Any":
    """Returns lm-eval's manager for these tasks, which may be the suite's, the user's or lm-eval's own.

    lm-eval's own tasks are indexed only if one of them is wanted: there are thousands, and it takes many seconds.
    """
    from lm_eval.tasks import TaskManager

    from mdlm_lm_eval import tasks_path

    users = [include_path] if include_path else []
    manager = TaskManager(include_path=[tasks_path(), *users], include_defaults=False, metadata=metadata)
    if all(task.startswith("mdlm_") or task in manager.all_subtasks for task in tasks):
        return manager
    return TaskManager(include_path=users or None, metadata=metadata)


def digest_of_own_task(task: str, include_path: str | None) -> str | None:
    """Returns a digest of a user's task or group: of its YAML, with what it includes, Python files beside it, and data.

    Data are files on this machine that the YAML names. None for tasks that are not in the user's folder.
    """
    from glob import glob
    from hashlib import sha256
    from pathlib import Path

    from lm_eval.tasks.manager import TaskIndex

    if not include_path:
        return None
    folder = Path(include_path).expanduser().resolve()
    index = TaskIndex.build([folder])

    def digests_of(source: "Any") -> "Any":
        if isinstance(source, (dict, list)):
            return [digests_of(each) for each in (source.values() if isinstance(source, dict) else source)]
        path = Path(str(source)).expanduser()
        files = path.rglob("*") if path.is_dir() and path != Path() else map(Path, glob(str(path), recursive=True))
        return [sha256(one.read_bytes()).hexdigest() for one in sorted(files) if one.is_file()]

    def content(name: str) -> "Any":
        if (entry := index.get(name)) is None:
            return None
        settings, code = entry.cfg or {}, entry.yaml_path.parent.glob("*.py") if entry.yaml_path else ()
        members = settings["task"] if "group" in settings else entry.tags if entry.yaml_path is None else ()
        inside = sorted(str(one.get("task") if isinstance(one, dict) else one) for one in members)
        texts = [path.read_text(encoding="utf-8") for path in sorted(code)]
        data = digests_of([settings.get("dataset_path"), settings.get("dataset_kwargs")])
        return [repr(settings).replace(str(folder), ""), texts, data, [content(one) for one in inside]]

    found = content(task)
    return found and sha256(repr(found).encode()).hexdigest()


def with_tasks(manager: "Any", loaded: "Any") -> "Any":
    """Returns a copy of lm-eval's manager that loads what it loaded before, which its caller may have changed.

    Since 0.5, `simple_evaluate` takes no tasks but by their names.
    """
    from copy import copy

    changed = copy(manager)
    changed.load = lambda _tasks: loaded
    return changed


class AfterImport:
    """A `sys.meta_path` finder that runs an action after a module's own loader has executed the module."""

    def __init__(self, actions: "dict[str, Callable[[ModuleType], None]]") -> None:
        self.actions = actions

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in self.actions:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _acting(spec.loader, self.actions[name])
        return spec


def _acting(loader: "Any", action: "Callable[[ModuleType], None]") -> "Any":
    """Returns a copy of a module's loader that puts the loader back, executes the module and then runs an action."""
    from copy import copy

    def exec_module(module: "ModuleType") -> None:
        module.__loader__ = module.__spec__.loader = loader  # type: ignore[union-attr]
        loader.exec_module(module)
        try:
            action(module)
        except Exception as error:
            print(f"mdlm-lm-eval: could not extend {module.__name__}: {error!r}", file=sys.stderr)

    acting = copy(loader)
    vars(acting)["exec_module"] = exec_module
    return acting


def arm() -> None:
    """Starts waiting for lm-eval's modules to be imported. A second call changes nothing."""
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport({"lm_eval.models": register_model, "lm_eval.tasks.manager": add_tasks}))
