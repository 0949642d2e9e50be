"""The study of masks over training seeds: trains its models and asks them.

    OMP_NUM_THREADS=1 nice python -m training.study out/study        # what is not finished; hours of CPU time
    python -m training.study out/study --cells 'plain-0(-sft.*)?'    # some of its cells, by a regular expression
    python -m training.study out/study --answers out/answers         # all of it anew
    python -m training.study_tables --write                          # tables and figure, from the committed answers

A cell is one model. It answers the first `SETS` sets of `mdlm_rules` with each distractor rule, each set under its
three rules, in one pass with 2 masks and one with 200. Its answers go to `leaderboard/study/CELL.json`: for each task
two strings with a sign for every question, the likeliest token (A, B, C; E for EOS; - for any other) and the likeliest
letter. Finished cells are not computed again. A killed training continues from its last checkpoint.

`plain-0` is the built-in model, `block-0` its block-causal variant, and `plain-P` its training with seed P.
`contrastive-P` is also trained on documents like suite 2.2's, in which categories do not show the rule. The last number
of other cells is the seed of their fine-tuning. `sft` is LLaDA's own; `sft-none`, `sft-shown` and `sft-masks` have
another padding; `ce` and `ce-tv` are mask-agnostic; `sft-ce`, `sft-ce-tv` and `sft-control` (padding: masks) continue
from a model after SFT.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from mdlm_lm_eval.default_model import BUILT_IN, model_path
from mdlm_lm_eval.results.files import write_whole

ANSWERS = Path(__file__).parents[1] / "leaderboard/study"
PRETRAINED = ("plain-0", "plain-1", "plain-2", "plain-3", "plain-4", "contrastive-0", "contrastive-1")
NOT_READING = ("plain-2", "contrastive-1")  # models that did not learn to read their examples, and are not fine-tuned
FINE_TUNED = [base for base in PRETRAINED if base not in NOT_READING]
SHIPPED = {"plain-0": BUILT_IN, "block-0": "built-in-block"}  # cells with models that come with the package
N_SEEDS = {"plain-0": 5}  # seeds of fine-tuning in the ablation; the other models have two
LOSSES = ("ce-tv", "ce")  # mask-agnostic recipes
SETS = 64  # sets for each distractor rule: two of every triple
MASKS = (2, 200)


@dataclass(frozen=True)
class Cell:
    """One model: pre-trained with a seed, or fine-tuned from the model of another cell (`base`)."""

    name: str
    seed: int
    base: str = ""
    recipe: str = ""
    flags: tuple[str, ...] = ()


def cells() -> Iterator[Cell]:
    """All cells, the most useful ones first."""
    sft = "built-in-llada-sft"
    yield Cell("block-0", seed=0)
    for base in PRETRAINED:
        yield Cell(base, seed=int(base[-1]))
    for base in FINE_TUNED:
        yield Cell(f"{base}-sft-0", 0, base, sft)
    for loss, base in product(LOSSES, FINE_TUNED):
        yield Cell(f"{base}-sft-{loss}-0", 0, f"{base}-sft-0", f"built-in-{loss}")
    for base in FINE_TUNED:
        yield Cell(f"{base}-sft-control-0", 0, f"{base}-sft-0", sft, ("--padding", "masks"))
    yield Cell("block-0-sft-0", 0, "block-0", sft)
    yield Cell("block-0-sft-masks-0", 0, "block-0", sft, ("--padding", "masks"))
    for base in FINE_TUNED:
        for seed in range(N_SEEDS.get(base, 2)):
            for padding in ("none", "shown", "masks"):
                yield Cell(f"{base}-sft-{padding}-{seed}", seed, base, sft, ("--padding", padding))
            if seed:
                yield Cell(f"{base}-sft-{seed}", seed, base, sft)
            for loss in LOSSES:
                yield Cell(f"{base}-{loss}-{seed}", seed, base, f"built-in-{loss}")


def model_of(cell: Cell, work: Path) -> Path:
    """The folder of a cell's model, with the adapter merged."""
    if cell.name in SHIPPED:
        return Path(model_path(SHIPPED[cell.name]))
    return work / (f"{cell.name}.merged" if cell.base else cell.name)


def train(cell: Cell, work: Path) -> None:
    """Trains the model of a cell, unless it is complete."""
    if (model_of(cell, work) / "model.safetensors").exists():
        return
    if cell.base:
        from mdlm_finetune.recipe import read_arguments
        from mdlm_finetune.run import finetune

        base = model_of(next(one for one in cells() if one.name == cell.base), work)
        words = ["--config", cell.recipe, *cell.flags, "--model_name_or_path", str(base)]
        words += ["--output_dir", str(work / cell.name), "--seed", str(cell.seed), "--evaluation_limit", "0"]
        has_begun = (work / f"{cell.name}.checkpoints").exists()
        finetune(read_arguments([*words, "--merge", "--disable_tqdm", "true", *(["--resume"] if has_begun else [])]))
    else:
        from training.train import TrainingOptions, pretrain

        is_contrastive = cell.name.startswith("contrastive")
        pretrain(TrainingOptions(seed=cell.seed, contrastive=is_contrastive), work / cell.name)


@cache
def tasks() -> dict[str, Any]:
    """The tasks of `mdlm_rules` by name, which take seconds to load."""
    from lm_eval.tasks import TaskManager

    from mdlm_lm_eval import tasks_path

    manager = TaskManager(include_path=str(tasks_path() / "rules"), include_defaults=False)
    return dict(manager.load(["mdlm_rules"])["tasks"])


def ask(model: str) -> dict[str, dict[str, list[str]]]:
    """Number of masks -> task -> likeliest tokens and likeliest letters, as strings with a sign for each question."""
    import torch

    from mdlm_lm_eval import load_denoiser, load_tokenizer

    denoiser, tokenizer = load_denoiser(model), load_tokenizer(model)
    letters = torch.tensor(tokenizer.convert_tokens_to_ids(list("ABC")))
    signs = {**{int(letter): sign for letter, sign in zip(letters, "ABC", strict=True)}, tokenizer.eos_token_id: "E"}
    found: dict[str, dict[str, list[str]]] = {}
    for n, task in product(MASKS, tasks().values()):
        asked = [document for document in task.test_docs() if int(document["set"].rpartition("_")[2]) < SETS]
        prompts = torch.tensor([tokenizer(task.fewshot_context(document, 0))["input_ids"] for document in asked])
        canvases = torch.nn.functional.pad(prompts, (0, n), value=denoiser.mask_token_id)
        rows = []
        for some in canvases.split(16):
            first_masks = torch.arange(len(some)) * canvases.shape[1] + prompts.shape[1]
            rows.append(denoiser.logits(some, None, first_masks))
        logits = torch.cat(rows).float()
        logits[:, denoiser.mask_token_id] = -torch.inf
        tokens = "".join(signs.get(int(token), "-") for token in logits.argmax(-1))
        found.setdefault(str(n), {})[task.config.task] = [
            tokens,
            "".join("ABC"[at] for at in logits[:, letters].argmax(-1)),
        ]
    return found


@cache
def keys(n_sets: int = SETS) -> dict[str, tuple[list[str], str]]:
    """Task -> the names of its sets, and their right letters."""
    from mdlm_lm_eval.tasks import questions, rule_sets

    found = {}
    for rule, distractor in product(questions.WRONG_CATEGORIES, questions.DISTRACTOR_RULES):
        sets = list(rule_sets.asked_sets(rule, distractor).items())
        sets = [(name, one) for name, one in sets if int(name.rpartition("_")[2]) < n_sets]
        right = "".join("ABC"[one.question(rule).answer] for _, one in sets)
        found[f"mdlm_rules_{rule}_{distractor}"] = [name for name, _ in sets], right
    return found


#: Measures of an answer, from its likeliest token, its likeliest letter and the key.
MEASURES = {
    "as decoded": lambda token, letter, key: token == key,
    "among letters": lambda token, letter, key: letter == key,
    "EOS": lambda token, letter, key: token == "E",
    "other tokens": lambda token, letter, key: token == "-",
}
Answers = Mapping[str, Mapping[str, Sequence[str]]]


def values(answers: Answers, n_masks: int, measure: str) -> dict[str, list[tuple[str, float]]]:
    """Task -> set and value (0 or 1) of each question."""
    found = {}
    for task, (sets, right) in keys().items():
        of_question = zip(sets, *answers[str(n_masks)][task], right, strict=True)
        found[task] = [(name, float(MEASURES[measure](*signs))) for name, *signs in of_question]
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the models")
    parser.add_argument("--cells", default=".*", help="a regular expression of whole names")
    parser.add_argument("--answers", type=Path, default=ANSWERS, help="folder of the answers; cells it has are done")
    arguments = parser.parse_args()
    for cell in cells():
        if re.fullmatch(arguments.cells, cell.name):
            compute(cell, arguments.work, arguments.answers)


def compute(cell: Cell, work: Path, folder: Path = ANSWERS) -> None:
    """Trains and asks a cell that is not finished, after its base."""
    target = folder / f"{cell.name}.json"
    if target.exists():
        return
    for base in cells():
        if base.name == cell.base:
            compute(base, work, folder)
            train(base, work)
    start = time.process_time()
    train(cell, work)
    trained = time.process_time()
    answers = ask(str(model_of(cell, work)))
    minutes = {"training": trained - start, "asking": time.process_time() - trained}
    record: dict[str, Any] = {"cell": cell.name, "recipe": cell.recipe, "flags": list(cell.flags), "seed": cell.seed}
    record["cpu_minutes"] = {name: round(seconds / 60, 2) for name, seconds in minutes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(target, json.dumps({**record, "answers": answers}, indent=1) + "\n")
    print(cell.name, record["cpu_minutes"], summary(answers), flush=True)


def summary(answers: Answers) -> str:
    """All measures of one cell in one line, in percent."""
    parts = []
    for n, measure in product(MASKS, MEASURES):
        shares = [fmean(value for _, value in some) for some in values(answers, n, measure).values()]
        parts.append(f"{measure} at {n}: {100 * fmean(shares):.1f}")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
