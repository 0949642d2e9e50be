"""Log-likelihood estimators against brute force and enumeration."""

import itertools
import math
import random

import pytest
import torch

from mdlm_lm_eval.likelihood import LikelihoodRequest, rolling_windows, score, truncated_tokens
from mdlm_lm_eval.likelihood.masks import monte_carlo_corruptions
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from tests.conftest import random_llama

MASK, PAD, VOCABULARY = 49, 48, 50


@pytest.fixture
def denoiser() -> Denoiser:
    return Denoiser(random_llama(VOCABULARY), mask_token_id=MASK, pad_token_id=PAD)


def log_probs(denoiser: Denoiser, token_ids: list[int]) -> torch.Tensor:
    """[T, V] of one unpadded canvas, computed without the code under test."""
    with torch.no_grad():
        logits = denoiser.model(torch.tensor([token_ids])).logits[0]
    return logits.log_softmax(-1)


def masked_log_probs(denoiser: Denoiser, context: list[int], continuation: list[int], masked, extra: int = 0) -> dict:
    """Position -> log-probability of the true token where `masked` of the continuation are masked."""
    answer = [MASK if i in masked else token for i, token in enumerate(continuation)] + [MASK] * extra
    table = log_probs(denoiser, context + answer)
    return {i: table[len(context) + i, continuation[i]].item() for i in masked}


def expected_bound(denoiser: Denoiser, context: list[int], continuation: list[int]) -> float:
    """E over k ~ U{1..n} and masks of size k of n / k times the sum of log-probabilities, by enumeration."""
    n = len(continuation)
    total = 0.0
    for k in range(1, n + 1):
        masks = list(itertools.combinations(range(n), k))
        for masked in masks:
            values = masked_log_probs(denoiser, context, continuation, masked).values()
            total += sum(values) * (n / k) / (n * len(masks))
    return total


def random_ids(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(PAD), k=length)


def log_likelihoods(denoiser, requests, batch_size=16, max_length=128, **options) -> list[float]:
    results = score(denoiser, requests, LikelihoodOptions(**options), batch_size=batch_size, max_length=max_length)
    return [log_likelihood for log_likelihood, _ in results]


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


@pytest.mark.parametrize("likelihood", ["mc", "chain"])
def test_batch_size_order_and_neighbours_change_nothing(denoiser, likelihood):
    lengths = [(3, 9), (20, 2), (0, 5), (11, 1), (3, 12), (40, 7), (11, 4)]
    requests = [LikelihoodRequest(random_ids(c, c), random_ids(n, 50 + n), n) for c, n in lengths]
    options = LikelihoodOptions(likelihood=likelihood, mc_num=12)
    together = score(denoiser, requests, options, batch_size=16, max_length=128)
    backwards = score(denoiser, requests[::-1], options, batch_size=3, max_length=128)[::-1]
    alone = [score(denoiser, [request], options, batch_size=1, max_length=128)[0] for request in requests]
    for results in (backwards, alone):
        assert [flag for _, flag in results] == [flag for _, flag in together]
        assert [value for value, _ in results] == pytest.approx([value for value, _ in together], abs=1e-4)


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
    assert [flag for _, flag in results] == [True] + [False] * 5


def test_greedy_check_can_be_left_out(denoiser):
    context = random_ids(10, 4)
    request = LikelihoodRequest(context, greedy_by_definition(denoiser, context, 3, 0))
    checked = score(denoiser, [request], LikelihoodOptions(), batch_size=4, max_length=128)
    rows_checked, denoiser.canvas_count = denoiser.canvas_count, 0
    unchecked = score(denoiser, [request], LikelihoodOptions(check_greedy=False), batch_size=4, max_length=128)
    assert checked[0][1]
    assert not unchecked[0][1]
    assert checked[0][0] == pytest.approx(unchecked[0][0], abs=1e-4)
    assert denoiser.canvas_count == 7 < rows_checked


def test_long_contexts_are_cut_on_the_left(denoiser):
    request = LikelihoodRequest(random_ids(30, 1), random_ids(3, 2))
    assert truncated_tokens(request, LikelihoodOptions(), 20) == 13
    assert truncated_tokens(request, LikelihoodOptions(n_masks=5), 20) == 15
    cut = LikelihoodRequest(request.context_ids[13:], request.continuation_ids)
    assert log_likelihoods(denoiser, [request], max_length=20) == log_likelihoods(denoiser, [cut])


@pytest.mark.parametrize(
    ("n_masks", "max_length", "message"),
    [(2, 128, "n_masks=2 is too small.*from 3"), (20, 20, "max_length=20 leaves no room"), ("auto", 3, "max_length=3")],
)
def test_canvases_that_do_not_fit_are_refused_before_any_pass(denoiser, n_masks, max_length, message):
    requests = [LikelihoodRequest([1, 2], [3]), LikelihoodRequest([1, 2], [3, 4, 5])]
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
