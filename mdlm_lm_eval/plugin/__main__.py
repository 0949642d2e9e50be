"""Says whether lm-eval finds the model and the tasks here: `python -m mdlm_lm_eval.plugin`."""

import sys
from importlib.metadata import version

from lm_eval import models
from lm_eval.api import registry
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.plugin import MODEL_NAME, AfterImport, discovers_plugins


def diagnosis() -> tuple[list[str], bool]:
    """What the start-up hook does in this interpreter, a line each, and whether the model and the tasks are found."""
    armed = any(isinstance(finder, AfterImport) for finder in sys.meta_path)
    discovers = discovers_plugins(registry, models)
    model = MODEL_NAME in registry.model_registry
    tasks = sum(name.startswith("mdlm_") for name in TaskManager().all_tasks)
    lines = [
        f"interpreter:      {sys.executable}",
        f"lm-eval:          {version('lm_eval')}, {'finds' if discovers else 'does not find'} model plugins by itself",
        f"start-up hook:    {'armed' if armed else 'not armed: its .pth file was not read by this interpreter'}",
        f"--model mdlm:     {'found' if model else 'not found'}",
        f"tasks and groups: {f'{tasks} found in {tasks_path()}' if tasks else 'none found'}",
    ]
    if not (model and tasks):
        lines.append(f"without the hook: run python -m mdlm_lm_eval in place of lm_eval; tasks lie in {tasks_path()}")
    return lines, bool(model and tasks)


if __name__ == "__main__":
    found, works = diagnosis()
    print("\n".join(found))
    sys.exit(0 if works else 1)
