"""Fills masks near known tokens first (certainty prior of d2Cache, arXiv 2509.23094)."""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.decoding.sampler import STOP_AT_EOS, Choice, Needs, View, WholeAnswer
from mdlm_lm_eval.decoding.samplers.schedule import Schedule
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CertaintyPrior(Schedule):
    """A mask's score is its confidence, or margin, times the share of known tokens around it.

    Parallel rules read scores instead of confidences, and a step also fills as many masks as the schedule says. Two
    rules differ a little from Fast-dLLM's and the EB-sampler's: the factor rule never accepts the last mask of a block,
    and `entropy_bound` counts the entropies of all masks with higher scores.
    """

    asked_by: ClassVar[str | None] = "sigma"
    runs_whole_canvases: ClassVar[bool] = True  # over which known tokens are counted

    sigma: float | None = option(
        None, "Fill masks near known tokens first. sigma is the width of this neighbourhood in tokens", above=0
    )
    stop_at_eos: bool = STOP_AT_EOS

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses unmasking rules that are no probabilities."""
        if options.unmasking not in ("confidence", "margin"):
            return f"unmasking must be confidence or margin with sampler=certainty_prior, not {options.unmasking}"
        return super().refuses(options, attention)

    def needs(self, options: DecodingOptions) -> Needs:
        """Probabilities, and the whole answer."""
        return Needs(confidence=True, answer=True)

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """The option `steps` decides, as each step also fills the schedule's number of masks under parallel rules."""
        return None

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Fills masks by score; with `stop_at_eos`, those after an end of text only if no others are left."""
        from mdlm_lm_eval.decoding.selection import placed, select

        score = view.priority if options.unmasking == "margin" else view.confidence
        if self.sigma is not None:
            score = score * known_around(view.answer, self.sigma)
        masks = view.masks
        if self.stop_at_eos:
            before_end = masks & (view.answer.ends.cumsum(1) == 0)
            masks = before_end.where(before_end.any(1, keepdim=True), masks)
        scored = replace(view, masks=masks, priority=score, confidence=score)
        fill = select(scored, threshold=options.confidence_threshold)
        ordered, order = score.where(masks, -float("inf")).sort(dim=1, descending=True, stable=True)
        if (factor := options.parallel_factor) is not None:
            fill = fill | placed(order, _by_factor(ordered, factor)) & masks
        if (bound := options.entropy_bound) is not None:
            entropy = view.entropy.where(masks, 0.0).gather(1, order)
            fill = fill | placed(order, entropy.cumsum(1) - entropy <= bound) & masks
        return Choice(fill=fill)


def known_around(answer: WholeAnswer, sigma: float) -> "Tensor":
    """The share [R, C] of known tokens around each place of whole canvases, weighted by a Gaussian of the distance.

    For an answer of length L, L places on its left count as known, and if its last token is known, L places on its
    right. Shares are computed from the first column with a slot to the last, as they are needed at slots alone.
    """
    import torch
    from torch.nn.functional import pad

    columns = (answer.slots >= 0).any(0).nonzero().squeeze(1).tolist()
    begin, stop = columns[0], columns[-1] + 1
    is_slot, is_mask = answer.slots[:, begin:stop] >= 0, answer.masks[:, begin:stop]
    n = stop - begin
    place = torch.arange(n)
    first = place.where(is_slot, n).amin(1, keepdim=True)  # [R, 1]
    last = place.where(is_slot, 0).amax(1, keepdim=True)
    length = last - first + 1
    weights, sums = _weights(n, sigma)

    def between(nearest: "Tensor", farthest: "Tensor") -> "Tensor":
        return sums[farthest.clamp(min=0)] - sums[nearest.clamp(min=0)]

    known = ((place >= first) & (place <= last) & ~is_mask).double()
    inside = known @ weights
    left = between(place - first, place - first + length)
    right = between(last - place, last - place + length) * known.gather(1, last)
    every = 1 + sums[3 * length - 1] + sums[3 * length]
    shares = ((inside + left + right) / every).to(torch.float32)
    return pad(shares, (begin, answer.slots.shape[1] - stop))


@functools.lru_cache(maxsize=16)
def _weights(n: int, sigma: float) -> "tuple[Tensor, Tensor]":
    """Weights [n, n] between all places, and [3 n + 1] the sums of weights over distances from 1."""
    import torch

    distances = torch.arange(3 * n + 1)
    weights = (distances.double().square() / (-2 * sigma**2)).exp()
    return weights[(distances[:n, None] - distances[:n]).abs()], weights.cumsum(0) - 1


def _by_factor(ordered: "Tensor", factor: float) -> "Tensor":
    """Accepts scores [R, C], in descending order, before the first s_r with (r + 1) (1 - s_r) >= factor; never all."""
    import torch

    fails = (torch.arange(ordered.shape[1]) + 2) * (1 - ordered) >= factor
    fails[:, :-1].logical_or_(ordered[:, 1:] == -float("inf"))
    fails[:, -1] = True
    return ~fails.cummax(1).values


register(name="certainty_prior", sampler=CertaintyPrior)
