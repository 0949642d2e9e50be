"""Training objectives, a module each in this folder, under the names that the option `objective` takes.

register(name="sft", objective=Sft)
"""

from dataclasses import field
from typing import Any


def flag(default: Any, help: str) -> Any:
    """A field that is a flag of `mdlm-finetune`, with what its help says of it."""
    return field(default=default, metadata={"help": help})
