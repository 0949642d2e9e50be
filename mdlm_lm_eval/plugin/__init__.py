"""Makes `--model mdlm` and the task suite known to lm-eval releases that discover no plugins (0.4.13).

    python -m mdlm_lm_eval.plugin

prints whether that works here. It also lets `lm_eval` end with one sentence where an option is bad.

`mdlm_lm_eval_hook.pth` calls `arm` when an interpreter starts, so this module may import nothing but `sys`. What `arm`
leaves behind is one entry in `sys.meta_path` that waits for some of lm-eval's modules and acts once each has run.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MODEL_NAME = "mdlm"
MODEL_TARGET = "mdlm_lm_eval.lm:MDLM"


def register_model(lm_eval_models: "ModuleType") -> None:
    """Adds the lazy placeholder for `mdlm` to lm-eval's model registry.

    Only after `lm_eval.models` has run: `get_model` imports that module while the registry is empty and not otherwise,
    so a name that stood there first would hide every built-in model.
    """
    from lm_eval.api import registry

    if not discovers_plugins(registry, lm_eval_models) and MODEL_NAME not in registry.model_registry:
        registry.model_registry.register(MODEL_NAME, target=MODEL_TARGET)


def discovers_plugins(registry: "ModuleType", lm_eval_models: "ModuleType") -> bool:
    """Whether this release of lm-eval finds models by the entry point group `lm_eval.models` itself."""
    return "import_plugins" in vars(registry) or "import_plugins" in vars(lm_eval_models)


def add_tasks(task_manager_module: "ModuleType") -> None:
    """Lets `TaskManager` scan the task suite after lm-eval's own tasks and before the user's `--include_path`.

    Later folders win in lm-eval, so a user's task of the same name stays the one that runs. No release of lm-eval
    discovers task folders itself, and this package declares none to be discovered.
    """
    from functools import wraps
    from pathlib import Path

    from mdlm_lm_eval import tasks_path

    task_manager = task_manager_module.TaskManager
    initialise = task_manager.__init__

    @wraps(initialise)
    def with_suite(
        self: object,
        verbosity: object = None,
        include_path: object = None,
        include_defaults: bool = True,
        metadata: object = None,
    ) -> None:
        suite = tasks_path()
        users = (
            list(include_path) if isinstance(include_path, (list, tuple)) else [include_path] if include_path else []
        )
        # A user who names the suite's own folder would otherwise have every task in it reported as overridden.
        named_by_user = any(suite.resolve() == Path(str(path)).resolve() for path in users)
        add_suite = include_defaults and suite.is_dir() and not named_by_user
        initialise(
            self,
            verbosity=verbosity,
            include_path=[suite, *users] if add_suite else include_path,
            include_defaults=include_defaults,
            metadata=metadata,
        )
        self.include_path = include_path  # type: ignore[attr-defined]  # what lm-eval reports stays what the user gave

    task_manager.__init__ = with_suite


def know_built_requests(task_module: "ModuleType") -> None:
    """Lets `--cache_requests` build requests anew where those it keeps were asked for in another way."""
    from functools import wraps

    task = task_module.Task
    build = task.build_all_requests

    @wraps(build)
    def build_known(
        self: "Any",
        *,
        samples: "Sequence[int] | None" = None,
        cache_requests: bool = False,
        tokenizer_name: str = "",
        **named: object,
    ) -> None:
        if cache_requests:
            from mdlm_lm_eval.plugin.built_requests import requests_digest

            tokenizer_name += f"-{requests_digest(self, samples)}"  # the part of the cache's key that can be long
        build(self, samples=samples, cache_requests=cache_requests, tokenizer_name=tokenizer_name, **named)

    task.build_all_requests = build_known


def look_at_tasks_first(evaluator_module: "ModuleType") -> None:
    """Lets `--model mdlm` refuse a task before the requests of others are run."""
    from functools import wraps

    evaluate = evaluator_module.evaluate

    @wraps(evaluate)
    def looking_first(lm: object, task_dict: "Any", *arguments: object, **named: object) -> object:
        if "mdlm_lm_eval.lm" in sys.modules:  # else it is another model
            from mdlm_lm_eval.plugin.first_look import check_tasks

            check_tasks(lm, task_dict, named.get("samples"))
        return evaluate(lm, task_dict, *arguments, **named)

    evaluator_module.evaluate = looking_first  # type: ignore[attr-defined]


def end_with_one_sentence(lm_eval_cli: "ModuleType") -> None:
    """Lets the `lm_eval` command check what it is given, and end with one sentence where that cannot be used."""
    from functools import partial, wraps

    command = lm_eval_cli.HarnessCLI
    read, execute = command.parse_args, command.execute

    @wraps(read)
    def read_strictly(self: object) -> "Namespace":
        from mdlm_lm_eval.plugin.command import parse

        return parse(partial(read, self), sys.argv[1:])

    @wraps(execute)
    def without_traceback(self: object, given: "Namespace") -> None:
        from mdlm_lm_eval.plugin.command import run

        run(partial(execute, self, given), given)

    command.parse_args, command.execute = read_strictly, without_traceback


def refuse_settings(evaluate_config: "ModuleType") -> None:
    """Turns what lm-eval says of wrong settings and unknown tasks into OptionErrors, for our model."""
    from functools import wraps

    config = evaluate_config.EvaluatorConfig

    def refusing(method: "Callable[..., object]", model: "Callable[[Any], object]") -> "Callable[..., object]":
        @wraps(method)
        def refused(*arguments: object, **named: object) -> object:
            from mdlm_lm_eval.values import OptionError

            try:
                return method(*arguments, **named)
            except (ValueError, TypeError, OSError) as error:
                if model(arguments[0]) != MODEL_NAME:
                    raise
                raise OptionError(str(error)) from error

        return refused

    process_tasks = config.process_tasks

    def process(self: "Any", *arguments: object, **named: object) -> object:
        manager = process_tasks(self, *arguments, **named)
        if not self.tasks:  # lm-eval itself says so once the model is loaded
            raise ValueError("No tasks found; --tasks must name tasks, or a folder that holds some (*.yaml)")
        return manager

    def model_of(given: "Namespace") -> object:
        from mdlm_lm_eval.plugin.command import settings_of

        return settings_of(given).get("model")

    config.process_tasks = refusing(wraps(process_tasks)(process), lambda self: self.model)
    config.from_cli = staticmethod(refusing(config.from_cli, model_of))


def check_results(evaluation_tracker: "ModuleType") -> None:
    """Lets lm-eval's writer of results name and clean them, and notice where they could not be written whole."""
    from mdlm_lm_eval.results.tracker import save_whole

    save_whole(evaluation_tracker)


def check_loggers(loggers: "ModuleType") -> None:
    """Lets lm-eval send cleaned results to W&B and Trackio."""
    from mdlm_lm_eval.results.tracker import send_cleaned

    send_cleaned(loggers)


class AfterImport:
    """A `sys.meta_path` finder that runs an action once a module has been executed by its own loader."""

    def __init__(self, actions: "dict[str, Callable[[ModuleType], None]]") -> None:
        self.actions = actions

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        action = self.actions.get(name)
        if action is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module = _followed_by(spec.loader.exec_module, action)  # type: ignore[assignment, method-assign]
                return spec
        return None


def _followed_by(
    execute: "Callable[[ModuleType], None]", action: "Callable[[ModuleType], None]"
) -> "Callable[[ModuleType], None]":
    def execute_then_act(module: "ModuleType") -> None:
        execute(module)
        try:
            action(module)
        except BaseException as error:  # lm-eval must work, with or without this plugin
            print(f"mdlm-lm-eval: could not extend {module.__name__}: {error!r}", file=sys.stderr)

    return execute_then_act


def arm() -> None:
    """Waits for lm-eval's modules to be imported. Calling it twice does no harm."""
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        actions = {
            "lm_eval.models": register_model,
            "lm_eval.tasks.manager": add_tasks,
            "lm_eval.api.task": know_built_requests,
            "lm_eval.evaluator": look_at_tasks_first,
            "lm_eval._cli": end_with_one_sentence,
            "lm_eval.config.evaluate_config": refuse_settings,
            "lm_eval.loggers.evaluation_tracker": check_results,
            "lm_eval.loggers": check_loggers,
        }
        sys.meta_path.insert(0, AfterImport(actions))
