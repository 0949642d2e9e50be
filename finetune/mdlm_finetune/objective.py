"""What a training objective is: how an example is noised, and the loss of the predictions at its masks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mdlm_finetune.objectives import flag


@dataclass(frozen=True)
class Noising:
    """What an example is noised with. All randomness comes from `generator`, which is of this example and pass."""

    generator: torch.Generator
    mask_token_id: int
    eos_token_id: int
    room: int  # tokens that may follow the text
    forward_backward_pass: int  # from 0


@dataclass(frozen=True)
class Noised:
    """One example's canvases: `views` begin with the noised text, and differ only in what follows it."""

    views: tuple[Tensor, ...]  # [L + tokens that follow] each, as many for every example
    is_masked: Tensor  # [L + n_padding] bool, what of text and padding is masked, in all views
    mask_ratio: float  # p, the probability with which it was
    n_padding: int = 0  # EOS tokens after the text that may be masked and are predicted


@dataclass(frozen=True)
class NoisedBatch:
    """V views of B examples: first views in rows 0 .. B - 1, second in B .. 2 B - 1, and so on."""

    input_ids: Tensor  # [V B, T]
    attention_mask: Tensor  # [V B, T]
    prompt_lengths: Tensor  # [V B], from whose end some block diffusion models count blocks
    positions: Tensor  # [V N], the masked text as indices into V B T, view after view
    targets: Tensor  # [N], the tokens under the masks of one view
    example: Tensor  # [N], whose they are: 0 .. B - 1
    mask_ratio: Tensor  # [B], p
    n_maskable: Tensor  # [B], tokens that could have been masked
    ids: tuple[int, ...]  # of the rows of the data

    def to(self, device: torch.device) -> "NoisedBatch":
        """The batch with its tensors there."""
        tensors: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class Objective(ABC):
    """A training objective. Its fields are flags of `mdlm-finetune`; a recipe names it by `objective`."""

    masked_part: Literal["answer", "prompt", "both"] = flag("answer", "what is masked and predicted")

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name for tables."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """The loss in half a sentence, for cards."""

    def complaint(self, n_passes: int) -> str | None:
        """What of the objective does not fit a run of so many forward-backward passes, as a sentence; None if all."""
        return None

    @abstractmethod
    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """Noises a prompt with its answer. `text` is [L]; `maskable` [L] is true where a token may be masked."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        """Scalars: "loss", which is trained on, and whatever else is to be logged. `logits` is [V N, vocabulary]."""
