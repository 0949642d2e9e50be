"""Sumi-7B (https://huggingface.co/tohoku-nlp/sumi-7b) by its own `generate`, as a guest.

lm_eval --model mdlm --tasks gsm8k --limit 20 \\
    --model_args '{"pretrained": "tohoku-nlp/sumi-7b", "dtype": "bfloat16", "modeling": "remote",
        "trust_remote_code": true, "sampler": "docs/examples/sumi.py:generate", "mask_token_id": 100277,
        "shift_logits": false, "n_masks": 256, "steps": 256}'

Sumi has no mask token, so `mask_token_id` names a token that its texts do not hold.
"""

from typing import Any

from torch import Tensor


def generate(
    model: Any,
    prompt: Tensor,
    gen_length: int,
    seed: int,
    steps: int = 256,
    temperature: float = 0.7,
    method: str = "adaptive",
) -> Tensor:
    """The prompt [1, L] and `gen_length` tokens after it."""
    canvas: Tensor = model.generate(
        prompt,
        max_new_tokens=gen_length,
        num_denoising_steps=steps,
        sampler=method,
        temperature=temperature,
        seed=seed,
        trim_at_eos=False,
    ).sequences
    return canvas[:, : prompt.shape[1] + gen_length]
