"""Costs of answers in results, and `cache_audit`: which requests are decoded exactly too, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from mdlm_leaderboard.audit import AuditScore, as_text, audit_scores
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.audit import Answer, AuditedRequest, audited_request, chosen_for_audit
from mdlm_lm_eval.results.cost import TaskCost
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.privacy import published
from mdlm_lm_eval.results.record import RunRecord, merged
from mdlm_lm_eval.results.statistics import paired_bootstrap
from tests.conftest import tiny_model, tiny_tokenizer
from tests.test_lm import generation

REQUESTS = [("a", seed) for seed in range(300)] + [("b", seed) for seed in range(300, 310)]


def test_the_audited_requests_are_told_by_their_seeds() -> None:
    chosen = chosen_for_audit(REQUESTS, 0.1, already={}, part=(0, 1))
    backwards = chosen_for_audit(REQUESTS[::-1], 0.1, already={}, part=(0, 1))
    assert {REQUESTS[n] for n in chosen} == {REQUESTS[::-1][n] for n in backwards}
    assert 15 < len(chosen) < 50
    assert len(chosen_for_audit(REQUESTS, 1.0, already={}, part=(0, 1))) == len(REQUESTS)


def test_a_number_is_of_each_task_over_all_processes_and_runs() -> None:
    def tasks(**settings: Any) -> list[str]:
        return sorted(REQUESTS[n][0] for n in chosen_for_audit(REQUESTS, 12.0, **settings))

    assert tasks(already={}, part=(0, 1)) == ["a"] * 12 + ["b"] * 10
    assert tasks(already={"a": 9, "b": 12}, part=(0, 1)) == ["a"] * 3
    parts = [len(tasks(already={"b": 99}, part=(process, 5))) for process in range(5)]
    assert parts == [3, 3, 2, 2, 2]


@pytest.mark.parametrize(
    ("cached", "exact", "first_difference"),
    [
        (("same", [1, 2, 3]), ("same", [1, 2, 9]), None),
        (("one", [1, 2, 3]), ("two", [1, 5, 3]), 1),
        (("on", [1, 2]), ("one", [1, 2, 3]), 2),
    ],
)
def test_the_first_difference(cached: Any, exact: Any, first_difference: int | None) -> None:
    found = audited_request(3, Answer(*cached), Answer(*exact))
    assert found == AuditedRequest(3, None if first_difference is None else exact[0], first_difference)


def test_costs_of_processes_are_added_and_seconds_are_not() -> None:
    records = [RunRecord(), RunRecord()]
    for n, record in enumerate(records, start=1):
        cost = record.task("t").cost
        for _ in range(2):
            cost.add(forward_passes=10, answer_tokens=20 * n, written_tokens=40, seconds=n, peak_memory_bytes=100 * n)
        record.task("t").audit.requests.append(AuditedRequest(n, None if n == 1 else "exact", None if n == 1 else 4))
    facts = merged(records)["t"]
    assert facts["cost"] == {
        "forward_passes": 40,
        "answer_tokens": 120,
        "written_tokens": 160,
        "seconds": 4,
        "peak_memory_bytes": 200,
        "tokens_per_forward": 3.0,
        "written_tokens_per_forward": 4.0,
    }
    assert facts["audit"] == {
        "requests": 2,
        "same_strings": 1,
        "first_differing_token": {"smallest": 4, "median": 4},
        "exact_cost": TaskCost().as_dict(),
        "exact_answers": [{"doc_id": 1}, {"doc_id": 2, "exact": "exact"}],
    }


def test_a_models_words_are_published_as_they_are() -> None:
    answers = {"exact_answers": [{"doc_id": 1, "exact": "/home/me/x"}]}
    assert published(answers) == answers


def test_block_causal_models_record_their_blocks() -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), device="cpu")
    lm.denoiser.attention = AttentionPattern(4, "row_start")
    lm.generate_until([generation("6 text", max_gen_toks=6)], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert (facts["block_length"], facts["masks_in_block"]) == ([4, 4], [2, 2])


def test_an_audit_that_runs_out_of_memory_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"cache": "dual", "block_length": 4, "cache_audit": 1.0, "batch_size": "auto"}
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), device="cpu", **settings)
    decode = lm._decode

    def small_memory(batch: Any, advance: Any) -> Any:
        if len(batch) > 2 and batch[0].settings.options.cache == "none":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return decode(batch, advance)

    monkeypatch.setattr(lm, "_decode", small_memory)
    lm.generate_until([generation(f"text {n}", max_gen_toks=4) for n in range(6)], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert (facts["requests"], facts["audit"]["requests"]) == (6, 6)


def test_sampled_requests_are_not_audited() -> None:
    lm = MDLM(
        tiny_model(),
        tokenizer=tiny_tokenizer(),
        device="cpu",
        cache="dual",
        block_length=4,
        cache_audit=1,
        temperature=1.0,
    )
    with pytest.raises(OptionError, match="cache_audit=1 does not work with temperature=1"):
        lm.generate_until([generation("a", max_gen_toks=8)], disable_tqdm=True)
    assert lm.denoiser.forward_passes == 0


def test_an_audited_run_says_what_its_cache_does_to_the_score(
    checkpoint: Path, task_folder: Path, tmp_path: Path
) -> None:
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)

    def run(**options: Any) -> Any:
        tracker = EvaluationTracker(output_path=str(tmp_path / str(options.get("cache"))))
        model_args = {"pretrained": str(checkpoint), "n_masks": 16, "max_gen_toks": 16, "block_length": 8} | options
        results = lm_eval.simple_evaluate(
            model="mdlm",
            model_args=model_args,
            tasks=["tiny_generate"],
            gen_kwargs={"until": [], "max_gen_toks": 16},
            task_manager=manager,
            device="cpu",
            batch_size=2,
            bootstrap_iters=0,
            evaluation_tracker=tracker,
        )
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        tracker.save_results_samples(task_name="tiny_generate", samples=samples["tiny_generate"])
        return results["config"]["mdlm"]["tasks"]["tiny_generate"], samples["tiny_generate"]

    exact, exact_samples = run(cache="none")
    cached, samples = run(cache="dual", cache_audit=1)
    audit = cached["audit"]
    assert audit["requests"] == 5
    assert audit["exact_cost"]["layer_tokens"] == exact["cost"]["layer_tokens"] > cached["cost"]["layer_tokens"]
    assert cached["cost"]["forward_passes"] == exact["cost"]["forward_passes"] == 5 * 16
    assert cached["cost"]["tokens_per_forward"] <= cached["cost"]["written_tokens_per_forward"] == 1.0
    expected = {sample["doc_id"]: sample["resps"][0][0] for sample in exact_samples}
    given = {sample["doc_id"]: sample["resps"][0][0] for sample in samples}
    differing = {doc: text for doc, text in expected.items() if text != given[doc]}
    assert differing
    assert {one["doc_id"]: one["exact"] for one in audit["exact_answers"] if "exact" in one} == differing
    assert audit["same_strings"] == 5 - len(differing)

    # An exact answer that is right, so that the two scores differ.
    (path,) = (tmp_path / "dual").rglob("results_*.json")
    content = json.loads(path.read_text())
    one = next(
        one for one in content["config"]["mdlm"]["tasks"]["tiny_generate"]["audit"]["exact_answers"] if "exact" in one
    )
    one["exact"] = str(one["doc_id"] % 2)
    path.write_text(json.dumps(content))
    scores = audit_scores(path, lambda name, metadata: manager.load([name])["tasks"][name])
    difference = paired_bootstrap({"tiny_generate": [(1.0, 0.0)] + [(0.0, 0.0)] * 4})
    same = audit["same_strings"]
    assert scores == [AuditScore("tiny_generate", "exact_match,none", 5, same, 0.0, 0.2, difference)]
    line = f"| tiny_generate | exact_match | {5 - len(differing)} of 5 | 0.0 | 20.0 | -20.0 | -60.0 to 0.0 |"
    assert as_text(scores).endswith(line)
    (exact_path,) = (tmp_path / "none").rglob("results_*.json")
    with pytest.raises(UnusableFile, match="holds no audit"):
        audit_scores(exact_path, lambda name, metadata: None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=f"'{tmp_path}' cannot be read: Is a directory"):
        audit_scores(tmp_path, lambda name, metadata: None)
