"""One forward pass over likelihood canvases, which scores corruptions and advances trajectories.

A canvas is context | continuation | masks. The unmasking rule chooses the masks of it that are filled next. They are
filled with the continuation's own tokens, so exactly one trajectory leads to each continuation. The log-probabilities
along it sum to the exact log p(continuation | context) of the decoder that draws its tokens at temperature 1: DUEL
(arXiv 2603.01367). The rule never sees a token that is still masked.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked, slices_of
from mdlm_lm_eval.decoding.selection import sure_enough
from mdlm_lm_eval.likelihood.corruptions import Corruption
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import bucket, positions_of, to_device
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

_Place = tuple[int, int]  # a row of the logits, and the true token there
_Proposal = tuple[int, float, float, bool]  # a token, its confidence and priority, and whether it is sure
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
    corruptions, steps = _places(canvases)
    scored = [place for *_, places in corruptions for place in places]
    masks = {place: n for each, places in steps for n, place in zip(each.masked, places, strict=True)}
    log_probs, proposals, truths = _values(scoring, logits, scored, masks, strict=strict)
    for each, corruption, places in corruptions:
        sample = (each.offset, *corruption.masked)
        for n, place in zip(corruption.scored, places, strict=True):
            if math.isnan(log_probs[place]):
                raise NonFiniteLogitsError(each.index)
            scoring.terms[each.index].append(Term(each.offset + n, corruption.weight, log_probs[place], sample))
    for each, places in steps:
        tokens, confidence, priority, sure = zip(*(proposals[row] for row, _ in places), strict=True)
        if any(map(math.isnan, confidence)):
            raise NonFiniteLogitsError(each.index)
        truth = [truths[place] for place in places]
        is_by_truth = scoring.rule.likelihood == "confidence"
        each.fill(tokens, truth if is_by_truth else priority, sure, truth, scoring.rule.tokens_per_step)


def _places(
    canvases: Sequence[LikelihoodCanvas],
) -> tuple[list[tuple[Trajectory, Corruption, list[_Place]]], list[tuple[Trajectory, list[_Place]]]]:
    """The places at which logits are read: those that each corruption scores, and the masks of each trajectory."""
    corruptions, steps = [], []
    number = itertools.count()
    for canvas in canvases:
        row_of = {position: next(number) for position in canvas.positions()}
        for each, corruption in canvas.corruptions:
            corruptions.append((each, corruption, [(row_of[n], each.token(n)) for n in corruption.scored]))
        for each in canvas.trajectories:
            steps.append((each, [(row_of[n], each.token(n)) for n in each.masked]))
    return corruptions, steps


def _values(
    scoring: Scoring, logits: Tensor, scored: Sequence[_Place], masks: Mapping[_Place, int], *, strict: bool
) -> tuple[dict[_Place, float], dict[int, _Proposal], dict[_Place, float]]:
    """Log-probabilities, in nats, at `scored` places; proposals by the rows of `masks`; log-probabilities at `masks`.

    Masks have their positions. Those of trajectories that share a canvas are at the same rows, with their own tokens.
    """
    position_of = {row: position for (row, _), position in masks.items()}
    parts = [
        _log_probs(logits, scored),  # before `_proposed` may exclude the mask token
        *_proposed(scoring, logits, position_of, strict=strict),
        _log_probs(logits, list(masks)),
    ]
    on_host = torch.cat([part.double() for part in parts]).cpu()  # the pass's only wait for the device
    of_scored, *of_masks, of_truths = (part.tolist() for part in on_host.split([len(part) for part in parts]))
    return (
        dict(zip(scored, of_scored, strict=True)),
        dict(zip(position_of, zip(*of_masks, strict=True), strict=True)),
        dict(zip(masks, of_truths, strict=True)),
    )


def _proposed(
    scoring: Scoring, logits: Tensor, position_of: Mapping[int, int], *, strict: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For masks at rows of the logits: the proposed tokens, confidences and priorities, and which are sure."""
    options = scoring.rule
    if not position_of:
        none = logits.new_zeros(0)
        return none, none, none, none
    if options.likelihood != "confidence":
        logits[:, scoring.denoiser.mask_token_id] = -torch.inf
    rows, positions = to_device(torch.tensor([*position_of.items()]), logits.device).unbind(1)
    read = logits if [*position_of] == list(range(len(logits))) else logits[rows]
    where = WhereMasked(positions, random_numbers=torch.zeros(len(positions), device=logits.device))
    unmasking = DecodingOptions(unmasking=options.unmasking)
    proposals = Proposer(unmasking, fused=bool(scoring.denoiser.fused)).propose(read, where)
    sure = sure_enough(proposals.confidence, options.confidence_threshold, strict=strict)
    return proposals.tokens, proposals.confidence, proposals.priority, sure


def _log_probs(logits: Tensor, places: Sequence[_Place]) -> Tensor:
    """Log-probabilities [n], in nats, of the true tokens at rows of `logits` [N, V]; NaN if these are not finite."""
    if not places:
        return logits.new_zeros(0)
    rows, tokens = to_device(torch.tensor(places), logits.device).unbind(1)
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
