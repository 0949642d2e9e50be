"""One pass over rows: masks are found, the model is asked, the sampler chooses, the rows change and move on.

`run_pass` is the whole of it, one stage after the other. No stage depends on which sampler is used.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Proposals, WhereMasked, uniform_numbers
from mdlm_lm_eval.decoding.drafts import drafted
from mdlm_lm_eval.decoding.hindsight import Shadow
from mdlm_lm_eval.decoding.history import History
from mdlm_lm_eval.decoding.next_token import NextTokenLogits
from mdlm_lm_eval.decoding.places import Places
from mdlm_lm_eval.decoding.program import Field, Kind
from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.decoding.run import Run
from mdlm_lm_eval.decoding.sampler import Answer, Choice, View
from mdlm_lm_eval.decoding.windows import Plan, Window
from mdlm_lm_eval.model.devices import iota, up_to_positions


@dataclass
class Memory:
    """State of all lanes that passes leave for later ones, beside the rows."""

    next_token: NextTokenLogits
    history: History | None


def run_pass(run: Run, rows: Rows, plan: Plan, window: Window, memory: Memory, n_wanted: int | None) -> None:
    """One pass of the model over `rows`, and the changes of these that follow from it.

    `n_wanted`: on a GPU, the most logits that the pass needs; None for all places.
    """
    tokens = rows.tokens.gather(1, window.columns)  # [R, G]
    one = _Pass(run, rows, plan, window, tokens, n_wanted)
    shadow: Shadow | None = None
    if run.needs.hindsight:
        shadow = Shadow.of(rows, window.number, window.record[:, Field.BEFORE], run.longest_block)
    places = Places(one.wanted(shadow), n_wanted, on_gpu=run.on_gpu)
    logits = one.logits(places, shadow)
    if run.predicts_next and not run.fills_next:
        lanes = plan.rows if plan.views == 1 else plan.cache_rows
        memory.next_token.exchange(logits, places, lanes, window.asked, window.number > 0)
    first = one.first_tokens(logits, places)
    columns, where = one.where(places)
    if run.thinking is not None and columns is not None:
        run.thinking.raise_logits(logits, places.row, columns, rows, window.number, run.denoiser.mask_token_id)
    proposals = run.proposer.propose(logits, where)
    divergence = beliefs = None
    if shadow is not None:
        of_shadow = shadow.hindsight(logits, places.row, places.offset - tokens.shape[1])
        beliefs = shadow.onto(places.spread(of_shadow)[:, tokens.shape[1] :], window.columns)
    if memory.history is not None and (slots := where.slot_numbers) is not None:
        slots = slots if places.inside is None else slots.where(places.inside, run.n_slots)
        now = places.spread(memory.history.add(logits, places.row, slots))
        divergence = memory.history.divergences(now, window.columns)
    view = one.view(places, proposals, beliefs, divergence)
    choice = run.sampler.choose(view, run.options)
    new = choice.tokens_after(view, run.denoiser.mask_token_id)
    one.write(view, choice, new)
    if first is not None:  # the numbers of the last pass that wrote the slot are kept
        found, is_first = first
        rows.first = found.where((choice.written & is_first).any(1, keepdim=True), rows.first)
    one.move_on(new)


def most_wanted(run: Run, plan: Plan, n_rows: int, masks: int | None) -> int | None:
    """The most logits that a pass needs on a GPU, which is not asked for their exact number; None for all places.

    `masks` is the number of masks in the rows that take part; None if it is not known.
    """
    if run.is_causal and plan.is_wide:
        return n_rows if run.predicts_next else 0
    if run.is_cached and not (plan.is_wide or run.runs_later):
        return None
    if masks is not None and (run.is_whole or not run.shift):
        return up_to_positions(masks)
    of_row = run.n_slots if run.needs.earlier_blocks or run.runs_later else run.longest_block
    if run.needs.history:  # the next block, too
        of_row += run.longest_block
    places = plan.width
    if run.needs.hindsight:  # the filled tokens, whose own places may be asked for as well
        of_row += run.longest_block * run.needs.proposals_for_filled
        places += run.longest_block
    return min(n_rows * places, up_to_positions(n_rows * of_row))


@dataclass(frozen=True)
class _Pass:
    """The data that all stages of a pass read. tokens: [R, G], those of the window. n_wanted: as in `run_pass`."""

    run: Run
    rows: Rows
    plan: Plan
    window: Window
    tokens: Tensor
    n_wanted: int | None

    @cached_property
    def masks(self) -> Tensor:
        """The masks [R, G] bool."""
        return self.tokens == self.window.expected

    @cached_property
    def fillable(self) -> Tensor:
        """Masks [R, G] bool that this pass may fill: with small blocks, those of the first one that holds masks."""
        run, masks, part = self.run, self.masks, self.window.part
        if run.options.small_block_length is not None and part is not None:
            part = part.where(masks, run.n_columns)
            return masks & (part == part.amin(1, keepdim=True))
        if self.plan.is_wide and not run.is_causal and run.shift:
            return masks & (masks.cumsum(1) == 1)  # no later window holds the logits of the first mask
        return masks

    @cached_property
    def others(self) -> Tensor | None:
        """Places without a mask whose logits may be needed, [R, G] bool; None if nothing reads them.

        They are filled tokens, and the place after a finished block.
        """
        reads_next = self.run.predicts_next and (self.n_wanted is not None or not self.run.on_gpu)
        return self.window.asked & ~self.masks if self.run.needs.filled or reads_next else None

    def wanted(self, shadow: Shadow | None) -> Tensor:
        """Places whose logits the pass needs, [R, G] bool, or [R, G + B] with a shadow.

        On a GPU, narrow passes compute the logits of all places anyway.
        """
        run, window, wanted = self.run, self.window, self.fillable
        reads_others = run.predicts_next or run.needs.proposals_for_filled
        is_asked = self.n_wanted is not None or not run.on_gpu or (run.predicts_next and not run.fills_next)
        if self.others is not None and reads_others and is_asked:
            wanted = wanted | self.others
        if run.needs.history:  # the next block's first pass is compared with this one
            of_next = self.rows.block_of.gather(1, window.columns) == window.number[:, None] + 1
            wanted = wanted | (of_next & (window.number >= 0)[:, None])
        if shadow is not None:
            wanted = torch.cat([wanted, shadow.wanted(run.denoiser.mask_token_id)], 1)
        return wanted

    def logits(self, places: Places, shadow: Shadow | None) -> Tensor:
        """Logits [N, V] at the places."""
        run, rows, plan, window = self.run, self.rows, self.plan, self.window
        options, tokens, positions = run.options, self.tokens, places.outputs(window.outputs)
        if shadow is not None:
            is_real = window.columns < rows.facts[:, :1]
            return shadow.logits(run.denoiser, window.columns, tokens, is_real, positions)
        if run.is_cached and not (run.runs_blocks or plan.is_wide):
            ids = rows.tokens.gather(1, window.run)
        else:
            ids = tokens[:, 1:] if run.predicts_next else tokens
        prompt = rows.prompt.gather(1, window.run) if options.cfg_scale > 0.0 else None
        if run.is_whole:
            assert positions is not None
            return run.denoiser.logits(
                ids,
                None if window.sees is None else window.sees[:, 0],
                positions,
                cfg_scale=options.cfg_scale,
                prompt_mask=prompt,
                is_aligned=True,
            )
        return run.denoiser.window_logits(
            ids,
            window.run,
            window.sees,
            positions,
            cache=plan.cache,
            cache_rows=plan.cache_rows,
            n_seen=None if plan.is_wide and not run.continues else plan.n_seen,
            n_views=plan.views,
            cfg_scale=options.cfg_scale,
            prompt_mask=prompt,
        )

    def first_tokens(self, logits: Tensor, places: Places) -> tuple[Tensor, Tensor] | None:
        """The numbers of `FirstToken` [R, 3], before tokens are banned, and which places [R, G] are first slots.

        None without labels. If a row's first slot is not among the places, its numbers are those of another place.
        """
        labels = self.run.label_ids
        if labels is None or not len(logits):
            return None
        is_first = self.rows.slot_number.gather(1, self.window.columns) == 0
        place = is_first.to(torch.uint8).argmax(1) + iota(len(is_first), logits.device) * places.wanted.shape[1]
        if places.at is not None:
            place = torch.searchsorted(places.at, place).clamp(max=len(places.at) - 1)
        logits = logits[place]  # [R, V]
        entropy = torch.special.entr(logits.float().softmax(-1)).sum(-1)
        label = labels[logits[:, labels].argmax(-1)]
        return torch.stack([logits.argmax(-1).float(), label.float(), entropy], 1), is_first

    def where(self, places: Places) -> tuple[Tensor | None, WhereMasked]:
        """The column of each place [N], and the facts that rules and draws read of it.

        (None, no facts) if neither reads any.
        """
        run, rows, window = self.run, self.rows, self.window
        if not run.needs_places:
            return None, WhereMasked()
        columns = window.columns[places.row, places.offset.clamp(max=window.columns.shape[1] - 1)]
        if run.predicts_next:
            last = (window.record[:, Field.STOP] - 1).clamp(min=0)[places.row]
            columns = columns.where(places.offset > 0, last)
        slots = rows.slot_number[places.row, columns]
        is_drawn = run.options.temperature > 0.0
        return columns, WhereMasked(
            slots,
            slots - window.record[places.row, Field.BEFORE],
            rows.random_numbers[places.row, columns] if run.is_random else None,
            uniform_numbers(rows.facts[places.row, 2], rows.steps[places.row], slots) if is_drawn else None,
        )

    def view(self, places: Places, proposals: Proposals, beliefs: Tensor | None, divergence: Tensor | None) -> View:
        """The pass as the sampler sees it, with the `hindsight` and the `divergence` that it may ask for."""
        run, tokens, record = self.run, self.tokens, self.window.record
        width = tokens.shape[1]
        priority = places.spread(proposals.priority)[:, :width]
        confidence = places.spread(proposals.confidence)[:, :width] if run.needs_confidence else priority
        filled = self.fillable  # not read
        if run.needs.filled and self.others is not None:
            filled = self.others if run.thinking is None else run.thinking.spares(self.others, tokens)
            if run.predicts_next:  # whose first place is that of the token after a finished block
                filled[:, 0] = False
        proposed = places.spread(proposals.tokens)[:, :width]
        return View(
            columns=self.window.columns,
            tokens=tokens,
            masks=self.fillable,
            filled=filled,
            proposed=proposed,
            confidence=confidence,
            priority=priority,
            entropy=places.spread(proposals.entropy)[:, :width] if run.proposer.needs_entropy else confidence,
            fill=None if run.one_a_pass else record[:, Field.FILL],
            back=record[:, Field.BACK],
            step=record[:, Field.STEP],
            strict=run.is_strict,
            hindsight=beliefs,
            divergence=divergence,
            answer=self.answer(proposed) if run.needs.answer else None,
            state=self.rows.state,
        )

    def answer(self, proposed: Tensor) -> Answer:
        """`View.answer`, from all places of the window."""
        run, rows, tokens = self.run, self.rows, self.tokens
        slots, blocks = (of_row.gather(1, self.window.columns) for of_row in (rows.slot_number, rows.block_of))
        first = rows.block_of.where(rows.block_of >= 0, run.n_blocks).amin(1, keepdim=True)
        is_slot, ends, would_end = slots >= 0, torch.zeros_like(slots), torch.zeros_like(slots)
        for end_id in run.work.end_ids:
            ends, would_end = ends | (tokens == end_id), would_end | (proposed == end_id)
        is_mask = is_slot & (tokens == run.denoiser.mask_token_id)
        return Answer(slots, blocks - first, is_mask, is_slot & ends.bool(), would_end.bool())

    def write(self, view: View, choice: Choice, new: Tensor) -> None:
        """Writes the rows' tokens, the sampler's state, and the numbers that the host looks at."""
        run, rows, window = self.run, self.rows, self.window
        # A NaN sorts as the largest priority; rules that read places may compute none from it.
        if choice.best is None or run.needs_places:
            rows.best = view.confidence.where(view.masks, 0).sum(1)
        else:
            rows.best = choice.best
        rows.tokens.scatter_(1, window.columns, new)
        if choice.state:
            rows.state = dict(choice.state)
        if rows.drafts is not None:
            rows.drafts = drafted(view, choice, rows.tokens.shape[1])
        if run.options.trace:
            before = rows.confidence.gather(1, window.columns)
            now = view.confidence if choice.tokens is None else view.confidence.where(new == view.proposed, 0.0)
            rows.confidence.scatter_(1, window.columns, now.where(new != view.tokens, before))

    def move_on(self, new: Tensor) -> None:
        """Sets each row's next record: a row stays in its block while masks are left or an edit changed something.

        If later blocks are run too, a row goes on to the first block that had masks before the pass. So a block that
        the pass finished is run once more, and the keys and values of its final tokens are remembered.
        """
        run, rows, window, before = self.run, self.rows, self.window, self.tokens
        record, stay = window.record, window.record[:, Field.STAY]
        if run.runs_later:
            blocks = rows.block_of.gather(1, window.columns)
            stay = blocks.where(before == window.expected, run.n_blocks).amin(1)  # each has one record
        if run.has_edits:
            only_edits = record[:, Field.KIND, None] == Kind.EDIT
            goes_on = ((new == before.where(only_edits, window.expected)) ^ only_edits).any(1)
        else:
            goes_on = (new == window.expected).any(1)
        done = record[:, Field.WIDE_DONE if self.plan.is_wide else Field.DONE]
        rows.at = stay.where(goes_on, done)
        if run.options.temperature > 0.0:
            rows.steps = rows.steps + ((window.number >= 0) & (record[:, Field.KIND] != Kind.STORE))
        if run.thinking is not None:
            entered = rows.records[iota(len(rows.at), run.device), rows.at]
            is_new = (entered[:, Field.NUMBER] > record[:, Field.NUMBER]) & (window.number >= 0)
            run.thinking.enter_blocks(rows, entered, is_new)
