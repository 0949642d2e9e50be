"""Windows of token ids and what of them is masked: the three objectives of the training."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from mdlm_lm_eval.default_model.training.corpus import Document


@dataclass(frozen=True)
class Batch:
    """Windows before and after masking, and how much each masked token counts; all [B, T]."""

    clean: torch.Tensor
    noisy: torch.Tensor
    weights: torch.Tensor  # of each token's cross-entropy in the loss, 0 where it is not masked


class Noiser:
    """Turns documents into noised batches of one vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.ids: dict[str, int] = tokenizer.get_vocab()
        self.mask_id, self.eos_id = self.ids[tokenizer.mask_token], self.ids[tokenizer.eos_token]

    def windows(self, draw: Callable[[], Document], n: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`n` windows of drawn documents, EOS after each, the last cut off: ids and is-an-answer, both [n, length]."""
        packed = [self._window(draw, length) for _ in range(n)]
        return torch.tensor([ids for ids, _ in packed]), torch.tensor([is_answer for _, is_answer in packed])

    def _window(self, draw: Callable[[], Document], length: int) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        answers: set[int] = set()
        while len(ids) < length:
            document = draw()
            answers.update(len(ids) + index for index in document.answers)
            ids += [*(self.ids[piece] for piece in document.pieces), self.eos_id]
        return ids[:length], [index in answers for index in range(length)]

    def answers_masked(
        self, clean: torch.Tensor, is_answer: torch.Tensor, most: float, generator: torch.Generator
    ) -> Batch:
        """Masks 10% to `most` of the answers of each window, at least one; mean cross-entropy over all of them."""
        ratio = 0.1 + (most - 0.1) * torch.rand(len(clean), 1, generator=generator)
        draws = torch.rand(clean.shape, generator=generator).masked_fill(~is_answer, 2.0)
        masked = is_answer & ((draws < ratio) | (draws == draws.min(1, keepdim=True).values))
        return Batch(clean, clean.masked_fill(masked, self.mask_id), masked / masked.sum().clamp_min(1))

    def response_masked(self, documents: list[Document], generator: torch.Generator) -> Batch:
        """Documents of one length, EOS after each. Each token from the first answer on is masked with probability t.

        t ~ U(0,1) a document, weight 1/t, the mean over all those tokens (LLaDA, equation 5).
        """
        clean, _ = self.windows(iter(documents).__next__, len(documents), len(documents[0].pieces) + 1)
        is_answer = torch.arange(clean.shape[1]) >= torch.tensor([[one.answers[0]] for one in documents])
        t = torch.rand(len(clean), 1, generator=generator).clamp_min(1e-3)
        masked = is_answer & (torch.rand(clean.shape, generator=generator) < t)
        return Batch(clean, clean.masked_fill(masked, self.mask_id), masked / t / is_answer.sum())

    def everything_masked(self, clean: torch.Tensor, generator: torch.Generator) -> Batch:
        """Masked diffusion: t ~ U(0,1) a window, every token masked with probability t, weight 1/t (LLaDA, eq. 3).

        t is stratified over the windows of a batch, which changes the variance of the loss and not its mean.
        """
        n = len(clean)
        t = (torch.randperm(n, generator=generator)[:, None] + torch.rand(n, 1, generator=generator)) / n
        t = t.clamp_min(1e-3)
        masked = torch.rand(clean.shape, generator=generator) < t
        return Batch(clean, clean.masked_fill(masked, self.mask_id), masked / t / clean.numel())


def concatenate(first: Batch, second: Batch) -> Batch:
    """Both batches' windows (of one length) as one; losses add."""
    return Batch(
        torch.cat([first.clean, second.clean]),
        torch.cat([first.noisy, second.noisy]),
        torch.cat([first.weights, second.weights]),
    )
