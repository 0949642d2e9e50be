"""What an unmasking rule knows of the masks that it ranks."""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import to_device


@dataclass(frozen=True)
class Candidates:
    """N masks of one or more rows.

    logits: [N, V] float32, of the distribution that tokens are drawn from (at temperature 0 the model's own).
    plain_logits: [N, V] float32, of the distribution that confidences are read from: at temperature 1, as in LLaDA's
        sampler, unless `top_p` or `top_k` is set. With `eos_last`, both are without the tokens that end an answer.
    tokens: [N], the token that each mask would become.
    last_ids: with `eos_last`, tokens that end an answer.
    slot_numbers: [N], a mask's place among the masks of its row, counted from the left; for rules that read places.
    random_numbers: [N] float32 in [0, 1), drawn once for each mask of a row; for rules that are random.
    block_offsets: [N], its place among those of its block; None where a row is one block.
    calibration: the options `position_decay` and `calibration_cap`.
    token_frequencies: [V], of tokens in a background text; None without one.
    """

    logits: Tensor
    plain_logits: Tensor
    tokens: Tensor
    last_ids: Collection[int]
    slot_numbers: Any
    random_numbers: Any
    block_offsets: Tensor | None = None
    calibration: tuple[float, float] = (0.25, 10.0)
    token_frequencies: Tensor | None = None

    @cached_property
    def comes_last(self) -> Tensor:
        """[N] bool, masks that would become a token that ends an answer, with `eos_last`."""
        found = torch.zeros_like(self.tokens, dtype=torch.bool)
        for last_id in self.last_ids:
            found |= self.tokens == last_id
        return found

    @cached_property
    def probabilities(self) -> Tensor:
        """[N, V], of the distribution that tokens are drawn from."""
        return self.logits.softmax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """[N], in nats, of the distribution that tokens are drawn from; 0 log 0 counts as 0."""
        return torch.special.entr(self.probabilities).sum(-1)

    @cached_property
    def plain_probabilities(self) -> Tensor:
        """[N, V], of the distribution that confidences are read from."""
        return self.probabilities if self.plain_logits is self.logits else self.plain_logits.softmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """[N], the probability p of the token that each mask would become."""
        return self.plain_probabilities.gather(1, self.tokens[:, None]).squeeze(1)

    @cached_property
    def odds(self) -> Tensor:
        """[N], -(1 - p) / p in units of 2^-53: tells apart what is 1 to float32, as samplers with float64 do."""
        confidence, probabilities = self.confidence, self.plain_probabilities
        for name in ("plain_probabilities", "probabilities"):  # overwritten here: who asks again gets new ones
            self.__dict__.pop(name, None)
        others = probabilities.scatter_(1, self.tokens[:, None], 0.0).sum(-1)
        return torch.addcdiv(_zero(others.device), others, confidence, value=-(2.0**53))


@functools.lru_cache(maxsize=16)
def _zero(device: torch.device) -> Tensor:
    return to_device(torch.zeros(()), device)
