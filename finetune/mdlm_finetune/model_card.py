"""The adapter's README: what it was made from and how, and what it changes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.evaluation import Score
from mdlm_finetune.objective import Objective
from mdlm_lm_eval.results.files import write_whole
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.names import BUILT_IN, model_name
from mdlm_lm_eval.results.privacy import published
from mdlm_lm_eval.results.statistics import paired_drop, paired_interval

_PACKAGES = ("mdlm-lm-eval", "torch", "transformers", "peft")
_EVALUATION = "## Before and after"
_NOT_EVALUATED = "Not evaluated yet: `mdlm-finetune --config RECIPE --evaluate` fills this in.\n"
_IN_EVERY_LOG = {"loss", "grad_norm", "learning_rate", "epoch", "step"}


def write_card(
    adapter: Path, arguments: FinetuneArguments, objective: Objective, log: Sequence[dict[str, Any]]
) -> None:
    """README.md in the folder `adapter`, without scores as yet. `log` is the Trainer's history.

    Its `model_name` is what tables call the adapter: "MA (CE + TV), seed 0".
    """
    name = f"{objective.label}, seed {arguments.seed}"
    base = BUILT_IN if arguments.is_built_in else model_name(arguments.model_name_or_path)
    data = ModelCardData(
        model_name=name,
        base_model=base,
        license=arguments.license,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=["masked-diffusion", "mdlm-lm-eval", arguments.objective.replace("_", "-"), "lora"],
    )
    model = "peft=DIR" if arguments.is_built_in else f"pretrained={base},peft=DIR"
    template = " --apply_chat_template" if arguments.apply_chat_template else ""
    recipe = published(arguments.changed() | asdict(objective))
    started = f", run by {arguments.world_size} processes" if arguments.world_size > 1 else ""  # each has a batch
    text = f"""# {name}

A LoRA adapter of {"the built-in model of mdlm-lm-eval" if arguments.is_built_in else f"`{base}`"}. DIR is this folder:

    lm_eval --model mdlm --model_args {model},n_masks=200 --tasks mdlm_context{template}

{_EVALUATION}

{_NOT_EVALUATED}
## Training

Loss: {objective.in_words}. Data: {_data_in_words(arguments)}.
{_log_in_words(log)}
The recipe, as a file for `mdlm-finetune --config`{started}:

```yaml
{yaml.safe_dump(recipe, sort_keys=False)}```

Versions: {", ".join(f"{package} {version(package)}" for package in _PACKAGES)}.
"""
    write_whole(adapter / "README.md", f"---\n{data.to_yaml()}\n---\n\n{text}")


def fill_in_scores(adapter: Path, scores: Sequence[Score], command: str) -> None:
    """Replaces the card's part on scores by a table of them, before and after, and the command that made them."""
    card = ModelCard.load(adapter / "README.md")
    before_part, _, rest = card.text.partition(_EVALUATION)
    _, _, after_part = rest.partition("## Training")
    before, after = (
        {score.n_masks: score.by_task for score in scores if score.adapted == adapted} for adapted in (False, True)
    )
    counts = sorted(before)
    lines = [
        _EVALUATION,
        "",
        f"Accuracy in percent on `mdlm_context`, one denoising step, {scores[0].n_questions} questions over "
        f"{len(scores[0].by_task)} tasks. The drop is the largest minus the smallest over the mask counts, "
        "the gain after minus before, in points; ± is half the 95% interval over the tasks (Student's t) of that "
        "difference on the same questions.",
        "",
    ]
    rows = [
        [
            label,
            *(f"{100 * fmean(by_task[n].values()):.1f}" for n in counts),
            paired_drop(by_task.values()).scaled(100).in_words,
        ]
        for label, by_task in (("before", before), ("after", after))
    ]
    rows.append(["gain", *(paired_interval(before[n], after[n]).scaled(100).in_words for n in counts), ""])
    lines += [markdown_table(["n_masks", *map(str, counts), "drop"], rows), "", f"Made by `{command}`.", "", ""]
    card.text = before_part + "\n".join(lines) + "## Training" + after_part
    card.data.eval_results = [
        EvalResult(
            task_type="text-generation",
            dataset_type="mdlm_context",
            dataset_name=f"mdlm_context, {score.n_masks} masks",
            dataset_config=f"n_masks={score.n_masks}",
            metric_type="accuracy",
            metric_value=round(100 * score.accuracy, 2),
        )
        for score in scores
        if score.adapted
    ]
    write_whole(adapter / "README.md", str(card))


def _data_in_words(arguments: FinetuneArguments) -> str:
    if arguments.is_generated:
        return f"{arguments.usable_samples} generated texts (`{arguments.dataset_name}`)"
    source = Path(arguments.train_file).name if arguments.train_file else arguments.dataset_name
    return f"up to {arguments.usable_samples} examples of `{source}`, shuffled with seed {arguments.seed}"


def _log_in_words(log: Sequence[Mapping[str, Any]]) -> str:
    losses = [entry for entry in log if "loss" in entry]
    if not losses:
        return ""
    first, last = losses[0], losses[-1]
    terms = sorted(first.keys() - _IN_EVERY_LOG)
    changes = ", ".join(f"{name} {first[name]:.4f} and {last[name]:.4f}" for name in ("loss", *terms))
    return f"\nLogged first (step {first['step']}) and last (step {last['step']}): {changes.replace('_', '-')}.\n"
