"""All that stays the same while canvases are decoded: model, options, programs, sizes, and what follows from them."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.blocks import Block, blocks_of
from mdlm_lm_eval.decoding.caches import cache_policy
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.program import Program, Structure, program_of
from mdlm_lm_eval.decoding.rows import Rows, Sizes, rows_of
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.decoding.thinking import EndOfThinking
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import up_to_keys, up_to_positions
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows
from mdlm_lm_eval.options import DecodingOptions


class Run:
    """What a pass over rows of these canvases may read; nothing here changes.

    is_whole: every pass runs whole canvases, under full attention. is_cached: keys and values are remembered.
    runs_later: passes run all blocks from the first one with masks on. runs_blocks: narrow passes run a block alone.
    predicts_next, fills_next: as in `Structure`. is_strict: a mask must exceed `confidence_threshold`: so in block
    diffusion, but for Nemotron-Labs-Diffusion. stops_at_end: the host looks for an end of text in all finished blocks.
    one_a_pass: every planned step fills one mask. most_views: canvases of a row that a pass may run. needs_places: the
    pass computes where in its row each mask stands. needs_confidence, needs_entropy: something reads probabilities, and
    entropies. shares: some rows begin with a shared prefix.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        canvases: Sequence[Canvas],
        attention: AttentionPattern,
        options: DecodingOptions,
        *,
        banned_ids: Collection[int],
        end_ids: Collection[int],
        thinking: EndOfThinking | None,
        token_frequencies: Tensor | None,
        label_ids: Tensor | None,
    ) -> None:
        self.denoiser, self.canvases, self.attention, self.options = denoiser, canvases, attention, options
        self.banned_ids, self.end_ids, self.thinking = banned_ids, end_ids, thinking
        self.token_frequencies, self.label_ids = token_frequencies, label_ids
        self.device = denoiser.device
        self.sampler = options.way
        self.needs = self.sampler.needs(options)
        self.cache = cache_policy(attention, options)
        self.is_causal = attention.is_block_causal
        self.is_cached = self.cache.remembers
        self.is_whole = not self.is_causal and not self.is_cached
        self.runs_later = self.needs.later_blocks
        self.runs_blocks = self.is_cached and not (self.cache.runs_rest or self.runs_later)
        self.predicts_next = self.is_causal and (denoiser.shift or attention.causal_context) and not self.runs_later
        self.fills_next = self.predicts_next and (attention.blocks_from == "row_start" or attention.causal_context)
        self.is_strict = self.is_causal and not attention.whole_prompt
        # Without blocks, an end of text stops nothing; with them, the host looks for one wherever there are slots.
        has_blocks = not self.is_whole or options.append_blocks or self.sampler.ends_at_eos
        self.stops_at_end = bool(end_ids) and has_blocks and not self.runs_later
        step = self.cache.shared_step(attention)
        self.shares = (
            step is not None and not options.batch_invariant and any(canvas.prefix is not None for canvas in canvases)
        )
        self.programs = self._programs()
        blocks = [block for program in self.programs for block in program.blocks]
        self.longest_block = max(len(block.slots) for block in blocks)
        self.has_edits = self.sampler.edit_passes(options) > 0
        self.one_a_pass = all(step.fill == 1 for block in blocks for step in block.steps)
        # Answers of one token have nothing to draft.
        self.most_views = self.needs.views if self.one_a_pass and label_ids is None else 1
        self.path_is_known = (
            self.sampler.path_is_known(options)
            and not self.fills_next
            and options.small_block_length is None
            and options.max_thinking_tokens is None  # which fills a mask that no plan counts
        )
        rule = unmasking_rule(options.unmasking)
        self.is_random = rule.is_random
        self.needs_places = rule.reads_places or options.temperature > 0.0 or self.needs.history > 0
        self.needs_places |= thinking is not None and bool(thinking.boost)
        self.needs_confidence = self.needs.confidence or options.is_parallel or self.needs_places or options.trace
        self.needs_entropy = self.needs.entropy or options.entropy_bound is not None
        self.sizes = self._sizes(blocks)

    @property
    def on_gpu(self) -> bool:
        """Whether nothing may wait for the device."""
        return self.device.type == "cuda"

    def _programs(self) -> list[Program]:
        """Each canvas's program; canvases of one shape share theirs."""
        structure = Structure(
            is_causal=self.is_causal,
            stores=self.is_causal and (self.is_cached or self.predicts_next),
            predicts_next=self.predicts_next,
            fills_next=self.fills_next,
            later_blocks=self.runs_later,
            shift=self.denoiser.shift,
        )
        of_shapes: dict[object, Program] = {}
        programs = []
        for canvas in self.canvases:
            numbers = len(canvas.token_ids), canvas.prompt_length, canvas.n_returned
            shape = *numbers, canvas.slots, canvas.block_lengths, canvas.block_steps, len(canvas.prefix or ())
            if shape not in of_shapes:
                blocks = blocks_of(canvas, self.attention, self.options, self.cache, shift=self.denoiser.shift)
                length = len(canvas.token_ids)
                of_shapes[shape] = program_of(blocks, length, self.options, self.cache, structure)
            programs.append(of_shapes[shape])
        return programs

    def _sizes(self, blocks: Sequence[Block]) -> Sizes:
        narrow = [block.stop - block.start for block in blocks if block.slots or not block.is_wide]
        longest = max(len(canvas.token_ids) for canvas in self.canvases)
        columns = columns_of(longest, is_padded=self.on_gpu and self.is_cached)
        if self.options.batch_invariant:
            columns = up_to_positions(longest) + 1
        return Sizes(
            columns=columns,
            blocks=max(len(program.blocks) for program in self.programs),
            records=max(len(program.records) for program in self.programs),
            shown=max(len(canvas.slots) if self.stops_at_end else canvas.n_returned for canvas in self.canvases),
            slots=max(len(canvas.slots) for canvas in self.canvases),
            window=max(narrow, default=1) if self.is_cached and not self.runs_later else 0,
            predicts_next=self.predicts_next,
            fills_next=self.fills_next,
            shift=self.denoiser.shift,
        )

    def rows(self, indices: Sequence[int]) -> Rows:
        """Canvases as they begin, on the host."""
        rows = rows_of(
            [self.canvases[index] for index in indices],
            [self.programs[index] for index in indices],
            self.options,
            self.sizes,
            self.needs,
            pad_token_id=self.denoiser.pad_token_id,
            mask_token_id=self.denoiser.mask_token_id,
            has_labels=self.label_ids is not None,
        )
        if self.thinking is not None:
            self.thinking.enter_blocks(rows, rows.records[:, 0], torch.ones_like(rows.at, dtype=torch.bool))
        return rows

    def new_cache(self, n_rows: int) -> CanvasCache:
        """Keys and values of so many rows; guidance needs twice as many."""
        n_rows = 2 * n_rows if self.options.cfg_scale > 0.0 else n_rows
        return CanvasCache(self.denoiser.model.config.num_hidden_layers, self.sizes.columns, n_rows)

    def begin(self, cache: CanvasCache | None, rows: Sequence[int], indices: Sequence[int], n_rows: int) -> None:
        """Canvases take rows of a cache of `n_rows`: what they share is copied there."""
        if cache is not None and self.shares:
            begin_rows(cache, [self.canvases[index].prefix for index in indices], rows, n_rows=n_rows)

    def n_shared(self, index: int) -> int:
        """Positions of a canvas, guidance's included, that are copied from a shared prefix."""
        prefix = self.canvases[index].prefix if self.shares else None
        return len(prefix or ()) * (2 if self.options.cfg_scale > 0.0 else 1)

    def with_guided(self, rows: Tensor, n_rows: int) -> Tensor:
        """Rows of a cache; unconditional rows follow, at offset n_rows."""
        return torch.cat([rows, rows + n_rows]) if self.options.cfg_scale > 0.0 else rows


def columns_of(longest: int, *, is_padded: bool) -> int:
    """Columns of canvases of up to `longest` tokens, and one that nobody reads; `is_padded` to buckets of keys."""
    return (up_to_keys(longest) if is_padded else longest) + 1
