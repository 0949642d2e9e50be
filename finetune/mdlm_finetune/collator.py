"""Two views of each example: the same noised answer with different numbers of masks appended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

MaskedPart = Literal["answer", "prompt", "both"]


@dataclass(frozen=True)
class Example:
    """A prompt and its answer, in tokens; `id` is its row's number in the data, from 0."""

    id: int
    prompt_ids: list[int]
    answer_ids: list[int]


@dataclass(frozen=True)
class Views:
    """Both views of B examples, the first views in rows 0 .. B - 1 and the second in B .. 2 B - 1."""

    input_ids: Tensor  # [2 B, T]
    attention_mask: Tensor  # [2 B, T]
    masked: Tensor  # [2 B, T] bool, the positions that count, the same in both views
    targets: Tensor  # [N], the tokens under the masks of one view
    example: Tensor  # [N], whose they are: 0 .. B - 1
    mask_ratio: Tensor  # [B], p
    ids: tuple[int, ...]  # of the rows


@dataclass(frozen=True)
class MaskAgnosticCollator:
    """Examples -> views (section 6.1 of the mask sensitivity paper).

    p ~ U(`p_low`, `p_high`); each token of `masked_part` (the answer in the paper, else the prompt or both) is masked
    with probability p and at least one is. Two distinct numbers of masks, 0 to the maximum of the curriculum, are
    appended; it grows linearly from `masks_start` to `masks_end` over `curriculum_passes` forward-backward passes. The
    shorter view of an example ends in EOS tokens that are attended to, as in LLaDA's own fine-tuning; padding between
    examples is not attended to.

    All randomness of an example comes from (`seed`, pass, id), so that neither resuming nor sharing a batch among
    processes changes it.
    """

    mask_token_id: int
    eos_token_id: int
    max_length: int = 1024
    masked_part: MaskedPart = "answer"
    p_low: float = 0.2
    p_high: float = 0.8
    masks_start: int = 1
    masks_end: int = 600
    curriculum_passes: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.p_low <= self.p_high <= 1.0:
            raise ValueError(f"p_low={self.p_low}, p_high={self.p_high}: must be 0 < p_low <= p_high <= 1")
        if not 1 <= self.masks_start <= self.masks_end:
            raise ValueError(
                f"masks_start={self.masks_start}, masks_end={self.masks_end}: must be 1 <= masks_start <= masks_end"
            )

    def max_masks(self, forward_backward_pass: int) -> int:
        """The curriculum's maximum in this pass, counted from 0."""
        done = min(1.0, forward_backward_pass / self.curriculum_passes) if self.curriculum_passes > 0 else 1.0
        return self.masks_start + int(done * (self.masks_end - self.masks_start))

    def __call__(self, examples: Sequence[Example], forward_backward_pass: int) -> Views:
        """The views of one pass. Raises ValueError for an example without room for a single appended mask."""
        first: list[Tensor] = []
        second: list[Tensor] = []
        masked, targets, owners, ratios = [], [], [], []
        for index, example in enumerate(examples):
            text = torch.tensor(example.prompt_ids + example.answer_ids, dtype=torch.long)  # [n_q + n_a]
            candidates = self._candidates(example)
            room = self.max_length - len(text)
            if room < 1 or not bool(candidates.any()):
                raise ValueError(
                    f"example {example.id}: no {self.masked_part} to mask, or no room for a mask within "
                    f"{self.max_length} tokens"
                )
            generator = torch.Generator().manual_seed(_seed(self.seed, forward_backward_pass, example.id))
            ratio = self.p_low + (self.p_high - self.p_low) * float(torch.rand((), generator=generator))
            is_masked = candidates & (torch.rand(len(text), generator=generator) < ratio)
            if not bool(is_masked.any()):
                chosen = torch.randint(int(candidates.sum()), (), generator=generator)
                is_masked[candidates.nonzero()[int(chosen)]] = True
            most = min(room, self.max_masks(forward_backward_pass))
            one, two = torch.randperm(most + 1, generator=generator)[:2].tolist()
            noised = text.masked_fill(is_masked, self.mask_token_id)
            for views, n_masks in ((first, one), (second, two)):
                tail = torch.full((max(one, two),), self.eos_token_id)
                tail[:n_masks] = self.mask_token_id
                views.append(torch.cat([noised, tail]))
            masked.append(is_masked)
            targets.append(text[is_masked])
            owners.append(torch.full((int(is_masked.sum()),), index))
            ratios.append(ratio)
        rows = first + second
        lengths = torch.tensor([len(row) for row in rows])
        positions = torch.arange(int(lengths.max()))
        at = torch.zeros(len(rows), len(positions), dtype=torch.bool)
        for row, where in enumerate(masked * 2):
            at[row, : len(where)] = where
        return Views(
            input_ids=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.eos_token_id),
            attention_mask=(positions < lengths[:, None]).long(),
            masked=at,
            targets=torch.cat(targets),
            example=torch.cat(owners),
            mask_ratio=torch.tensor(ratios),
            ids=tuple(example.id for example in examples),
        )

    def _candidates(self, example: Example) -> Tensor:
        """Which tokens of prompt and answer may be masked, [n_q + n_a] bool."""
        is_answer = torch.arange(len(example.prompt_ids) + len(example.answer_ids)) >= len(example.prompt_ids)
        if self.masked_part == "both":
            return torch.ones_like(is_answer)
        return is_answer if self.masked_part == "answer" else ~is_answer


def _seed(seed: int, forward_backward_pass: int, id: int) -> int:
    # Odd multipliers mod 2^63 keep distinct triples apart in practice and need no hash library.
    return (seed * 0x9E3779B97F4A7C15 + forward_backward_pass * 0xC2B2AE3D27D4EB4F + id * 0x165667B19E3779F9) % 2**63
