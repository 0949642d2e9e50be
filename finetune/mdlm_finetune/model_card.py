"""The adapter's README: what it was made from and how, and what it changes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from mdlm_finetune.evaluation import Score
from mdlm_finetune.options import FinetuneOptions

_PACKAGES = ("mdlm-lm-eval", "torch", "transformers", "peft")
_EVALUATION = "## Before and after"
_NOT_EVALUATED = "Not evaluated yet: `mdlm-finetune --config RECIPE.yaml --evaluate` fills this in.\n"


def write_card(adapter: Path, options: FinetuneOptions, log: Sequence[Mapping[str, Any]]) -> None:
    """README.md in the folder `adapter`, without scores as yet. `log` is the Trainer's history."""
    metadata: dict[str, Any] = {"library_name": "peft", "tags": ["masked-diffusion", "mask-agnostic", "mdlm-lm-eval"]}
    if options.pretrained:
        metadata["base_model"] = options.pretrained
    settings = asdict(options)
    del settings["output"]
    losses = [entry for entry in log if "consistency" in entry]
    arguments = f"pretrained={options.pretrained},peft=DIR" if options.pretrained else "peft=DIR"
    template = " --apply_chat_template" if options.chat_template else ""
    base = f"`{options.pretrained}`" if options.pretrained else "the built-in model of mdlm-lm-eval"
    lines = [
        "---",
        yaml.safe_dump(metadata).rstrip(),
        "---",
        "",
        f"# Mask-agnostic LoRA adapter of {base}",
        "",
        "Fine-tuned to predict the same whatever the number of masks appended to the prompt, with the mask-agnostic",
        'loss of ["Masks Can Be Distracting"](https://arxiv.org/abs/2511.21338). DIR is this folder:',
        "",
        f"    lm_eval --model mdlm --model_args {arguments},n_masks=200 --tasks mdlm_context{template}",
        "",
        _EVALUATION,
        "",
        _NOT_EVALUATED,
        "## Training",
        "",
        f"Loss: {_loss_in_words(options)}. Data: {_data_in_words(options)}.",
    ]
    if losses:
        first, last = losses[0], losses[-1]
        lines += [
            "",
            f"Logged first (step {first['step']}) and last (step {last['step']}): cross-entropy "
            f"{first['cross_entropy']:.4f} and {last['cross_entropy']:.4f}, consistency {first['consistency']:.4f} "
            f"and {last['consistency']:.4f}.",
        ]
    lines += ["", "| key | value |", "|---|---|"]
    lines += [f"| `{name}` | {'' if value is None else json.dumps(value)} |" for name, value in settings.items()]
    lines += ["", "Versions: " + ", ".join(f"{package} {version(package)}" for package in _PACKAGES) + ".", ""]
    (adapter / "README.md").write_text("\n".join(lines), encoding="utf-8")


def fill_in_scores(adapter: Path, scores: Sequence[Score], command: str) -> None:
    """Replaces the card's part on scores by a table of them, before and after, and the command that made them."""
    card = (adapter / "README.md").read_text(encoding="utf-8")
    before_part, _, rest = card.partition(_EVALUATION)
    _, _, after_part = rest.partition("## Training")
    counts = sorted({score.n_masks for score in scores})
    lines = [
        _EVALUATION,
        "",
        f"Accuracy in percent on `mdlm_context`, one denoising step, {scores[0].n_questions} questions over "
        f"{scores[0].n_tasks} tasks; degradation is (max - min) / max over the mask counts, in percent.",
        "",
        "| n_masks | " + " | ".join(map(str, counts)) + " | degradation |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for label, adapted in (("before", False), ("after", True)):
        accuracy = {score.n_masks: score.accuracy for score in scores if score.adapted == adapted}
        best = max(accuracy.values())
        degradation = (best - min(accuracy.values())) / best if best > 0.0 else 0.0
        cells = [f"{100 * accuracy[n]:.1f}" for n in counts] + [f"{100 * degradation:.1f}"]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", f"Made by `{command}`.", "", ""]
    (adapter / "README.md").write_text(before_part + "\n".join(lines) + "## Training" + after_part, encoding="utf-8")


def _loss_in_words(options: FinetuneOptions) -> str:
    consistency = {"tv": "total variation (L1)", "kl": "symmetric KL", "none": "no consistency"}[options.divergence]
    if options.beta == 0.0:
        consistency = "no consistency"
    weighting = "weighted by 1/p and p" if options.weighting == "1/p" else "unweighted"
    return f"{options.alpha} x cross-entropy, {options.beta} x {consistency}, {weighting}"


def _data_in_words(options: FinetuneOptions) -> str:
    if options.data == "generated":
        return f"{options.n_examples} generated texts, word facts and questions under a named rule"
    return f"up to {options.n_examples} examples of `{options.data}`, shuffled with seed {options.seed}"
