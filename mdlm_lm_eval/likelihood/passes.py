"""One forward pass over likelihood canvases, and what corruptions and trajectories read of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mdlm_lm_eval.likelihood.masks import Corruption
from mdlm_lm_eval.likelihood.trajectories import Trajectory, unmask
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.options import LikelihoodOptions

# Logits are upcast and normalised in slices of this many positions: at a vocabulary of 126,464 a slice takes 130 MB.
_POSITIONS_PER_SLICE = 256


@dataclass
class LikelihoodCanvas:
    """A canvas, the corruptions that it answers with the trajectories of their requests, and the trajectories that take
    their next step on it."""

    token_ids: list[int]
    context_length: int
    corruptions: list[tuple[Trajectory, Corruption]] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)

    def positions(self) -> list[int]:
        """Positions of the continuation that are read, ascending."""
        read = {position for _, corruption in self.corruptions for position in corruption.scored}
        read.update(position for trajectory in self.trajectories for position in trajectory.masked)
        return sorted(read)


def read(
    denoiser: Denoiser, canvases: Sequence[LikelihoodCanvas], log_likelihoods: list[float], options: LikelihoodOptions
) -> None:
    """One forward pass under full attention; see `take`."""
    logits = _masked_logits(denoiser, canvases, options.cfg_scale)
    take(canvases, logits, log_likelihoods, options, denoiser.mask_token_id, strict=False)


def take(
    canvases: Sequence[LikelihoodCanvas],
    logits: Tensor,
    log_likelihoods: list[float],
    options: LikelihoodOptions,
    mask_token_id: int,
    *,
    strict: bool,
) -> None:
    """Adds what the corruptions contribute, and takes the trajectories one step further.

    `logits` [N, V] are those at the canvases' `positions`, canvas by canvas; they may be overwritten. `strict`
    is that of `unmask`. Raises NonFiniteLogitsError.
    """
    rows: list[dict[int, int]] = []  # of each canvas: continuation position -> row of `logits`
    start = 0
    for canvas in canvases:
        rows.append({position: start + n for n, position in enumerate(canvas.positions())})
        start += len(rows[-1])
    if any(canvas.corruptions for canvas in canvases):
        _add_corruptions(canvases, rows, logits, log_likelihoods)
    trajectories = [trajectory for canvas in canvases for trajectory in canvas.trajectories]
    if trajectories:
        of_masks = [
            [of_canvas[position] for position in trajectory.masked]
            for canvas, of_canvas in zip(canvases, rows, strict=True)
            for trajectory in canvas.trajectories
        ]
        unmask(trajectories, of_masks, logits, options, mask_token_id, strict=strict)


def _masked_logits(denoiser: Denoiser, canvases: Sequence[LikelihoodCanvas], cfg_scale: float) -> Tensor:
    """Logits [N, V] at the canvases' positions, canvas by canvas."""
    length = max(len(canvas.token_ids) for canvas in canvases)
    input_ids = torch.full((len(canvases), length), denoiser.pad_token_id)  # [B, T]
    attention_mask = torch.zeros(len(canvases), length, dtype=torch.long)  # [B, T]
    in_context = torch.zeros(len(canvases), length, dtype=torch.bool)  # [B, T]
    flat: list[int] = []  # [N], in the flattened canvases
    for b, canvas in enumerate(canvases):
        input_ids[b, : len(canvas.token_ids)] = torch.tensor(canvas.token_ids)
        attention_mask[b, : len(canvas.token_ids)] = 1
        in_context[b, : canvas.context_length] = True
        flat += [b * length + canvas.context_length + position for position in canvas.positions()]
    device = denoiser.device
    return denoiser.logits(
        input_ids.to(device),
        None if all(len(canvas.token_ids) == length for canvas in canvases) else attention_mask.to(device),
        torch.tensor(flat).to(device),
        cfg_scale=cfg_scale,
        prompt_mask=in_context.to(device),
    )


def _add_corruptions(
    canvases: Sequence[LikelihoodCanvas],
    rows: Sequence[dict[int, int]],
    logits: Tensor,
    log_likelihoods: list[float],
) -> None:
    wanted, targets, weights, indices = [], [], [], []
    for canvas, of_canvas in zip(canvases, rows, strict=True):
        for trajectory, corruption in canvas.corruptions:
            wanted += [of_canvas[position] for position in corruption.scored]
            targets += [trajectory.request.continuation_ids[position] for position in corruption.scored]
            weights += [corruption.weight] * len(corruption.scored)
            indices += [trajectory.index] * len(corruption.scored)
    normaliser = torch.cat([part.float().logsumexp(-1) for part in logits.split(_POSITIONS_PER_SLICE)])  # [N]
    chosen = torch.tensor(wanted, device=logits.device)
    true_logits = logits[chosen, torch.tensor(targets, device=logits.device)].float()
    scores: list[list[float]] = torch.stack([true_logits, normaliser[chosen]], 1).double().tolist()
    for index, weight, (true_logit, total) in zip(indices, weights, scores, strict=True):
        if not math.isfinite(total):
            raise NonFiniteLogitsError(index)
        log_likelihoods[index] += weight * (true_logit - total)
