"""Training objectives: one module in this folder for each value of the option `objective`.

register(name="sft", objective=Sft)
"""

from dataclasses import field
from typing import Any


def flag(default: Any, help: str) -> Any:
    """A dataclass field that is a flag of `mdlm-finetune`, with its help text."""
    return field(default=default, metadata={"help": help})
