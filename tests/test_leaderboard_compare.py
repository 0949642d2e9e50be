"""The difference between two result files, over tasks and over questions."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mdlm_leaderboard.__main__ import main
from mdlm_leaderboard.compare import as_text, compare, sentence
from mdlm_lm_eval.results.files import UnusableFile
from tests.leaderboard_files import HASH, gsm8k_file, lm_eval_file, suite_file


def write(folder: Path, content: Any, answers: dict[str, list[int]] | None = None) -> Path:
    """A result file with its samples (task -> right and wrong answers), as lm-eval names them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results_2026-01-31T12-00-00.json"
    path.write_text(json.dumps(content))
    for task, right in (answers or {}).items():
        metric, _, name = next(key for key in content["results"][task] if "," in key and "stderr" not in key).partition(
            ","
        )
        lines = [
            {"doc_id": n, "doc_hash": f"hash {n}", "filter": name, "metrics": [metric], metric: float(score)}
            for n, score in enumerate(right)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"samples_{task}_2026-01-31T12-00-00.jsonl").write_text(text)
    return path


def test_what_every_task_loses_alike_has_a_narrow_band(tmp_path: Path) -> None:
    first, second = (
        write(tmp_path / "a", suite_file(n_masks=1, accuracy=0.8)),
        write(tmp_path / "b", suite_file(n_masks=200, accuracy=0.6)),
    )
    (found,) = compare(first, second)
    assert found.over_tasks.mean == pytest.approx(-0.2)
    assert found.over_tasks.half_width == pytest.approx(0)
    assert (found.first, found.second) == ("built-in, n_masks=1", "built-in, n_masks=200")
    assert sentence(found) == (
        "built-in, n_masks=200 is 20.0 points below built-in, n_masks=1 on 16 tasks (exact_match, 16000 questions); "
        "the 95% interval is 20.0 to 20.0 over tasks."
    )


def test_a_standard_benchmark_is_compared_by_its_samples(tmp_path: Path) -> None:
    right = [1] * 600 + [0] * 719
    better = [1] * 580 + [0] * 20 + [1] * 80 + [0] * 639
    first = write(tmp_path / "a", gsm8k_file(model="mdlm", score=600 / 1319), {"gsm8k": right})
    second = write(tmp_path / "b", gsm8k_file(model="mdlm", score=660 / 1319, masks=512), {"gsm8k": better})
    (found,) = compare(first, second)
    assert found.answers is not None
    assert (found.answers.only_first, found.answers.only_second) == (20, 80)
    assert found.answers.p < 1e-8
    assert found.over_questions is not None
    assert found.over_questions.mean == pytest.approx(60 / 1319)
    assert 0.02 < (found.over_questions.low or 0) < 60 / 1319 < (found.over_questions.high or 0) < 0.07
    first_name, second_name = "organisation/model, before", "organisation/model, after"
    text = sentence(replace(found, first=first_name, second=second_name))
    assert text.startswith(f"{second_name} is 4.5 points above {first_name} on gsm8k (exact_match,strict-match, 1319 ")
    assert "; the 95% interval is 3.1 to 6.0 over questions; " in text
    assert text.endswith(
        f"80 questions are right with {second_name} alone, 20 with {first_name} alone (McNemar, p < 0.001)."
    )


def test_the_names_say_in_what_two_runs_of_one_model_differ(tmp_path: Path) -> None:
    first, second = suite_file(), suite_file(model_args={"load_in_4bit": True})
    first["config"]["mdlm"]["weights"], second["config"]["mdlm"]["weights"] = "a" * 64, "b" * 64
    second["config"]["model_dtype"] = "torch.bfloat16"
    (found,) = compare(write(tmp_path / "a", first), write(tmp_path / "b", second))
    assert found.first == "built-in (aaaaaaa), float32"
    assert found.second == "built-in (bbbbbbb), bfloat16, load_in_4bit=True"


def test_the_names_say_what_a_request_decides_over_the_model_arguments(tmp_path: Path) -> None:
    first, second = suite_file(block_length=16), suite_file(block_length=16)
    for config in second["configs"].values():
        config["generation_kwargs"] |= {"temperature": 0.7, "do_sample": False, "n_masks": 8}
    (found,) = compare(write(tmp_path / "a", first), write(tmp_path / "b", second))
    # do_sample=false means temperature 0, and blocks longer than a request's masks fall away.
    assert found.second.startswith("built-in, ")
    assert {"n_masks=8", "block_length=None"} <= set(found.second.split(", "))
    assert "temperature" not in found.second


def hf_file(names: list[str], asked: int) -> dict[str, Any]:
    """Half of `asked` questions right in each of an autoregressive model's tasks."""
    return lm_eval_file(
        names,
        metrics={name: {"acc,none": 0.5} for name in names},
        asked=asked,
        original=asked,
        version="1",
        shots=0,
        model="hf",
        model_args={"pretrained": "organisation/model"},
    )


def test_the_names_say_in_what_any_shared_task_differs(tmp_path: Path) -> None:
    first, second = hf_file(["arc", "boolq"], 10), hf_file(["arc", "boolq"], 10)
    second["n-shot"]["boolq"] = 5
    (found,) = compare(write(tmp_path / "a", first), write(tmp_path / "b", second))
    assert (found.first, found.second) == ("organisation/model, shots=0", "organisation/model, shots=5")


def test_the_names_say_how_the_examples_of_a_benchmark_were_drawn_and_shown(tmp_path: Path) -> None:
    first, second = gsm8k_file(), gsm8k_file()
    second["config"]["fewshot_seed"] = 7
    first["chat_template"] = second["chat_template"] = "{{ messages }}"
    first["fewshot_as_multiturn"], second["fewshot_as_multiturn"] = False, True
    (found,) = compare(write(tmp_path / "a", first), write(tmp_path / "b", second))
    assert found.second == "organisation/model, fewshot_seed=7, fewshot_as_multiturn=True"


def test_the_names_say_how_likelihoods_were_estimated_and_what_was_cut_off(tmp_path: Path) -> None:
    first, second = (gsm8k_file(model="mdlm", output_type="multiple_choice") for _ in range(2))
    second["config"]["mdlm"]["likelihood"]["mc_num"] = 32
    second["config"]["mdlm"]["tasks"]["gsm8k"]["truncated_prompts"] = 12
    (found,) = compare(write(tmp_path / "a", first), write(tmp_path / "b", second))
    assert found.first == "organisation/model, mc_num=128, prompts cut off=0"
    assert found.second == "organisation/model, mc_num=32, prompts cut off=12"


def test_a_perplexity_has_no_interval_over_its_log_likelihoods(tmp_path: Path) -> None:
    paths = []
    for name, answers in (("a", [-1, -2, -1, -2]), ("b", [-2, -2, -2, -2])):
        score = math.exp(-sum(answers) / 4)
        paths.append(write(tmp_path / name, gsm8k_file(score=score), {"gsm8k": answers}))
    (found,) = compare(*paths)
    assert found.over_questions is None
    assert " over questions" not in sentence(found)


def test_files_without_a_common_metric_are_refused(tmp_path: Path) -> None:
    second = gsm8k_file()
    second["results"]["gsm8k"] = {"exact_match,flexible-extract": 0.5}
    with pytest.raises(UnusableFile, match="have no metric in common on the same task"):
        compare(write(tmp_path / "a", gsm8k_file()), write(tmp_path / "b", second))


def with_metadata(**metadata: int) -> Any:
    file = suite_file()
    for config in file["configs"].values():
        config["metadata"] |= metadata
    return file


def with_hash(digest: str) -> Any:
    file = suite_file()
    file["config"]["mdlm"]["task_suite"]["sha256"] = digest
    return file


def test_scores_that_are_no_shares_are_told_in_their_own_unit(tmp_path: Path) -> None:
    def perplexity(score: float) -> Any:
        file = gsm8k_file(score=score)
        file["higher_is_better"] = {"gsm8k": {"exact_match": False}}
        return file

    (found,) = compare(write(tmp_path / "a", perplexity(25.3)), write(tmp_path / "b", perplexity(31.42)))
    assert " is 6.12 above " in sentence(found)
    assert "| gsm8k | 25.3 | 31.42 | +6.12 |" in as_text(found)


def test_an_interval_that_holds_zero_is_within_chance(tmp_path: Path) -> None:
    first = write(tmp_path / "a", gsm8k_file(score=0.5), {"gsm8k": [1, 0, 1, 0]})
    second = write(tmp_path / "b", gsm8k_file(score=0.75), {"gsm8k": [1, 0, 1, 1]})
    (found,) = compare(first, second)
    assert "; the 95% interval is 0.0 to 75.0 over questions (within chance); 1 question is right with " in sentence(
        found
    )


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (gsm8k_file(), "have no task in common"),
        (suite_file(version="99.0"), "the version of mdlm_country_smallest differs: "),
        (with_hash("0" * 64), f"the state of the suite differs: {HASH} and {'0' * 64}; "),
        (with_metadata(fewshot_seed=5), "the fewshot_seed of mdlm_country_smallest differs: 1 and 5; "),
        (suite_file(limit=10), "the number of questions of mdlm_country_smallest differs: 1000 and 10; "),
    ],
)
def test_what_asks_other_questions_is_not_compared(tmp_path: Path, second: Any, reason: str) -> None:
    with pytest.raises(UnusableFile) as error:
        compare(write(tmp_path / "a", suite_file()), write(tmp_path / "b", second))
    assert reason in str(error.value)


@pytest.mark.parametrize("wrong", [None, True, 5, ["a"]])
def test_settings_that_are_none_are_refused(tmp_path: Path, wrong: Any) -> None:
    second = suite_file()
    second["config"]["mdlm"]["decoding"] = wrong
    with pytest.raises(UnusableFile, match="differs from the result files of lm-eval"):
        compare(write(tmp_path / "a", suite_file()), write(tmp_path / "b", second))


def test_samples_of_other_questions_are_not_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a", gsm8k_file(), {"gsm8k": [1, 0, 1]})
    second = write(tmp_path / "b", gsm8k_file(), {"gsm8k": [1, 0]})
    with pytest.raises(UnusableFile, match="the samples of gsm8k are not of the same questions"):
        compare(first, second)
    second = write(tmp_path / "b", gsm8k_file(), {"gsm8k": [1, 0, 1]})
    samples = second.with_name("samples_gsm8k_2026-01-31T12-00-00.jsonl")
    samples.write_text(samples.read_text().replace("hash 2", "hash of another document"))
    with pytest.raises(UnusableFile, match="the samples of gsm8k are not of the same questions"):
        compare(first, second)


def test_an_interval_over_questions_needs_the_samples_of_all_tasks(tmp_path: Path) -> None:
    names, right = ["arc", "boolq"], [1, 1, 0, 0]
    content = hf_file(names, 4)
    paths = [write(tmp_path / folder, content, {"arc": right}) for folder in "ab"]
    (found,) = compare(*paths)
    assert (found.over_questions, found.answers) == (None, None)
    paths = [write(tmp_path / folder, content, dict.fromkeys(names, right)) for folder in "ab"]
    (found,) = compare(*paths)
    assert found.over_questions is not None
    assert found.answers is not None


def test_the_command_prints_a_sentence_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write(tmp_path / "a", suite_file()), write(tmp_path / "b", suite_file(adapter="MA, seed 0"))
    assert main(["compare", str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "A: built-in\nB: built-in with MA, seed 0\n\nbuilt-in with MA, seed 0 is level with built-in on 16 "
    )
    assert "| mdlm_verb_largest | 80.0 | 80.0 | +0.0 |" in said
    assert main(["compare", str(first), str(tmp_path / "no.json")]) == 1
    assert capsys.readouterr().err.endswith("no.json' cannot be read: No such file or directory\n")
