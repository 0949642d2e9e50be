"""Masked batches for the objectives of the training."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from training.corpus import Document


@dataclass(frozen=True)
class Batch:
    """Token ids before and after masking, and the weights of masked tokens; all [B, T]."""

    clean: torch.Tensor
    noisy: torch.Tensor
    weights: torch.Tensor  # weight of each token's cross-entropy in the loss, 0 for tokens that are not masked
    hidden: bool = False  # whether no other token sees a masked token, as if each were the only mask

    def to(self, device: str) -> "Batch":
        """The batch with its tensors on `device`."""
        return Batch(self.clean.to(device), self.noisy.to(device), self.weights.to(device), self.hidden)


class Noiser:
    """Turns documents into masked batches of token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.ids: dict[str, int] = tokenizer.get_vocab()
        self.mask_id, self.eos_id = self.ids[tokenizer.mask_token], self.ids[tokenizer.eos_token]

    def encode(self, documents: list[Document]) -> torch.Tensor:
        """Token ids [B, T] of the documents, padded with EOS to one more than the length of the longest."""
        length = 1 + max(len(one.pieces) for one in documents)
        rows = [[self.ids[piece] for piece in one.pieces] for one in documents]
        return torch.tensor([row + [self.eos_id] * (length - len(row)) for row in rows])

    def answers_masked(self, documents: list[Document], most: float, generator: torch.Generator) -> Batch:
        """Masks 10% to `most` of the answers of each document, at least one; weights give the mean cross-entropy."""
        clean = self.encode(documents)
        is_answer = torch.zeros(clean.shape, dtype=torch.bool)
        for row, document in enumerate(documents):
            is_answer[row, document.answers] = True
        ratio = 0.1 + (most - 0.1) * torch.rand(len(clean), 1, generator=generator)
        draws = torch.rand(clean.shape, generator=generator).masked_fill(~is_answer, 2.0)
        masked = is_answer & ((draws < ratio) | (draws == draws.min(1, keepdim=True).values))
        return Batch(clean, clean.masked_fill(masked, self.mask_id), masked / masked.sum(), hidden=True)

    def everything_masked(
        self, documents: list[Document], generator: torch.Generator, *, answers_alone: bool = False
    ) -> Batch:
        """Masked diffusion: every token is masked with probability t ~ U(0,1), weight 1/t (LLaDA, equation 3).

        t is stratified over the documents of a batch, which lowers the variance of the loss and keeps its mean.
        `answers_alone` masks only a document's answers and the EOS after it, as LLaDA's fine-tuning does (equation 5),
        with t of at least 0.1.
        """
        clean = self.encode(documents)
        maskable = torch.full(clean.shape, not answers_alone)
        for row, document in enumerate(documents):
            maskable[row, document.answers] = True
            maskable[row, len(document.pieces) :] = True
        n = len(clean)
        t = (torch.randperm(n, generator=generator)[:, None] + torch.rand(n, 1, generator=generator)) / n
        t = t.clamp_min(0.1 if answers_alone else 1e-3)
        masked = maskable & (torch.rand(clean.shape, generator=generator) < t)
        return Batch(clean, clean.masked_fill(masked, self.mask_id), masked / t / maskable.sum())
