"""Two views of each example: the same noised answer with different numbers of masks appended."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """A prompt and its answer, in tokens; `id` names the row of the data."""

    id: int
    prompt_ids: list[int]
    answer_ids: list[int]


@dataclass(frozen=True)
class Views:
    """Both views of B examples, the first views in rows 0 .. B - 1 and the second in B .. 2 B - 1."""

    input_ids: Tensor  # [2 B, T]
    attention_mask: Tensor  # [2 B, T]
    masked_answers: Tensor  # [2 B, T] bool, the same in both views
    targets: Tensor  # [N], the tokens under the masks of one view
    example: Tensor  # [N], whose they are: 0 .. B - 1
    mask_ratio: Tensor  # [B], p
    ids: tuple[int, ...]  # of the rows


@dataclass(frozen=True)
class MaskAgnosticCollator:
    """Examples -> views (section 6.1 of the mask sensitivity paper).

    p ~ U(`p_low`, `p_high`); each answer token is masked with probability p and at least one is. Two distinct numbers
    of masks, 0 to the maximum of the curriculum, are appended; it grows linearly from `masks_start` to `masks_end` over
    `curriculum_passes` forward-backward passes. The shorter view of an example ends in EOS tokens that are attended to,
    as in LLaDA's own fine-tuning; padding between examples is not attended to.

    All randomness of an example comes from (`seed`, pass, id), so that neither resuming nor sharing a batch among
    processes changes it.
    """

    mask_token_id: int
    eos_token_id: int
    max_length: int = 1024
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
            prompt, answer = torch.tensor(example.prompt_ids, dtype=torch.long), torch.tensor(example.answer_ids)
            room = self.max_length - len(prompt) - len(answer)
            if room < 1 or len(answer) == 0:
                raise ValueError(
                    f"example {example.id}: no answer, or no room for a mask within {self.max_length} tokens"
                )
            generator = torch.Generator().manual_seed(_seed(self.seed, forward_backward_pass, example.id))
            ratio = self.p_low + (self.p_high - self.p_low) * float(torch.rand((), generator=generator))
            is_masked = torch.rand(len(answer), generator=generator) < ratio  # [n_a]
            if not bool(is_masked.any()):
                is_masked[int(torch.randint(len(answer), (), generator=generator))] = True
            most = min(room, self.max_masks(forward_backward_pass))
            one, two = torch.randperm(most + 1, generator=generator)[:2].tolist()
            noised = torch.cat([prompt, answer.masked_fill(is_masked, self.mask_token_id)])
            for views, n_masks in ((first, one), (second, two)):
                tail = torch.full((max(one, two),), self.eos_token_id)
                tail[:n_masks] = self.mask_token_id
                views.append(torch.cat([noised, tail]))
            masked.append(torch.cat([torch.zeros(len(prompt), dtype=torch.bool), is_masked]))
            targets.append(answer[is_masked])
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
            masked_answers=at,
            targets=torch.cat(targets),
            example=torch.cat(owners),
            mask_ratio=torch.tensor(ratios),
            ids=tuple(example.id for example in examples),
        )


def _seed(seed: int, forward_backward_pass: int, id: int) -> int:
    # Odd multipliers mod 2^63 keep distinct triples apart in practice and need no hash library.
    return (seed * 0x9E3779B97F4A7C15 + forward_backward_pass * 0xC2B2AE3D27D4EB4F + id * 0x165667B19E3779F9) % 2**63
