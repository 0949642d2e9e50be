"""Log-likelihoods of many requests: their corruptions packed into shared forward passes."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from mdlm_lm_eval.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.likelihood.canvases import LikelihoodRequest, answer_length, truncate
from mdlm_lm_eval.likelihood.masks import Corruption, chain_corruptions, monte_carlo_corruptions
from mdlm_lm_eval.options import LikelihoodOptions

T = TypeVar("T")

# Rows are made while batches are formed. Requests that share a context share rows; the bound keeps tasks in which all
# requests have the same (empty) context from being laid out in memory at once.
_REQUESTS_PER_GROUP = 256
# Logits are upcast and normalised in slices of this many positions: at a vocabulary of 126,464 a slice takes 130 MB.
_POSITIONS_PER_SLICE = 256


@dataclass
class CorruptedCanvas:
    """One canvas, the corruptions (request index, corruption) that it answers, and the requests whose next greedy token
    it decides."""

    token_ids: list[int]
    context_length: int
    corruptions: list[tuple[int, Corruption]] = field(default_factory=list)
    greedy: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Scores:
    """The requests (contexts already cut to fit), their answer lengths, and the results so far.

    `greedy_masks[i]` holds the continuation positions of request i that greedy decoding has not reached yet; it is None
    once decoding has left the continuation, or where nobody asks.
    """

    requests: list[LikelihoodRequest]
    answer_lengths: list[int]
    log_likelihoods: list[float]
    greedy_masks: list[list[int] | None]


def corruptions_of(request: LikelihoodRequest, options: LikelihoodOptions) -> list[Corruption]:
    """The corruptions whose weighted log-probabilities sum to this request's estimate."""
    n = len(request.continuation_ids)
    if options.likelihood == "chain":
        return chain_corruptions(n)
    return monte_carlo_corruptions(n, options.mc_num, torch.Generator().manual_seed(request.seed))


def most_rows(request: LikelihoodRequest, options: LikelihoodOptions) -> int:
    """How many canvases a request's estimate takes at most; merged masks and shared contexts save some."""
    n = len(request.continuation_ids)
    return max(1, n if options.likelihood == "chain" else min(2**n - 1, options.mc_num))


def score(
    denoiser: Denoiser,
    requests: Sequence[LikelihoodRequest],
    options: LikelihoodOptions,
    *,
    batch_size: int,
    max_length: int,
    progress: bool = False,
    corruptions_of: Callable[[LikelihoodRequest, LikelihoodOptions], list[Corruption]] = corruptions_of,
) -> list[tuple[float, bool]]:
    """(log p(continuation | context) in nats, whether greedy decoding gives the continuation) for every request.

    Greedy decoding is confidence-ordered, one token a step, over the continuation's positions; extra masks behind it
    stay masks, as they do in the estimate. Its first step is read off the estimate's own passes where they contain the
    fully masked continuation, and it stops at the first token that differs. Without `check_greedy` the flag is False.

    `mc` estimates LLaDA's bound (`masks.py`), `chain` factorises left to right, `auto` is exact for one token and `mc`
    otherwise; `corruptions_of` says so in code, and comparisons with other schemes put theirs in its place. Raises
    OptionError, before any forward pass, if a canvas does not fit, and NonFiniteLogitsError where a request's logits
    are NaN or infinite.
    """
    scores = _prepare(requests, options, max_length)
    with tqdm(total=len(requests), desc="Likelihood requests", disable=not progress) as bar:
        rows = _rows(scores, lambda request: corruptions_of(request, options), denoiser.mask_token_id, bar)
        _read_all(denoiser, rows, scores, options.cfg_scale, batch_size)
    while unfinished := [i for i, masked in enumerate(scores.greedy_masks) if masked]:
        _read_all(
            denoiser, _greedy_rows(scores, unfinished, denoiser.mask_token_id), scores, options.cfg_scale, batch_size
        )
    return [(ll, masked is not None) for ll, masked in zip(scores.log_likelihoods, scores.greedy_masks, strict=True)]


def _prepare(requests: Sequence[LikelihoodRequest], options: LikelihoodOptions, max_length: int) -> Scores:
    fitted = [truncate(request, options, max_length) for request in requests]
    return Scores(
        requests=fitted,
        answer_lengths=[answer_length(request, options) for request in fitted],
        log_likelihoods=[0.0] * len(fitted),
        greedy_masks=[
            list(range(len(request.continuation_ids))) if options.check_greedy else None for request in fitted
        ],
    )


def _rows(
    scores: Scores,
    corruptions_of: Callable[[LikelihoodRequest], list[Corruption]],
    mask_token_id: int,
    bar: "tqdm[object]",
) -> Iterator[CorruptedCanvas]:
    """Rows of all requests, longest canvas first; equal canvases of requests with the same context are one row."""

    def canvas(i: int) -> tuple[int, int, list[int]]:
        context = scores.requests[i].context_ids
        return -len(context) - scores.answer_lengths[i], scores.answer_lengths[i], context

    in_order = sorted(range(len(scores.requests)), key=canvas)
    for _, same_context in itertools.groupby(in_order, key=canvas):
        for group in _chunks(same_context, _REQUESTS_PER_GROUP):
            rows: dict[tuple[int, ...], CorruptedCanvas] = {}
            for i in group:
                for corruption in corruptions_of(scores.requests[i]):
                    _row(rows, scores, i, corruption.masked, mask_token_id).corruptions.append((i, corruption))
                if masked := scores.greedy_masks[i]:
                    _row(rows, scores, i, masked, mask_token_id).greedy.append(i)
            yield from rows.values()
            bar.update(len(group))


def _greedy_rows(scores: Scores, unfinished: list[int], mask_token_id: int) -> Iterator[CorruptedCanvas]:
    for i in sorted(unfinished, key=lambda i: -len(scores.requests[i].context_ids) - scores.answer_lengths[i]):
        row = _row({}, scores, i, scores.greedy_masks[i] or [], mask_token_id)
        row.greedy.append(i)
        yield row


def _row(
    rows: dict[tuple[int, ...], CorruptedCanvas], scores: Scores, i: int, masked: Sequence[int], mask_token_id: int
) -> CorruptedCanvas:
    request = scores.requests[i]
    answer = request.continuation_ids + [mask_token_id] * (scores.answer_lengths[i] - len(request.continuation_ids))
    for position in masked:
        answer[position] = mask_token_id
    key = tuple(answer)
    if key not in rows:
        rows[key] = CorruptedCanvas(request.context_ids + answer, len(request.context_ids))
    return rows[key]


def _read_all(
    denoiser: Denoiser, rows: Iterable[CorruptedCanvas], scores: Scores, cfg_scale: float, batch_size: int
) -> None:
    for batch in _chunks(rows, batch_size):
        _read(denoiser, batch, scores, cfg_scale)


def _read(denoiser: Denoiser, rows: list[CorruptedCanvas], scores: Scores, cfg_scale: float) -> None:
    """One forward pass over `rows`; adds to the log-likelihoods and advances greedy decoding."""
    length = max(len(row.token_ids) for row in rows)
    input_ids = torch.full((len(rows), length), denoiser.pad_token_id)  # [B, T]
    attention_mask = torch.zeros(len(rows), length, dtype=torch.long)  # [B, T]
    in_context = torch.zeros(len(rows), length, dtype=torch.bool)  # [B, T]
    positions: list[int] = []  # [N], in the flattened canvases, whose logits are read
    rank: list[dict[int, int]] = []  # of each row, continuation position -> which of the N it is
    for b, row in enumerate(rows):
        input_ids[b, : len(row.token_ids)] = torch.tensor(row.token_ids)
        attention_mask[b, : len(row.token_ids)] = 1
        in_context[b, : row.context_length] = True
        read = _positions_read(row, scores)
        rank.append({position: len(positions) + n for n, position in enumerate(read)})
        positions += [b * length + row.context_length + position for position in read]

    device = denoiser.device
    logits = denoiser.logits(
        input_ids.to(device),
        None if all(len(row.token_ids) == length for row in rows) else attention_mask.to(device),
        torch.tensor(positions).to(device),
        cfg_scale=cfg_scale,
        prompt_mask=in_context.to(device),
    )  # [N, V]

    wanted, targets = [], []
    for b, row in enumerate(rows):
        for i, corruption in row.corruptions:
            wanted += [rank[b][position] for position in corruption.scored]
            targets += [scores.requests[i].continuation_ids[position] for position in corruption.scored]
    normaliser = torch.cat([part.float().logsumexp(-1) for part in logits.split(_POSITIONS_PER_SLICE)])  # [N]
    chosen = torch.tensor(wanted, dtype=torch.long, device=device)
    true_logits = logits[chosen, torch.tensor(targets, dtype=torch.long, device=device)].float()
    log_probs = (true_logits - normaliser[chosen]).double().cpu()  # [scored tokens of all corruptions]
    _check_finite(normaliser, positions, length, rows)
    if any(row.greedy for row in rows):
        confidences, predictions = _greedy_tokens(logits, normaliser, denoiser.mask_token_id)

    start = 0
    for b, row in enumerate(rows):
        for i, corruption in row.corruptions:
            end = start + len(corruption.scored)
            scores.log_likelihoods[i] += corruption.weight * float(log_probs[start:end].sum())
            start = end
        for i in row.greedy:
            masked = scores.greedy_masks[i] or []
            surest = max(masked, key=lambda position: confidences[rank[b][position]])
            if predictions[rank[b][surest]] == scores.requests[i].continuation_ids[surest]:
                scores.greedy_masks[i] = [position for position in masked if position != surest]
            else:
                scores.greedy_masks[i] = None


def _check_finite(normaliser: Tensor, positions: list[int], length: int, rows: list[CorruptedCanvas]) -> None:
    """Raises NonFiniteLogitsError, naming the request, where the normaliser [N] of logits is NaN or infinite."""
    for position, finite in zip(positions, normaliser.isfinite().tolist(), strict=True):
        if not finite:
            row = rows[position // length]
            raise NonFiniteLogitsError(row.corruptions[0][0] if row.corruptions else row.greedy[0])


def _positions_read(row: CorruptedCanvas, scores: Scores) -> list[int]:
    scored = {position for _, corruption in row.corruptions for position in corruption.scored}
    return sorted(scored.union(*(scores.greedy_masks[i] or [] for i in row.greedy)))


def _greedy_tokens(logits: Tensor, normaliser: Tensor, mask_token_id: int) -> tuple[list[float], list[int]]:
    """Log-probability and id of the likeliest token that is not the mask, for logits [N, V]; overwrites `logits`.

    The likelihood's softmax counts the mask token, as LLaDA's does; decoding never emits it, so it is taken out here.
    """
    without_mask = normaliser + torch.log1p(-torch.exp(logits[:, mask_token_id].float() - normaliser))
    logits[:, mask_token_id] = -torch.inf
    best, tokens = logits.max(-1)
    return (best.float() - without_mask).tolist(), tokens.tolist()


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
