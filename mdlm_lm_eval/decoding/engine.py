"""Reverse diffusion of many canvases in a fixed number of slots: one loop for all attention patterns and caches.

All that changes from pass to pass are tensors on the device (`Rows`): a pass proposes, selects, edits, writes and goes
on to the next block there. The host sees a copy of a few numbers per row, on a GPU one pass late, and acts where a row
enters or leaves: when one is done the next canvas takes its slot. Nothing in a row depends on the others.

What a pass runs of a row:
    full attention, exact: the whole canvas.
    block-causal: its block, at its own place, against the remembered keys and values of those before it, which never
        see what follows them. A finished block is run once more, so that the keys and values of its final tokens are
        remembered. With `cache=none` the canvas up to the block's end.
    `cache=prefix|dual` (Fast-dLLM, arXiv 2505.22618): the whole canvas in a block's first pass; then the block and all
        behind it (`prefix`) or the block alone (`dual`), against what the first pass computed for the rest.

A pass that runs whole canvases or prompts beside cached blocks is a wide one, of the rows that need it alone.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.decoding import klass, remasking
from mdlm_lm_eval.decoding.blocks import Block, blocks_of
from mdlm_lm_eval.decoding.canvas import Canvas, attention_in_effect
from mdlm_lm_eval.decoding.completion import Completion, Cost
from mdlm_lm_eval.decoding.end_of_thinking import EndOfThinking
from mdlm_lm_eval.decoding.indel import Insertions
from mdlm_lm_eval.decoding.program import Field, Kind, path_of, records_of
from mdlm_lm_eval.decoding.proposals import propose, uniform_numbers
from mdlm_lm_eval.decoding.row_windows import decode_in_batches
from mdlm_lm_eval.decoding.rows import Rows, Sizes, rows_of
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.decoding.speculative import Speculation
from mdlm_lm_eval.decoding.wino import Shadow
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import iota, to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions, OptionError

# On a GPU, shapes are rounded up to these, so that attention kernels and graphs meet few of them.
_KEYS, _POSITIONS = 256, 64
# Stop strings are looked for after so many steps of a row: that takes the host longer than anything else does.
_STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 4}

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """A pass: the records `at` [R] that it was made for, the slots that go on in it, and its shape.

    rows: the same slots on the device, None where all rows are run. is_ragged: whether keys must be masked.
    """

    at: Numbers
    going: Numbers
    rows: Tensor | None
    width: int
    n_seen: int
    is_wide: bool
    is_ragged: bool


class Window(NamedTuple):
    """Of each row: its record [R, F], the number of its block [R] (-1 where it waits), and what is run of it.

    columns: [R, W]. expected: [R, W], the mask token where the block has a slot, -1 elsewhere. sees: as of
    `Denoiser.window_logits`.
    """

    record: Tensor
    number: Tensor
    columns: Tensor
    expected: Tensor
    sees: Tensor | None


class Engine:
    """Rows in `n_slots` slots, and the canvases that wait for one."""

    def __init__(
        self,
        denoiser: Denoiser,
        canvases: Sequence[Canvas],
        attention: AttentionPattern,
        options: DecodingOptions,
        banned_ids: Collection[int],
        end_ids: Collection[int],
        thinking: EndOfThinking | None,
        token_frequencies: Tensor | None,
        n_slots: int,
    ) -> None:
        self.denoiser, self.attention, self.options = denoiser, attention, options
        self.banned_ids, self.end_ids, self.thinking = banned_ids, end_ids, thinking
        self.token_frequencies = token_frequencies
        self.device = denoiser.device
        self.on_gpu = self.device.type == "cuda"
        self.is_causal = attention.is_block_causal
        self.is_cached = options.cache != "none" and (self.is_causal or options.is_approximate)
        self.is_whole = not self.is_causal and not options.is_approximate
        # A stored block predicts the token behind it; where that is written at once, no pass sees it masked.
        self.tells_next = self.is_causal and (denoiser.shift or attention.causal_context)
        self.writes_next = self.tells_next and (attention.blocks_from == "row_start" or attention.causal_context)
        # Whether a mask must exceed `confidence_threshold`: so in block diffusion, but for Nemotron-Labs-Diffusion.
        self.is_strict = self.is_causal and not attention.whole_prompt
        self.canvases = canvases
        self.blocks: list[tuple[Block, ...]] = [
            blocks_of(canvas, attention, options, shift=denoiser.shift) for canvas in canvases
        ]
        stores = self.is_causal and (self.is_cached or self.tells_next)
        how = {"is_causal": self.is_causal, "stores": stores, "tells_next": self.tells_next}
        self.records = [
            records_of(blocks, len(canvas.token_ids), options, **how)
            for canvas, blocks in zip(canvases, self.blocks, strict=True)
        ]
        self.longest_block = max(len(block.slots) for blocks in self.blocks for block in blocks)
        narrow = [b.stop - b.start for blocks in self.blocks for b in blocks if b.slots or not b.is_wide]
        self.has_windows = self.is_cached and options.cache != "prefix"
        longest = max(len(canvas.token_ids) for canvas in canvases)
        # Without blocks, an end of text stops nothing; with them, the host looks for one wherever there are slots.
        self.stops_at_end = bool(end_ids) and (
            not self.is_whole or options.append_blocks or options.remasking == "remdm"
        )
        self.sizes = Sizes(
            columns=(_up(longest, _KEYS) if self.on_gpu and self.is_cached else longest) + 1,
            blocks=max(map(len, self.blocks)),
            records=max(map(len, self.records)),
            shown=max(len(canvas.slots) if self.stops_at_end else canvas.n_returned for canvas in canvases),
            slots=max(len(canvas.slots) for canvas in canvases),
            vocabulary=denoiser.vocab_size,
            window=max(narrow) if self.has_windows else 0,
        )
        # Whether every pass fills one mask, or what a parallel rule says.
        one_each = all(count == 1 for blocks in self.blocks for block in blocks for count in block.counts)
        self.one_a_pass = one_each and options.kl_threshold is None and options.remasking == "none"
        # Whether a pass asks on the device what it is for.
        self.asks_kind = self.tells_next or options.editing_threshold is not None
        # Whether anything asks where in its row a mask stands.
        rule = unmasking_rule(options.unmasking)
        self.needs_places = rule.reads_places or options.temperature > 0.0 or options.kl_threshold is not None
        self.needs_places |= thinking is not None and bool(thinking.boost)
        self.needs_confidence = options.is_parallel or options.editing_threshold is not None or self.needs_places
        self.needs_confidence |= options.remasking != "none" or options.trace
        # Of each canvas, the records that it meets and their masks, where a schedule alone decides.
        self.paths: list[list[tuple[int, int]]] = []
        is_planned = options.editing_threshold is None and options.remasking == "none" and not self.writes_next
        is_planned &= not options.is_parallel and options.small_block_length is None
        if self.on_gpu and is_planned:  # elsewhere the host sees at once where they are
            self.paths = list(map(path_of, self.records, self.blocks))
        self.waiting = iter(range(len(canvases)))
        size = _power_of_two(min(n_slots, len(canvases))) if self.on_gpu else min(n_slots, len(canvases))
        self.every = np.arange(size)
        self.slots = np.full(size, -1)  # which canvas each holds, -1 for none
        self.seen = np.full(size, -1)  # `Rows.at` as the host last saw it
        self.launched = np.full(size, -1)  # the last wide pass of the row in each slot
        self.n_run = np.zeros(size, int)  # passes of it
        self.costs = np.zeros((size, 3), int)  # what `Cost` holds
        self.n_read = np.zeros(size, int)  # tokens that the caller was asked about
        self.n_returned = np.zeros(size, int)
        self.shown_blocks = np.full((size, self.sizes.shown), -2)  # [R, N], blocks of the tokens that it sees
        self.tables = np.zeros((size, self.sizes.records + 1, len(Field)), int)  # their records
        self.steps = np.full((size, max(map(len, self.paths), default=0) + 1, 2), -1)  # their paths
        self.n_passes, self.last_seen = 0, -1
        # Whether the host knows where rows are when it begins a pass; the last pass, which holds as long as they stay.
        self.knows_records = not self.on_gpu or bool(self.paths)
        self.plan: Plan | None = None
        self.window: Window | None = None
        # On their way to the host: pass, whether it is wide, what it left of all rows, event, and of the slots of today
        # their rows there and whose they were.
        self.looks: list[tuple[int, bool, Tensor, Any, Numbers, Numbers]] = []
        self.state = self._rows([0] * size).to(self.device)
        self.state.at.fill_(-1)
        self.cache: CanvasCache | None = None
        if self.is_cached:
            n_rows = 2 * size if options.cfg_scale > 0.0 else size
            self.cache = CanvasCache(denoiser.model.config.num_hidden_layers, self.sizes.columns, n_rows)
        # Of a model whose blocks tell the next token, the logits of the one behind each slot's last block, [R + 1, V].
        self.behind: Tensor | None = None
        self.refill(np.arange(size))

    def _rows(self, indices: Sequence[int]) -> Rows:
        rows = [(self.canvases[index], self.blocks[index], self.records[index]) for index in indices]
        return rows_of(rows, self.options, self.sizes, self.denoiser.pad_token_id, self.denoiser.mask_token_id)

    def refill(self, free: Numbers) -> None:
        """The next canvases take free slots; slots that nothing waits for are empty, and dropped in time."""
        indices = list(itertools.islice(self.waiting, len(free)))
        self.plan = self.window = None
        taken, empty = free[: len(indices)], free[len(indices) :]
        if indices:
            rows = self._rows(indices)
            self.slots[taken], self.seen[taken], self.launched[taken], self.n_run[taken] = indices, 0, -1, 0
            self.costs[taken], self.n_read[taken] = 0, 0
            self.tables[taken] = rows.records.numpy()
            self.n_returned[taken] = [self.canvases[index].n_returned for index in indices]
            self.shown_blocks[taken] = rows.block_of.gather(1, rows.shown).numpy()
            self.steps[taken] = -1
            for slot, index in zip(taken, indices, strict=True):
                if self.paths:
                    self.steps[slot, : len(self.paths[index])] = self.paths[index]
            self.state.put(to_device(torch.from_numpy(taken), self.device), rows.to(self.device))
        if len(empty):
            self.slots[empty] = self.seen[empty] = -1
            self.steps[empty] = -1
            self.state.at.index_fill_(0, to_device(torch.from_numpy(empty), self.device), -1)
            self._drop_empty_slots()

    def _drop_empty_slots(self) -> None:
        """On a GPU once half of them are, so that there are few numbers of rows."""
        kept = np.flatnonzero(self.slots >= 0)
        size = _power_of_two(len(kept)) if self.on_gpu and len(kept) else len(kept)
        if size == len(self.slots):
            return
        kept = np.concatenate([kept, np.flatnonzero(self.slots < 0)[: size - len(kept)]])
        rows = to_device(torch.from_numpy(kept), self.device)
        self.state = self.state.of(rows)
        if self.cache is not None:
            self.cache.keep(self._with_guided(rows))
        if self.behind is not None:
            self.behind = self.behind[torch.cat([rows, rows.new_full((1,), len(self.slots))])]
        for name in (
            "slots",
            "seen",
            "launched",
            "n_run",
            "costs",
            "n_read",
            "n_returned",
            "shown_blocks",
            "tables",
            "steps",
        ):
            setattr(self, name, getattr(self, name)[kept])
        self.every = np.arange(size)
        self.looks = [(*look, places[kept], owners[kept]) for *look, places, owners in self.looks]

    def _with_guided(self, rows: Tensor) -> Tensor:
        """Rows of the cache: behind all others lie those of the unconditional canvases."""
        return torch.cat([rows, rows + len(self.slots)]) if self.options.cfg_scale > 0.0 else rows

    # What the next pass runs

    def run_pass(self) -> bool:
        """A wide pass of the rows that need one, else one of all rows; False if there is none to run."""
        at, wanted = self.seen, None
        if self.paths:
            at, wanted = self.steps[self.every, self.n_run].T
        # Where nothing has moved since the last pass, and the host knows that, what to run is the same.
        is_same = self.knows_records and self.plan is not None and not self.plan.is_wide and (at == self.plan.at).all()
        plan = self.plan if is_same else self._plan(at)
        if plan is None:
            return False
        with torch.no_grad():
            state = self.state if plan.rows is None else self.state.of(plan.rows)
            if self.window is None or not is_same:
                self.window = self._window(state, plan)
            n_wanted = None
            if self.on_gpu:
                masks = None if wanted is None else int(wanted[plan.going].sum())
                n_wanted = self._most_wanted(masks, plan, len(state.at))
            self._step(state, plan, self.window, n_wanted)
            if plan.rows is not None:
                self.state.put(plan.rows, state, changes_only=True)
            self._send(is_wide=plan.is_wide)
        self.n_run[plan.going] += 1
        if plan.is_wide:
            self.launched[plan.going] = self.n_passes
        self.n_passes += 1
        self.plan = plan
        return True

    def _plan(self, at: Numbers) -> Plan | None:
        """What the next pass runs where rows are at these records: the ones to come, or those last seen."""
        record, on_gpu, rows = self.tables[self.every, at], self.on_gpu, None  # [R, F]
        needs_wide = (record[:, Field.WIDE] >= 0) & (bool(self.paths) | (self.launched <= self.last_seen))
        is_wide = bool(needs_wide.any())
        (going,) = (needs_wide if is_wide else at >= 0).nonzero()
        if not len(going):
            return None
        record = record[going]
        limits = record[:, Field.LIMIT]
        if self.is_causal and not self.knows_records:  # an unseen pass moves a row to the next block at most
            limits = limits + (self.attention.block_length or 1) * len(self.looks)
            limits = np.minimum(limits, [len(self.canvases[index].token_ids) for index in self.slots[going]])
        n_seen = width = int(limits.max())
        if not is_wide and self.has_windows:
            width = self.sizes.window if on_gpu else int((record[:, Field.STOP] - record[:, Field.START]).max())
        elif not is_wide and self.is_cached:
            width = int((limits - record[:, Field.START]).max())
        if on_gpu and self.is_cached:
            n_seen = min(_up(n_seen, _KEYS), self.sizes.columns)
            if is_wide:
                width = n_seen
            elif not self.has_windows:
                width = _up(width, _POSITIONS)
        elif on_gpu:
            width = min(_up(width, _POSITIONS), self.sizes.columns - 1)
        n_seen = n_seen if self.is_cached else width
        is_ragged = bool((limits != n_seen).any()) or self.attention.causal_context
        is_ragged |= self.is_causal and (on_gpu or is_wide or not self.is_cached)
        if is_wide and len(going) < len(self.slots):
            n_more = _power_of_two(len(going)) - len(going) if on_gpu else 0
            rows = to_device(torch.from_numpy(np.pad(going, (0, n_more), mode="edge")), self.device)
        return Plan(at, going, rows, width, n_seen, is_wide, is_ragged)

    def _most_wanted(self, masks: int | None, plan: Plan, n_rows: int) -> int | None:
        """On a GPU, which is not asked for their number: the most logits that a pass needs, None for all columns.

        `masks` are those of the rows that run, where they are known.
        """
        width, is_wide = plan.width, plan.is_wide
        if self.is_causal and is_wide:
            return n_rows if self.tells_next else 0
        if self.has_windows and not is_wide:
            return None
        if self.options.remasking != "none" or self.options.kl_threshold is not None:
            return n_rows * (width + self.longest_block)
        if masks is not None and (self.is_whole or not self.denoiser.shift):
            return _up(masks + (n_rows - len(plan.going)) * self.longest_block * is_wide, _POSITIONS)
        return min(n_rows * width, _up(n_rows * self.longest_block, _POSITIONS))

    # One pass, on the device

    def _window(self, s: Rows, plan: Plan) -> Window:
        """Where a pass runs what of the rows: this is the same until they go on to their next records."""
        options, every, is_wide = self.options, iota(len(s.at), self.device), plan.is_wide
        record = s.records[every, s.at]  # [R, F]
        number, limit = record[:, Field.WIDE if is_wide else Field.BLOCK], record[:, Field.LIMIT]
        if self.has_windows and not is_wide:
            columns, expected = s.windows[every, number, :, : plan.width].unbind(1)  # [R, W]
        else:
            columns = iota(plan.width, self.device)[None]
            if not is_wide and self.is_cached:
                columns = columns + record[:, Field.START, None]
            columns = torch.where(columns < limit[:, None], columns, self.sizes.columns - 1)
            block_of = s.block_of.gather(1, columns)
            slots = block_of == number[:, None]
            if options.remasking == "rcr":  # tokens of earlier blocks are taken back, too
                slots = (block_of >= 0) & (block_of <= number[:, None])
            expected = torch.where(slots, self.denoiser.mask_token_id, -1)
        sees = self._sees(s, record, columns, plan) if plan.is_ragged else None
        return Window(record, number, columns, expected, sees)

    def _step(self, s: Rows, plan: Plan, window: Window, n_wanted: int | None) -> None:
        """One pass of the model over rows `s`, and what follows from it for them."""
        options, mask, width, is_wide = self.options, self.denoiser.mask_token_id, plan.width, plan.is_wide
        record, number, columns = window.record, window.number, window.columns
        stores = (record[:, Field.KIND] == Kind.STORE) & (number >= 0) if self.asks_kind else None
        tokens = s.tokens.gather(1, columns)  # [R, W]
        masked = tokens == window.expected
        candidates = masked
        if options.small_block_length is not None:
            part = (columns - record[:, Field.START, None]) // options.small_block_length
            candidates = masked & (part == part.masked_fill(~masked, self.sizes.columns).amin(1, keepdim=True))
        if is_wide and not self.is_causal and self.denoiser.shift:
            candidates = masked & (masked.cumsum(1) == 1)  # its logits are no later window's
        wanted, editable, shadow, threshold = candidates, None, None, options.editing_threshold
        if stores is not None and threshold is not None:
            editable = (window.expected >= 0) & ~(masked | stores[:, None])
            wanted = candidates | editable
        if options.kl_threshold is not None:  # what the next block's first pass is compared with
            wanted = wanted | ((s.block_of.gather(1, columns) == number[:, None] + 1) & (number >= 0)[:, None])
        elif options.remasking == "wino":
            shadow = Shadow.of(s, number, record[:, Field.BEFORE], self.longest_block)
            wanted = torch.cat([wanted, (shadow.tokens != mask) & shadow.is_there], 1)  # [R, W + B]
        if self.tells_next and stores is not None:
            wanted = torch.cat([wanted, stores[:, None]], 1)  # [R, G]; the last column is the token behind the window

        # Logits of these, and the tokens that they propose.
        at = self._where(wanted, n_wanted)  # [N], None for all of R * G
        positions: Any = at
        row: Any = None
        offset: Any = None
        if self.tells_next or shadow is not None or self.needs_places or self.denoiser.shift:
            if at is None:
                row, offset = _places(*wanted.shape, self.device)
            else:
                of_all = at.clamp(max=wanted.numel() - 1)
                row, offset = of_all // wanted.shape[1], of_all % wanted.shape[1]
            if self.tells_next:  # of rows that wait, the block may be longer
                behind = record[:, Field.LIMIT] - record[:, Field.START] * (self.is_cached and not is_wide)
                behind = behind.clamp(max=width) - int(not self.denoiser.shift)
                offset = offset.where(offset < width, behind[row])
            if self.denoiser.shift and not self.is_whole:  # a token is predicted by the output before it
                is_simple = at is None and not self.tells_next
                positions = (
                    _left(len(tokens), width, self.device) if is_simple else row * width + (offset - 1).clamp(min=0)
                )
            else:
                positions = row * (width if shadow is None else wanted.shape[1]) + offset
        elif self.on_gpu and at is not None:
            positions = at.clamp(max=wanted.numel() - 1)
        if shadow is not None:
            logits = shadow.logits(self.denoiser, columns, tokens, columns < s.facts[:, :1], positions)
        else:
            logits = self._logits(s, plan, window, tokens, positions)
        if self.tells_next and not self.writes_next:
            self._tell(logits, plan.rows, row, offset, number, at, wanted)
        here: Any = None
        slot_numbers: Any = None
        if self.needs_places:
            here = columns[row, offset.clamp(max=width - 1)]  # [N]
            slot_numbers = s.slot_number[row, here]
        if self.thinking is not None and self.thinking.boost:
            in_block = (s.block_of == number[:, None]) & (s.tokens == mask)
            budget = (s.slot_number >= 0).sum(1, keepdim=True)
            self.thinking.raise_logits(logits, row, here, s.tokens, in_block, (s.facts[:, 1:2], budget))
        is_random = unmasking_rule(options.unmasking).is_random
        proposals = propose(
            logits,
            options,
            banned_ids=self.banned_ids,
            end_ids=self.end_ids,
            uniform=uniform_numbers(s.facts[row, 2], s.steps[row], slot_numbers) if options.temperature > 0.0 else None,
            slot_numbers=slot_numbers,
            random_numbers=s.random_numbers[row, here] if is_random else None,
            block_offsets=slot_numbers - record[row, Field.BEFORE] if self.needs_places else None,
            token_frequencies=self.token_frequencies,
            needs_confidence=self.needs_confidence,
        )

        def spread(values: Tensor) -> Tensor:  # [N] -> [R, G]
            if at is not None:
                values = values.new_zeros(wanted.numel() + self.on_gpu).scatter_(0, at, values)[: wanted.numel()]
            return values.view(wanted.shape)

        proposed, priority = spread(proposals.tokens), spread(proposals.priority)
        confidence = spread(proposals.confidence) if self.needs_confidence else priority
        entropy = confidence if options.entropy_bound is None else spread(proposals.entropy)
        if (
            self.writes_next and stores is not None
        ):  # as Fast-dLLM v2 and Nemotron-Labs-Diffusion do; A2D fills it as all others
            next_one = record[:, Field.STOP].clamp(max=self.sizes.columns - 1)[:, None]
            is_told = stores[:, None] & (s.slot_number.gather(1, next_one) >= 0)
            s.tokens.scatter_(1, next_one, proposed[:, -1:].where(is_told, s.tokens.gather(1, next_one)))
            if options.trace:
                s.note(next_one, is_told, confidence[:, -1:])

        # Fill and edit.
        counts = None if self.one_a_pass else record[:, Field.COUNT]
        grid = (candidates, priority[:, :width], confidence[:, :width], entropy[:, :width])
        chosen, best = select(*grid, counts, options, strict=self.is_strict)
        # NaN differs from itself, and is the largest of all.
        s.finite = best == best if best is not None and not self.needs_places else ~(confidence.isnan() & wanted).any(1)
        taken = None
        if options.kl_threshold is not None:
            is_real = wanted.flatten() if at is None else at < wanted.numel()
            changes = klass.compare(s, logits, row, slot_numbers.where(is_real, s.before.shape[1] - 1), spread, columns)
            chosen = klass.choose(chosen, candidates, confidence, changes, record[:, Field.STEP], options)
        elif shadow is not None:
            belief = shadow.belief(logits, row, offset, spread, columns)
            among = (window.expected >= 0) & ~masked
            chosen, taken = shadow.choose(candidates, among, confidence[:, :width], belief, s.filled, options)
        elif options.remasking != "none":
            back = record[:, Field.BACK]
            taken = remasking.least_sure(
                s, columns, priority, chosen, (window.expected >= 0) & (~masked | chosen), back
            )
        goes_on = (masked ^ chosen).any(1)
        written = chosen
        if editable is not None and threshold is not None:
            edits = editable & (confidence[:, :width] > threshold) & (proposed[:, :width] != tokens)
            goes_on |= edits.any(1) & (record[:, Field.KIND] == Kind.EDIT)
            written = chosen | edits
        tokens = proposed[:, :width].where(written, tokens)
        if options.trace:
            s.note(columns, written, confidence[:, :width])
            s.passes = s.passes + (number >= 0)
        if taken is not None:
            tokens = tokens.masked_fill(taken, mask)
            goes_on |= taken.any(1)
            s.filled = chosen.sum(1) * goes_on
        s.tokens.scatter_(1, columns, tokens)

        # What the next pass does.
        s.at = record[:, Field.STAY].where(goes_on, record[:, Field.WIDE_DONE if is_wide else Field.DONE])
        if options.temperature > 0.0:
            s.steps = s.steps + ((number >= 0) & (record[:, Field.KIND] != Kind.STORE))
        if self.thinking is not None:
            entered = s.records[iota(len(s.at), self.device), s.at]
            moves = (entered[:, Field.NUMBER] > record[:, Field.NUMBER]) & (number >= 0)
            bounds = entered[:, Field.START], entered[:, Field.STOP]
            s.tokens.copy_(self.thinking.close(s.tokens, *bounds, s.facts[:, 1], moves))
        if self.writes_next:  # a block of one mask may be full before it is entered
            entered = s.records[iota(len(s.at), self.device), s.at]
            is_mask = (s.block_of == entered[:, Field.NUMBER, None]) & (s.tokens == mask)
            s.at = s.at.where(is_mask.any(1), entered[:, Field.FULL])

    def _where(self, wanted: Tensor, n_wanted: int | None) -> Tensor | None:
        """Places [N] among the flattened `wanted` [R, G], one behind them all beyond the last; None for everywhere."""
        if not self.on_gpu:
            return wanted.flatten().nonzero().squeeze(1)
        if n_wanted is None:
            return None
        return torch.nonzero_static(wanted.flatten(), size=n_wanted, fill_value=wanted.numel()).squeeze(1)

    def _sees(self, s: Rows, record: Tensor, columns: Tensor, plan: Plan) -> Tensor:
        """Which of K columns a window's columns [R, W] see, [R, 1, K] or [R, W, K]."""
        keys, limit = iota(plan.n_seen, self.device)[None], record[:, Field.LIMIT]  # [1, K], [R]
        if self.attention.causal_context:
            fills = (record[:, Field.KIND, None] == Kind.FILL) & (columns >= record[:, Field.START, None])  # [R, W]
            return (keys <= columns[:, :, None]) | (fills[:, :, None] & (keys < limit[:, None])[:, None])
        sees = (keys < limit[:, None])[:, None]
        if self.is_causal and (plan.is_wide or not self.is_cached):
            prompts = s.facts[:, 1:2]
            block = self.attention.block_of(columns, prompts)[:, :, None]
            sees = sees & (self.attention.block_of(keys, prompts)[:, None] <= block)
        return sees

    def _logits(self, s: Rows, plan: Plan, window: Window, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Logits [N, V] at `positions` [N] of the flattened windows, None for all of them."""
        cfg_scale, sees = self.options.cfg_scale, window.sees
        prompt = s.prompt.gather(1, window.columns) if cfg_scale > 0.0 else None
        if self.is_whole:
            real = None if sees is None else sees[:, 0].long()
            assert positions is not None
            return self.denoiser.logits(tokens, real, positions, cfg_scale=cfg_scale, prompt_mask=prompt)
        return self.denoiser.window_logits(
            tokens,
            window.columns,
            sees,
            positions,
            cache=self.cache,
            cache_rows=None if plan.rows is None else self._with_guided(plan.rows),
            n_seen=None if plan.is_wide else plan.n_seen,
            cfg_scale=cfg_scale,
            prompt_mask=prompt,
        )

    def _tell(
        self,
        logits: Tensor,
        rows: Tensor | None,
        row: Tensor,
        offset: Tensor,
        number: Tensor,
        at: Tensor | None,
        wanted: Tensor,
    ) -> None:
        """Puts what the block before told into a window's first `logits`, and remembers what a stored block tells."""
        n_rows, width = wanted.shape[0], wanted.shape[1] - 1
        if self.behind is None:
            self.behind = logits.new_zeros(len(self.slots) + 1, logits.shape[1])
        slots = iota(n_rows, self.device) if rows is None else rows
        if not len(row):
            return
        is_wanted = wanted.flatten() if at is None else at < wanted.numel()
        column = iota(wanted.numel(), self.device) % (width + 1) if at is None else at % (width + 1)
        for is_there, tells in (((offset == 0) & (number[row] > 0), False), (column == width, True)):
            is_there &= is_wanted
            n = torch.nonzero_static(is_there, size=n_rows, fill_value=0).squeeze(1)  # [R] of the N
            of_slot = slots[row[n]]
            if tells:
                self.behind[of_slot.where(is_there[n], len(self.slots))] = logits[n]
            else:
                logits[n] = self.behind[of_slot].where(is_there[n, None], logits[n])

    # What the host sees of it

    def _send(self, *, is_wide: bool) -> None:
        """Copies what the host looks at, on a GPU without waiting for it."""
        s = self.state
        sent = torch.cat([s.at[:, None], s.finite[:, None], s.tokens.gather(1, s.shown)], 1)  # [R, 2 + N]
        event = None
        if self.on_gpu:
            pinned = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=True)
            sent, event = pinned.copy_(sent, non_blocking=True), _event(self.device)
        self.looks.append((self.n_passes, is_wide, sent, event, np.arange(len(self.slots)), self.slots.copy()))

    def look(
        self, is_decided: Callable[[list[int]], bool] | None, *, is_last: bool
    ) -> tuple[int, dict[int, Completion]]:
        """Denoising steps that were taken, and the completions of the rows that are over, by their slots.

        On a GPU this is what the pass before the last one left, which is over by now, unless nothing follows it.
        `is_decided` is asked about rows with more tokens than before. Raises NonFiniteLogitsError.
        """
        if len(self.looks) < (2 if self.on_gpu and not is_last else 1):
            return 0, {}
        self.last_seen, is_wide, sent, event, places, owners = self.looks.pop(0)
        if event is not None:
            event.synchronize()
        numbers, is_same = sent.numpy()[places], (owners == self.slots) & (owners >= 0)
        before = self.tables[self.every, self.seen].T  # [F, R]
        ran = is_same & (before[Field.WIDE if is_wide else Field.BLOCK] >= 0)
        if not numbers[:, 1].all() and (is_bad := ran & (numbers[:, 1] == 0)).any():
            raise NonFiniteLogitsError(int(owners[is_bad.argmax()]))
        took_step = ran & (before[Field.KIND] != Kind.STORE)
        for n, amount in enumerate((ran, took_step, ran * before[Field.SIZE])):
            self.costs[:, n] += amount
        self.seen = np.where(is_same, numbers[:, 0], self.seen)
        after, tokens = self.tables[self.every, self.seen].T, numbers[:, 2:]
        is_over = ran & (self.seen < 0)
        if self.stops_at_end:  # samplers of blocks stop after one with an end
            is_stored, moved = after[Field.KIND] == Kind.STORE, after[Field.NUMBER] != before[Field.NUMBER]
            done = np.where(is_stored, after[Field.NUMBER], before[Field.NUMBER])
            done[~(ran & (is_stored | moved))] = -1
            if (done >= 0).any():
                in_block = self.shown_blocks == done[:, None]
                is_over |= (self._is_end(tokens) & in_block).any(1)
        place = np.arange(tokens.shape[1])
        is_mask = (tokens == self.denoiser.mask_token_id) & (place < self.n_returned[:, None])  # [R, N]
        n_ahead = np.where(is_mask.any(1), is_mask.argmax(1), self.n_returned)  # from the left without a gap
        if self.options.exits_early:
            # A model that edits may change a token until the token's block is done.
            is_final = ran if self.options.editing_threshold is None else ran & (after[Field.KIND] == Kind.STORE)
            is_decided_here = n_ahead == self.n_returned
            if self.end_ids:
                is_decided_here |= (self._is_end(tokens) & (place < n_ahead[:, None])).any(1)
            is_over |= is_final & is_decided_here
            if is_decided is not None:
                is_due = self.costs[:, 1] % _STEPS_BETWEEN_LOOKS.get(self.device.type, 1) == 0
                for asked in np.flatnonzero(is_final & took_step & is_due & ~is_over & (n_ahead > self.n_read)):
                    self.n_read[asked] = n_ahead[asked]
                    is_over[asked] = is_decided(tokens[asked, : n_ahead[asked]].tolist())
        completions = {}
        for slot in np.flatnonzero(is_over).tolist():
            answer = tokens[slot, : n_ahead[slot]].tolist()
            n = next((n for n, token in enumerate(answer, start=1) if token in self.end_ids), len(answer))
            n_written = int(self.n_returned[slot] - is_mask[slot].sum())
            trace = self.state.traced(slot, n) if self.options.trace else ()
            completions[slot] = Completion(answer[:n], Cost(*self.costs[slot].tolist()), n_written, trace)
        return int(took_step.sum()), completions

    def _is_end(self, tokens: Numbers) -> Numbers:
        """Where [R, N] an end of text or turn stands."""
        return np.logical_or.reduce([tokens == end for end in self.end_ids])

    def decode(
        self,
        is_decided: Callable[[list[int]], bool] | None,
        advance: Callable[[int], object],
        finished: Callable[[int, Completion], object],
    ) -> list[Completion]:
        """Decodes all canvases; what `decode_canvases` says of stop tokens, early exit, progress and errors holds."""
        completions: dict[int, Completion] = {}
        while len(completions) < len(self.canvases):
            runs = self.run_pass()
            steps, of_slots = self.look(is_decided, is_last=not runs)
            for slot, completion in of_slots.items():
                index = int(self.slots[slot])
                completions[index] = completion
                finished(index, completion)
            advance(steps)
            if of_slots:
                self.refill(np.array(list(of_slots)))
        return [completions[index] for index in range(len(self.canvases))]


def decode_canvases(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    *,
    eos_ids: Collection[int] = (),
    end_of_turn_ids: Collection[int] = (),
    end_think_ids: Sequence[int] = (),
    token_frequencies: Tensor | None = None,
    is_decided: Callable[[list[int]], bool] | None = None,
    advance: Callable[[int], object] = lambda _: None,
    finished: Callable[[int, Completion], object] = lambda *_: None,
    batch_size: int | None = None,
) -> list[Completion]:
    """Decodes canvases: the tokens of each one's first `n_returned` slots, up to an EOS or end of turn inclusive.

    `batch_size` rows run at a time (all by default); when one is done, the next canvas takes its place.
    Options are those that `check_decoding` lets through. Nothing in a row depends on the others. `is_decided` tells of
    tokens unmasked from the left, without a gap, whether the caller needs no more: an unmasked token never changes, so
    with `early_exit` such a row leaves the batch (its result may then end there). The mask token is never emitted.
    `suppress_eos` bans `eos_ids` and leaves ends of turn possible, as LLaDA's `logits_eos_inf` does. `advance(n)` tells
    that n rows took a step, `finished(n, completion)` that canvas n is done. `end_think_ids` are the tokens of
    `end_think`, `token_frequencies` [V] what the file of that option holds. Raises NonFiniteLogitsError where a row's
    logits are NaN or infinite.
    """
    if not canvases:
        return []
    end_ids = {*eos_ids, *end_of_turn_ids}
    banned = {denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())}
    attention = attention_in_effect(denoiser.attention, options)
    if options.remasking == "wino" and denoiser.shift:
        raise OptionError("remasking=wino does not work with a model whose logits are shifted: a shadow has no left")
    if options.is_approximate and not denoiser.keeps_keys_and_values:
        raise OptionError(f"cache must be none for an encoder, which keeps no keys and values, not {options.cache}")
    n_slots = batch_size or len(canvases)
    own: type[Speculation] | type[Insertions] | None = Speculation if options.mode == "linear_spec" else None
    if denoiser.model.config.to_dict().get("delete_token_id") is not None:
        own = Insertions
    if own is not None:
        how: dict[str, Any] = {"end_ids": end_ids, "is_decided": is_decided if options.early_exit else None}
        begin = lambda batch, first: own(denoiser, batch, first, options, attention.block_length or 1, banned)  # noqa: E731
        return decode_in_batches(canvases, begin, finished=finished, batch_size=n_slots, **how)
    thinking = EndOfThinking.of(options, end_think_ids, denoiser.device)
    if token_frequencies is None and options.token_frequencies is not None:
        (token_frequencies,) = load_file(options.token_frequencies).values()
    if token_frequencies is not None:
        token_frequencies = token_frequencies.to(denoiser.device)
    engine = Engine(denoiser, canvases, attention, options, banned, end_ids, thinking, token_frequencies, n_slots)
    return engine.decode(is_decided, advance, finished)


@functools.lru_cache(maxsize=64)
def _places(n_rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and offset [R * W] of all places of flattened windows."""
    every = iota(n_rows * width, device)
    return every // width, every % width


@functools.lru_cache(maxsize=64)
def _left(n_rows: int, width: int, device: torch.device) -> Tensor:
    """What stands left of each place [R * W]; a window's first has its own."""
    row, offset = _places(n_rows, width, device)
    return row * width + (offset - 1).clamp(min=0)


def _event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))  # which may not be the process's current GPU
    return event


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
