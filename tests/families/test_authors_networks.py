"""Logits and likelihoods of iLLaDA, Nemotron-Labs-Diffusion, LLaDA2.2 and Steerling: reference code, enumeration."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import torch
from lm_eval.models.huggingface import HFLM
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3ForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mdlm_lm_eval.checkpoints import end_of_turn_ids, load_config, load_denoiser, load_tokenizer
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.likelihood.corruptions import Corruption
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, rolling_windows
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from tests.conftest import data, refused, tiny_tokenizer
from tests.support.reference import GOLDEN, assert_close, facts_of, load, padded, tensors_of

NEMOTRON = "nemotron_labs_diffusion"


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_of_illada(side: str) -> None:
    tensors = tensors_of("illada")
    lengths = [24] * 3 if side == "none" else tensors["ragged.lengths"].tolist()
    rows = [row[:n] for row, n in zip(tensors["logits.input_ids"], lengths, strict=True)]  # of [3, 24]
    expected = tensors["logits.output" if side == "none" else "ragged.output"]
    found = load("illada").logits(*padded(rows, side))
    assert_close(found, torch.cat([row[:n] for row, n in zip(expected, lengths, strict=True)]))


def nemotron_logits(denoiser: Denoiser, ids: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """[T, V] of one canvas [T]."""
    return denoiser.logits(ids[None], None, torch.arange(len(ids)), prompt_lengths=torch.tensor([prompt_length]))


def test_logits_of_nemotron_labs_diffusion() -> None:
    tensors = tensors_of(NEMOTRON)
    denoiser = load(NEMOTRON)
    whole = load(NEMOTRON, block_length=28)
    assert (denoiser.mask_token_id, denoiser.attention.block_length) == (100, 8)
    for row, ids in enumerate(tensors["causal.input_ids"]):  # [28]
        assert_close(nemotron_logits(denoiser, ids, 28), tensors["causal.output"][row])
        assert_close(nemotron_logits(whole, ids, 0), tensors["bidirectional.output"][row])
        n_prompt = int(tensors["blocks.prompt_lengths"][row])
        prompt, final, noisy = ids[:n_prompt], tensors["blocks.final"][row], tensors["blocks.noisy"][row]
        for block in range(3):
            finished = torch.cat([prompt, final[: 8 * block]])
            canvas = torch.cat([finished, noisy[8 * block : 8 * block + 8]])
            assert_close(nemotron_logits(denoiser, canvas, n_prompt)[-8:], tensors["blocks.output"][row, block])
            found = nemotron_logits(denoiser, finished, len(finished))[-1]
            assert_close(found, tensors["blocks.next_token_logits"][row, block])


def test_steerling_is_its_own_code() -> None:
    """Logits, and greedy answers after prompts of whole blocks; a fifth of the projections is clipped."""
    tensors, facts, denoiser = tensors_of("steerling"), facts_of("steerling"), load("steerling", mask_token_id=159)
    for number in range(len(facts["logits"])):
        ids = tensors[f"canvas.{number}"]
        assert_close(denoiser.logits(ids[None], None, torch.arange(len(ids))), tensors[f"logits.{number}"])
    for number, setting in enumerate(facts["generate"]):
        n_masks = setting["max_new_tokens"]
        options = DecodingOptions(
            n_masks=n_masks,
            steps_per_block=setting["steps"] // (n_masks // 16),
            cfg_scale=setting["cfg_scale"],
            suppress_eos=True,
            early_exit=False,
        )
        prompt, expected = (tensors[f"generate.{number}.{name}"].tolist() for name in ("prompt", "tokens"))
        (found,) = decode(denoiser, [prompt], options, stop_ids=[158], return_completions=True)
        assert (found.token_ids, found.cost.steps) == (expected, setting["passes"])


def test_steerlings_tokenizer_is_tiktokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small vocabulary in the place of cl100k_base, which has ids without a token, too."""
    ranks = {bytes([n]): n for n in range(256)} | {b"he": 256, b"ll": 257, b"hell": 258, b" o": 259}
    pattern = r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]+|\s+(?!\S)|\s+"
    encoding = tiktoken.Encoding(
        "cl100k_base", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 261}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", {"cl100k_base": encoding}.__getitem__)
    ids = {"pad_token_id": 263, "bos_token_id": 264, "endofchunk_token_id": 265, "mask_token_id": 266, "eot_id": 267}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(ids | {"chat_template": "{{ messages }}"}))
    config = load_config(str(GOLDEN / "steerling"))
    config.vocab_size = 268
    tokenizer = load_tokenizer(str(tmp_path), config=config)
    for text in ("hello other, hell!\n\n  1234567 Größe\r\n", " o"):
        assert tokenizer.encode(text) == encoding.encode(text, disallowed_special=())
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("he<|eot_id|>ll<|endoftext|>") == [256, 267, 257, 261]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.eos_token_id) == (263, 266, 261)
    assert (end_of_turn_ids(tokenizer), tokenizer.chat_template) == (frozenset({267}), "{{ messages }}")


@pytest.mark.parametrize("block_length", [8, 16])
def test_logits_of_llada22(block_length: int) -> None:
    tensors, denoiser = tensors_of("llada22"), load("llada22", mask_token_id=159, block_length=block_length)
    ids, expected = tensors["logits.input_ids"], tensors[f"logits.block{block_length}.output"]  # [3, 32], [3, 32, V]
    assert_close(denoiser.logits(ids, None, torch.arange(ids.numel())), expected.flatten(0, 1))
    lengths = [16, 32, 16]
    for side in ("left", "right"):
        found = denoiser.logits(*padded([row[:n] for row, n in zip(ids, lengths, strict=True)], side))
        assert_close(found, torch.cat([row[:n] for row, n in zip(expected, lengths, strict=True)]))


def test_what_llada22_is(tmp_path: Path) -> None:
    denoiser = load("llada22", mask_token_id=159)
    config = denoiser.model.config
    assert (family_of(config).draws, denoiser.attention.block_length, config.expert_capacity) == (True, 8, 6)
    with pytest.raises(OptionError, match="block_length must be a multiple of 8"):
        load("llada22", mask_token_id=159, block_length=12)
    denoiser.model.save_pretrained(tmp_path)
    saved, ids = load(tmp_path, mask_token_id=159), torch.arange(16)[None]
    torch.testing.assert_close(
        saved.logits(ids, None, torch.arange(16)), denoiser.logits(ids, None, torch.arange(16)), atol=0, rtol=0
    )


def test_llada22_without_edit_ids_has_those_of_its_release(tmp_path: Path) -> None:
    settings = json.loads((GOLDEN / "llada22" / "config.json").read_text())
    del settings["delete_token_id"], settings["split_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = load_config(str(tmp_path))
    assert (config.delete_token_id, config.split_token_id) == (156930, 156931)


TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": 0}
# Keys of the published config.json, beside sizes, are in tests/data; DreamReasoner's as far as ports of it name them.
BACKBONES = {
    "stable-diffcoder": (LlamaForCausalLM, LlamaConfig, 4, {"mask_token_id": 5}, "no masked diff"),
    "dream-reasoner": (Qwen3ForCausalLM, Qwen3Config, 8, {"model_type": "qwen3"}, "block_size=8"),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_block_diffusion_on_a_known_backbone(name: str, tmp_path: Path) -> None:
    """With `is_causal` and `block_length` in its config.json, and without a cache as their samplers are described."""
    model_class, config_class, length, said, refusal = BACKBONES[name]
    published = data("cases.json")["configs of backbones"][name]
    torch.manual_seed(0)
    sizes = {**TINY, "initializer_range": 0.4, "rope_theta": published["rope_theta"], "rms_norm_eps": 1e-6}
    model: PreTrainedModel = model_class(config_class(**sizes, head_dim=8)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **published}))
    with pytest.raises(OptionError, match=refusal):
        load_denoiser(str(tmp_path), mask_token_id=5)
    edited = {**TINY, **published, "is_causal": False, "block_length": length, **said}
    (tmp_path / "config.json").write_text(json.dumps(edited))
    denoiser = load_denoiser(str(tmp_path))

    def logits(ids: torch.Tensor) -> torch.Tensor:
        """[T, V] of a row [T]: tokens see their own block and those before."""
        block = torch.arange(len(ids)) // length
        hidden = block[None] > block[:, None]
        added = torch.zeros(len(ids), len(ids)).masked_fill(hidden, torch.finfo(torch.float32).min)
        with torch.no_grad():
            return model(ids[None], attention_mask=added[None, None]).logits[0]

    ids = torch.randint(6, 64, (27,))
    assert_close(denoiser.logits(ids[None], None, torch.arange(27)), logits(ids))
    n_prompt, threshold = 6, 0.4
    canvas = torch.cat([ids[:n_prompt], torch.full((26,), 5)])
    for start in range(0, 32, length):
        block = torch.arange(start, start + length)
        while (masks := block[canvas[block] == 5]).numel():
            probabilities = logits(canvas[: start + length]).index_fill(1, torch.tensor(5), -torch.inf).softmax(-1)
            confidence, tokens = probabilities[masks].max(-1)
            chosen = confidence > threshold
            chosen[confidence.argmax()] = True
            canvas[masks[chosen]] = tokens[chosen]
    options = DecodingOptions(n_masks=26, confidence_threshold=threshold, steps_per_block=length)
    (found,) = decode(denoiser, [ids[:n_prompt].tolist()], options)
    assert found == canvas[n_prompt:].tolist()


def scores(denoiser: Denoiser, requests: list[LikelihoodRequest], **options: Any) -> list[tuple[float, bool]]:
    found = score(denoiser, requests, LikelihoodOptions(**options), batch_size=3, max_length=512)
    return [(one.total, one.is_greedy) for one in found]


def test_likelihood_by_confidence_order_is_that_of_the_reference() -> None:
    tensors, denoiser = tensors_of("illada"), load("illada")
    settings = [one for one in facts_of("illada")["likelihood"] if one["likelihood"] == "confidence"]
    assert len(settings) == 24
    for setting in settings:
        context, continuation = (tensors[f"pair.{setting['pair']}.{part}"] for part in ("context", "continuation"))
        request = LikelihoodRequest(context.tolist(), continuation.tolist())
        options = {name: setting[name] for name in ("likelihood", "eos_after", "cfg_scale")}
        ((log_likelihood, greedy),) = scores(denoiser, [request], **options)
        assert log_likelihood == pytest.approx(setting["loglikelihood"], abs=2e-4), setting
        assert greedy == setting["is_greedy"]


def test_monte_carlo_canvases_end_with_the_token_behind_them() -> None:
    """The reference's own corruptions, whose masks are scored with and without an end of text."""
    tensors, denoiser = tensors_of("illada"), load("illada")
    for setting in facts_of("illada")["likelihood"]:
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
            (part,) = score(
                denoiser, [request], options, batch_size=1, max_length=64, corruptions_of=lambda *_, c=corruption: c
            )
            total += part.total
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


@pytest.mark.parametrize(("folder", "options", "sentence"), refused("likelihood"))
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
