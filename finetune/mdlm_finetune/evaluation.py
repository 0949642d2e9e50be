"""The suite's scores before and after, by the sweep command that users have."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mdlm_finetune.folders import evaluation_folder
from mdlm_finetune.options import FinetuneOptions

N_MASKS = (1, 2, 10, 50, 100, 200)


@dataclass(frozen=True)
class Score:
    """Mean accuracy over the tasks of `mdlm_context`, 0 to 1, of one mask count."""

    adapted: bool
    n_masks: int
    accuracy: float
    n_tasks: int
    n_questions: int


def sweep_arguments(options: FinetuneOptions) -> list[str]:
    """What `mdlm-sweep` needs to score the base model and the adapter in `options.output`."""
    arguments = {
        "pretrained": options.pretrained,
        "dtype": options.dtype if options.pretrained else None,
        "attn_implementation": options.attn_implementation,
    }
    pairs = ",".join(f"{name}={value}" for name, value in arguments.items() if value is not None)
    return [
        *([f"--model_args={pairs}"] if pairs else []),
        f"--peft=none,{options.output}",
        "--tasks=mdlm_context",
        f"--n_masks={','.join(map(str, N_MASKS))}",
        "--steps=1",
        f"--limit={options.evaluation_limit}",
        f"--output_path={_results(options)}",
        *(["--apply_chat_template"] if options.chat_template else []),
    ]


def evaluate(options: FinetuneOptions) -> list[Score]:
    """Scores of both models at all mask counts. Raises CalledProcessError where the sweep fails."""
    # torchrun's variables would have the sweep wait for processes that only trained.
    distributed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in distributed}
    command = [sys.executable, "-m", "mdlm_lm_eval.sweep", *sweep_arguments(options)]
    subprocess.run(command, check=True, env=environment)
    return [_score(path) for path in sorted(_results(options).rglob("results_*.json"))]


def _results(options: FinetuneOptions) -> Path:
    # The results of another limit cannot be continued, and need not go.
    return evaluation_folder(options) / f"limit{options.evaluation_limit}"


def _score(path: Path) -> Score:
    result = json.loads(path.read_text(encoding="utf-8"))
    settings, tasks = result["config"]["mdlm"], result["group_subtasks"]["mdlm_context"]
    accuracies = [result["results"][task]["exact_match,none"] for task in tasks]
    return Score(
        adapted=settings["adapter"] is not None,
        n_masks=settings["decoding"]["n_masks"],
        accuracy=sum(accuracies) / len(accuracies),
        n_tasks=len(tasks),
        n_questions=sum(result["n-samples"][task]["effective"] for task in tasks),
    )
