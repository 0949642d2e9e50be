"""The mask-agnostic (MA) objective: the same prediction, whatever the number of masks appended."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm_finetune.loss import Divergence, Weighting, mask_agnostic_loss
from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_finetune.objectives import register_objective
from mdlm_lm_eval.values import OptionError, must_be


@register_objective("mask_agnostic")
@dataclass(frozen=True)
class MaskAgnostic(Objective):
    """Two views of each example, the same noised answer with different numbers of masks appended (section 6.1 of the
    mask sensitivity paper; the defaults are its appendix B's).

    p ~ U(`p_low`, `p_high`); each token of `masked_part` (the answer in the paper, else the prompt or both) is masked
    with probability p and at least one is. Two distinct numbers of masks, 0 to the maximum of the curriculum, are
    appended; it grows linearly from `masks_start` to `masks_end` over `curriculum_passes` forward-backward passes. The
    shorter view of an example ends in EOS tokens that are attended to, as in LLaDA's own fine-tuning.
    """

    alpha: float = 0.1
    beta: float = 1.0
    divergence: Divergence = "tv"
    weighting: Weighting = "1/p"
    p_low: float = 0.2
    p_high: float = 0.8
    masks_start: int = 1
    masks_end: int = 600
    curriculum_passes: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.alpha < float("inf"):
            # Agreement alone teaches nothing: a model that predicts the same everywhere agrees best of all.
            raise must_be("alpha", "a number above 0", self.alpha)
        if not 0.0 <= self.beta < float("inf"):
            raise must_be("beta", "a number from 0", self.beta)
        if not 0.0 < self.p_low <= self.p_high <= 1.0:
            raise OptionError(f"p_low={self.p_low}, p_high={self.p_high}: must be 0 < p_low <= p_high <= 1")
        if not 1 <= self.masks_start <= self.masks_end:
            raise OptionError(
                f"masks_start={self.masks_start}, masks_end={self.masks_end}: must be 1 <= masks_start <= masks_end"
            )
        if self.curriculum_passes < 0:
            raise must_be("curriculum_passes", "a whole number from 0", self.curriculum_passes)

    @property
    def label(self) -> str:
        compared = self.beta > 0.0 and self.divergence != "none"
        return f"MA (CE + {self.divergence.upper()})" if compared else "MA (CE only)"

    @property
    def in_words(self) -> str:
        consistency = {"tv": "total variation (L1)", "kl": "symmetric KL", "none": "no consistency"}[self.divergence]
        weighting = "weighted by 1/p and p" if self.weighting == "1/p" else "unweighted"
        return (
            f"{self.alpha} x cross-entropy, {self.beta} x {consistency}, {weighting}: the mask-agnostic loss of "
            '["Masks Can Be Distracting"](https://arxiv.org/abs/2511.21338)'
        )

    def max_masks(self, forward_backward_pass: int) -> int:
        """The curriculum's maximum in this pass, counted from 0."""
        done = min(1.0, forward_backward_pass / self.curriculum_passes) if self.curriculum_passes > 0 else 1.0
        return self.masks_start + int(done * (self.masks_end - self.masks_start))

    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """Two views, with `views` in the order in which their numbers of masks were drawn."""
        generator = noising.generator
        ratio = self.p_low + (self.p_high - self.p_low) * float(torch.rand((), generator=generator))
        is_masked = maskable & (torch.rand(len(text), generator=generator) < ratio)
        if not bool(is_masked.any()):
            chosen = torch.randint(int(maskable.sum()), (), generator=generator)
            is_masked[maskable.nonzero()[int(chosen)]] = True
        most = min(noising.room, self.max_masks(noising.forward_backward_pass))
        n_masks = torch.randperm(most + 1, generator=generator)[:2].tolist()
        noised = text.masked_fill(is_masked, noising.mask_token_id)
        views = []
        for n in n_masks:
            tail = torch.full((max(n_masks),), noising.eos_token_id)
            tail[:n] = noising.mask_token_id
            views.append(torch.cat([noised, tail]))
        return Noised(tuple(views), is_masked, ratio)

    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        """Cross-entropy and consistency are logged as well."""
        one, two = logits.chunk(2)  # [N, vocabulary] each
        terms = mask_agnostic_loss(
            one,
            two,
            batch.targets,
            batch.example,
            batch.mask_ratio,
            alpha=self.alpha,
            beta=self.beta,
            divergence=self.divergence,
            weighting=self.weighting,
        )
        return {"loss": terms.total, "cross_entropy": terms.cross_entropy, "consistency": terms.consistency}
