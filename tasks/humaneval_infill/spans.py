"""HumanEval with a hole: the data of lm-eval's `humaneval_infilling`, asked with the suffix in place.

lm-eval's own tasks put the suffix before the prefix, as autoregressive models need it. Here the text is prefix, slot
and suffix; the slot has as many masks as the true middle has tokens (`oracle`) or a given number, the two ways that
DreamOn reports (Bavarian et al., 2022, arXiv:2207.14255; Wu et al., 2025).
"""

from typing import Any

import datasets

from mdlm_lm_eval.tasks.infill.passages import slot

PATH = "loubnabnl/humaneval_infilling"


def documents(
    subset: str, path: str = PATH, infill_masks: int | str = "oracle", **_: object
) -> dict[str, datasets.Dataset]:
    """The published rows, each with its `text` of prefix, slot and suffix."""

    def with_text(row: dict[str, Any]) -> dict[str, Any]:
        return {"text": row["prompt"] + slot(row["canonical_solution"], infill_masks) + row["suffix"]}

    return {"test": datasets.load_dataset(path, subset, split="test").map(with_text)}


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """pass@1 of the whole program, run as lm-eval runs it: it refuses where HF_ALLOW_CODE_EVAL is not set."""
    from lm_eval.tasks.humaneval_infilling.utils import pass_at_k  # loads the metric from the hub

    program = doc["prompt"] + results[0] + doc["suffix"]
    scores: dict[str, float] = pass_at_k([f"{doc['test']}\ncheck({doc['entry_point']})"], [[program]], [1])
    return scores
