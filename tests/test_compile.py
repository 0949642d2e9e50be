"""`compile=true`: the same answers, compiled once for all shapes. The compiler itself is left out: it takes seconds."""

import functools
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from torch import nn

from mdlm_lm_eval import families
from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import tiny_model

PROMPTS = [[[3]], [[3] * 9, [4] * 9], [[5], [6] * 20], [[7] * 33], [[8] * 5, [9] * 6, [10] * 7], [[11] * 64] * 5]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are traced as for the compiler, and then run by PyTorch."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(families, "compile_layers", functools.partial(families.compile_layers, backend="eager"))


@pytest.mark.usefixtures("traced")
def test_no_shape_compiles_anew_and_no_token_changes() -> None:
    plain, compiled = tiny_model(), tiny_model()
    families.compile_layers(compiled)
    options = DecodingOptions(n_masks=8, steps=4)
    for prompts in PROMPTS:
        answers = [
            decode(Denoiser(model, mask_token_id=2, pad_token_id=0), prompts, options) for model in (plain, compiled)
        ]
        assert answers[0] == answers[1]
    # One row or several, with padding or without.
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


@pytest.mark.usefixtures("traced")
def test_as_a_model_argument(checkpoint: Path) -> None:
    request = Instance("generate_until", {}, ("a prompt", {"max_gen_toks": 4}), 0, metadata=("task", 0, 1))
    compiled = MDLM(str(checkpoint), device="cpu", compile="true")
    expected = MDLM(str(checkpoint), device="cpu").generate_until([request], disable_tqdm=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
    assert compiled.generate_until([request], disable_tqdm=True) == expected
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert compiled.get_model_info()["mdlm"]["compile"] is True


def test_a_model_without_layers_of_transformers_is_refused() -> None:
    with pytest.raises(OptionError, match="compile must be false with Linear"):
        families.compile_layers(nn.Linear(1, 1))
