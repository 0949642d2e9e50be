"""The end of a model's thinking: a logit that is raised (iLLaDA), or a budget (Nemotron-Labs-Diffusion)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.program import Field
from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.options import DecodingOptions, OptionError


@dataclass(frozen=True)
class EndOfThinking:
    """The end of thinking, and the options that bring it about.

    token_ids: [S], the tokens that end thinking. end: the first of them, which is the only one if
    `max_thinking_tokens` is set, and then never changes once it is written.
    """

    options: DecodingOptions
    token_ids: Tensor
    end: int

    @classmethod
    def of(cls, options: DecodingOptions, token_ids: Sequence[int], device: torch.device) -> "EndOfThinking | None":
        """None if no option asks for it. Raises OptionError if `end_think` is not one token, as a budget needs."""
        if not options.end_think_boost and options.max_thinking_tokens is None:
            return None
        if not token_ids or (options.max_thinking_tokens is not None and len(token_ids) > 1):
            raise OptionError(f"end_think={options.end_think} must be one token, not {len(token_ids)}")
        return cls(options, to_device(torch.tensor(token_ids), device), token_ids[0])

    def raise_logits(
        self, logits: Tensor, row: Tensor, column: Tensor, rows: Rows, number: Tensor, mask_token_id: int
    ) -> None:
        """Raises a logit of `logits` [N, V], at `column` [N] of `row` [N], at the leftmost mask of blocks `number` [R].

        It is the logit of the next token of those that end thinking, raised by boost * (share of the canvas up to here)
        ** power. Nothing is raised if all of them are written already.
        """
        boost = self.options.end_think_boost
        if not boost:
            return
        tokens, prompt_lengths = rows.tokens, rows.facts[:, 1:2]
        masked = (rows.block_of == number[:, None]) & (tokens == mask_token_id)  # [R, T]
        n_slots = (rows.slot_number >= 0).sum(1)
        matches = self._matches(tokens, prompt_lengths)
        begun = torch.stack(matches[:-1]).long()  # [S, R, T]
        steps = torch.arange(1, len(begun) + 1, device=tokens.device)[:, None, None]
        matched = (begun * steps).amax(0).sub(1).clamp(min=0)  # [R, T], the longest k
        is_leftmost = (masked & (masked.cumsum(1) == 1))[row, column] & ~matches[-1].any(1)[row]  # [N]
        share = ((column - prompt_lengths[row, 0] + 1) / n_slots[row]).clamp(0, 1)
        amount = boost * share**self.options.end_think_power * is_leftmost
        logits.scatter_add_(1, self.token_ids[matched[row, column]][:, None], amount[:, None].to(logits.dtype))

    def _matches(self, tokens: Tensor, prompt_lengths: Tensor) -> list[Tensor]:
        """For k = 0, ..., S, [R, T] bool: whether the k tokens before a position, after the prompt, are the first k."""
        n_before = torch.arange(tokens.shape[1], device=tokens.device) - prompt_lengths  # [R, T]
        found = [n_before >= 0]
        for k in range(1, len(self.token_ids) + 1):
            places = [(tokens == self.token_ids[n]).roll(k - n, 1) for n in range(k)]
            found.append(torch.stack(places).all(0) & (n_before >= k))
        return found

    def spares(self, filled: Tensor, tokens: Tensor) -> Tensor:
        """The `filled` places [R, G] that a sampler may change: with a budget, all but the end of thinking."""
        return filled if self.options.max_thinking_tokens is None else filled & (tokens != self.end)

    def enter_blocks(self, rows: Rows, entered: Tensor, is_new: Tensor) -> None:
        """Writes the end of thinking into rows that enter the block in which the budget ends.

        `entered` [R, F] are the rows' next records, `is_new` [R] bool says whether they begin a block. Nothing is
        written if a slot of an earlier block holds the end.
        """
        budget = self.options.max_thinking_tokens
        if budget is None:
            return
        tokens, number = rows.tokens, entered[:, Field.NUMBER, None]
        column = (rows.facts[:, 1:2] + budget).clamp(max=tokens.shape[1] - 1)  # [R, 1]
        earlier = (rows.block_of >= 0) & (rows.block_of < number)
        is_there = (earlier & (tokens == self.end)).any(1, keepdim=True)
        closes = is_new[:, None] & ~is_there & (rows.block_of.gather(1, column) == number)
        tokens.scatter_(1, column, tokens.gather(1, column).masked_fill(closes, self.end))
        if rows.confidence is not None:  # no pass proposed it
            rows.confidence.scatter_(1, column, rows.confidence.gather(1, column).masked_fill(closes, 0.0))
