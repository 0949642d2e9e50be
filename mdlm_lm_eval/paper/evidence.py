"""What a model's answers say about each claim of `claims.yaml`: the effect of each task, with its noise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdlm_lm_eval.paper.answers import Answers, Condition, Model
from mdlm_lm_eval.paper.verdict import Evidence, claims

Floats = NDArray[np.float64]
FEW, MANY = 2, 200  # mask counts of the claims about masks
_LETTERS = "ABC"

MASKS = Condition(masks=FEW)  # the reference of the claims about masks
MANY_MASKS = replace(MASKS, masks=MANY)
SHARED = Condition(masks=None, share=0.2)  # masks of 20% of the prompt
SLOT = Condition(is_slot=True)


def _near(place: str, near: int, *far: int) -> dict[Condition, float]:
    """The weights of the block next to a question in this place, and of those that are far from it."""
    others = {Condition(question=place, position=position): -1 / len(far) for position in far}
    return {Condition(question=place, position=near): 1.0, **others}


#: Claim -> the weights of conditions whose sum is an effect. The first condition is the claim's reference.
CONTRASTS: dict[str, dict[Condition, float]] = {
    "locality_right": _near("right", 40, 0),
    "locality_left": _near("left", 0, 40),
    "locality_middle": _near("middle", 20, 0, 40),
    "masks": {MASKS: 1, MANY_MASKS: -1},
    "masks_among_letters": {MASKS: 1, MANY_MASKS: -1},
    "dots": {MASKS: 1, MANY_MASKS: -1, SLOT: -1, replace(SLOT, dots=MANY): 1},
    "distractors": {
        replace(MASKS, distractors=0): -1,
        replace(MASKS, distractors=30): 1,
        replace(SHARED, distractors=0): 1,
        replace(SHARED, distractors=30): -1,
    },
    "unmasking_random": {MASKS: 0, replace(MANY_MASKS, steps=40, order="random"): 1, MANY_MASKS: -1},
    "unmasking_confidence": {MASKS: 0, replace(MANY_MASKS, steps=40, order="confidence"): 1, MANY_MASKS: -1},
}


def evidence_of(model: Model, before: Model | None = None) -> dict[str, Evidence]:
    """Claim -> evidence, for the claims whose conditions a model was asked under.

    `before` is the model without its adapter, for the claim about fine-tuning.
    """
    found = {
        **{name: _paired(model, name) for name in CONTRASTS},
        "worst_masks": _evidence(_losses_to_worst(model, [*mask_counts(model).values()]), model, MASKS),
        "gradients_masks": _gradients_of_masks(model),
        "gradients_near": _gradients_of_examples(model),
        "fine_tuning": _fine_tuning(before, model) if before else None,
    }
    return {name: one for name in claims() if (one := found[name])}


def mask_counts(model: Model) -> dict[int, Condition]:
    """Mask count -> condition of the experiment that varies it (E4), in ascending order."""
    found = [one for one in model.answers if one.masks is not None and one == replace(MASKS, masks=one.masks)]
    return {int(one.masks or 0): one for one in sorted(found, key=lambda one: one.masks or 0)}


def _fine_tuning(before: Model, after: Model) -> Evidence | None:
    """The evidence of the mask counts and questions that both models were asked."""
    shared = [one for one in mask_counts(before).values() if one in after.answers]
    own = [_losses_to_worst(model, shared) for model in (before, after)]
    if not all(own):
        return None
    differences = {}
    for task, losses in own[0].items():
        n = min(len(losses), len(own[1][task]))
        differences[task] = losses[:n] - own[1][task][:n]
    return _evidence(differences, before, MASKS)


def _losses_to_worst(model: Model, conditions: Sequence[Condition]) -> dict[str, Floats]:
    """Task -> each question's loss from 2 masks to the worst count, which the other half of all questions chooses.

    Empty if 2 masks and a higher count were not asked, or one question alone was.
    """
    conditions = [one for one in conditions if (one.masks or 0) >= FEW]
    if MASKS not in conditions or len(conditions) < 2 or not have_letters(model, conditions):
        return {}
    of_tasks = {task: _of_task(model, conditions, task, "decoded") for task in model.answers[MASKS]}
    if min(len(own[MASKS]) for own in of_tasks.values()) < 2:
        return {}
    worst = [
        min(conditions, key=lambda one: fmean(float(own[one][1 - half :: 2].mean()) for own in of_tasks.values()))
        for half in (0, 1)
    ]
    found = {}
    for task, own in of_tasks.items():
        found[task] = own[MASKS].copy()
        for half in (0, 1):
            found[task][half::2] -= own[worst[half]][half::2]
    return found


def _gradients_of_masks(model: Model) -> Evidence | None:
    rows = _rows(model, "attribution_groups")
    if rows is None:
        return None
    table = rows.pivot(index=["task", "question"], columns="group", values="gradient")
    ratios = np.log(table["masks"] / table["last 50 non-masks"])
    questions = rows.drop_duplicates(["task", "question"])
    right = 100 * float((questions["predicted"].str.strip() == questions["answer"]).mean())
    without_letter = 100 * float((~questions["predicted"].str.strip().isin([*_LETTERS])).mean())
    of_tasks = {task: own.to_numpy() for task, own in ratios.groupby(level="task")}
    return _from_samples(of_tasks, right, without_letter)


def _gradients_of_examples(model: Model) -> Evidence | None:
    """The effect of a reordering is one sample. Places count from 1, farthest from the question."""
    rows = _rows(model, "attribution_examples")
    if rows is None or not have_letters(model, [SLOT]):
        return None
    fifth = int(rows["place"].max()) // 5
    near = rows[rows["place"] > rows["place"].max() - fifth].groupby(["task", "reordering"])["gradient"].mean()
    far = rows[rows["place"] <= fifth].groupby(["task", "reordering"])["gradient"].mean()
    ratios = np.log(near / far)
    of_tasks = {task: own.to_numpy() for task, own in ratios.groupby(level="task")}
    return replace(_from_samples(of_tasks, *_reference(model, SLOT)), questions=int(rows["questions"].min()))


def _rows(model: Model, analysis: str) -> pd.DataFrame | None:
    """The rows of an analysis; None if it was not made."""
    return pd.DataFrame(model.analyses[analysis]["rows"]) if analysis in model.analyses else None


def _paired(model: Model, name: str) -> Evidence | None:
    """Evidence from the same questions under several conditions."""
    contrast, share = CONTRASTS[name], "among_labels" if name == "masks_among_letters" else "decoded"
    reference, *_ = contrast
    conditions = [one for one, weight in contrast.items() if weight]
    if not have_letters(model, conditions):
        return None
    differences = {}
    for task in model.answers[conditions[0]]:
        answers = _of_task(model, conditions, task, share)
        differences[task] = np.sum([contrast[one] * values for one, values in answers.items()], axis=0)
    return _evidence(differences, model, reference, share)


def have_letters(model: Model, conditions: Iterable[Condition]) -> bool:
    """Whether all these conditions were asked, and first tokens are known."""
    asked = [model.answers.get(one, {}) for one in conditions]
    return all(one and all(answers.letters for answers in one.values()) for one in asked)


def _of_task(model: Model, conditions: Sequence[Condition], task: str, share: str) -> dict[Condition, Floats]:
    """Condition -> whether each answer counts, for the questions of a task that all conditions ask."""
    asked: dict[Condition, Answers] = {one: model.answers[one][task] for one in conditions}
    n = min(answers.n for answers in asked.values())
    return {one: answers.cut(n).are(share) for one, answers in asked.items()}


def _evidence(
    differences: Mapping[str, Floats], model: Model, reference: Condition, share: str = "decoded"
) -> Evidence | None:
    """Evidence from each question's difference, by task, if there is any and the reference was asked."""
    if not differences or not have_letters(model, [reference]):
        return None
    percents = {task: 100 * values for task, values in differences.items()}
    return _from_samples(percents, *_reference(model, reference, share))


def _from_samples(of_tasks: Mapping[str, Floats], right: float, without_letter: float) -> Evidence:
    """Evidence from independent samples of each task's effect."""
    noises = [float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0 for values in of_tasks.values()]
    effects = {task: float(values.mean()) for task, values in of_tasks.items()}
    return Evidence(effects, fmean(noises), min(map(len, of_tasks.values())), right, without_letter)


def _reference(model: Model, condition: Condition, share: str = "decoded") -> tuple[float, float]:
    """The percentages of right answers and of answers that are no letter, mean over tasks.

    Among letters, every answer is one.
    """
    of_tasks = model.answers[condition].values()
    right = fmean(float(one.are(share).mean()) for one in of_tasks)
    letters = fmean(float(one.are("label").mean()) for one in of_tasks) if share == "decoded" else 1.0
    return 100 * right, 100 * (1 - letters)
