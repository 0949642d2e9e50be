"""`compile=true`: the same answers, compiled once for all shapes. The compiler itself is left out: it takes seconds."""

import pytest
import torch
from torch import nn

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.families import compile_layers
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import tiny_model

PROMPTS = [[[3]], [[3] * 9, [4] * 9], [[5], [6] * 20], [[7] * 33], [[8] * 5, [9] * 6, [10] * 7], [[11] * 64] * 5]


def test_no_shape_compiles_anew_and_no_token_changes() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain, compiled = tiny_model(), tiny_model()
    compile_layers(compiled, backend="eager")  # traced as for the compiler, and then run by PyTorch
    options = DecodingOptions(n_masks=8, steps=4)
    for prompts in PROMPTS:
        answers = [
            decode(Denoiser(model, mask_token_id=2, pad_token_id=0), prompts, options) for model in (plain, compiled)
        ]
        assert answers[0] == answers[1]
    # One row or several, with padding or without.
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


def test_a_model_without_layers_of_transformers_is_refused() -> None:
    with pytest.raises(OptionError, match="compile must be false with Linear"):
        compile_layers(nn.Linear(1, 1))
