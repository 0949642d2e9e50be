"""Likelihood under block-causal attention, against enumeration over all masks and decoding by definition."""

import copy
import itertools
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from tests.conftest import choice, random_llama, tiny_model, tiny_tokenizer
from tests.pretended_gpu import PretendedGpu

MASK, VOCABULARY, MAX_LENGTH = 12, 13, 64
# blocks counted from, shifted logits, block length
PATTERNS = [("row_start", False, 3), ("row_start", True, 4), ("prompt_end", False, 4), ("prompt_end", True, 3)]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "max_position_embeddings": MAX_LENGTH,
    }
    return random_llama(VOCABULARY, seed=3, initializer_range=0.5, **sizes)


def blockwise(model: Any, blocks_from: Any, shift: bool, length: int | None) -> Denoiser:
    return Denoiser(
        model, mask_token_id=MASK, pad_token_id=0, shift=shift, attention=AttentionPattern(length, blocks_from)
    )


def ids(length: int, seed: int) -> list[int]:
    return Random(seed).choices(range(MASK), k=length)


def requests() -> list[LikelihoodRequest]:
    """Contexts that end inside and at the end of blocks, one shared by three continuations."""
    shared = ids(6, 1)
    return [
        LikelihoodRequest(ids(5, 2), ids(6, 3)),
        LikelihoodRequest(ids(1, 4), ids(2, 5)),
        *(LikelihoodRequest(shared, ids(n, n)) for n in (5, 3, 1)),
    ]


class ByDefinition:
    """The same quantities from whole canvases, one at a time, computed without the code under test."""

    def __init__(self, model: Any, blocks_from: str, shift: bool, length: int, request: LikelihoodRequest) -> None:
        self.model, self.shift, self.length = model, shift, length
        self.context, self.continuation = request.context_ids, request.continuation_ids
        before = -len(self.context) % length if blocks_from == "prompt_end" else 0
        n = len(self.continuation)
        numbers = [(before + len(self.context) + i) // length for i in range(n)]
        self.blocks = [[i for i in range(n) if numbers[i] == number] for number in sorted(set(numbers))]
        self.first_alone = [
            shift and blocks_from == "row_start" and (len(self.context) + block[0]) % length == 0
            for block in self.blocks
        ]
        self.before = before

    def logits(self, masked: set[int], extra: int) -> Tensor:
        """[n, V] of the continuation with these positions masked."""
        answer = [MASK if i in masked else token for i, token in enumerate(self.continuation)] + [MASK] * extra
        canvas = self.context + answer
        positions = torch.arange(len(canvas))
        block = (positions + self.before) // self.length
        sees = (block[None, :] <= block[:, None])[None, None]
        with torch.no_grad():
            logits = self.model(torch.tensor([canvas]), attention_mask=sees, position_ids=positions[None]).logits[0]
        if self.shift:
            logits = torch.cat([logits[:1], logits[:-1]])
        return logits[len(self.context) : len(self.context) + len(self.continuation)]

    def bound(self, extra: int = 0) -> float:
        total = 0.0
        for block in self.blocks:
            for k in range(1, len(block) + 1):
                for masked in itertools.combinations(block, k):
                    log_probs = self.logits(set(masked), extra).log_softmax(-1)
                    weight = 1 / (k * math.comb(len(block), k))
                    total += weight * sum(log_probs[i, self.continuation[i]].item() for i in masked)
        return total

    def chain(self) -> float:
        total = 0.0
        for block in self.blocks:
            for n, i in enumerate(block):
                log_probs = self.logits(set(block[n:]), 0).log_softmax(-1)
                total += log_probs[i, self.continuation[i]].item()
        return total

    def trajectory(self) -> tuple[list[int], float, bool]:
        """Order, log-likelihood and greedy flag of confidence-ordered decoding, one token a step, block by block."""
        order: list[int] = []
        total, is_greedy = 0.0, True
        for block, first_alone in zip(self.blocks, self.first_alone, strict=True):
            masked = list(block)
            while masked:
                log_probs = self.logits(set(masked), 0)[:, :MASK].log_softmax(-1)
                chosen = max(masked, key=lambda i: log_probs[i].max().item())
                if first_alone and len(masked) == len(block):
                    chosen = block[0]
                total += log_probs[chosen, self.continuation[chosen]].item()
                is_greedy &= int(log_probs[chosen].argmax()) == self.continuation[chosen]
                order.append(chosen)
                masked.remove(chosen)
        return order, total, is_greedy


def log_likelihoods(denoiser: Denoiser, asked: list[LikelihoodRequest], batch_size: int, **options: Any) -> list[float]:
    answers = score(denoiser, asked, LikelihoodOptions(**options), batch_size=batch_size, max_length=MAX_LENGTH)
    return [one.total for one in answers]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_estimates_equal_enumeration(model: Any, pattern: tuple[Any, bool, int]) -> None:
    """Blocks of up to four tokens have at most 15 masks, so that the bound is enumerated."""
    denoiser, asked = blockwise(model, *pattern), requests()
    definitions = [ByDefinition(model, *pattern, request) for request in asked]
    for batch_size in (1, 8):
        bounds = log_likelihoods(denoiser, asked, batch_size, likelihood="mc", mc_num=15)
        assert bounds == pytest.approx([definition.bound() for definition in definitions], abs=1e-4)
        chains = log_likelihoods(denoiser, asked, batch_size, likelihood="chain")
        assert chains == pytest.approx([definition.chain() for definition in definitions], abs=1e-4)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_trajectories_are_decoding_block_by_block(model: Any, pattern: tuple[Any, bool, int]) -> None:
    denoiser, asked = blockwise(model, *pattern), requests()
    expected = [ByDefinition(model, *pattern, request).trajectory() for request in asked]
    for batch_size in (1, 8):
        options = LikelihoodOptions(likelihood="duel")
        answers = score(denoiser, asked, options, batch_size=batch_size, max_length=MAX_LENGTH)
        assert [[term.position for term in one.terms] for one in answers] == [order for order, _, _ in expected]
        assert [one.total for one in answers] == pytest.approx(
            [log_likelihood for _, log_likelihood, _ in expected], abs=1e-4
        )
        assert [one.is_greedy for one in answers] == [is_greedy for _, _, is_greedy in expected]


def test_extra_masks_are_seen_in_the_last_block_only(model: Any) -> None:
    pattern = ("row_start", False, 4)
    denoiser, request = blockwise(model, *pattern), LikelihoodRequest(ids(5, 2), ids(5, 3))
    definition = ByDefinition(model, *pattern, request)  # type: ignore[arg-type]
    with_two = log_likelihoods(denoiser, [request], 4, likelihood="mc", n_masks=7)
    assert with_two == pytest.approx([definition.bound(extra=2)], abs=1e-4)
    assert with_two == log_likelihoods(denoiser, [request], 4, likelihood="mc", n_masks=30)
    assert with_two != pytest.approx(log_likelihoods(denoiser, [request], 4, likelihood="mc"), abs=1e-4)


@pytest.mark.parametrize("shift", [False, True])
def test_guidance_masks_the_context_before_the_block_too(model: Any, shift: bool) -> None:
    scale = 1.5
    for n_context, n_tokens in ((5, 1), (5, 3), (6, 2)):  # in the context's last block, beyond it, and right behind it
        request = LikelihoodRequest(ids(n_context, 2), ids(n_tokens, 4))
        denoiser = blockwise(model, "row_start", shift, 3)
        conditional = ByDefinition(model, "row_start", shift, 3, request)
        unconditional = ByDefinition(
            model, "row_start", shift, 3, LikelihoodRequest([MASK] * n_context, request.continuation_ids)
        )
        expected = 0.0
        for i in range(n_tokens):
            c, u = (side.logits(set(range(i, n_tokens)), 0)[i] for side in (conditional, unconditional))
            expected += (u + (scale + 1) * (c - u)).log_softmax(-1)[request.continuation_ids[i]].item()
        assert log_likelihoods(denoiser, [request], 4, likelihood="chain", cfg_scale=scale) == pytest.approx(
            [expected], abs=1e-4
        )


@pytest.mark.parametrize("shift", [False, True])
def test_on_a_gpu_one_pass_has_room_for_a_questions_short_spans(model: Any, shift: bool) -> None:
    context, options = ids(16, 1), LikelihoodOptions(mc_num=8, check_greedy=False)
    questions = [LikelihoodRequest(context, ids(4, n), n) for n in range(4)]
    denoiser = blockwise(copy.deepcopy(model), "row_start", shift, 8)
    totals = [each.total for each in score(denoiser, questions, options, batch_size=1, max_length=MAX_LENGTH)]
    n_canvases = denoiser.forward_passes
    with PretendedGpu() as gpu:
        gpu.move(denoiser.model)
        found = score(denoiser, questions, options, batch_size=1, max_length=MAX_LENGTH)
    assert denoiser.forward_passes - n_canvases == 1 < n_canvases
    assert [each.total for each in found] == pytest.approx(totals, abs=1e-4)


def test_a_family_without_likelihood_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MDLM(tiny_model(), tokenizer=tiny_tokenizer()).config
    family = replace(
        checkpoints.family_of(config), supports=frozenset(), instead="it has none; use generate_until tasks"
    )
    monkeypatch.setattr(checkpoints, "family_of", lambda _config: family)
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer())
    with pytest.raises(OptionError, match=r"^likelihood=auto does not work .*: it has none; use generate_until"):
        lm.loglikelihood([choice("a", " b")], disable_tqdm=True)
