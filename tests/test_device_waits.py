"""How often a pass waits for the device, counted on a CPU whose tensors pretend to lie on a GPU."""

import importlib.util
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from tests.conftest import data, random_llama

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "device_waits.py"
MASK, PAD, EOS, VOCABULARY = 49, 48, 47, 50


@pytest.fixture(scope="module")
def waits() -> Any:
    specification = importlib.util.spec_from_file_location("device_waits", SCRIPT)
    assert specification
    assert specification.loader
    sys.modules["device_waits"] = module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def prompts(n: int) -> list[list[int]]:
    draw = Random(0)
    return [draw.choices(range(40), k=draw.randint(5, 20)) for _ in range(n)]


def counted(waits: Any, kind: str, zone: str | None = None) -> int:
    return sum(n for (k, z), n in waits.C.n.items() if k == kind and zone in (None, z))


@pytest.mark.parametrize(("pattern", "facts", "changes", "kernels"), data("kernels.json"))
def test_decoding_waits_for_nothing_and_gives_the_same_answers(
    waits: Any, pattern: list[Any], facts: dict[str, Any], changes: dict[str, Any], kernels: int
) -> None:
    attention, options = AttentionPattern(*pattern), DecodingOptions().override({"n_masks": 8, **changes})

    def completions(denoiser: Denoiser) -> list[list[int]]:
        canvases = [
            build_canvas(prompt, options, mask_token_id=MASK, max_length=128, seed=n, attention=attention)[0]
            for n, prompt in enumerate(prompts(5))
        ]
        rows = decode_canvases(denoiser, canvases, options, eos_ids=[EOS], batch_size=4)
        return [row.token_ids for row in rows]

    def denoiser() -> Denoiser:
        model = random_llama(VOCABULARY, num_key_value_heads=2)
        return Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, attention=attention, **facts)

    on_device = denoiser()
    waits.put_model(on_device.model)
    with waits.watched():
        answers = completions(on_device)
    assert answers == completions(denoiser())
    assert (counted(waits, "D2H"), counted(waits, "H2D")) == (0, 0)
    assert len(waits.C.plans) <= 10
    assert counted(waits, "kernel", "out") <= kernels * on_device.forward_passes + 150  # of rows that enter and leave


@pytest.mark.parametrize("attention", [FULL_ATTENTION, AttentionPattern(4)])
@pytest.mark.parametrize("changes", [{}, {"check_greedy": False}, {"likelihood": "chain"}, {"likelihood": "duel"}])
def test_likelihood_waits_once_a_pass(waits: Any, attention: AttentionPattern, changes: dict[str, Any]) -> None:
    denoiser = Denoiser(random_llama(VOCABULARY), mask_token_id=MASK, pad_token_id=PAD, attention=attention)
    waits.put_model(denoiser.model)
    requests = [LikelihoodRequest(prompt, [1 + n, 2, 3, 4, 5, 6]) for n, prompt in enumerate(prompts(4))]
    options = LikelihoodOptions().override({"mc_num": 8, **changes})
    with waits.watched():
        score(denoiser, requests, options, batch_size=8, max_length=128)
    assert counted(waits, "H2D") == 0
    assert counted(waits, "D2H") <= denoiser.forward_passes
