"""The interface of training objectives: noising an example, and the loss of predictions at its masks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Noising:
    """Inputs for noising an example. All randomness comes from `generator`, which belongs to this example and pass."""

    generator: torch.Generator
    mask_token_id: int
    eos_token_id: int
    room: int  # tokens that may follow the text
    forward_backward_pass: int  # from 0


@dataclass(frozen=True)
class Noised:
    """Canvases of one example: `views` begin with the same noised text, and differ in the tokens after it."""

    views: tuple[Tensor, ...]  # [L + tokens after the text] each; every example has the same number of views
    is_masked: Tensor  # [L + n_padding] bool, tokens of text and padding that are masked in all views
    mask_ratio: float  # p, the probability of masking a token
    n_padding: int = 0  # EOS tokens after the text that may be masked and are predicted


@dataclass(frozen=True)
class NoisedBatch:
    """V views of B examples: first views in rows 0 .. B - 1, second in B .. 2 B - 1, and so on."""

    input_ids: Tensor  # [V B, T]
    attention_mask: Tensor  # [V B, T]
    prompt_lengths: Tensor  # [V B]; some block diffusion models count blocks from the end of the prompt
    positions: Tensor  # [V N], indices of the masked tokens in V B T, view after view
    targets: Tensor  # [N], the tokens under the masks of one view
    example: Tensor  # [N], the examples of these tokens: 0 .. B - 1
    mask_ratio: Tensor  # [B], p
    n_maskable: Tensor  # [B], tokens that could have been masked
    ids: tuple[int, ...]  # row numbers of the examples in the data

    def to(self, device: torch.device) -> "NoisedBatch":
        """The batch with its tensors on `device`."""
        tensors: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class Objective(ABC):
    """A training objective. Its fields are flags of `mdlm-finetune`; a recipe names it by `objective`."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name for tables."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """A phrase that describes the loss, for cards."""

    def complaint(self, n_passes: int) -> str | None:
        """A warning if the objective does not fit a run of `n_passes` forward-backward passes; None if it does."""
        return None

    @abstractmethod
    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """Noises a prompt with its answer. `text`: token ids [L]. `maskable`: [L] bool, tokens that may be masked."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        """Returns scalars: "loss", which is minimised, and others to log. `logits` is [V N, vocabulary]."""
