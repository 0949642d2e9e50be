"""Readers: what takes part in every pass over rows in lanes, for numbers that only some samplers and options need.

A pass knows none of them but hindsight, which asks the model itself. That of thinking has a file of its own.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import exclude, slices_of
from mdlm_lm_eval.decoding.canvas import FirstToken
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.sampler import Choice
from mdlm_lm_eval.decoding.windows import Window, as_tensor
from mdlm_lm_eval.model.devices import to_device

_EPSILON = 1e-12  # of divergences, as in arXiv 2511.05664


class Asked:
    """The N places of a window at which a pass asks the model.

    tokens: [P, C], those of the window before the pass.
    masks, filled: [P, C] bool, the masks that it may fill, and the filled tokens among its places.
    indices: [N], the places' numbers in the flattened window.
    pass_row, offset: [N], the number of each one's row in the pass, and its number in this row.
    lane, slot: [N], the lane that each is in, and its number among the slots of its row.
    """

    def __init__(self, batch: Batch, window: Window) -> None:
        self.window, needs, options = window, batch.way.needs, batch.options
        self.tokens = window.of.tokens[window.lanes, window.columns]
        is_mask = self.tokens == batch.mask_token_id
        self.masks, self.filled = window.own & is_mask, window.own & ~is_mask
        if (small := options.small_block_length) is not None:  # those of the first small block that holds masks
            part = np.where(self.masks, (window.columns - window.starts) // small, batch.n_columns)
            self.masks &= part == part.min(1, keepdims=True)
        elif window.is_wide and batch.structure.shift:  # no later window holds the logits of the first mask
            self.masks &= self.masks.cumsum(1) == 1
        wanted = self.masks | self.filled if needs.proposals_for_filled else self.masks.copy()
        if window.is_next.any():
            self.filled[:, 0] = False
            wanted[:, 0] |= window.is_next
        if needs.history:  # the next block's first pass is compared with this one
            wanted |= (window.blocks == window.numbers + 1) & (window.numbers >= 0)
        if options.max_thinking_tokens is not None:  # its end stays where it is written
            self.filled &= self.tokens != batch.call.end_think_ids[0]
        self.indices = np.flatnonzero(wanted)
        self.pass_row, self.offset = np.divmod(self.indices, self.tokens.shape[1])
        self.lane, self.slot = window.lanes[self.pass_row, 0], window.slots.ravel()[self.indices]

    def onto_window(self, values: Numbers) -> Numbers:
        """Values [N] at the places of the window [P, C], and zeros elsewhere."""
        found = np.zeros(self.tokens.size, values.dtype)
        found[self.indices] = values
        return found.reshape(self.tokens.shape)


class Reader:
    """Sees the logits of each pass before tokens are proposed, and then the choice; it needs only some methods.

    fresh: tensors [1, ...] that it keeps in `Lanes.state`, as they are before a row's first pass.
    """

    fresh: Mapping[str, Tensor] = MappingProxyType({})

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Reads, or changes, the logits [N, V]. What it returns is sent to the host with the proposals, by name."""
        return {}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """Fields of the sampler's `View`, from the numbers that were sent."""
        return {}

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Learns what the sampler chose."""


class SamplerState(Reader):
    """The sampler's own tensors, on the host."""

    def __init__(self, batch: Batch) -> None:
        self.fresh = batch.way.sampler.state(1, batch.n_columns, torch.device("cpu"))

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


class Hindsight(Reader):
    """`View.hindsight`: how likely a filled token would be if its own position were masked.

    The model is asked with a shadow of the block after each canvas. A mask in the shadow has the position of its
    column. It sees all other columns of the canvas, and the shadow; the canvas sees the canvas alone, so that one pass
    gives both (arXiv 2507.18578).
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def logits(self, asked: Asked) -> Tensor:
        """Logits [N, V] at the places of the canvases; those of the shadow are kept as probabilities."""
        window, batch, denoiser = asked.window, self.batch, self.batch.denoiser
        self._shadow = self._shadow_of(window)
        (n_rows, width), length = asked.tokens.shape, batch.most_slots
        of_canvas = asked.indices + asked.pass_row * length
        of_shadow = np.arange(n_rows)[:, None] * (width + length) + width + np.arange(length)
        columns, tokens, is_there = (as_tensor(each, batch.device) for each in self._shadow)
        lengths = np.array([0 if row is None else len(row.canvas.token_ids) for row in window.rows])[:, None]
        real, there = as_tensor(window.columns < lengths, batch.device)[:, None], is_there[:, None]
        itself = window.run_columns[:, None] == columns[..., None]  # [P, B, W]
        canvas_sees = torch.cat([real, torch.zeros_like(there)], 2).expand(-1, width, -1)  # [P, W, W + B]
        shadow_sees = torch.cat([real & ~itself, there.expand(-1, length, -1)], 2)  # [P, B, W + B]
        logits = denoiser.window_logits(
            torch.cat([as_tensor(asked.tokens, batch.device), torch.full_like(columns, denoiser.mask_token_id)], 1),
            torch.cat([window.run_columns, columns], 1),
            torch.cat([canvas_sees, shadow_sees], 1),
            as_tensor(np.concatenate([of_canvas, of_shadow.ravel()]), batch.device),
        )
        of_places, of_shadows = logits[: len(asked.indices)], logits[len(asked.indices) :]
        exclude(of_shadows, batch.call.banned_ids)
        ids = tokens.flatten()[:, None]
        parts = slices_of(len(of_shadows), of_shadows)
        of_tokens = [of_shadows[part].float().softmax(-1).gather(1, ids[part]) for part in parts]
        self._probabilities = torch.cat(of_tokens).squeeze(1)
        return of_places

    def _shadow_of(self, window: Window) -> tuple[Numbers, Numbers, Numbers]:
        """Columns and tokens [P, B] of the slots of each row's block, which has at most B, and which are there."""
        columns, slots = window.of.columns, window.before + np.arange(self.batch.most_slots)
        places = (columns["slot"][window.lanes[:, 0]][:, None] == slots[..., None]).argmax(2)
        is_there = columns["block"][window.lanes, places] == window.numbers
        places = np.where(is_there, places, self.batch.n_columns - 1)
        return places, columns["token"][window.lanes, places], is_there

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """The shadow's probabilities."""
        return {"hindsight": self._probabilities}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """The probabilities of tokens that are no masks, and 0 elsewhere."""
        columns, tokens, is_there = self._shadow
        probabilities = found["hindsight"].reshape(columns.shape)
        on_canvas = np.zeros((len(columns), self.batch.n_columns), probabilities.dtype)
        wanted = (tokens != self.batch.mask_token_id) & is_there
        np.put_along_axis(on_canvas, columns, probabilities * wanted, 1)
        return {"hindsight": torch.from_numpy(np.take_along_axis(on_canvas, asked.window.columns, 1))}
