"""The suite's scores before and after, by the sweep command that users have."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.folders import evaluation_folder
from mdlm_lm_eval.results.privacy import published_command
from mdlm_lm_eval.results.result_file import read_result_file

N_MASKS = (1, 2, 10, 50, 100, 200)


@dataclass(frozen=True)
class Score:
    """Accuracy on each task of `mdlm_context`, 0 to 1, at one mask count."""

    adapted: bool
    n_masks: int
    by_task: Mapping[str, float]
    n_questions: int

    @property
    def accuracy(self) -> float:
        """Mean over the tasks."""
        return fmean(self.by_task.values())


def sweep_arguments(arguments: FinetuneArguments) -> list[str]:
    """What `mdlm-sweep` needs to score the base model and the adapter in `output_dir`."""
    model = {
        "pretrained": None if arguments.is_built_in else arguments.model_name_or_path,
        "dtype": None if arguments.is_built_in else arguments.dtype,
        "attn_implementation": arguments.attn_implementation,
    }
    pairs = ",".join(f"{name}={value}" for name, value in model.items() if value is not None)
    return [
        *([f"--model_args={pairs}"] if pairs else []),
        f"--peft=none,{arguments.folder}",
        "--tasks=mdlm_context",
        f"--n_masks={','.join(map(str, N_MASKS))}",
        "--steps=1",
        f"--limit={arguments.evaluation_limit}",
        f"--output_path={_results(arguments)}",
        *(["--apply_chat_template"] if arguments.apply_chat_template else []),
    ]


def shown_command(arguments: FinetuneArguments) -> str:
    """That sweep as a command for readers elsewhere: without folders of this machine."""
    return published_command(shlex.join(["mdlm-sweep", *sweep_arguments(arguments)]))


def evaluate(arguments: FinetuneArguments) -> list[Score]:
    """Scores of both models at all mask counts. Raises CalledProcessError where the sweep fails."""
    # torchrun's variables would have the sweep wait for processes that only trained.
    distributed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in distributed}
    command = [sys.executable, "-m", "mdlm_lm_eval.sweep", *sweep_arguments(arguments)]
    print(
        f"scores before and after at {len(N_MASKS)} mask counts, {arguments.evaluation_limit} questions a task "
        "(--evaluation_limit 0 leaves them out, --evaluate makes them later)",
        flush=True,
    )
    subprocess.run(command, check=True, env=environment)
    return [_score(path) for path in sorted(_results(arguments).rglob("results_*.json"))]


def _results(arguments: FinetuneArguments) -> Path:
    # The results of another limit cannot be continued, and need not go.
    return evaluation_folder(arguments) / f"limit{arguments.evaluation_limit}"


def _score(path: Path) -> Score:
    result = read_result_file(path)
    settings, tasks = result.mdlm or {}, {name: result.tasks[name] for name in result.groups["mdlm_context"]}
    return Score(
        adapted=settings["adapter"] is not None,
        n_masks=settings["decoding"]["n_masks"],
        by_task={name: task.metrics["exact_match,none"] for name, task in tasks.items()},
        n_questions=sum(task.n_questions for task in tasks.values()),
    )
