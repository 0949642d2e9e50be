"""Log-likelihood estimators against brute force and enumeration; the decoder's own, also against golden numbers."""

import itertools
import math
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.likelihood.corruptions import monte_carlo_corruptions, standard_error
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, rolling_windows, truncated_tokens
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from tests.conftest import evaluate, random_llama
from tests.support.canvases import FROM_START
from tests.support.reference import facts_of, load, tensors_of

MASK, PAD, VOCABULARY = 49, 48, 50


@pytest.fixture
def denoiser() -> Denoiser:
    return Denoiser(random_llama(VOCABULARY), mask_token_id=MASK, pad_token_id=PAD)


def log_probs(denoiser: Denoiser, token_ids: list[int]) -> torch.Tensor:
    """[T, V] of one unpadded canvas, computed without the code under test."""
    with torch.no_grad():
        logits = denoiser.model(torch.tensor([token_ids])).logits[0]
    return logits.log_softmax(-1)


def expected_bound(denoiser: Denoiser, context: list[int], continuation: list[int]) -> float:
    """E over k ~ U{1..n} and masks of size k of n / k times the sum of log-probabilities, by enumeration."""
    n = len(continuation)
    total = 0.0
    for k in range(1, n + 1):
        masks = list(itertools.combinations(range(n), k))
        for masked in masks:
            answer = [MASK if i in masked else token for i, token in enumerate(continuation)]
            table = log_probs(denoiser, context + answer)[len(context) :]
            total += sum(table[i, continuation[i]].item() for i in masked) * (n / k) / (n * len(masks))
    return total


def random_ids(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(PAD), k=length)


def log_likelihoods(denoiser, requests, batch_size=16, max_length=128, **options) -> list[float]:
    results = score(denoiser, requests, LikelihoodOptions(**options), batch_size=batch_size, max_length=max_length)
    return [one.total for one in results]


@pytest.mark.parametrize("mc_num", [1, 3, 6, 14])
def test_monte_carlo_is_unbiased(denoiser, mc_num):
    """Few samples (n > mc_num and n <= mc_num take different strata), averaged over many seeds."""
    context, continuation = random_ids(7, 1), random_ids(4, 2)
    requests = [LikelihoodRequest(context, continuation, seed) for seed in range(800)]
    estimates = torch.tensor(
        log_likelihoods(denoiser, requests, batch_size=64, likelihood="mc", mc_num=mc_num, check_greedy=False)
    )
    standard_error = estimates.std() / math.sqrt(len(requests))
    assert abs(estimates.mean() - expected_bound(denoiser, context, continuation)) < 4 * standard_error + 1e-4


@pytest.mark.parametrize(("n", "samples"), [(1, 1), (7, 128), (9, 9), (12, 64), (30, 8)])
def test_equally_hard_tokens_give_an_estimate_without_variance(n, samples):
    for seed in range(20):
        corruptions = monte_carlo_corruptions(n, samples, torch.Generator().manual_seed(seed))
        assert sum(corruption.weight * len(corruption.scored) for corruption in corruptions) == pytest.approx(n)
        assert len(corruptions) == len({corruption.masked for corruption in corruptions}) <= samples


@pytest.mark.parametrize(("n", "samples"), [(6, 8), (12, 8), (12, 128), (40, 32), (100, 128)])
def test_the_standard_error_is_the_spread_over_seeds_or_somewhat_more(n: int, samples: int) -> None:
    """Tokens that are hard or easy, and that some of the others make easier where they are seen."""
    draw = random.Random(n)
    hardness = np.array([draw.uniform(0.1, 6.0) for _ in range(n)])
    clues = np.array([[draw.gauss(0.0, 3.0 / n) for _ in range(n)] for _ in range(n)])
    estimates, errors = [], []
    for seed in range(100):
        found = [
            (one.weight, dict(zip(one.masked, own.tolist(), strict=True)))
            for one in monte_carlo_corruptions(n, samples, torch.Generator().manual_seed(seed))
            for own in [-hardness[[*one.masked]] - clues[np.ix_(one.masked, one.masked)].sum(1)]
        ]
        estimates.append(sum(weight * sum(log_probs.values()) for weight, log_probs in found))
        errors.append(standard_error(found))
    assert 0.8 < statistics.fmean(errors) / statistics.stdev(estimates) < 2.2


@pytest.mark.parametrize("likelihood", ["mc", "chain", "duel"])
def test_batch_size_order_and_neighbours_change_nothing(denoiser, likelihood):
    lengths = [(3, 9), (20, 2), (likelihood == "duel", 5), (11, 1), (3, 12), (40, 7), (11, 4)]
    requests = [LikelihoodRequest(random_ids(c, c), random_ids(n, 50 + n), n) for c, n in lengths]
    options = LikelihoodOptions(likelihood=likelihood, mc_num=12)
    together = score(denoiser, requests, options, batch_size=16, max_length=128)
    backwards = score(denoiser, requests[::-1], options, batch_size=3, max_length=128)[::-1]
    alone = [score(denoiser, [request], options, batch_size=1, max_length=128)[0] for request in requests]
    for results in (backwards, alone):
        assert [one.is_greedy for one in results] == [one.is_greedy for one in together]
        assert [one.total for one in results] == pytest.approx([one.total for one in together], abs=1e-4)


def greedy_by_definition(denoiser: Denoiser, context: list[int], n: int, extra: int) -> list[int]:
    answer = [MASK] * (n + extra)
    while MASK in answer[:n]:
        table = log_probs(denoiser, context + answer)[len(context) :, :MASK].log_softmax(-1)
        position = max((i for i in range(n) if answer[i] == MASK), key=lambda i: table[i].max().item())
        answer[position] = int(table[position].argmax())
    return answer[:n]


@pytest.mark.parametrize("likelihood", ["mc", "chain"])
@pytest.mark.parametrize("extra", [0, 3])
def test_greedy_flag_is_confidence_order_decoding(denoiser, likelihood, extra):
    context = random_ids(10, 4)
    decoded = greedy_by_definition(denoiser, context, 5, extra)
    continuations = [decoded] + [
        [token if i != j else (token + 1) % PAD for i, token in enumerate(decoded)] for j in range(5)
    ]
    results = score(
        denoiser,
        [LikelihoodRequest(context, continuation) for continuation in continuations],
        # A threshold is an option of duel alone, which generation tasks beside these may set.
        LikelihoodOptions(likelihood=likelihood, n_masks=5 + extra if extra else "auto", confidence_threshold=1e-9),
        batch_size=8,
        max_length=128,
    )
    assert [one.is_greedy for one in results] == [True] + [False] * 5


def test_greedy_check_can_be_left_out(denoiser):
    context = random_ids(10, 4)
    request = LikelihoodRequest(context, greedy_by_definition(denoiser, context, 3, 0))
    checked = score(denoiser, [request], LikelihoodOptions(), batch_size=4, max_length=128)
    rows_checked, denoiser.canvas_count = denoiser.canvas_count, 0
    unchecked = score(denoiser, [request], LikelihoodOptions(check_greedy=False), batch_size=4, max_length=128)
    assert checked[0].is_greedy
    assert not unchecked[0].is_greedy
    assert checked[0][0] == pytest.approx(unchecked[0][0], abs=1e-4)
    assert denoiser.canvas_count == 7 < rows_checked


def test_long_contexts_are_cut_on_the_left(denoiser):
    request = LikelihoodRequest(random_ids(30, 1), random_ids(3, 2))
    assert truncated_tokens(request, LikelihoodOptions(), 20) == 13
    assert truncated_tokens(request, LikelihoodOptions(n_masks=5), 20) == 15
    cut = LikelihoodRequest(request.context_ids[13:], request.continuation_ids)
    assert log_likelihoods(denoiser, [request], max_length=20) == log_likelihoods(denoiser, [cut])


@pytest.mark.parametrize(
    ("n_masks", "max_length", "n", "message"),
    [(2, 99, 3, "too small.*from 3"), (20, 20, 3, "=20 leaves"), ("auto", 3, 3, "=3 leaves"), ("auto", 9, 0, "token")],
)
def test_canvases_that_do_not_fit_are_refused_before_any_pass(denoiser, n_masks, max_length, n, message):
    requests = [LikelihoodRequest([1, 2], [3]), LikelihoodRequest([1, 2], [3, 4, 5][:n])]
    with pytest.raises(OptionError, match=message):
        score(denoiser, requests, LikelihoodOptions(n_masks=n_masks), batch_size=2, max_length=max_length)
    assert denoiser.canvas_count == 0


@pytest.mark.parametrize("n_masks", ["auto", 4])
@pytest.mark.parametrize("length", [1, 9, 10, 23])
def test_rolling_windows_score_every_token_once(length, n_masks):
    text = list(range(100, 100 + length))
    windows = rolling_windows(text, max_length=10, prefix_token_id=7, n_masks=n_masks)
    assert [token for window in windows for token in window.continuation_ids] == text
    assert windows[0].context_ids == [7]
    done = 0
    for window in windows:
        n = len(window.continuation_ids)
        assert len(window.context_ids) + (n if n_masks == "auto" else n_masks) <= 10
        assert window.context_ids == ([7, *text[:done]])[-len(window.context_ids) :]
        done += n
    assert len({window.seed for window in windows}) == len(windows)
    assert rolling_windows([], max_length=10, prefix_token_id=7) == []


# The deterministic decoder's own: `likelihood=duel`

POLICIES = ("confidence", "margin", "entropy", "left_to_right")
TOKENS = 4  # and a fifth that is the mask


class AllTokensDenoiser(Denoiser):
    """Its mask token is none of the model's, so that nothing is taken out of the softmax."""

    def logits(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super().logits(input_ids.masked_fill(input_ids == 160, 159), *args, **kwargs)
        return torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)


def toy(kind: type[Denoiser] = Denoiser) -> Any:
    """Four tokens and the mask, peaked enough that thresholds are reached."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
    model = random_llama(TOKENS + 1, seed=3, initializer_range=0.5, **sizes)
    return kind(model, mask_token_id=TOKENS, pad_token_id=0)


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
        [answer] = score(denoiser, [request], options, batch_size=1, max_length=64)
        assert answer[:2] == (pytest.approx(expected["loglikelihood"], abs=1e-4), expected["is_greedy"])
        order = [term.position for term in answer.terms]
        key = f"pair.{pair}.{policy}.{tokens_per_step}.{distribution}"
        assert order == golden[f"{key}.order"].tolist()
        log_probs = golden[f"{key}.logprobs"][order].tolist()
        assert [term.log_prob for term in answer.terms] == pytest.approx(log_probs, abs=1e-4)
        assert denoiser.forward_passes - passes == expected["forward_passes"]


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
    assert sum(math.exp(one.total) for one in answers) == pytest.approx(1.0, abs=1e-5)
    assert sum(one.is_greedy for one in answers) == 1
    # One canvas to begin with, and never more of them than there are ways to fill what is filled.
    steps = math.ceil(4 / tokens_per_step)
    assert denoiser.canvas_count <= sum(TOKENS ** min(4, step * tokens_per_step) for step in range(steps)) + 4**3 * (
        threshold is not None
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_threshold_fills_what_it_fills_in_decoding(policy: str) -> None:
    denoiser, rule = toy(), {"unmasking": policy, "confidence_threshold": 0.5}
    (answer,) = decode(denoiser, [[1, 3]], DecodingOptions(n_masks=8, **rule))
    n_passes, denoiser.forward_passes = denoiser.forward_passes, 0
    request, options = LikelihoodRequest([1, 3], answer), LikelihoodOptions(likelihood="duel", **rule)
    [found] = score(denoiser, [request], options, batch_size=1, max_length=64)
    assert found.is_greedy
    assert denoiser.forward_passes == n_passes < 8


def test_a_canvas_of_masks_alone_has_no_order() -> None:
    request, denoiser = LikelihoodRequest([], [1, 2, 3]), toy()
    with pytest.raises(OptionError, match="needs a context of at least one token"):
        score(denoiser, [request], LikelihoodOptions(likelihood="duel"), batch_size=1, max_length=64)
    assert denoiser.canvas_count == 0
    left_to_right = LikelihoodOptions(likelihood="duel", unmasking="left_to_right")
    assert score(denoiser, [request], left_to_right, batch_size=1, max_length=64)[0][0] < 0


def test_nothing_predicts_the_first_token_from_left_to_right() -> None:
    requests, denoiser = [LikelihoodRequest([], [1, 2, 3]), LikelihoodRequest([1], [2])], toy()
    denoiser.attention = AttentionPattern(4, "prompt_end", causal_context=True)
    with pytest.raises(OptionError, match="mode=ar needs a context of at least one token"):
        score(denoiser, requests, LikelihoodOptions(mode="ar"), batch_size=2, max_length=64)


# Draws


@pytest.mark.parametrize("is_in_blocks", [False, True])
def test_draws_have_the_sums_and_standard_errors_of_the_result(
    is_in_blocks: bool, checkpoint: Path, task_folder: Path, tmp_path: Path
) -> None:
    lm = MDLM(
        str(checkpoint), device="cpu", batch_size=4, mc_num=6, check_greedy=False, log_likelihood_draws=str(tmp_path)
    )
    if is_in_blocks:
        lm.denoiser.attention = FROM_START
    found = evaluate(lm, ["tiny_choice"], task_folder)
    draws = pd.read_parquet(tmp_path / "loglikelihood_tiny_choice.parquet")
    added = (draws["weight"] * draws["log_prob"]).groupby([draws["doc_id"], draws["choice"]]).sum()
    scores = {
        (sample["doc_id"], choice): float(log_likelihood)
        for sample in found["samples"]["tiny_choice"]
        for choice, [(log_likelihood, _)] in enumerate(sample["resps"])
    }
    assert added.to_dict() == pytest.approx(scores, abs=1e-5)
    facts: dict[str, Any] = lm.get_model_info()["mdlm"]["tasks"]["tiny_choice"]
    errors = []
    for _, request in draws.groupby(["doc_id", "choice"]):
        of_blocks = []
        ends = [*sorted(request["block"].unique()), request["position"].max() + 1]
        for begin, end in itertools.pairwise(ends):
            own = request[request["block"] == begin].groupby("draw")
            samples = [
                (one["weight"].iloc[0], dict(zip(one["position"], one["log_prob"], strict=True))) for _, one in own
            ]
            if 2 ** (end - begin) - 1 > 6:
                of_blocks.append(standard_error(samples) or 0.0)
        errors += [np.hypot.reduce(of_blocks)] if of_blocks else []
    assert [float(error) for error in facts["standard_errors"].split()] == pytest.approx(errors, rel=1e-3)
    assert facts["standard_error"] == pytest.approx([min(errors), max(errors)])
    assert facts["standard_error_of_mean"] == pytest.approx(np.sqrt(np.sum(np.square(errors))) / len(errors))
    assert len(errors) > 4
    assert draws["masks"].min() > 0
