"""One pass over rows: masks are found, the model is asked, the sampler chooses, the rows change and move on.

`run_pass` is the whole of it, one stage after the other. No stage knows which sampler is at work.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mdlm_lm_eval.decoding import first_token
from mdlm_lm_eval.decoding.candidates import Proposals, propose, uniform_numbers
from mdlm_lm_eval.decoding.drafts import drafted
from mdlm_lm_eval.decoding.hindsight import Shadow, hindsight
from mdlm_lm_eval.decoding.history import History
from mdlm_lm_eval.decoding.next_token import NextTokenLogits
from mdlm_lm_eval.decoding.places import Places
from mdlm_lm_eval.decoding.program import Field, Kind
from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.decoding.run import Run
from mdlm_lm_eval.decoding.sampler import Answer, Choice, View
from mdlm_lm_eval.decoding.windows import Plan, Window, flags
from mdlm_lm_eval.model.devices import iota, up_to_positions


@dataclass
class Memory:
    """What passes leave for later ones beside the rows: of all `n_lanes`."""

    n_lanes: int
    next_token: NextTokenLogits
    history: History | None


def run_pass(run: Run, rows: Rows, plan: Plan, window: Window, memory: Memory, n_wanted: int | None) -> None:
    """One pass of the model over `rows`, and all that follows from it for them.

    `n_wanted`: on a GPU, the most logits that it needs, None for all places.
    """
    tokens = rows.tokens.gather(1, window.columns)  # [R, G]
    masks = tokens == window.expected
    fillable = _fillable(run, plan, window, masks)
    others = _others(run, window, masks, n_wanted)
    shadow = _shadow(run, rows, window)
    places = Places(_wanted(run, rows, window, fillable, others, shadow, n_wanted), n_wanted, on_gpu=run.on_gpu)
    logits = _logits(run, rows, plan, window, tokens, places, shadow)
    if window.has_before is not None:
        lanes = plan.rows if plan.views == 1 else plan.cache_rows
        memory.next_token.exchange(logits, places, lanes, memory.n_lanes, window.asked, window.has_before)
    first = _first_tokens(run, rows, window, logits, places)
    columns, slots = _whereabouts(run, rows, window, places) if run.needs_places else (None, None)
    if run.thinking is not None and columns is not None:
        run.thinking.raise_logits(logits, places.row, columns, rows, window.number, run.denoiser.mask_token_id)
    proposals = _proposals(run, rows, window, logits, places, columns, slots)
    view = _view(run, rows, window, tokens, fillable, others, places, proposals)
    if shadow is not None:
        view = _with_hindsight(view, shadow, logits, places)
    if memory.history is not None and slots is not None:
        view = _with_divergence(view, memory.history, logits, places, slots)
    choice = run.sampler.choose(view, run.options)
    new = _changed(run, view, choice)
    _write(run, rows, window, view, choice, new)
    if first is not None:
        _keep_first_tokens(rows, choice, *first)
    _move_on(run, rows, window, tokens, new)


def most_wanted(run: Run, plan: Plan, n_rows: int, masks: int | None) -> int | None:
    """On a GPU, which is not asked for their number: the most logits that a pass needs, None for all places.

    `masks` are those of the rows that take part, where they are known.
    """
    if run.is_causal and plan.is_wide:
        return n_rows if run.predicts_next else 0
    if run.is_cached and not (plan.is_wide or run.runs_later):
        return None
    if masks is not None and (run.is_whole or not run.denoiser.shift):
        return up_to_positions(masks)
    of_row = run.sizes.slots if run.needs.earlier_blocks or run.runs_later else run.longest_block
    if run.needs.history:  # the next block, too
        of_row += run.longest_block
    places = plan.width
    if run.needs.hindsight:  # of the filled tokens, whose own places may be asked for as well
        of_row += run.longest_block * run.needs.proposals_for_filled
        places += run.longest_block
    return min(n_rows * places, up_to_positions(n_rows * of_row))


def _fillable(run: Run, plan: Plan, window: Window, masks: Tensor) -> Tensor:
    """Masks [R, G] bool that this pass may fill: with small blocks, those of the first that has any."""
    if run.options.small_block_length is not None and window.part is not None:
        part = window.part.where(masks, run.sizes.columns)
        return masks & (part == part.amin(1, keepdim=True))
    if plan.is_wide and not run.is_causal and run.denoiser.shift:
        return masks & (masks.cumsum(1) == 1)  # its logits are no later window's
    return masks


def _others(run: Run, window: Window, masks: Tensor, n_wanted: int | None) -> Tensor | None:
    """Places [R, G] bool without a mask that matter: filled tokens, and the one after a finished block."""
    reads_next = run.predicts_next and (n_wanted is not None or not run.on_gpu)
    return window.asked & ~masks if run.needs.filled or reads_next else None


def _shadow(run: Run, rows: Rows, window: Window) -> Shadow | None:
    """The shadow of the rows' blocks, where the sampler asks for hindsight."""
    if not run.needs.hindsight:
        return None
    before = window.record[:, Field.BEFORE]
    return Shadow.of(rows.tokens, rows.slot_number, rows.block_of, window.number, before, run.longest_block)


def _wanted(
    run: Run,
    rows: Rows,
    window: Window,
    fillable: Tensor,
    others: Tensor | None,
    shadow: Shadow | None,
    n_wanted: int | None,
) -> Tensor:
    """Places [R, G], with a shadow [R, G + B], whose logits the pass needs; on a GPU narrow passes take all."""
    wanted = fillable
    reads_others = run.predicts_next or run.needs.proposals_for_filled
    is_asked = n_wanted is not None or not run.on_gpu or (run.predicts_next and not run.fills_next)
    if others is not None and reads_others and is_asked:
        wanted = fillable | others
    if run.needs.history:  # the next block's first pass is compared with this one
        of_next = rows.block_of.gather(1, window.columns) == window.number[:, None] + 1
        wanted = wanted | (of_next & (window.number >= 0)[:, None])
    if shadow is not None:
        wanted = torch.cat([wanted, shadow.wanted(run.denoiser.mask_token_id)], 1)
    return wanted


def _logits(
    run: Run, rows: Rows, plan: Plan, window: Window, tokens: Tensor, places: Places, shadow: Shadow | None
) -> Tensor:
    """Logits [N, V] at the places."""
    options, positions = run.options, places.outputs(window.outputs)
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
        n_seen=None if plan.is_wide and not run.shares else plan.n_seen,
        n_views=plan.views,
        cfg_scale=options.cfg_scale,
        prompt_mask=prompt,
    )


def _first_tokens(run: Run, rows: Rows, window: Window, logits: Tensor, places: Places) -> tuple[Tensor, Tensor] | None:
    """The numbers of `FirstToken` [R, 3] before any ban, and which places [R, G] are first slots."""
    if run.label_ids is None or not len(logits):
        return None
    is_first = rows.slot_number.gather(1, window.columns) == 0
    of_first = first_token.of_first_slots(logits, places.at, is_first, places.wanted.shape[1])
    return first_token.read(of_first, run.label_ids), is_first


def _keep_first_tokens(rows: Rows, choice: Choice, found: Tensor, is_first: Tensor) -> None:
    """Those of the pass that wrote the slot last."""
    written = choice.fill if choice.change is None else choice.fill | choice.change
    rows.first = found.where((written & is_first).any(1, keepdim=True), rows.first)


def _whereabouts(run: Run, rows: Rows, window: Window, places: Places) -> tuple[Tensor, Tensor]:
    """Column and slot number [N] of each place."""
    columns = window.columns[places.row, places.offset.clamp(max=window.columns.shape[1] - 1)]
    if run.predicts_next:
        last = (window.record[:, Field.STOP] - 1).clamp(min=0)[places.row]
        columns = columns.where(places.offset > 0, last)
    return columns, rows.slot_number[places.row, columns]


def _proposals(
    run: Run,
    rows: Rows,
    window: Window,
    logits: Tensor,
    places: Places,
    columns: Tensor | None,
    slots: Tensor | None,
) -> Proposals:
    """Tokens for the places, their confidence and priority [N]. Overwrites logits of tokens that are banned."""
    uniform: Tensor | None = None
    order: Tensor | None = None
    offsets: Tensor | None = None
    if slots is not None:
        offsets = slots - window.record[places.row, Field.BEFORE]
        if run.options.temperature > 0.0:
            uniform = uniform_numbers(rows.facts[places.row, 2], rows.steps[places.row], slots)
        if run.is_random:
            order = rows.random_numbers[places.row, columns]
    return propose(
        logits,
        run.options,
        banned_ids=run.banned_ids,
        end_ids=run.end_ids,
        uniform=uniform,
        slot_numbers=slots,
        random_numbers=order,
        block_offsets=offsets,
        token_frequencies=run.token_frequencies,
        needs_confidence=run.needs_confidence,
        needs_entropy=run.needs_entropy,
    )


def _view(
    run: Run,
    rows: Rows,
    window: Window,
    tokens: Tensor,
    fillable: Tensor,
    others: Tensor | None,
    places: Places,
    proposals: Proposals,
) -> View:
    """The pass as the sampler sees it."""
    width, record = tokens.shape[1], window.record
    priority = places.spread(proposals.priority)[:, :width]
    confidence = places.spread(proposals.confidence)[:, :width] if run.needs_confidence else priority
    filled = fillable  # not read
    if run.needs.filled and others is not None:
        filled = others if run.thinking is None else run.thinking.spares(others, tokens)
    proposed = places.spread(proposals.tokens)[:, :width]
    return View(
        columns=window.columns,
        tokens=tokens,
        masks=fillable,
        filled=filled,
        proposed=proposed,
        confidence=confidence,
        priority=priority,
        entropy=places.spread(proposals.entropy)[:, :width] if run.needs_entropy else confidence,
        fill=None if run.one_a_pass else record[:, Field.FILL],
        back=record[:, Field.BACK],
        step=record[:, Field.STEP],
        strict=run.is_strict,
        answer=_answer(run, rows, window, tokens, proposed) if run.needs.answer else None,
        state=rows.state,
    )


def _answer(run: Run, rows: Rows, window: Window, tokens: Tensor, proposed: Tensor) -> Answer:
    slots, blocks = (of_row.gather(1, window.columns) for of_row in (rows.slot_number, rows.block_of))
    first = rows.block_of.where(rows.block_of >= 0, run.sizes.blocks).amin(1, keepdim=True)
    is_slot, ends, would_end = slots >= 0, torch.zeros_like(slots), torch.zeros_like(slots)
    for end_id in run.end_ids:
        ends, would_end = ends | (tokens == end_id), would_end | (proposed == end_id)
    is_mask = is_slot & (tokens == run.denoiser.mask_token_id)
    return Answer(slots, blocks - first, is_mask, is_slot & ends.bool(), would_end.bool())


def _with_hindsight(view: View, shadow: Shadow, logits: Tensor, places: Places) -> View:
    width = view.tokens.shape[1]
    beliefs = places.spread(hindsight(shadow, logits, places.row, places.offset - width))[:, width:]  # [R, B]
    return replace(view, hindsight=shadow.onto(beliefs, view.columns))


def _with_divergence(view: View, history: History, logits: Tensor, places: Places, slots: Tensor) -> View:
    if places.inside is not None:
        slots = slots.where(places.inside, history.n_slots)
    changes = places.spread(history.add(logits, places.row, slots))
    return replace(view, divergence=history.divergences(changes, view.columns))


def _changed(run: Run, view: View, choice: Choice) -> Tensor:
    """The window's tokens [R, G] after the pass."""
    written = choice.fill if choice.change is None else choice.fill | choice.change
    new = (view.proposed if choice.tokens is None else choice.tokens).where(written, view.tokens)
    return new if choice.back is None else new.masked_fill(choice.back, run.denoiser.mask_token_id)


def _write(run: Run, rows: Rows, window: Window, view: View, choice: Choice, new: Tensor) -> None:
    """The rows' tokens, the sampler's state, and what the host looks at."""
    # NaN is the largest of all; a rule that reads places may not see it.
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


def _move_on(run: Run, rows: Rows, window: Window, before: Tensor, new: Tensor) -> None:
    """The records of the next pass: a row stays in its block while masks are left, or an edit changed something.

    Where later blocks are run, it goes on to the first one that had masks before: one that was finished by the pass is
    run once more, so that keys and values of its final tokens can be remembered.
    """
    record, stay = window.record, window.stay
    if run.runs_later:
        blocks = rows.block_of.gather(1, window.columns)
        stay = blocks.where(before == window.expected, run.sizes.blocks).amin(1)  # each has one record
    if run.has_edits:
        only_edits = flags(record)[:, Field.EDITS, None]
        goes_on = ((new == before.where(only_edits, window.expected)) ^ only_edits).any(1)
    else:
        goes_on = (new == window.expected).any(1)
    rows.at = stay.where(goes_on, window.done)
    if run.options.temperature > 0.0:
        rows.steps = rows.steps + ((window.number >= 0) & (record[:, Field.KIND] != Kind.STORE))
    if run.thinking is not None:
        entered = rows.records[iota(len(rows.at), run.device), rows.at]
        is_new = (entered[:, Field.NUMBER] > record[:, Field.NUMBER]) & (window.number >= 0)
        run.thinking.enter_blocks(rows, entered, is_new)
