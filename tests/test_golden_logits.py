"""Logits of the three families against their reference code's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mdlm_lm_eval.families import load_denoiser
from tests.logits import assert_close

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ["llada", "dream", "llada_moe"]
PADDING = 5


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match_the_reference(family: str) -> None:
    golden = load_file(GOLDEN / family / "golden.safetensors")
    model = load_denoiser(str(GOLDEN / family), dtype="float32").model
    with torch.no_grad():
        logits = model(golden["logits.input_ids"]).logits
    assert_close(logits, golden["logits.output"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_padding_changes_nothing(family: str, side: str) -> None:
    golden = load_file(GOLDEN / family / "golden.safetensors")
    denoiser = load_denoiser(str(GOLDEN / family), dtype="float32")
    input_ids, expected = golden["logits.input_ids"], golden["logits.output"]  # [3, 24], [3, 24, 160]
    if family == "dream":
        expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
    widths = {"none": (0, 0), "left": (PADDING, 0), "right": (0, PADDING)}[side]
    padded = torch.nn.functional.pad(input_ids, widths, value=denoiser.pad_token_id)
    real = torch.nn.functional.pad(torch.ones_like(input_ids), widths, value=0)
    logits = denoiser.logits(padded, real, real.flatten().nonzero().squeeze(1)).view_as(expected)
    vocabulary = [token for token in range(160) if token != denoiser.mask_token_id]
    assert_close(logits[..., vocabulary], expected[..., vocabulary])
