"""The program in an answer whose prompt has opened a fence."""

from collections.abc import Sequence
from typing import Any

_FENCE = "```"


def before_fence(resps: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The text of each answer up to the fence that closes it, or all of it if none does, for `mdlm_mbpp_instruct`.

    lm-eval 0.4.13 takes the first word for the fence's language instead, and finds nothing without a closing fence.
    """
    return [[answer.partition(_FENCE)[0] for answer in of_one] for of_one in resps]


def after_prompt(resps: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The document's prompt and the code of each answer, which may open a fence once more, as Dream's authors read it.

    Theirs also drops code that the function does not need (`sanitize` in their fork of lm-eval).
    """
    codes = before_fence([[answer.split(f"{_FENCE}python\n", 1)[-1] for answer in of_one] for of_one in resps], docs)
    return [[f"{doc['prompt']}\n{code}" for code in of_one] for of_one, doc in zip(codes, docs, strict=True)]
