"""lm-eval's own task YAMLs, as they are, on small local data of the same schema and a tiny random model."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from mdlm_lm_eval.lm import MDLM
from tests.conftest import LM_EVAL_05, data, evaluate

FOLDER = Path(lm_eval.tasks.__file__).parent
Evaluate = Callable[..., dict[str, Any]]
TASKS = data("benchmarks.json")  # task -> where lm-eval has its YAML, and a few documents of its schema


@pytest.fixture(scope="module")
def lm(long_checkpoint: Path) -> MDLM:
    return MDLM(str(long_checkpoint), device="cpu", batch_size=5, mc_num=8)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """`run(lm, task, **arguments)`: lm-eval's result for its YAML, included whole, with other data."""

    def evaluate_task(lm: MDLM, name: str, **arguments: Any) -> dict[str, Any]:
        data, config = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.yaml"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in TASKS[name]["docs"]))
        splits = dict.fromkeys(("train", "validation", "test", "dev"), str(data))
        dataset = {"data_files": splits, "cache_dir": str(tmp_path / "cache")}
        local = {"include": str(FOLDER / TASKS[name]["yaml"]), "dataset_path": "json", "dataset_kwargs": dataset}
        config.write_text(yaml.safe_dump(local))
        return evaluate(lm, [str(config)], tmp_path / "none", **arguments)

    return evaluate_task


def script(lm: MDLM, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Makes the model certain of `text`, and then of exclamation marks, on every canvas of 64 masks."""
    spoken = torch.tensor(lm.tokenizer.encode(text.ljust(64, "!"), add_special_tokens=False))

    def logits(input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor, **_: Any) -> Tensor:
        lm.denoiser.forward_passes += 1
        rows, columns = positions // input_ids.shape[1], positions % input_ids.shape[1]  # [N] each
        lengths = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).sum(1)  # [B]
        slots = columns - (lengths[rows] - 64)
        return 20.0 * torch.nn.functional.one_hot(spoken[slots], lm.denoiser.vocab_size).float()  # [N, V]

    monkeypatch.setattr(lm.denoiser, "logits", logits)


def answers(results: dict[str, Any], name: str) -> dict[tuple[int, str], Any]:
    """(document, filter) -> filtered responses; lm-eval 0.5 has a list of them for each request."""
    return {
        (sample["doc_id"], sample["filter"]): sample["filtered_resps"][0] if LM_EVAL_05 else sample["filtered_resps"]
        for sample in results["samples"][name]
    }


def log_likelihoods(results: dict[str, Any], name: str) -> list[float]:
    return [float(ll) for sample in results["samples"][name] for [(ll, _)] in sample["resps"]]


def test_mmlu_log_likelihoods_are_the_bound_computed_by_hand(lm: MDLM, run: Evaluate) -> None:
    """Two tokens, a space and a letter: half of each token's share with one mask, half of it with both."""
    results = run(lm, "mmlu_anatomy", num_fewshot=1)
    sample = results["samples"]["mmlu_anatomy"][0]
    context, continuation = sample["arguments"][2]
    assert continuation == " C"
    ids = lm.tokenizer.encode(context + continuation, add_special_tokens=False)

    def log_probs(*masked: int) -> list[float]:
        canvas = torch.tensor([ids])
        canvas[0, list(masked)] = lm.mask_token_id
        with torch.no_grad():
            logits = lm.model(input_ids=canvas, attention_mask=torch.ones_like(canvas)).logits[0]
        return [float(logits[at].log_softmax(-1)[ids[at]]) for at in masked]

    by_hand = (sum(log_probs(-2)) + sum(log_probs(-1)) + sum(log_probs(-2, -1))) / 2
    assert log_likelihoods({"samples": {"": [sample]}}, "")[2] == pytest.approx(by_hand, abs=1e-4)


def test_wikitext_perplexity_sums_windows_of_a_page_longer_than_the_context(checkpoint: Path, run: Evaluate) -> None:
    windowed = {size: MDLM(str(checkpoint), device="cpu", batch_size=size, max_length=128, mc_num=8) for size in (1, 5)}
    alone, packed = (run(windowed[size], "wikitext") for size in (1, 5))
    totals, others = (
        [float(np.ravel(sample["resps"][0][0])[0]) for sample in results["samples"]["wikitext"]]  # pairs in lm-eval 0.5
        for results in (alone, packed)
    )
    assert others == pytest.approx(totals, abs=1e-3)
    n_bytes = sum(len(doc["page"].encode()) for doc in TASKS["wikitext"]["docs"])
    scores = alone["results"]["wikitext"]
    assert scores["bits_per_byte,none"] == pytest.approx(-sum(totals) / n_bytes / math.log(2))
    assert scores["byte_perplexity,none"] == pytest.approx(2 ** scores["bits_per_byte,none"])
    assert scores["word_perplexity,none"] > scores["byte_perplexity,none"] > 1
    record = windowed[1].get_model_info()["mdlm"]["tasks"]["wikitext"]
    assert record["truncated_prompts"] == 0


def test_gsm8k_ends_at_its_stop_string_and_both_filters_read_the_answer(
    lm: MDLM, run: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(lm, monkeypatch, " 20+22=42\n#### 42\nQuestion: 7 or 8?")
    passes = lm.denoiser.forward_passes
    results = run(lm, "gsm8k", num_fewshot=1, gen_kwargs={"max_gen_toks": 64, "block_length": 8})
    assert [sample["resps"] for sample in results["samples"]["gsm8k"]] == [[[" 20+22=42\n#### 42\n"]]] * 6
    filtered = answers(results, "gsm8k")
    assert filtered == {(doc, name): ["42"] for doc in range(3) for name in ("strict-match", "flexible-extract")}
    scores = results["results"]["gsm8k"]
    assert scores["exact_match,strict-match"] == scores["exact_match,flexible-extract"] == pytest.approx(1 / 3)
    assert lm.denoiser.forward_passes - passes < 64
