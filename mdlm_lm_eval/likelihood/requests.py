"""Likelihood requests, and the windows that cut long texts into them."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
