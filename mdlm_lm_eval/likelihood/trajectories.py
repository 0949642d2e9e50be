"""Trajectories of the deterministic decoder to a given continuation: the order of masks, and the tokens' probabilities.

The unmasking rule chooses the masks of a canvas that are filled next. They are filled with the continuation's own
tokens, so exactly one trajectory leads to each continuation. The log-probabilities along it sum to the exact
log p(continuation | context) of the decoder that draws its tokens at temperature 1: DUEL (arXiv 2603.01367). The rule
never sees a token that is still masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest


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
