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

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.decoding import klass, remasking
from mdlm_lm_eval.decoding.blocks import Block, blocks_of
from mdlm_lm_eval.decoding.canvas import Canvas, attention_in_effect
from mdlm_lm_eval.decoding.completion import Completion
from mdlm_lm_eval.decoding.end_of_thinking import EndOfThinking
from mdlm_lm_eval.decoding.indel import Insertions
from mdlm_lm_eval.decoding.proposals import propose, uniform_numbers
from mdlm_lm_eval.decoding.row_windows import decode_in_batches
from mdlm_lm_eval.decoding.rows import Look, Phase, Rows, Sizes, look_at, rows_of
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.decoding.speculative import Speculation
from mdlm_lm_eval.decoding.wino import Shadow
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions, OptionError

# LLaDA2.1's own default.
DEFAULT_POST_STEPS = 16
# On a GPU, shapes are rounded up to these, so that attention kernels and graphs meet few of them.
_KEYS, _POSITIONS = 256, 64
# Stop strings are looked for after so many steps of a row: that takes the host longer than anything else does.
_STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 4}


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
        self.longest_block = max(len(block.slots) for blocks in self.blocks for block in blocks)
        self.block_width = max(block.stop - block.start for blocks in self.blocks for block in blocks if block.slots)
        longest = max(len(canvas.token_ids) for canvas in canvases)
        self.sizes = Sizes(
            (_up(longest, _KEYS) if self.on_gpu and self.is_cached else longest) + 1,
            max(map(len, self.blocks)),
            max(sum(len(block.counts) + 1 for block in blocks) for blocks in self.blocks),
            max(canvas.n_returned for canvas in canvases),
            max(len(canvas.slots) for canvas in canvases),
            denoiser.vocab_size,
        )
        # Whether a block that a row enters may hold no masks: between slots of a text, or where the first is told.
        self.may_enter_full_blocks = self.writes_next or any(not b.slots for blocks in self.blocks for b in blocks[1:])
        # Of each canvas and pass, the block and how many masks it holds, where a schedule alone decides.
        self.programs: list[list[tuple[int, int]]] = []
        is_planned = options.editing_threshold is None and options.remasking == "none" and not self.writes_next
        if not options.is_parallel and is_planned:
            self.programs = list(map(self._program, self.blocks))
        self.waiting = iter(range(len(canvases)))
        self.ends = to_device(torch.tensor(sorted(end_ids), dtype=torch.long), self.device)
        size = _power_of_two(min(n_slots, len(canvases))) if self.on_gpu else min(n_slots, len(canvases))
        self.slots: list[int | None] = [None] * size  # which canvas each holds
        self.seen = [[int(Phase.OVER)] + [0] * 7] * size  # `Rows.numbers` as the host last saw them
        self.launched = [-1] * size  # the last wide pass of the row in each slot
        self.n_run = [0] * size  # passes of it
        self.n_passes, self.last_seen = 0, -1
        self.iotas: dict[int, Tensor] = {}
        self.nothing = torch.zeros(1, device=self.device)
        # On their way to the host: pass, `Rows.numbers` with the returned tokens, event, and whose they are.
        self.looks: list[tuple[int, Tensor, Any, list[int | None]]] = []
        self.state = self._rows([0] * size).to(self.device)
        self.cache: CanvasCache | None = None
        if self.is_cached:
            n_rows = 2 * size if options.cfg_scale > 0.0 else size
            self.cache = CanvasCache(denoiser.model.config.num_hidden_layers, self.sizes.columns, n_rows)
        # Of a model whose blocks tell the next token, the logits of the one behind each slot's last block, [R + 1, V].
        self.behind: Tensor | None = None
        self.refill(range(size))

    def _program(self, blocks: Sequence[Block]) -> list[tuple[int, int]]:
        program = []
        is_stored = self.is_causal and (self.is_cached or self.tells_next)
        for number, block in enumerate(blocks):
            program += [(number, len(block.slots) - sum(block.counts[:n])) for n in range(len(block.counts))]
            program += [(number, 0)] * (is_stored and number + 1 < len(blocks))
        return program

    def _rows(self, indices: Sequence[int]) -> Rows:
        pairs = [(self.canvases[index], self.blocks[index]) for index in indices]
        return rows_of(pairs, self.options, self.sizes, self.denoiser.pad_token_id)

    def refill(self, free: Sequence[int]) -> None:
        """The next canvases take free slots; slots that nothing waits for are empty, and dropped in time."""
        indices = list(itertools.islice(self.waiting, len(free)))
        for slot in free[len(indices) :]:
            self.slots[slot], self.seen[slot] = None, [int(Phase.OVER)] + [0] * 7
        if indices:
            rows = self._rows(indices)
            for slot, index, numbers in zip(free, indices, rows.numbers.tolist(), strict=False):
                self.slots[slot], self.seen[slot] = index, numbers
                self.launched[slot], self.n_run[slot] = -1, 0
            self.state.put(to_device(torch.tensor(free[: len(indices)]), self.device), rows.to(self.device))
        if len(indices) < len(free):
            empty = to_device(torch.tensor(free[len(indices) :]), self.device)
            self.state.numbers[:, 0].index_fill_(0, empty, int(Phase.OVER))
            self._drop_empty_slots()

    def _drop_empty_slots(self) -> None:
        """On a GPU once half of them are, so that there are few numbers of rows."""
        kept = [slot for slot, index in enumerate(self.slots) if index is not None]
        size = _power_of_two(len(kept)) if self.on_gpu and kept else len(kept)
        if size == len(self.slots):
            return
        kept += [slot for slot, index in enumerate(self.slots) if index is None][: size - len(kept)]
        rows = to_device(torch.tensor(kept, dtype=torch.long), self.device)
        self.state = self.state.of(rows)
        if self.cache is not None:
            self.cache.keep(self._with_guided(rows))
        if self.behind is not None:
            self.behind = self.behind[torch.cat([rows, rows.new_full((1,), len(self.slots))])]
        self.slots, self.seen = [self.slots[slot] for slot in kept], [self.seen[slot] for slot in kept]
        self.launched, self.n_run = [self.launched[slot] for slot in kept], [self.n_run[slot] for slot in kept]

    def _with_guided(self, rows: Tensor) -> Tensor:
        """Rows of the cache: behind all others lie those of the unconditional canvases."""
        return torch.cat([rows, rows + len(self.slots)]) if self.options.cfg_scale > 0.0 else rows

    # What the next pass runs

    def _block(self, slot: int) -> Block:
        """The block of a row, or the furthest that it can have reached: an unseen pass moves it by one at most."""
        index = self.slots[slot] or 0
        number = self.seen[slot][1] + len(self.looks)
        if self.programs:
            number = self.programs[index][self.n_run[slot]][0]
        return self.blocks[index][min(number, len(self.blocks[index]) - 1)]

    def _may_go_on(self, slot: int) -> bool:
        index = self.slots[slot]
        is_over = index is None or self.seen[slot][0] == Phase.OVER
        return not is_over and (not self.programs or self.n_run[slot] < len(self.programs[index or 0]))

    def run_pass(self) -> bool:
        """A wide pass of the rows that need one, else one of all rows; False if there is none to run."""
        alive = [slot for slot in range(len(self.slots)) if self._may_go_on(slot)]
        wide = [slot for slot in alive if self._needs_wide_pass(slot)]
        going = wide or alive
        if not going:
            return False
        lengths = [len(self.canvases[self.slots[slot] or 0].token_ids) for slot in going]
        is_wide, rows = bool(wide), None
        if self.options.append_blocks:
            lengths = [self._block(slot).stop for slot in going]
        if self.is_whole:
            width = min(_up(max(lengths), _POSITIONS), self.sizes.columns - 1) if self.on_gpu else max(lengths)
            n_seen = width
        elif is_wide:
            width = max(self._block(slot).stop for slot in going) if self.is_causal else max(lengths)
            n_seen = width = _up(width, _KEYS) if self.on_gpu else width
        else:
            blocks = [self._block(slot) for slot in going]
            stops = [block.stop for block in blocks]
            if self.is_causal:
                n_seen, width = max(stops), self.block_width if self.is_cached else max(stops)
            elif self.options.cache == "prefix":
                n_seen, width = max(lengths), max(n - b.start for n, b in zip(lengths, blocks, strict=True))
            else:
                n_seen, width = max(lengths), max(block.stop - block.start for block in blocks)
            if self.on_gpu:
                n_seen = min(_up(n_seen, _KEYS), self.sizes.columns)
                width = (
                    self.block_width if self.options.cache != "prefix" and self.is_cached else _up(width, _POSITIONS)
                )
            if not self.is_cached:
                n_seen = width
        limits = [self._block(slot).stop for slot in going] if self.is_causal else lengths
        is_ragged = len({*limits, n_seen}) > 1 or (self.is_causal and (self.on_gpu or is_wide or not self.is_cached))
        is_ragged |= self.attention.causal_context
        if is_wide and len(wide) < len(self.slots):
            padded = wide + [wide[-1]] * (_power_of_two(len(wide)) - len(wide) if self.on_gpu else 0)
            rows = to_device(torch.tensor(padded), self.device)
        state = self.state if rows is None else self.state.of(rows)
        n_wanted = self._most_wanted(going, width, is_wide=is_wide, n_rows=len(state.numbers)) if self.on_gpu else None
        with torch.no_grad():
            self._step(state, rows, width, n_seen, n_wanted, is_wide=is_wide, is_ragged=is_ragged)
            if rows is not None:
                self.state.put(rows, state)
            self._send()
        for slot in going:
            self.n_run[slot] += 1
            self.launched[slot] = self.n_passes if is_wide else self.launched[slot]
        self.n_passes += 1
        return True

    def _needs_wide_pass(self, slot: int) -> bool:
        index, (phase, number, step, *_) = self.slots[slot] or 0, self.seen[slot]
        if self.programs:
            program, n = self.programs[index], self.n_run[slot]
            return self._block(slot).is_wide and (n == 0 or program[n - 1][0] != program[n][0])
        is_begun = phase == Phase.OVER or step > 0 or self.launched[slot] > self.last_seen
        return not is_begun and self.blocks[index][number].is_wide

    def _most_wanted(self, going: Sequence[int], width: int, *, is_wide: bool, n_rows: int) -> int | None:
        """On a GPU, which is not asked for their number: the most logits that a pass needs, None for all columns."""
        if self.is_causal and is_wide:
            return n_rows if self.tells_next else 0
        if self.is_cached and not is_wide and width == self.block_width:
            return None
        if self.options.remasking != "none" or self.options.kl_threshold is not None:
            return n_rows * (width + self.longest_block)
        if self.programs and (self.is_whole or not self.denoiser.shift):
            wanted = sum(self.programs[self.slots[slot] or 0][self.n_run[slot]][1] for slot in going)
            return _up(wanted + (n_rows - len(going)) * self.longest_block * is_wide, _POSITIONS)
        return min(n_rows * width, _up(n_rows * self.longest_block, _POSITIONS))

    # One pass, on the device

    def _step(
        self,
        s: Rows,
        rows: Tensor | None,
        width: int,
        n_seen: int,
        n_wanted: int | None,
        *,
        is_wide: bool,
        is_ragged: bool,
    ) -> None:
        """One pass of the model over rows `s` in the slots `rows` (None for all), and what follows from it for them."""
        options, mask = self.options, self.denoiser.mask_token_id
        phase, number, step, post, passes, steps, positions, finite = s.numbers.unbind(1)  # [R] each
        length, last, _, seed = s.facts.unbind(1)
        start, stop, first_count, n_counts, begins_wide, n_before = s.blocks[self._iota(len(phase)), number].unbind(1)
        active = (phase != Phase.OVER) & ((step < begins_wide) if is_wide else (step >= begins_wide))
        stores = active & (phase == Phase.STORE) if self.is_causal else torch.zeros_like(active)

        # The window, and the tokens in it that are predicted.
        low = start if self.is_cached and not is_wide else None
        limit = stop if self.is_causal or options.append_blocks else length  # nothing is seen behind it
        high = stop if options.cache == "dual" and not is_wide else limit
        columns = self._iota(width)[None] if low is None else low[:, None] + self._iota(width)
        columns = torch.where(columns < high[:, None], columns, self.sizes.columns - 1)  # [R, W]
        size = high if low is None else high - low  # [R]
        tokens = s.tokens.gather(1, columns)  # [R, W]
        block_of = s.block_of.gather(1, columns)
        slots = (block_of == number[:, None]) & active[:, None]
        if options.remasking == "rcr":  # tokens of earlier blocks are taken back, too
            slots = (block_of >= 0) & (block_of <= number[:, None]) & active[:, None]
        masked = candidates = slots & (tokens == mask)
        if options.small_block_length is not None:
            part = (columns - start[:, None]) // options.small_block_length
            candidates = masked & (part == part.masked_fill(~masked, self.sizes.columns).amin(1, keepdim=True))
        if is_wide and not self.is_causal and self.denoiser.shift:
            candidates = masked & (masked.cumsum(1) == 1)  # its logits are no later window's
        wanted, editable = candidates, None
        if options.editing_threshold is not None:
            editable = slots & ~masked & ~stores[:, None]
            wanted = candidates | editable
        shadow = None
        if options.kl_threshold is not None:  # what the next block's first pass is compared with
            wanted = wanted | ((block_of == number[:, None] + 1) & active[:, None])
        elif options.remasking == "wino":
            shadow = Shadow.of(s, number, n_before, self.longest_block)
            wanted = torch.cat([wanted, (shadow.tokens != mask) & shadow.is_there & active[:, None]], 1)  # [R, W + B]
        if self.tells_next:
            wanted = torch.cat([wanted, stores[:, None]], 1)  # [R, G]; the last column is the token behind the window

        # Logits of these, and the tokens that they propose.
        at = self._where(wanted, n_wanted)  # [N], None for all of R * G
        of_all = self._iota(wanted.numel()) if at is None else at.clamp(max=wanted.numel() - 1)
        row, offset = of_all // wanted.shape[1], of_all % wanted.shape[1]
        if self.tells_next:
            behind = size.clamp(max=width) - int(not self.denoiser.shift)  # of rows that wait, the block may be longer
            offset = offset.where(offset < width, behind[row])
        if shadow is not None:
            logits = shadow.logits(self.denoiser, columns, tokens, columns < length[:, None], row, offset)
        else:
            sees = self._sees(s, columns, limit, n_seen, is_wide) if is_ragged else None
            logits = self._logits(s, rows, columns, tokens, sees, row, offset, None if is_wide else n_seen)
        if self.tells_next and not self.writes_next:
            self._tell(logits, rows, row, offset, number, at, wanted)
        here = columns[row, offset.clamp(max=width - 1)]  # [N]
        slot_numbers = s.slot_number[row, here]
        if self.thinking is not None and self.thinking.boost:
            in_block = (s.block_of == number[:, None]) & (s.tokens == mask)
            budget = (s.slot_number >= 0).sum(1, keepdim=True)
            self.thinking.raise_logits(logits, row, here, s.tokens, in_block, (s.facts[:, 2:3], budget))
        zeros = self.nothing.expand(len(here))
        proposals = propose(
            logits,
            options,
            banned_ids=self.banned_ids,
            end_ids=self.end_ids,
            uniform=uniform_numbers(seed[row], steps[row], slot_numbers) if options.temperature > 0.0 else zeros,
            slot_numbers=slot_numbers,
            random_numbers=s.random_numbers[row, here] if unmasking_rule(options.unmasking).is_random else zeros,
            block_offsets=slot_numbers - n_before[row],
            token_frequencies=self.token_frequencies,
        )

        def spread(values: Tensor) -> Tensor:  # [N] -> [R, G]
            if at is not None:
                values = values.new_zeros(wanted.numel() + 1).scatter(0, at, values)[:-1]
            return values.view(wanted.shape)

        proposed, confidence, priority = map(spread, (proposals.tokens, proposals.confidence, proposals.priority))
        entropy = confidence if options.entropy_bound is None else spread(proposals.entropy)
        finite = finite * ((confidence == confidence) | ~wanted).all(1)  # NaN differs from itself
        if self.writes_next:  # as Fast-dLLM v2 and Nemotron-Labs-Diffusion do; A2D fills it as all others
            next_one = stop.clamp(max=self.sizes.columns - 1)[:, None]
            is_told = stores[:, None] & (s.slot_number.gather(1, next_one) >= 0)
            s.tokens.scatter_(1, next_one, proposed[:, -1:].where(is_told, s.tokens.gather(1, next_one)))
            if options.trace:
                s.note(next_one, is_told, confidence[:, -1:], passes)

        # Fill and edit.
        counts = s.counts[self._iota(len(phase)), first_count + torch.minimum(step, n_counts)]
        grid = (candidates, priority[:, :width], confidence[:, :width], entropy[:, :width])
        chosen = select(*grid, counts, options, strict=self.is_strict)
        if options.kl_threshold is not None:
            is_real = wanted.flatten()[of_all] if at is None else at < wanted.numel()
            changes = klass.compare(s, logits, row, slot_numbers.where(is_real, s.before.shape[1] - 1), spread, columns)
            chosen = klass.choose(chosen, candidates, confidence, changes, step, options)
        elif shadow is not None:  # `post` is what the pass before filled
            belief = shadow.belief(logits, row, offset, spread, columns)
            chosen, taken = shadow.choose(candidates, slots & ~masked, confidence[:, :width], belief, post, options)
            post = chosen.sum(1)
        written = chosen
        if editable is not None and options.editing_threshold is not None:
            edits = editable & (confidence[:, :width] > options.editing_threshold) & (proposed[:, :width] != tokens)
            written = chosen | edits
        tokens = proposed[:, :width].where(written, tokens)
        if options.trace:
            s.note(columns, written, confidence[:, :width], passes)
        if options.remasking != "none":
            if shadow is None:
                back = s.backs[self._iota(len(phase)), first_count + torch.minimum(step, n_counts)]
                taken = remasking.least_sure(s, columns, priority, chosen, slots & (tokens != mask), back)
            tokens = tokens.masked_fill(taken, mask)
        s.tokens.scatter_(1, columns, tokens)

        # What the next pass does: a block without masks is edited on or stored, or the row goes on to the next block.
        is_step = active & ~stores
        is_done = is_step & ~(masked & ~chosen).any(1)
        if options.remasking != "none":
            is_done = is_done & ~taken.any(1) if shadow is not None else is_step & (step + 1 >= n_counts)
        is_stored: Tensor | None = None
        next_phase = phase
        if editable is not None:
            is_editing = active & (phase == Phase.EDIT)
            post = post + is_editing
            is_stored = is_done & is_editing & ~edits.any(1)  # a pass that changed nothing saw the block as it stays
            most = DEFAULT_POST_STEPS if options.max_post_steps is None else options.max_post_steps
            goes_on = is_done & ~is_stored & (post < most)
            next_phase = next_phase.masked_fill(goes_on, Phase.EDIT)
            is_done &= ~goes_on
        over = is_done & (number == last)
        stops_at_end = not self.is_whole or options.append_blocks or options.remasking == "remdm"
        if stops_at_end and self.end_ids:  # samplers of blocks stop after one with an end
            over |= is_done & self._holds_end(slots, tokens)
        if not self.is_causal or not (self.tells_next or self.is_cached):
            moves = is_done & ~over
        else:
            next_phase = next_phase.masked_fill(is_done, Phase.STORE)
            moves = stores
            if is_stored is not None and not self.tells_next:
                moves = moves | (is_stored & ~over)
        number, step = number + moves, (step + is_step).masked_fill(moves, 0)
        next_phase = next_phase.masked_fill(moves, Phase.FILL)
        if self.thinking is not None:
            entered = s.blocks[self._iota(len(phase)), number]
            s.tokens.copy_(self.thinking.close(s.tokens, entered[:, 0], entered[:, 1], s.facts[:, 2], moves))
        if self.may_enter_full_blocks:
            slots = s.block_of == number[:, None]  # [R, T]
            is_full = moves & ~(slots & (s.tokens == mask)).any(1)
            next_phase = next_phase.masked_fill(is_full, Phase.STORE)
            over |= is_full & ((number == last) | self._holds_end(slots, s.tokens))
        if options.exits_early:
            returned = s.tokens.gather(1, s.returned)  # [R, N]
            is_mask = returned == mask
            is_decided = ~is_mask.any(1)
            if self.end_ids:
                prefix = (is_mask.cumsum(1) == 0) & (s.returned < self.sizes.columns - 1)
                is_decided |= self._holds_end(prefix, returned)
            over |= is_decided if editable is None else is_decided & (next_phase == Phase.STORE)
        next_phase = next_phase.masked_fill(over & active, Phase.OVER)
        post = post if editable is None and shadow is None else post.masked_fill(moves, 0)
        per_row = 2 if options.cfg_scale > 0.0 else 1
        positions = torch.addcmul(positions, active.long(), size, value=per_row)
        numbers = (next_phase, number, step, post, passes + active, steps + is_step, positions, finite)
        s.numbers.copy_(torch.stack(numbers, 1))

    def _iota(self, n: int) -> Tensor:
        """0 to n - 1, made once."""
        if n not in self.iotas:
            self.iotas[n] = torch.arange(n, device=self.device)
        return self.iotas[n]

    def _where(self, wanted: Tensor, n_wanted: int | None) -> Tensor | None:
        """Places [N] among the flattened `wanted` [R, G], one behind them all beyond the last; None for everywhere."""
        if not self.on_gpu:
            return wanted.flatten().nonzero().squeeze(1)
        if n_wanted is None:
            return None
        return torch.nonzero_static(wanted.flatten(), size=n_wanted, fill_value=wanted.numel()).squeeze(1)

    def _holds_end(self, where: Tensor, tokens: Tensor) -> Tensor:
        """Rows [R] that hold an end of text or turn in these places [R, K]."""
        return (torch.isin(tokens, self.ends) & where).any(1)

    def _sees(self, s: Rows, columns: Tensor, limit: Tensor, n_seen: int, is_wide: bool) -> Tensor:
        """Which of K columns a window's columns [R, W] see, [R, 1, K] or [R, W, K]: up to `limit` [R]."""
        keys = self._iota(n_seen)[None]  # [1, K]
        if self.attention.causal_context:
            start = s.blocks[self._iota(len(columns)), s.numbers[:, 1], 0]
            fills = (s.numbers[:, :1] == Phase.FILL) & (columns >= start[:, None])  # [R, W]
            return (keys <= columns[:, :, None]) | (fills[:, :, None] & (keys < limit[:, None])[:, None])
        sees = (keys < limit[:, None])[:, None]
        if self.is_causal and (is_wide or not self.is_cached):
            prompts = s.facts[:, 2:3]
            block = self.attention.block_of(columns, prompts)[:, :, None]
            sees = sees & (self.attention.block_of(keys, prompts)[:, None] <= block)
        return sees

    def _logits(
        self,
        s: Rows,
        rows: Tensor | None,
        columns: Tensor,
        tokens: Tensor,
        sees: Tensor | None,
        row: Tensor,
        offset: Tensor,
        n_seen: int | None,
    ) -> Tensor:
        """Logits [N, V] of the tokens at `offset` [N] in the windows of `row` [N]."""
        cfg_scale = self.options.cfg_scale
        prompt = s.prompt.gather(1, columns) if cfg_scale > 0.0 else None
        if self.is_whole:
            real = None if sees is None else sees[:, 0].long()
            at = row * columns.shape[1] + offset
            return self.denoiser.logits(tokens, real, at, cfg_scale=cfg_scale, prompt_mask=prompt)
        return self.denoiser.window_logits(
            tokens,
            columns,
            sees,
            row,
            offset,
            cache=self.cache,
            cache_rows=None if rows is None else self._with_guided(rows),
            n_seen=n_seen,
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
        slots = self._iota(n_rows) if rows is None else rows
        if not len(row):
            return
        is_wanted = wanted.flatten() if at is None else at < wanted.numel()
        column = self._iota(wanted.numel()) % (width + 1) if at is None else at % (width + 1)
        for is_there, tells in (((offset == 0) & (number[row] > 0), False), (column == width, True)):
            is_there &= is_wanted
            n = torch.nonzero_static(is_there, size=n_rows, fill_value=0).squeeze(1)  # [R] of the N
            of_slot = slots[row[n]]
            if tells:
                self.behind[of_slot.where(is_there[n], len(self.slots))] = logits[n]
            else:
                logits[n] = self.behind[of_slot].where(is_there[n, None], logits[n])

    # What the host sees of it

    def _send(self) -> None:
        """Copies what the host looks at, on a GPU without waiting for it."""
        sent = torch.cat([self.state.numbers, self.state.tokens.gather(1, self.state.returned)], 1)  # [R, 8 + N]
        event = None
        if self.on_gpu:
            pinned = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=True)
            sent, event = pinned.copy_(sent, non_blocking=True), _event()
        self.looks.append((self.n_passes, sent, event, list(self.slots)))

    def look(self, *, is_last: bool, at_all: bool) -> tuple[int, list[tuple[int, Look]]]:
        """Denoising steps that were taken, and the slots whose rows are over, with all that is to be seen of them.

        With `at_all`, others that took a step, too. On a GPU these are those of the pass before the last one, which is
        over by now, unless nothing follows it.
        """
        if len(self.looks) < (2 if self.on_gpu and not is_last else 1):
            return 0, []
        self.last_seen, sent, event, owners = self.looks.pop(0)
        if event is not None:
            event.synchronize()
        slot_of = {index: slot for slot, index in enumerate(self.slots) if index is not None}
        steps, found = 0, []
        for numbers, tokens, index in zip(sent[:, :8].tolist(), sent, owners, strict=True):
            if index is None or index not in slot_of:
                continue
            slot = slot_of[index]
            taken = numbers[5] - self.seen[slot][5]
            steps, self.seen[slot] = steps + taken, numbers
            if not self.looks:
                self.n_run[slot] = numbers[4]
            is_due = at_all and taken and numbers[5] % _STEPS_BETWEEN_LOOKS.get(self.device.type, 1) == 0
            if numbers[0] == Phase.OVER or is_due or not numbers[7]:
                returned = tokens[8 : 8 + self.canvases[index].n_returned]
                found.append((slot, look_at(numbers, returned.tolist(), self.denoiser.mask_token_id)))
        return steps, found

    def decode(
        self,
        is_decided: Callable[[list[int]], bool] | None,
        advance: Callable[[int], object],
        finished: Callable[[int, Completion], object],
    ) -> list[Completion]:
        """Decodes all canvases; what `decode_canvases` says of stop tokens, early exit, progress and errors holds here.

        A model that edits may change a token until the token's block is done: early exit waits for that.
        """
        completions: dict[int, Completion] = {}
        n_read: dict[int, int] = {}  # tokens that `is_decided` was asked about
        asks = self.options.exits_early and is_decided is not None
        while len(completions) < len(self.canvases):
            runs = self.run_pass()
            steps, looks = self.look(is_last=not runs, at_all=asks)
            free = []
            for slot, row in looks:
                index = self.slots[slot]
                assert index is not None
                if not row.is_finite:
                    raise NonFiniteLogitsError(index)
                is_over = row.phase is Phase.OVER
                is_final = row.phase is Phase.STORE or self.options.editing_threshold is None
                if asks and is_decided and not is_over and is_final and len(row.written) > n_read.get(index, 0):
                    n_read[index] = len(row.written)
                    is_over = is_decided(row.written)
                if is_over:
                    ends = (n for n, token in enumerate(row.written, start=1) if token in self.end_ids)
                    answer = row.written[: next(ends, len(row.written))]
                    trace = self.state.traced(slot, len(answer)) if self.options.trace else ()
                    completions[index] = Completion(answer, row.cost, row.n_written, trace)
                    finished(index, completions[index])
                    free.append(slot)
            advance(steps)
            if free:
                self.refill(free)
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


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
