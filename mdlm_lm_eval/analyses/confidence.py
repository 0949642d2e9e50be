"""How sure a model is at the answer mask, against the number of masks (paper, figure 24; E13)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.analyses.inputs import Prompt, padded
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError


def confidence_and_entropy(logits: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy tokens [N], their probabilities [N] and the entropies [N] in nats, of logits [N, V].

    The distribution is over the vocabulary without the mask token, which decoding never emits.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    wide[:, mask_token_id] = -torch.inf
    probabilities = torch.log_softmax(wide, dim=-1).exp()
    confidence, tokens = probabilities.max(-1)
    # 0 log 0 counts as 0.
    return tokens, confidence, torch.special.entr(probabilities).sum(-1)


def predict(denoiser: Denoiser, batch: Sequence[Prompt]) -> list[tuple[int, float, float]]:
    """The greedy token at each prompt's answer mask, its probability and the entropy, in one forward pass.

    Raises OptionError if logits are not finite.
    """
    input_ids, attention_mask, positions, lengths = padded(batch, denoiser)
    logits = denoiser.logits(input_ids, attention_mask, positions, prompt_lengths=lengths)
    if not bool(logits.isfinite().all()):
        raise OptionError(f"the model's logits in dtype={denoiser.dtype} are not finite (NaN or infinity)")
    columns = (values.tolist() for values in confidence_and_entropy(logits, denoiser.mask_token_id))
    return list(zip(*columns, strict=True))
