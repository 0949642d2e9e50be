"""Likelihood requests, windows of long texts, and the decoder's trajectories to the continuations of requests.

A canvas is context | continuation | masks. The unmasking rule chooses the masks of it that are filled next. They are
filled with the continuation's own tokens, so exactly one trajectory leads to each continuation. The log-probabilities
along it sum to the exact log p(continuation | context) of the decoder that draws its tokens at temperature 1: DUEL
(arXiv 2603.01367). The rule never sees a token that is still masked.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from mdlm_lm_eval.model.prefix_store import Prefix
from mdlm_lm_eval.options import LikelihoodOptions, OptionError

T = TypeVar("T")


@dataclass(frozen=True)
class LikelihoodRequest:
    """A request for log p(continuation | context); `seed` draws the Monte-Carlo masks.

    after_ids: tokens after the answer, which are not scored.
    of_text: whether it is a part of a longer text.
    at_own_length: whether the canvas holds the continuation alone, whatever `n_masks` says.
    prefix: the tokens with which this and other contexts begin.
    """

    context_ids: list[int]
    continuation_ids: list[int]
    seed: int = 0
    after_ids: tuple[int, ...] = ()
    of_text: bool = False
    at_own_length: bool = False
    prefix: Prefix | None = None


def answer_length(request: LikelihoodRequest, options: LikelihoodOptions) -> int:
    """The tokens on the canvas after the context: the continuation, extra masks, and those after the answer.

    Raises OptionError if an explicit `n_masks` is smaller than the continuation.
    """
    n, n_after = len(request.continuation_ids), len(request.after_ids) or int(options.eos_after)
    if options.n_masks == "auto" or request.at_own_length:
        return n + n_after
    if options.n_masks < n:
        raise OptionError(
            f"n_masks={options.n_masks} is too small: a continuation of this task has {n} tokens and the canvas holds "
            f"it whole; allowed are auto and whole numbers from {n}"
        )
    return options.n_masks + n_after


def truncated_tokens(request: LikelihoodRequest, options: LikelihoodOptions, max_length: int) -> int:
    """How many context tokens are cut off on the left so that the canvas fits into `max_length` tokens.

    Raises OptionError if the answer does not fit, no token of a context would be left, or a continuation has no token,
    whose log-likelihood of 0 would beat all others.
    """
    if not request.continuation_ids:
        raise OptionError(
            "a continuation has no token after its context: it is empty, or the tokenizer joins it with the context's "
            "last token; give tasks another choice, or another target_delimiter"
        )
    answer = answer_length(request, options)
    context = len(request.context_ids)
    if answer > max_length or (context and answer == max_length):
        raise OptionError(
            f"max_length={max_length} leaves no room for the context: continuation and masks (n_masks="
            f"{options.n_masks}) take {answer} tokens; allowed are canvases of at most {max_length - 1} tokens"
        )
    return max(0, context + answer - max_length)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of at most `size` items."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def rolling_windows(
    token_ids: Sequence[int],
    *,
    max_length: int,
    prefix_token_id: int,
    n_masks: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> list[LikelihoodRequest]:
    """Cuts a text into requests that score each token once, with as much of the earlier text as fits.

    The first window's context is the prefix token. At most max_length - 1 tokens of a window are scored, and at most
    `n_masks`. Windows have different seeds. Raises OptionError if `n_masks` leaves no room for the prefix.
    """
    longest_answer = max_length - 1
    if n_masks != "auto" and n_masks > longest_answer:
        raise OptionError(
            f"n_masks={n_masks} does not fit into max_length={max_length} together with the prefix token; "
            f"allowed are auto and whole numbers up to {longest_answer}"
        )
    stride = longest_answer if n_masks == "auto" else n_masks
    text = [prefix_token_id, *token_ids]
    windows: list[LikelihoodRequest] = []
    for start in range(1, len(text), stride):
        continuation = text[start : start + stride]
        room = max_length - (len(continuation) if n_masks == "auto" else n_masks)
        context = text[max(0, start - room) : start]
        windows.append(LikelihoodRequest(context, continuation, seed + len(windows), of_text=True))
    return windows


@dataclass
class Trajectory:
    """The decoder's progress on one request, or under block-causal attention on one of its blocks.

    index: the number of the request, in the caller's order.
    request: context and continuation, without the parts outside the block.
    answer_length: tokens of the block after the context.
    masked: continuation positions that are still masks, ascending.
    order: the other positions in the order in which they were filled; within a step the rule's first choice is first.
    log_probs: in that order, the log-probabilities in nats of the true tokens among all tokens but the mask.
    is_greedy: whether every true token was the likeliest one when it was filled in.
    first_alone: whether the leftmost mask is filled before all others under any rule, because a shifted model's
        finished blocks predict it (Fast-dLLM v2).
    block, start: the number of the block, and the position of its first token.
    offset: the position of the block's first continuation token in the whole continuation.
    left: the token before the block, and that token's block; None at the start of a text.
    """

    index: int
    request: LikelihoodRequest
    answer_length: int
    masked: list[int]
    order: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_greedy: bool = True
    first_alone: bool = False
    block: int = 0
    start: int = 0
    offset: int = 0
    left: tuple[int, int] | None = None

    def token(self, position: int) -> int:
        """The true token at a position of the continuation."""
        return self.request.continuation_ids[position]

    def canvas(self, masked: Sequence[int], mask_token_id: int) -> tuple[int, ...]:
        """The context, the continuation with masks at the positions in `masked`, extra masks, and `after_ids`."""
        request = self.request
        n_extra = self.answer_length - len(request.continuation_ids) - len(request.after_ids)
        answer = [*request.continuation_ids, *[mask_token_id] * n_extra, *request.after_ids]
        for position in masked:
            answer[position] = mask_token_id
        return (*request.context_ids, *answer)

    def fill(
        self, tokens: Sequence[int], priority: Sequence[float], sure: Sequence[bool], truth: Sequence[float], least: int
    ) -> None:
        """One denoising step: fills the `least` masks of highest priority, and all that are `sure`.

        All sequences have a value for each mask, from the left; `tokens` are the proposals, `truth` are log p of the
        true tokens in nats.
        """
        order = sorted(range(len(self.masked)), key=lambda n: -priority[n])  # the leftmost first among equals
        if self.first_alone and not self.order:
            order = [0]
        chosen = [n for rank, n in enumerate(order) if rank < least or sure[n]]
        self.order += [self.masked[n] for n in chosen]
        self.log_probs += [truth[n] for n in chosen]
        self.is_greedy &= all(tokens[n] == self.token(self.masked[n]) for n in chosen)
        self.masked = [position for n, position in enumerate(self.masked) if n not in chosen]
