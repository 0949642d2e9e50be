"""No host-device synchronisation inside a denoising step."""

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from mdlm_lm_eval.decoding import loop
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import tiny_model


class WaitsForDevice(TorchDispatchMode):
    """Collects operations whose result the host, or the size of a tensor, depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        if name in ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique"):
            self.seen.add(name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.0, "top_p": 0.9, "top_k": 5},
        {"unmasking": "entropy", "suppress_eos": True},
        {"cfg_scale": 1.0, "eos_last": True, "unmasking": "margin"},
        {"unmasking": "random", "block_length": 4},
    ],
)
@pytest.mark.parametrize("prompts", [[[5, 6], [7, 8]], [[5, 6], [7, 8, 9]]], ids=["equal", "padded"])
def test_a_denoising_step_never_waits_for_the_device(changes: dict[str, Any], prompts: list[list[int]]) -> None:
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    options = DecodingOptions(n_masks=8, steps=4).override(changes)
    canvases = [build_canvas(prompt, options, mask_token_id=2, max_length=64)[0] for prompt in prompts]
    batch = loop.CanvasBatch(denoiser, canvases, options)
    with WaitsForDevice() as waits:
        loop._denoise(denoiser, batch, options, 0, {1, 2}, {1})
    assert not waits.seen
