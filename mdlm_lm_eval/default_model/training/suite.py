"""The suite's question builder, taken from the tasks folder, where lm-eval needs it to lie."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _tasks_folder() -> Path:
    package = Path(__file__).parents[2]
    packaged = package / "tasks"
    return packaged if packaged.is_dir() else package.parent / "tasks"


_spec = spec_from_file_location("mdlm_suite_questions", _tasks_folder() / "questions.py")
assert _spec is not None and _spec.loader is not None
questions = module_from_spec(_spec)
sys.modules[_spec.name] = questions
_spec.loader.exec_module(questions)
