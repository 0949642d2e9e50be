"""The end of a model's thinking: a logit that is raised (iLLaDA), or a budget (Nemotron-Labs-Diffusion)."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.lanes import Lanes
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.rows import Row
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.decoding.windows import as_tensor


class RaisedEndOfThinking(Reader):
    """Raises a logit at the leftmost mask of each row's block: that of the next of the tokens that end thinking."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.options, self.token_ids = batch, batch.options, tuple(batch.call.end_think_ids)

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Raises the logits, by 0 where all of the tokens are written."""
        window = asked.window
        of_block = window.own & (window.blocks >= window.numbers)  # not those of earlier blocks
        leftmost = of_block & (asked.tokens == self.batch.mask_token_id)
        leftmost &= leftmost.cumsum(1) == 1
        (found,) = leftmost.ravel()[asked.indices].nonzero()
        raised = []
        for n in found.tolist():
            row = window.rows[asked.pass_row[n]]
            assert row is not None
            text, n_prompt = window.of.tokens[row.lane].tolist(), row.canvas.prompt_length
            column = int(window.columns[asked.pass_row[n], asked.offset[n]])
            raised.append(self.boost(text[n_prompt:], column - n_prompt, len(row.canvas.slots)))
        if raised:
            ids, amounts = (as_tensor(np.array(each), logits.device) for each in zip(*raised, strict=True))
            logits.index_put_((as_tensor(found, logits.device), ids), amounts.to(logits.dtype), accumulate=True)
        return {}

    def boost(self, tokens: Sequence[int], position: int, n_slots: int) -> tuple[int, float]:
        """The token whose logit is raised, and by how much: boost * (share of the canvas up to here) ** power.

        `tokens` follow the prompt, `position` is the mask's number among them.
        """
        ids, n = self.token_ids, len(self.token_ids)
        if any(tuple(tokens[k : k + n]) == ids for k in range(len(tokens) - n + 1)):
            return ids[0], 0.0
        begun = max(
            (k for k in range(1, n) if k <= position and tuple(tokens[position - k : position]) == ids[:k]), default=0
        )
        share = min(1.0, max(0.0, (position + 1) / n_slots))
        return ids[begun], self.options.end_think_boost * share**self.options.end_think_power


def end_thinking(row: Row, lanes: Lanes) -> None:
    """Writes the end of thinking, one token, into the block in which the budget ends, unless an earlier one holds it.

    No sampler may change it then.
    """
    options, (token_id, *_) = lanes.batch.options, lanes.batch.call.end_think_ids
    assert options.max_thinking_tokens is not None
    column = row.canvas.prompt_length + options.max_thinking_tokens
    if column not in row.block.slots or token_id in row.answer[: row.extent.n_before]:
        return
    row.answer[row.canvas.slots.index(column)] = token_id
    old = int(lanes.tokens[row.lane, column])
    lanes.tokens[row.lane, column] = token_id
    if options.trace and old != token_id:  # no pass proposed it
        row.events.append(Event(row.cost.forward_passes, column, old, token_id, 0.0))
