# ruff: noqa: RUF009 - `flag` returns a dataclass field
"""The mask-agnostic (MA) loss and objective: predictions should not depend on the number of appended masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_finetune.objectives import flag
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import register

Divergence = Literal["tv", "kl", "none"]
Weighting = Literal["1/p", "none"]


@dataclass(frozen=True)
class MaskAgnosticLoss:
    """The weighted loss and its two terms: scalars, averaged over examples."""

    total: Tensor
    cross_entropy: Tensor
    consistency: Tensor


def mask_agnostic_loss(
    logits_1: Tensor,
    logits_2: Tensor,
    targets: Tensor,
    example: Tensor,
    mask_ratio: Tensor,
    *,
    alpha: float,
    beta: float,
    divergence: Divergence = "tv",
    weighting: Weighting = "1/p",
) -> MaskAgnosticLoss:
    """Computes the mask-agnostic loss alpha L_CE + beta L_TV of a batch (section 6.1 of "Masks Can Be Distracting").

    - `logits_1`, `logits_2`: the predictions [N, V] of two views of the batch, at its N masked answer tokens.
    - `targets`: the right tokens [N].
    - `example`: for each of the N tokens, the number of its example, from 0 to B - 1.
    - `mask_ratio`: the probability p [B] with which the answer tokens of each example were masked.
    - `alpha`, `beta`: the weights of the two terms.
    - `divergence`: `tv` for the L1 distance, `kl` for (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2, or `none` for no L_TV.
    - `weighting`: `1/p`, or `none` to leave out the factors 1 / p and p.

    The terms of an example with n_m masked answer tokens are
    L_CE = -1 / (2 p n_m) sum over views and tokens of log p(target), and
    L_TV = p / n_m sum over tokens of |p_1 - p_2|_1 (the L1 distance, without the half of total variation).
    The loss is the mean over the examples. Raises ValueError if an example has no masked answer token.
    """
    n_examples = mask_ratio.shape[0]
    n_masked = torch.bincount(example, minlength=n_examples)  # [B]
    if bool((n_masked == 0).any()):
        raise ValueError("an example has no masked answer token, so that its loss is undefined")
    # Half precision would lose small differences between two distributions over a large vocabulary.
    log_p_1, log_p_2 = (
        F.log_softmax(v if v.dtype == torch.float64 else v.float(), dim=-1) for v in (logits_1, logits_2)
    )
    ratio = mask_ratio.to(log_p_1.dtype) if weighting == "1/p" else torch.ones_like(mask_ratio, dtype=log_p_1.dtype)
    share = 1.0 / (n_examples * n_masked[example]).to(log_p_1.dtype)  # [N]: a mean over positions, then over examples
    at_target = log_p_1.gather(1, targets[:, None]) + log_p_2.gather(1, targets[:, None])  # [N, 1]
    cross_entropy = -(at_target.squeeze(1) * share / (2.0 * ratio[example])).sum()
    if divergence == "tv":
        distance = (log_p_1.exp() - log_p_2.exp()).abs().sum(-1)  # [N]
    elif divergence == "kl":
        distance = ((log_p_1.exp() - log_p_2.exp()) * (log_p_1 - log_p_2)).sum(-1) / 2.0
    else:
        distance = torch.zeros_like(share)
    consistency = (distance * share * ratio[example]).sum()
    return MaskAgnosticLoss(alpha * cross_entropy + beta * consistency, cross_entropy, consistency)


@dataclass(frozen=True)
class MaskAgnostic(Objective):
    """Two views of each example: the same noised answer with different numbers of appended masks (section 6.1 of the
    mask sensitivity paper; defaults from its appendix B).

    p ~ U(`p_low`, `p_high`). Each token of the answer is masked with probability p, and at least one is. Two distinct
    numbers of masks, from 0 to the maximum of the curriculum, are appended. This maximum grows linearly from
    `masks_start` to `masks_end` over `curriculum_passes` forward-backward passes. The shorter view of an example ends
    in EOS tokens that are attended to, as in LLaDA's own fine-tuning.
    """

    alpha: float = flag(0.1, "weight of the cross-entropy")
    beta: float = flag(1.0, "weight of the consistency of two views; 0 trains on the cross-entropy alone")
    divergence: Divergence = flag("tv", "how the consistency is measured: total variation, symmetric KL, or not at all")
    weighting: Weighting = flag("1/p", "whether terms are weighted by the share of masked tokens")
    p_low: float = flag(0.2, "least probability with which a token is masked")
    p_high: float = flag(0.8, "greatest such probability")
    masks_start: int = flag(1, "most masks appended in the first pass")
    masks_end: int = flag(600, "most masks appended once the curriculum is over")
    curriculum_passes: int = flag(5000, "forward-backward passes over which the most masks grow")

    def __post_init__(self) -> None:
        # Consistency alone is no objective: a model with the same prediction everywhere would be optimal.
        if not 0.0 < self.alpha < float("inf"):
            raise OptionError(f"alpha={self.alpha} must be above 0")
        if not 0.0 <= self.beta < float("inf"):
            raise OptionError(f"beta={self.beta} must be 0 or above")
        if not 0.0 < self.p_low <= self.p_high <= 1.0:
            raise OptionError(f"p_low={self.p_low}, p_high={self.p_high}: must be 0 < p_low <= p_high <= 1")
        if not 1 <= self.masks_start <= self.masks_end:
            raise OptionError(f"masks_start={self.masks_start}, masks_end={self.masks_end}: must be 1 <= start <= end")
        if self.curriculum_passes < 0:
            raise OptionError(f"curriculum_passes={self.curriculum_passes} must be 0 or above")

    @property
    def label(self) -> str:
        compared = self.beta > 0.0 and self.divergence != "none"
        return f"MA (CE + {self.divergence.upper()})" if compared else "MA (CE only)"

    @property
    def in_words(self) -> str:
        consistency = {"tv": "total variation (L1)", "kl": "symmetric KL", "none": "no consistency"}[self.divergence]
        weighting = "weighted by 1/p and p" if self.weighting == "1/p" else "unweighted"
        paper = 'the mask-agnostic loss of ["Masks Can Be Distracting"](https://arxiv.org/abs/2511.21338)'
        return f"{self.alpha} x cross-entropy, {self.beta} x {consistency}, {weighting}: {paper}"

    def complaint(self, n_passes: int) -> str | None:
        """A warning if the curriculum does not end within the run; None if it does."""
        if n_passes >= self.curriculum_passes:
            return None
        return (
            f"the {n_passes} passes of this run are fewer than curriculum_passes={self.curriculum_passes}: the number "
            f"of masks grows only to {self.max_masks(n_passes - 1)}, not to masks_end={self.masks_end}"
        )

    def max_masks(self, forward_backward_pass: int) -> int:
        """The most appended masks in this pass, which counts from 0."""
        done = min(1.0, forward_backward_pass / self.curriculum_passes) if self.curriculum_passes > 0 else 1.0
        return self.masks_start + int(done * (self.masks_end - self.masks_start))

    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """Returns two views, in the order in which their numbers of masks were drawn."""
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
        """The loss; cross-entropy and consistency are also logged."""
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


register(name="mask_agnostic", objective=MaskAgnostic)
