"""A model over two pretended GPUs."""

import re
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from mdlm_lm_eval.model.compiled import CACHE
from tests.pretended_gpu.device import GPU, PretendedGpu


def over_two(gpu: PretendedGpu, model: Any) -> Any:
    """The model with its second layer and its head on the second GPU, as `device_map="auto"` leaves it."""

    def device_of(path: str) -> torch.device:
        return torch.device("cuda", 1) if re.match(r"model\.layers\.1|model\.norm|lm_head", path) else GPU

    gpu.move(model, device_of=device_of)
    parts = ["model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    for path in parts:
        hook = AlignDevicesHook(execution_device=device_of(path), skip_keys=CACHE)
        add_hook_to_module(model.get_submodule(path), hook)
    outermost = AlignDevicesHook(execution_device=GPU, io_same_device=True, skip_keys=CACHE)
    add_hook_to_module(model, outermost)
    return model
