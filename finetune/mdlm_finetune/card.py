"""Writes an adapter's README: base model, data, recipe, and scores on the suite before and after training."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from mdlm_finetune.recipe import Recipe, Run
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import write_whole
from mdlm_lm_eval.results.frame import rows_of
from mdlm_lm_eval.results.names import model_name
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.samples import WORDS, Decomposition, decomposition_of
from mdlm_lm_eval.results.statistics import Interval, Score, difference
from mdlm_lm_eval.results.suite import SPELLING_ALONE
from mdlm_lm_eval.results.text import markdown_table

N_MASKS = (1, 2, 10, 50, 100, 200)
FEWEST, MOST = 2, 200  # mask counts of every loss to masks that the project reports
GROUP, METRIC = "mdlm_rules", "exact_match,none"
_SHARES = ("among_labels", "eos")  # shares of first tokens in the table
_PACKAGES = ("mdlm-lm-eval", "torch", "transformers", "peft")
_EVALUATION = "## Before and after"
_IN_EVERY_LOG = {"loss", "grad_norm", "learning_rate", "epoch", "step"}


@dataclass(frozen=True)
class Scored:
    """The group's accuracy from 0 to 1, and its decomposition; None if that is not recorded."""

    accuracy: Score
    parts: Decomposition | None = None


Scores = Mapping[int, Scored]  # by mask count


def write_card(adapter: Path, run: Run, n_examples: int, log: Sequence[Mapping[str, Any]], digest: str) -> None:
    """Writes README.md into the folder `adapter`, without scores. `log` is the Trainer's history.

    Tables name the adapter by its `model_name`, such as "MA (CE + TV), seed 0", or by its folder if keys of the recipe
    were overridden. Its `recipe_digest` says which adapters are seeds of one recipe.
    """
    recipe, objective = run.recipe, run.objective
    label = recipe.folder.resolve().name if run.overridden else objective.label
    base, lines = model_name(recipe.model_name_or_path), [entry for entry in log if "loss" in entry]
    data = ModelCardData(
        model_name=f"{label}, seed {recipe.seed}",
        base_model=base,
        license=recipe.license,
        library_name="peft",
        tags=["masked-diffusion", "mdlm-lm-eval", recipe.objective.replace("_", "-"), "lora"],
        recipe_digest=digest,
    )
    data.pipeline_tag = "text-generation"
    # Of absolute paths, the card shows only the last part.
    settings = {
        key: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
        for key, value in {**run.settings, **asdict(objective)}.items()
    }
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.jinja")),
        is_built_in=base == BUILT_IN,
        group=GROUP,
        template=_template(recipe),
        loss=objective.in_words,
        n_examples=n_examples,
        source=Path(recipe.train_file).name if recipe.train_file else recipe.dataset_name,
        seed=recipe.seed,
        lines=lines,
        terms=("loss", *sorted(lines[0].keys() - _IN_EVERY_LOG)) if lines else (),
        processes=run.training.world_size,
        recipe=yaml.safe_dump(settings, sort_keys=False),
        versions=", ".join(f"{package} {version(package)}" for package in _PACKAGES),
    )
    write_whole(adapter / "README.md", str(card))


def evaluate(recipe: Recipe) -> None:
    """Scores the base model and the adapter in `output_dir` with `mdlm-sweep`, and adds the table to the card.

    An interrupted sweep continues. Raises OptionError if it fails.
    """
    # Results with another limit stay in a folder of their own.
    results = recipe.beside("evaluation") / f"limit{recipe.evaluation_limit}"
    words = sweep_words(recipe, recipe.model_name_or_path, str(recipe.folder))
    n_cells, of = 2 * len(N_MASKS), f"{recipe.evaluation_limit} questions per task of {GROUP}"
    print(
        f"scoring the model without and with the adapter: {n_cells} cells of {of}, which can take longer than the "
        "training; --evaluation_limit=0 leaves this out, and --evaluate continues it",
        file=sys.stderr,
        flush=True,
    )
    command = [sys.executable, "-m", "mdlm_lm_eval.sweep", *words, f"--output_path={results}"]
    if status := subprocess.run(command).returncode:
        raise OptionError(f"the adapter is in {recipe.folder}; its evaluation failed (status {status})")
    shown = shlex.join(["mdlm-sweep", *sweep_words(recipe, model_name(recipe.model_name_or_path), "DIR")])
    fill_in_scores(recipe.folder, *read_scores(results), recipe.evaluation_limit, shown)


def sweep_words(recipe: Recipe, pretrained: str, adapter: str) -> list[str]:
    """Arguments of `mdlm-sweep` to score the model `pretrained` with and without the adapter."""
    model = [] if pretrained == BUILT_IN else [f"pretrained={pretrained}", f"dtype={recipe.dtype}"]
    if recipe.attn_implementation is not None:
        model.append(f"attn_implementation={recipe.attn_implementation}")
    masks = ",".join(map(str, N_MASKS))
    words = [f"--peft=none,{adapter}", f"--tasks={GROUP}", f"--n_masks={masks}", "--steps=1"]
    words += [f"--limit={recipe.evaluation_limit}", *_template(recipe).split()]
    return [f"--model_args={','.join(model)}", *words] if model else words


def read_scores(folder: Path) -> tuple[Scores, Scores]:
    """Scores of the sweep without and with the adapter, by ascending mask count."""
    before: dict[int, Scored] = {}
    after: dict[int, Scored] = {}
    for file in map(read_result_file, folder.rglob("results_*.json")):
        (accuracy,) = (row["share"] for row in rows_of(file) if (row["task"], row["metric"]) == (GROUP, METRIC))
        scored = Scored(accuracy, decomposition_of(file.tasks_of(file.group_results[GROUP])))
        (after if file.adapter else before)[int(file.mdlm["decoding"]["n_masks"])] = scored
    return dict(sorted(before.items())), dict(sorted(after.items()))


def fill_in_scores(adapter: Path, before: Scores, after: Scores, n_questions: int, command: str) -> None:
    """Replaces the card's section on scores by a table. `n_questions`: per task. `command`: computed the scores."""

    def points(first: Scored, second: Scored) -> Interval:
        return difference(first.accuracy, second.accuracy).scaled(100)

    rows = []
    for label, scores in (("before", before), ("after", after)):
        means = [f"{100 * one.accuracy.mean:.1f}" for one in scores.values()]
        rows.append([label, *means, points(scores[MOST], scores[FEWEST]).with_significance])
    rows.append(["gain", *(points(before[n], after[n]).in_words for n in before), ""])
    for name, (label, scores) in product(_SHARES, (("before", before), ("after", after))):
        parts = [one.parts for one in scores.values() if one.parts]
        if len(parts) == len(scores):
            rows.append([f"{label}, {WORDS[name]}", *(f"{100 * one.shares[name].mean:.1f}" for one in parts), ""])
    text = f"""{_EVALUATION}

Accuracy in percent on `{GROUP}`, one denoising step, {n_questions} questions per task. The loss is accuracy with \
{FEWEST} masks minus that with {MOST}, the gain after minus before, in points, with the 95% interval of that \
difference over sets of questions of these word rules. Of the likeliest first tokens, *among letters* is the share \
whose likeliest letter is right (spelling alone gives {SPELLING_ALONE}), and *EOS* that of ends of text.

{markdown_table(["n_masks", *map(str, before), "loss"], rows)}

Made by `{command}`.

"""
    card = ModelCard.load(adapter / "README.md")
    before_part, _, rest = card.text.partition(_EVALUATION)
    card.text = before_part + text + "## Training" + rest.partition("## Training")[2]
    card.data.eval_results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=GROUP,
            dataset_name=f"{GROUP}, {n} masks",
            dataset_config=f"n_masks={n}",
            metric_type="accuracy",
            metric_value=round(100 * one.accuracy.mean, 2),
        )
        for n, one in after.items()
    ]
    write_whole(adapter / "README.md", str(card))


def _template(recipe: Recipe) -> str:
    return " --apply_chat_template" if recipe.apply_chat_template else ""
