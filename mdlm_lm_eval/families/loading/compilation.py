"""`compile=true`: torch.compile of a model's layers."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from mdlm_lm_eval.options import OptionError


def compile_layers(model: nn.Module, backend: str = "inductor") -> None:
    """Compiles the repeated layers in place, once for all of them and for every batch size and canvas length.

    Layers rather than the whole model, as they share their code: compiling takes as long as for one. Raises OptionError
    for a model whose layers transformers does not know.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise OptionError(f"compile must be false with {type(model).__name__}, whose layers are not transformers' own")
    for layer in layers:
        layer.compile(dynamic=True, backend=backend)
