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
    for name, target in MODELS.items():
        if not discovers and name not in registry.model_registry:
            registry.model_registry.register(name, target=target)


def add_tasks(task_manager_module: "ModuleType") -> None:
    """Lets `TaskManager` scan the task suite after lm-eval's own tasks and before the user's `--include_path`.

    In lm-eval, the last folder with a task of some name wins, so a user's task replaces one of the suite's.
    """
    from functools import wraps
    from inspect import signature

    from mdlm_lm_eval import tasks_path

    task_manager = task_manager_module.TaskManager
    initialise = task_manager.__init__
    parameters = signature(initialise)
    if not {"include_path", "include_defaults"} <= {*parameters.parameters}:
        raise TypeError(f"TaskManager{parameters} takes no include_path")

    @wraps(initialise)
    def with_suite(self: "Any", *arguments: object, **named: object) -> None:
        bound = parameters.bind(self, *arguments, **named)
        bound.apply_defaults()
        given = bound.arguments["include_path"]
        users = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
        if bound.arguments["include_defaults"]:
            bound.arguments["include_path"] = [tasks_path(), *users]
        initialise(*bound.args, **bound.kwargs)
        self.include_path = given  # lm-eval reports it

    task_manager.__init__ = with_suite


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
            spec.loader = _ThenAct(spec.loader, self.actions[name])  # type: ignore[assignment]
        return spec


class _ThenAct:
    """Loads a module with its own loader, which is put back before the module's code runs, and then runs an action."""

    def __init__(self, loader: "Any", action: "Callable[[ModuleType], None]") -> None:
        self.loader, self.action = loader, action

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self.loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = module.__spec__.loader = self.loader  # type: ignore[union-attr]
        self.loader.exec_module(module)
        try:
            self.action(module)
        except Exception as error:
            print(f"mdlm-lm-eval: could not extend {module.__name__}: {error!r}", file=sys.stderr)


def arm() -> None:
    """Starts waiting for lm-eval's modules to be imported. A second call changes nothing."""
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport({"lm_eval.models": register_model, "lm_eval.tasks.manager": add_tasks}))
