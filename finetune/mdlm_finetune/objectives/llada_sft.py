# ruff: noqa: RUF009 - `flag` returns a dataclass field
"""LLaDA's own supervised fine-tuning, which pads answers with EOS and predicts this padding; with ablations."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_finetune.objectives import flag
from mdlm_finetune.objectives.sft import Padding, Sft, noised
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class LladaSft(Objective):
    """`sft` with EOS padding that is part of the answer: it is masked with probability t, and predicted.

    LLaDA pads the texts of a batch with EOS to one length, and treats EOS as any other token (GUIDELINES.md). Here each
    text has U{0, ..., `max_padding`} EOS tokens of padding, independent of its batch. As in LLaDA, the loss of an
    example is divided by the length of its answer with padding.

    `padding` changes these tokens: "predicted" is LLaDA's objective; "shown" leaves the EOS tokens unmasked; "masks"
    replaces them by mask tokens that are not predicted; "none" leaves them out. The masks in the answer are the same
    in all four cases.
    """

    padding: Padding = flag(
        "predicted", "EOS tokens after the answer: predicted, only shown, replaced by masks, or left out"
    )
    max_padding: int = flag(300, "most tokens of padding after an answer")

    def __post_init__(self) -> None:
        if self.max_padding < 1:
            raise OptionError(f"max_padding={self.max_padding} must be 1 or above")

    @property
    def label(self) -> str:
        return "SFT (LLaDA)" if self.padding == "predicted" else f"SFT (padding: {self.padding})"

    @property
    def in_words(self) -> str:
        what = {
            "predicted": "with EOS padding that is predicted (LLaDA's own fine-tuning)",
            "shown": "with EOS padding that is not predicted",
            "masks": "with appended masks that are not predicted",
            "none": "without padding",
        }[self.padding]
        return f"cross-entropy at masks drawn with probability t ~ U(0, 1), weighted by 1/t, {what}"

    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """One view."""
        return noised(text, maskable, noising, self.padding, self.max_padding)

    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        """The loss of `sft` over the answer and its predicted padding."""
        return Sft().loss(logits, batch)


register(name="llada_sft", objective=LladaSft)
