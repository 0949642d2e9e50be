"""One pass over a window: the model is asked, tokens are proposed, and the sampler chooses.

The model runs and tokens are proposed on the device. One packed copy brings the proposals to the host, and is all that
the host waits for. There the sampler chooses. No stage depends on which sampler is used.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked, uniform_numbers
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.rows import Row
from mdlm_lm_eval.decoding.sampler import Step, View, WholeAnswer
from mdlm_lm_eval.decoding.windows import Window, as_tensor
from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError
from mdlm_lm_eval.model.devices import positions_of, to_device
from mdlm_lm_eval.registry import UNMASKING


class Outcome(NamedTuple):
    """A pass on the host: the tokens before and after it [P, C], and their probabilities, 0 if not proposed by it."""

    before: Numbers
    after: Numbers
    confidence: Numbers


class PlaceLogits:
    """Asks the model for logits at the places of a pass."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def of(self, asked: Asked) -> Tensor:
        """Logits [N, V]."""
        batch, window, n = self.batch, asked.window, len(asked.indices)
        of_run = slice(int(batch.structure.predicts_next), None)  # the columns that the model runs
        ids = as_tensor(asked.tokens[:, of_run], batch.device)
        outputs = window.outputs.ravel()[asked.indices]
        if n:
            outputs = np.pad(outputs, (0, positions_of(n, batch.device) - n), mode="edge")
        prompt: Tensor | None = None
        if batch.is_guided:
            prompt = as_tensor(window.of.prompt[window.lanes, window.columns[:, of_run]], batch.device)
        cfg_scale = batch.options.cfg_scale
        if batch.structure.is_whole:
            logits = batch.denoiser.logits(
                ids,
                None if window.sees is None else window.sees[:, 0],
                as_tensor(outputs, batch.device),
                cfg_scale=cfg_scale,
                prompt_mask=prompt,
                is_aligned=True,
            )
            return logits[:n]
        logits = batch.denoiser.window_logits(
            ids,
            window.run_columns,
            window.sees,
            as_tensor(outputs, batch.device),
            cache=window.of.cache,
            cache_rows=window.cache_rows,
            n_seen=window.n_seen,
            cfg_scale=cfg_scale,
            prompt_mask=prompt,
        )
        return logits[:n]


class Passes:
    """Runs passes. `fixed` is a token that no sampler may change once it is written, if there is one."""

    def __init__(
        self,
        batch: Batch,
        logits: PlaceLogits,
        readers: Sequence[Reader],
        fixed: int | None,
    ) -> None:
        self.batch, self.logits, self.readers, self.fixed = batch, logits, readers, fixed
        options, self.needs = batch.options, batch.structure.needs
        rule, is_drawn = UNMASKING.get(options.unmasking), batch.options.temperature > 0.0
        self.reads_places = rule.reads_places or rule.is_random or is_drawn
        self.views_confidence = self.needs.confidence or options.is_parallel
        self.views_entropy = self.needs.entropy or options.entropy_bound is not None
        # A rule that reads places may compute no NaN from logits that are not finite; confidences do.
        needs_confidence = self.views_confidence or rule.reads_places or is_drawn or options.trace
        self.proposer = Proposer(
            options,
            batch.call.banned_ids,
            batch.end_ids,
            batch.call.token_frequencies,
            needs_confidence=needs_confidence,
            needs_entropy=self.views_entropy,
            fused=bool(batch.denoiser.fused),
        )
        self.ends = torch.tensor(sorted(batch.end_ids), dtype=torch.long)

    def run(self, window: Window) -> Outcome | None:
        """Runs a pass; None if it has nothing to choose. Raises NonFiniteLogitsError."""
        asked = self._asked(window)
        logits = self.logits.of(asked)
        if not len(asked.indices) and not window.own.any():
            return None
        sent: dict[str, Tensor] = {}
        for reader in self.readers:
            sent |= reader.read(logits, asked)
        proposals = self.proposer.propose(logits, self._where(asked))
        found = _on_host({**proposals._asdict(), **sent})
        confidence = asked.onto_window(found["confidence"])
        self._check(asked, confidence)
        view = self._view(asked, found)
        choice = self.batch.structure.sampler.choose(view, self.batch.options)
        after = choice.tokens_after(view, self.batch.mask_token_id).numpy()
        for reader in self.readers:
            reader.after(found, asked, choice)
        if choice.tokens is not None:  # the model proposed only some of them
            confidence = confidence * (after == view.proposed.numpy())
        return Outcome(asked.tokens, after, confidence)

    def _asked(self, window: Window) -> Asked:
        """The places at which the model is asked."""
        needs, tokens = self.needs, window.of.tokens[window.lanes, window.columns]
        is_mask = tokens == self.batch.mask_token_id
        masks, filled = self._fillable(window, window.own & is_mask), window.own & ~is_mask
        wanted = masks | filled if needs.proposals_for_filled else masks.copy()
        if window.is_next.any():
            filled[:, 0] = False
            wanted[:, 0] |= window.is_next
        if needs.history:  # the next block's first pass is compared with this one
            wanted |= (window.blocks == window.numbers + 1) & (window.numbers >= 0)
        if self.fixed is not None:
            filled &= tokens != self.fixed
        indices = np.flatnonzero(wanted)
        pass_row, offset = np.divmod(indices, tokens.shape[1])
        lane, slot = window.lanes[pass_row, 0], window.slots.ravel()[indices]
        return Asked(window, tokens, masks, filled, indices, pass_row, offset, lane, slot)

    def _fillable(self, window: Window, masks: Numbers) -> Numbers:
        """Masks [P, C] that the pass may fill: with small blocks, those of the first one that holds masks."""
        if (small := self.batch.options.small_block_length) is not None:
            part = np.where(masks, (window.columns - window.starts) // small, self.batch.n_columns)
            return masks & (part == part.min(1, keepdims=True))
        if window.is_wide and self.batch.structure.shift:
            return masks & (masks.cumsum(1) == 1)  # no later window holds the logits of the first mask
        return masks

    def _where(self, asked: Asked) -> WhereMasked:
        """The facts of places that rules and draws read."""
        if not self.reads_places:
            return WhereMasked()
        window, device, columns = asked.window, self.batch.device, asked.window.columns.ravel()[asked.indices]
        if self.batch.structure.predicts_next:  # the token after a block is drawn with the number of the slot before it
            stops = np.array([1 if row is None else row.extent.limit for row in window.rows])
            columns = np.where(asked.offset == 0, stops[asked.pass_row] - 1, columns)
        slots = window.of.slots[asked.lane, columns]
        uniform: Tensor | None = None
        if self.batch.options.temperature > 0.0:
            seeds = np.array([0 if row is None else row.canvas.seed for row in window.rows])[asked.pass_row]
            steps = np.array([0 if row is None else row.cost.steps for row in window.rows])[asked.pass_row]
            numbers = uniform_numbers(torch.from_numpy(seeds), torch.from_numpy(steps), torch.from_numpy(slots))
            uniform = to_device(numbers, device)
        return WhereMasked(
            slot_numbers=as_tensor(slots, device),
            block_offsets=as_tensor(slots - window.before[asked.pass_row, 0], device),
            random_numbers=as_tensor(window.of.order[asked.lane, columns], device),
            uniform=uniform,
        )

    def _check(self, asked: Asked, confidence: Numbers) -> None:
        """Raises NonFiniteLogitsError for the first row whose masks have a `confidence` [P, C] that is NaN."""
        is_bad: Numbers = np.isnan(confidence) & asked.masks
        for n in np.flatnonzero(is_bad.any(1)).tolist():
            if (row := asked.window.rows[n]) is not None:
                raise NonFiniteLogitsError(row.index)

    def _view(self, asked: Asked, found: Mapping[str, Numbers]) -> View:
        """The pass as the sampler sees it."""
        window = asked.window
        proposed = torch.from_numpy(asked.onto_window(found["tokens"]))
        fields = self._steps(window.rows)
        for name, is_asked in (("confidence", self.views_confidence), ("entropy", self.views_entropy)):
            if is_asked:
                fields[name] = torch.from_numpy(asked.onto_window(found[name]))
        if self.needs.filled:
            fields["filled"] = torch.from_numpy(asked.filled)
        if self.needs.answer:
            fields["answer"] = self._answer(asked, proposed)
        for reader in self.readers:
            fields |= reader.fields(found, asked)
        return View(
            columns=torch.from_numpy(window.columns),
            tokens=torch.from_numpy(asked.tokens),
            masks=torch.from_numpy(asked.masks),
            proposed=proposed,
            priority=torch.from_numpy(asked.onto_window(found["priority"])),
            strict=self.batch.structure.is_strict,
            **fields,
        )

    def _steps(self, rows: Sequence[Row | None]) -> dict[str, Any]:
        """The planned steps in a view."""
        fields: dict[str, Any] = {"fill": None}
        if self.batch.one_a_pass:
            fields["back"] = torch.zeros(len(rows), dtype=torch.long)
        else:
            steps = [Step(1) if row is None else row.step for row in rows]
            fields["fill"] = torch.tensor([step.fill for step in steps])
            fields["back"] = torch.tensor([step.back for step in steps])
        if self.needs.step:
            fields["step"] = torch.tensor([0 if row is None else row.step_number for row in rows])
        return fields

    def _answer(self, asked: Asked, proposed: Tensor) -> WholeAnswer:
        """`View.answer`, from all places of the window."""
        slots, tokens = torch.from_numpy(asked.window.slots), torch.from_numpy(asked.tokens)
        is_slot = slots >= 0
        return WholeAnswer(
            slots=slots,
            blocks=torch.from_numpy(asked.window.blocks),
            masks=is_slot & (tokens == self.batch.mask_token_id),
            ends=is_slot & torch.isin(tokens, self.ends),
            would_end=torch.isin(proposed, self.ends),
        )


def _on_host(values: Mapping[str, Tensor]) -> dict[str, Numbers]:
    """Tensors as arrays of numbers on the host, by one copy; exact for integers below 2^53."""
    if all(value.device.type == "cpu" for value in values.values()):
        return {name: value.numpy() for name, value in values.items()}
    sent = torch.cat([value.flatten().double() for value in values.values()]).cpu()
    parts = sent.split([value.numel() for value in values.values()])
    pairs = zip(values.items(), parts, strict=True)
    return {name: part.view(value.shape).to(value.dtype).numpy() for (name, value), part in pairs}
