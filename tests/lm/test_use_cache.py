"""`--use_cache`: which runs may share a cache, and what a run that was killed finds in it."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from peft import LoraConfig, get_peft_model
from tokenizers import decoders, normalizers
from transformers import LlamaForCausalLM

from mdlm_lm_eval.families import AttentionPattern
from mdlm_lm_eval.jobs.request_cache import SAMPLE_PREFIX
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.provenance import fingerprint
from tests.conftest import choice, data, evaluate, generation, instance_of, rolling, tiny_model, tiny_tokenizer
from tests.lm.test_cli import result_file
from tests.support.commands import run, start


def test_a_cache_answers_only_for_the_same_model_and_options(checkpoint: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "cache.db")
    requests = [generation(str(n), max_gen_toks=2) for n in range(3)]
    lm = MDLM(str(checkpoint), device="cpu", n_masks=2)
    first = CachingLM(lm, path).generate_until(requests)
    same = MDLM(str(checkpoint), device="cpu", n_masks=2)
    assert CachingLM(same, path).generate_until(requests) == first
    assert same.denoiser.forward_passes == 0
    with pytest.raises(OptionError, match=r"decoding n_masks was 2 and is 3.*name a new path"):
        CachingLM(MDLM(str(checkpoint), device="cpu", n_masks=3), path)
    silent = MDLM(str(checkpoint), device="cpu", n_masks=2, early_exit=False, trace=True)
    assert CachingLM(silent, path).generate_until(requests) == first
    with pytest.raises(OptionError, match=r"options \(dtype was 'float32' and is 'bfloat16'\); name a new path"):
        CachingLM(MDLM(str(checkpoint), device="cpu", n_masks=2, dtype="bfloat16"), path)
    for part, changed in {"normalizer": normalizers.Lowercase(), "decoder": decoders.Fuse()}.items():
        other = tiny_tokenizer()
        setattr(other.backend_tokenizer, part, changed)
        with pytest.raises(OptionError, match="vocabulary was"):
            CachingLM(MDLM(str(checkpoint), tokenizer=other, device="cpu", n_masks=2), path)


def test_a_fingerprint_tells_what_parameters_do_not(tmp_path: Path) -> None:
    def adapted(**settings: Any) -> LlamaForCausalLM:
        return get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **settings))

    frequencies = tmp_path / "frequencies"
    frequencies.touch()
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), token_frequencies=str(frequencies))
    seen = [fingerprint(lm, lm.record_of_all)]

    def changed() -> set[str]:
        before, now = seen[-1], fingerprint(lm, lm.record_of_all)
        seen.append(now)
        return {name for name in now if now[name] != before[name]}

    frequencies.write_text("others")
    assert changed() == {"token frequencies"}
    lm.model.model.register_buffer("computed", torch.ones(3), persistent=False)
    assert changed() == set()
    lm.model.model.register_buffer("packed", torch.ones(3))
    assert changed() == {"weights"}
    lm.model.model.packed += 1
    assert changed() == {"weights"}
    lm.model.config.name_or_path = "another/folder"
    assert changed() == set()
    lm.model.config.rope_parameters["rope_theta"] = 1.0
    assert changed() == {"config"}
    lm.denoiser.attention = AttentionPattern(8)
    assert changed() == {"attention"}
    lm.eos_ids, lm.end_of_turn_ids = frozenset({5}), frozenset({6})
    assert changed() == {"eos_ids", "end_of_turn_ids"}
    lm._model = adapted(lora_alpha=8)
    changed()
    lm._model = adapted(lora_alpha=16)
    assert "adapter" in changed()


def test_a_cache_knows_whether_a_tasks_sampling_counted(checkpoint: Path, tmp_path: Path) -> None:
    requests = [generation("same", max_gen_toks=4, temperature=5.0)]
    CachingLM(MDLM(str(checkpoint), device="cpu"), str(tmp_path / "of_task.db")).generate_until(requests)
    with pytest.raises(OptionError, match=r"set sampling options was \[\] and is \['temperature'\]"):
        CachingLM(MDLM(str(checkpoint), device="cpu", temperature=0.0), str(tmp_path / "of_task.db"))


def test_a_cache_is_left_with_the_evaluation_that_it_was_for(checkpoint: Path, tmp_path: Path) -> None:
    requests = [generation("same", max_gen_toks=8, temperature=3.0, do_sample=True)]
    lm = MDLM(str(checkpoint), device="cpu")
    CachingLM(lm, str(tmp_path / "cache.db")).generate_until(requests)
    lm.get_model_info()
    lm.denoiser.forward_passes = 0
    lm.generate_until(requests)
    assert lm.denoiser.forward_passes > 0
    assert lm.get_model_info()["mdlm"]["tasks"]["task"]["requests"] == 1


@pytest.mark.parametrize(("settings", "asked", "is_drawn"), data("cases.json")["drawn answers"])
def test_repetitions_keep_answers_of_their_own(
    checkpoint: Path, tmp_path: Path, settings: dict[str, Any], asked: dict[str, Any], is_drawn: bool
) -> None:
    path = str(tmp_path / "cache.db")
    requests = [generation("same", max_gen_toks=8, **asked)] * 4 + [generation("other", max_gen_toks=8, **asked)]
    first = CachingLM(MDLM(str(checkpoint), device="cpu", **settings), path).generate_until(requests)
    assert (len(set(first[:4])) > 1) == is_drawn
    resumed = MDLM(str(checkpoint), device="cpu", **settings)
    assert CachingLM(resumed, path).generate_until(requests) == first
    assert resumed.denoiser.forward_passes == 0
    assert resumed.get_model_info()["mdlm"]["tasks"]["task"]["requests"] == 5


@pytest.mark.parametrize(("kind", "settings", "first", "second"), data("cases.json")["pairs of tasks"])
def test_an_answer_does_not_depend_on_the_tasks_beside_it(
    checkpoint: Path, tmp_path: Path, kind: str, settings: dict[str, Any], first: list[Any], second: list[Any]
) -> None:
    """Tasks alone, together, in other orders, divided between processes, and from a cache."""
    lm = MDLM(str(checkpoint), **{"dtype": "float64", "device": "cpu", "mc_num": 4, **settings})
    ones, others = requests_of_task(kind, "one", first), requests_of_task(kind, "other", second)

    def answers(requests: list[Instance], cache: str = "") -> dict[int, Any]:
        lm.start_record()
        found = getattr(CachingLM(lm, str(tmp_path / cache)) if cache else lm, kind)(requests)
        values = ((one[0] if isinstance(one, tuple) else one) for one in found)
        return {id(request): value for request, value in zip(requests, values, strict=True)}

    alone = answers(ones) | answers(others)
    runs = [answers(ones + others), answers(others + ones)]
    if kind != "generate_until":  # where equal requests of one document are repetitions, in their order
        runs += [answers([*others[::-1], *ones]), *(answers((ones + others)[rank::2]) for rank in range(2))]
    runs += [answers(*each) for each in ((others, "a"), (ones + others, "a"), (others + ones, "b"), (ones, "b"))]
    for found in runs:
        expected = {each: alone[each] for each in found}
        assert found == (expected if kind == "generate_until" else pytest.approx(expected, abs=1e-9))


def requests_of_task(kind: str, task: str, rows: list[Any]) -> list[Instance]:
    gen_kwargs = [{"max_gen_toks": 8}] if kind == "generate_until" else []
    return [instance_of(kind, (*texts, *gen_kwargs), task, doc) for doc, *texts in rows]


@pytest.mark.parametrize("request_type", ["generate_until", "loglikelihood", "loglikelihood_rolling"])
def test_what_finished_before_an_interruption_is_not_computed_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_type: str
) -> None:
    requests = {
        "generate_until": [generation(f"{n} prompt", doc=n, max_gen_toks=2) for n in range(12)],
        "loglikelihood": [choice(f"{n} context", " continuation") for n in range(12)],
        "loglikelihood_rolling": [rolling(f"{n} text to score") for n in range(12)],
    }[request_type]
    settings: dict[str, Any] = {"device": "cpu", "batch_size": 2, "mc_num": 12}
    undisturbed = MDLM(str(checkpoint), **settings)
    expected = getattr(CachingLM(undisturbed, str(tmp_path / "other.db")), request_type)(requests)
    lm = MDLM(str(checkpoint), **settings)
    logits = lm.denoiser.logits

    def until_interrupted(*arguments: Any, **options: Any) -> Any:
        if lm.denoiser.forward_passes > undisturbed.denoiser.forward_passes // 2:
            raise KeyboardInterrupt
        return logits(*arguments, **options)

    monkeypatch.setattr(lm.denoiser, "logits", until_interrupted)
    path = str(tmp_path / "cache.db")
    with pytest.raises(KeyboardInterrupt):
        getattr(CachingLM(lm, path), request_type)(requests)
    resumed = MDLM(str(checkpoint), **settings)
    cached = CachingLM(resumed, path)
    assert getattr(cached, request_type)(requests) == expected
    assert 0 < resumed.denoiser.forward_passes < undisturbed.denoiser.forward_passes
    (record, whole) = (next(iter(each.get_model_info()["mdlm"]["tasks"].values())) for each in (resumed, undisturbed))
    assert [record[name] for name in ("requests", "masks")] == [whole[name] for name in ("requests", "masks")]


REPEATS, DOCUMENTS, N_MASKS = 2, 5, 32


def test_a_killed_run_resumes_to_the_results_of_an_undisturbed_one(
    checkpoint: Path, task_folder: Path, tmp_path: Path
) -> None:
    """The temperature comes from --model_args alone, so that lm-eval takes the requests for deterministic ones.

    Of a task whose requests, two samples a document, take long enough to be killed among.
    """
    config = {"include": str(task_folder / "tiny_generate.yaml"), "task": "tiny_many", "repeats": REPEATS}
    config |= {"generation_kwargs": {"until": [], "max_gen_toks": N_MASKS}}
    (tasks := tmp_path / "tasks").mkdir()
    (tasks / "tiny_many.yaml").write_text(yaml.safe_dump(config))
    model_args = {"pretrained": str(checkpoint), "n_masks": N_MASKS, "temperature": 1.0, "early_exit": False}
    settings: dict[str, Any] = {"model_args": model_args, "device": "cpu", "batch_size": 1}
    undisturbed = evaluate("mdlm", ["tiny_many"], tasks, **settings)
    expected = {sample["doc_id"]: sample["resps"] for sample in undisturbed["samples"]["tiny_many"]}

    command = [
        *("lm_eval", "--model", "mdlm", "--device", "cpu", "--batch_size", "1"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in model_args.items())),
        *("--include_path", str(tasks), "--tasks", "tiny_many", "--log_samples"),
        *("--use_cache", str(tmp_path / "cache"), "--output_path", str(tmp_path / "out")),
    ]
    database = tmp_path / "cache_rank0.db"
    process = start(*command, log=tmp_path / "log")
    while process.is_alive() and finished_samples(database) < 3:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert process.exitcode == -9
    finished = finished_samples(database)
    assert 3 <= finished < REPEATS * DOCUMENTS

    run(*command)
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert {row["doc_id"]: row["resps"] for row in rows} == expected
    assert all(len(set(row["resps"][0])) == REPEATS for row in rows)
    told = result_file(tmp_path / "out")["config"]["mdlm"]
    assert (undisturbed["config"]["mdlm"]["kept_answers"], told["kept_answers"]) == (0, finished)
    record, expected_record = (mdlm["tasks"]["tiny_many"] for mdlm in (told, undisturbed["config"]["mdlm"]))
    # The record goes on where the cache's ends: a request that was computed twice would be counted twice.
    for each in (record, expected_record):
        assert each["cost"].pop("seconds") > 0
        assert each["cost"].pop("peak_memory_bytes") > 0
    assert record == expected_record
    assert record["cost"]["forward_passes"] == told["forward_passes"] == REPEATS * DOCUMENTS * N_MASKS


def finished_samples(database: Path) -> int:
    """Answers on disk, as another process sees them."""
    if not database.exists():
        return 0
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        try:
            query = "SELECT count(*) FROM unnamed WHERE key LIKE ?"
            return int(connection.execute(query, (SAMPLE_PREFIX + "%",)).fetchone()[0])
        except sqlite3.OperationalError:  # no table yet, or being written
            return 0
