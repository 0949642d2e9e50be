"""A stand-in for authors' samplers: LLaDA's signature, and one mask at a time in blocks."""

import torch
from torch import Tensor


@torch.no_grad()
def generate(
    model, prompt, steps=None, gen_length=8, block_length=8, temperature=0.0, remasking="low_confidence", mask_id=2,
    threshold=None, fault="",
):  # fmt: skip
    """The surest masks of the leftmost block with masks, and all that reach the threshold. `fault` plants one."""
    steps = steps if threshold is None and steps else gen_length
    canvas = torch.cat([prompt, torch.full((1, gen_length), mask_id)], 1)
    while (canvas == mask_id).any():
        logits = model(canvas).logits
        logits[..., mask_id] = -torch.inf
        confidence, tokens = logits.softmax(-1).max(-1)
        masks = canvas == mask_id
        first = prompt.shape[1] + (int(masks[0].nonzero()[0]) - prompt.shape[1]) // block_length * block_length
        masks[:, first + block_length :] = False
        ranks = confidence.where(masks, -torch.inf)
        chosen = torch.zeros_like(masks).scatter(1, ranks.topk(gen_length // steps).indices, True)
        if fault == "least sure":
            ranks = confidence.where(masks, torch.inf)
            chosen = ranks == ranks.min()
        if threshold is not None:
            chosen |= masks & (confidence >= threshold)
        if fault == "second token":
            tokens = logits.topk(2).indices[..., 1]
        canvas = tokens.where(chosen, canvas)
    return canvas


def least_sure(model, prompt, gen_length=8, block_length=8, mask_id=2):
    """With a fault: it fills the least sure mask."""
    return generate(
        model, prompt, gen_length=gen_length, block_length=block_length, mask_id=mask_id, fault="least sure"
    )


def second_token(model, prompt, gen_length=8, block_length=8, mask_id=2, threshold=None):
    """With a fault: it writes the second likeliest token."""
    given = {"gen_length": gen_length, "block_length": block_length, "mask_id": mask_id, "threshold": threshold}
    return generate(model, prompt, **given, fault="second token")


def other_signature(texts, model) -> Tensor:
    """No sampler."""
    return model(texts)
