"""The verdicts on stub models whose losses are planted, through the whole command but for its drawing.

    python -m benchmarks.planted --seeds 20 --csv benchmarks/planted.csv

A stub gets the built-in model's place where canvases are decoded, and knows the answers: *locality* loses 30 points to
the distance of its examples, *masks* 30 points to 200 masks in one step, and *neither* loses nothing. Each of its cells
is an lm-eval run of all 16 tasks, whose result file the report reads. A question is as hard in all cells, apart from 2%
of answers that are right or wrong by chance.
"""

import argparse
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import yaml

from mdlm_leaderboard.report import judged
from mdlm_lm_eval.command_line import recipes_in
from mdlm_lm_eval.decoding.canvas import Completion, FirstToken, RowCost
from mdlm_lm_eval.jobs.generation import Generation, GenerationJob, LabelTokens
from mdlm_lm_eval.jobs.shared import task_of
from mdlm_lm_eval.paper.answers import read_models
from mdlm_lm_eval.paper.verdict import claims
from mdlm_lm_eval.sweep import __main__ as command

RIGHT, LOST = 0.9, 0.3  # the accuracy without a loss, and the largest loss
_SLIP = 0.02
_NEAR = {"right": 40, "middle": 20, "left": 0}
# The cells of the claims about accuracy, without those that are only drawn.
_GRIDS: list[dict[str, Any]] = [
    {"tasks": [f"mdlm_locality_{place}_pos{n}" for place, own in _NEAR.items() for n in {0, own, 40}]},
    {"tasks": ["mdlm_context"], "steps": 1, "n_masks": [2, 20, 100, 200]},
    {"tasks": ["mdlm_context"], "steps": 40, "n_masks": [2, 200], "unmasking": ["random", "confidence"]},
    {"tasks": ["mdlm_slot"], "steps": 1, "n_fillers": [0, 200]},
    {"tasks": ["mdlm_context"], "steps": 1, "n_masks": 2, "metadata": {"fewshot_distractors": [0, 30]}},
    {"tasks": ["mdlm_context"], "steps": 1, "mask_ratio": 0.2, "metadata": {"fewshot_distractors": [0, 30]}},
]


def locality(one: Generation) -> float:
    """The accuracy of a stub that loses examples far from the question."""
    found = re.search(r"_(left|middle|right)_pos(\d+)", task_of(one.instance))
    return RIGHT - (LOST * abs(int(found[2]) - _NEAR[found[1]]) / 40 if found else 0.0)


def masks(one: Generation) -> float:
    """The accuracy of a stub that loses answers to masks in one step."""
    n = len(one.canvas.slots)
    return RIGHT - LOST * min(n, 200) / 200 * (one.request.options.steps == 1)


def neither(_one: Generation) -> float:
    """The accuracy of a stub that loses nothing."""
    return RIGHT


STUBS: dict[str, Callable[[Generation], float]] = {one.__name__: one for one in (locality, masks, neither)}


def answering(accuracy: Callable[[Generation], float], seed: int) -> Callable[..., Iterator[tuple[int, Completion]]]:
    """Replaces `GenerationJob._completions`: each request gets a letter, right by its question's difficulty."""

    def is_right(one: Generation) -> bool:
        task = re.sub(r"(_(left|middle|right))?_pos\d+$|_slot$", "", task_of(one.instance))
        question = (seed, zlib.crc32(task.encode()), int(one.instance.doc_id))
        difficulty = np.random.default_rng(question).random()
        condition = zlib.crc32(f"{task_of(one.instance)} {one.request.options} {len(one.canvas.token_ids)}".encode())
        slip, chance = np.random.default_rng((*question, condition)).random(2)
        return bool((chance if slip < _SLIP else difficulty) < accuracy(one))

    def completions(
        _job: GenerationJob, part: Sequence[Generation], _way: object, labels: LabelTokens, *_: object, **__: object
    ) -> Iterator[tuple[int, Completion]]:
        of_letters = {name: token for token, name in labels.names.items()}
        for index, one in enumerate(part):
            answer = one.labels.answer
            others = [name for name in one.labels.names if name != answer]
            token = of_letters[answer if is_right(one) else others[0]]
            yield index, Completion([token], RowCost(), 1, first=FirstToken(token, token, 0.5))

    return completions


def verdicts(stub: str, seed: int, limit: int) -> dict[str, str]:
    """Claim -> verdict of a run of the command in a folder of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        of_paper = recipes_in(command.RECIPES)["paper"]
        cells = {"grids": _GRIDS, "apply_chat_template": False}
        (folder / "e02.yaml").write_text(yaml.safe_dump(cells), encoding="utf-8")
        recipe = {"recipes": [str(folder / "e02.yaml")], "claims": of_paper["claims"]}
        (folder / "planted.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        sys.argv = ["mdlm-sweep", f"--config={folder / 'planted.yaml'}", f"--limit={limit}", "--device=cpu"]
        sys.argv += ["--model_args=pretrained=built-in", f"--output_path={folder / 'results'}"]
        with (
            patch.object(GenerationJob, "_completions", answering(STUBS[stub], seed)),
            patch.object(command, "_summarise"),
            suppress(SystemExit),
        ):
            command.main()
        models, _ = read_models(folder / "results")
        (found,) = judged(models)
        return {name: one.kind for name, one in found.verdicts.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--limit", type=int, default=30, help="questions of each task")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = {}
    for seed in range(given.seeds):
        for stub in STUBS:
            for claim, kind in verdicts(stub, seed, given.limit).items():
                counts.setdefault((stub, claim), Counter())[kind] += 1
        lines = [
            {"stub": stub, "claim": claim, "verdict": kind, "seeds": n}
            for (stub, claim), own in sorted(counts.items(), key=lambda one: (one[0][0], [*claims()].index(one[0][1])))
            for kind, n in own.most_common()
        ]
        table = pd.DataFrame(lines)
        print(table.to_string(index=False), flush=True)
        if given.csv:
            table.to_csv(given.csv, index=False)
