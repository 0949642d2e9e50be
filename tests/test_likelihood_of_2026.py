"""Likelihoods of iLLaDA, Nemotron-Labs-Diffusion and LLaDA2.2: reference values, and enumeration written anew."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from safetensors.torch import load_file
from transformers import Ministral3ForCausalLM

from mdlm_lm_eval.families import load_denoiser
from mdlm_lm_eval.likelihood import LikelihoodRequest, rolling_windows, score
from mdlm_lm_eval.likelihood.masks import Corruption
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from tests.conftest import tiny_tokenizer

GOLDEN = Path(__file__).parent / "golden"


def load(folder: str, **arguments: Any) -> Denoiser:
    return load_denoiser(str(GOLDEN / folder), dtype="float32", **arguments)


def scores(denoiser: Denoiser, requests: list[LikelihoodRequest], **options: Any) -> list[tuple[float, bool]]:
    return score(denoiser, requests, LikelihoodOptions(**options), batch_size=3, max_length=512)


def test_likelihood_by_confidence_order_is_that_of_the_reference() -> None:
    tensors, denoiser = load_file(GOLDEN / "illada" / "golden.safetensors"), load("illada")
    settings = json.loads((GOLDEN / "illada" / "golden.json").read_text())["likelihood"]
    pairs = [
        LikelihoodRequest(tensors[f"pair.{n}.context"].tolist(), tensors[f"pair.{n}.continuation"].tolist())
        for n in range(6)
    ]
    seen = 0
    for eos_after in (False, True):
        for cfg_scale in (0.0, 0.7):
            found = scores(denoiser, pairs, likelihood="confidence", eos_after=eos_after, cfg_scale=cfg_scale)
            for setting in settings:
                if (setting["likelihood"], setting["eos_after"], setting["cfg_scale"]) == (
                    "confidence",
                    eos_after,
                    cfg_scale,
                ):
                    log_likelihood, greedy = found[setting["pair"]]
                    assert log_likelihood == pytest.approx(setting["loglikelihood"], abs=2e-4), setting
                    assert greedy == setting["is_greedy"]
                    seen += 1
    assert seen == 24


def test_monte_carlo_canvases_end_with_the_token_behind_them() -> None:
    """The reference's own corruptions, whose masks are scored with and without an end of text."""
    tensors, denoiser = load_file(GOLDEN / "illada" / "golden.safetensors"), load("illada")
    for setting in json.loads((GOLDEN / "illada" / "golden.json").read_text())["likelihood"]:
        if setting["likelihood"] != "mc":
            continue
        n, name = setting["pair"], setting["tensors"]
        context, continuation = (tensors[f"pair.{n}.{part}"].tolist() for part in ("context", "continuation"))
        total = 0.0
        for noisy, p_mask in zip(tensors[f"{name}.noisy"], tensors[f"{name}.p_mask"], strict=True):  # [T], []
            answer = noisy[len(context) :].tolist()
            masked = tuple(i for i, token in enumerate(answer[: len(continuation)]) if token == 5)
            weight = 1 / float(p_mask) / len(tensors[f"{name}.noisy"])
            corruption = [Corruption(masked, masked, weight)]
            options = LikelihoodOptions(likelihood="mc", eos_after=setting["eos_after"], check_greedy=False)
            request = LikelihoodRequest(context, continuation)
            ((part, _),) = score(
                denoiser, [request], options, batch_size=1, max_length=64, corruptions_of=lambda *_, c=corruption: c
            )
            total += part
        assert total == pytest.approx(setting["loglikelihood"], rel=1e-5, abs=2e-4), setting


def test_an_order_that_looks_at_the_truth_has_no_likelihood_of_texts() -> None:
    windows = rolling_windows([7, 8, 9], max_length=16, prefix_token_id=0)
    with pytest.raises(OptionError, match="it ranks answers"):
        scores(load("illada"), windows, likelihood="confidence")


REQUESTS = [
    LikelihoodRequest([1, 20, 30, 40, 50], [60, 70, 80]),
    LikelihoodRequest([1, 99], [12]),
    LikelihoodRequest([1, *range(101, 150)], list(range(20, 33))),
]


def test_autoregressive_likelihood_is_that_of_the_backbone_read_token_by_token() -> None:
    denoiser = load("nemotron_labs_diffusion")
    found = scores(denoiser, REQUESTS, mode="ar")
    for request, (log_likelihood, _) in zip(REQUESTS, found, strict=True):
        text, expected = list(request.context_ids), 0.0
        for token in request.continuation_ids:  # as a prompt of its own each: nothing behind the last token
            logits = denoiser.logits(
                torch.tensor([text]), None, torch.tensor([len(text) - 1]), prompt_lengths=torch.tensor([len(text)])
            )
            expected += float(logits[0].double().log_softmax(-1)[token])
            text.append(token)
        assert log_likelihood == pytest.approx(expected, abs=1e-5)


def test_autoregressive_likelihood_is_that_of_model_hf() -> None:
    """The same weights in transformers' own causal class."""
    denoiser = load("nemotron_labs_diffusion")
    causal = Ministral3ForCausalLM(denoiser.model.config).eval()
    causal.config.is_causal = True
    for module in causal.modules():
        if "is_causal" in vars(module):
            module.is_causal = True
    causal.load_state_dict(denoiser.model.state_dict())
    lm = HFLM(pretrained=causal, tokenizer=tiny_tokenizer(), batch_size=2, max_length=512)
    requests = [(("", ""), request.context_ids, request.continuation_ids) for request in REQUESTS]
    expected = lm._loglikelihood_tokens(requests, disable_tqdm=True)
    for found, (log_likelihood, greedy) in zip(scores(denoiser, REQUESTS, mode="ar"), expected, strict=True):
        assert found == (pytest.approx(log_likelihood, rel=1e-6, abs=1e-5), greedy)  # HFLM adds up in float32


@pytest.mark.parametrize(
    ("folder", "options", "sentence"),
    [
        ("illada", {"mode": "ar"}, "mode must be diffusion"),
        ("nemotron_labs_diffusion", {}, "mode must be ar"),
        ("nemotron_labs_diffusion", {"mode": "ar", "n_masks": 8}, "has no masks"),
        ("llada22", {"likelihood": "confidence"}, "block-causal"),
    ],
)
def test_likelihoods_that_a_model_does_not_have(folder: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        scores(load(folder, mask_token_id=100), REQUESTS[:1], **options)


@pytest.mark.parametrize("estimator", ["chain", "duel"])
def test_likelihood_of_llada22_fills_the_last_block(estimator: str) -> None:
    """Enumerated on whole canvases: masks behind the continuation, to the end of its last block of 8."""
    denoiser = load("llada22", mask_token_id=159)
    request = LikelihoodRequest([20, 30, 40, 50, 60], [70, 80, 90, 100, 110])
    others = [LikelihoodRequest([20, 30], [70, 80, 90]), LikelihoodRequest([20, 30, 40, 50, 60], [99])]
    text, expected = request.context_ids + request.continuation_ids, 0.0
    for start, stop in ((5, 8), (8, 10)):  # the continuation's positions in each block
        hidden = list(range(start, stop))
        while hidden:
            canvas = text[:stop] + [159] * (16 - stop if stop > 8 else 0)
            for position in hidden:
                canvas[position] = 159
            logits = denoiser.logits(torch.tensor([canvas]), None, torch.tensor(hidden))  # [n, V]
            chosen = hidden[0]
            if estimator == "duel":
                logits[:, 159] = -torch.inf
                chosen = hidden[int(logits.softmax(-1).amax(-1).argmax())]
            expected += float(logits[hidden.index(chosen)].double().log_softmax(-1)[text[chosen]])
            hidden.remove(chosen)
    found = scores(denoiser, [request, *others], likelihood=estimator)
    assert found[0][0] == pytest.approx(expected, abs=1e-4)
    assert [scores(denoiser, [other], likelihood=estimator)[0][0] for other in others] == pytest.approx(
        [log_likelihood for log_likelihood, _ in found[1:]], abs=1e-4
    )
