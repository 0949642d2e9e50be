"""GPU-hours that the paper's experiments E1-E11 take on an 8B model, computed from operations and a stated rate.

    python benchmarks/study_cost.py --tflops 400 --prompt_tokens 1200

Counts the cells, questions and denoising steps of the packaged sweeps, and the operations of LLaDA-8B for them.
The rate is yours to measure: run a cell, divide. Early exit, padding and loading are not counted.
"""

import argparse
from fnmatch import fnmatch
from typing import Any

from mdlm_lm_eval.command_line import recipes_in
from mdlm_lm_eval.results.text import markdown_table
from mdlm_lm_eval.sweep.__main__ import RECIPES
from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.run import Tasks

# LLaDA-8B: its config.json.
LAYERS, WIDTH, FEED_FORWARD, VOCABULARY = 32, 4096, 12_288, 126_464
QUESTIONS, TASKS_OF_A_GROUP = 1000, 16
EXAMPLES = 50


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tflops", type=float, default=400, help="operations a second that one GPU reaches, in 10^12")
    parser.add_argument("--prompt_tokens", type=int, default=1200, help="of the standard prompt with 50 examples")
    given = parser.parse_args()
    rows, total = [], 0.0
    for name, settings in recipes_in(RECIPES).items():
        if name[:3] in ("e09", "e10", "e11"):
            settings["peft"] = ["none", "ce", "ce-tv"] if name.startswith("e09") else ["none", "ce-tv"]
        elif not fnmatch(name, "e0[!3]*"):
            continue
        cells = Tasks(plan(settings)).expanded().cells
        exaflop = sum(_operations(cell, given.prompt_tokens) for cell in cells) / 1e18
        hours = exaflop * 1e6 / given.tflops / 3600
        total += hours
        questions = len(cells) * TASKS_OF_A_GROUP * QUESTIONS
        rows.append([f"`{name}`", str(len(cells)), f"{questions:,}", f"{exaflop:.1f}", f"{hours:.1f}"])
    print(markdown_table(["sweep", "cells", "questions", "10^18 operations", "GPU-hours"], rows))
    print(f"\ntogether {total:.0f} GPU-hours at {given.tflops:g} TFLOP/s")


def _operations(cell: Any, prompt_tokens: int) -> float:
    """Of all questions of a cell (a group of 16 tasks)."""
    examples = 10 + int(cell.metadata.get("fewshot_distractors", EXAMPLES - 10))
    prompt = prompt_tokens * (examples + 1) / (EXAMPLES + 1)
    n_masks = int(cell.arguments.get("n_masks", cell.arguments.get("mask_ratio", 0.0) * prompt or 1))
    tokens = prompt + n_masks + cell.arguments.get("n_fillers", 0)
    steps = cell.arguments.get("steps", 1)
    passes = min(steps, n_masks) if isinstance(steps, int) else 1
    weights = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * FEED_FORWARD)
    layers = 2 * weights * tokens + LAYERS * 4 * tokens**2 * WIDTH
    output = 2 * WIDTH * VOCABULARY * n_masks  # logits at masks alone
    return TASKS_OF_A_GROUP * QUESTIONS * passes * (layers + output)


if __name__ == "__main__":
    main()
