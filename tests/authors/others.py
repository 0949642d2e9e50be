"""Functions with the signature of Fast-dLLM's, which return their passes too; some have a fault that is asked for."""

import torch
from beside import answer

calls = []


def faulty(model, prompt, gen_length=8, mask_id=0, fault="none", *, eos_id=None):
    row = torch.cat([prompt, torch.full((1, gen_length), 50 + len(calls))], 1)
    if "fifth" in fault:
        calls.append(prompt)
        if len(calls) == 5:
            raise RuntimeError("no such luck")
    if "few" in fault:
        return row[:, :-1], 0
    if "many" in fault:
        return torch.cat([row, row[:, :1]], 1), 0
    if "mask" in fault:
        row[0, -1] = mask_id
    if "dtype" in fault:
        return row.float()
    if "runs" in fault:
        model(prompt)
    if "device" in fault:
        return row.to("meta")
    if "raises" in fault:
        raise RuntimeError("no such luck")
    if "early" in fault:
        return [*prompt[0].tolist(), 60, eos_id]
    return (row, 0)


def draws(model, prompts, gen_length):
    return [answer(gen_length) for _ in prompts]


draws.batches = True


def patched(model, prompt, gen_length, what="none"):
    """Leaves one of these in the model; all of them change what it says."""
    layer = model.model.layers[0]
    plain = type(layer.mlp).forward
    if what == "class":
        type(layer.mlp).forward = lambda self, x: plain(self, x) * -5
    if what == "method":
        layer.mlp.forward = lambda x: plain(layer.mlp, x) * -5
    if what == "hook":
        layer.mlp.register_forward_hook(lambda module, args, output: output * -5)
    if what == "weight":
        layer.mlp.up_proj.weight.mul_(-5)
    return torch.cat([prompt, torch.full((1, gen_length), 50)], 1)


def method(self, inputs, generation_config=None, **kwargs):
    return inputs


class Owner:
    steps_seen = ()

    def diffusion_generate(self, inputs, generation_config=None, **kwargs):
        n = kwargs.get("max_new_tokens")
        assert kwargs.get("alg") == "maskgit_plus"
        assert self._own(kwargs.get("steps"))
        logits = self(torch.nn.functional.pad(inputs, (0, n), value=kwargs.get("mask_token_id")), "full", None).logits
        return torch.cat([inputs, logits[:, -n:].topk(2).indices[..., 1]], 1)

    def _own(self, steps):
        return steps == 4 and self.config.vocab_size == 259
