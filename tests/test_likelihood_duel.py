"""`likelihood=duel`: the deterministic decoder's own log-likelihood, against golden numbers and by enumeration."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mdlm_lm_eval.likelihood import LikelihoodRequest, duel, score
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from tests.conftest import random_llama
from tests.reference import facts_of, load, tensors_of

POLICIES = ("confidence", "margin", "entropy", "left_to_right")
TOKENS, MASK = 4, 4


class AllTokensDenoiser(Denoiser):
    """Its mask token is none of the model's, so that nothing is taken out of the softmax."""

    def logits(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        logits = super().logits(input_ids.masked_fill(input_ids == 160, 159), *args, **kwargs)
        return torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)


def toy(kind: type[Denoiser] = Denoiser) -> Any:
    """Four tokens and the mask, peaked enough that thresholds are reached."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
    model = random_llama(TOKENS + 1, seed=3, initializer_range=0.5, **sizes)
    return kind(model, mask_token_id=MASK, pad_token_id=0)


@pytest.fixture(scope="module")
def llada() -> Any:
    return load("llada").model


@pytest.mark.parametrize("distribution", ["without_mask", "all_tokens"])
@pytest.mark.parametrize("tokens_per_step", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_golden_trajectories(llada: Any, policy: str, tokens_per_step: int, distribution: str) -> None:
    """Orders, log-probabilities and greedy flags of an independent implementation on LLaDA's modelling code."""
    described, golden = facts_of("duel"), tensors_of("duel")
    requests = [
        LikelihoodRequest(golden[f"pair.{pair}.context"].tolist(), golden[f"pair.{pair}.continuation"].tolist())
        for pair in range(len(described["pairs"]))
    ]
    kind, mask = (Denoiser, 159) if distribution == "without_mask" else (AllTokensDenoiser, 160)
    denoiser = kind(llada.eval(), mask_token_id=mask, pad_token_id=158)
    options = LikelihoodOptions(likelihood="duel", unmasking=policy, tokens_per_step=tokens_per_step)
    for pair, request in enumerate(requests):
        (expected,) = (
            result
            for result in described["results"]
            if (result["pair"], result["policy"]) == (pair, policy)
            and (result["tokens_per_step"], result["distribution"]) == (tokens_per_step, distribution)
        )
        passes = denoiser.forward_passes
        (trajectory,) = duel(denoiser, [request], options, batch_size=1, max_length=64)
        key = f"pair.{pair}.{policy}.{tokens_per_step}.{distribution}"
        assert trajectory.order == golden[f"{key}.order"].tolist()
        log_probs = golden[f"{key}.logprobs"][trajectory.order].tolist()
        assert trajectory.log_probs == pytest.approx(log_probs, abs=1e-4)
        assert trajectory.is_greedy == expected["is_greedy"]
        assert denoiser.forward_passes - passes == expected["forward_passes"]
        [answer] = score(denoiser, [request], options, batch_size=1, max_length=64)
        assert answer == (pytest.approx(expected["loglikelihood"], abs=1e-4), expected["is_greedy"])


@pytest.mark.parametrize("threshold", [None, 0.6])
@pytest.mark.parametrize("tokens_per_step", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_probabilities_of_all_strings_sum_to_one(policy: str, tokens_per_step: int, threshold: float | None) -> None:
    denoiser = toy()
    strings = [LikelihoodRequest([1, 3], list(string)) for string in itertools.product(range(TOKENS), repeat=4)]
    options = LikelihoodOptions(
        likelihood="duel", unmasking=policy, tokens_per_step=tokens_per_step, confidence_threshold=threshold
    )
    answers = score(denoiser, strings, options, batch_size=256, max_length=64)
    assert sum(math.exp(log_likelihood) for log_likelihood, _ in answers) == pytest.approx(1.0, abs=1e-5)
    assert sum(is_greedy for _, is_greedy in answers) == 1
    # One canvas to begin with, and never more of them than there are ways to fill what is filled.
    steps = math.ceil(4 / tokens_per_step)
    assert denoiser.canvas_count <= sum(TOKENS ** min(4, step * tokens_per_step) for step in range(steps)) + 4**3 * (
        threshold is not None
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_batches_change_nothing_and_choices_share_a_pass(policy: str) -> None:
    denoiser = toy()
    requests = [
        LikelihoodRequest(context, continuation)
        for context in ([1, 3, 2, 0, 1], [2], [0, 0, 3])
        for continuation in ([0, 1, 2], [0, 1, 3], [3, 2, 1, 0, 2, 3], [1])
    ]
    for n_masks in ("auto", 8):
        options = LikelihoodOptions(likelihood="duel", unmasking=policy, n_masks=n_masks)
        denoiser.canvas_count = 0
        together = score(denoiser, requests, options, batch_size=5, max_length=64)
        rows_together, denoiser.canvas_count = denoiser.canvas_count, 0
        alone = [score(denoiser, [request], options, batch_size=1, max_length=64)[0] for request in requests]
        assert [ll for ll, _ in together] == pytest.approx([ll for ll, _ in alone], abs=1e-4)
        assert [flag for _, flag in together] == [flag for _, flag in alone]
        assert rows_together < denoiser.canvas_count == sum(len(request.continuation_ids) for request in requests)


def test_a_canvas_of_masks_alone_has_no_order() -> None:
    request, denoiser = LikelihoodRequest([], [1, 2, 3]), toy()
    with pytest.raises(OptionError, match="needs a context of at least one token"):
        score(denoiser, [request], LikelihoodOptions(likelihood="duel"), batch_size=1, max_length=64)
    assert denoiser.canvas_count == 0
    left_to_right = LikelihoodOptions(likelihood="duel", unmasking="left_to_right")
    assert score(denoiser, [request], left_to_right, batch_size=1, max_length=64)[0][0] < 0
