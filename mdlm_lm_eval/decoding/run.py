"""Model, options, programs and sizes, which stay the same while canvases are decoded."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.blocks import Structure, blocks_of
from mdlm_lm_eval.decoding.caches import cache_policy
from mdlm_lm_eval.decoding.candidates import Proposer
from mdlm_lm_eval.decoding.canvas import Work
from mdlm_lm_eval.decoding.program import Program, program_of
from mdlm_lm_eval.decoding.rows import Rows, rows_of
from mdlm_lm_eval.decoding.thinking import EndOfThinking
from mdlm_lm_eval.model.devices import up_to_keys, up_to_positions
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows
from mdlm_lm_eval.registry import UNMASKING


class Run(Structure):
    """The constants of all passes over rows of these canvases.

    is_whole: whether every pass runs whole canvases, under full attention.
    is_cached: whether keys and values are remembered.
    runs_blocks: whether narrow passes run a block alone.
    stops_at_end: whether the host looks for an end of text in all finished blocks.
    one_a_pass: whether every planned step fills one mask.
    most_views: the most canvases of a row that one pass may run.
    needs_places: whether a pass computes each mask's place in its row.
    needs_confidence: whether a sampler, rule or trace reads probabilities.
    shares: whether some rows begin with a shared prefix.
    continues: whether wide passes may run columns after those that are remembered, beside prompts from the first on.
    n_columns: T, the most columns of a canvas, and one more that is no row's.
    n_blocks, n_records, n_slots: the most blocks, records and slots of a row.
    n_shown: the most tokens of a row that the host looks at.
    window: the width of blocks in narrow passes, 0 without such passes.
    """

    def __init__(
        self, work: Work, thinking: EndOfThinking | None, token_frequencies: Tensor | None, label_ids: Tensor | None
    ) -> None:
        self.work, self.denoiser, self.canvases = work, work.denoiser, work.canvases
        options, attention, self.thinking, self.label_ids = work.options, work.attention, thinking, label_ids
        self.device = self.denoiser.device
        super().__init__(attention, options, cache_policy(attention, options), shift=self.denoiser.shift)
        self.is_cached = self.cache.remembers
        self.is_whole = not self.is_causal and not self.is_cached
        self.runs_blocks = self.is_cached and not (self.cache.runs_rest or self.runs_later)
        # Passes over whole canvases stop at an end of text only with `early_exit`.
        has_blocks = not self.is_whole or options.append_blocks or self.sampler.ends_at_eos
        self.stops_at_end = bool(work.end_ids) and has_blocks and not self.runs_later
        may_share = self.is_cached and not options.batch_invariant
        self.shares = may_share and any(canvas.prefix is not None for canvas in self.canvases)
        self.programs = self._programs()
        blocks = [block for program in self.programs for block in program.blocks]
        has_text = self.is_causal and any(block.end > block.stop for block in blocks)
        self.continues = self.shares or (self.is_cached and has_text)
        self.longest_block = max(len(block.slots) for block in blocks)
        self.has_edits = self.sampler.edit_passes(options) > 0
        self.one_a_pass = all(step.fill == 1 for block in blocks for step in block.steps)
        # Answers of one token leave nothing to draft.
        self.most_views = self.needs.views if self.one_a_pass and label_ids is None else 1
        self.path_is_known = (
            self.sampler.path_is_known(options)
            and not self.fills_next
            and options.small_block_length is None
            and options.max_thinking_tokens is None  # which fills a mask that no plan counts
        )
        rule = UNMASKING.get(options.unmasking)
        self.is_random = rule.is_random
        self.needs_places = rule.reads_places or options.temperature > 0.0 or self.needs.history > 0
        self.needs_places |= thinking is not None and options.end_think_boost > 0.0
        self.needs_confidence = self.needs.confidence or options.is_parallel or self.needs_places or options.trace
        self.proposer = Proposer(
            options,
            work.banned_ids,
            work.end_ids,
            token_frequencies,
            needs_confidence=self.needs_confidence,
            needs_entropy=self.needs.entropy or options.entropy_bound is not None,
        )
        longest = max(len(canvas.token_ids) for canvas in self.canvases)
        self.n_columns = columns_of(longest, is_padded=self.on_gpu and self.is_cached)
        if options.batch_invariant:
            self.n_columns = up_to_positions(longest) + 1
        self.n_blocks = max(len(program.blocks) for program in self.programs)
        self.n_records = max(len(program.records) for program in self.programs)
        self.n_slots = max(len(canvas.slots) for canvas in self.canvases)
        self.n_shown = self.n_slots if self.stops_at_end else max(canvas.n_returned for canvas in self.canvases)
        narrow = [block.stop - block.start for block in blocks if block.slots or not block.is_wide]
        self.window = max(narrow, default=1) if self.is_cached and not self.runs_later else 0

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU, for which nothing may wait."""
        return self.device.type == "cuda"

    def _programs(self) -> list[Program]:
        """Each canvas's program; canvases of the same shape share one."""
        of_shapes: dict[object, Program] = {}
        programs = []
        for canvas in self.canvases:
            numbers = len(canvas.token_ids), canvas.prompt_length, canvas.n_returned
            shape = *numbers, canvas.slots, canvas.block_lengths, canvas.block_steps, len(canvas.prefix or ())
            if shape not in of_shapes:
                of_shapes[shape] = program_of(blocks_of(canvas, self), len(canvas.token_ids), self)
            programs.append(of_shapes[shape])
        return programs

    def rows(self, indices: Sequence[int]) -> Rows:
        """The rows of canvases as they begin, on the host."""
        rows = rows_of(self, indices)
        if self.thinking is not None:
            self.thinking.enter_blocks(rows, rows.records[:, 0], torch.ones_like(rows.at, dtype=torch.bool))
        return rows

    def new_cache(self, n_rows: int) -> CanvasCache:
        """An empty cache for `n_rows` rows, or twice as many under guidance."""
        n_rows = 2 * n_rows if self.options.cfg_scale > 0.0 else n_rows
        return CanvasCache(self.denoiser.model.config.num_hidden_layers, self.n_columns, n_rows)

    def begin(self, cache: CanvasCache | None, rows: Sequence[int], indices: Sequence[int]) -> None:
        """Copies the shared prefixes of canvases into the rows of a cache that they take."""
        if cache is not None and self.shares:
            begin_rows(cache, [self.canvases[index].prefix for index in indices], rows)

    def n_shared(self, index: int) -> int:
        """The number of a canvas's positions, guidance's included, that are copied from a shared prefix."""
        prefix = self.canvases[index].prefix if self.shares else None
        return len(prefix or ()) * (2 if self.options.cfg_scale > 0.0 else 1)

    def with_guided(self, rows: Tensor, n_rows: int) -> Tensor:
        """Rows of a cache, followed under guidance by their unconditional rows, `n_rows` further down."""
        return torch.cat([rows, rows + n_rows]) if self.options.cfg_scale > 0.0 else rows


def columns_of(longest: int, *, is_padded: bool) -> int:
    """Columns of canvases of up to `longest` tokens, rounded up if `is_padded`, and one more that is no row's."""
    return (up_to_keys(longest) if is_padded else longest) + 1
