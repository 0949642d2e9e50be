"""How many answers and how much score a batch size moves, in bfloat16 and float32: the built-in model on the suite.

    python benchmarks/batch_size_effects.py
    python benchmarks/batch_size_effects.py --tasks 'mdlm_*_largest' --limit 50 --batch_sizes 1 16

A forward pass of another shape adds its numbers in another order. What that changes is of the size of the type's
precision: a near tie falls the other way, and with many steps the tokens after it follow. Every row is compared with
the first batch size in the same type; a question is a task's, asked once.
"""

import argparse
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.results.text import markdown_table

HEADER = ("type", "masks", "steps", "batch size", "other strings", "answers that turned right or wrong", "accuracy, %")


def answers(
    lm: MDLM, tasks: list[str], manager: TaskManager, limit: int, gen_kwargs: dict[str, Any]
) -> list[tuple[str, float]]:
    """Of every question, the string that was written and its score."""
    results = simple_evaluate(lm, tasks=tasks, limit=limit, gen_kwargs=gen_kwargs, task_manager=manager)
    return [
        (sample["resps"][0][0], float(sample["exact_match"]))
        for task in sorted(results["samples"])
        for sample in results["samples"][task]
    ]


def compare(arguments: argparse.Namespace) -> list[list[str]]:
    """A row for every type, number of steps and batch size."""
    manager = TaskManager(include_path=str(tasks_path()))
    tasks = [name for name in manager.match_tasks([arguments.tasks]) if name in set(manager.all_subtasks)]
    rows = []
    for dtype in ("float32", "bfloat16"):
        for steps in arguments.steps:
            kwargs = {"n_masks": arguments.n_masks, "steps": steps}
            first: list[tuple[str, float]] = []
            for batch_size in arguments.batch_sizes:
                lm = MDLM(dtype=dtype, device=arguments.device, batch_size=batch_size)
                found = answers(lm, tasks, manager, arguments.limit, kwargs)
                first = first or found
                others = sum(a != b for (a, _), (b, _) in zip(first, found, strict=True))
                turned = sum(a != b for (_, a), (_, b) in zip(first, found, strict=True))
                accuracy = 100 * sum(score for _, score in found) / len(found)
                row = [dtype, str(arguments.n_masks), str(steps), str(batch_size)]
                row += [f"{others} of {len(found)}", str(turned), f"{accuracy:.1f}"]
                rows.append(row)
                print(" | ".join(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="mdlm_*est", help="name or pattern")
    parser.add_argument("--limit", type=int, default=25, help="questions of each task")
    parser.add_argument("--n_masks", type=int, default=16)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8, 32], help="the first is compared with")
    parser.add_argument("--device", default="cpu")
    print(markdown_table(HEADER, compare(parser.parse_args())))


if __name__ == "__main__":
    main()
