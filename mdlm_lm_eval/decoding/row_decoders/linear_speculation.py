"""Left-to-right decoding from drafted blocks (`mode=linear_spec` of Nemotron-Labs-Diffusion).

The tokens are those of `mode=ar`. A block is drafted by denoising it after the remembered tokens, and then read
causally: its tokens are kept up to the first one that the causal model would not write, which is replaced by that
model's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.decoding.row_decoders import BatchDecoder, PassByPass
from mdlm_lm_eval.decoding.trace import changes
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.model.denoiser import Denoiser


class Speculation(PassByPass):
    """Rows that draft blocks of `length` tokens."""

    def begin(self) -> None:
        """Runs the prompts, and writes each row's first token."""
        self.starts = [canvas.prompt_length for canvas in self.canvases]
        prompts = [canvas.token_ids[len(canvas.prefix or ()) : canvas.prompt_length] for canvas in self.canvases]
        logits = self.run(
            range(len(prompts)), prompts, self.shared, lambda columns: columns, is_step=False, last_only=True
        )
        self.answers = logits.argmax(-1).tolist()
        for row, sure in enumerate(self._confidence(logits)):
            self.note(row, self.starts[row], changes([self.denoiser.mask_token_id], self.answers[row], sure))

    def written(self, row: int) -> list[int]:
        """The tokens that were accepted."""
        return self.answers[row]

    def step(self, rows: list[int]) -> None:
        """Accepts drafts up to the first disagreement, and then appends the causal token."""
        blocks = self._draft(rows).tolist()
        logits = self.run(rows, blocks, [self.starts[row] for row in rows], lambda columns: columns)
        mask, sure = self.denoiser.mask_token_id, self._confidence(logits)
        for number, (row, block, written) in enumerate(zip(rows, blocks, logits.argmax(-1).tolist(), strict=True)):
            n = next((n for n in range(len(block) - 1) if written[n] != block[n + 1]), len(block) - 1)
            self.answers[row] += written[: n + 1]
            after = [*written[: n + 1], *[mask] * (len(block) - n - 1)]
            self.note(row, self.starts[row] + 1, changes([*block[1:], mask], after, sure[number]))
            self.starts[row] += n + 1

    def _confidence(self, logits: "Tensor") -> list[list[float]]:
        """Probabilities [R, W] of the likeliest tokens, for a trace; zeros without one."""
        if not self.options.trace:
            return [[0.0] * logits.shape[1]] * len(logits)
        return list(logits.softmax(-1).amax(-1).tolist())

    def _draft(self, rows: Sequence[int]) -> "Tensor":
        """Drafted blocks [R, B], which begin with the last token that their rows have written."""
        import torch

        from mdlm_lm_eval.decoding.selection import sure_enough

        mask, starts = self.denoiser.mask_token_id, [self.starts[row] for row in rows]
        blocks = torch.full((len(rows), self.length), mask)
        blocks[:, 0] = torch.tensor([self.answers[row][-1] for row in rows])
        while bool((blocks == mask).any()):
            going = (blocks == mask).any(1).nonzero().squeeze(1).tolist()
            logits = self.run(
                [rows[n] for n in going],
                blocks[going].tolist(),
                [starts[n] for n in going],
                lambda columns: columns[:, -1:],
            )
            confidence, tokens = (values.cpu() for values in logits.softmax(-1).max(-1))
            masked = blocks[going] == mask
            chosen = masked
            if (threshold := self.options.confidence_threshold) is not None:
                surest = confidence.where(masked, -float("inf")).argmax(1, keepdim=True)
                sure = sure_enough(confidence, threshold, strict=False)
                chosen = sure.scatter(1, surest, True) & masked
            before = blocks[going].tolist()
            blocks[going] = tokens.where(chosen, blocks[going])
            for n, then, now, sure_of in zip(going, before, blocks[going].tolist(), confidence.tolist(), strict=True):
                self.note(rows[n], starts[n], changes(then, now, sure_of))
        return blocks


@dataclass(frozen=True)
class LinearSpeculation(BatchDecoder):
    """Serves `mode=linear_spec`."""

    loop: ClassVar[type[PassByPass]] = Speculation

    @classmethod
    def serves(cls, denoiser: "Denoiser", options: DecodingOptions) -> bool:
        """Whether `mode` is linear_spec."""
        return options.mode == "linear_spec"


register(name="linear_speculation", row_decoder=LinearSpeculation)
