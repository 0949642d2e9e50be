"""Rows of token ids and what of them is masked: the two objectives of the training."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from mdlm_lm_eval.default_model.training.corpus import Document, word_fact


@dataclass(frozen=True)
class Batch:
    """Noised rows and what to predict in them."""

    input_ids: torch.Tensor  # [B, T], masks where noised
    at: torch.Tensor  # [B, T] bool, the masked positions
    targets: torch.Tensor  # [N], the true ids at `at`, row by row
    weights: torch.Tensor  # [N], of each target's cross-entropy in the loss


class Noiser:
    """Turns documents into noised batches of one vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.ids: dict[str, int] = tokenizer.get_vocab()
        self.mask_id, self.eos_id = self.ids[tokenizer.mask_token], self.ids[tokenizer.eos_token]

    def pack(self, draw: Callable[[], Document], rng: Random, length: int) -> tuple[list[int], list[bool]]:
        """A window of `length` tokens: one document, then (short ones) word facts or further documents, EOS between.

        Returns its ids and which of them are answers.
        """
        ids: list[int] = []
        is_answer: list[bool] = []
        document = draw()
        while True:
            ids += [self.ids[piece] for piece in document.pieces] + [self.eos_id]
            flags = [False] * (len(document.pieces) + 1)
            for index in document.answers:
                flags[index] = True
            is_answer += flags
            if len(ids) >= length:
                return ids[:length], is_answer[:length]
            document = word_fact(rng) if length - len(ids) < 40 else draw()

    def answers_masked(self, ids: torch.Tensor, is_answer: torch.Tensor, generator: torch.Generator) -> Batch:
        """Masks 10 to 70% of the answers of each row ([B, T]), at least one in a batch; mean cross-entropy."""
        ratio = 0.1 + 0.6 * torch.rand(len(ids), 1, generator=generator)
        at = is_answer & (torch.rand(ids.shape, generator=generator) < ratio)
        n = int(at.sum())
        return Batch(ids.masked_fill(at, self.mask_id), at, ids[at], torch.full((n,), 1.0 / max(n, 1)))

    def everything_masked(self, ids: torch.Tensor, generator: torch.Generator) -> Batch:
        """Masked diffusion: t ~ U(0,1) a row, every token masked with probability t, weight 1/t (LLaDA, eq. 3).

        t is stratified over the rows of a batch, which changes the variance of the loss and not its mean.
        """
        rows = len(ids)
        t = (torch.randperm(rows, generator=generator)[:, None] + torch.rand(rows, 1, generator=generator)) / rows
        t = t.clamp_min(1e-3)
        at = torch.rand(ids.shape, generator=generator) < t
        weights = (1.0 / t).expand_as(ids)[at] / ids.numel()
        return Batch(ids.masked_fill(at, self.mask_id), at, ids[at], weights)


def concatenate(first: Batch, second: Batch) -> Batch:
    """Both batches' rows (of one length) as one; losses add."""
    return Batch(
        torch.cat([first.input_ids, second.input_ids]),
        torch.cat([first.at, second.at]),
        torch.cat([first.targets, second.targets]),
        torch.cat([first.weights, second.weights]),
    )
