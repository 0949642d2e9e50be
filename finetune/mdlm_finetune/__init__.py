"""Fine-tune masked diffusion language models: the mask-agnostic loss, LLaDA's plain one, or one of your own.

Public names are resolved on first use, so that `mdlm-finetune --help` does not wait for torch.
"""

TYPE_CHECKING = False  # as in typing, whose import takes longer than all that help needs
if TYPE_CHECKING:
    from mdlm_finetune.collator import Collator, Example, MaskAgnosticCollator
    from mdlm_finetune.loss import MaskAgnosticLoss, mask_agnostic_loss
    from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
    from mdlm_finetune.objectives import register_objective
    from mdlm_finetune.trainer import DiffusionTrainer, MaskAgnosticTrainer

_MODULE_OF = {
    "Collator": "collator",
    "DiffusionTrainer": "trainer",
    "Example": "collator",
    "MaskAgnosticCollator": "collator",
    "MaskAgnosticLoss": "loss",
    "MaskAgnosticTrainer": "trainer",
    "Noised": "objective",
    "NoisedBatch": "objective",
    "Noising": "objective",
    "Objective": "objective",
    "mask_agnostic_loss": "loss",
    "register_objective": "objectives",
}

__all__ = [
    "Collator",
    "DiffusionTrainer",
    "Example",
    "MaskAgnosticCollator",
    "MaskAgnosticLoss",
    "MaskAgnosticTrainer",
    "Noised",
    "NoisedBatch",
    "Noising",
    "Objective",
    "mask_agnostic_loss",
    "register_objective",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"mdlm_finetune.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
