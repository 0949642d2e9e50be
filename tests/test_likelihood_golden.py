"""The Monte-Carlo likelihood on a tiny LLaDA checkpoint against the number that LLaDA's own code computes."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mdlm_lm_eval.families import load_config, load_model
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.likelihood.masks import Corruption
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions


def test_reference_estimate_from_given_corruptions():
    """LLaDA's own likelihood code on its tiny checkpoint: sum of cross-entropy / p_mask, averaged over four masks."""
    folder = Path(__file__).parent / "golden" / "llada"
    golden = load_file(folder / "golden.safetensors")
    prompt_length = json.loads((folder / "golden.json").read_text())["prompt_length"]
    config = load_config(str(folder))
    model = load_model(str(folder), config, revision="main", subfolder="", dtype="float32", trust_remote_code=False)
    denoiser = Denoiser(model.eval(), mask_token_id=159, pad_token_id=158, shift=False)

    sequence, samples = golden["likelihood.sequence"][0].tolist(), len(golden["likelihood.noisy"])
    corruptions = []
    for noisy, p_mask in zip(golden["likelihood.noisy"], golden["likelihood.p_mask"].tolist(), strict=True):
        masked = tuple((noisy[prompt_length:] == 159).nonzero()[:, 0].tolist())
        corruptions.append(Corruption(masked, masked, 1 / (p_mask * samples)))
    request = LikelihoodRequest(sequence[:prompt_length], sequence[prompt_length:])
    [(estimate, _)] = score(
        denoiser, [request], LikelihoodOptions(), batch_size=3, max_length=64, corruptions_of=lambda *_: corruptions
    )
    assert -estimate == pytest.approx(golden["likelihood.nll"].item(), abs=1e-4)
