"""Generation by the family's own method, row by row (DiffusionGemma: transformers' `generate`).

Slots in a text are filled from one denoising step over noise, which is drawn `noise_num` times.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, DecodingCall, RowCost
from mdlm_lm_eval.decoding.row_decoders import RowDecoder
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    from mdlm_lm_eval.model.denoiser import Denoiser


@dataclass(frozen=True)
class OwnMethod(RowDecoder):
    """Serves models whose family has a method of its own."""

    @classmethod
    def serves(cls, denoiser: "Denoiser", options: DecodingOptions) -> bool:
        """Whether the model's family has such a method."""
        return denoiser.generate is not None

    def decode(self, call: DecodingCall) -> Iterator[tuple[int, Completion]]:
        """Decodes one canvas after the other; `batch_size` is that of the draws of noise."""
        denoiser = call.denoiser
        assert denoiser.generate is not None
        for index, canvas in enumerate(call.canvases):
            if denoiser.read is not None and canvas.slots[0] < canvas.prompt_length:  # slots in the text
                completion = fill_by_reads(call, canvas, index)
            else:
                token_ids, n_passes, n_written = denoiser.generate(
                    denoiser.model,
                    list(canvas.token_ids[: canvas.prompt_length]),
                    call.options,
                    n_tokens=canvas.n_returned,
                    end_ids=sorted(call.end_ids),
                    pad_token_id=denoiser.pad_token_id,
                    seed=canvas.seed,
                )
                denoiser.forward_passes += n_passes
                completion = Completion(token_ids, RowCost(forward_passes=n_passes, steps=n_passes), n_written)
            call.advance(completion.cost.steps)
            yield index, completion


def fill_by_reads(call: DecodingCall, canvas: Canvas, index: int) -> Completion:
    """Fills the returned slots with the tokens of the highest mean log-probability.

    Raises OptionError if no text stands before the first slot, and NonFiniteLogitsError, which names the `index`.
    """
    import torch

    from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError

    if canvas.slots[0] == 0:
        raise OptionError("infill=true needs a text before the first slot, which the model's encoder reads")
    noise_num = call.options.noise_num
    total = torch.zeros((), device=call.denoiser.device)
    for log_probs in call.denoiser.noisy_reads(
        canvas.token_ids,
        canvas.slots,
        n_read=canvas.n_returned,
        noise_num=noise_num,
        seed=canvas.seed,
        batch_size=call.n_lanes,
    ):
        total = total + log_probs.sum(0)  # [n, V]
    if not total.isfinite().all():
        raise NonFiniteLogitsError(index)
    cost = RowCost(forward_passes=noise_num, steps=noise_num)
    return Completion(total.argmax(-1).tolist(), cost, canvas.n_returned)


register(name="own_method", row_decoder=OwnMethod)
