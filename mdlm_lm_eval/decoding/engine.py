"""Reverse diffusion of many canvases in a fixed number of lanes: one loop for all samplers and attention patterns.

The state that changes from pass to pass is on the device (`Rows`): there a pass proposes, chooses, writes, and goes on
to the next block. The host sees a copy of a few numbers per row, on a GPU one pass late. It acts when a row enters or
leaves: when one is done, the next canvas takes its lane. Nothing in a row depends on the others.

The columns that a pass runs:
    full attention, exact: the whole canvas.
    block-causal: the row's block, at its own place, with the remembered keys and values of earlier blocks, which never
        see later tokens. A finished block is run once more, so that the keys and values of its final tokens are
        remembered. With `cache=none`, the canvas up to the block's end.
    a cache that is renewed at each block: the whole canvas in a block's first pass; then the block, with or without
        the columns after it, and the keys and values that the first pass computed for all others.

With a cache, a pass over whole canvases or prompts is called wide, and runs only the rows that need it. If it runs
prompts alone, those of canvases that wait for a lane are run ahead, many in one pass.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.decoding.caches import cache_policy
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, FirstToken, RowCost, Work, attention_in_effect
from mdlm_lm_eval.decoding.drafts import keep_agreed, views_of
from mdlm_lm_eval.decoding.history import History
from mdlm_lm_eval.decoding.lanes import Lanes, Look, Moved
from mdlm_lm_eval.decoding.next_token import NextTokenLogits
from mdlm_lm_eval.decoding.passes import Memory, most_wanted, run_pass
from mdlm_lm_eval.decoding.program import Field, Kind, Numbers, path_of
from mdlm_lm_eval.decoding.row_decoders import row_decoder_for
from mdlm_lm_eval.decoding.run import Run
from mdlm_lm_eval.decoding.thinking import EndOfThinking
from mdlm_lm_eval.decoding.trace import Event, changes
from mdlm_lm_eval.decoding.windows import Plan, Window, window_of
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import bucket, iota, to_device, up_to_keys, up_to_positions
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import place_of
from mdlm_lm_eval.options import DecodingOptions, OptionError, shown

# On a GPU, stop strings are looked for after every fourth step of a row, as this takes most of the host's time.
_STEPS_BETWEEN_LOOKS = 4
# A row makes no progress if this many passes in a row change nothing.
_MOST_IDLE = 3


class NoProgressError(RuntimeError):
    """Masks are left, but passes change nothing any more."""

    def __init__(self, options: DecodingOptions, index: int) -> None:
        changes = ", ".join(f"{name}={shown(value)}" for name, value in options.changes().items())
        super().__init__(
            f"the sampler {type(options.way).__name__} makes no progress on canvas {index}: {_MOST_IDLE} passes "
            "changed nothing, or a pass filled another number of masks than was planned; options: "
            f"{changes or 'the defaults'}"
        )


class Engine:
    """Rows in lanes, the canvases that wait for a lane, the passes over them, and the host's looks at the outcome."""

    def __init__(self, run: Run) -> None:
        self.run, self.device, self.n_lanes = run, run.device, run.work.batch_size
        # Each canvas's records and their masks, if plans alone decide. Only a GPU needs them: on a CPU, the host sees
        # each row's record at once.
        self.paths = list(map(path_of, run.programs)) if run.on_gpu and run.path_is_known else []
        order: Sequence[int] = range(len(run.canvases))
        if run.is_causal and run.is_cached:
            # Canvases with the same prefix follow each other, those with the most masks first.
            places = [place_of(canvas.prefix, len(canvas.slots)) for canvas in run.canvases]
            order = sorted(order, key=places.__getitem__)
        self.waiting = iter(order)
        size = min(self.n_lanes, bucket(len(run.canvases), self.device))
        self.lanes = Lanes.empty(size, run, max(map(len, self.paths), default=0))
        self.events: dict[int, list[Event]] = {}
        self.n_passes, self.last_seen = 0, -1
        # Whether the host knows each row's record when it begins a pass.
        self.knows_records = not run.on_gpu or bool(self.paths)
        self.plan: Plan | None = None  # the last pass, which is valid as long as rows keep their records
        self.window: Window | None = None
        self.looks: list[Look] = []
        self.cache = run.new_cache(size) if run.is_cached else None
        history = None
        if passes := run.needs.history:
            vocabulary = run.denoiser.vocab_size
            history = History(size, run.n_slots, vocabulary, passes, run.n_columns, self.device)
        self.memory = Memory(NextTokenLogits(size), history)
        # Prompts are run ahead, many at a time, so that lanes do not wait for the prompt of each row that enters.
        self.is_ahead = run.is_causal and run.is_cached and not run.predicts_next
        self.n_ahead = max(1, size // 2) if run.on_gpu else size // 2 + 1
        self.ready: list[tuple[int, int]] = []  # places in `ahead`, -1 without a prompt to run, and canvases
        first = list(itertools.islice(self.waiting, size))
        first += first[-1:] * (size - len(first))  # on a GPU, for lanes that stay empty
        self.ahead = rows = run.rows(first)  # as they begin, on the host
        self.state = self.state_ahead = rows.to(self.device)
        self.cache_ahead: CanvasCache | None = None
        self.lanes.enter(np.arange(size), first, rows, self.paths, is_prompt_run=False)
        n_first = min(size, len(run.canvases))
        run.begin(self.cache, range(n_first), first[:n_first])
        self._begin_traces(first, rows.tokens)
        if size > len(run.canvases):
            self._leave(np.arange(len(run.canvases), size))

    def decode(self) -> None:
        """Decodes all canvases; see `decode_canvases`. Raises NoProgressError and NonFiniteLogitsError."""
        n_left = len(self.run.canvases)
        while n_left:
            runs = self._run_pass()
            if not runs and not self.looks:
                raise NoProgressError(self.run.options, int(self.lanes.owners.max()))
            steps, of_lanes = self._look(is_last=not runs)
            for lane, completion in of_lanes.items():
                self.run.work.finished(int(self.lanes.owners[lane]), completion)
            n_left -= len(of_lanes)
            self.run.work.advance(steps)
            if of_lanes and n_left:
                self._refill(np.array(list(of_lanes)))

    # Lanes

    def _refill(self, free: Numbers) -> None:
        """Gives free lanes to the next canvases. Lanes that no canvas waits for stay empty, and are dropped in time."""
        self.plan = self.window = None
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
            self._drop_empty_lanes()

    def _leave(self, free: Numbers) -> None:
        self.lanes.leave(free)
        self.state.at.index_fill_(0, to_device(torch.from_numpy(free), self.device), -1)

    def _enter(self, taken: Numbers, places: Sequence[int], indices: Sequence[int], *, is_prompt_run: bool) -> None:
        """Enters canvases into lanes; if their prompts have been run, `places` are their rows in `ahead`."""
        lanes = to_device(torch.from_numpy(taken), self.device)
        if is_prompt_run:
            assert self.cache is not None
            assert self.cache_ahead is not None
            in_ahead, n_ahead = torch.tensor(places), len(self.ahead.at)
            theirs = to_device(in_ahead, self.device)
            rows, on_device = self.ahead.of(in_ahead), self.state_ahead.of(theirs)
            own = self.run.with_guided(lanes, len(self.state.at))
            self.cache.take(own, self.cache_ahead, self.run.with_guided(theirs, n_ahead))
        else:
            rows = self.run.rows(indices)
            on_device = rows.to(self.device)
            self.run.begin(self.cache, taken.tolist(), indices)
        self.lanes.enter(taken, indices, rows, self.paths, is_prompt_run=is_prompt_run)
        self._begin_traces(indices, rows.tokens)
        self.state.put(lanes, on_device)
        if self.memory.history is not None:
            self.memory.history.enter(lanes)

    def _run_prompts(self) -> bool:
        """Runs the prompts of the next canvases, about half as many as lanes, in one pass. False if none waits."""
        run = self.run
        indices = list(itertools.islice(self.waiting, self.n_ahead))
        with_prompt = [index for index in indices if run.programs[index].records[0, Field.WIDE] >= 0]
        places = {index: place for place, index in enumerate(with_prompt)}
        self.ready = [(places.get(index, -1), index) for index in indices]
        if not with_prompt:
            return bool(indices)
        with_prompt += with_prompt[-1:] * (self.n_ahead - len(with_prompt) if run.on_gpu else 0)
        n_rows = len(with_prompt)
        if self.cache_ahead is None or len(self.ahead.at) != n_rows:
            self.cache_ahead = run.new_cache(n_rows)
        self.ahead = run.rows(with_prompt)
        run.begin(self.cache_ahead, range(n_rows), with_prompt)
        record, going = self.ahead.records[:, 0].numpy(), np.arange(n_rows)
        width, n_seen = self._shape(record, record[:, Field.LIMIT], is_wide=True)
        plan = Plan(going, going, None, width, n_seen, True, True, self.cache_ahead, None)
        state = self.state_ahead = self.ahead.to(self.device)
        run_pass(run, state, plan, window_of(run, state, plan), self.memory, 0 if run.on_gpu else None)
        return True

    def _drop_empty_lanes(self) -> None:
        """Drops empty lanes, on a GPU only some of them, so that graphs meet few numbers of rows."""
        n, owners = len(self.state.at), self.lanes.owners
        kept = np.flatnonzero(owners >= 0)
        size = min(n, bucket(len(kept), self.device)) if len(kept) else 0
        if size == n:
            return
        kept = np.concatenate([kept, np.flatnonzero(owners < 0)[: size - len(kept)]])
        rows = to_device(torch.from_numpy(kept), self.device)
        self.state, self.lanes = self.state.of(rows), self.lanes.of(kept)
        if self.cache is not None:
            self.cache.keep(self.run.with_guided(rows, n))
        self.memory.next_token.keep(rows)
        if self.memory.history is not None:
            self.memory.history.keep(rows)
        for number, look in enumerate(self.looks):
            self.looks[number] = look._replace(places=look.places[kept], takes_part=look.takes_part[kept])

    # Passes

    def _run_pass(self) -> bool:
        """Runs a wide pass over the rows that need one, or else a pass over all rows. False if no row is left."""
        run, lanes, at = self.run, self.lanes, self.lanes.at
        masks_of: Numbers | None = None
        if self.paths:
            at, masks_of = lanes.paths[np.arange(len(at)), lanes.n_run].T
        # The plan is the same if the host knows that no row has moved since the last pass.
        plan = self.plan if self.knows_records else None
        if plan is None or plan.is_wide or not (at is plan.at or (at == plan.at).all()):
            plan, self.window = self._plan(at), None
        if plan is None:
            return False
        state = self.state if plan.rows is None else self.state.of(plan.rows)
        if plan.views > 1:
            state = views_of(state, plan.views)
        if self.window is None:
            self.window = window_of(run, state, plan)
        n_wanted = None
        if run.on_gpu:
            masks = None if masks_of is None else int(masks_of[plan.going].sum())
            n_wanted = most_wanted(run, plan, len(state.at), masks)
        before = self.state.tokens.clone() if run.options.trace else None
        of_views = state.tokens.clone() if plan.views > 1 else None
        run_pass(run, state, plan, self.window, self.memory, n_wanted)
        if of_views is not None:
            keep_agreed(self.state, state, of_views)
        elif plan.rows is not None:
            real = slice(len(plan.going))
            self.state.put(plan.rows[real], state.of(real), changes_only=True)
        self._send(plan, before)
        if self.paths:
            lanes.n_run[plan.going] += 1
        if plan.is_wide:
            lanes.launched[plan.going] = self.n_passes
        self.n_passes += 1
        self.plan = plan
        return True

    def _plan(self, at: Numbers) -> Plan | None:
        """The next pass over rows at records `at` [R], those that come next or were seen last; None if all are over."""
        run, lanes = self.run, self.lanes
        record = lanes.records_at(at)  # [R, F]
        needs_wide = (record[:, Field.WIDE] >= 0) & (bool(self.paths) | (lanes.launched <= self.last_seen))
        is_wide = bool(needs_wide.any())
        if is_wide and not self.paths and not run.is_causal:
            # A wide pass over one row costs about as much as over many, so it waits until half of the rows need it.
            is_going = at >= 0
            is_wide = 2 * needs_wide.sum() >= is_going.sum() or bool((record[is_going, Field.WIDE] >= 0).all())
        (going,) = (needs_wide if is_wide else at >= 0).nonzero()
        if not len(going):
            return None
        record = record[going]
        limits = record[:, Field.LIMIT]
        if run.is_causal and not self.knows_records:  # a pass that was not seen yet moves a row by one block at most
            most = np.array([len(run.canvases[index].token_ids) for index in lanes.owners[going]])
            moved = (run.attention.block_length or 1) * len(self.looks)
            limits = most if run.runs_later else np.minimum(limits + moved, most)
        width, n_seen = self._shape(record, limits, is_wide=is_wide)
        is_ragged = bool((limits != n_seen).any()) or run.attention.causal_context or run.options.batch_invariant
        is_ragged |= run.is_causal and (run.on_gpu or is_wide or not run.runs_blocks)
        rows: Tensor | None = None
        cache_rows: Tensor | None = None
        if is_wide and len(going) < len(at):
            n_more = bucket(len(going), self.device, least=2) - len(going)
            rows = to_device(torch.from_numpy(np.pad(going, (0, n_more), mode="edge")), self.device)
            cache_rows = run.with_guided(rows, len(self.state.at))
        # Drafts run in lanes that no canvas waits for, and beside a single row.
        views = 1 if is_wide else max(1, min(run.most_views, max(self.n_lanes, run.most_views) // len(at)))
        if views > 1:
            cache_rows = iota(views * len(at), self.device) % len(at)
        return Plan(at, going, rows, width, n_seen, is_wide, is_ragged, self.cache, cache_rows, views)

    def _shape(self, record: Numbers, limits: Numbers, *, is_wide: bool) -> tuple[int, int]:
        """How many columns each row runs, and how many it sees, for rows with these records [K, F] and limits [K]."""
        run = self.run
        runs_block = run.runs_blocks and not is_wide
        if run.options.batch_invariant:  # the same shape at all records
            n_seen = run.n_columns - 1
            return (run.window if runs_block else n_seen), n_seen
        n_seen = width = int(limits.max())
        if runs_block:
            width = run.window if run.on_gpu else int((record[:, Field.STOP] - record[:, Field.START]).max())
        elif run.is_cached and (run.continues or not is_wide):
            width = int((limits - record[:, Field.START]).max())
        if run.on_gpu and run.is_cached:
            n_seen = min(up_to_keys(n_seen), run.n_columns)
            if is_wide and not run.continues:
                width = n_seen
            elif not runs_block:
                width = up_to_positions(width)
        elif run.on_gpu:
            width = min(up_to_positions(width), run.n_columns - 1)
        return width, n_seen if run.is_cached else width

    def _send(self, plan: Plan, before: Tensor | None) -> None:
        """Sends the outcome of a pass to the host, on a GPU without waiting for it; with a trace, all tokens."""
        now = self.state
        best = now.best.float().view(torch.int32)[:, None]  # as bits, so that one copy holds integers and floats
        tokens, at = now.tokens.gather(1, now.shown).view(torch.int32), now.at[:, None].view(torch.int32)
        total = at[:, :1]
        if self.run.n_slots > self.run.n_shown:  # a sum that changes with tokens that are not shown
            columns = iota(now.tokens.shape[1], self.device)
            total = (now.tokens * columns).sum(1, keepdim=True, dtype=torch.int32)
        sent = torch.cat([tokens, at, total, best], 1).view(torch.int64)  # [R, N + 2]
        changes = None
        if before is not None:
            changes = torch.stack([before.int(), now.tokens.int(), now.confidence.view(torch.int32)])
        event, first = None, now.first
        if self.run.on_gpu:
            sent, changes = _to_host(sent), None if changes is None else _to_host(changes)
            first = None if first is None else _to_host(first)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))  # of this device, not of the process's current one
        places, takes_part = np.arange(len(self.lanes.owners)), self.lanes.owners >= 0
        if plan.is_wide:
            takes_part &= np.isin(places, plan.going)
        self.looks.append(Look(self.n_passes, plan, sent, changes, first, event, places, takes_part))

    # The host's look at them

    def _look(self, *, is_last: bool) -> tuple[int, dict[int, Completion]]:
        """The denoising steps that a pass took, and the completions of the rows that are over, by lane.

        On a GPU this is the outcome of the pass before the last one, which is over by now, or of the last one if
        `is_last`.
        """
        if len(self.looks) < (2 if self.run.on_gpu and not is_last else 1):
            return 0, {}
        look, lanes = self.looks.pop(0), self.lanes
        self.last_seen = look.number
        if look.event is not None:
            look.event.synchronize()
        numbers = look.sent.numpy()[look.places]  # [R, N + 2]
        bits = numbers.view(np.int32)
        moved = lanes.move(look, numbers[:, -2], bits[:, :-1])
        is_bad = moved.ran & np.isnan(bits.view(np.float32)[:, -1])
        if is_bad.any():
            raise NonFiniteLogitsError(int(lanes.owners[is_bad.argmax()]))
        self._guard(moved)
        if look.changes is not None:
            self._add_events(look, moved)
        took_step = moved.ran & (moved.before[:, Field.STEPS] > 0)
        is_end = np.zeros(numbers.shape, bool)
        for end_id in self.run.work.end_ids:
            is_end |= numbers == end_id
        is_over = self._is_over(moved, is_end)
        decided = self._decided(moved, numbers)
        if self.run.options.exits_early:
            ends = (decided == lanes.n_returned) | (is_end & (np.arange(numbers.shape[1]) < decided[:, None])).any(1)
            is_over |= moved.ran & ends
            self._ask(numbers, decided, is_over, took_step)
        completions = {
            lane: self._completion(lane, numbers[lane], int(decided[lane]), look)
            for lane in np.flatnonzero(is_over).tolist()
        }
        return int(took_step.sum()), completions

    def _guard(self, moved: Moved) -> None:
        """Raises NoProgressError if passes change nothing, or a row is not at the record that its sampler planned."""
        lanes = self.lanes
        is_stuck = lanes.idle >= _MOST_IDLE
        if self.paths:
            planned = lanes.paths[np.arange(len(lanes.at)), lanes.costs[:, 0], 0]
            is_stuck |= moved.ran & (lanes.at != planned)
        if is_stuck.any():
            raise NoProgressError(self.run.options, int(lanes.owners[is_stuck.argmax()]))

    def _is_over(self, moved: Moved, is_end: Numbers) -> Numbers:
        """Rows [R] bool whose program is over, or that finished a block with an end of text.

        The latter end as in the authors' samplers of blocks.
        """
        lanes = self.lanes
        is_over = moved.ran & (lanes.at < 0)
        if self.run.stops_at_end:
            number, is_stored = moved.after[:, Field.NUMBER], moved.after[:, Field.KIND] == Kind.STORE
            before = moved.before[:, Field.NUMBER]
            is_done = moved.ran & (is_stored | (number != before))
            done = np.where(is_done, np.where(is_stored, number, before), -1)
            is_over |= (is_end & (lanes.shown_blocks == done[:, None])).any(1)
        return is_over

    def _decided(self, moved: Moved, numbers: Numbers) -> Numbers:
        """How many tokens of each row [R] are final, counted from the left without a gap."""
        lanes = self.lanes
        is_open = (numbers == self.run.denoiser.mask_token_id) | lanes.beyond_answer
        if self.run.sampler.settled == "with its block":
            # A filled token may change until its block is finished.
            n_closed = moved.after[:, Field.NUMBER] + (moved.after[:, Field.KIND] == Kind.STORE)
            n_closed = np.where(lanes.at < 0, self.run.n_blocks, n_closed)
            is_open = is_open | (lanes.shown_blocks >= n_closed[:, None])
        found: Numbers = is_open.argmax(1)
        return found

    def _ask(self, numbers: Numbers, decided: Numbers, is_over: Numbers, took_step: Numbers) -> None:
        """Marks rows as over [R] if their decided tokens are enough for the caller.

        It is asked about rows with more decided tokens than before.
        """
        lanes, is_decided = self.lanes, self.run.work.is_decided
        if is_decided is None:
            return
        is_due = took_step & ~is_over & (decided > lanes.n_read)
        if self.run.on_gpu:
            is_due &= lanes.costs[:, 1] % _STEPS_BETWEEN_LOOKS == 0
        np.copyto(lanes.n_read, decided, where=is_due)
        for lane in np.flatnonzero(is_due).tolist():
            is_over[lane] = is_decided(numbers[lane, : decided[lane]].tolist())

    def _completion(self, lane: int, numbers: Numbers, n_decided: int, look: Look) -> Completion:
        """The answer of a row that is over, up to and including an end of text."""
        lanes = self.lanes
        answer: list[int] = numbers[:n_decided].tolist()
        passes, steps, tokens = lanes.costs[lane].tolist()
        n = next((n for n, token in enumerate(answer, start=1) if token in self.run.work.end_ids), len(answer))
        is_written = (numbers != self.run.denoiser.mask_token_id) & ~lanes.beyond_answer[lane]
        first = None
        if look.first is not None:
            token, label, entropy = look.first[look.places[lane]].tolist()
            first = FirstToken(int(token), int(label), entropy)
        return Completion(
            token_ids=answer[:n],
            cost=RowCost(passes, steps, tokens, self.run.n_shared(int(lanes.owners[lane]))),
            n_written=int(is_written.sum()),
            events=tuple(self.events.pop(int(lanes.owners[lane]), ())),
            first=first,
        )

    # Traces

    def _begin_traces(self, indices: Sequence[int], tokens: Tensor) -> None:
        """Keeps as events the tokens of canvases `tokens` [K, T] that were written before the first pass."""
        if not self.run.options.trace:
            return
        for index, row in zip(indices, tokens.tolist(), strict=True):
            self.events[index] = changes(self.run.canvases[index].token_ids, row, itertools.repeat(0.0))

    def _add_events(self, look: Look, moved: Moved) -> None:
        """Keeps as events the tokens that a pass changed on each canvas that took part in it."""
        assert look.changes is not None
        before, after, bits = look.changes.numpy()
        for lane in np.flatnonzero(moved.ran).tolist():
            row = look.places[lane]
            index, step = int(self.lanes.owners[lane]), int(self.lanes.costs[lane, 0])
            confidence = bits[row].view(np.float32)
            for at in np.flatnonzero(before[row] != after[row]).tolist():
                old, new = int(before[row, at]), int(after[row, at])
                self.events[index].append(Event(step, at, old, new, float(confidence[at])))


def decode_canvases(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    *,
    eos_ids: Collection[int] = (),
    end_of_turn_ids: Collection[int] = (),
    end_think_ids: Sequence[int] = (),
    token_frequencies: Tensor | None = None,
    label_ids: Sequence[int] = (),
    is_decided: Callable[[list[int]], bool] | None = None,
    advance: Callable[[int], object] = lambda _: None,
    finished: Callable[[int, Completion], object] = lambda *_: None,
    batch_size: int | None = None,
) -> list[Completion]:
    """Decodes canvases: the tokens of each one's first `n_returned` slots, up to and including an EOS or end of turn.

    `batch_size` rows run at a time (all by default); when one is done, the next canvas takes its place. Nothing in a
    row depends on the others. `check_decoding` must accept the options. The mask token is never emitted. `suppress_eos`
    bans `eos_ids` and leaves ends of turn possible, as LLaDA's `logits_eos_inf` does.

    is_decided: whether the final tokens of a row, from the left without a gap, are enough for the caller. With
        `early_exit`, such a row leaves the batch, and its result may end there.
    advance, finished: called as `advance(n)` after n rows took a step, and as `finished(n, completion)` after canvas n.
    end_think_ids: the tokens of the option `end_think`. token_frequencies: [V], those of that option's file.
    label_ids: with them, completions hold the model's answer at the first slot, except those of row decoders.

    Raises NonFiniteLogitsError if a row's logits are NaN or infinite, and NoProgressError if passes change nothing any
    more.
    """
    if not canvases:
        return []
    completions: dict[int, Completion] = {}

    def keep(indices: Sequence[int], number: int, completion: Completion) -> None:
        completions[indices[number]] = completion
        finished(indices[number], completion)

    attention = attention_in_effect(denoiser.attention, options)
    work = Work(
        denoiser,
        canvases,
        options,
        attention,
        banned_ids={denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())},
        end_ids={*eos_ids, *end_of_turn_ids},
        is_decided=is_decided if options.early_exit else None,
        advance=advance,
        finished=functools.partial(keep, range(len(canvases))),
        batch_size=batch_size or len(canvases),
    )
    if (row_decoder := row_decoder_for(denoiser, options)) is not None:
        row_decoder.decode(work)
        return [completions[index] for index in range(len(canvases))]
    _check_shift(denoiser, options, attention)
    if cache_policy(attention, options).remembers and not denoiser.model.can_generate():
        raise OptionError(f"cache must be none for an encoder, which keeps no keys and values, not {options.cache}")
    thinking = EndOfThinking.of(options, end_think_ids, denoiser.device)
    if token_frequencies is None and options.token_frequencies is not None:
        (token_frequencies,) = load_file(options.token_frequencies).values()
    if token_frequencies is not None:
        token_frequencies = token_frequencies.to(denoiser.device)
    labels = to_device(torch.tensor(label_ids), denoiser.device) if label_ids else None
    of_shapes: dict[object, list[int]] = {}  # canvases that share lanes; with `batch_invariant`, those of one shape
    for index, canvas in enumerate(canvases):
        shape = up_to_positions(len(canvas.token_ids)), canvas.block_lengths
        of_shapes.setdefault(shape if options.batch_invariant else None, []).append(index)
    for indices in of_shapes.values():
        own = replace(work, canvases=[canvases[n] for n in indices], finished=functools.partial(keep, indices))
        with torch.no_grad(), denoiser.in_fixed_shapes(options.batch_invariant):
            try:
                Engine(Run(own, thinking, token_frequencies, labels)).decode()
            except NonFiniteLogitsError as error:
                raise NonFiniteLogitsError(indices[error.index]) from error
    return [completions[index] for index in range(len(canvases))]


def _check_shift(denoiser: Denoiser, options: DecodingOptions, attention: AttentionPattern) -> None:
    """Raises OptionError for a sampler that needs logits that a model with shifted logits does not give."""
    needs = options.way.needs(options)
    if not denoiser.shift:
        return
    if needs.hindsight:
        raise OptionError(f"sampler={options.sampler_name} does not work with a model whose logits are shifted")
    runs_blocks = options.is_approximate or (attention.is_block_causal and attention.blocks_from == "row_start")
    if needs.proposals_for_filled and runs_blocks:
        raise OptionError(
            f"{options.way.asked_by or 'sampler'} does not work with a model whose logits are shifted and a cache that "
            "is renewed at each block, or blocks from a row's start: a pass over a block does not predict its first "
            "token, which could not be edited"
        )


def _to_host(values: Tensor) -> Tensor:
    """A copy in pinned memory; nothing waits for it."""
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values, non_blocking=True)
