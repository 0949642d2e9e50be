"""What the leaderboard reads of result files, and which files it refuses."""

import json
import shlex
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mdlm_leaderboard.runs import command
from mdlm_leaderboard.scores import file_scores
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.requests import parse_gen_kwargs
from mdlm_lm_eval.results.asked import options_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.result_file import find_result_files, read_result_file
from mdlm_lm_eval.results.suite import task_names
from tests.leaderboard_files import gsm8k_file, suite_file, write


def read(folder: Path, content: Any) -> Any:
    return read_result_file(write(folder, file=content) / "file.json")


def refusal(folder: Path, content: Any) -> str:
    with pytest.raises(UnusableFile) as error:
        file_scores(read(folder, content))
    return str(error.value)


def test_a_suite_file_gives_a_score_for_each_task(tmp_path: Path) -> None:
    scores = file_scores(read(tmp_path, suite_file(n_masks=50, accuracy=0.8))).scores
    assert {score.task for score in scores} == task_names()
    assert {(score.place.experiment, score.place.series, score.place.x) for score in scores} == {("masks", "", 50)}
    assert sorted({round(score.mean, 6) for score in scores}) == [0.7, 0.8, 0.9]


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"variant": "_slot", "n_masks": None, "n_fillers": 100}, ("dots", "", 100)),
        ({"variant": "_left_pos20", "n_masks": None}, ("positions", "left", 20)),
        ({"variant": "_pos30", "n_masks": 100}, ("positions_by_masks", 100, 30)),
        ({"n_masks": 50, "distractors": 20}, ("masks", "", 50)),
        ({"n_masks": None, "mask_ratio": 0.2, "distractors": 20}, ("distractors", "20%", 20)),
        ({"model": "hf", "variant": "_pos0"}, ("positions_by_masks", 0, 0)),
    ],
)
def test_each_experiment_has_its_place(tmp_path: Path, settings: dict[str, Any], place: tuple[Any, ...]) -> None:
    scores = file_scores(read(tmp_path, suite_file(**settings))).scores
    assert {(score.place.experiment, score.place.series, score.place.x) for score in scores} == {place}


def test_two_masks_are_also_a_point_of_the_curve_over_distractors_in_the_standard_setting(tmp_path: Path) -> None:
    scores = file_scores(read(tmp_path, suite_file(n_masks=2, distractors=10))).scores
    places = {(score.place.experiment, score.place.x, score.place.setting.fewshot_distractors) for score in scores}
    assert places == {("masks", 2, 10), ("distractors", 10, 40)}


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        ({}, ("1", "none", "")),
        ({"steps": 1, "unmasking": "random"}, ("1", "none", "")),
        ({"steps": 40, "unmasking": "random"}, ("40", "random", "")),
        ({"steps": 40, "unmasking": "random", "seed": 7}, ("40", "random", "seed=7")),
        ({"steps": 40, "seed": 7}, ("40", "confidence", "")),
        ({"steps": 4, "block_length": 8, "temperature": 0.5}, ("4", "confidence", "block_length=8, temperature=0.5")),
        ({"confidence_threshold": 0.9}, ("by confidence", "confidence", "confidence_threshold=0.9")),
        ({"n_fillers": 50}, ("1", "none", "50 fillers")),
        ({"variant": "_slot", "n_masks": 5}, ("1", "none", "5 masks after the text")),
    ],
)
def test_decoding_that_changes_scores_tells_rows_apart(
    tmp_path: Path, decoding: dict[str, Any], expected: tuple[str, ...]
) -> None:
    found = file_scores(read(tmp_path, suite_file(**decoding))).scores[0].place.decoding
    assert (found.steps, found.unmasking, found.other) == expected


def test_gen_kwargs_win_over_model_arguments(tmp_path: Path) -> None:
    content = suite_file(n_masks=1)
    for name, config in content["configs"].items():
        config["generation_kwargs"] |= {"n_masks": 10, "steps": 4, "unmasking": "random"}
        content["config"]["mdlm"]["tasks"][name] |= {"masks": [10, 10], "steps": [4, 4]}
    place = file_scores(read(tmp_path, content)).scores[0].place
    assert (place.x, place.decoding.steps, place.decoding.unmasking) == (10, "4", "random")


def test_sampling_keys_of_a_request_stand_where_nobody_set_them(tmp_path: Path) -> None:
    content = gsm8k_file(model="mdlm")
    content["configs"]["gsm8k"]["generation_kwargs"] = {"temperature": 0.7, "do_sample": True}
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith(", steps=256, temperature=0.7)")
    content["configs"]["gsm8k"]["generation_kwargs"]["do_sample"] = False
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith(", steps=256)")
    content["config"]["mdlm"] |= {"explicit_options": ["temperature"]}
    content["config"]["mdlm"]["decoding"]["temperature"] = 0.2
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith(", steps=256, temperature=0.2)")


def test_an_autoregressive_model_samples_where_it_is_told_to(tmp_path: Path) -> None:
    content = gsm8k_file()
    content["configs"]["gsm8k"]["generation_kwargs"] = {"temperature": 0.7}
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith("; autoregressive)")
    content["configs"]["gsm8k"]["generation_kwargs"]["do_sample"] = True
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith("; autoregressive, temperature=0.7)")


def test_gen_kwargs_drop_what_they_exclude(tmp_path: Path) -> None:
    content = gsm8k_file(model="mdlm")
    content["config"]["mdlm"]["decoding"] |= {"steps_per_block": 32, "confidence_threshold": 0.95}
    content["configs"]["gsm8k"]["generation_kwargs"] = {"steps": 64, "entropy_bound": 0.2}
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith("n_masks=256, steps=256, entropy_bound=0.2)")


def test_a_fixed_slot_alone_is_decoded_in_one_step_whatever_was_asked(tmp_path: Path) -> None:
    scores = file_scores(read(tmp_path, suite_file(variant="_slot", n_masks=None, steps=40, unmasking="random"))).scores
    assert (scores[0].place.decoding.steps, scores[0].place.decoding.unmasking) == ("1", "none")


@pytest.mark.parametrize(
    ("content", "column"),
    [
        (gsm8k_file(), "gsm8k v3.0 (exact_match,strict-match; 5-shot; autoregressive)"),
        (gsm8k_file(model="mdlm"), "gsm8k v3.0 (exact_match,strict-match; 5-shot; n_masks=256, steps=256)"),
        (gsm8k_file(model="llada_dist"), "gsm8k v3.0 (exact_match,strict-match; 5-shot; mask count not stated)"),
        (gsm8k_file(shots=8), "gsm8k v3.0 (exact_match,strict-match; 8-shot; autoregressive)"),
        (
            gsm8k_file(model="mdlm", output_type="multiple_choice"),
            "gsm8k v3.0 (exact_match,strict-match; 5-shot; n_masks=the continuation, mc_num=128)",
        ),
    ],
)
def test_a_benchmark_column_names_what_its_score_depends_on(tmp_path: Path, content: Any, column: str) -> None:
    (score,) = file_scores(read(tmp_path, content)).scores
    assert (score.place.experiment, score.place.x) == ("benchmarks", column)
    assert (score.mean, score.standard_error, score.n_questions) == (0.5, 0.01, 1319)


@pytest.mark.parametrize(
    ("output_type", "likelihood", "fact"),
    [
        ("multiple_choice", {"check_greedy": False}, ""),
        ("loglikelihood", {"check_greedy": False}, ", check_greedy=False"),
        ("multiple_choice", {"seed": 2}, ", seed=2"),
        ("multiple_choice", {"likelihood": "duel", "seed": 2}, ", likelihood=duel"),
    ],
)
def test_a_likelihood_column_names_what_changes_its_scores(
    tmp_path: Path, output_type: str, likelihood: dict[str, Any], fact: str
) -> None:
    content = gsm8k_file(model="mdlm", output_type=output_type)
    content["config"]["mdlm"]["likelihood"] |= likelihood
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith(f"n_masks=the continuation, mc_num=128{fact})")


def test_a_generation_column_names_where_the_user_cut_answers(tmp_path: Path) -> None:
    content = gsm8k_file(model="mdlm")
    content["configs"]["gsm8k"]["generation_kwargs"] = {"max_gen_toks": 64}
    content["config"]["mdlm"]["decoding"]["n_masks"] = 256
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith("n_masks=256, steps=256)")
    content["config"]["gen_kwargs"] = {"max_gen_toks": 64}
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith("n_masks=256, steps=256, max_gen_toks=64)")


@pytest.mark.parametrize("model", ["hf", "mdlm"])
def test_a_generation_column_names_other_stop_strings(tmp_path: Path, model: str) -> None:
    content = gsm8k_file(model=model)
    content["config"]["gen_kwargs"] = {"until": ["Q:"], "do_sample": False}
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith(", until=['Q:'])")


def test_a_row_of_the_suite_names_how_many_tokens_the_user_asked_for(tmp_path: Path) -> None:
    content = suite_file(steps=1)
    content["config"]["gen_kwargs"] = {"max_gen_toks": 3}
    assert file_scores(read(tmp_path, content)).scores[0].place.decoding.other == "max_gen_toks=3"


def test_a_benchmark_column_names_how_its_examples_were_drawn_and_shown(tmp_path: Path) -> None:
    content = gsm8k_file() | {"chat_template": "{{ messages }}", "fewshot_as_multiturn": False}
    content["config"]["fewshot_seed"] = 7
    (score,) = file_scores(read(tmp_path, content)).scores
    assert "; 5-shot, fewshot_seed=7, chat template with the examples in one turn; " in str(score.place.x)


@pytest.mark.parametrize("masks", [[0, 0], [-5, -5], [3, 2], [10**400, 10**400]])
def test_refuses_mask_counts_that_no_run_can_have_had(tmp_path: Path, masks: list[int]) -> None:
    content = suite_file()
    content["config"]["mdlm"]["tasks"]["mdlm_verb_largest"]["masks"] = masks
    with pytest.raises(UnusableFile, match=r"records masks=.* for 'mdlm_verb_largest', which no run can have had"):
        read(tmp_path, content)


def test_a_benchmark_column_says_how_many_prompts_lost_their_beginning(tmp_path: Path) -> None:
    content = gsm8k_file(model="mdlm")
    content["config"]["mdlm"]["tasks"]["gsm8k"]["truncated_prompts"] = 12
    (score,) = file_scores(read(tmp_path, content)).scores
    assert str(score.place.x).endswith("steps=256, 12 prompts cut off)")


def test_a_group_stands_for_its_tasks(tmp_path: Path) -> None:
    content = gsm8k_file()
    content["groups"] = {"maths": {"alias": "maths", "exact_match,none": 0.4}}
    content["group_subtasks"] = {"maths": ["gsm8k"]}
    content["versions"]["maths"] = "2"
    (score,) = file_scores(read(tmp_path, content)).scores
    assert (score.task, score.mean) == ("maths", 0.4)
    assert str(score.place.x).startswith("maths v2 (exact_match; 5-shot;")


def test_what_is_no_accuracy_is_left_out_and_said(tmp_path: Path) -> None:
    content = gsm8k_file(metrics={"gsm8k": {"word_perplexity,none": 0.9, "bits,none": 12.5, "acc,none": 0.3}})
    found = file_scores(read(tmp_path, content))
    assert [score.mean for score in found.scores] == [0.3]
    assert found.left_out == (
        "'word_perplexity,none' of 'gsm8k' is no accuracy from 0 to 1",
        "'bits,none' of 'gsm8k' is no accuracy from 0 to 1",
    )


def changed(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return content | changes


def with_config(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return content | {"config": content["config"] | changes}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(suite_file())[:2000], "is no whole JSON file"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "is no whole JSON file"),
        ("[" * 100_000, "is no whole JSON file"),
        ([1], "is no result file of lm-eval"),
        ({"results": {"mmlu": 0.5}}, "is no result file of lm-eval"),
        (changed(suite_file(), lm_eval_version="0.3.0"), "was written by lm-eval 0.3.0; it must be 0.4"),
        (changed(suite_file(), lm_eval_version="0.40.1"), "was written by lm-eval 0.40.1; it must be 0.4"),
        (changed(suite_file(), lm_eval_version="0.4./home/me"), "was written by lm-eval 0.4./home/me; it must be 0.4"),
        (changed(suite_file(), lm_eval_version=None), "names no lm_eval_version"),
        (changed(suite_file(), **{"n-shot": 3}), "differs from the result files of lm-eval 0.4"),
        (changed(suite_file(), versions={}), "differs from the result files of lm-eval 0.4"),
        (changed(suite_file(), configs={}), "holds no task"),
        (suite_file(filler="\x1b[2J"), "holds '\\x1b[2J'; control characters are not shown"),
        (suite_file(filler="x" * 2000), "records filler=xxx"),
        (suite_file(unmasking="a\x00b"), "holds 'a\\x00b'; control characters"),
        (suite_file(model_args={"pretrained": "a\x1b[31m"}), "holds 'a\\x1b[31m'; control characters"),
        (suite_file(model_args={"pretrained": "a\u202eb"}), "holds 'a\\u202eb'; control characters"),
        (suite_file(model_args={"pretrained": ["a"]}), "names a model ['a']; it must be a text"),
        (suite_file(model_args={"pretrained": 5}), "names a model 5; it must be a text"),
        (with_config(suite_file(), model=["mdlm"]), "has model=['mdlm']; it must be a name"),
        (with_config(suite_file(), model=5), "has model=5; it must be a name"),
        (
            suite_file(temperature="NaN"),
            "records what cannot be: temperature must be 0 or a number from 1e-06 up to 1000",
        ),
        (
            suite_file(n_fillers=-1),
            "records what cannot be: n_fillers must be a whole number from 0 up to 1000000, not -1",
        ),
        (suite_file(unmasking=5), "records what cannot be: unmasking must be a text, not 5"),
        (suite_file(schedule=None), "records what cannot be: schedule must be a text, not null"),
        (suite_file(filler=5), "records what cannot be: filler must be a text of at least one character, not 5"),
        (
            suite_file(temperature="0.5"),
            "records what cannot be: temperature must be 0 or a number from 1e-06 up to 10",
        ),
        (suite_file(eos_last="true"), 'records what cannot be: eos_last must be true or false, not "true"'),
        (suite_file(accuracy=float("nan")), "has no number as exact_match of 'mdlm_country_smallest'"),
        (suite_file(accuracy=1.2), "has exact_match=1.3 for 'mdlm_country_smallest'; it must be a number from 0 to 1"),
    ],
)
def test_refuses_other_files_in_one_sentence(tmp_path: Path, content: Any, reason: str) -> None:
    sentence = refusal(tmp_path, content)
    assert sentence.startswith(reason)
    assert "\n" not in sentence


def test_refuses_scores_without_a_mask_count(tmp_path: Path) -> None:
    content = suite_file()
    del content["config"]["mdlm"]["tasks"]["mdlm_verb_largest"]
    assert refusal(tmp_path, content) == "states no mask count for 'mdlm_verb_largest'"
    content["config"] |= {"mdlm": None, "model": "llada_dist"}
    found = file_scores(read(tmp_path, content))
    assert found.scores == ()
    assert found.left_out == (
        "states no mask count for its few-shot tasks (--model 'llada_dist'); run them with --model mdlm",
    )


def test_refuses_mask_counts_that_differ_between_questions(tmp_path: Path) -> None:
    content = suite_file()
    content["config"]["mdlm"]["tasks"]["mdlm_verb_largest"]["masks"] = [40, 50]
    assert refusal(tmp_path, content).startswith("appends 40 to 50 masks in 'mdlm_verb_largest'")


def test_refuses_answers_to_some_questions_without_a_limit(tmp_path: Path) -> None:
    content = suite_file()
    content["n-samples"]["mdlm_verb_largest"]["effective"] = 3
    assert refusal(tmp_path, content) == "answers 3 of 1000 questions of 'mdlm_verb_largest' without a --limit"


def test_scores_of_prompts_without_their_beginning_are_left_out(tmp_path: Path) -> None:
    content = suite_file(n_masks=200)
    tasks = content["config"]["mdlm"]["tasks"]
    for name in ("mdlm_country_smallest", "mdlm_verb_largest"):
        tasks[name]["truncated_prompts"] = 7
    found = file_scores(read(tmp_path, content))
    assert len(found.scores) == 14
    (reason,) = found.left_out
    assert reason.startswith(
        "cut off the first examples of prompts that do not fit into the model's context (7 of 1000"
    )
    assert "2 tasks in all" in reason


def test_finds_json_files_in_all_folders_but_the_output(tmp_path: Path) -> None:
    for name in ("results_1.json", "a/b/results_2.json", "a/samples_x.jsonl", "site/leaderboard.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_result_files(tmp_path, leave_out=tmp_path / "site")
    assert found == [tmp_path / "a/b/results_2.json", tmp_path / "results_1.json"]


def test_the_command_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    content = suite_file(relevant=5, limit=50, model_args={"pretrained": "a b/$(model)", "token": "secret"})
    content["config"]["gen_kwargs"] = {"steps": 4}
    words = shlex.split(command(read(tmp_path, content)))
    assert words == [
        *["lm_eval", "--model", "mdlm", "--model_args", "n_masks=50,pretrained=a b/$(model)"],
        *["--tasks", "mdlm_context", "--gen_kwargs", "steps=4", "--metadata", "fewshot_relevant=5"],
        *["--limit", "50", "--batch_size", "8"],
    ]
    content["config"]["gen_kwargs"] = {"until": ["a", "b"], "temperature": 0.6}
    words = shlex.split(command(read(tmp_path, content)))
    assert json.loads(words[words.index("--gen_kwargs") + 1]) == content["config"]["gen_kwargs"]


def test_the_command_of_a_benchmark_names_its_shots_and_its_seeds(tmp_path: Path) -> None:
    content = gsm8k_file() | {"chat_template": "{{ messages }}", "fewshot_as_multiturn": True}
    content["config"] |= {"random_seed": 7, "model_args": "pretrained=organisation/model,dtype=float32"}
    assert command(read(tmp_path, content)) == (
        "lm_eval --model hf --model_args pretrained=organisation/model,dtype=float32 --tasks gsm8k --num_fewshot 5 "
        "--batch_size 8 --apply_chat_template --fewshot_as_multiturn true --seed 7,1234,1234,1234"
    )


def broken(content: Any, random: Random) -> Any:
    """`content` with one value at a random depth replaced by one of another kind."""
    replacements: tuple[Any, ...] = (None, "text", -1, 1e999, [], {}, True, [[]], {"a": {}})
    if not isinstance(content, dict | list) or not content or random.random() < 0.15:
        return random.choice(replacements)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    weights = [8 if key in ("config", "mdlm", "configs", "results") else 1 for key in keys]
    (key,) = random.choices(keys, weights)
    if isinstance(content, dict) and random.random() < 0.1:
        return {name: value for name, value in content.items() if name != key}
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[key] = broken(content[key], random)
    return copy


def test_a_file_of_any_other_layout_is_read_or_refused(tmp_path: Path) -> None:
    random, refused = Random(0), 0
    originals = [suite_file(), gsm8k_file(model="mdlm"), suite_file(model="hf"), suite_file(variant="_slot")]
    for n in range(600):
        content = broken(originals[n % len(originals)], random)
        try:
            found = file_scores(read(tmp_path, content))
        except UnusableFile:
            refused += 1
        else:
            assert all(0 <= score.mean <= 1 for score in found.scores)
            hash(tuple(found.scores))
            json.dumps(dict(found.run.settings), allow_nan=False)
    assert refused > 100


def test_an_autoregressive_model_cannot_fill_slots(tmp_path: Path) -> None:
    assert refusal(tmp_path, suite_file(model="hf", variant="_slot")) == (
        "runs 'mdlm_country_smallest_slot', whose slots need masks, with --model 'hf'"
    )


def test_a_task_has_the_sampling_that_a_run_gives_its_requests(tmp_path: Path) -> None:
    random = Random(0)
    values: dict[str, list[Any]] = {
        "do_sample": [None, True, False, "true", "false"],
        "temperature": [None, 0.0, 0.7],
        "top_p": [None, 0.5, 1.0],
        "top_k": [None, -1, 0, 1, 5],
    }
    names = ("temperature", "top_p", "top_k")
    for _ in range(40):
        typed = {name: value for name in names if (value := random.choice(values[name])) not in (None, -1, 0)}
        explicit = frozenset(name for name in typed if random.random() < 0.5)
        request = {name: random.choice(choices) for name, choices in values.items() if random.random() < 0.7}
        content = suite_file(**typed)
        content["config"]["mdlm"]["explicit_options"] = sorted(explicit)
        for config in content["configs"].values():
            config["generation_kwargs"] = request
        file = read(tmp_path, content)
        seen = options_of(file, next(iter(file.tasks.values())))
        run = parse_gen_kwargs(request, DecodingOptions(**typed), explicit, frozenset()).options
        assert {name: seen[name] for name in names} == {name: getattr(run, name) for name in names}, (typed, request)
