"""Log-likelihoods of many requests, estimated from corruptions, or exact along the decoder's trajectory."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from mdlm_lm_eval.likelihood.block_causal import score_blocks
from mdlm_lm_eval.likelihood.corruptions import Corruption, monte_carlo_corruptions, standard_error
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length, chunks, truncated_tokens
from mdlm_lm_eval.likelihood.scored_passes import Likelihood, LikelihoodCanvas, Scoring, Term, Trajectory, merged, read
from mdlm_lm_eval.likelihood.without_masks import score_by_reads, score_causally
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.prefix_store import LEAST_SAVED, PrefixStore, shared_prefixes, sort_key_of
from mdlm_lm_eval.options import RANKINGS, LikelihoodOptions, OptionError

# Requests that share a context share canvases. They are taken in groups of these sizes, so that not all canvases of a
# large task, or of one in which all contexts are equal (or empty), are in memory at once.
_REQUESTS_PER_GROUP = 256
_TRAJECTORIES_PER_GROUP = 1024
# A trajectory has one canvas at a time. A long one counts as several, so that a part of a run (16 batches of canvases)
# ends in reasonable time, but not as too many, so that a part still has full batches of trajectories.
_STEPS_PER_CANVAS = 32
_MOST_CANVASES = 16


def corruptions_of(request: LikelihoodRequest, options: LikelihoodOptions) -> list[Corruption]:
    """The corruptions whose weighted log-probabilities sum to this request's estimate."""
    n = len(request.continuation_ids)
    if options.likelihood == "chain":  # left to right: each token is scored with itself and all later ones masked
        return [Corruption(tuple(range(i, n)), (i,), 1.0) for i in range(n)]
    if options.likelihood == "pseudo":  # each token given all others (Salazar et al. 2020, arXiv 1910.14659)
        return [Corruption((i,), (i,), 1.0) for i in range(n)]
    return monte_carlo_corruptions(n, options.mc_num, torch.Generator().manual_seed(request.seed))


def rows_of_request(request: LikelihoodRequest, options: LikelihoodOptions) -> int:
    """The number of rows in batches that a request counts as: its canvases, before equal ones are merged."""
    n = len(request.continuation_ids)
    if options.mode != "diffusion":
        return 1
    if options.likelihood in ("duel", "confidence"):
        return min(_MOST_CANVASES, 1 + n // (options.tokens_per_step * _STEPS_PER_CANVAS))
    if options.likelihood == "read":
        return options.noise_num
    return max(1, n if options.likelihood in ("chain", "pseudo") else min(2**n - 1, options.mc_num))


def score(
    denoiser: Denoiser,
    requests: Sequence[LikelihoodRequest],
    options: LikelihoodOptions,
    *,
    batch_size: int,
    max_length: int,
    corruptions_of: Callable[[LikelihoodRequest, LikelihoodOptions], list[Corruption]] = corruptions_of,
) -> list[Likelihood]:
    """Returns the score of each request.

    mc: estimates LLaDA's bound (`corruptions.py`). chain: factorises left to right. auto: exact for one token, else
        `mc`. Their corruptions are those of `corruptions_of`, which comparisons with other schemes replace.
    duel: exact for the deterministic decoder (`scored_passes.py`).
    pseudo: each token given all others, so that the sum ranks answers, but is no likelihood.
    confidence (iLLaDA): reveals the true tokens one by one, the likeliest first. As the order depends on hidden tokens,
        the sum ranks answers, but is no likelihood (it exceeds 1 over all answers).
    mode=ar: the causal model's own likelihood (`without_masks.py`).
    read: the mean over draws of noise (`without_masks.py`).

    Under block-causal attention, `mc`, `chain`, `pseudo` and `duel` are sums over blocks (`block_causal.py`), with
    `mc_num` samples for each block.

    Greedy decoding follows `duel`'s own unmasking rule, or else the order of confidence, one token per step. It covers
    the continuation's positions; extra masks after it stay masks, as in the estimate. If a pass of the estimate
    contains the fully masked continuation, its logits are used for the first step. Decoding stops at the first token
    that differs. Without `check_greedy`, the flag is False.

    Raises OptionError, before any forward pass, if a canvas does not fit or the model cannot serve the options, and
    NonFiniteLogitsError if a request's logits are NaN or infinite.
    """
    check_likelihood(denoiser, options, of_text=any(request.of_text for request in requests))
    starts = [_start(denoiser, index, request, options, max_length) for index, request in enumerate(requests)]
    fitted = [start.request for start in starts]
    if options.likelihood == "read":
        return score_by_reads(denoiser, fitted, options, batch_size)
    if options.mode != "diffusion":
        return score_causally(denoiser, fitted, batch_size)

    is_walked = options.likelihood in ("duel", "confidence")
    greedy = replace(options, likelihood="duel", unmasking="confidence", confidence_threshold=None)
    scoring = Scoring(
        denoiser,
        options,
        rule=options if options.likelihood == "duel" else greedy,
        corruptions_of=None if is_walked else lambda request: corruptions_of(request, options),
        terms=[[] for _ in requests],
        batch_size=batch_size,
    )
    return _sums(scoring, starts)


def _sums(scoring: Scoring, starts: Sequence[Trajectory]) -> list[Likelihood]:
    """Scores by forward passes: the sums of the terms of corruptions, or without these of trajectories' own steps."""
    options, terms = scoring.options, scoring.terms
    ends, walks = _run(scoring, starts)
    for end in itertools.chain.from_iterable(ends if scoring.corruptions_of is None else ()):
        pairs = zip(end.order, end.log_probs, strict=True)
        terms[end.index] += [Term(end.offset + position, 1.0, log_prob) for position, log_prob in pairs]
    found = []
    for start, walk, own in zip(starts, walks, terms, strict=True):
        is_greedy = options.check_greedy and all(one.is_greedy for one in walk)
        total = float(sum(term.weight * term.log_prob for term in own))
        found.append(Likelihood(total, is_greedy, _error_of(own, start.request, options), own))
    return found


def _run(scoring: Scoring, starts: Sequence[Trajectory]) -> tuple[list[list[Trajectory]], list[list[Trajectory]]]:
    """Runs all passes. Returns the trajectories of each request's blocks, of the estimate and of greedy decoding."""
    options = scoring.options
    ends = walks = starts
    if scoring.denoiser.attention.is_block_causal:
        of_blocks = score_blocks(scoring, [start.request for start in starts])
        return of_blocks, of_blocks
    if scoring.corruptions_of is None:
        ends = [replace(start, masked=list(start.masked), order=[], log_probs=[]) for start in starts]
        walks = ends if scoring.rule is options else starts
        _walk(replace(scoring, rule=options), ends)
    else:
        for batch in chunks(_corrupted(scoring, starts), scoring.batch_size):
            read(scoring, batch)
    if options.check_greedy:
        _walk(scoring, walks, while_greedy=True)
    return [[end] for end in ends], [[walk] for walk in walks]


def with_shared_contexts(
    denoiser: Denoiser,
    requests: Sequence[LikelihoodRequest],
    options: LikelihoodOptions,
    max_length: int,
    *,
    least: float = LEAST_SAVED,
) -> tuple[list[LikelihoodRequest], PrefixStore]:
    """The requests in their order with the prefixes that contexts share and that save `least` tokens, and their store.

    Requests with the same context are one row of blocks, and count once. The last token of a causal model's context is
    never shared, as its output predicts the continuation.
    """
    attention, step = denoiser.attention, denoiser.attention.shared_step
    store = PrefixStore(denoiser, attention, is_guided=options.cfg_scale > 0.0)
    if step is None:
        return list(requests), store
    is_causal = options.mode != "diffusion"
    contexts = [tuple(one.context_ids[truncated_tokens(one, options, max_length) :]) for one in requests]
    rows = contexts if is_causal else list(dict.fromkeys(contexts))
    ends = [max(0, len(row) - 1) if is_causal else attention.start_of(len(row), len(row)) for row in rows]
    found = shared_prefixes([row[:end] for row, end in zip(rows, ends, strict=True)], step, store, least=least)
    prefix_of = dict(zip(rows, found, strict=True))
    return [replace(one, prefix=prefix_of[context]) for one, context in zip(requests, contexts, strict=True)], store


def longest_first(request: LikelihoodRequest) -> tuple[Any, ...]:
    """A sort key: the longest requests first, and those with the same prefix and context together."""
    return sort_key_of(request.prefix, len(request.context_ids)), request.context_ids, -len(request.continuation_ids)


def check_likelihood(denoiser: Denoiser, options: LikelihoodOptions, *, of_text: bool) -> None:
    """Raises OptionError for options that do not work with the model, or with parts of a text."""
    attention = denoiser.attention
    if (options.likelihood == "read") != (denoiser.read is not None):
        which = "read" if denoiser.read else "another one for a model that denoises masks"
        raise OptionError(f"likelihood must be {which}, not {options.likelihood}")
    if options.likelihood == "read" and options.cfg_scale:
        raise OptionError(f"cfg_scale={options.cfg_scale} does not work with likelihood=read")
    if options.mode != "diffusion":
        if not attention.causal_context:
            raise OptionError(f"mode must be diffusion for a model that is not causal too, not {options.mode}")
        if options.n_masks != "auto" or options.cfg_scale or options.eos_after or options.likelihood != "auto":
            raise OptionError(f"mode={options.mode} has no masks: leave out n_masks, cfg_scale, eos_after, likelihood")
    elif attention.causal_context:
        raise OptionError("mode must be ar for the likelihoods of a model with a causal context, not diffusion")
    if attention.is_block_causal and (options.eos_after or options.likelihood == "confidence"):
        setting = "eos_after=true" if options.eos_after else "likelihood=confidence"
        raise OptionError(f"{setting} does not work with block-causal attention; full attention is needed")
    if of_text and options.likelihood in RANKINGS:
        other = "" if options.likelihood == "read" else "; use auto, mc or chain"
        raise OptionError(f"likelihood={options.likelihood} is no likelihood of a text: it ranks answers{other}")


def _eos_id(denoiser: Denoiser) -> int:
    """The end-of-text token of the config. Raises OptionError if it names none."""
    named = denoiser.model.config.get_text_config().eos_token_id
    found = named[0] if isinstance(named, list) else named
    if found is None:
        raise OptionError("eos_after must be false for a checkpoint whose config names no end-of-text token")
    return int(found)


def _start(
    denoiser: Denoiser, index: int, request: LikelihoodRequest, options: LikelihoodOptions, max_length: int
) -> Trajectory:
    cut = truncated_tokens(request, options, max_length)
    if options.eos_after and request.after_ids:
        raise OptionError("eos_after must be false for an encoder, whose texts end with their own closing token")
    after_ids = (_eos_id(denoiser),) if options.eos_after else request.after_ids
    fitted = replace(request, context_ids=request.context_ids[cut:], after_ids=after_ids)
    if options.mode != "diffusion" and not fitted.context_ids:
        raise OptionError(f"mode={options.mode} needs a context of at least one token, which predicts the first one")
    if options.likelihood == "duel" and options.unmasking != "left_to_right" and not fitted.context_ids:
        raise OptionError(
            f"likelihood=duel with unmasking={options.unmasking} needs a context of at least one token, as on masks "
            "alone all positions look the same; begin with the tokenizer's beginning or end of text"
        )
    return Trajectory(index, fitted, answer_length(fitted, options), list(range(len(fitted.continuation_ids))))


def _error_of(terms: Sequence[Term], request: LikelihoodRequest, options: LikelihoodOptions) -> float | None:
    """The standard error of Monte-Carlo samples, which blocks draw separately.

    None if every mask of a continuation was scored, or a block has a single sample.
    """
    if options.likelihood not in ("auto", "mc"):
        return None
    samples: dict[tuple[int, ...], tuple[float, dict[int, float]]] = {}
    for term in terms:
        samples.setdefault(term.sample, (term.weight, {}))[1][term.position] = term.log_prob
    by_block: dict[int, list[tuple[float, dict[int, float]]]] = defaultdict(list)
    for (offset, *_), sample in samples.items():
        by_block[offset].append(sample)
    ends = itertools.pairwise([*sorted(by_block), len(request.continuation_ids)])
    errors = [standard_error(by_block[begin]) for begin, end in ends if 2 ** (end - begin) - 1 > options.mc_num]
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if known and len(known) == len(errors) else None


def _shape(trajectory: Trajectory) -> tuple[int, int, list[int]]:
    """Sorts the longest canvases to the front, and requests with the same context together."""
    context = trajectory.request.context_ids
    return -len(context) - trajectory.answer_length, trajectory.answer_length, context


def _walk(scoring: Scoring, trajectories: Sequence[Trajectory], *, while_greedy: bool = False) -> None:
    """Advances every trajectory to its end, or only as long as it is greedy; equal canvases are run once."""
    scoring = replace(scoring, corruptions_of=None)
    for group in chunks(sorted(trajectories, key=_shape), _TRAJECTORIES_PER_GROUP):
        while going := [one for one in group if one.masked and (one.is_greedy or not while_greedy)]:
            longest_first = sorted(merged(scoring, going, LikelihoodCanvas), key=lambda canvas: -len(canvas.token_ids))
            for batch in chunks(longest_first, scoring.batch_size):
                read(scoring, batch)


def _corrupted(scoring: Scoring, trajectories: Sequence[Trajectory]) -> Iterator[LikelihoodCanvas]:
    """The canvases of all corruptions, the longest first; requests with the same context share equal ones.

    With `check_greedy`, trajectories begin on them.
    """
    for _, same_context in itertools.groupby(sorted(trajectories, key=_shape), key=_shape):
        for group in chunks(same_context, _REQUESTS_PER_GROUP):
            yield from merged(scoring, group, LikelihoodCanvas)
