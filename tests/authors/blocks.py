"""Stand-ins for authors' samplers of blocks that begin with the row: SDAR's signature, and LLaDA2's method."""

import torch
from transformers import DynamicCache

from .network import Network


@torch.no_grad()
def block_diffusion_generate(
    model, prompt, mask_id, gen_length=128, block_length=8, denoising_steps=8, temperature=1.0, top_k=0, top_p=1.0,
    remasking_strategy="low_confidence_dynamic", confidence_threshold=0.85, eb_threshold=None,
    stopping_criteria_idx=None,
):  # fmt: skip
    """SDAR's: masks by row, and passes that only read the cache."""
    canvas, sees = begin(prompt["input_ids"], gen_length, block_length, mask_id)
    stored, places = DynamicCache(), torch.arange(canvas.shape[1])[None]

    def run(first, end, store_kv):
        return model(
            canvas[:, first:end], attention_mask=sees[:, first:end, :end].float(), position_ids=places[:, first:end],
            past_key_values=stored, use_cache=True, store_kv=store_kv,
        ).logits  # fmt: skip

    start = prompt["input_ids"].shape[1] // block_length * block_length
    if start:
        run(0, start, True)
    for first in range(start, canvas.shape[1], block_length):
        block = canvas[:, first : first + block_length]
        while (block == mask_id).any():
            fill(block, run(first, first + block_length, False), confidence_threshold, mask_id)
        run(first, first + block_length, True)
    return canvas


class WithGenerate(Network):
    """LLaDA2's: every pass runs all that stands before the block's end, and the answer comes back alone."""

    @torch.no_grad()
    def generate(
        self, inputs=None, temperature=0.0, block_length=32, steps=32, gen_length=2048, top_p=None, top_k=None,
        eos_early_stop=False, minimal_topk=1, threshold=0.95, eos_id=156892, mask_id=156895,
    ):  # fmt: skip
        """Up to the first end of text."""
        n = inputs.shape[1]
        canvas, sees = begin(inputs, gen_length, block_length, mask_id)
        for end in range(n // block_length * block_length + block_length, canvas.shape[1] + 1, block_length):
            while (canvas[:, :end] == mask_id).any():
                mask = sees[None, :, :end, :end].float().log()
                output = self.forward(canvas[:, :end], attention_mask=mask, use_cache=False)
                fill(canvas[:, end - block_length : end], output.logits[:, -block_length:], threshold, mask_id)
        answer = canvas[:, n : n + gen_length]
        ends = (answer[0] == eos_id).nonzero()
        return answer[:, : int(ends[0]) + 1] if len(ends) else answer


def begin(prompt, gen_length, block_length, mask_id):
    """The canvas of whole blocks, and which of its places sees which."""
    n_blocks = -(-(prompt.shape[1] + gen_length) // block_length)
    canvas = torch.full((1, n_blocks * block_length), mask_id)
    canvas[:, : prompt.shape[1]] = prompt
    block_of = torch.arange(canvas.shape[1]) // block_length
    return canvas, block_of[None, None] <= block_of[None, :, None]


def fill(block, logits, threshold, mask_id):
    """The masks that are surer than the threshold, at least the surest."""
    logits[..., mask_id] = -torch.inf
    confidence, tokens = logits.softmax(-1).max(-1)
    confidence = confidence.where(block == mask_id, -1)
    chosen = (confidence > threshold) | (confidence == confidence.max())
    block[chosen] = tokens[chosen]
