"""The canvas of one request (prompt | masks | fillers | text after the slot), its decoded part, and its completion."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from mdlm_lm_eval.decoding.trace import Event, Filled
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.options import DecodingOptions, OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.model.denoiser import Denoiser
    from mdlm_lm_eval.model.prefix_store import Prefix

DEFAULT_MAX_GEN_TOKS = 256


@dataclass(frozen=True)
class Canvas:
    """One request's tokens, unpadded, and how they are decoded."""

    token_ids: tuple[int, ...]
    slots: tuple[int, ...]  # positions of the masks that are decoded, ascending
    n_returned: int  # the tokens of the first `n_returned` slots are returned
    block_lengths: tuple[int, ...]  # slots of each block; blocks are decoded one after the other
    block_steps: tuple[int, ...]  # denoising steps in effect of each block; the most that a parallel rule takes
    seed: int  # of this request and repetition
    prompt_length: int  # tokens of context, for classifier-free guidance; slots may stand among them
    steps: int  # denoising steps of all blocks
    prefix: "Prefix | None" = None  # tokens that this and other canvases begin with


@dataclass
class RowCost:
    """The cost of one row of a batch, which does not depend on other rows.

    forward_passes: passes of the model that this row took part in, including those that only fill its cache.
    steps: denoising steps, the passes over a block until it is finished. A pass that stores a finished block is none,
        also if it fills the token that the block predicts.
    tokens: positions that went through the layers for this row; under guidance twice as many.
    shared: positions of a shared prefix, whose keys and values were copied instead.
    """

    forward_passes: int = 0
    steps: int = 0
    tokens: int = 0
    shared: int = 0


class FirstToken(NamedTuple):
    """The model's answer at the first slot: the likeliest token, the likeliest label, and the entropy in nats.

    They are read from the logits of the pass that fills the slot, before any token is banned or made likelier.
    """

    token: int
    label: int
    entropy: float


@dataclass(frozen=True)
class Completion:
    """An answer, with what happened while it was decoded.

    - `token_ids`: the tokens of the answer, up to the token that ends it.
    - `text`: the answer as a text. It is None without a tokenizer.
    - `finish_reason`: `ended_by_eos`, or `cut` if no token ended the answer.
    - `filled`: for each token, the `step` that filled it, the model's `confidence` then, and the number of later
      `edits`. It is empty if your own sampler decoded.
    - `events`: all changes of tokens in their order, with the option `trace`.
    - `cost`: counts of forward passes and of tokens.
    - `n_written`: the number of filled masks, including masks after the end of the answer.
    - `first`: the model's answer at the first mask, for tasks with labels such as A, B and C.

    `decode` sets `text`, `filled` and `finish_reason`.
    """

    token_ids: list[int]
    cost: RowCost
    n_written: int
    events: tuple[Event, ...] = ()
    first: FirstToken | None = None
    text: str | None = None
    filled: Sequence[Filled] = ()
    finish_reason: str = ""

    @property
    def passes(self) -> int:
        """The number of forward passes that decoded the answer."""
        return self.cost.forward_passes


@dataclass(frozen=True)
class DecodingCall:
    """Canvases that are decoded in one way, and what the caller says of tokens and rows.

    eos_ids, end_of_turn_ids: tokens that end an answer. With `suppress_eos`, the first are never written.
    end_think_ids: the tokens of the option `end_think`. token_frequencies: [V], those of that option's file.
    label_ids: with them, completions hold the model's answer at the first slot, except those of row decoders.
    is_decided: whether the final tokens of a row, from the left without a gap, are enough for the caller. With
        `early_exit`, such a row leaves the batch, and its result may end there.
    advance: called as `advance(n)` after n rows took a step.
    batch_size: rows that run at a time, by default all.
    """

    denoiser: "Denoiser"
    canvases: Sequence[Canvas]
    way: Way
    eos_ids: Collection[int] = ()
    end_of_turn_ids: Collection[int] = ()
    end_think_ids: Sequence[int] = ()
    token_frequencies: "Tensor | None" = None
    label_ids: Sequence[int] = ()
    is_decided: Callable[[list[int]], bool] | None = None
    advance: Callable[[int], object] = lambda _: None
    batch_size: int | None = None

    @property
    def options(self) -> DecodingOptions:
        """The options of the way."""
        return self.way.options

    @property
    def n_lanes(self) -> int:
        """The most rows that run at a time."""
        return self.batch_size or max(1, len(self.canvases))

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return frozenset(self.eos_ids) | frozenset(self.end_of_turn_ids)

    @cached_property
    def banned_ids(self) -> frozenset[int]:
        """The tokens that are never written. Ends of turn stay possible, as with LLaDA's `logits_eos_inf`."""
        return frozenset([self.denoiser.mask_token_id, *(self.eos_ids if self.options.suppress_eos else ())])

    def is_enough(self, tokens: list[int]) -> bool:
        """Whether a row may end after these final tokens."""
        return self.options.early_exit and self.is_decided is not None and self.is_decided(tokens)


def seed_of(text: str) -> int:
    """A seed below 2^63 that is computed from a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_of_request(seed: int, arguments: Sequence[Any], repetition: int = 0) -> int:
    """A seed from a request's content, so that it draws the same numbers in any batch, order and process."""
    return seed_of(f"{repetition} {json.dumps([seed, arguments], sort_keys=True, default=str)}")


def repetitions(requests: Iterable[Hashable]) -> list[int]:
    """For each request, the number of equal ones before it."""
    seen: Counter[Hashable] = Counter()
    found = []
    for request in requests:
        found.append(seen[request])
        seen[request] += 1
    return found


def share_steps(steps: int, block_lengths: Sequence[int]) -> list[int]:
    """Denoising steps of each block, in proportion to its length; the first blocks share the remainder.

    Every block gets at least one step and at most one for each token, so the sum can differ from `steps`.
    """
    total = sum(block_lengths)
    shares = [min(length, max(1, steps * length // total)) for length in block_lengths]
    for index, length in enumerate(block_lengths):
        if shares[index] < length and sum(shares) < steps:
            shares[index] += 1
    return shares


def build_canvas(
    prompt_ids: list[int],
    way: Way,
    *,
    mask_token_id: int,
    max_length: int,
    request_gen_toks: int | None = None,
    filler_ids: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Canvas, int]:
    """Returns a canvas with masks appended to the prompt, and the number of prompt tokens cut off on the left.

    `request_gen_toks` is the request's own `max_gen_toks`, `filler_ids` are the tokens of all fillers and those after
    every answer. If blocks are counted from a row's start, masks fill the last block, as in the families' samplers.
    Raises OptionError if masks and fillers leave no room for the prompt.
    """
    options, attention = way.options, way.attention
    explicit = options.n_masks if isinstance(options.n_masks, int) else None
    wanted = request_gen_toks or options.max_gen_toks or explicit or DEFAULT_MAX_GEN_TOKS
    room, prompt, n_masks = max_length - len(filler_ids), prompt_ids, explicit or wanted
    if (ratio := options.mask_ratio) is not None:  # of the most tokens that fit with their masks
        most = min(len(prompt_ids), max(1, int(room / (1 + ratio)) + 1))
        n_kept = next((n for n in range(most, 1, -1) if n + _masks_of(ratio, n) <= room), min(1, most))
        prompt, n_masks = prompt_ids[-n_kept:], _masks_of(ratio, n_kept)
    room -= n_masks
    if room < 1:
        raise OptionError(
            f"{n_masks} masks and {len(filler_ids)} tokens after them do not fit into the model's context of "
            f"{max_length} tokens together with a prompt; at most {max_length - 1} tokens do"
        )
    prompt = prompt[-room:]
    end = len(prompt) + n_masks
    if attention.block_length is not None and attention.blocks_from == "row_start" and not filler_ids:
        end = min(max_length, math.ceil(end / attention.block_length) * attention.block_length)
    slots = range(len(prompt), end)
    token_ids = (*prompt, *[mask_token_id] * len(slots), *filler_ids)
    canvas = _planned(token_ids, slots, min(n_masks, wanted), way, seed, len(prompt))
    return canvas, len(prompt_ids) - len(prompt)


def build_infill_canvas(
    segments: list[list[int]],
    way: Way,
    *,
    mask_token_id: int,
    max_length: int,
    filler_ids: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Canvas, int]:
    """Returns a canvas with one mask between every two segments of text, and the number of tokens cut off on the left.

    The text is followed by fillers, and these by the masks of an explicit `n_masks`. The tokens of the slots in the
    text are returned. Raises OptionError if there is no slot, or one would be cut off.
    """
    options = way.options
    if len(segments) < 2:
        raise OptionError("a text without a slot cannot be filled; write <|mask|> where something is missing")
    if options.mask_ratio is not None:
        raise OptionError(f"mask_ratio={options.mask_ratio} is not allowed with infill=True; allowed is n_masks")
    token_ids = list(segments[0])
    slots: list[int] = []
    for segment in segments[1:]:
        slots.append(len(token_ids))
        token_ids += [mask_token_id, *segment]
    n_returned, text_length = len(slots), len(token_ids)
    token_ids += filler_ids
    n_masks = options.n_masks if isinstance(options.n_masks, int) else 0
    slots += range(len(token_ids), len(token_ids) + n_masks)
    token_ids += [mask_token_id] * n_masks
    cut = max(0, len(token_ids) - max_length)
    if cut > slots[0]:
        raise OptionError(
            f"a prompt of {len(token_ids)} tokens with fillers and masks would lose a slot when it is cut to "
            f"max_length={max_length}; allowed are at most {max_length + slots[0]} tokens"
        )
    slots = [slot - cut for slot in slots]
    return _planned(token_ids[cut:], slots, n_returned, way, seed, text_length - cut), cut


def _masks_of(ratio: float, n_tokens: int) -> int:
    """The masks of so many tokens: rounded up, and at least one."""
    return max(1, math.ceil(round(ratio * n_tokens, 6)))  # 0.1 * 30 is a little more than 3 in binary


def _planned(
    token_ids: Sequence[int],
    slots: Sequence[int],
    n_returned: int,
    way: Way,
    seed: int,
    prompt_length: int,
) -> Canvas:
    """The canvas of these tokens, with its slots in blocks and the steps of each block.

    If `block_length` is larger than the number of slots, all slots are one block. Under block-causal attention, columns
    after the last block with a returned slot are left out: no earlier block sees them.
    """
    options, attention = way.options, way.attention
    is_causal = attention.is_block_causal
    if is_causal:
        numbers = Counter(attention.block_of(slot, prompt_length) for slot in slots)
        block_lengths = tuple(numbers[number] for number in sorted(numbers))
    else:
        length = min(options.block_length or len(slots), len(slots))
        full, rest = divmod(len(slots), length)
        block_lengths = (length,) * full + ((rest,) if rest else ())
    block_steps = _steps_of_blocks(block_lengths, n_returned, way, is_causal=is_causal)
    if is_causal:
        last = attention.block_of(slots[n_returned - 1], prompt_length)
        n_columns = sum(attention.block_of(column, prompt_length) <= last for column in range(len(token_ids)))
        n_blocks = sum(number <= last for number in numbers)
        token_ids, slots = token_ids[:n_columns], slots[: sum(block_lengths[:n_blocks])]
        block_lengths, block_steps = block_lengths[:n_blocks], block_steps[:n_blocks]
    blocks = block_lengths, tuple(block_steps)
    return Canvas(tuple(token_ids), tuple(slots), n_returned, *blocks, seed, prompt_length, sum(block_steps))


def _steps_of_blocks(block_lengths: Sequence[int], n_returned: int, way: Way, *, is_causal: bool) -> list[int]:
    """Denoising steps of each block, from the sampler, from `steps_per_block`, or from `steps`."""
    options = way.options
    own = [] if is_causal else [way.sampler.steps_of(length, options) for length in block_lengths]
    if decided := [steps for steps in own if steps is not None]:
        return decided
    if options.steps_per_block is not None:
        return [min(options.steps_per_block, length) for length in block_lengths]
    if options.steps == "auto" and (is_causal or options.is_parallel):
        return list(block_lengths)  # one token per step
    n_steps = n_returned if options.steps == "auto" else min(options.steps, sum(block_lengths))
    return share_steps(n_steps, block_lengths)
