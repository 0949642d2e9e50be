"""A checkpoint's own code: a Llama whose logits are doubled."""

from transformers import LlamaConfig, LlamaForCausalLM


class DoublingConfig(LlamaConfig):
    model_type = "doubling"


class Doubling(LlamaForCausalLM):
    config_class = DoublingConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 2 * output.logits
        return output
