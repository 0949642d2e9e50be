"""The few-shot suite's own task objects, so that an analysis sees the very prompts that are scored."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.tasks import questions
from mdlm_lm_eval.tasks.settings import check_metadata


def load_tasks(names: Sequence[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Tasks (`FewShotTask`) by name, groups resolved. Raises OptionError for a name that is not in the suite."""
    for name in names:
        if not suite_info([name]):
            raise OptionError(
                f"tasks={name}: must be one of the few-shot suite's tasks and groups, such as mdlm_context"
            )
    check_metadata(names, metadata)
    # lm-eval's own thousands of task files would take long to index and hold no task of the suite.
    manager = TaskManager(include_path=str(tasks_path()), include_defaults=False, metadata=dict(metadata))
    try:
        tasks: dict[str, Any] = manager.load(list(names))["tasks"]
    except ValueError as error:
        raise OptionError(one_line(error)) from error
    return tasks


def examples_of(task: Any) -> list[Any]:
    """The in-context examples in the order of the prompt."""
    return [*task.before, *task.after]


def relevant_examples(task: Any) -> set[Any]:
    """Those of the examples that follow the same rule as the test question."""
    n_relevant = task.config.metadata["fewshot_relevant"]
    return set(questions.relevant_examples(task.rule, task.distractor, n_relevant, task.seed))


def reorder_examples(task: Any, seed: int, reordering: int) -> None:
    """Puts the task's examples into one of many random orders; the same one for all its questions."""
    rng = Random(f"mdlm reordering {task.config.task} {seed} {reordering}")
    # Sorted first, so that the order depends on the reordering's number alone and not on those before it.
    order = questions.shuffled(sorted(examples_of(task), key=lambda example: example.options), rng)
    task.before, task.after = order[: len(task.before)], order[len(task.before) :]
