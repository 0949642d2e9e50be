"""The suite's question builder, which lies in the tasks folder, where lm-eval needs it."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING

from mdlm_lm_eval import tasks_path

if TYPE_CHECKING:
    from tasks import questions
else:
    _spec = spec_from_file_location("mdlm_suite_questions", tasks_path() / "questions.py")
    questions = module_from_spec(_spec)
    sys.modules[_spec.name] = questions
    _spec.loader.exec_module(questions)

__all__ = ["questions"]
