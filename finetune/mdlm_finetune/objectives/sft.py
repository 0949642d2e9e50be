"""LLaDA's plain objective: supervised fine-tuning without the mask-agnostic loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_finetune.objectives import flag
from mdlm_lm_eval.registry import register

Padding = Literal["predicted", "shown", "masks", "none"]
T_MIN = 1e-3  # LLaDA's own lower bound of t, which bounds the weight of a token


def noised(text: Tensor, maskable: Tensor, noising: Noising, padding: Padding, max_padding: int) -> Noised:
    """One view, masked with probability t ~ U(0, 1), with U{0, ..., `max_padding`} padding tokens after the text."""
    generator = noising.generator
    t = (1.0 - T_MIN) * float(torch.rand((), generator=generator)) + T_MIN
    is_masked = maskable & (torch.rand(len(text), generator=generator) < t)
    n = int(torch.randint(min(noising.room, max_padding) + 1, (), generator=generator))
    tail = torch.full((n,), noising.mask_token_id if padding == "masks" else noising.eos_token_id)
    n_predicted = n if padding == "predicted" else 0
    is_masked = torch.cat([is_masked, torch.rand(n_predicted, generator=generator) < t])
    whole = torch.cat([text, tail[:0] if padding == "none" else tail])
    is_hidden = F.pad(is_masked, (0, len(whole) - len(is_masked)))
    return Noised((whole.masked_fill(is_hidden, noising.mask_token_id),), is_masked, t, n_predicted)


@dataclass(frozen=True)
class Sft(Objective):
    """Each token of the answer is masked with probability t ~ U(0, 1), weight 1/t (LLaDA, eq. 5, GUIDELINES.md).

    The loss of an example is divided by the number of its tokens that may be masked, then averaged over examples.
    Unlike in LLaDA's own code, padding is no part of the answer: it is neither attended to nor predicted. `eos_tail` T
    appends U{0, ..., T} EOS tokens that are attended to, so that texts are as long as those of `mask_agnostic`.
    """

    eos_tail: int = flag(0, "append up to so many end-of-text tokens")

    @property
    def label(self) -> str:
        return "SFT"

    @property
    def in_words(self) -> str:
        return "cross-entropy at masks drawn with probability t ~ U(0, 1), weighted by 1/t (LLaDA's plain objective)"

    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """One view."""
        return noised(text, maskable, noising, "shown", self.eos_tail)

    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        """The weighted cross-entropy."""
        per_token = F.cross_entropy(logits.float(), batch.targets, reduction="none")  # [N]
        weight = 1.0 / (batch.mask_ratio * batch.n_maskable * len(batch.ids))  # [B]
        return {"loss": (per_token * weight[batch.example]).sum()}


register(name="sft", objective=Sft)
