"""Decoding: the same tokens in any company, exact early exit, logits at masks alone."""

import random
from dataclasses import replace

import pytest
import torch

from mdlm_lm_eval.canvas import Canvas, build_canvas
from mdlm_lm_eval.decoding import decode, decode_canvases
from mdlm_lm_eval.decoding.schedules import unmask_counts
from mdlm_lm_eval.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import tiny_model

MASK, PAD, EOS = 2, 0, 1

SETTINGS = {
    "one step": DecodingOptions(n_masks=20, steps=1),
    "one token a step": DecodingOptions(n_masks=12),
    "blocks": DecodingOptions(n_masks=18, block_length=5, steps=9),
    "margin": DecodingOptions(n_masks=12, steps=5, unmasking="margin"),
    "entropy, dream": DecodingOptions(n_masks=12, steps=5, unmasking="entropy", schedule="dream"),
    "random, cosine": DecodingOptions(n_masks=12, steps=5, unmasking="random", schedule="cosine"),
    "left to right": DecodingOptions(n_masks=12, steps=4, unmasking="left_to_right"),
    "threshold": DecodingOptions(n_masks=12, block_length=6, confidence_threshold=0.5),
    "sampled": DecodingOptions(n_masks=12, steps=4, temperature=1.0, top_p=0.9, top_k=50),
    "guided": DecodingOptions(n_masks=8, steps=4, cfg_scale=1.5),
    "eos last": DecodingOptions(n_masks=12, steps=6, eos_last=True),
    "automatic canvas": DecodingOptions(),
}


@pytest.fixture(scope="module")
def denoiser() -> Denoiser:
    return Denoiser(tiny_model(), mask_token_id=MASK, pad_token_id=PAD)


def canvases(options: DecodingOptions, n: int = 16, gen_toks: int | None = None) -> list[Canvas]:
    rng = random.Random(3)
    built = []
    for index in range(n):
        prompt = [rng.randrange(3, 259) for _ in range(rng.randrange(3, 40))]
        built.append(
            build_canvas(
                prompt, options, mask_token_id=MASK, max_length=256, request_gen_toks=gen_toks or 4 + index, seed=index
            )[0]
        )
    return built


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_request_decodes_the_same_alone_and_in_any_batch(denoiser: Denoiser, options: DecodingOptions) -> None:
    rows = canvases(options)
    alone = [decode_canvases(denoiser, [row], options, eos_ids=[EOS])[0] for row in rows]
    assert decode_canvases(denoiser, rows, options, eos_ids=[EOS]) == alone
    shuffled = random.Random(1).sample(range(len(rows)), len(rows))
    assert decode_canvases(denoiser, [rows[i] for i in shuffled], options, eos_ids=[EOS]) == [
        alone[i] for i in shuffled
    ]
    assert all(MASK not in tokens for tokens in alone)
    assert len({tuple(tokens) for tokens in alone}) > 1


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS.keys())
def test_early_exit_changes_no_token_and_saves_passes(denoiser: Denoiser, options: DecodingOptions) -> None:
    stop = 77

    def is_decided(tokens: list[int]) -> bool:
        return stop in tokens

    def until_stop(tokens: list[int]) -> list[int]:
        return tokens[: tokens.index(stop)] if stop in tokens else tokens

    rows = canvases(options, gen_toks=3)
    plain = decode_canvases(denoiser, rows, replace(options, early_exit=False), eos_ids=[EOS], is_decided=is_decided)
    passes = denoiser.forward_passes
    early = decode_canvases(denoiser, rows, options, eos_ids=[EOS], is_decided=is_decided)
    used = denoiser.forward_passes - passes
    assert [until_stop(tokens) for tokens in early] == [until_stop(tokens) for tokens in plain]
    passes = denoiser.forward_passes
    decode_canvases(denoiser, rows, replace(options, early_exit=False), eos_ids=[EOS], is_decided=is_decided)
    assert used <= denoiser.forward_passes - passes


def test_a_decided_row_leaves_the_batch(denoiser: Denoiser) -> None:
    options = DecodingOptions(n_masks=30, unmasking="left_to_right")
    rows = canvases(options, gen_toks=30)
    passes = denoiser.forward_passes
    tokens = decode_canvases(denoiser, rows, options, is_decided=lambda tokens: len(tokens) >= 2)
    assert denoiser.forward_passes - passes == 2
    assert all(len(row) == 2 for row in tokens)


@pytest.mark.parametrize("early_exit", [True, False])
def test_only_masks_reach_the_output_projection(denoiser: Denoiser, early_exit: bool) -> None:
    options = DecodingOptions(n_masks=20, steps=1, early_exit=early_exit)
    rows = canvases(options, gen_toks=1)
    seen: list[int] = []
    hook = denoiser.model.lm_head.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape[0]))
    decode_canvases(denoiser, rows, options)
    hook.remove()
    assert seen == [16 if early_exit else 16 * 20]


def test_logits_are_the_plain_models_and_padding_changes_nothing(denoiser: Denoiser) -> None:
    ids = torch.randint(3, 259, (2, 9), generator=torch.Generator().manual_seed(0))
    at = torch.rand(2, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    with torch.no_grad():
        expected = denoiser.model(input_ids=ids).logits[at]  # [N, V]
    ones = torch.ones_like(ids)
    padding, zeros = torch.full((2, 4), PAD), torch.zeros(2, 4, dtype=torch.long)
    no = torch.zeros(2, 4, dtype=torch.bool)
    for logits in (
        denoiser.logits(ids, ones, at),
        denoiser.logits(ids, ones, at, n_at=int(at.sum())),
        denoiser.logits(torch.cat([padding, ids], 1), torch.cat([zeros, ones], 1), torch.cat([no, at], 1)),
        denoiser.logits(torch.cat([ids, padding], 1), torch.cat([ones, zeros], 1), torch.cat([at, no], 1)),
    ):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_shifted_logits_come_from_the_left_neighbour(denoiser: Denoiser) -> None:
    shifted = Denoiser(denoiser.model, mask_token_id=MASK, pad_token_id=PAD, shift=True)
    ids = torch.tensor([[PAD, 5, 6, 7]])
    attended = torch.tensor([[0, 1, 1, 1]])
    everywhere = torch.tensor([[False, True, True, True]])
    plain = denoiser.logits(ids, attended, everywhere)  # [3, V]
    torch.testing.assert_close(shifted.logits(ids, attended, everywhere), plain[[0, 0, 1]])


def test_repetitions_sample_differently_and_reproducibly(denoiser: Denoiser) -> None:
    options = DecodingOptions(n_masks=12, steps=4, temperature=1.0)
    prompts = [[5, 6, 7]] * 3
    first = decode(denoiser, prompts, options)
    assert len({tuple(tokens) for tokens in first}) == 3
    assert decode(denoiser, prompts, options) == first
    assert decode(denoiser, prompts, replace(options, seed=1)) != first
    assert len({tuple(tokens) for tokens in decode(denoiser, prompts, replace(options, temperature=0.0))}) == 1


def test_sampling_follows_the_distribution(denoiser: Denoiser) -> None:
    prompt = [5, 6, 7]
    ids = torch.tensor([[*prompt, MASK]])
    logits = denoiser.logits(ids, torch.ones_like(ids), ids == MASK)[0]
    logits[MASK] = -torch.inf
    expected = (logits / 2.0).softmax(-1)
    n = 4000
    drawn = torch.tensor(decode(denoiser, [prompt] * n, DecodingOptions(n_masks=1, temperature=2.0))).flatten()
    observed = torch.bincount(drawn, minlength=len(expected)) / n
    assert (observed - expected).abs().max() < 0.03
    best = decode(denoiser, [prompt] * 20, DecodingOptions(n_masks=1, temperature=2.0, top_k=1))
    assert best == [[int(expected.argmax())]] * 20
    nucleus = {
        row[0] for row in decode(denoiser, [prompt] * 500, DecodingOptions(n_masks=1, temperature=2.0, top_p=0.3))
    }
    ordered = expected.sort(descending=True)
    n_kept = int((ordered.values.cumsum(0) < 0.3).sum()) + 1
    assert nucleus <= set(ordered.indices[:n_kept].tolist())


def test_suppressed_eos_is_never_decoded(denoiser: Denoiser) -> None:
    ends = list(range(3, 200))
    rows = canvases(DecodingOptions(n_masks=10, suppress_eos=True))
    tokens = decode_canvases(denoiser, rows, DecodingOptions(n_masks=10, suppress_eos=True), eos_ids=ends)
    assert all(token >= 200 or token < 3 for row in tokens for token in row)
    cut = decode_canvases(denoiser, rows, DecodingOptions(n_masks=10), eos_ids=ends)
    assert all(row[-1] in ends and not set(row[:-1]) & set(ends) for row in cut if len(row) < 10)


@pytest.mark.parametrize("schedule", ["linear", "dream", "cosine"])
def test_schedules_unmask_everything(schedule: str) -> None:
    for n in (1, 2, 7, 40, 200):
        for steps in range(1, min(n, 50) + 1):
            counts = unmask_counts(n, steps, schedule)
            assert len(counts) == steps
            assert sum(counts) == n
            assert min(counts) >= (0 if schedule == "dream" else 1)
    assert unmask_counts(8, 3, "linear") == [3, 3, 2]
    assert unmask_counts(100, 4, "cosine") == [8, 22, 32, 38]
