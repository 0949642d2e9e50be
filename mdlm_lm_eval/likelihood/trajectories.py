"""The deterministic decoder's way to a given continuation: when it fills each mask, and how likely the true token is.

The unmasking rule looks at a canvas and names the masks to fill next. Filled with the continuation's own tokens, step
by step, these lead to each continuation along one trajectory. So the log-probabilities along it sum to the exact
log p(continuation | context) of the decoder that draws its tokens at temperature 1: DUEL (arXiv 2603.01367). The rule
never sees a token that is still masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest


@dataclass
class Trajectory:
    """How far the decoder has come with one request, or with a block of it where attention is block-causal.

    index: that of the request, in the caller's order.
    request: context and continuation, without the parts outside the block.
    answer_length: tokens after the context that the block holds.
    masked: continuation positions that are still masks, ascending.
    order: the others, in the order in which they were filled; within a step the rule's first choice comes first.
    log_probs: in that order, nats, of the true token among all tokens but the mask.
    is_greedy: whether every true token was the likeliest one when it was filled in.
    first_alone: whether the leftmost mask is filled before all others, whatever the rule says: a shifted model's
        finished blocks predict it (Fast-dLLM v2).
    block, start: the number of the block and the position of its first token. offset: the place of the block's first
        continuation token in the whole continuation. left: the token before the block and that token's block, None at
        the start of a text.
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

    def fill(
        self, tokens: Sequence[int], priority: Sequence[float], sure: Sequence[bool], truth: Sequence[float], least: int
    ) -> None:
        """One denoising step: fills the `least` masks of highest priority, and all `sure` ones.

        All sequences have a value for each mask in turn; `tokens` are the proposals, `truth` log p(true token).
        """
        order = sorted(range(len(self.masked)), key=lambda n: -priority[n])  # the leftmost first among equals
        if self.first_alone and not self.order:
            order = [0]
        chosen = [n for rank, n in enumerate(order) if rank < least or sure[n]]
        self.order += [self.masked[n] for n in chosen]
        self.log_probs += [truth[n] for n in chosen]
        self.is_greedy &= all(tokens[n] == self.request.continuation_ids[self.masked[n]] for n in chosen)
        self.masked = [position for n, position in enumerate(self.masked) if n not in chosen]
