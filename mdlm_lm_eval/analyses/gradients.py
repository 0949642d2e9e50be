"""Gradient attribution: how strongly each input token acts on the predicted answer (paper, sections 4.3 and A.2).

For one question: the L2 norm, per input position, of the gradient of the logit of the predicted answer token with
respect to the input token embeddings, divided by the largest norm of the question.

The paper says "normalised" and not how. Its table 1 leaves one family of choices: the masks' mean of LLaDA-Base, 0.234
over 50 positions, cannot come from norms that sum to 1 (50 * 0.234 > 1) or whose squares do (50 * 0.234^2 > 1), and all
positions together have a mean far below 1 and above 0, so that it is neither division by the mean nor a z-score. Left
are division by the largest norm and its kin (min-max, which differs by the smallest norm). Not known: whether the
maximum is taken per question, as here, or over several; and what became of the embeddings' quantisation to 4 bits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mdlm_lm_eval.analyses.inputs import Prompt, padded
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError

N_LAST = 50  # of table 1's second group


def embedding_gradient(
    denoiser: Denoiser, canvases: tuple[Tensor, Tensor, Tensor, Tensor], excluded_token_id: int | None = None
) -> tuple[Tensor, Tensor]:
    """Gradient [B, T, H] of the predicted tokens' logits, and those tokens [B], of `canvases` as `padded` makes them.

    The predicted token is the likeliest one other than `excluded_token_id` (decoding never emits the mask token). Rows
    do not act on each other, so the gradient of the summed logits is that of each. No gradient of a weight is computed.
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
    """For every prompt, its normalised gradient norms [T], in float32 or wider, and its predicted token.

    Raises OptionError if a gradient is not finite or zero everywhere, as in a dtype that is too narrow.
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
    """Table 1's groups of positions -> mean of `values` [T], and that of the masks beside the answer's own.

    Groups without positions are missing.
    """
    beside = [place for place in prompt.masks if place != prompt.answer_at]
    groups = {"masks": prompt.masks, "other masks": beside}
    groups |= {"last 50 non-masks": prompt.others[-N_LAST:], "all non-masks": prompt.others}
    return {name: float(values[positions].mean()) for name, positions in groups.items() if positions}


def example_means(values: Tensor, prompt: Prompt) -> list[float]:
    """Mean of `values` [T] over the tokens of each in-context example."""
    return [float(values[tokens.start : tokens.stop].mean()) for tokens in prompt.examples]
