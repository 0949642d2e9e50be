"""What the leaderboard knows of the few-shot suite: its task names, and which settings are standard."""

import itertools
import re
from dataclasses import dataclass

# The leaderboard imports nothing of the other packages; a test compares these with the tasks folder.
RULES = ("country", "capitalised", "verb", "adjective", "animal", "colour", "emotion", "object")
DISTRACTORS = ("smallest", "largest")
KNOWN_VERSIONS = ("2.0", "1.0")
STANDARD_RELEVANT, STANDARD_DISTRACTORS, STANDARD_SEED = 10, 40, 1
QUESTIONS_PER_TASK = 1000

TASKS = frozenset(f"{rule}_{distractor}" for rule, distractor in itertools.product(RULES, DISTRACTORS))

_NAME = re.compile(
    rf"mdlm_(?P<task>({'|'.join(RULES)})_({'|'.join(DISTRACTORS)}))"
    r"(?P<slot>_slot)?((_(?P<question>left|middle|right))?_pos(?P<position>\d+))?"
)


@dataclass(frozen=True)
class SuiteTask:
    """One task of the suite. `task` is rule and distractor, which all of a task's variants share.

    `question` is None in the open-ended tasks, `position` in the mixed ones.
    """

    task: str
    is_slot: bool
    question: str | None
    position: int | None

    @property
    def group(self) -> str:
        """The group that this task counts to."""
        if self.position is None:
            return "mdlm_slot" if self.is_slot else "mdlm_context"
        if self.question is None:
            return f"mdlm_position_pos{self.position}"
        return f"mdlm_locality_{self.question}_pos{self.position}"

    @property
    def is_open_ended(self) -> bool:
        """Whether masks follow the prompt; else the answer's mask stands in its text."""
        return not self.is_slot and self.question is None


def suite_task(name: str) -> SuiteTask | None:
    """The suite's task of this name, None for any other task."""
    match = _NAME.fullmatch(name)
    if match is None or (match["slot"] and match["position"]):
        return None
    position = None if match["position"] is None else int(match["position"])
    return SuiteTask(match["task"], bool(match["slot"]), match["question"], position)
