"""The program in an answer whose prompt has opened a fence, for `mdlm_mbpp_instruct`."""

from collections.abc import Sequence
from typing import Any

FENCE = "```"


def before_fence(resps: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The text of each answer up to the fence that closes it, or all of it if none does.

    lm-eval 0.4.13 takes the first word for the fence's language instead, and finds nothing without a closing fence.
    """
    return [[answer.partition(FENCE)[0] for answer in of_one] for of_one in resps]
