"""What makes a model end its thinking: a logit that is raised (iLLaDA), or a budget (Nemotron-Labs-Diffusion)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.options import DecodingOptions, OptionError


@dataclass(frozen=True)
class EndOfThinking:
    """The tokens [S] that end thinking, and what is done for them.

    budget: in tokens, None without one; then `end`, the first of the tokens, is the only one, and never changes.
    """

    token_ids: Tensor
    end: int
    boost: float
    power: float
    budget: int | None

    @classmethod
    def of(cls, options: DecodingOptions, token_ids: Sequence[int], device: torch.device) -> "EndOfThinking":
        """Raises OptionError where `end_think` is not one token, as a budget needs."""
        if not token_ids or (options.max_thinking_tokens is not None and len(token_ids) > 1):
            raise OptionError(f"end_think={options.end_think} must be one token, not {len(token_ids)}")
        ids = to_device(torch.tensor(token_ids), device)
        return cls(ids, token_ids[0], options.end_think_boost, options.end_think_power, options.max_thinking_tokens)

    def _matches(self, tokens: Tensor, prompt_lengths: Tensor) -> list[Tensor]:
        """For k = 0, ..., S, where [R, T] the k tokens before a position are the first k, behind the prompt [R, 1]."""
        behind = torch.arange(tokens.shape[1], device=tokens.device) - prompt_lengths  # [R, T]
        found = [behind >= 0]
        for k in range(1, len(self.token_ids) + 1):
            places = [(tokens == self.token_ids[n]).roll(k - n, 1) for n in range(k)]
            found.append(torch.stack(places).all(0) & (behind >= k))
        return found

    def raise_logits(
        self, logits: Tensor, row: Tensor, column: Tensor, tokens: Tensor, masked: Tensor, facts: tuple[Tensor, Tensor]
    ) -> None:
        """Raises, in `logits` [N, V] of masks at `column` [N] of `row` [N], one at each row's leftmost mask.

        `tokens` [R, T], of which the last is no row's; `masked` [R, T]: masks of the block; `facts`, [R, 1]: tokens
        of prompt, and masks of the whole canvas as it began. The raised token is the next one of those that end
        thinking, by boost * (share of the canvas up to here) ** power; none where they are there already.
        """
        prompt_lengths, total = facts
        matches = self._matches(tokens, prompt_lengths)
        begun = torch.stack(matches[:-1]).long()  # [S, R, T]
        steps = torch.arange(1, len(begun) + 1, device=tokens.device)[:, None, None]
        matched = (begun * steps).amax(0).sub(1).clamp(min=0)  # [R, T], the longest k
        is_leftmost = (masked & (masked.cumsum(1) == 1))[row, column] & ~matches[-1].any(1)[row]  # [N]
        share = ((column - prompt_lengths[row, 0] + 1) / total[row, 0]).clamp(0, 1)
        amount = self.boost * share**self.power * is_leftmost
        logits.scatter_add_(1, self.token_ids[matched[row, column]][:, None], amount[:, None].to(logits.dtype))

    def close(
        self, tokens: Tensor, block_of: Tensor, prompt_lengths: Tensor, entered: Tensor, enters: Tensor
    ) -> Tensor:
        """`tokens` [R, T] with the end of thinking where the budget ends, of rows [R] that `enters` the block there.

        `block_of` [R, T] are the blocks of slots, `entered` [R] the numbers of the blocks to come. Nothing is written
        where a slot of an earlier block holds the end.
        """
        if self.budget is None:
            return tokens
        column = (prompt_lengths + self.budget).clamp(max=tokens.shape[1] - 1)[:, None]  # [R, 1]
        entered = entered[:, None]
        is_there = ((block_of >= 0) & (block_of < entered) & (tokens == self.end)).any(1, keepdim=True)
        closes = enters[:, None] & ~is_there & (block_of.gather(1, column) == entered)
        return tokens.scatter(1, column, tokens.gather(1, column).masked_fill(closes, self.end))
