"""Fine-tune masked diffusion language models: the mask-agnostic loss, LLaDA's plain one, or one of your own.

Public names are imported on first use, so that `mdlm-finetune --help` does not wait for torch.
"""

from importlib import import_module

TYPE_CHECKING = False  # importing it from typing would take longer than everything else that --help needs
if TYPE_CHECKING:
    from mdlm_finetune.data import Example
    from mdlm_finetune.objectives.mask_agnostic import mask_agnostic_loss
    from mdlm_finetune.run import Collator, DiffusionTrainer

__all__ = ["Collator", "DiffusionTrainer", "Example", "mask_agnostic_loss"]

_MODULE_OF = {
    "Collator": "run",
    "DiffusionTrainer": "run",
    "Example": "data",
    "mask_agnostic_loss": "objectives.mask_agnostic",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mdlm_finetune.{_MODULE_OF[name]}"), name)
