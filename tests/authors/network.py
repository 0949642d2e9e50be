"""A stand-in for authors' modelling files: transformers' Llama, without the mask of causal attention."""

from transformers import LlamaConfig, LlamaForCausalLM

from .beside import bidirectional


class Network(LlamaForCausalLM):
    """As the checkpoint says."""

    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(bidirectional(config))


class OtherRotary(LlamaForCausalLM):
    """With another base of rotary positions."""

    config_class = LlamaConfig

    def __init__(self, config):
        config.rope_parameters = {**config.rope_parameters, "rope_theta": 7.0}
        super().__init__(bidirectional(config))


class OtherFamily(Network):
    """Of another model_type."""

    class config_class(LlamaConfig):
        """As transformers looks for it."""

        model_type = "dream"
