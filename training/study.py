"""The registered study of masks over training seeds (`REGISTERED.md`): trains its models and asks them.

    export OMP_NUM_THREADS=1
    python -m training.study out/study    # what is not finished; many hours of CPU time
    python -m training.study out/pilots --seeds 100-109

    # Twelve seeds at once on a GPU, then what is missing
    seq 0 23 | xargs -P 12 -I N python -m training.study out/study --seeds N-N --device cuda --primary
    python -m training.study out/study --device cuda

Seeds come in order until twenty models have learned to read. A model that reads is fine-tuned in several ways
(`ARMS`). All answers of a seed are one file, `seed-N.json`, written after every model; models that it has are not
computed again, and a killed training continues from its last checkpoint. `training.study_tables --add FOLDER` adds the
files to the committed answers.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mdlm_lm_eval.results.files import read_json, write_whole
from training.asking import CHOICE, OUTCOME, ask, percent, report

ANSWERS = Path(__file__).parents[1] / "leaderboard/registered_study/answers.json.xz"  # the committed ones
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


def train(seed: int, arm: str, work: Path, device: str) -> None:
    """Trains a model, unless it is complete."""
    if (folder_of(seed, arm, work) / "model.safetensors").exists():
        return
    one = ARMS[arm]
    if one.base:
        from mdlm_finetune.recipe import read_arguments
        from mdlm_finetune.run import finetune

        train(seed, one.base, work, device)
        words = ["--config", one.recipe, *one.flags, "--model_name_or_path", str(folder_of(seed, one.base, work))]
        words += ["--output_dir", str(work / f"{arm}-{seed}"), "--seed", str(seed), "--evaluation_limit", "0"]
        words += ["--use_cpu", str(device == "cpu").lower()]
        has_begun = (work / f"{arm}-{seed}.checkpoints").exists()
        finetune(read_arguments([*words, "--merge", "--disable_tqdm", "true", *(["--resume"] if has_begun else [])]))
    else:
        from training.train import TrainingOptions, pretrain

        pretrain(TrainingOptions(seed=seed), folder_of(seed, arm, work), device)


def compute(seed: int, arm: str, work: Path, folder: Path, device: str) -> None:
    """Trains and asks a model that is not among the seed's answers, and adds it."""
    models = read_seed(seed, folder)
    if arm in models:
        return
    start = time.monotonic()
    train(seed, arm, work, device)
    trained = time.monotonic()
    model = folder_of(seed, arm, work)
    asked = (OUTCOME, CHOICE) if arm in CHOSEN else (OUTCOME,)
    answers = {str(fewshot_seed): ask(str(model), fewshot_seed, device=device) for fewshot_seed in asked}
    minutes = {"training": round((trained - start) / 60, 2), "asking": round((time.monotonic() - trained) / 60, 2)}
    models[arm] = {
        "sha256": hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest(),
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
        "minutes": minutes,
        "answers": answers,
    }
    write_whole(folder / f"seed-{seed}.json", json.dumps({"seed": seed, "models": models}, indent=0) + "\n")
    print(f"seed {seed}, {arm}, minutes {minutes}", report(answers[str(OUTCOME)]), sep="\n", flush=True)


def read_seed(seed: int, folder: Path) -> dict[str, Any]:
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
    parser.add_argument("--answers", type=Path, help="folder of the answers; default: WORK/answers")
    parser.add_argument("--device", default="cpu", help="where models are trained and asked")
    parser.add_argument("--primary", action="store_true", help="without the arms that only some seeds have")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    answers = arguments.answers or arguments.work / "answers"
    where = arguments.work, answers, arguments.device
    reading: list[int] = []
    for seed in range(first, last + 1):
        if len(reading) == N_READING:
            break
        compute(seed, "base", *where)
        if reads(read_seed(seed, answers)):
            reading.append(seed)
            for arm in (name for name, one in ARMS.items() if not one.is_secondary):
                compute(seed, arm, *where)
    if not arguments.primary:
        for seed in reading[:N_SECONDARY]:
            for arm in ARMS:
                compute(seed, arm, *where)


if __name__ == "__main__":
    main()
