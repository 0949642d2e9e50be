"""How the study asks a model, and what it makes of the answers; a report of one model.

    python -m training.asking MODEL [--fewshot_seed 1] [--sets 64] [--measure EOS]

Prints the percentage of right answers after every ending of the prompt, in each stratum of the questions.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

#: `fewshot_seed` of the questions that measure the outcome, and of those by which models are chosen.
OUTCOME, CHOICE = 1, 2
#: `fewshot_seed` -> sets for each distractor rule that the study asks: two and eight of every triple.
SETS = {OUTCOME: 64, CHOICE: 256}
#: Name of an ending -> masks and dots after the prompt; the first mask is the answer's place.
ENDINGS = {"2": (2, 0), "200": (200, 0), "dots": (1, 199)}
#: Task -> likeliest tokens and likeliest letters, as strings with a sign for each question.
Signs = Mapping[str, Sequence[str]]
#: Ending -> the signs of its answers.
Answers = Mapping[str, Signs]


@cache
def tasks(fewshot_seed: int) -> dict[str, Any]:
    """The tasks of `mdlm_rules` by name, which take seconds to load; lm-eval 0.5 writes `GROUP::` before it."""
    from lm_eval.tasks import TaskManager

    from mdlm_lm_eval import tasks_path

    folder, metadata = str(tasks_path() / "rules"), {"fewshot_seed": fewshot_seed}
    manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
    loaded = manager.load(["mdlm_rules"])["tasks"]
    return {name.rpartition("::")[2]: task for name, task in loaded.items()}


@cache
def prompts(fewshot_seed: int, n_sets: int) -> dict[str, list[str]]:
    """Task -> the prompts of its first sets for each distractor rule."""
    return {
        task.config.task: [task.fewshot_context(one, 0) for one in task.test_docs() if _number(one["set"]) < n_sets]
        for task in tasks(fewshot_seed).values()
    }


def ask(
    model: str, fewshot_seed: int = OUTCOME, n_sets: int | None = None, device: str = "cpu"
) -> dict[str, dict[str, list[str]]]:
    """The model's answers after every ending: ending -> task -> likeliest tokens and likeliest letters.

    `n_sets` for each distractor rule are asked, by default as many as in the study.
    """
    import torch

    from mdlm_lm_eval import load_denoiser, load_tokenizer

    denoiser, tokenizer = load_denoiser(model, device=device), load_tokenizer(model)
    letters = torch.tensor(tokenizer.convert_tokens_to_ids(list("ABC")))
    (dot,) = tokenizer(".", add_special_tokens=False)["input_ids"]
    signs = {**{int(letter): sign for letter, sign in zip(letters, "ABC", strict=True)}, tokenizer.eos_token_id: "E"}
    found: dict[str, dict[str, list[str]]] = {}
    texts = prompts(fewshot_seed, SETS[fewshot_seed] if n_sets is None else n_sets)
    ids = {task: torch.tensor(tokenizer(some)["input_ids"]) for task, some in texts.items()}  # [N, T]
    for (name, (n_masks, n_dots)), (task, of_task) in product(ENDINGS.items(), ids.items()):
        ending = torch.tensor([denoiser.mask_token_id] * n_masks + [dot] * n_dots)
        canvases = torch.cat([of_task, ending.expand(len(of_task), -1)], dim=1)
        rows = []
        for some in canvases.to(device).split(4 if device == "cpu" else 32):
            first_masks = torch.arange(len(some), device=device) * canvases.shape[1] + of_task.shape[1]
            rows.append(denoiser.logits(some, None, first_masks))
        logits = torch.cat(rows).float().cpu()
        logits[:, denoiser.mask_token_id] = -torch.inf
        tokens = "".join(signs.get(int(token), "-") for token in logits.argmax(-1))
        found.setdefault(name, {})[task] = [tokens, "".join("ABC"[at] for at in logits[:, letters].argmax(-1))]
    return found


def _number(name: str) -> int:
    """The number of a set, from its name."""
    return int(name.rpartition("_")[2])


@dataclass(frozen=True)
class Asked:
    """One question: its set's name, the options of this set, the rules these follow, the rule asked, and the answer."""

    name: str
    options: tuple[str, str, str]
    rules: tuple[str, str, str]
    rule: str
    distractor: str

    @property
    def right(self) -> str:
        """The letter of its answer."""
        return "ABC"[self.rules.index(self.rule)]


@cache
def asked(fewshot_seed: int = OUTCOME, n_sets: int = 10_000) -> dict[str, list[Asked]]:
    """Task -> its questions in the order in which they are asked, of the first sets for each distractor rule."""
    from mdlm_lm_eval.tasks import questions, rule_sets

    return {
        f"mdlm_rules_{rule}_{distractor}": [
            Asked(name, one.options, one.rules, rule, distractor)
            for name, one in rule_sets.asked_sets(rule, distractor, fewshot_seed).items()
            if _number(name) < n_sets
        ]
        for rule, distractor in product(questions.WRONG_CATEGORIES, questions.DISTRACTOR_RULES)
    }


#: Measures of an answer, from its likeliest token, its likeliest letter and the key.
MEASURES: dict[str, Callable[[str, str, str], bool]] = {
    "as decoded": lambda token, letter, key: token == key,
    "among letters": lambda token, letter, key: letter == key,
    "EOS": lambda token, letter, key: token == "E",
    "other tokens": lambda token, letter, key: token == "-",
}


def values(
    signs: Signs, measure: str = "as decoded", fewshot_seed: int = OUTCOME
) -> dict[str, list[tuple[Asked, float]]]:
    """Task -> every question that was asked, and the value of its answer, 0 or 1."""
    questions = asked(fewshot_seed)
    return {
        task: [
            (one, float(MEASURES[measure](token, letter, one.right)))
            for one, token, letter in zip(questions[task], tokens, letters, strict=False)
        ]
        for task, (tokens, letters) in signs.items()
    }


def percent(signs: Signs, measure: str = "as decoded", fewshot_seed: int = OUTCOME) -> float:
    """The mean of all tasks' percentages."""
    of_tasks = values(signs, measure, fewshot_seed).values()
    return 100 * fmean(fmean(value for _, value in some) for some in of_tasks)


#: Names of the strata by capitals: the option with the only capital is the answer, or another one is, or none is so.
CAPITALS = ("capital right", "capital wrong", "no only capital")


def strata_of(one: Asked) -> Iterator[str]:
    """Strata of a question: all, rule, distractor rule, both (with its examples), key, capitals in its options."""
    yield from ("all", f"rule {one.rule}", f"distractor {one.distractor}", f"key {one.right}")
    yield f"examples {one.rule}, {one.distractor}"
    yield CAPITALS[2 if "capitalised" not in one.rules else one.rule != "capitalised"]


def strata(signs: Signs, measure: str = "as decoded", fewshot_seed: int = OUTCOME) -> dict[str, tuple[float, int]]:
    """Stratum -> percent, and the number of questions."""
    found: dict[str, list[float]] = {}
    for some in values(signs, measure, fewshot_seed).values():
        for one, value in some:
            for stratum in strata_of(one):
                found.setdefault(stratum, []).append(value)
    return {stratum: (100 * fmean(some), len(some)) for stratum, some in sorted(found.items())}


def report(answers: Answers, measure: str = "as decoded", fewshot_seed: int = OUTCOME) -> str:
    """A table: all questions and every stratum, after every ending."""
    of_endings = [strata(signs, measure, fewshot_seed) for signs in answers.values()]
    lines = [f"{measure:20}" + "".join(f"{name:>8}" for name in answers) + "       n"]
    for stratum, (_, n) in of_endings[0].items():
        lines.append(f"{stratum:20}" + "".join(f"{one[stratum][0]:8.1f}" for one in of_endings) + f"{n:8}")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a built-in name")
    parser.add_argument("--fewshot_seed", type=int, default=OUTCOME)
    parser.add_argument("--sets", type=int, help="sets for each distractor rule, at most 1344; by default the study's")
    parser.add_argument("--measure", choices=MEASURES, default="as decoded")
    arguments = parser.parse_args()
    answers = ask(arguments.model, arguments.fewshot_seed, arguments.sets)
    print(report(answers, arguments.measure, arguments.fewshot_seed))


if __name__ == "__main__":
    main()
