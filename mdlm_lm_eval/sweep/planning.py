"""Fixes the number of questions of every cell of the paper's experiments, once for all processes and resumed runs.

A recipe that names others (`--config paper`) writes this folder:

OUTPUT/MODEL/plan.json              what is asked of a model; written once, before its first cell
OUTPUT/MODEL[+ADAPTER]/CELL/        results_cell.json, an lm-eval result; with --log_samples, a file of each task
OUTPUT/MODEL[+ADAPTER]/analyses/    groups/attribution_groups.json, examples/attribution_examples.json and
                                    confidence/confidence.json, with what else `mdlm-attribution` writes

MODEL is the checkpoint's name in folders; `plan.json` stands in that of the model without an adapter. It holds

limit, hours           as typed; null if not
claims                 the digest of the table of claims (`paper/claims.yaml`)
apply_chat_template    whether prompts are chats
cells                  name (MODEL/CELL) -> "questions": of each task that a report counts, the first ones of the task;
                       "tokens": of the whole cell, by which the progress bar counts; forward and backward at most
                       (answers that are decided before the last step take fewer), or with --hours those that take
                       the cell's foreseen time in one pass each;
                       "recipes": experiments that it belongs to, such as ["e04", "e07"]
declared               claims that the run declares, in the table's order -> "cells", "questions" (of each task),
                       "reproduced" and "not_reproduced": the power at four times delta and at no effect
left_out               name of a cell -> the reason why it does not run
seconds                foreseen seconds of the run, if one process ran it; null without --hours

A cell's result may have more questions than the plan, from an older run. A report cuts it to the plan.
"""

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.analyses.__main__ import MASK_COUNTS, REORDERINGS, TABLE_MASKS
from mdlm_lm_eval.arguments import config_of
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.verdict import POWER, claims, digest, power
from mdlm_lm_eval.results.files import read_json, write_whole
from mdlm_lm_eval.results.names import named
from mdlm_lm_eval.results.text import markdown_table
from mdlm_lm_eval.sweep.claims import lock_of, say
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.run import Measured, Tasks, check_analysis, tokenizer_of_model

# Tokens that an analysis counts for each of its prompts: a pass with gradients is three without.
_BACKWARD: dict[str | None, int] = {"groups": 3, "examples": 3 * REORDERINGS}
Measure = Callable[[Mapping[str, Cell]], Measured]

# Of hours, which are divided by time and by the claims' declared deviations alone. Nothing here sees an answer, so that
# the number of questions is no choice by outcome.
EFFECT = 4  # times a claim's delta: the effect that a budget makes sure to find
LEAST = 8  # questions of each task in a cell that no claim needs
_FEWER = 4  # how many times fewer questions such a cell has than the claim with the most
_MOST = 10_000  # where searches end
_STEPS = 1000  # of the scale between few questions and many


class Size(NamedTuple):
    """Of a cell: the most questions of each task, and tokens that one question of each task takes."""

    questions: int
    tokens: int


@dataclass(frozen=True)
class Work:
    """What a cell costs: seconds of its start, and of one question of each of its tasks.

    most: the most questions of a task. share: the largest share of all seconds.
    """

    start: float
    seconds: float
    most: int = _MOST
    share: float = 1.0


def way_of(cell: Cell) -> str:
    """What decides a cell's seconds per token: gradients, one pass, or the steps and their rule."""
    steps = cell.arguments.get("steps", 1)
    if cell.analysis in _BACKWARD:
        return "gradients"
    return f"{steps} {cell.arguments.get('unmasking')}" if steps not in (1, "auto") else "one pass"


class Survey:
    """The size of each cell, from the first question of each task, and why other cells cannot run."""

    def __init__(self, sweep: Sweep, tasks: Tasks) -> None:
        self.sweep, self.tasks, self.tokenizer = sweep, tasks, tokenizer_of_model(sweep)
        self.context: float = int(sweep.model_args.get("max_length") or 0) or math.inf
        if sweep.model == "mdlm" and self.context == math.inf:
            config = config_of(sweep.model_args["pretrained"], sweep.model_args)
            self.context = checkpoints.context_length(config, self.tokenizer)
        self._prompts: dict[str, tuple[list[int], int, bool]] = {}
        self.sizes: dict[str, Size] = {}
        self.left_out: dict[str, str] = {}
        for cell in sweep.cells:
            try:
                self.sizes[cell.name] = self._size(cell)
            except (OSError, ImportError, OptionError) as error:  # data that do not load are the first two
                self.left_out[cell.name] = " ".join(str(error).split())
        if not self.sizes:
            raise OptionError(f"no cell can run: {next(iter(self.left_out.values()))}")

    def _size(self, cell: Cell) -> Size:
        given = cell.arguments
        if cell.analysis:
            check_analysis(self.sweep, cell)
        prompts, most, is_slot = self._prompt(cell)
        if self.sweep.model != "mdlm" and is_slot:
            raise OptionError("autoregressive models get open-ended questions alone")
        if cell.analysis:  # tokens beside the prompt, in each of its passes
            masks = {"groups": [TABLE_MASKS], "confidence": MASK_COUNTS}.get(cell.analysis, [0])
        else:
            asked = math.ceil(given["mask_ratio"] * max(prompts)) if given.get("mask_ratio") else given.get("n_masks")
            masks = [(asked if isinstance(asked, int) else 1) + int(given.get("n_fillers") or 0)]
        if (longest := max(prompts) + max(masks)) > self.context:
            raise OptionError(f"takes {longest} tokens, but the model's context has {self.context}")
        steps = given.get("steps", 1)
        passes = min(steps, *masks) if isinstance(steps, int) else 1
        return Size(most, _BACKWARD.get(cell.analysis, passes) * sum(prompt + n for prompt in prompts for n in masks))

    def _prompt(self, cell: Cell) -> tuple[list[int], int, bool]:
        """Tokens of each task's first prompt, the fewest questions of a task, and whether the answer stands inside."""
        # The same examples in another place have the same length.
        key = repr((re.sub(r"_pos\d+$", "", cell.task), cell.metadata, cell.num_fewshot))
        if key not in self._prompts:
            loaded = self.tasks.manager(cell.metadata).load([cell.task])["tasks"].values()
            lengths = [self._tokens(task, cell.num_fewshot) for task in loaded]
            is_slot = any((task.config.generation_kwargs or {}).get("infill") for task in loaded)
            self._prompts[key] = lengths, min(len(task.eval_docs) for task in loaded), is_slot
        return self._prompts[key]

    def _tokens(self, task: Any, num_fewshot: int | None) -> int:
        if num_fewshot is not None:
            task.set_config("num_fewshot", num_fewshot)
        chat = bool(self.sweep.apply_chat_template)
        task.build_all_requests(limit=1, apply_chat_template=chat, fewshot_as_multiturn=chat, chat_template=self._chat)
        return len(self.tokenizer(task.instances[0].args[0], verbose=False).input_ids)

    def _chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> Any:
        return self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )


def cells_of_claims(sweep: Sweep, left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Claims that a run declares, in the table's order -> the names of their cells.

    A claim needs all its cells, one of which belongs to its experiment. Those of adapters count for their experiments.
    """
    base, found = sweep.cells[0].model, {}
    for name, claim in claims().items():
        own = [cell for cell in sweep.cells if cell.model == base or claim.experiment in cell.recipes]
        of_models = {cell.model: [one.name for one in own if one.model == cell.model] for cell in own}
        chosen = [named(words, of_models[one]) for one in of_models for words in sweep.study["claims"].get(name, ())]
        names = [cell for cell in chosen if cell is not None and cell not in left_out]
        if len(names) == len(chosen) and any(cell.name in names and claim.experiment in cell.recipes for cell in own):
            found[name] = names
    return found


def powers(name: str, questions: int, n_claims: int) -> tuple[float, float]:
    """The chance that a claim is reproduced at four times delta, and that it is not reproduced without an effect."""
    claim = claims()[name]
    return power(claim, EFFECT * claim.delta, questions, n_claims), power(claim, 0.0, questions, n_claims)


def budget(
    work: Mapping[str, Work], needs: Mapping[str, Sequence[str]], hours: float, processes: int = 1
) -> dict[str, int]:
    """Questions of each task: cell -> number.

    needs: claim -> its cells. processes: how many work on the cells for these hours. All claims stand at the same place
    of a scale from the fewest questions that reproduce an effect of four times delta (with 80% power) to those that
    also tell its absence, and beyond. The time decides the place. Raises OptionError if there is too little time for
    the scale's lower end.
    """
    ends = {name: _ends(name, len(needs)) for name in needs}
    seconds = 3600 * hours * processes

    def at(step: int) -> dict[str, int]:
        of_claim = {name: math.ceil(few * (many / few) ** (3 * step / _STEPS)) for name, (few, many) in ends.items()}
        rest = max([LEAST, *(-(-n // _FEWER) for n in of_claim.values())])
        wanted = {cell: [of_claim[name] for name, cells in needs.items() if cell in cells] for cell in work}
        return {cell: min(max(own or [rest]), most[cell]) for cell, own in wanted.items()}

    most = {cell: one.most for cell, one in work.items()}
    fewest = at(0)
    least = max([seconds_of(work, fewest), *(n * work[cell].seconds / work[cell].share for cell, n in fewest.items())])
    if seconds < least:
        enough = math.ceil(least / processes / 36) / 100
        raise OptionError(
            f"--hours {hours:g} is too little: {enough:g} reproduces every claim at an effect of {EFFECT} times its "
            f"delta with {POWER:.0%} power"
        )
    most = {cell: min(one.most, int(one.share * seconds / one.seconds)) for cell, one in work.items()}
    return at(bisect_right(range(_STEPS + 1), seconds, key=lambda step: seconds_of(work, at(step))) - 1)


def seconds_of(work: Mapping[str, Work], questions: Mapping[str, int]) -> float:
    """The time that these questions of each task take."""
    return sum(work[cell].start + n * work[cell].seconds for cell, n in questions.items())


def _ends(name: str, n_claims: int) -> tuple[int, int]:
    """The fewest questions that reproduce a claim at four times delta, and that tell an effect of zero from delta."""
    few, many = (
        bisect_left(range(1, _MOST), POWER, key=lambda n: powers(name, n, n_claims)[which]) + 1 for which in (0, 1)
    )
    return few, max(few, many)


def path_of(sweep: Sweep, output: Path) -> Path:
    """The file of the model's plan."""
    return output / sweep.cells[0].model / "plan.json"


def planned(
    sweep: Sweep,
    tasks: Tasks,
    output: Path,
    *,
    hours: float | None,
    measure: Measure,
    write: bool = True,
) -> Sweep:
    """The sweep with the questions of its plan, which is made and written if there is none yet.

    measure: measures a cell of each way. Raises OptionError if the plan was made of something else.
    """
    path = path_of(sweep, output)
    typed = {"limit": sweep.limit, "hours": hours}
    same: dict[str, Any] = {"claims": digest(), "apply_chat_template": sweep.apply_chat_template}
    with lock_of(output, str(path.relative_to(output))):
        if path.exists():
            plan = read_json(path)
            same |= typed if any(typed.values()) else {}
            same["cells"] = sorted(cell.name for cell in sweep.cells)
            stored = plan | {"cells": sorted([*plan["cells"], *plan["left_out"]])}
            if different := [name for name, value in same.items() if stored[name] != value]:
                raise OptionError(
                    f"{path} was made with other {', '.join(different)}; repeat its command, or name another "
                    "--output_path"
                )
        else:
            plan = {**typed, **same, **_plan(sweep, tasks, hours, measure)}
            if write:
                write_whole(path, json.dumps(plan, indent=1) + "\n")
    _show(plan)
    cells = plan["cells"]
    sized = [
        replace(cell, limit=cells[cell.name]["questions"], tokens=cells[cell.name]["tokens"])
        for cell in sweep.cells
        if cell.name in cells
    ]
    return replace(sweep, cells=tuple(sized))


def _plan(sweep: Sweep, tasks: Tasks, hours: float | None, measure: Measure) -> dict[str, Any]:
    """What `plan.json` holds beside the settings that it was made for."""
    survey = Survey(sweep, tasks)
    sizes, seconds = survey.sizes, None
    tokens = {name: float(size.tokens) for name, size in sizes.items()}  # of one question of each task
    cells = {cell.name: cell for cell in sweep.cells if cell.name in sizes}
    needs = cells_of_claims(sweep, survey.left_out)
    most, share = ({named(words, cells): n for words, n in sweep.study[part].items()} for part in ("most", "share"))
    largest = {name: min(size.questions, most.get(name, size.questions)) for name, size in sizes.items()}
    if hours is None:
        limit = sweep.limit or math.inf
        questions = {name: min(math.ceil(limit * n) if limit < 1 else limit, n) for name, n in largest.items()}
    else:
        # Gradients of the smallest analysis, and other passes of the longest cell; the fastest way first.
        by_tokens = sorted(cells.values(), key=lambda cell: sizes[cell.name].tokens * (-1 if cell.analysis else 1))
        of_ways = {way_of(cell): cell for cell in by_tokens}
        ways = dict(sorted(of_ways.items(), key=lambda way: (way[0] != "one pass", sizes[way[1].name].tokens)))
        found = measure(ways)
        rates = {way: found.seconds[way] / sizes[cell.name].tokens for way, cell in ways.items()}
        work = {
            name: Work(found.start, rates[way_of(cell)] * sizes[name].tokens, largest[name], share.get(name, 1.0))
            for name, cell in cells.items()
        }
        questions = budget(work, needs, hours, found.processes)
        seconds = seconds_of(work, questions)
        tokens = {
            name: (one.start / questions[name] + one.seconds) / next(iter(rates.values())) for name, one in work.items()
        }
    declared = {}
    for name, own in needs.items():
        n = int(min(questions[cell] for cell in own))
        reproduced, not_reproduced = powers(name, n, len(needs))
        declared[name] = {"cells": own, "questions": n, "reproduced": reproduced, "not_reproduced": not_reproduced}
    return {
        "cells": {
            name: {"questions": int(n), "tokens": round(n * tokens[name]), "recipes": cells[name].recipes}
            for name, n in questions.items()
        },
        "declared": declared,
        "left_out": survey.left_out,
        "seconds": seconds,
    }


def table(sweep: Sweep) -> str:
    """A table of cells with their questions and tokens."""
    rows = [[cell.name, ", ".join(cell.recipes), str(cell.limit), f"{cell.tokens:,}"] for cell in sweep.cells]
    return markdown_table(["cell", "experiments", "questions per task", "tokens"], rows)


def _show(plan: Mapping[str, Any]) -> None:
    """Prints the power of each claim, the sum of all work, and what is left out."""
    heads = ["claim", "questions per task", "power if the effect is large", "power if there is none"]
    rows = [
        [claims()[name].title, str(one["questions"]), f"{one['reproduced']:.0%}", f"{one['not_reproduced']:.0%}"]
        for name, one in plan["declared"].items()
    ]
    say(markdown_table(heads, rows))
    say(f"Power is the chance of the right verdict. A large effect is {EFFECT} times the smallest one that counts.")
    tokens = sum(cell["tokens"] for cell in plan["cells"].values())
    hours = "" if plan["seconds"] is None else f", {plan['seconds'] / 3600:.2g} hours of one process"
    say(f"{len(plan['cells'])} cells with {tokens:,} tokens{hours}")
    for reason, own in Counter(plan["left_out"].values()).items():
        first = next(name for name in plan["left_out"] if plan["left_out"][name] == reason)
        say(f"left out: {own} cells, such as {first}: {reason}")
