"""What a guest may leave in a model, one by one; all of them change what the model says."""

import torch


def patched(model, prompt, gen_length, what="none"):
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
