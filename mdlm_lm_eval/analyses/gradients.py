"""Gradient attribution: how strongly each input token affects the predicted answer (paper, sections 4.3 and A.2).

For one question: the L2 norm, per input position, of the gradient of the logit of the predicted answer token with
respect to the input token embeddings, divided by the largest norm of the question.

The paper says "normalised" but not how. Its table 1 rules out some methods. The masks' mean of LLaDA-Base, 0.234 over
50 positions, cannot come from norms that sum to 1 (50 * 0.234 > 1), or from norms with squares that sum to 1
(50 * 0.234^2 > 1). The mean over all positions is far below 1 and above 0, so it is neither division by the mean nor a
z-score. Division by the largest norm remains, and similar methods (min-max, which differs by the smallest norm). We do
not know whether the paper takes the maximum per question, as here, or over several, and how it treated embeddings that
were quantised to 4 bits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mdlm_lm_eval.analyses.inputs import Prompt, padded
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError

N_LAST = 50  # positions in table 1's second group


def embedding_gradient(
    denoiser: Denoiser, canvases: tuple[Tensor, Tensor, Tensor, Tensor], excluded_token_id: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the gradient [B, T, H] of the predicted tokens' logits, and these tokens [B].

    `canvases` come from `padded`. The predicted token is the likeliest one except `excluded_token_id`, the mask token,
    which decoding never emits. Rows do not affect each other, so the gradient of the summed logits is that of each row.
    No gradients of weights are computed.
    """
    input_ids, attention_mask, positions, lengths = canvases
    embeddings: list[Tensor] = []  # [B, T, H], the leaf of the backward pass

    def keep_embeddings(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    handle = denoiser.model.get_input_embeddings().register_forward_hook(keep_embeddings)
    try:
        logits = denoiser.logits(input_ids, attention_mask, positions, prompt_lengths=lengths, gradient=True)  # [B, V]
    finally:
        handle.remove()
    allowed = logits.detach().clone()
    if excluded_token_id is not None:
        allowed[:, excluded_token_id] = -torch.inf
    predicted = allowed.argmax(-1)
    target = logits.gather(1, predicted[:, None]).sum()
    (gradient,) = torch.autograd.grad(target, embeddings)
    return gradient, predicted


def attribute(
    denoiser: Denoiser, batch: Sequence[Prompt], excluded_token_id: int | None = None
) -> list[tuple[Tensor, int]]:
    """The normalised gradient norms [T] of each prompt, in float32 or wider, and its predicted token.

    Raises OptionError if a gradient is not finite, or is zero everywhere, which can happen in a narrow dtype.
    """
    gradient, predicted = embedding_gradient(denoiser, padded(batch, denoiser), excluded_token_id)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    norms = torch.linalg.vector_norm(gradient, dim=-1, dtype=wide)  # [B, T]
    largest = norms.amax(dim=1, keepdim=True)
    if not bool(torch.isfinite(norms).all() & (largest > 0).all()):
        raise OptionError(f"gradients in dtype={denoiser.dtype} are not finite or vanish; try dtype=float32")
    shares = (norms / largest).cpu()
    rows = [share[: len(prompt.token_ids)] for share, prompt in zip(shares, batch, strict=True)]
    return list(zip(rows, predicted.tolist(), strict=True))


def group_means(values: Tensor, prompt: Prompt) -> dict[str, float]:
    """The mean of `values` [T] for each group of table 1, and for all masks except the answer's own.

    Groups without positions are left out.
    """
    beside = [place for place in prompt.masks if place != prompt.answer_at]
    groups = {"masks": prompt.masks, "other masks": beside}
    groups |= {"last 50 non-masks": prompt.others[-N_LAST:], "all non-masks": prompt.others}
    return {name: float(values[positions].mean()) for name, positions in groups.items() if positions}


def example_means(values: Tensor, prompt: Prompt) -> list[float]:
    """The mean of `values` [T] over the tokens of each in-context example."""
    return [float(values[tokens.start : tokens.stop].mean()) for tokens in prompt.examples]
