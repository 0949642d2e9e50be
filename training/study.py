"""The registered study of masks over training seeds (`REGISTERED.md`): trains its models and asks them.

    OMP_NUM_THREADS=1 nice python -m training.study out/study    # what is not finished; many hours of CPU time
    OMP_NUM_THREADS=1 nice python -m training.study out/pilots --seeds 100-109 --answers out/pilots/answers

Seeds come in order until twenty models have learned to read. A model that reads is fine-tuned in several ways
(`ARMS`). All answers of a seed are one file, `seed-N.json`, written after every model; models that it has are not
computed again, and a killed training continues from its last checkpoint.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.files import read_json, write_whole
from training.asking import CHOICE, OUTCOME, ask, percent, report

ANSWERS = Path(__file__).parents[1] / "leaderboard/registered_study"
SEEDS = range(40)
N_READING = 20  # seeds that read, after which no further one is trained
N_SECONDARY = 5  # of these, the first ones have the secondary arms, too
CHOSEN = ("base", "sft")  # arms of which models are shipped, which answer the questions of `CHOICE`, too
LEAST = 80.0  # percent right with 2 masks, on questions of `CHOICE`, of a model that reads


@dataclass(frozen=True)
class Arm:
    """A way of training: from scratch, or fine-tuning the seed's model of another arm (`base`)."""

    base: str = ""
    recipe: str = ""
    flags: tuple[str, ...] = ()
    is_secondary: bool = False


_SFT, _MASKS = "built-in-llada-sft", ("--padding", "masks")
#: Name -> arm, each after its base.
ARMS = {
    "base": Arm(),
    "sft": Arm("base", _SFT),
    "sft-masks": Arm("base", _SFT, _MASKS),
    "sft-ce": Arm("sft", "built-in-ce"),
    "sft-ce-tv": Arm("sft", "built-in-ce-tv"),
    "sft-none": Arm("base", _SFT, ("--padding", "none"), is_secondary=True),
    "sft-shown": Arm("base", _SFT, ("--padding", "shown"), is_secondary=True),
    "sft-control": Arm("sft", _SFT, _MASKS, is_secondary=True),
    "ce": Arm("base", "built-in-ce", is_secondary=True),
    "ce-tv": Arm("base", "built-in-ce-tv", is_secondary=True),
}


def folder_of(seed: int, arm: str, work: Path) -> Path:
    """The folder of a model, with the adapter merged."""
    return work / (f"{arm}-{seed}.merged" if ARMS[arm].base else f"{arm}-{seed}")


def train(seed: int, arm: str, work: Path) -> None:
    """Trains a model, unless it is complete."""
    if (folder_of(seed, arm, work) / "model.safetensors").exists():
        return
    one = ARMS[arm]
    if one.base:
        from mdlm_finetune.recipe import read_arguments
        from mdlm_finetune.run import finetune

        train(seed, one.base, work)
        words = ["--config", one.recipe, *one.flags, "--model_name_or_path", str(folder_of(seed, one.base, work))]
        words += ["--output_dir", str(work / f"{arm}-{seed}"), "--seed", str(seed), "--evaluation_limit", "0"]
        has_begun = (work / f"{arm}-{seed}.checkpoints").exists()
        finetune(read_arguments([*words, "--merge", "--disable_tqdm", "true", *(["--resume"] if has_begun else [])]))
    else:
        from training.train import TrainingOptions, pretrain

        pretrain(TrainingOptions(seed=seed), folder_of(seed, arm, work))


def compute(seed: int, arm: str, work: Path, folder: Path) -> None:
    """Trains and asks a model that is not among the seed's answers, and adds it."""
    models = read_seed(seed, folder)
    if arm in models:
        return
    start = time.process_time()
    train(seed, arm, work)
    trained = time.process_time()
    model = folder_of(seed, arm, work)
    asked = (OUTCOME, CHOICE) if arm in CHOSEN else (OUTCOME,)
    answers = {str(fewshot_seed): ask(str(model), fewshot_seed) for fewshot_seed in asked}
    seconds = {"training": trained - start, "asking": time.process_time() - trained}
    minutes = {name: round(one / 60, 2) for name, one in seconds.items()}
    models[arm] = {
        "sha256": hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest(),
        "cpu_minutes": minutes,
        "answers": answers,
    }
    write_whole(folder / f"seed-{seed}.json", json.dumps({"seed": seed, "models": models}, indent=0) + "\n")
    print(f"seed {seed}, {arm}, CPU minutes {minutes}", report(answers[str(OUTCOME)]), sep="\n", flush=True)


def read_seed(seed: int, folder: Path = ANSWERS) -> dict[str, Any]:
    """Arm -> the record of its model, of the arms that are finished."""
    path = folder / f"seed-{seed}.json"
    return read_json(path)["models"] if path.exists() else {}


def reads(models: Mapping[str, Any]) -> bool:
    """Whether the seed's base has learned to read its examples, by questions that measure no outcome."""
    return percent(models["base"]["answers"][str(CHOICE)]["2"], fewshot_seed=CHOICE) >= LEAST


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the models")
    parser.add_argument("--seeds", default=f"{SEEDS[0]}-{SEEDS[-1]}", help="the first and the last")
    parser.add_argument("--answers", type=Path, default=ANSWERS, help="folder of the answers")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    reading: list[int] = []
    for seed in range(first, last + 1):
        if len(reading) == N_READING:
            break
        compute(seed, "base", arguments.work, arguments.answers)
        if reads(read_seed(seed, arguments.answers)):
            reading.append(seed)
            for arm in (name for name, one in ARMS.items() if not one.is_secondary):
                compute(seed, arm, arguments.work, arguments.answers)
    for seed in reading[:N_SECONDARY]:
        for arm in ARMS:
            compute(seed, arm, arguments.work, arguments.answers)


if __name__ == "__main__":
    main()
