"""How likely a filled token would be if its own position were masked: a shadow of the block follows the canvas.

A mask in the shadow has the position of its column. It sees all other columns of the canvas, and the shadow; the canvas
sees the canvas alone, so that one pass gives both (arXiv 2507.18578).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import exclude, slices_of
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.windows import Window, as_tensor


class Hindsight(Reader):
    """Asks the model with a shadow after each canvas, and gives `View.hindsight`."""

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
        """`View.hindsight`: the probabilities of tokens that are no masks, and 0 elsewhere."""
        columns, tokens, is_there = self._shadow
        probabilities = found["hindsight"].reshape(columns.shape)
        on_canvas = np.zeros((len(columns), self.batch.n_columns), probabilities.dtype)
        wanted = (tokens != self.batch.mask_token_id) & is_there
        np.put_along_axis(on_canvas, columns, probabilities * wanted, 1)
        return {"hindsight": torch.from_numpy(np.take_along_axis(on_canvas, asked.window.columns, 1))}
