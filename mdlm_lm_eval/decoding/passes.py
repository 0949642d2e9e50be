"""One pass over rows on the device: what is run of them, the tokens that this proposes, what is filled and changed."""

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding import remasking
from mdlm_lm_eval.decoding.blocks import blocks_of
from mdlm_lm_eval.decoding.candidates import propose, uniform_numbers
from mdlm_lm_eval.decoding.canvas import Canvas, cache_in_effect
from mdlm_lm_eval.decoding.end_of_thinking import EndOfThinking
from mdlm_lm_eval.decoding.program import Field, Kind, Program, program_of
from mdlm_lm_eval.decoding.remasking import Shadow
from mdlm_lm_eval.decoding.rows import Numbers, Plane, Rows, Sizes, rows_of
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import iota
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions

# On a GPU, shapes are rounded up to these, so that attention kernels and graphs meet few of them.
KEYS, POSITIONS = 256, 64


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
    cache: CanvasCache | None


class Window(NamedTuple):
    """Of each row: its record [R, F], the number of its block [R] (-1 where it waits), what is run, what may be filled.

    stay, done: [R], the records that may follow. has_before: [R], whether a block stands before it, where that matters.
    run: columns [R, W] that the model runs. columns, expected, asked, part: [R, G], as `Plane` says, of those where
    tokens are proposed; part is None without small blocks. outputs: [R, G], which of the R * W outputs tells the token;
    None where it is that of the same place. sees: as of `Denoiser.window_logits`.
    """

    record: Tensor
    number: Tensor
    stay: Tensor
    done: Tensor
    has_before: Tensor | None
    run: Tensor
    columns: Tensor
    expected: Tensor
    asked: Tensor
    outputs: Tensor | None
    part: Tensor | None
    sees: Tensor | None


class Passes:
    """Passes over the rows of these canvases, by a model with these options."""

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
    ) -> None:
        self.denoiser, self.attention, self.options = denoiser, attention, options
        self.banned_ids, self.end_ids, self.thinking = banned_ids, end_ids, thinking
        self.token_frequencies = token_frequencies
        self.device = denoiser.device
        self.on_gpu = self.device.type == "cuda"
        self.is_causal = attention.is_block_causal
        self.is_cached = cache_in_effect(attention, options) != "none"
        self.is_whole = not self.is_causal and not options.is_approximate
        # A stored block predicts the token behind it; where that is written at once, no pass sees it masked.
        self.tells_next = self.is_causal and (denoiser.shift or attention.causal_context)
        self.writes_next = self.tells_next and (attention.blocks_from == "row_start" or attention.causal_context)
        # Whether a mask must exceed `confidence_threshold`: so in block diffusion, but for Nemotron-Labs-Diffusion.
        self.is_strict = self.is_causal and not attention.whole_prompt
        self.canvases = canvases
        stores = self.is_causal and (self.is_cached or self.tells_next)
        how = {"is_causal": self.is_causal, "is_cached": self.is_cached, "stores": stores}
        how |= {"tells_next": self.tells_next, "writes_next": self.writes_next}
        of_shapes: dict[object, Program] = {}
        self.programs: list[Program] = []
        for canvas in canvases:
            numbers = len(canvas.token_ids), canvas.prompt_length, canvas.n_returned
            shape = *numbers, canvas.slots, canvas.block_lengths, canvas.block_steps
            if shape not in of_shapes:
                own = blocks_of(canvas, attention, options, shift=denoiser.shift)
                of_shapes[shape] = program_of(own, len(canvas.token_ids), options, **how)
            self.programs.append(of_shapes[shape])
        blocks = [block for program in of_shapes.values() for block in program.blocks]
        self.longest_block = max(len(block.slots) for block in blocks)
        narrow = [block.stop - block.start for block in blocks if block.slots or not block.is_wide]
        self.runs_blocks = self.is_cached and options.cache != "prefix"
        longest = max(len(canvas.token_ids) for canvas in canvases)
        # Without blocks, an end of text stops nothing; with them, the host looks for one wherever there are slots.
        self.stops_at_end = bool(end_ids) and (
            not self.is_whole or options.append_blocks or options.remasking == "remdm"
        )
        self.sizes = Sizes(
            columns=columns_of(longest, is_padded=self.on_gpu and self.is_cached),
            blocks=max(len(program.blocks) for program in of_shapes.values()),
            records=max(len(program.records) for program in of_shapes.values()),
            shown=max(len(canvas.slots) if self.stops_at_end else canvas.n_returned for canvas in canvases),
            slots=max(len(canvas.slots) for canvas in canvases),
            vocabulary=0 if options.kl_threshold is None else denoiser.vocab_size,
            window=max(narrow, default=1) if self.is_cached else 0,
            tells=self.tells_next,
            writes=self.writes_next,
            shift=denoiser.shift,
        )
        # Whether every pass fills one mask, or what a parallel rule says.
        one_each = all(count == 1 for block in blocks for count in block.counts)
        self.one_a_pass = one_each and options.kl_threshold is None and options.remasking == "none"
        # Whether anything asks where in its row a mask stands.
        rule = unmasking_rule(options.unmasking)
        self.is_random, self.needs_places = rule.is_random, rule.reads_places
        self.needs_places |= options.temperature > 0.0 or options.kl_threshold is not None
        self.needs_places |= thinking is not None and bool(thinking.boost)
        self.needs_confidence = options.is_parallel or options.editing_threshold is not None or self.needs_places
        self.needs_confidence |= options.remasking != "none" or options.trace
        self.state: Rows  # of all slots
        self.sees: Tensor | None = None  # what all rows see of so many columns, where that does not change
        # Of a model whose blocks tell the next token, the logits of the one behind each slot's last block, [R + 1, V].
        self.behind: Tensor | None = None

    def rows(self, indices: Sequence[int]) -> Rows:
        """Canvases as they begin, on the host."""
        canvases, programs = [self.canvases[index] for index in indices], [self.programs[index] for index in indices]
        ids = self.denoiser.pad_token_id, self.denoiser.mask_token_id
        rows = rows_of(canvases, programs, self.options, self.sizes, *ids)
        if self.thinking is not None:
            self._enter_blocks(rows, rows.records[:, 0, Field.NUMBER], torch.ones_like(rows.at, dtype=torch.bool))
        return rows

    def cache_of(self, n_rows: int) -> CanvasCache:
        n_rows = 2 * n_rows if self.options.cfg_scale > 0.0 else n_rows
        return CanvasCache(self.denoiser.model.config.num_hidden_layers, self.sizes.columns, n_rows)

    def with_guided(self, rows: Tensor, n_rows: int) -> Tensor:
        """Rows of a cache: behind all `n_rows` lie those of the unconditional canvases."""
        return torch.cat([rows, rows + n_rows]) if self.options.cfg_scale > 0.0 else rows

    def most_wanted(self, masks: int | None, plan: Plan, n_rows: int) -> int | None:
        """On a GPU, which is not asked for their number: the most logits that a pass needs, None for all columns.

        `masks` are those of the rows that run, where they are known.
        """
        width, is_wide = plan.width, plan.is_wide
        if self.is_causal and is_wide:
            return n_rows if self.tells_next else 0
        if self.is_cached and not is_wide:
            return None
        if self.options.remasking != "none" or self.options.kl_threshold is not None:
            return n_rows * (width + self.longest_block)
        if masks is not None and (self.is_whole or not self.denoiser.shift):
            return up(masks + (n_rows - len(plan.going)) * self.longest_block * is_wide, POSITIONS)
        return min(n_rows * width, up(n_rows * self.longest_block, POSITIONS))

    def window_of(self, s: Rows, plan: Plan) -> Window:
        """Where a pass runs what of the rows: this is the same until they go on to their next records."""
        options, n_rows, width, is_wide = self.options, len(s.at), plan.width, plan.is_wide
        every, mask, last = iota(n_rows, self.device), self.denoiser.mask_token_id, self.sizes.columns - 1
        record = s.records[every, s.at]  # [R, F]
        number, limit = record[:, Field.WIDE if is_wide else Field.BLOCK], record[:, Field.LIMIT]
        shift, tells, small = int(self.denoiser.shift), int(self.tells_next), options.small_block_length
        outputs, part = None, None
        run = iota(width, self.device).expand(n_rows, width)
        if self.is_cached and not is_wide:
            planes = s.windows[every, record[:, Field.WINDOW]]  # [R, 5, G]
            if not self.on_gpu and self.runs_blocks:
                planes = planes[..., : width + tells]
            columns, expected, _, outputs, part = planes.unbind(1)
            if self.runs_blocks and not (shift or tells):
                outputs = None
            asked = _flags(planes)[:, Plane.ASKED]
            run = columns[:, tells:] if self.runs_blocks else _until(limit, record[:, Field.START, None] + run, last)
        else:
            if not self.is_whole:
                run = _until(limit, run, last)
            columns, block_of = run, s.block_of[:, :width] if self.is_whole else s.block_of.gather(1, run)
            asked = block_of == number[:, None]
            if options.remasking == "rcr":  # tokens of earlier blocks are taken back, too
                asked = (block_of >= 0) & (block_of <= number[:, None])
            expected = torch.where(asked, mask, -1)
            part = None if small is None else (columns - record[:, Field.START, None]) // small
            if tells:
                stores = ((record[:, Field.KIND] == Kind.STORE) & (number >= 0))[:, None]
                behind = record[:, Field.STOP, None].clamp(max=last)
                is_written = stores & (s.slot_number.gather(1, behind) >= 0) & self.writes_next
                columns = torch.cat([behind.masked_fill(~is_written, last), columns], 1)
                expected = torch.cat([torch.where(is_written, mask, -1), expected], 1)
                asked = torch.cat([stores, asked & ~stores], 1)
                told = (limit.clamp(max=width) - 1)[:, None]
                outputs = torch.cat([told, (iota(width, self.device) - shift).clamp(min=0).expand(n_rows, width)], 1)
                part = None if part is None else torch.nn.functional.pad(part, (1, 0), value=-1)
            elif shift and not self.is_whole:
                outputs = (run - shift).clamp(min=0, max=width - 1)  # a padded place has the window's last column
        if outputs is not None:
            outputs = outputs + iota(n_rows * width, self.device)[::width, None]
        sees = None
        if plan.is_ragged:
            stays = plan.rows is None and not (self.is_causal or options.append_blocks)
            sees = self.sees if stays else None
            if sees is None or sees.shape[2] != plan.n_seen:
                sees = self._sees(s, record, run, plan)
            self.sees = sees if stays else self.sees
        successors = record[:, Field.STAY], record[:, Field.WIDE_DONE if is_wide else Field.DONE]
        has_before = number > 0 if tells and not self.writes_next else None
        return Window(record, number, *successors, has_before, run, columns, expected, asked, outputs, part, sees)

    def step(self, s: Rows, plan: Plan, window: Window, n_wanted: int | None) -> None:
        """One pass of the model over rows `s`, and what follows from it for them."""
        options, mask, is_wide = self.options, self.denoiser.mask_token_id, plan.is_wide
        record, number, columns, expected = window.record, window.number, window.columns, window.expected
        tokens = s.tokens.gather(1, columns)  # [R, G]
        n_rows, n_places = tokens.shape
        masked = tokens == expected
        candidates, shadow, edits = masked, None, options.editing_threshold
        changeable = window.asked
        if self.thinking is not None and self.thinking.budget is not None:
            changeable = changeable & (tokens != self.thinking.end)
        if options.small_block_length is not None and window.part is not None:
            part = window.part.where(masked, self.sizes.columns)
            candidates = masked & (part == part.amin(1, keepdim=True))
        if is_wide and not self.is_causal and self.denoiser.shift:
            candidates = masked & (masked.cumsum(1) == 1)  # its logits are no later window's

        # Where logits are needed: all places of a narrow pass on a GPU, and elsewhere those that are asked for.
        wanted, numel = candidates, n_rows * n_places
        at: Tensor | None = None
        of_all: Tensor | None = None
        tells_later, is_asked = self.tells_next and not self.writes_next, n_wanted is not None or not self.on_gpu
        if (is_asked and (edits is not None or self.tells_next)) or (tells_later and edits is not None):
            wanted = candidates | (window.asked & ~masked)
        if options.kl_threshold is not None:  # what the next block's first pass is compared with
            wanted = wanted | ((s.block_of.gather(1, columns) == number[:, None] + 1) & (number >= 0)[:, None])
        elif options.remasking == "wino":
            shadow = Shadow.of(s, number, record[:, Field.BEFORE], self.longest_block)
            wanted = torch.cat([wanted, (shadow.tokens != mask) & shadow.is_there], 1)  # [R, G + B]
            n_places, numel = wanted.shape[1], wanted.numel()
        if not self.on_gpu:
            at = of_all = torch.from_numpy(np.flatnonzero(wanted.numpy()))  # [N]
        elif n_wanted is not None:  # behind the last where there are fewer
            at = torch.nonzero_static(wanted.flatten(), size=n_wanted, fill_value=numel).squeeze(1)
            of_all = at.clamp(max=numel - 1)
        positions: Any = of_all if window.outputs is None else window.outputs.flatten()
        if of_all is not None and window.outputs is not None:
            positions = positions[of_all]
        row: Any = None
        offset: Any = None
        if self.needs_places or shadow is not None:
            row, offset = _places(n_rows, n_places, self.device)
            if of_all is not None:
                row, offset = of_all // n_places, of_all % n_places

        # Logits of these, and the tokens that they propose.
        is_apart = self.is_cached and not (self.runs_blocks or is_wide)
        ids = s.tokens.gather(1, window.run) if is_apart else tokens[:, 1:] if self.tells_next else tokens
        if shadow is not None:
            logits = shadow.logits(self.denoiser, columns, tokens, columns < s.facts[:, :1], positions)
        else:
            named: dict[str, Any] = {}
            if options.cfg_scale > 0.0:
                named = {"cfg_scale": options.cfg_scale, "prompt_mask": s.prompt.gather(1, window.run)}
            if self.is_whole:
                real = None if window.sees is None else window.sees[:, 0]
                logits = self.denoiser.logits(ids, real, positions, is_aligned=True, **named)
            else:
                rows = None if plan.rows is None else self.with_guided(plan.rows, len(self.state.at))
                named |= {"cache": plan.cache, "cache_rows": rows, "n_seen": None if plan.is_wide else plan.n_seen}
                logits = self.denoiser.window_logits(ids, window.run, window.sees, positions, **named)
        if tells_later:
            self._tell(logits, plan.rows, at, wanted, window)
        here: Any = None
        slot_numbers: Any = None
        if self.needs_places:
            here = columns[row, offset.clamp(max=columns.shape[1] - 1)]  # [N]
            if self.tells_next:
                here = here.where(offset > 0, (record[:, Field.STOP] - 1).clamp(min=0)[row])
            slot_numbers = s.slot_number[row, here]
        if self.thinking is not None and self.thinking.boost:
            in_block = (s.block_of == number[:, None]) & (s.tokens == mask)
            budget = (s.slot_number >= 0).sum(1, keepdim=True)
            self.thinking.raise_logits(logits, row, here, s.tokens, in_block, (s.facts[:, 1:2], budget))
        proposals = propose(
            logits,
            options,
            banned_ids=self.banned_ids,
            end_ids=self.end_ids,
            uniform=uniform_numbers(s.facts[row, 2], s.steps[row], slot_numbers) if options.temperature > 0.0 else None,
            slot_numbers=slot_numbers,
            random_numbers=s.random_numbers[row, here] if self.is_random else None,
            block_offsets=slot_numbers - record[row, Field.BEFORE] if self.needs_places else None,
            token_frequencies=self.token_frequencies,
            needs_confidence=self.needs_confidence,
        )

        def spread(values: Tensor) -> Tensor:  # [N] -> [R, G], with a shadow [R, G + B]
            if not self.on_gpu:
                return values.new_zeros(n_rows, n_places).masked_scatter_(wanted, values)
            if at is not None:
                values = values.new_zeros(numel + 1).scatter_(0, at, values)[:numel]
            return values.view(n_rows, n_places)

        proposed, priority = spread(proposals.tokens), spread(proposals.priority)
        confidence = spread(proposals.confidence) if self.needs_confidence else priority
        entropy = confidence if options.entropy_bound is None else spread(proposals.entropy)
        belief = None
        if shadow is not None:
            belief = shadow.belief(logits, row, offset, spread, columns)
            proposed, priority, confidence = (each[:, : columns.shape[1]] for each in (proposed, priority, confidence))

        # Fill and edit.
        counts = None if self.one_a_pass else record[:, Field.COUNT]
        chosen, best = select(candidates, priority, confidence, entropy, counts, options, strict=self.is_strict)
        # NaN is the largest of all; a rule that reads places may not see it.
        s.best = confidence.where(candidates, 0).sum(1) if self.needs_places else best
        taken = None
        if options.kl_threshold is not None:
            slots = slot_numbers.where(at < numel, s.before.shape[1] - 1) if at is not None else slot_numbers
            changes = remasking.compare_with_before(s, logits, row, slots, spread, columns)
            chosen = remasking.choose_stable(chosen, candidates, confidence, changes, record[:, Field.STEP], options)
        elif shadow is not None and belief is not None:
            chosen, taken = shadow.choose(candidates, changeable & ~masked, confidence, belief, s.filled, options)
        elif options.remasking != "none":
            filled = changeable & (~masked | chosen)
            taken = remasking.least_sure(s, columns, priority, chosen, filled, record[:, Field.BACK])
        if edits is None:
            written = chosen
            goes_on = (masked ^ chosen).any(1)
        else:  # what was filled may change; a row where only that is left goes on with what changes
            written = chosen.where(masked, (confidence > edits) & changeable)
        new = proposed.where(written, tokens)
        if edits is not None:
            only_edits = _flags(record)[:, Field.EDITS, None]
            goes_on = ((new == tokens.where(only_edits, expected)) ^ only_edits).any(1)
        if options.trace:
            changed = written if edits is None else written & (new != tokens)
            s.note(columns, changed, confidence)
            s.passes = s.passes + (number >= 0)
        if taken is not None:
            new = new.masked_fill(taken, mask)
            goes_on |= taken.any(1)
            s.filled = chosen.sum(1) * goes_on
        s.tokens.scatter_(1, columns, new)

        # What the next pass does.
        s.at = window.stay.where(goes_on, window.done)
        if options.temperature > 0.0:
            s.steps = s.steps + ((number >= 0) & (record[:, Field.KIND] != Kind.STORE))
        if self.thinking is not None:
            entered = s.records[iota(len(s.at), self.device), s.at, Field.NUMBER]
            self._enter_blocks(s, entered, (entered > record[:, Field.NUMBER]) & (number >= 0))

    def _enter_blocks(self, s: Rows, entered: Tensor, enters: Tensor) -> None:
        """Writes the end of thinking that is due in the blocks `entered` [R], of rows [R] that `enters` theirs now."""
        assert self.thinking is not None
        tokens = self.thinking.close(s.tokens, s.block_of, s.facts[:, 1], entered, enters)
        if self.options.trace:  # no pass wrote it
            s.trace.masked_fill_((tokens != s.tokens)[:, None], 0.0)
        s.tokens.copy_(tokens)

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

    def _tell(self, logits: Tensor, rows: Tensor | None, at: Tensor | None, wanted: Tensor, window: Window) -> None:
        """Puts what the block before told into a block's first `logits`, and remembers what a stored block tells.

        They stand at the second and at the first place of those `wanted` [R, G]. `logits` are of all places, or of
        those `at` [N].
        """
        n_rows, n_places = wanted.shape
        assert window.has_before is not None
        if self.behind is None:
            self.behind = logits.new_zeros(len(self.state.at) + 1, logits.shape[1])
        if at is None:
            of_places, slots = logits.view(n_rows, n_places, -1), slice(n_rows) if rows is None else rows
            before, told = self.behind[slots], (wanted[:, 1] & window.has_before)[:, None]
            of_places[:, 1] = before.where(told, of_places[:, 1])
            self.behind[slots] = of_places[:, 0].where(window.asked[:, :1], before)
            return
        slots = iota(n_rows, self.device) if rows is None else rows
        if not len(at):
            return
        is_wanted, row, offset = at < wanted.numel(), (at // n_places).clamp(max=n_rows - 1), at % n_places
        for is_there, tells in (((offset == 1) & window.has_before[row], False), (offset == 0, True)):
            is_there &= is_wanted
            n = torch.nonzero_static(is_there, size=n_rows, fill_value=0).squeeze(1)  # [R] of the N
            of_slot = slots[row[n]]
            if tells:
                self.behind[of_slot.where(is_there[n], len(self.state.at))] = logits[n]
            else:
                logits[n] = self.behind[of_slot].where(is_there[n, None], logits[n])


@functools.lru_cache(maxsize=64)
def _places(n_rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and offset [R * W] of all places of flattened windows."""
    every = iota(n_rows * width, device)
    return every // width, every % width


def _flags(table: Tensor) -> Tensor:
    """The same table of numbers [..., C] as bool, where they are 0 or 1: its lowest bytes, which no kernel copies."""
    return table.view(torch.bool)[..., ::8]


def _until(limit: Tensor, columns: Tensor, last: int) -> Tensor:
    """`columns` [R, W] below each row's `limit` [R], and `last` for all others."""
    return torch.where(columns < limit[:, None], columns, last)


def columns_of(longest: int, *, is_padded: bool) -> int:
    """Columns of canvases of up to `longest` tokens, and one for what nobody reads; `is_padded` as keys on a GPU."""
    return (up(longest, KEYS) if is_padded else longest) + 1


def up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple
