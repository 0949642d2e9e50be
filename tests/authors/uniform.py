"""A network with the interface of Sumi's: a canvas of random tokens, of which each pass writes one.

A pass writes the token that the model would most like to change.
"""

from types import SimpleNamespace

import torch
from transformers import LlamaConfig, LlamaForCausalLM


class UniformConfig(LlamaConfig):
    model_type = "uniform"


class Uniform(LlamaForCausalLM):
    config_class = UniformConfig

    def generate(self, prompt, max_new_tokens, num_denoising_steps, sampler, temperature, seed, trim_at_eos):
        assert (sampler, trim_at_eos) == ("adaptive", False)
        generator = torch.Generator().manual_seed(seed)
        n = prompt.shape[1]
        canvas = torch.cat([prompt, torch.randint(3, 256, (1, max_new_tokens + 5), generator=generator)], 1)
        for _ in range(num_denoising_steps):
            share = self(input_ids=canvas, use_cache=False).logits.softmax(-1)
            wish = share.amax(-1) - share.gather(-1, canvas[..., None])[..., 0]
            place = n + int(wish[0, n:].argmax())
            canvas[0, place] = share[0, place, 3:].argmax() + 3
        return SimpleNamespace(sequences=canvas)
