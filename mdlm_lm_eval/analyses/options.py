"""What a user may set about an analysis of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.values import check_batch_size

AUTOREGRESSIVE = "hf"


@dataclass(frozen=True)
class AnalysisOptions:
    """One analysis of one model. `n_masks` are masks appended to the prompt; None appends none.

    limit: the first so many questions of every task; None for all.
    """

    analysis: str
    model: str
    model_args: Mapping[str, Any]
    tasks: tuple[str, ...]
    metadata: Mapping[str, Any]  # of the tasks, such as fewshot_distractors
    n_masks: tuple[int | None, ...]
    limit: int | None
    batch_size: str
    device: str | None
    apply_chat_template: bool
    output_path: Path
    reorderings: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model == AUTOREGRESSIVE and "pretrained" not in self.model_args:
            raise OptionError("model=hf needs pretrained in --model_args; the built-in model is --model mdlm")
        if self.model == AUTOREGRESSIVE and any(self.n_masks):
            raise OptionError(
                f"n_masks={','.join(map(str, self.n_masks))} is not for model=hf: autoregressive models have no masks"
            )
        if not self.tasks:
            raise OptionError("tasks is not set; name at least one, such as mdlm_context")
        check_batch_size(self.batch_size)

    @property
    def model_name(self) -> str:
        """The last names of checkpoint and adapter, for a figure's title."""
        parts = [str(self.model_args[name]) for name in ("pretrained", "peft") if name in self.model_args]
        names = " + ".join(PurePath(part).name for part in parts)
        return names if "pretrained" in self.model_args else " + ".join(filter(None, [BUILT_IN, names]))
