"""Questions that are asked several times (pass@k, means, seeds, packaged tasks, sweeps); lm-eval's benchmarks."""

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import lm_eval.tasks
import numpy as np
import pytest
import sympy
import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.plugin import with_tasks
from mdlm_lm_eval.provenance import in_words
from mdlm_lm_eval.results import load
from mdlm_lm_eval.sweep.__main__ import main as sweep
from mdlm_lm_eval.tasks.repeated.placement import place_query
from mdlm_lm_eval.tasks.repeated.task import pass_at, repeat, summary
from tests.conftest import data, evaluate, generation, stand_in_for_code_eval, tiny_model, tiny_tokenizer
from tests.support.commands import run
from tests.support.local_tasks import Stub, local_task

BENCHMARKS = data("benchmarks.json")  # task -> where lm-eval has its YAML, and a few documents of its schema
FOLDER = Path(lm_eval.tasks.__file__).parent
Evaluate = Callable[..., dict[str, Any]]
AIME = {"Problem": "What is 40 + 2?", "Answer": 42}


def test_pass_at_k_is_the_share_of_choices_with_a_right_answer() -> None:
    for n, right in itertools.product(range(1, 7), range(7)):
        answers = [number < right for number in range(n)]
        for k in range(1, n + 1):
            choices = [any(chosen) for chosen in itertools.combinations(answers, k)]
            assert pass_at(k, n, sum(answers)) == pytest.approx(np.mean(choices))


def test_pass_at_k_is_unbiased_on_answers_of_known_probability() -> None:
    """All 2**5 outcomes of five answers, each with its probability, of questions with three success probabilities."""
    for p in (0.02, 0.5, 0.9):
        for k in (2, 4):
            expected = 0.0
            for outcome in itertools.product((0, 1), repeat=5):
                probability = np.prod([p if right else 1 - p for right in outcome])
                expected += (
                    probability * summary([{"exact_match": right} for right in outcome])[f"exact_match_pass@{k}"]
                )
            assert expected == pytest.approx(1 - (1 - p) ** k)


def local(folder: Path, name: str, docs: list[dict[str, Any]]) -> str:
    """A packaged task with these documents instead of the hub's."""
    source = tasks_path() / f"repeated/mdlm_{name}.yaml"
    return local_task(folder, source, dict.fromkeys(("train", "test"), docs), name=name, dataset_name=None)


def evaluated(lm: LM, manager: TaskManager, loaded: Any, **arguments: Any) -> dict[str, Any]:
    """lm-eval's results of built tasks."""
    manager = with_tasks(manager, loaded)
    return simple_evaluate(lm, tasks=["built"], task_manager=manager, bootstrap_iters=0, **arguments)


@pytest.mark.parametrize(
    ("name", "metric"), [("humaneval", "pass@1"), ("mbpp", "pass_at_1"), ("aime24", "exact_match")]
)
def test_packaged_tasks_have_the_prompts_of_lm_eval_and_both_scores(
    name: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_code_eval(monkeypatch)
    is_code = name != "aime24"
    docs = BENCHMARKS[name]["docs"] if is_code else [AIME, AIME]
    programs = ("def add(a, b):\n    return a + b", "def add(a, b):\n    return 0")
    lm = Stub(*programs) if is_code else Stub("41", "so $\\boxed{42}$", "43", "44")
    manager = TaskManager(include_path=str(tasks_path()), include_defaults=False, metadata={"repeats": 4})
    tasks = [local(tmp_path, name, docs)]
    if is_code:
        with pytest.raises(ValueError, match="marked as unsafe"):
            simple_evaluate(lm, tasks=tasks, task_manager=manager)
    found = simple_evaluate(lm, tasks=tasks, task_manager=manager, confirm_run_unsafe_code=True, bootstrap_iters=0)
    scores = found["results"][f"mdlm_{name}"]
    values = {key.partition(",")[0]: value for key, value in scores.items()}
    wanted = (1 / 2, 1 - 1 / 6) if is_code else (1 / 4, 1 / 2)
    prefix = "" if is_code else "exact_match_"
    assert (values[metric], values[f"{prefix}pass@2"], values[f"{prefix}pass@4"]) == pytest.approx((*wanted, 1.0))
    sample = found["samples"][f"mdlm_{name}"][0]
    assert len(sample["resps"][0]) == len(sample["filtered_resps"][0]) == 4
    assert found["configs"][f"mdlm_{name}"]["repeats"] == 4
    assert lm.asked[0].args[1]["temperature"] > 0
    assert "mdlm_aime" in manager.all_groups


def test_math500_scores_as_lm_eval_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of lm-eval's extra `math`, which compare answers that are not the same text."""
    never = {"parse": lambda text: text, "verify": lambda gold, target: False}
    monkeypatch.setitem(sys.modules, "antlr4", ModuleType("antlr4"))
    monkeypatch.setitem(sys.modules, "math_verify", SimpleNamespace(**never))
    monkeypatch.setitem(sys.modules, "sympy.parsing.latex", SimpleNamespace(parse_latex=sympy.Integer))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.11")
    config = local(tmp_path, "math500", [{"problem": "2 + 2?", "solution": "So $\\boxed{4}$.", "answer": "4"}])
    answers = (f"Final Answer: The final answer is ${n}$. I hope it is correct." for n in (4, 5))
    found = evaluate(Stub(*answers), [config], tmp_path / "none")
    assert found["results"]["mdlm_math500"]["exact_match,none"] == 0.5
    assert found["samples"]["mdlm_math500"][0]["arguments"][0][0].endswith("Problem:\n2 + 2?\n\nSolution:")


def test_repeats_of_lm_eval_itself_are_scored_alike(tmp_path: Path) -> None:
    manager = TaskManager(include_defaults=False)
    loaded = manager.load([local(tmp_path, "aime24", [AIME])])
    loaded["tasks"]["mdlm_aime24"].set_repeats(2)  # as lm-eval 0.5 does for its own --repeats
    found = evaluated(Stub("41", "42"), manager, loaded)
    values = {key.partition(",")[0]: value for key, value in found["results"]["mdlm_aime24"].items()}
    assert (values["exact_match"], values["exact_match_pass@2"]) == (0.5, 1.0)
    assert "exact_match_pass@4" not in values


def test_pass_at_k_is_of_all_questions_or_of_none() -> None:
    """All answers to the first of two sheets are wholly wrong, and those to the second one half right."""
    manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)
    loaded = manager.load(["mdlm_sheet"])
    (task,) = loaded["tasks"].values()
    half = task.eval_docs[1]["answer"][:8]
    repeat(task, 2)
    scores = evaluated(Stub("", "", half, half), manager, loaded, limit=2)["results"]["mdlm_sheet"]
    names = {key.partition(",")[0] for key, value in scores.items() if isinstance(value, float)}
    assert names - {"sample_len"} == {"acc_slots", "exact_match", "exact_match_pass@2"}
    assert (scores["acc_slots,none"], scores["exact_match_pass@2,none"]) == (0.25, 0.0)


def test_a_metric_without_a_mean_is_refused() -> None:
    with pytest.raises(OptionError, match="repeats=2: f1 is not one number per answer"):
        summary([{"f1": (1, 0)}, {"f1": (1, 1)}])


def test_distinct_answers_are_recorded_and_a_threshold_that_decides_nothing_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), confidence_threshold=0.999, temperature=1.0)
    requests = [generation(f"text {doc}", doc=doc, max_gen_toks=8) for doc in (0, 1) for _ in range(3)]
    lm.generate_until(requests, disable_tqdm=True)
    assert "are equal" not in in_words(lm.get_model_info()["mdlm"])["settings"]
    assert "confidence_threshold=0.999 decides nothing" in caplog.text
    caplog.clear()
    lm.use_options({"confidence_threshold": 0.01, "temperature": 0.0})
    lm.generate_until(requests, disable_tqdm=True)
    assert "all answers to a question are equal" in in_words(lm.get_model_info()["mdlm"])["settings"]
    assert "decides nothing" not in caplog.text


def test_a_sweep_repeats_any_task(checkpoint: Path, task_folder: Path, tmp_path: Path) -> None:
    words = ["--model_args", f"pretrained={checkpoint}", "--tasks", "tiny_generate", "--include_path", str(task_folder)]
    words += ["--temperature", "1.0", "--repeats", "1,4", "--log_samples", "--device", "cpu"]
    done = run("mdlm_lm_eval.sweep", *words, "--output_path", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    frame = load(tmp_path / "out", columns="all").set_index(["setting", "metric"])
    settings = [setting for setting, _ in frame.index]
    assert {"repeats=4" in setting for setting in settings} == {True, False}
    assert any("pass@4" in metric for setting, metric in frame.index if "repeats=4" in setting)
    files = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("results_cell.json")]
    commands = [file["config"]["mdlm_sweep"]["command"] for file in files]
    assert sum(" --repeats 4 " in command and command.startswith("mdlm-sweep") for command in commands) == 1


def asked(tmp_path: Path, where: str | None, **arguments: Any) -> tuple[list[str], dict[str, Any]]:
    """The prompts of lm-eval's gsm8k with two examples, and the arguments of its requests."""
    question, *shown = BENCHMARKS["gsm8k"]["docs"]
    source = FOLDER / "gsm8k/gsm8k.yaml"
    manager = TaskManager(include_defaults=False)
    loaded = manager.load([local_task(tmp_path, source, {"train": shown, "test": [question]})])
    if where is not None:
        place_query(loaded["tasks"]["gsm8k"], where)
    lm = Stub("42")
    found = evaluated(lm, manager, loaded, num_fewshot=2, gen_kwargs={"max_gen_toks": 16}, **arguments)
    return [one["arguments"][0][0] for one in found["samples"]["gsm8k"]], lm.asked[0].args[1]


def test_a_question_stands_before_between_and_after_its_examples(tmp_path: Path) -> None:
    plain, _ = asked(tmp_path, None)
    assert asked(tmp_path, "trailing")[0] == plain
    assert "infill" not in asked(tmp_path, "trailing")[1]
    *examples, question = plain[0].split("\n\n")
    slotted = f"{question} <|mask:16|>"
    prefix, arguments = asked(tmp_path, "prefix")
    assert prefix[0].split("\n\n") == [slotted, *examples]
    assert arguments["infill"] is True
    middle, _ = asked(tmp_path, "middle")
    assert middle[0].split("\n\n") == [examples[0], slotted, examples[1]]
    assert [len(prompt) for prompt in middle] == [len(prompt) for prompt in prefix]
    with pytest.raises(OptionError, match="query_position must be one of prefix, middle, trailing, not left"):
        asked(tmp_path, "left")


def test_a_chat_has_the_slot_in_an_answer_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stub, "apply_chat_template", lambda self, turns, **_: json.dumps(turns), raising=False)
    monkeypatch.setattr(Stub, "chat_template", lambda *_: "", raising=False)
    monkeypatch.setattr(Stub, "tokenizer_name", "stub", raising=False)
    prompts, _ = asked(tmp_path, "prefix", apply_chat_template=True)
    turns = json.loads(prompts[0])
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 3
    assert turns[1]["content"] == "<|mask:16|>"


def test_the_suite_in_three_places_and_how_sure_the_model_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, whose tests draw the suite's sets once."""
    words = ["--tasks", "mdlm_rules_country_smallest", "--limit", "4", "--trace", "--device", "cpu"]
    words += ["--query_position", "prefix,trailing", "--output_path", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["mdlm-sweep", *words])
    with pytest.raises(SystemExit, match="0"):
        sweep()
    files = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.rglob("results_cell.json")}
    for name, file in files.items():
        recorded = file["config"]["mdlm"]["tasks"]["mdlm_rules_country_smallest"]
        sure = [float(one["confidence"]) for one in recorded["trace"]]
        assert recorded["average_confidence"] == pytest.approx(np.mean(sure))
        where = file["configs"]["mdlm_rules_country_smallest"]["metadata"]["query_position"]
        assert f"query_position={where}" in name
    settings = load(tmp_path)["setting"].tolist()
    assert sum("query_position=prefix" in setting for setting in settings) == 1


# lm-eval's own tasks, as they are, on small local data of the same schema and a tiny random model


@pytest.fixture
def benchmark(tmp_path: Path) -> Evaluate:
    """`benchmark(lm, task, **arguments)`: lm-eval's result for its YAML, included whole, with other data."""

    def evaluate_task(lm: MDLM, name: str, **arguments: Any) -> dict[str, Any]:
        splits = dict.fromkeys(("train", "validation", "test", "dev"), BENCHMARKS[name]["docs"])
        config = local_task(tmp_path, FOLDER / BENCHMARKS[name]["yaml"], splits, name=name)
        return evaluate(lm, [config], tmp_path / "none", **arguments)

    return evaluate_task


def test_mmlu_log_likelihoods_are_the_bound_computed_by_hand(long_checkpoint: Path, benchmark: Evaluate) -> None:
    """Two tokens, a space and a letter: half of each token's share with one mask, half of it with both."""
    lm = MDLM(str(long_checkpoint), device="cpu", batch_size=5, mc_num=8)
    sample = benchmark(lm, "mmlu_anatomy", num_fewshot=1)["samples"]["mmlu_anatomy"][0]
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
    [(log_likelihood, _)] = sample["resps"][2]
    assert float(log_likelihood) == pytest.approx(by_hand, abs=1e-4)


def test_wikitext_perplexity_sums_windows_of_a_page_longer_than_the_context(
    checkpoint: Path, benchmark: Evaluate
) -> None:
    windowed = {size: MDLM(str(checkpoint), device="cpu", batch_size=size, max_length=128, mc_num=8) for size in (1, 5)}
    alone, packed = (benchmark(windowed[size], "wikitext") for size in (1, 5))
    totals, others = (
        [float(np.ravel(sample["resps"][0][0])[0]) for sample in results["samples"]["wikitext"]]  # pairs in lm-eval 0.5
        for results in (alone, packed)
    )
    assert others == pytest.approx(totals, abs=1e-3)
    n_bytes = sum(len(doc["page"].encode()) for doc in BENCHMARKS["wikitext"]["docs"])
    scores = alone["results"]["wikitext"]
    assert scores["bits_per_byte,none"] == pytest.approx(-sum(totals) / n_bytes / math.log(2))
    assert scores["byte_perplexity,none"] == pytest.approx(2 ** scores["bits_per_byte,none"])
    assert scores["word_perplexity,none"] > scores["byte_perplexity,none"] > 1
    record = windowed[1].get_model_info()["mdlm"]["tasks"]["wikitext"]
    assert record["truncated_prompts"] == 0
