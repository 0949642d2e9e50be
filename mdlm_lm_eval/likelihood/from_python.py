"""Log-likelihoods of texts or token ids, for use from Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.checkpoints import ids_after_answers, reserved_positions
from mdlm_lm_eval.decoding.canvas import seed_of_request
from mdlm_lm_eval.decoding.from_python import checked_options
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import longest_first, score, with_shared_contexts
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.text import prefix_id, prompt_ids
from mdlm_lm_eval.options import LikelihoodOptions, OptionError


@dataclass(frozen=True)
class LogLikelihood:
    """log p(continuation | context) in nats.

    by_token: the part of the total that each token of `token_ids` adds; empty for `likelihood=read`.
    is_greedy: whether greedy decoding gives the continuation.
    standard_error: the total's standard error if it is estimated from samples; None if it is computed exactly.
    """

    total: float
    by_token: list[float]
    token_ids: list[int]
    is_greedy: bool
    standard_error: float | None

    @property
    def per_token(self) -> float:
        """The mean over tokens, such as AntiBERTy's and ESM's pseudo-log-likelihood."""
        return self.total / len(self.token_ids)


def log_likelihood(
    denoiser: Denoiser,
    contexts: str | Sequence[str] | Sequence[Sequence[int]],
    continuations: str | Sequence[str] | Sequence[Sequence[int]],
    options: LikelihoodOptions | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    batch_size: int = 16,
    **settings: Any,
) -> list[LogLikelihood]:
    """Returns the log-likelihood of each continuation after its context, as `lm_eval` scores the same request.

    Both are texts, which need a `tokenizer` (as of `load`), or lists of token ids. A single continuation is a list of
    one, and a single context is used for all continuations. An empty context is the tokenizer's first token.
    `settings` are options by their names, as `mc_num=8`. Raises OptionError for arguments of other types, options that
    the model cannot serve, and canvases that do not fit.
    """
    options = checked_options(denoiser, options, LikelihoodOptions, settings)
    listed: list[Any] = [continuations] if isinstance(continuations, str) else list(continuations)
    before: list[Any] = [contexts] * len(listed) if isinstance(contexts, str) else list(contexts)
    if len(before) != len(listed):
        raise OptionError(f"there must be as many contexts as continuations, not {len(before)} and {len(listed)}")
    requests = [_request(denoiser, *pair, options.seed, tokenizer) for pair in zip(before, listed, strict=True)]
    max_length = denoiser.max_length - reserved_positions(denoiser.model.config)
    shared, store = with_shared_contexts(denoiser, requests, options, max_length)
    order = sorted(range(len(shared)), key=lambda n: longest_first(shared[n]))
    try:
        scores = score(denoiser, [shared[n] for n in order], options, batch_size=batch_size, max_length=max_length)
    except NonFiniteLogitsError as failure:
        raise NonFiniteLogitsError(order[failure.index]) from failure
    finally:
        store.clear()
    score_of = dict(zip(order, scores, strict=True))
    found = []
    for index, request in enumerate(requests):
        total, is_greedy, error, terms = score_of[index]
        by_token = [0.0] * len(request.continuation_ids) if terms else []
        for term in terms:
            by_token[term.position] += term.weight * term.log_prob
        found.append(LogLikelihood(total, by_token, request.continuation_ids, is_greedy, error))
    return found


def _request(
    denoiser: Denoiser, context: Any, continuation: Any, seed: int, tokenizer: PreTrainedTokenizerBase | None
) -> LikelihoodRequest:
    """The request that lm-eval makes of two texts. Raises OptionError for anything but texts or token ids."""
    seed = seed_of_request(seed, (context, continuation))
    if not (isinstance(context, str) and isinstance(continuation, str)):
        for one in (context, continuation):
            if not isinstance(one, Sequence) or not all(type(each) is int for each in one):
                kind = type(one).__name__
                raise OptionError(f"contexts and continuations must both be texts or lists of token ids, not {kind}")
        return LikelihoodRequest(list(context), list(continuation), seed)
    if tokenizer is None:
        raise OptionError("a text cannot be scored without a tokenizer; give tokenizer=, or token ids")
    kept, mask = context.rstrip(), denoiser.mask_token_id
    after_ids = ids_after_answers(tokenizer, denoiser.model.config)
    if kept:  # blanks at the context's end belong to the continuation's first token
        ids, n_context = prompt_ids(tokenizer, context + continuation, mask), len(prompt_ids(tokenizer, kept, mask))
        return LikelihoodRequest(ids[:n_context], ids[n_context:], seed, after_ids)
    prefix = prefix_id(tokenizer)
    ids = prompt_ids(tokenizer, context + continuation, mask, add_special_tokens=False)
    return LikelihoodRequest([prefix], ids[1:] if ids[:1] == [prefix] else ids, seed, after_ids)
