"""`compile=true` gives the same answers from few graphs, without the compiler, which is left out as it is slow.

CUDA graphs are simulated; test_pretended_gpu compares the answers of all ways of decoding from them.
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from benchmarks.gpu import SHAPES, random_model
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.model import compiled
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import random_llama
from tests.pretended_gpu import GPU, PretendedGpu

pytestmark = pytest.mark.slow


def a_model() -> Any:
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "mask_token_id": 2}
    return random_llama(259, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, **ids)


def denoiser(model: Any) -> Denoiser:
    return Denoiser(model, mask_token_id=2, pad_token_id=0)


def test_ragged_batches_compile_a_few_graphs_and_change_no_token() -> None:
    torch._dynamo.reset()
    counter, plain, other = CompileCounter(), a_model(), a_model()
    compiled.compile_layers(other, backend=counter)  # traced as for the compiler, and then run by PyTorch
    compiled.compile_layers(other)  # as another denoiser would; nothing is compiled twice
    for changes in ({"steps": 4}, {"cache": "dual", "block_length": 4}):
        options = DecodingOptions(**{"n_masks": 8, **changes})
        draw = Random(0)
        for n_rows in (5, 2, 4):
            batch = [draw.choices(range(3, 259), k=draw.randrange(1, 70)) for _ in range(n_rows)]
            ours, theirs = (decode(denoiser(model), batch, options) for model in (plain, other))
            assert ours == theirs
    # Without a cache and with one, a mask or none: layers share them, and so do batches of all shapes.
    assert 1 <= counter.frame_count <= 8


def test_nothing_is_compiled_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a new cache's first pass, which runs layers as they are, comes when its shape is warm."""
    compiled_by: list[bool] = []  # whether during a capture
    is_capturing = False

    def backend(module: Any, _: Any) -> Any:
        compiled_by.append(is_capturing)
        return module.forward

    def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        nonlocal is_capturing
        is_capturing = True
        result = run()
        is_capturing = False
        return lambda: result.copy_(run()), result

    torch._dynamo.reset()
    plain, other = a_model(), a_model()
    compiled.compile_layers(other, backend=backend)
    monkeypatch.setattr(compiled, "capture", capture)
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: nullcontext())
    made = denoiser(other)
    made.compiled, made.graphs, made.most_in_graph = True, WeakKeyDictionary(), 8192  # as on a GPU
    options = DecodingOptions(n_masks=8, block_length=4, cache="dual")
    for _ in range(2):
        texts = [[3] * 9, [4] * 9]
        assert decode(made, texts, options) == decode(denoiser(plain), texts, options)
    assert compiled_by
    assert not any(compiled_by)


def test_a_graph_is_captured_once_for_a_shape() -> None:
    options = DecodingOptions(n_masks=8, steps=8)
    with PretendedGpu() as gpu:
        made = denoiser(gpu.move(a_model()))
        for n in range(2):
            if n:  # another model, as one with an adapter is, has graphs of its own
                made.model = gpu.move(a_model())
            for _ in range(3):
                decode(made, [[3] * 9, [4] * 9], options)
            assert made.graphs is not None
            assert len(made.graphs[made.model].captured) == 1
        assert gpu.report.replayed == 2 * (3 * 8 - compiled.PASSES_BEFORE)


def test_a_shape_is_warm_for_every_cache() -> None:
    options = DecodingOptions(n_masks=4, steps=4, block_length=4, cache="dual")  # one wide pass and three narrow ones
    with PretendedGpu() as gpu:
        made = denoiser(gpu.move(a_model()))
        replayed = []
        for _ in range(3):
            decode(made, [[3] * 9, [4] * 9], options)
            replayed.append(gpu.report.replayed)
        assert replayed == [1, 3, 5]


def test_only_passes_that_would_wait_for_their_launches_become_graphs() -> None:
    most = {
        name: compiled.most_tokens(random_model(SHAPES[name], "meta", torch.bfloat16))
        for name in ("llada-8b", "llada2-mini")
    }
    assert 750 < most["llada-8b"] < 850
    assert 2000 < most["llada2-mini"] < 3500  # of 256 experts, a token passes through 8
    assert compiled.most_tokens(a_model()) == 8192
    options = DecodingOptions(n_masks=8, steps=8)
    with PretendedGpu() as gpu:
        made = denoiser(gpu.move(a_model()))
        made.most_in_graph = 16  # a pass has 17 tokens
        decode(made, [[3] * 9], options)
        assert (gpu.report.captured, made.forward_passes) == (0, 8)


def test_a_model_that_cannot_be_captured_runs_without_graphs(caplog: pytest.LogCaptureFixture) -> None:
    options, texts = DecodingOptions(n_masks=8), [[3] * 9, [4] * 9]
    answers = decode(denoiser(waiting(a_model())), texts, options)
    with PretendedGpu() as gpu, caplog.at_level("INFO"):
        made = denoiser(gpu.move(waiting(a_model())))
        assert decode(made, texts, options) == answers
        assert (made.graphs, made.forward_passes) == (None, 8)
        assert (gpu.stream, gc.isenabled()) == ("default", True)
        assert "LlamaForCausalLM runs without CUDA graphs: no CUDA graph can be captured" in caplog.text
        made = denoiser(gpu.move(waiting(a_model())))
        made.compiled = True
        with pytest.raises(OptionError, match="compile must be false with LlamaForCausalLM: no CUDA graph"):
            decode(made, texts, options)


def test_logits_that_a_model_changes_afterwards_are_kept() -> None:
    model = a_model()
    plain = model.forward
    model.forward = lambda **inputs: type(plain(**inputs))(logits=plain(**inputs).logits.tanh())
    ids, at = torch.tensor([[3, 2]]), torch.tensor([1])
    expected = denoiser(model).logits(ids, None, at)
    with PretendedGpu() as gpu:
        made = denoiser(gpu.move(model))
        assert torch.equal(made.logits(ids.to(GPU), None, at.to(GPU)).cpu(), expected)
        assert made.graphs is None


def waiting(model: Any) -> Any:
    """The model, whose first layer asks for a number."""

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    model.model.layers[0].mlp.act_fn = Waits()
    return model


def test_models_that_cannot_be_compiled_are_refused() -> None:
    with pytest.raises(OptionError, match="compile must be false with Linear"):
        compiled.compile_layers(nn.Linear(1, 1))
    model = a_model()
    model.model.layers[1].to("meta")
    with pytest.raises(OptionError, match="compile must be false with LlamaForCausalLM on several devices"):
        compiled.compile_layers(model)

    model = waiting(a_model())
    torch._dynamo.reset()
    compiled.compile_layers(model, backend="eager")
    with pytest.raises(OptionError, match="LlamaForCausalLM, whose layers do not compile"):
        denoiser(model).logits(torch.tensor([[3, 2]]), None, torch.tensor([1]))
