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

A pass that runs whole canvases or prompts beside cached blocks is a wide one, of the rows that need it alone. Where it
runs nothing but prompts, those of rows that wait for a slot are run ahead, many in one pass.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, Cost, attention_in_effect
from mdlm_lm_eval.decoding.end_of_thinking import EndOfThinking
from mdlm_lm_eval.decoding.host_loop import decode_in_batches
from mdlm_lm_eval.decoding.indel import Insertions
from mdlm_lm_eval.decoding.passes import KEYS, POSITIONS, Passes, Plan, Window, up
from mdlm_lm_eval.decoding.program import Field, Kind, path_of
from mdlm_lm_eval.decoding.rows import Look, Numbers, Slots
from mdlm_lm_eval.decoding.speculative import Speculation
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import bucket, to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions, OptionError, defaults_of

# On a GPU, stop strings are looked for after so many steps of a row: that takes the host longer than all else does.
_STEPS_BETWEEN_LOOKS = 4
# Passes that change no row: on a GPU one may run before the host sees that rows wait for a wide pass.
_MOST_STILL = 3


class NoProgressError(RuntimeError):
    """Passes change no row any more, so that decoding would never end; the message names the options."""

    def __init__(self, options: DecodingOptions) -> None:
        defaults = defaults_of(DecodingOptions)
        own = [f"{name}={getattr(options, name)}" for name in defaults if getattr(options, name) != defaults[name]]
        super().__init__(
            f"decoding would never end: {_MOST_STILL} passes changed no row. The sampler must fill a mask or go on in "
            f"every pass, and must not be planned ahead where its options change how many masks a pass fills; "
            f"options: {' '.join(own) or 'defaults'}"
        )


class Engine(Passes):
    """Rows in `n_slots` slots, and the canvases that wait for one; what each pass is for, and who is done."""

    def __init__(self, n_slots: int, *of_passes: Any) -> None:
        super().__init__(*of_passes)
        canvases, options = self.canvases, self.options
        # Of each canvas, the records that it meets and their masks, where a schedule alone decides.
        self.paths: list[list[tuple[int, int]]] = []
        is_planned = options.editing_threshold is None and options.remasking == "none" and not self.writes_next
        is_planned &= not options.is_parallel and options.small_block_length is None
        is_planned &= options.max_thinking_tokens is None  # which fills a mask that no schedule counts
        if self.on_gpu and is_planned:  # elsewhere the host sees at once where they are
            self.paths = list(map(path_of, self.programs))
        order: Sequence[int] = range(len(canvases))
        if self.is_causal and self.is_cached:
            order = sorted(order, key=lambda index: -len(canvases[index].slots))
        self.waiting = iter(order)
        size = bucket(min(n_slots, len(canvases)), self.device)
        self.slots = Slots.empty(size, self.sizes, max(map(len, self.paths), default=0))
        self.n_passes, self.last_seen = 0, -1
        # Whether the host knows where rows are when it begins a pass; the last pass, which holds as long as they stay.
        self.knows_records = not self.on_gpu or bool(self.paths)
        self.plan: Plan | None = None
        self.window: Window | None = None
        self.looks: list[Look] = []
        self.seen: Any = None  # tokens and records of the last look
        self.n_still = 0  # looks since any of these changed
        self.cache = self.cache_of(size) if self.is_cached else None
        # Prompts are run ahead, many at a time, so that slots do not wait for the prompt of each row that enters.
        self.is_ahead = self.is_causal and self.is_cached and not self.tells_next
        self.n_ahead = max(1, size // 2) if self.on_gpu else size // 2 + 1
        self.ready: list[tuple[int, int]] = []  # places in `ahead`, -1 without a prompt to run, and canvases
        first = list(itertools.islice(self.waiting, size))
        first += first[-1:] * (size - len(first))  # on a GPU, of slots that stay empty
        self.ahead = rows = self.rows(first)  # as they begin, on the host
        self.state = self.state_ahead = rows.to(self.device)  # behind their prompts
        self.cache_ahead: CanvasCache | None = None
        self.slots.enter(np.arange(size), first, rows, self.paths, is_prompt_run=False)
        if size > len(canvases):
            self._leave(np.arange(len(canvases), size))

    def refill(self, free: Numbers) -> None:
        """The next canvases take free slots; slots that nothing waits for are empty, and dropped in time."""
        self.plan = self.window = self.sees = None
        for look in self.looks:
            look.takes_part[free] = False
        while len(free):
            if self.is_ahead:
                if not self.ready and not self._run_prompts():
                    break
                pairs, self.ready = self.ready[: len(free)], self.ready[len(free) :]
            elif not (pairs := [(-1, index) for index in itertools.islice(self.waiting, len(free))]):
                break
            for is_prompt_run in (True, False):
                if own := [pair for pair in pairs if (pair[0] >= 0) == is_prompt_run]:
                    self._enter(free[: len(own)], *zip(*own, strict=True), is_prompt_run=is_prompt_run)
                    free = free[len(own) :]
        if len(free):
            self._leave(free)
            self._drop_empty_slots()

    def _leave(self, free: Numbers) -> None:
        self.slots.leave(free)
        self.state.at.index_fill_(0, to_device(torch.from_numpy(free), self.device), -1)

    def _enter(self, taken: Numbers, places: Sequence[int], indices: Sequence[int], *, is_prompt_run: bool) -> None:
        """Canvases take slots; those whose prompts have been run have `places` in `ahead`."""
        slots = to_device(torch.from_numpy(taken), self.device)
        if is_prompt_run:
            assert self.cache is not None
            assert self.cache_ahead is not None
            of_ahead, n = torch.tensor(places), len(self.ahead.at)
            others = to_device(of_ahead, self.device)
            rows, on_device = self.ahead.of(of_ahead), self.state_ahead.of(others)
            self.cache.take(self.with_guided(slots, len(self.state.at)), self.cache_ahead, self.with_guided(others, n))
        else:
            rows = self.rows(indices)
            on_device = rows.to(self.device)
        self.slots.enter(taken, indices, rows, self.paths, is_prompt_run=is_prompt_run)
        self.state.put(slots, on_device)

    def _run_prompts(self) -> bool:
        """Runs the prompts of the next canvases, about half as many as slots, in one pass; False if none waits."""
        indices = list(itertools.islice(self.waiting, self.n_ahead))
        with_prompt = [index for index in indices if self.programs[index].records[0, Field.WIDE] >= 0]
        places = {index: place for place, index in enumerate(with_prompt)}
        self.ready = [(places.get(index, -1), index) for index in indices]
        if not with_prompt:
            return bool(indices)
        indices = with_prompt
        indices += indices[-1:] * (self.n_ahead - len(indices) if self.on_gpu else 0)
        self.ahead = self.rows(indices)
        if self.cache_ahead is None or not self.on_gpu:
            self.cache_ahead = self.cache_of(len(indices))
        width = int(self.ahead.records[:, 0, Field.LIMIT].max())
        width = min(up(width, KEYS), self.sizes.columns) if self.on_gpu else width
        going = np.arange(len(indices))
        plan = Plan(going, going, None, width, width, True, True, self.cache_ahead)
        state = self.state_ahead = self.ahead.to(self.device)
        self.step(state, plan, self.window_of(state, plan), 0 if self.on_gpu else None)
        return True

    def _drop_empty_slots(self) -> None:
        """On a GPU once half of them are, so that there are few numbers of rows."""
        n, owners = len(self.state.at), self.slots.owners
        kept = np.flatnonzero(owners >= 0)
        size = bucket(len(kept), self.device) if len(kept) else 0
        if size == n:
            return
        kept = np.concatenate([kept, np.flatnonzero(owners < 0)[: size - len(kept)]])
        rows = to_device(torch.from_numpy(kept), self.device)
        self.state, self.slots = self.state.of(rows), self.slots.of(kept)
        if self.cache is not None:
            self.cache.keep(self.with_guided(rows, n))
        if self.behind is not None:
            self.behind = self.behind[torch.cat([rows, rows.new_full((1,), n)])]
        for at, look in enumerate(self.looks):
            places = kept if look.places is None else look.places[kept]
            self.looks[at] = look._replace(places=places, takes_part=look.takes_part[kept])

    # What the next pass runs

    def run_pass(self) -> bool:
        """A wide pass of the rows that need one, else one of all rows; False if there is none to run."""
        slots, at, wanted = self.slots, self.slots.at, None
        if self.paths:
            at, wanted = slots.paths[np.arange(len(at)), slots.n_run].T
        # Where nothing has moved since the last pass, and the host knows that, what to run is the same.
        plan = self.plan if self.knows_records else None
        if plan is None or plan.is_wide or not (at is plan.at or (at == plan.at).all()):
            plan, self.window = self._plan(at), None
        if plan is None:
            return False
        state = self.state if plan.rows is None else self.state.of(plan.rows)
        if self.window is None:
            self.window = self.window_of(state, plan)
        n_wanted = None
        if self.on_gpu:
            masks = None if wanted is None else int(wanted[plan.going].sum())
            n_wanted = self.most_wanted(masks, plan, len(state.at))
        self.step(state, plan, self.window, n_wanted)
        if plan.rows is not None:
            self.state.put(plan.rows, state, changes_only=True)
        # What the host looks at is copied, on a GPU without waiting for it.
        now, event = self.state, None
        best = now.best.float().view(torch.int32)[:, None]  # its bits, all as int32: of several dtypes each is copied
        shown, at_bits = now.tokens.gather(1, now.shown).view(torch.int32), now.at[:, None].view(torch.int32)
        total = at_bits[:, :1]
        if self.sizes.slots > self.sizes.shown:  # changes where a token does that is not shown
            total = now.tokens.sum(1, keepdim=True, dtype=torch.int32)
        sent = torch.cat([shown, at_bits, total, best], 1).view(torch.int64)  # [R, N + 2]
        if self.on_gpu:
            pinned = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=True)
            sent, event = pinned.copy_(sent, non_blocking=True), _event(self.device)
        takes_part = slots.owners >= 0
        if plan.is_wide:
            takes_part &= np.isin(np.arange(len(takes_part)), plan.going)
        self.looks.append(Look(self.n_passes, plan.is_wide, sent, event, None, takes_part))
        if self.paths:
            slots.n_run[plan.going] += 1
        if plan.is_wide:
            slots.launched[plan.going] = self.n_passes
        self.n_passes += 1
        self.plan = plan
        return True

    def _plan(self, at: Numbers) -> Plan | None:
        """What the next pass runs where rows are at these records: the ones to come, or those last seen."""
        slots, on_gpu, rows = self.slots, self.on_gpu, None
        record = slots.tables[np.arange(len(at)), at] if self.paths else slots.records  # [R, F]
        needs_wide = (record[:, Field.WIDE] >= 0) & (bool(self.paths) | (slots.launched <= self.last_seen))
        is_wide = bool(needs_wide.any())
        if is_wide and not self.paths and not self.is_causal:
            # A wide pass of one row costs about as much as of many: it waits for half of them, or until none goes on.
            is_going = at >= 0
            is_wide = 2 * needs_wide.sum() >= is_going.sum() or bool((record[is_going, Field.WIDE] >= 0).all())
        (going,) = (needs_wide if is_wide else at >= 0).nonzero()
        if not len(going):
            return None
        record = record[going]
        limits = record[:, Field.LIMIT]
        if self.is_causal and not self.knows_records:  # an unseen pass moves a row to the next block at most
            limits = limits + (self.attention.block_length or 1) * len(self.looks)
            limits = np.minimum(limits, [len(self.canvases[index].token_ids) for index in slots.owners[going]])
        n_seen = width = int(limits.max())
        if not is_wide and self.runs_blocks:
            width = self.sizes.window if on_gpu else int((record[:, Field.STOP] - record[:, Field.START]).max())
        elif not is_wide and self.is_cached:
            width = int((limits - record[:, Field.START]).max())
        if on_gpu and self.is_cached:
            n_seen = min(up(n_seen, KEYS), self.sizes.columns)
            if is_wide:
                width = n_seen
            elif not self.runs_blocks:
                width = up(width, POSITIONS)
        elif on_gpu:
            width = min(up(width, POSITIONS), self.sizes.columns - 1)
        n_seen = n_seen if self.is_cached else width
        is_ragged = bool((limits != n_seen).any()) or self.attention.causal_context
        is_ragged |= self.is_causal and (on_gpu or is_wide or not self.is_cached)
        if is_wide and len(going) < len(at):
            n_more = bucket(len(going), self.device, least=2) - len(going)
            rows = to_device(torch.from_numpy(np.pad(going, (0, n_more), mode="edge")), self.device)
        return Plan(at, going, rows, width, n_seen, is_wide, is_ragged, self.cache)

    # What the host sees of it

    def look(
        self, is_decided: Callable[[list[int]], bool] | None, *, is_last: bool
    ) -> tuple[int, dict[int, Completion]]:
        """Denoising steps that were taken, and the completions of the rows that are over, by their slots.

        On a GPU this is what the pass before the last one left, which is over by now, unless nothing follows it.
        `is_decided` is asked about rows with more tokens than before. Raises NonFiniteLogitsError.
        """
        if len(self.looks) < (2 if self.on_gpu and not is_last else 1):
            self.n_still += is_last
            return 0, {}
        look, slots, options = self.looks.pop(0), self.slots, self.options
        self.last_seen = look.number
        if look.event is not None:
            look.event.synchronize()
        numbers = look.sent.numpy()  # [R, N + 2]
        if look.places is not None:
            numbers = numbers[look.places]
        seen = numbers.view(np.int32)[:, :-1]  # without `best`, which random numbers change, too
        self.n_still = self.n_still + 1 if np.array_equal(seen, self.seen) else 0
        self.seen = seen
        ran, before, has_moved = slots.move(look, numbers[:, -2])
        is_bad = ran & np.isnan(numbers.view(np.float32)[:, -1])
        if is_bad.any():
            raise NonFiniteLogitsError(int(slots.owners[is_bad.argmax()]))
        took_step = ran & (before[:, Field.STEPS] > 0)
        is_mask = numbers == self.denoiser.mask_token_id
        decided = (is_mask | slots.behind).argmax(1)  # [R], tokens that are returned from the left without a gap
        is_end: Any = False
        if self.end_ids:
            is_end = functools.reduce(np.logical_or, [numbers == end for end in self.end_ids])
        is_over = np.zeros_like(ran)
        if has_moved:
            is_over = ran & (slots.at < 0)
            if self.stops_at_end:  # as samplers of blocks do, where a block is finished
                number, is_stored = slots.records[:, Field.NUMBER], slots.records[:, Field.KIND] == Kind.STORE
                is_done = ran & (is_stored | (number != before[:, Field.NUMBER]))
                done = np.where(is_done, np.where(is_stored, number, before[:, Field.NUMBER]), -1)
                is_over |= (is_end & (slots.shown_blocks == done[:, None])).any(1)
        if options.exits_early:
            # A model that edits may change a token until the token's block is done.
            is_final = ran
            if options.editing_threshold is not None:
                is_final = ran & (slots.records[:, Field.KIND] == Kind.STORE)
            ends = decided == slots.n_returned
            if self.end_ids:
                ends |= (is_end & (np.arange(numbers.shape[1]) < decided[:, None])).any(1)
            is_over |= is_final & ends
            if is_decided is not None:
                is_due = is_final & took_step & ~is_over & (decided > slots.n_read)
                if self.on_gpu:
                    is_due &= slots.costs[:, 1] % _STEPS_BETWEEN_LOOKS == 0
                np.copyto(slots.n_read, decided, where=is_due)
                for asked in np.flatnonzero(is_due).tolist():
                    is_over[asked] = is_decided(numbers[asked, : decided[asked]].tolist())
        completions: dict[int, Completion] = {}
        for slot in np.flatnonzero(is_over).tolist() if is_over.any() else ():
            answer = numbers[slot, : decided[slot]].tolist()
            n = next((n for n, token in enumerate(answer, start=1) if token in self.end_ids), len(answer))
            trace = self.state.traced(slot, n) if options.trace else ()
            n_written = int((~is_mask & ~slots.behind)[slot].sum())
            completions[slot] = Completion(answer[:n], Cost(*slots.costs[slot].tolist()), n_written, trace)
        return int(took_step.sum()), completions

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
                index = int(self.slots.owners[slot])
                completions[index] = completion
                finished(index, completion)
            self.n_still *= not of_slots
            if self.n_still >= _MOST_STILL:
                raise NoProgressError(self.options)
            advance(steps)
            if of_slots and len(completions) < len(self.canvases):
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
    logits are NaN or infinite, and NoProgressError where passes change no row any more.
    """
    if not canvases:
        return []
    end_ids = {*eos_ids, *end_of_turn_ids}
    banned = {denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())}
    attention = attention_in_effect(denoiser.attention, options)
    if options.remasking == "wino" and denoiser.shift:
        raise OptionError("remasking=wino does not work with a model whose logits are shifted: a shadow has no left")
    runs_blocks = options.is_approximate or (attention.is_block_causal and attention.blocks_from == "row_start")
    if options.editing_threshold is not None and denoiser.shift and runs_blocks:
        raise OptionError(
            "editing_threshold does not work with a model whose logits are shifted and cache=prefix|dual, or blocks "
            "from a row's start: a pass over a block does not predict its first token, which could not be edited"
        )
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
    thinking = None
    if options.end_think_boost or options.max_thinking_tokens is not None:
        thinking = EndOfThinking.of(options, end_think_ids, denoiser.device)
    if token_frequencies is None and options.token_frequencies is not None:
        (token_frequencies,) = load_file(options.token_frequencies).values()
    if token_frequencies is not None:
        token_frequencies = token_frequencies.to(denoiser.device)
    of_passes = (denoiser, canvases, attention, options, banned, end_ids, thinking, token_frequencies)
    with torch.no_grad():
        return Engine(n_slots, *of_passes).decode(is_decided, advance, finished)


def _event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))  # which may not be the process's current GPU
    return event
