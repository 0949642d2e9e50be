"""The deterministic decoder's way to a given continuation: which mask it fills when, and how likely the true token is.

The unmasking rule looks at a canvas and names the masks to fill next. Where these take the continuation's own tokens,
step by step, one trajectory leads to each continuation. So the log-probabilities along it sum to the exact
log p(continuation | context) of the decoder that draws its tokens at temperature 1: DUEL (arXiv 2603.01367). The rule
never sees a token that is still masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.proposals import propose
from mdlm_lm_eval.decoding.selection import sure_enough
from mdlm_lm_eval.likelihood.canvases import LikelihoodRequest
from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions


@dataclass
class Trajectory:
    """How far the decoder has come with one request, or with a block of it where attention is block-causal.

    index: of the request, in the caller's order.
    request: context and continuation, as far as they stand in the block.
    answer_length: tokens behind the context, as far as they stand in the block.
    masked: continuation positions that are still masks, ascending.
    order: the others, in the order in which they were filled; within a step the rule's first choice comes first.
    log_probs: in that order, nats, of the true token among all tokens but the mask.
    is_greedy: whether every true token was the likeliest one when it was filled in.
    first_alone: whether the leftmost mask is filled before all others, whatever the rule says. The finished blocks of a
        shifted model tell it (Fast-dLLM v2).
    block: its number; start: the position of its first token; offset: that of its first continuation token in the whole
        continuation.
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


def unmask(
    trajectories: Sequence[Trajectory],
    rows: Sequence[Sequence[int]],
    logits: Tensor,
    options: LikelihoodOptions,
    mask_token_id: int,
    *,
    strict: bool,
) -> None:
    """One denoising step: the masks that the unmasking rule names are filled.

    It names `tokens_per_step` masks a trajectory, and every one more whose confidence reaches `confidence_threshold`,
    or exceeds it where `strict`, as in decoding. `rows` says for each trajectory which of `logits` [N, V] are those of
    its masks; `logits` may be overwritten. Raises NonFiniteLogitsError.
    """
    alike: dict[tuple[int, ...], list[Trajectory]] = {}  # same canvas, same masks: one choice for all
    for trajectory, of_trajectory in zip(trajectories, rows, strict=True):
        alike.setdefault(tuple(of_trajectory), []).append(trajectory)
    needed = [row for of_trajectory in alike for row in of_trajectory]
    if needed != list(range(len(logits))):
        logits = logits[torch.tensor(needed, device=logits.device)]
    positions = torch.tensor([p for same in alike.values() for p in same[0].masked], device=logits.device)
    undrawn = torch.zeros(len(needed), device=logits.device)
    proposals = propose(
        logits,
        DecodingOptions(unmasking=options.unmasking),
        banned_ids=(mask_token_id,),
        end_ids=(),
        uniform=undrawn,
        slot_numbers=positions,
        random_numbers=undrawn,
    )
    tokens: list[int] = proposals.tokens.tolist()
    sure = sure_enough(proposals.confidence, options.confidence_threshold, strict=strict).tolist()
    confidence: list[float] = proposals.confidence.tolist()
    priority: list[float] = proposals.priority.tolist()

    chosen: list[int] = []  # rows of `logits`
    filled: list[tuple[Trajectory, int, int]] = []  # trajectory, position, index into `chosen`
    start = 0
    for same in alike.values():
        masked, end = same[0].masked, start + len(same[0].masked)
        if any(value != value for value in confidence[start:end]):
            raise NonFiniteLogitsError(same[0].index)
        first_to_last = sorted(range(start, end), key=lambda row: -priority[row])  # of equals the leftmost is first
        if same[0].first_alone and not same[0].order:
            first_to_last = [start]
        for rank, row in enumerate(first_to_last):
            if rank < options.tokens_per_step or sure[row]:
                filled += [(trajectory, masked[row - start], len(chosen)) for trajectory in same]
                chosen.append(row)
        start = end

    log_probs = logits[torch.tensor(chosen, device=logits.device)].float().log_softmax(-1)  # [filled masks, V]
    targets = [trajectory.request.continuation_ids[position] for trajectory, position, _ in filled]
    of_filled = torch.tensor([index for *_, index in filled], device=logits.device)
    true_log_probs: list[float] = log_probs[of_filled, torch.tensor(targets, device=logits.device)].tolist()
    for (trajectory, position, index), target, log_prob in zip(filled, targets, true_log_probs, strict=True):
        trajectory.masked = [other for other in trajectory.masked if other != position]
        trajectory.order.append(position)
        trajectory.log_probs.append(log_prob)
        trajectory.is_greedy &= tokens[chosen[index]] == target
