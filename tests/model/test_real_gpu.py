"""On a GPU, where there is one: collections during a capture of a CUDA graph, captures that fail, and fused kernels."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu import MASK, PAD, SHAPES, random_model
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.model import compiled
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def doubled(given: Tensor) -> Tensor:
    return given * 2


class Cycle:
    """Holds a graph, and itself, so that only a collection destroys them."""

    def __init__(self, graph: Any) -> None:
        self.graph, self.own = graph, self


def test_a_collection_during_a_capture_does_not_end_it() -> None:
    given = torch.ones(3, device="cuda")
    Cycle(compiled.capture(lambda: doubled(given)))
    thresholds = gc.get_threshold()
    gc.set_threshold(1)  # every allocation of an object collects

    def run() -> Tensor:
        for _ in range(3):
            _ = [[] for _ in range(100)]
        return doubled(given)

    try:
        replay, result = compiled.capture(run)
    finally:
        gc.set_threshold(*thresholds)
    replay()
    assert result.tolist() == [2.0] * 3


def test_the_device_is_usable_after_a_capture_that_failed() -> None:
    given, stream = torch.ones(3, device="cuda"), torch.cuda.current_stream()
    with pytest.raises(compiled.NotCapturableError, match="no CUDA graph"):
        compiled.capture(lambda: given * float(given.sum()))  # waits
    assert torch.cuda.current_stream() == stream
    assert torch.rand(3, device="cuda").shape == (3,)
    torch.cuda.empty_cache()
    replay, result = compiled.capture(lambda: nn.functional.relu(given - 2))
    replay()
    assert result.tolist() == [0.0] * 3
    held = torch.cuda.memory_reserved()
    torch.empty(2**28, device="cuda")
    torch.cuda.empty_cache()  # nothing stays in the pool of the capture that failed
    assert torch.cuda.memory_reserved() == held


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_fused_kernels_decode_as_torch_does(name: str) -> None:
    pytest.importorskip("liger_kernel")
    attention = FULL_ATTENTION if SHAPES[name].block is None else AttentionPattern(SHAPES[name].block)
    options, texts = DecodingOptions(n_masks=8), [[3, 4, 5, 6, 7], [8, 9]]
    answers = []
    for is_fused in (False, True):
        model = random_model(SHAPES[name], "cuda", torch.float32)
        model.config._experts_implementation = "grouped_mm"
        made = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, attention=attention, fused=is_fused)
        answers.append(decode(made, texts, options))
    assert answers[0] == answers[1]
