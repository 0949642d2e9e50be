"""Readers: what takes part in passes for numbers that only some samplers and options need. No pass knows them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import exclude, slices_of
from mdlm_lm_eval.decoding.canvas import FirstToken
from mdlm_lm_eval.decoding.passes import Reader
from mdlm_lm_eval.decoding.rows import Lanes, Numbers, Row
from mdlm_lm_eval.decoding.sampler import Choice
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.decoding.windows import Asked, as_tensor
from mdlm_lm_eval.model.devices import to_device

_EPSILON = 1e-12  # of divergences, as in arXiv 2511.05664


class SamplerState(Reader):
    """The sampler's own tensors, on the host."""

    def __init__(self, fresh: Mapping[str, Tensor]) -> None:
        self.fresh = fresh

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """`View.state`."""
        lanes, state = torch.from_numpy(asked.window.lanes[:, 0]), asked.window.of.state
        return {"state": {name: state[name][lanes] for name in self.fresh}}

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Keeps the tensors of the pass's rows."""
        taken = [n for n, row in enumerate(asked.window.rows) if row is not None]
        lanes = torch.from_numpy(asked.window.lanes[taken, 0])
        for name, each in choice.state.items():
            asked.window.of.state[name][lanes] = each[taken]


class FirstSlot(Reader):
    """The model's answer at each row's first slot, for tasks whose answers are labels, with the tokens `label_ids`.

    It is read in the pass that fills the slot, before tokens are banned; a later one that fills it counts.
    """

    def __init__(self, batch: Batch) -> None:
        self.device = batch.device
        self.label_ids = to_device(torch.tensor(batch.call.label_ids), batch.device)

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """The numbers [K, 3] of `FirstToken` at the K first slots among the places."""
        (found,) = (asked.slot == 0).nonzero()
        chosen = logits[as_tensor(found, self.device)]
        entropy = torch.special.entr(chosen.float().softmax(-1)).sum(-1)
        label = self.label_ids[chosen[:, self.label_ids].argmax(-1)]
        return {"first": torch.stack([chosen.argmax(-1).double(), label.double(), entropy.double()], 1)}

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Keeps the numbers of slots that were written."""
        (of_slots,) = (asked.slot == 0).nonzero()
        for n, (token, label, entropy) in zip(of_slots.tolist(), found["first"].tolist(), strict=True):
            row = asked.window.rows[asked.pass_row[n]]
            if row is not None and choice.written[asked.pass_row[n], asked.offset[n]]:
                row.first = FirstToken(int(token), int(label), entropy)


class NextToken(Reader):
    """Logits [L, V] of the token after each row's last finished block, for models whose finished blocks predict it.

    They are kept on the device for all passes over the block that begins with the token. A block's first token is at
    the second place of its row, the token after a finished block at the first.
    """

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Writes the predictions of blocks' first tokens into `logits`, and keeps those of finished blocks."""
        window, device = asked.window, logits.device
        kept = window.of.state.setdefault("next token", logits.new_zeros(len(window.of), logits.shape[1]))
        follows = [row is not None and (row.number > 0 or row.layout.prompt is not None) for row in window.rows]
        (first,) = ((asked.offset == 1) & np.array(follows)[asked.pass_row]).nonzero()
        (after,) = (asked.offset == 0).nonzero()
        if len(first):
            logits[as_tensor(first, device)] = kept[as_tensor(asked.lane[first], device)]
        if len(after):
            kept[as_tensor(asked.lane[after], device)] = logits[as_tensor(after, device)]
        return {}


class History(Reader):
    """`View.divergence`: the changes of each mask's distribution in the last passes.

    It keeps the distributions of L lanes' slots in the last pass, [L, N, V], and their changes in H passes, [L, H, T].
    Distributions lie on the device, changes on the host; both are zeros for slots that no pass has predicted yet.
    """

    def __init__(self, batch: Batch) -> None:
        self.banned_ids = batch.call.banned_ids
        n_slots = max(len(canvas.slots) for canvas in batch.canvases)
        self.fresh = {
            "history.distributions": torch.zeros(1, device=batch.device).expand(1, n_slots, batch.denoiser.vocab_size),
            "history.changes": torch.zeros(1, batch.way.needs.history, batch.n_columns),
        }

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Remembers the distributions, without tokens that are never proposed.

        Sends their Kullback-Leibler divergences [N] from those of the pass before, in nats.
        """
        exclude(logits, self.banned_ids)
        before, found = asked.window.of.state["history.distributions"], []
        lanes, slots = as_tensor(asked.lane, logits.device), as_tensor(asked.slot, logits.device)
        for part in slices_of(len(logits), logits):
            probabilities = logits[part].float().softmax(-1)
            changes = (probabilities + _EPSILON).log() - (before[lanes[part], slots[part]] + _EPSILON).log()
            found.append((probabilities * changes).sum(-1))
            before[lanes[part], slots[part]] = probabilities
        return {"divergence": torch.cat(found)}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """The changes in the last H passes, of which this one is the last."""
        now = torch.from_numpy(asked.onto_window(found["divergence"]))
        columns, state = torch.from_numpy(asked.window.columns), asked.window.of.state
        before = state["history.changes"]
        on_canvas = torch.zeros_like(before[:, 0]).scatter(1, columns, now)  # [R, T]
        changes = state["history.changes"] = torch.cat([before[:, 1:], on_canvas[:, None]], 1)
        return {"divergence": changes.gather(2, columns[:, None].expand(-1, changes.shape[1], -1))}


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
