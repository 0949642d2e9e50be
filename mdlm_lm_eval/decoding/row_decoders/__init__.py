"""Row decoders decode whole canvases by themselves: speculation, insertion and deletion, a model's own method.

A row decoder takes canvases and returns completions. Files of this folder register themselves, as samplers do.
`PassByPass` is the loop of decoders whose passes depend on the tokens that each row has written. Nothing here imports
torch before it decodes, so that commands can list the options without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.decoding.canvas import Completion, DecodingCall, RowCost
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.decoding.way import own_options
from mdlm_lm_eval.options import DecodingOptions, Options
from mdlm_lm_eval.registry import ROW_DECODERS

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.model.denoiser import Denoiser


@dataclass(frozen=True)
class RowDecoder(Options, ABC):
    """A way of decoding without the engine; its fields are its options."""

    @classmethod
    @abstractmethod
    def serves(cls, denoiser: "Denoiser", options: DecodingOptions) -> bool:
        """Whether it decodes for this model with these options."""

    @abstractmethod
    def decode(self, call: DecodingCall) -> Iterator[tuple[int, Completion]]:
        """Decodes canvases, and gives the number of each with its completion; see `completions_of`."""


def row_decoder_for(denoiser: "Denoiser", options: DecodingOptions) -> RowDecoder | None:
    """The row decoder that serves this model, with its options; None if the engine decodes."""
    kinds: dict[str, type[RowDecoder]] = ROW_DECODERS.all()
    for kind in kinds.values():
        if kind.serves(denoiser, options):
            return own_options(kind, options)
    return None


class PassByPass(ABC):
    """The rows of a batch with blocks of `length` tokens; `first` is the index of its first canvas.

    A pass runs a window of each row, with the remembered keys and values of earlier tokens. A batch ends with its last
    row.
    """

    def __init__(self, call: DecodingCall, first: int) -> None:
        import torch

        from mdlm_lm_eval.model.devices import to_device
        from mdlm_lm_eval.model.kv_cache import CanvasCache
        from mdlm_lm_eval.model.prefix_store import begin_rows

        self.denoiser, self.options, self.first = call.denoiser, call.options, first
        self.canvases = canvases = call.canvases[first : first + call.n_lanes]
        self.length = length = call.way.attention.block_length or 1
        self.banned_ids = to_device(torch.tensor(sorted(call.banned_ids)), call.denoiser.device)
        # Tokens of shared prefixes, after which windows of prompts begin.
        self.shared = [len(canvas.prefix or ()) for canvas in canvases]
        self.costs = [RowCost(shared=shared) for shared in self.shared]
        self.events: list[list[Event]] = [[] for _ in canvases]
        longest = max(len(canvas.token_ids) for canvas in canvases)
        self.width = (-(-longest // length) + 1) * length  # a block may reach beyond the canvas
        self.cache = CanvasCache(call.denoiser.model.config.num_hidden_layers, self.width + 1, len(canvases))
        begin_rows(self.cache, [canvas.prefix for canvas in canvases])
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Runs the prompts."""

    @abstractmethod
    def written(self, row: int) -> list[int] | None:
        """The final tokens that a row has written after its prompt; None while its block is decoded."""

    @abstractmethod
    def step(self, rows: list[int]) -> None:
        """Runs the next passes over these rows."""

    def note(self, row: int, first: int, events: Sequence[Event]) -> None:
        """With a trace, keeps the events of a row's last pass, on its canvas from column `first` on."""
        step, length = self.costs[row].forward_passes, len(self.canvases[row].token_ids)
        if self.options.trace:
            moved = [event._replace(step=step, position=first + event.position) for event in events]
            self.events[row] += [event for event in moved if event.position < length or event.old is None]

    def run(
        self,
        rows: Sequence[int],
        windows: Sequence[Sequence[int]],
        begins: Sequence[int],
        until: "Callable[[Tensor], Tensor]",
        *,
        is_step: bool = True,
        last_only: bool = False,
    ) -> "Tensor":
        """Logits [R, W, V] float32 of windows that begin at columns `begins` of `rows`; keys and values are remembered.

        `until` returns the last columns, [R, W] or [R, 1], that the columns of windows [R, W] see. With `last_only`,
        logits are [R, 1, V], of each window's last token, as those of whole prompts could fill a GPU. Raises
        NonFiniteLogitsError.
        """
        import torch

        from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError
        from mdlm_lm_eval.model.devices import to_device

        longest, pad, device = max(map(len, windows)), self.denoiser.pad_token_id, self.denoiser.device
        ids = torch.tensor([[*window, *[pad] * (longest - len(window))] for window in windows])
        lengths = torch.tensor([[len(window)] for window in windows])
        columns = torch.tensor(begins)[:, None] + torch.arange(longest)
        is_real = torch.arange(longest) < lengths
        columns = columns.where(is_real, self.width)  # the last column is no row's
        sees = torch.arange(self.width + 1) <= until(columns)[..., None]  # [R, W or 1, K]
        outputs: Tensor | None = None
        if last_only:
            outputs = to_device(lengths[:, 0] - 1 + torch.arange(len(rows)) * longest, device)
            is_real = is_real[:, :1]
        logits = self.denoiser.window_logits(
            to_device(ids, device),
            to_device(columns, device),
            to_device(sees, device),
            outputs,
            cache=self.cache,
            cache_rows=to_device(torch.tensor(rows), device),
            n_seen=self.width + 1,
        )
        logits = logits.float().view(len(rows), -1, self.denoiser.vocab_size)
        is_finite = logits.amax(-1).isfinite() & logits.amin(-1).isfinite()  # a tenth of the time of all V
        is_bad = (~is_finite & to_device(is_real, device)).any(1).tolist()
        if any(is_bad):
            raise NonFiniteLogitsError(self.first + rows[is_bad.index(True)])
        for row, window in zip(rows, windows, strict=True):
            self.costs[row].forward_passes += 1
            self.costs[row].steps += is_step
            self.costs[row].tokens += len(window)
        return logits.index_fill_(-1, self.banned_ids, -torch.inf)


@dataclass(frozen=True)
class BatchDecoder(RowDecoder):
    """Decodes batch after batch, each with a loop of its own."""

    loop: ClassVar[type[PassByPass]]

    def decode(self, call: DecodingCall) -> Iterator[tuple[int, Completion]]:
        """Decodes canvases; see `completions_of`. A batch ends with its last row."""
        for first in range(0, len(call.canvases), call.n_lanes):
            batch = self.loop(call, first)
            going = list(range(len(batch.canvases)))
            while going:
                for row in list(going):
                    written = batch.written(row)
                    if written is None:
                        continue
                    written = written[: batch.canvases[row].n_returned]
                    ends = [n for n, token in enumerate(written, start=1) if token in call.end_ids]
                    is_whole = len(written) == batch.canvases[row].n_returned
                    if ends or is_whole or call.is_enough(written):
                        answer = written[: ends[0]] if ends else written
                        cost, events = batch.costs[row], tuple(batch.events[row])
                        yield first + row, Completion(answer, cost, len(written), events)
                        going.remove(row)
                if going:
                    batch.step(going)
