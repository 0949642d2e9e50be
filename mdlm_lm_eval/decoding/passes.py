"""One pass over a window: the model is asked, tokens are proposed, and the sampler chooses.

The model runs and tokens are proposed on the device. One packed copy brings the proposals to the host, and is all that
the host waits for. There the sampler chooses. No stage depends on which sampler is used.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked, exclude, slices_of, uniform_numbers
from mdlm_lm_eval.decoding.rows import Numbers
from mdlm_lm_eval.decoding.sampler import Choice, Step, View, WholeAnswer
from mdlm_lm_eval.decoding.windows import Asked, Window, as_tensor
from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError
from mdlm_lm_eval.model.devices import positions_of, to_device
from mdlm_lm_eval.registry import UNMASKING


class Reader:
    """Sees the logits of each pass before tokens are proposed, and then the choice; it needs only some methods.

    fresh: tensors [1, ...] that it keeps in `Lanes.state`, as they are before a row's first pass.
    """

    fresh: Mapping[str, Tensor] = MappingProxyType({})

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Reads, or changes, the logits [N, V]. What it returns is sent to the host with the proposals, by name."""
        return {}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """Fields of the sampler's `View`, from the numbers that were sent."""
        return {}

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Learns what the sampler chose."""


class Outcome(NamedTuple):
    """A pass on the host: the tokens before and after it [P, C], and their probabilities, 0 if not proposed by it."""

    before: Numbers
    after: Numbers
    confidence: Numbers


class Passes:
    """Runs passes, with `readers` that see the logits of each in this order, and what these keep of a `fresh` row."""

    def __init__(self, batch: Batch, readers: Sequence[Reader]) -> None:
        self.batch, self.readers = batch, readers
        self.fresh = {name: each for reader in readers for name, each in reader.fresh.items()}
        self.hindsight = next((reader for reader in readers if isinstance(reader, Hindsight)), None)
        options, self.needs = batch.options, batch.way.needs
        rule, is_drawn = UNMASKING.get(options.unmasking), options.temperature > 0.0
        self.reads_places = rule.reads_places or rule.is_random or is_drawn
        self.views_confidence = self.needs.confidence or options.is_parallel
        self.views_entropy = self.needs.entropy or options.entropy_bound is not None
        self.proposer = Proposer(
            options,
            batch.call.banned_ids,
            batch.end_ids,
            batch.call.token_frequencies,
            # A rule that reads places may compute no NaN from logits that are not finite; confidences do.
            needs_confidence=self.views_confidence or rule.reads_places or is_drawn or options.trace,
            needs_entropy=self.views_entropy,
            fused=bool(batch.denoiser.fused),
        )
        self.ends = torch.tensor(sorted(batch.end_ids), dtype=torch.long)

    def run(self, window: Window) -> Outcome | None:
        """Runs a pass; None if it has nothing to choose. Raises NonFiniteLogitsError."""
        asked = Asked(self.batch, window)
        logits = _logits(self.batch, asked) if self.hindsight is None else self.hindsight.logits(asked)
        if not len(asked.indices) and not window.own.any():
            return None
        sent: dict[str, Tensor] = {}
        for reader in self.readers:
            sent |= reader.read(logits, asked)
        proposals = self.proposer.propose(logits, self._where(asked))
        found = _on_host({**proposals._asdict(), **sent})
        confidence = asked.onto_window(found["confidence"])
        for n in np.flatnonzero((np.isnan(confidence) & asked.masks).any(1)).tolist():
            if (row := window.rows[n]) is not None:
                raise NonFiniteLogitsError(row.index)
        view = self._view(asked, found)
        choice = self.batch.way.sampler.choose(view, self.batch.options)
        after = choice.tokens_after(view, self.batch.mask_token_id).numpy()
        for reader in self.readers:
            reader.after(found, asked, choice)
        if choice.tokens is not None:  # the model proposed only some of them
            confidence = confidence * (after == view.proposed.numpy())
        return Outcome(asked.tokens, after, confidence)

    def _where(self, asked: Asked) -> WhereMasked:
        """The facts of places that rules and draws read."""
        if not self.reads_places:
            return WhereMasked()
        window, device, columns = asked.window, self.batch.device, asked.window.columns.ravel()[asked.indices]
        if self.batch.predicts_next:  # the token after a block is drawn with the number of the slot before it
            columns = np.where(asked.offset == 0, window.limits[asked.pass_row, 0] - 1, columns)
        slots, order = (window.of.columns[name][asked.lane, columns] for name in ("slot", "order"))
        uniform: Tensor | None = None
        if self.batch.options.temperature > 0.0:
            of_rows = np.array([(0, 0) if row is None else (row.canvas.seed, row.cost.steps) for row in window.rows])
            seeds, steps = of_rows[asked.pass_row].T
            numbers = uniform_numbers(*map(torch.from_numpy, (seeds, steps, slots)))
            uniform = to_device(numbers, device)
        return WhereMasked(
            slot_numbers=as_tensor(slots, device),
            block_offsets=as_tensor(slots - window.before[asked.pass_row, 0], device),
            random_numbers=as_tensor(order, device),
            uniform=uniform,
        )

    def _view(self, asked: Asked, found: Mapping[str, Numbers]) -> View:
        """The pass as the sampler sees it."""
        window, needs = asked.window, self.needs
        fill, back = None, torch.zeros(len(window.rows), dtype=torch.long)
        if not self.batch.one_a_pass:
            fill, back = torch.tensor([Step(1) if row is None else row.step for row in window.rows]).unbind(1)
        proposed = torch.from_numpy(asked.onto_window(found["tokens"]))
        fields: dict[str, Any] = {}
        for name, is_asked in (("confidence", self.views_confidence), ("entropy", self.views_entropy)):
            if is_asked:
                fields[name] = torch.from_numpy(asked.onto_window(found[name]))
        if needs.filled:
            fields["filled"] = torch.from_numpy(asked.filled)
        if needs.step:
            fields["step"] = torch.tensor([0 if row is None else row.step_number for row in window.rows])
        if needs.answer:
            slots, tokens = torch.from_numpy(window.slots), torch.from_numpy(asked.tokens)
            fields["answer"] = WholeAnswer(
                slots=slots,
                blocks=torch.from_numpy(window.blocks),
                masks=(slots >= 0) & (tokens == self.batch.mask_token_id),
                ends=(slots >= 0) & torch.isin(tokens, self.ends),
                would_end=torch.isin(proposed, self.ends),
            )
        for reader in self.readers:
            fields |= reader.fields(found, asked)
        return View(
            columns=torch.from_numpy(window.columns),
            tokens=torch.from_numpy(asked.tokens),
            masks=torch.from_numpy(asked.masks),
            proposed=proposed,
            priority=torch.from_numpy(asked.onto_window(found["priority"])),
            fill=fill,
            back=back,
            strict=self.batch.is_strict,
            **fields,
        )


def _logits(batch: Batch, asked: Asked) -> Tensor:
    """The model's logits [N, V] at the places of a pass."""
    window, n = asked.window, len(asked.indices)
    of_run = slice(int(batch.predicts_next), None)  # the columns that the model runs
    ids, outputs = as_tensor(asked.tokens[:, of_run], batch.device), window.outputs.ravel()[asked.indices]
    if n:
        outputs = np.pad(outputs, (0, positions_of(n, batch.device) - n), mode="edge")
    prompt: Tensor | None = None
    if batch.is_guided:
        in_prompt = window.of.columns["in_prompt"][window.lanes, window.columns[:, of_run]]
        prompt = as_tensor(in_prompt, batch.device)
    if batch.is_whole:
        logits = batch.denoiser.logits(
            ids,
            None if window.sees is None else window.sees[:, 0],
            as_tensor(outputs, batch.device),
            cfg_scale=batch.options.cfg_scale,
            prompt_mask=prompt,
            is_aligned=True,
        )
    else:
        logits = batch.denoiser.window_logits(
            ids,
            window.run_columns,
            window.sees,
            as_tensor(outputs, batch.device),
            cache=window.of.cache,
            cache_rows=window.cache_rows,
            n_seen=window.n_seen,
            cfg_scale=batch.options.cfg_scale,
            prompt_mask=prompt,
        )
    return logits[:n]


class Hindsight(Reader):
    """`View.hindsight`: how likely a filled token would be if its own position were masked.

    The model is asked with a shadow of the block after each canvas. A mask in the shadow has the position of its
    column. It sees all other columns of the canvas, and the shadow; the canvas sees the canvas alone, so that one pass
    gives both (arXiv 2507.18578).
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def logits(self, asked: Asked) -> Tensor:
        """Logits [N, V] at the places of the canvases; those of the shadow are kept as probabilities."""
        window, batch, denoiser = asked.window, self.batch, self.batch.denoiser
        self._shadow = self._shadow_of(window)
        (n_rows, width), length = asked.tokens.shape, batch.most_slots
        of_canvas = asked.indices + asked.pass_row * length
        of_shadow = np.arange(n_rows)[:, None] * (width + length) + width + np.arange(length)
        columns, tokens, is_there = (as_tensor(each, batch.device) for each in self._shadow)
        lengths = np.array([0 if row is None else len(row.canvas.token_ids) for row in window.rows])[:, None]
        real, there = as_tensor(window.columns < lengths, batch.device)[:, None], is_there[:, None]
        itself = window.run_columns[:, None] == columns[..., None]  # [P, B, W]
        canvas_sees = torch.cat([real, torch.zeros_like(there)], 2).expand(-1, width, -1)  # [P, W, W + B]
        shadow_sees = torch.cat([real & ~itself, there.expand(-1, length, -1)], 2)  # [P, B, W + B]
        logits = denoiser.window_logits(
            torch.cat([as_tensor(asked.tokens, batch.device), torch.full_like(columns, denoiser.mask_token_id)], 1),
            torch.cat([window.run_columns, columns], 1),
            torch.cat([canvas_sees, shadow_sees], 1),
            as_tensor(np.concatenate([of_canvas, of_shadow.ravel()]), batch.device),
        )
        of_places, of_shadows = logits[: len(asked.indices)], logits[len(asked.indices) :]
        exclude(of_shadows, batch.call.banned_ids)
        ids = tokens.flatten()[:, None]
        parts = slices_of(len(of_shadows), of_shadows)
        of_tokens = [of_shadows[part].float().softmax(-1).gather(1, ids[part]) for part in parts]
        self._probabilities = torch.cat(of_tokens).squeeze(1)
        return of_places

    def _shadow_of(self, window: Window) -> tuple[Numbers, Numbers, Numbers]:
        """Columns and tokens [P, B] of the slots of each row's block, which has at most B, and which are there."""
        columns, slots = window.of.columns, window.before + np.arange(self.batch.most_slots)
        places = (columns["slot"][window.lanes[:, 0]][:, None] == slots[..., None]).argmax(2)
        is_there = columns["block"][window.lanes, places] == window.numbers
        places = np.where(is_there, places, self.batch.n_columns - 1)
        return places, columns["token"][window.lanes, places], is_there

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """The shadow's probabilities."""
        return {"hindsight": self._probabilities}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """The probabilities of tokens that are no masks, and 0 elsewhere."""
        columns, tokens, is_there = self._shadow
        probabilities = found["hindsight"].reshape(columns.shape)
        on_canvas = np.zeros((len(columns), self.batch.n_columns), probabilities.dtype)
        wanted = (tokens != self.batch.mask_token_id) & is_there
        np.put_along_axis(on_canvas, columns, probabilities * wanted, 1)
        return {"hindsight": torch.from_numpy(np.take_along_axis(on_canvas, asked.window.columns, 1))}


def _on_host(values: Mapping[str, Tensor]) -> dict[str, Numbers]:
    """Tensors as arrays of numbers on the host, by one copy; exact for integers below 2^53."""
    if all(value.device.type == "cpu" for value in values.values()):
        return {name: value.numpy() for name, value in values.items()}
    sent = torch.cat([value.flatten().double() for value in values.values()]).cpu()
    parts = sent.split([value.numel() for value in values.values()])
    pairs = zip(values.items(), parts, strict=True)
    return {name: part.view(value.shape).to(value.dtype).numpy() for (name, value), part in pairs}
