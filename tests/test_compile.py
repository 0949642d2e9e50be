"""`compile=true`: the same answers from few graphs, and never without the compiler, which is left out as it is slow.

CUDA graphs need a GPU. Here a tape stands in for one: it notes the kernels of a pass, and a replay runs them again on
the very tensors that they ran on, whatever Python has moved on to.
"""

from collections.abc import Callable
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.model import compiled
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from tests.conftest import random_llama

BLOCKS = AttentionPattern(4)
MODES: dict[str, tuple[AttentionPattern, bool, dict[str, Any]]] = {
    "full": (FULL_ATTENTION, False, {"steps": 4}),
    "threshold, shifted, guided": (FULL_ATTENTION, True, {"confidence_threshold": 0.02, "cfg_scale": 0.5}),
    "dual": (FULL_ATTENTION, False, {"cache": "dual", "block_length": 4}),
    "prefix": (FULL_ATTENTION, False, {"cache": "prefix", "block_length": 4}),
    "blocks, guided": (BLOCKS, False, {"cfg_scale": 1.0}),
    "blocks, shifted": (BLOCKS, True, {}),
    "blocks, cache=none": (BLOCKS, False, {"cache": "none"}),
}


class Tape(TorchDispatchMode):
    """The kernels of what runs inside, with their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, kernel: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = kernel(*args, **(kwargs or {}))
        self.kernels.append((kernel, args, kwargs or {}, [x for x in tree_leaves(made) if isinstance(x, Tensor)]))
        return made

    def replay(self) -> None:
        """Runs them again; what they make goes where it was."""
        for kernel, args, kwargs, made in self.kernels:
            again = [x for x in tree_leaves(kernel(*args, **kwargs)) if isinstance(x, Tensor)]
            for old, new in zip(made, again, strict=True):
                if old.data_ptr() != new.data_ptr():  # neither a view nor written in place
                    old.copy_(new)


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """What was recorded; every shape is, when it comes the second time."""
    made: list[Tape] = []

    def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        made.append(Tape())
        with made[-1]:
            result = run()
        return made[-1].replay, result

    monkeypatch.setattr(compiled, "capture", capture)
    monkeypatch.setattr(compiled, "PASSES_BEFORE", 1)
    return made


def a_model() -> Any:
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "mask_token_id": 2}
    return random_llama(259, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, **ids)


def denoiser(model: Any, attention: AttentionPattern, shift: bool, *, with_graphs: bool = False) -> Denoiser:
    made = Denoiser(model, mask_token_id=2, pad_token_id=0, attention=attention, shift=shift)
    made.graphs = WeakKeyDictionary() if with_graphs else None
    return made


def prompts(n: int, least: int = 1) -> list[list[list[int]]]:
    """Batches of up to five ragged rows."""
    draw = Random(0)
    return [
        [draw.choices(range(3, 259), k=draw.randrange(1, 70)) for _ in range(draw.randrange(least, 6))]
        for _ in range(n)
    ]


def test_ragged_batches_compile_a_few_graphs_and_change_no_token() -> None:
    torch._dynamo.reset()
    counter, plain, other = CompileCounter(), a_model(), a_model()
    compiled.compile_layers(other, backend=counter)  # traced as for the compiler, and then run by PyTorch
    compiled.compile_layers(other)  # as another denoiser would; nothing is compiled twice
    for name in ("full", "dual"):
        attention, shift, changes = MODES[name]
        options = DecodingOptions().override({"n_masks": 8, **changes})
        for batch in prompts(4, least=2):
            ours, theirs = (decode(denoiser(model, attention, shift), batch, options) for model in (plain, other))
            assert ours == theirs
    # Without a cache and with one, a mask or none: layers share them, and so do batches of all shapes.
    assert 1 <= counter.frame_count <= 8


@pytest.mark.parametrize("name", MODES)
def test_passes_from_graphs_change_no_token(name: str, tapes: list[Tape]) -> None:
    attention, shift, changes = MODES[name]
    options, model = DecodingOptions().override({"n_masks": 8, **changes}), a_model()
    recorded = denoiser(model, attention, shift, with_graphs=True)
    for batch in prompts(3):
        assert decode(recorded, batch, options) == decode(denoiser(model, attention, shift), batch, options)
    assert tapes


def test_a_graph_is_recorded_once_for_a_shape(tapes: list[Tape]) -> None:
    made = denoiser(a_model(), FULL_ATTENTION, shift=False, with_graphs=True)
    options = DecodingOptions(n_masks=8, steps=8)
    for _ in range(3):
        decode(made, [[3] * 9, [4] * 9], options)
    assert len(tapes) == 1
    # Another model, as one with an adapter is, has graphs of its own.
    made.model = a_model()
    decode(made, [[3] * 9, [4] * 9], options)
    assert len(tapes) == 2


def test_likelihoods_from_graphs_are_the_same(tapes: list[Tape]) -> None:
    model, draw = a_model(), Random(1)
    requests = [LikelihoodRequest(ids, draw.choices(range(3, 259), k=6), 0) for ids in prompts(2)[1]] * 3
    for attention in (FULL_ATTENTION, BLOCKS):
        values = [
            score(denoiser(model, attention, shift=False, with_graphs=graphs), requests, LikelihoodOptions(mc_num=16),
                  batch_size=4, max_length=200)
            for graphs in (False, True)
        ]  # fmt: skip
        assert [one[0] for one in values[1]] == pytest.approx([one[0] for one in values[0]], abs=1e-4)
    assert tapes


def test_models_that_cannot_be_compiled_are_refused(tapes: list[Tape]) -> None:
    with pytest.raises(OptionError, match="compile must be false with Linear"):
        compiled.compile_layers(nn.Linear(1, 1))
    model = a_model()
    model.model.layers[1].to("meta")
    with pytest.raises(OptionError, match="compile must be false with LlamaForCausalLM on several devices"):
        compiled.compile_layers(model)

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    model = a_model()
    model.model.layers[0].mlp.act_fn = Waits()
    torch._dynamo.reset()
    compiled.compile_layers(model, backend="eager")
    with pytest.raises(OptionError, match="LlamaForCausalLM, whose layers do not compile"):
        denoiser(model, FULL_ATTENTION, shift=False).logits(torch.tensor([[3, 2]]), None, torch.tensor([1]))
    # What a model makes of its logits afterwards would be lost.
    model = a_model()
    plain = model.forward
    model.forward = lambda **inputs: type(plain(**inputs))(logits=plain(**inputs).logits.tanh())
    with pytest.raises(OptionError, match="changes what its output layer makes"):
        denoiser(model, FULL_ATTENTION, shift=False, with_graphs=True).logits(
            torch.tensor([[3, 2]]), None, torch.tensor([1])
        )
