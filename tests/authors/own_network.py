"""The authors' network of the tiny checkpoint, with a module beside it, and a function that needs it."""

from transformers import LlamaConfig, LlamaForCausalLM

from .beside import FACTOR


class Network(LlamaForCausalLM):
    config_class = LlamaConfig

    def choose(self, inputs, max_new_tokens):
        import torch
        from beside import FACTOR as again

        logits = self(torch.nn.functional.pad(inputs, (0, max_new_tokens), value=2)).logits * FACTOR / again
        return logits[:, -max_new_tokens:, 3:].argmax(-1) + 3

    def forward(self, input_ids, past_key_values=None, **kwargs):  # a list, as Fast-dLLM's
        return super().forward(input_ids, **kwargs)


def remembered(model, inputs, max_new_tokens):
    import torch

    ids = torch.nn.functional.pad(inputs, (0, max_new_tokens), value=2)
    return model(ids, past_key_values=[]).logits[:, -max_new_tokens:, 3:].argmax(-1) + 3


class Older:
    """For another transformers."""

    config_class = LlamaConfig

    def __init__(self, config):
        from transformers import a_class_of_before  # noqa: F401
