"""Which seed's models come with the package, by the conditions of `REGISTERED.md`.

    python -m training.shipping out/study [--answers leaderboard/registered_study]

Prints the seeds that read, the one to be shipped first, and which conditions each fulfils.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training import asking
from training.asking import CHOICE, strata
from training.study import ANSWERS, folder_of
from training.study_tables import read_study, reading

LEAST = 80.0  # percent of each stratum with 2 masks
#: README's example under its three labellings: letters of two answered questions, and the answer of the third.
LABELLINGS = (("BA", "C"), ("AC", "B"), ("CB", "A"))
OPTIONS = ("(A) zebra, (B) invent, (C) clever", "(A) write, (B) shiny, (C) tiger", "(A) clumsy, (B) lion, (C) gather")


def conditions(models: Mapping[str, Any], base: str) -> list[bool]:
    """Whether a seed fulfils each condition; `base` is the folder of its base."""
    of_base, of_sft = (models[arm]["answers"][str(CHOICE)] for arm in ("base", "sft"))
    few, many, tuned = (
        asking.percent(one, fewshot_seed=CHOICE) for one in (of_base["2"], of_base["200"], of_sft["200"])
    )
    ended, ended_tuned = (asking.percent(one["200"], "EOS", CHOICE) for one in (of_base, of_sft))
    return [
        all(share >= LEAST for share, _ in strata(of_base["2"], fewshot_seed=CHOICE).values()),
        answers_the_example(base),
        tuned < many - 30 and ended_tuned > 50,
        few - many > 5 and ended < 1,
    ]


def answers_the_example(model: str) -> bool:
    """Whether the model is right in README's example under all three labellings."""
    from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, load_tokenizer

    denoiser, tokenizer = load_denoiser(model), load_tokenizer(model)
    prompts = []
    for letters, _ in LABELLINGS:
        solved = (f"Options: {one}\nAnswer:[{letter}].\n\n" for one, letter in zip(OPTIONS, letters, strict=False))
        prompts.append("".join(solved) + f"Options: {OPTIONS[-1]}\nAnswer:[")
    found = decode(denoiser, prompts, DecodingOptions(n_masks=1), tokenizer=tokenizer)
    return found == [answer for _, answer in LABELLINGS]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the models")
    parser.add_argument("--answers", type=Path, default=ANSWERS, help="file of the answers")
    arguments = parser.parse_args()
    found = reading(read_study(arguments.answers))
    fulfilled = {
        seed: conditions(models, str(folder_of(seed, "base", arguments.work)))
        for seed, models in found.items()
        if "sft" in models
    }
    for seed in sorted(fulfilled, key=lambda seed: ([not one for one in fulfilled[seed]], seed)):
        print(seed, *("yes" if one else "no" for one in fulfilled[seed]))


if __name__ == "__main__":
    main()
