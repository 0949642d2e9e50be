"""Examples as batches: noised by an objective, padded to one length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic


@dataclass(frozen=True)
class Example:
    """A prompt and its answer, in tokens; `id` is its row's number in the data, from 0."""

    id: int
    prompt_ids: list[int]
    answer_ids: list[int]


@dataclass(frozen=True)
class Collator:
    """Examples -> a noised batch; padding between examples is not attended to.

    All randomness of an example comes from (`seed`, pass, id), so that neither resuming nor sharing a batch among
    processes changes it.
    """

    objective: Objective
    mask_token_id: int
    eos_token_id: int
    max_length: int = 1024
    seed: int = 0

    def __call__(self, examples: Sequence[Example], forward_backward_pass: int) -> NoisedBatch:
        """The batch of one pass. Raises ValueError for an example without room for a single token behind it."""
        texts = [torch.tensor(example.prompt_ids + example.answer_ids, dtype=torch.long) for example in examples]
        maskable = [self._maskable(example) for example in examples]
        noised = [self._noised(*parts, forward_backward_pass) for parts in zip(examples, texts, maskable, strict=True)]
        rows = [view for views in zip(*(one.views for one in noised), strict=True) for view in views]
        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        masked = [one.is_masked.nonzero().squeeze(1) for one in noised]  # indices into each text
        n_views = len(rows) // len(examples)
        return NoisedBatch(
            input_ids=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.eos_token_id),
            attention_mask=(torch.arange(longest) < lengths[:, None]).long(),
            prompt_lengths=torch.tensor([len(example.prompt_ids) for example in examples] * n_views),
            positions=torch.cat([row * longest + where for row, where in enumerate(masked * n_views)]),
            targets=torch.cat([text[where] for text, where in zip(texts, masked, strict=True)]),
            example=torch.cat([torch.full_like(where, index) for index, where in enumerate(masked)]),
            mask_ratio=torch.tensor([one.mask_ratio for one in noised]),
            n_maskable=torch.stack([each.sum() for each in maskable]),
            ids=tuple(example.id for example in examples),
        )

    def _noised(self, example: Example, text: Tensor, maskable: Tensor, forward_backward_pass: int) -> Noised:
        room = self.max_length - len(text)
        if room < 1 or not bool(maskable.any()):
            raise ValueError(
                f"example {example.id}: no {self.objective.masked_part} to mask, or no room for a mask within "
                f"{self.max_length} tokens"
            )
        generator = torch.Generator().manual_seed(_seed(self.seed, forward_backward_pass, example.id))
        noising = Noising(generator, self.mask_token_id, self.eos_token_id, room, forward_backward_pass)
        return self.objective.noise(text, maskable, noising)

    def _maskable(self, example: Example) -> Tensor:
        """Which tokens of prompt and answer may be masked, [L] bool."""
        is_answer = torch.arange(len(example.prompt_ids) + len(example.answer_ids)) >= len(example.prompt_ids)
        part = self.objective.masked_part
        return torch.ones_like(is_answer) if part == "both" else is_answer if part == "answer" else ~is_answer


class MaskAgnosticCollator(Collator):
    """A collator of the mask-agnostic objective, whose options it takes: `p_low`, `masks_end`, `masked_part`, ..."""

    def __init__(
        self, *, mask_token_id: int, eos_token_id: int, max_length: int = 1024, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(MaskAgnostic(**options), mask_token_id, eos_token_id, max_length, seed)


def _seed(seed: int, forward_backward_pass: int, id: int) -> int:
    # Odd multipliers mod 2^63 keep distinct triples apart in practice and need no hash library.
    return (seed * 0x9E3779B97F4A7C15 + forward_backward_pass * 0xC2B2AE3D27D4EB4F + id * 0x165667B19E3779F9) % 2**63
