"""Fine-tune masked diffusion language models with the mask-agnostic loss."""

from mdlm_finetune.collator import Example, MaskAgnosticCollator
from mdlm_finetune.loss import MaskAgnosticLoss, mask_agnostic_loss
from mdlm_finetune.trainer import MaskAgnosticTrainer

__all__ = ["Example", "MaskAgnosticCollator", "MaskAgnosticLoss", "MaskAgnosticTrainer", "mask_agnostic_loss"]
