"""Makes `--model mdlm`, `--model mdlm-server` and the task suite known to lm-eval releases that discover no plugins.

No other file touches what lm-eval keeps to itself.

`mdlm_lm_eval_hook.pth` calls `arm` when an interpreter starts, so this module imports nothing but `sys` until lm-eval's
modules are. What `arm` leaves behind is one entry in `sys.meta_path` that waits for two of them and acts once each has
run. An action that fails prints one line, and lm-eval is as it would be without this package.
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
    """Adds the lazy placeholders for our models to lm-eval's model registry, unless lm-eval finds entry points itself.

    Only after `lm_eval.models` has run: `get_model` imports that module while the registry is empty and not otherwise,
    so a name that was there first would hide every built-in model.
    """
    from lm_eval.api import registry

    discovers = "import_plugins" in {*vars(registry), *vars(lm_eval_models)}
    for name, target in MODELS.items():
        if not discovers and name not in registry.model_registry:
            registry.model_registry.register(name, target=target)


def add_tasks(task_manager_module: "ModuleType") -> None:
    """Lets `TaskManager` scan the task suite after lm-eval's own tasks and before the user's `--include_path`.

    Later folders win in lm-eval, so that a user's task of the same name is the one that runs.
    """
    from functools import wraps

    task_manager = task_manager_module.TaskManager
    initialise = task_manager.__init__

    @wraps(initialise)
    def with_suite(self: object, *arguments: object, **named: object) -> None:
        given, include_path = (arguments, named), None
        try:
            (arguments, named), include_path = _with_suite(initialise, self, arguments, named)
        except Exception as error:
            _say(f"could not add its tasks: {error!r}")
            arguments, named = given
        initialise(self, *arguments, **named)
        if (arguments, named) != given:
            self.include_path = include_path  # type: ignore[attr-defined]  # lm-eval reports what the user gave

    task_manager.__init__ = with_suite


def _with_suite(initialise: "Callable[..., None]", self: object, arguments: "Any", named: "Any") -> "Any":
    from inspect import signature

    from mdlm_lm_eval import tasks_path

    bound = signature(initialise).bind(self, *arguments, **named)
    bound.apply_defaults()
    suite, include_path = tasks_path(), bound.arguments["include_path"]
    users = list(include_path) if isinstance(include_path, (list, tuple)) else [include_path] if include_path else []
    if bound.arguments["include_defaults"] and suite.is_dir():
        bound.arguments["include_path"] = [suite, *users]
    return (bound.args[1:], bound.kwargs), include_path


def forget_task_files(loaded: "Iterable[str]") -> None:
    """Lets lm-eval import the Python files of tasks anew, as the process of one `lm_eval` would.

    A random generator in one of them would go on where it was left, and ask other questions. `loaded` are the names of
    modules among which they are.
    """
    from os.path import isabs

    from lm_eval.api import registry

    files = {name for name in loaded if name.startswith("lm_eval.tasks.") or isabs(name)}
    for name in files:
        del sys.modules[name]
    for registered in vars(registry).values():
        if isinstance(registered, registry.Registry):  # takes no second filter or metric of one name
            for name in [name for name, value in registered.items() if getattr(value, "__module__", None) in files]:
                del registered._objs[name]


def task_manager(
    tasks: "Iterable[str]", include_path: str | None, metadata: "Mapping[str, Any] | None" = None
) -> "Any":
    """lm-eval's manager of these tasks: of the suite and the user's, and of lm-eval's own where one of them is wanted.

    Indexing the thousands that come with lm-eval takes many seconds.
    """
    from lm_eval.tasks import TaskManager

    from mdlm_lm_eval import tasks_path

    users = [include_path] if include_path else []
    manager = TaskManager(include_path=[tasks_path(), *users], include_defaults=False, metadata=metadata)
    if all(task.startswith("mdlm_") or task in manager.all_subtasks for task in tasks):
        return manager
    return TaskManager(include_path=users or None, metadata=metadata)


class AfterImport:
    """A `sys.meta_path` finder that runs an action once a module has been executed by its own loader."""

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
    """A module's own loader, which it has again before its code runs, and an action behind it."""

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
            _say(f"could not extend {module.__name__}: {error!r}")


def _say(sentence: str) -> None:
    print(f"mdlm-lm-eval: {sentence}", file=sys.stderr)


def arm() -> None:
    """Waits for lm-eval's modules to be imported. Calling it twice does no harm."""
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport({"lm_eval.models": register_model, "lm_eval.tasks.manager": add_tasks}))
