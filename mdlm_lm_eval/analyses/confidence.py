"""How sure a model is at the answer mask, against the number of masks (paper, figure 24; E13)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm_lm_eval.analyses.prompts import Prompt, padded
from mdlm_lm_eval.batching import Batches
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError


@dataclass(frozen=True)
class Prediction:
    """What the model predicts at one answer mask; `entropy` in nats."""

    token_id: int
    confidence: float
    entropy: float


def confidence_and_entropy(logits: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy tokens [N], their probabilities [N] and the entropies [N] in nats, of logits [N, V].

    The distribution is over the vocabulary without the mask token, which decoding never emits.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    wide[:, mask_token_id] = -torch.inf
    log_probabilities = torch.log_softmax(wide, dim=-1)
    probabilities = log_probabilities.exp()
    confidence, tokens = probabilities.max(-1)
    # 0 log 0 counts as 0.
    entropy = torch.special.entr(probabilities).sum(-1)
    return tokens, confidence, entropy


def predict(
    denoiser: Denoiser,
    prompts: Sequence[Prompt],
    batches: Batches,
    *,
    advance: Callable[[int], object] = lambda _: None,
) -> list[Prediction]:
    """One prediction a prompt, in one forward pass each. `advance(n)` tells of n prompts done.

    Raises NonFiniteLogitsError where a prompt's logits are NaN or infinite.
    """
    predictions: list[Prediction] = []

    def run(part: list[int], _batch_size: int) -> None:
        rows = [prompts[n] for n in part]
        input_ids, attention_mask, positions, lengths = padded(rows, denoiser)
        logits = denoiser.logits(input_ids, attention_mask, positions, prompt_lengths=lengths)
        for row, finite in enumerate(logits.isfinite().all(-1).tolist()):
            if not finite:
                raise NonFiniteLogitsError(part[row])
        columns = (values.tolist() for values in confidence_and_entropy(logits, denoiser.mask_token_id))
        predictions.extend(Prediction(*row) for row in zip(*columns, strict=True))
        advance(len(part))

    batches.run(range(len(prompts)), run)
    return predictions
