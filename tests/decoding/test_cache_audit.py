"""Costs of answers in results, and `cache_audit`: which requests are decoded exactly too, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import evaluate, generation, small_memory, tiny_model, tiny_tokenizer

DUAL: dict[str, Any] = {"cache": "dual", "block_length": 4, "device": "cpu"}


def audit(cache_audit: float, requests: list[Any], **more: Any) -> dict[str, Any]:
    """Task -> the audited documents."""
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), cache_audit=cache_audit, **DUAL | more)
    lm.generate_until(requests, disable_tqdm=True)
    tasks = lm.get_model_info()["mdlm"]["tasks"]
    return {
        name: [one["doc_id"] for one in facts.get("audit", {"exact_answers": []})["exact_answers"]]
        for name, facts in tasks.items()
    }


def test_the_audited_requests_do_not_depend_on_order_or_batches() -> None:
    requests = [generation(f"text {n}", doc=n, max_gen_toks=4) for n in range(40)]
    chosen = audit(0.3, requests, batch_size=8)
    assert 4 < len(chosen["task"]) < 24
    assert audit(0.3, requests[::-1], batch_size=3) == chosen
    assert audit(1.0, requests[:5]) == {"task": list(range(5))}


def test_a_number_is_of_each_task() -> None:
    requests = [generation(f"{task} {n}", task=task, doc=n, max_gen_toks=4) for task in "ab" for n in range(5)]
    chosen = audit(3, [*requests, generation("c", task="c", doc=0, max_gen_toks=4)])
    assert {task: len(documents) for task, documents in chosen.items()} == {"a": 3, "b": 3, "c": 1}


def test_block_causal_models_record_their_blocks() -> None:
    model = tiny_model()
    model.config.diffusion_family, model.config.block_length = "sdar", 4
    lm = MDLM(model, tokenizer=tiny_tokenizer(), steps_per_block=None)
    lm.generate_until([generation("6 text", max_gen_toks=6)], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert (facts["block_length"], facts["masks_in_block"]) == ([4, 4], [2, 2])
    assert (facts["masks"], facts["asked_masks"]) == ([6, 6], [6, 6])
    lm.generate_until([generation("odd text", max_gen_toks=7)], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert (facts["masks"], facts["asked_masks"]) == ([8, 8], [7, 7])


def test_an_audit_that_runs_out_of_memory_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), cache_audit=1.0, batch_size="auto", **DUAL)
    small_memory(lm, 2, monkeypatch)
    lm.generate_until([generation(f"text {n}", max_gen_toks=4) for n in range(6)], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert (facts["requests"], facts["audit"]["requests"], lm.batches.size) == (6, 6, 2)


def test_sampled_requests_are_not_audited() -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), cache_audit=1, temperature=1.0, **DUAL)
    with pytest.raises(OptionError, match="cache_audit=1 does not work with temperature=1"):
        lm.generate_until([generation("a", max_gen_toks=8)], disable_tqdm=True)
    assert lm.denoiser.forward_passes == 0


def test_an_audited_run_says_what_its_cache_does_to_the_answers(checkpoint: Path, task_folder: Path) -> None:
    settings = {"device": "cpu", "batch_size": 2, "gen_kwargs": {"until": [], "max_gen_toks": 16}}

    def run(**options: Any) -> Any:
        model = {"pretrained": str(checkpoint), "n_masks": 16, "block_length": 8} | options
        results = evaluate("mdlm", ["tiny_generate"], task_folder, model_args=model, **settings)
        answers = {sample["doc_id"]: sample["resps"][0][0] for sample in results["samples"]["tiny_generate"]}
        return results["config"]["mdlm"]["tasks"]["tiny_generate"], answers

    exact, expected = run(cache="none")
    cached, given = run(cache="dual", cache_audit=1)
    audit = cached["audit"]
    assert audit["requests"] == 5
    assert audit["exact_cost"]["layer_tokens"] == exact["cost"]["layer_tokens"] > cached["cost"]["layer_tokens"]
    assert cached["cost"]["forward_passes"] == exact["cost"]["forward_passes"] == 5 * 16
    assert cached["cost"]["tokens_per_forward"] <= cached["cost"]["written_tokens_per_forward"] == 1.0
    differing = {doc: text for doc, text in expected.items() if text != given[doc]}
    assert differing
    assert {one["doc_id"]: one["exact"] for one in audit["exact_answers"] if "exact" in one} == differing
    assert audit["same_strings"] == 5 - len(differing)
    assert 0 <= audit["first_differing_token"]["smallest"] <= audit["first_differing_token"]["median"] < 16
