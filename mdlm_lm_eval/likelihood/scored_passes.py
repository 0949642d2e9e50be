"""One forward pass over likelihood canvases, which scores corruptions and advances trajectories."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked, slices_of
from mdlm_lm_eval.decoding.selection import sure_enough
from mdlm_lm_eval.likelihood.corruptions import Corruption
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.trajectories import Trajectory
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import bucket, positions_of, to_device
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

C = TypeVar("C", bound="LikelihoodCanvas")


class Term(NamedTuple):
    """The part of a sum that the token at a `position` of the continuation adds: `weight` times its `log_prob`.

    sample: the position at which the block begins (0 under full attention), followed by the masked positions in it.
    """

    position: int
    weight: float
    log_prob: float
    sample: tuple[int, ...] = ()


class Likelihood(NamedTuple):
    """log p(continuation | context) in nats, or another score.

    is_greedy: whether greedy decoding gives the continuation.
    error: the standard error if it is estimated from samples; None if it is computed exactly.
    terms: the terms of the sum; none for `likelihood=read`.
    """

    total: float
    is_greedy: bool
    error: float | None = None
    terms: Sequence[Term] = ()


@dataclass(frozen=True)
class Scoring:
    """The data that all passes of one call of `score` share.

    rule: the options by which trajectories take their steps.
    corruptions_of: returns the corruptions of a request, or of its part in a block; None if only trajectories are
        needed.
    terms: the terms of every request's sum so far.
    """

    denoiser: Denoiser
    options: LikelihoodOptions
    rule: LikelihoodOptions
    corruptions_of: Callable[[LikelihoodRequest], list[Corruption]] | None
    terms: list[list[Term]]
    batch_size: int

    @property
    def walks(self) -> bool:
        """Whether trajectories advance."""
        return self.corruptions_of is None or self.options.check_greedy


@dataclass
class LikelihoodCanvas:
    """A canvas, and the uses of its logits.

    of: a trajectory that it belongs to; those with an equal canvas share it.
    corruptions: the corruptions that it scores, with the trajectories of their requests.
    trajectories: the trajectories that take their next step on it.
    """

    token_ids: tuple[int, ...]
    of: Trajectory
    corruptions: list[tuple[Trajectory, Corruption]] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)

    @property
    def context_length(self) -> int:
        """Tokens before the continuation."""
        return len(self.of.request.context_ids)

    @property
    def key(self) -> Hashable:
        """Equal for canvases that are equal for the model."""
        return self.context_length, self.token_ids

    def positions(self) -> list[int]:
        """The positions of the continuation whose logits are needed, ascending."""
        read = {position for _, corruption in self.corruptions for position in corruption.scored}
        read.update(position for trajectory in self.trajectories for position in trajectory.masked)
        return sorted(read)


def merged(
    scoring: Scoring, trajectories: Iterable[Trajectory], kind: Callable[[tuple[int, ...], Trajectory], C]
) -> list[C]:
    """Canvases of a `kind` for all corruptions and all next steps of trajectories; those with equal keys are one."""
    canvases: dict[Hashable, C] = {}

    def canvas(trajectory: Trajectory, masked: Sequence[int]) -> C:
        made = kind(trajectory.canvas(masked, scoring.denoiser.mask_token_id), trajectory)
        return canvases.setdefault(made.key, made)

    for trajectory in trajectories:
        for corruption in scoring.corruptions_of(trajectory.request) if scoring.corruptions_of else ():
            canvas(trajectory, corruption.masked).corruptions.append((trajectory, corruption))
        if scoring.walks and trajectory.masked:
            canvas(trajectory, trajectory.masked).trajectories.append(trajectory)
    return list(canvases.values())


def read(scoring: Scoring, canvases: Sequence[LikelihoodCanvas]) -> None:
    """Runs one forward pass over these canvases under full attention; see `take`."""
    take(scoring, canvases, _masked_logits(scoring.denoiser, canvases, scoring.options.cfg_scale), strict=False)


def take(scoring: Scoring, canvases: Sequence[LikelihoodCanvas], logits: Tensor, *, strict: bool) -> None:
    """Adds the contributions of corruptions to the terms, and advances the trajectories by one denoising step.

    `logits` [N, V] are those at the canvases' `positions`, canvas by canvas; they may be overwritten. With
    `likelihood=confidence`, a step fills the mask whose true token is the likeliest. Otherwise it fills
    `tokens_per_step` masks in each trajectory, and every other mask whose confidence reaches `confidence_threshold`, or
    exceeds it if `strict`, as in decoding. Raises NonFiniteLogitsError.
    """
    of_corruptions, contributions, alike = _rows_to_read(canvases)
    masks = [(row, p) for rows, same in alike.items() for row, p in zip(rows, same[0].masked, strict=True)]
    truths = [
        (row, trajectory.request.continuation_ids[position])
        for rows, same in alike.items()
        for trajectory in same
        for row, position in zip(rows, trajectory.masked, strict=True)
    ]
    parts = [_log_probs(logits, of_corruptions)]
    if masks:
        parts += [*_proposed(scoring, logits, masks, strict=strict), _log_probs(logits, truths)]
    sizes = [len(part) for part in parts]
    on_host = torch.cat([part.double() for part in parts]).cpu()  # the pass's only wait for the device
    log_probs, *of_masks = (part.tolist() for part in on_host.split(sizes))
    _add(scoring, contributions, log_probs)
    if masks:
        _advance(scoring, list(alike.values()), *of_masks)


def _add(
    scoring: Scoring, contributions: Sequence[tuple[Trajectory, Corruption, int]], log_probs: Sequence[float]
) -> None:
    """Adds the log-probability of each scored token to its request's terms. Raises NonFiniteLogitsError."""
    for (trajectory, corruption, position), log_prob in zip(contributions, log_probs, strict=True):
        index = trajectory.index
        if math.isnan(log_prob):
            raise NonFiniteLogitsError(index)
        sample = (trajectory.offset, *corruption.masked)
        scoring.terms[index].append(Term(trajectory.offset + position, corruption.weight, log_prob, sample))


def _proposed(
    scoring: Scoring, logits: Tensor, masks: Sequence[tuple[int, int]], *, strict: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For masks (row of the logits, position): the proposed tokens, confidences and priorities, and which are sure."""
    options = scoring.rule
    rows, positions = to_device(torch.tensor(masks), logits.device).unbind(1)
    if options.likelihood != "confidence":
        logits[:, scoring.denoiser.mask_token_id] = -torch.inf
    read = logits if [row for row, _ in masks] == list(range(len(logits))) else logits[rows]
    where = WhereMasked(positions, random_numbers=torch.zeros(len(masks), device=logits.device))
    unmasking = DecodingOptions(unmasking=options.unmasking)
    proposals = Proposer(unmasking, fused=bool(scoring.denoiser.fused)).propose(read, where)
    sure = sure_enough(proposals.confidence, options.confidence_threshold, strict=strict)
    return proposals.tokens, proposals.confidence, proposals.priority, sure


def _advance(
    scoring: Scoring,
    alike: Sequence[Sequence[Trajectory]],
    tokens: list[Any],
    confidence: list[float],
    priority: list[float],
    sure: list[Any],
    truths: list[float],
) -> None:
    """Lets trajectories take a step: those with the same masks share the proposals, but have truths of their own."""
    start = of_truths = 0
    for same in alike:
        own = slice(start, start + len(same[0].masked))
        start = own.stop
        if any(math.isnan(value) for value in confidence[own]):
            raise NonFiniteLogitsError(same[0].index)
        for trajectory in same:
            truth = truths[of_truths : of_truths + len(trajectory.masked)]
            of_truths += len(trajectory.masked)
            order = truth if scoring.rule.likelihood == "confidence" else priority[own]
            trajectory.fill(tokens[own], order, sure[own], truth, scoring.rule.tokens_per_step)


def _rows_to_read(
    canvases: Sequence[LikelihoodCanvas],
) -> tuple[list[tuple[int, int]], list[tuple[Trajectory, Corruption, int]], dict[tuple[int, ...], list[Trajectory]]]:
    """Returns the rows of the logits that are read.

    The first two lists have, for each scored token of a corruption, (row of the logits, true token), and (trajectory,
    corruption, position). The dictionary has the trajectories by the rows of their masks: those with the same canvas
    and the same masks share one choice.
    """
    of_corruptions: list[tuple[int, int]] = []
    contributions: list[tuple[Trajectory, Corruption, int]] = []
    alike: dict[tuple[int, ...], list[Trajectory]] = {}
    start = 0
    for canvas in canvases:
        row_of = {position: start + n for n, position in enumerate(canvas.positions())}
        start += len(row_of)
        for trajectory, corruption in canvas.corruptions:
            ids = trajectory.request.continuation_ids
            of_corruptions += [(row_of[position], ids[position]) for position in corruption.scored]
            contributions += [(trajectory, corruption, position) for position in corruption.scored]
        for trajectory in canvas.trajectories:
            alike.setdefault(tuple(row_of[position] for position in trajectory.masked), []).append(trajectory)
    return of_corruptions, contributions, alike


def _log_probs(logits: Tensor, rows_and_tokens: list[tuple[int, int]]) -> Tensor:
    """Log-probabilities [n], in nats, of tokens at rows of `logits` [N, V]; NaN if these are not finite."""
    if not rows_and_tokens:
        return logits.new_zeros(0)
    rows, tokens = to_device(torch.tensor(rows_and_tokens), logits.device).unbind(1)
    normaliser = torch.cat([logits[part].float().logsumexp(-1) for part in slices_of(len(logits), logits)])  # [N]
    return logits[rows, tokens].float() - normaliser.masked_fill(~normaliser.isfinite(), math.nan)[rows]


def _masked_logits(denoiser: Denoiser, canvases: Sequence[LikelihoodCanvas], cfg_scale: float) -> Tensor:
    """Logits [N, V] at the canvases' positions, canvas by canvas.

    On a GPU, the numbers of columns and rows are rounded up if the pass may become a graph, so that there are few
    shapes. In other passes no mask is needed if all canvases have the same length, and attention is faster without.
    """
    device, n_rows = denoiser.device, len(canvases)
    longest = max(len(canvas.token_ids) for canvas in canvases)
    length = positions_of(longest, device)
    may_be_graph = n_rows * length * (2 if cfg_scale > 0.0 else 1) <= denoiser.most_in_graph
    if may_be_graph:
        n_rows = bucket(n_rows, device)
    else:
        length = longest
    n_more = n_rows - len(canvases)
    canvases = [*canvases, *[canvases[-1]] * n_more]
    rows = [[*canvas.token_ids, *[denoiser.pad_token_id] * (length - len(canvas.token_ids))] for canvas in canvases]
    lengths, contexts = torch.tensor([[len(c.token_ids), c.context_length] for c in canvases])[..., None].unbind(1)
    columns = torch.arange(length)[None]
    flat = [
        b * length + canvas.context_length + p
        for b, canvas in enumerate(canvases[: len(canvases) - n_more])
        for p in canvas.positions()
    ]
    is_ragged = may_be_graph or bool((lengths != length).any())
    logits = denoiser.logits(
        to_device(torch.tensor(rows), device),  # [B, T]
        to_device((columns < lengths).long(), device) if is_ragged else None,
        to_device(torch.tensor(flat), device),  # [N], in the flattened canvases
        cfg_scale=cfg_scale,
        prompt_mask=to_device(columns < contexts, device) if cfg_scale > 0.0 else None,
    )
    denoiser.canvas_count -= n_more * (2 if cfg_scale > 0.0 else 1)  # copies
    return logits
