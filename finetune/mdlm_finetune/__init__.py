"""Fine-tune masked diffusion language models with the mask-agnostic loss."""

from mdlm_finetune.loss import MaskAgnosticLoss, mask_agnostic_loss

__all__ = ["MaskAgnosticLoss", "mask_agnostic_loss"]
