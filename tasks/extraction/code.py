"""The program in an answer with Markdown's fences, whether or not its prompt has opened one."""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

# A fence or its half at the end, with its language, or a text in triple quotes, whose fences are none.
_FENCE = re.compile(
    r"""(?P<quotes>\"{3}|'{3}).*?(?P=quotes)
    |(?:`{3,}|~{3,}|`+\Z|\A\s*(?=python\s*$))(?:[ \t]*[\w+-]*[ \t\r]*$|[ \t]*(?:py|python)\b[ \t]*)?""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_STOPS = re.compile(r"\n(?:class|def|#|if|print)")  # lm-eval's stop strings of HumanEval


def program(answer: str, beginning: str = "") -> str:
    """The first part of an answer between fences that Python reads as code after `beginning`, else its first text.

    Code after a function's `beginning` may end where lm-eval's HumanEval stops, if the rest is broken.
    """
    fences = [found for found in _FENCE.finditer(answer) if found["quotes"] is None]
    begins, ends = [0, *(found.end() for found in fences)], [*(found.start() for found in fences), len(answer)]
    parts = [answer[begin:end] for begin, end in zip(begins, ends, strict=True)]
    parts = [part for part in parts if part.strip()]
    stopped = [_STOPS.split(part, maxsplit=1)[0] for part in parts] if beginning else []
    found = (part for part in [*parts, *stopped] if _adds_code(beginning, part))
    return next(found, "".join(parts[:1]))


def _adds_code(beginning: str, part: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.dump(ast.parse(beginning + part)) != ast.dump(ast.parse(beginning))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def programs(resps: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The program in each answer. lm-eval 0.4.13 takes its first word for the fence's language (`mbpp_instruct`)."""
    return [[program(answer) for answer in of_one] for of_one in resps]


def after_prompt(resps: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The document's prompt and the program in each answer."""
    begun = [f"{doc['prompt']}\n" for doc in docs]
    return [
        [before + program(answer, before) for answer in of_one] for of_one, before in zip(resps, begun, strict=True)
    ]
