"""Result files that somebody else wrote: no value anywhere in one ends a command, and no secret in one gets out."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from mdlm_leaderboard.__main__ import main
from mdlm_lm_eval.results import load
from tests.leaderboard_files import gsm8k_file, result_file, served, suite_file, write

# Of every JSON type; half a character; a name that no file can have. 1e400 is read as infinite.
VALUES = (None, True, 10**400, float("inf"), "a/b" * 99, "\ud800", ["a", {}], {"a": [1]})
AUDIT = {"requests": 2, "same_strings": 1, "exact_answers": [{"doc_id": 0, "exact": "1"}, {"doc_id": 1}]}
# Options that are reckoned with, and one that is only shown.
OPTIONS = ("cache", "confidence_threshold", "filler", "mask_ratio", "n_fillers", "n_masks", "steps", "temperature")


def of_mdlm(content: dict[str, Any]) -> dict[str, Any]:
    """Without what no command reads."""
    mdlm = content["config"]["mdlm"]
    mdlm["settings"][0]["options"] = {
        name: mdlm["settings"][0]["options"][name] for name in (*OPTIONS, "block_length", "unmasking")
    }
    return content | {"config": content["config"] | {"mdlm": mdlm | {"decoding": {}, "likelihood": {}}}}


FIRST = of_mdlm(gsm8k_file(0.5, passes=90, task_record={"audit": AUDIT}, asked=2, limit=2))
FIRST["config"]["mdlm"]["plugins"] = [{"name": "mine.py", "sha256": "0" * 64, "registers": ["sampler=mine"]}]
FILES = {
    "of a benchmark": FIRST,
    "of the suite": of_mdlm(suite_file(n_masks=2)),
    "of a server": of_mdlm(served(gsm8k_file(passes=90), known=OPTIONS)),
    "of another model": result_file({"org/t_mc": {"acc,none": 0.5}, "long": {"word_perplexity,none": 9}}, model="hf"),
}


def leaves(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value is that holds no other; of several tasks those of the first, of a list the first two."""
    if not isinstance(content, dict | list) or not content:
        yield place
        return
    items = list(content.items()) if isinstance(content, dict) else list(enumerate(content))[:2]
    are_tasks = isinstance(content, dict) and all(key.startswith("mdlm_") for key in content)
    for key, value in items[:1] if are_tasks else items:
        yield from leaves(value, (*place, key))


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    content = deepcopy(content)
    inside = content
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return content


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_no_value_in_a_result_file_ends_a_command(
    tmp_path: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = {*leaves(FIRST)} if content is not FIRST else set()  # places that the first file has, too
    places = [one for one in leaves(content) if one not in elsewhere or "settings" in one]
    changes = [(place, value) for place in places for value in VALUES]
    mutants = {f"m{n}": changed(content, *change) for n, change in enumerate(changes)}
    results = write(tmp_path / "results", good=content, **mutants)
    with pytest.warns(UserWarning, match="is left out: it"):
        used = {*load(results)["file"]}
    assert "good.json" in used
    assert main(["build", str(results), "--output", str(tmp_path / "site")]) == 0
    refused = {line.split(": ")[1] for line in capsys.readouterr().err.splitlines() if line.startswith("not used: ")}
    page = json.loads((tmp_path / "site" / "leaderboard.json").read_text())
    assert used <= page["commands"].keys()
    assert {f"{name}.json" for name in mutants} - used <= refused, "what cannot be read is named"
    main(["validate", str(results)])
    for name in [*mutants][:: len(mutants) // 25]:  # these two read what the others read
        path = str(results / f"{name}.json")
        assert main(["show", path]) == (f"{name}.json" not in used)
        assert main(["compare", str(results / "good.json"), path]) in (0, 1)


SECRETS = {
    "token": "hf_X",
    "api_key": "sk-proj-1",
    "header": {"Authorization": "Bearer abc.defgh1", "X-Api-Key": 12345678},
    "base_url": "https://me:pass1@host.org/v1/completions?key=query1,query2&x=1",
    "backend": "hf_abcdefghijklmnopqrstuvwxyzABCDEF",
    "cache_dir": "/home/somebody/cache",
    "use_auth_token": "auth1",
    "password": ["list1"],
}
KEPT = {
    "max_gen_toks": 16,
    "tokenizer": "org/tokenizer",
    "mask_token_id": 7,
    "think_end_token": "</think>",
    "pad_token_id": 3,
    "add_bos_token": True,
    "tokenized_requests": False,
}
HIDDEN = (
    "hf_X",
    "sk-proj-1",
    "abc.d",
    "12345678",
    "pass1",
    "query1",
    "query2",
    "hf_abc",
    "somebody",
    "auth1",
    "list1",
    "mine1",
    "flag1",
)


def in_a_string(arguments: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in arguments.items() if isinstance(value, str | int))


@pytest.mark.parametrize("recorded", [dict, in_a_string], ids=["mapping", "string"])
def test_no_secret_gets_out(tmp_path: Path, recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    contents = [gsm8k_file(0.5, model="hf"), gsm8k_file(0.6, passes=2, pretrained="org/other")]
    for content in contents:
        given = {"pretrained": content["config"]["model_args"]["pretrained"]} | SECRETS | KEPT
        content["config"] |= {"model_args": recorded(given), "gen_kwargs": recorded({"token": "mine1", "top_k": 5})}
        content["configs"]["gsm8k"]["metadata"] = given
        content["system_instruction"] = "Use Bearer abc.defgh1"
    words = "HF_TOKEN=hf_X mdlm-sweep --api-key flag1 --model_args"
    command = f"{words} {json.dumps(SECRETS)} --peft /home/somebody/a --tasks t"
    contents[1]["config"]["mdlm_sweep"] = {"command": f"{command} --model_args {in_a_string(SECRETS)},max_gen_toks=16"}
    results = write(tmp_path / "results", a=contents[0], b=contents[1])
    assert main(["build", str(results), "--output", str(tmp_path / "site")]) == 0
    for path in results.iterdir():
        assert main(["show", str(path)]) == 0
    main(["compare", *map(str, results.iterdir())])
    load(results).to_csv(tmp_path / "site" / "frame.csv")
    written = [path.read_text() for path in (tmp_path / "site").rglob("*") if path.suffix != ".png" and path.is_file()]
    shown = "".join([*written, *capsys.readouterr()])
    assert [word for word in HIDDEN if word in shown] == []
    commands = json.loads((tmp_path / "site" / "leaderboard.json").read_text())["commands"]
    assert "(removed)" in commands["a.json"]
    assert "https://(removed)@host.org/v1/completions?(removed)" in commands["a.json"]
    assert "~/cache" in commands["a.json"]
    assert "--peft ~/a --tasks t" in commands["b.json"]
    assert commands["b.json"].endswith("max_gen_toks=16")
    for name, value in KEPT.items():
        assert f'"{name}": {json.dumps(value)}' in commands["a.json"] or f"{name}={value}" in commands["a.json"]


def test_no_value_in_a_file_of_samples_ends_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = {"doc_id": 0, "doc_hash": "a", "filter": "strict", "filtered_resps": ["1"], "metrics": ["exact_match"]}
    sample |= {"doc": {"set": "largest_0"}, "exact_match": 1.0}
    name, results = "mdlm_rules_verb_largest", tmp_path / "results"
    content = suite_file(n_masks=2, start="mdlm_rules_", group="mdlm_rules")
    changes = [(place, value) for place in leaves(sample) for value in VALUES]
    for n, change in enumerate(changes):
        write(results / f"{n:03}", results_1=content)
        (results / f"{n:03}" / f"samples_{name}_1.jsonl").write_text(json.dumps(changed(sample, *change)))
        main(["show", str(results / f"{n:03}")])
    good = write(results / "good", results_1=content) / "results_1.json"
    (good.parent / f"samples_{name}_1.jsonl").write_text("\x1f\x8b")
    assert main(["compare", str(good), str(results / "000" / "results_1.json")]) == 1
    assert main(["build", str(results), "--output", str(tmp_path / "site")]) == 0
    assert "has samples that cannot be read" in capsys.readouterr().err
    assert "mdlm_rules" in (tmp_path / "site" / "LEADERBOARD.md").read_text(), "the scores beside them are used"


def test_names_that_no_file_can_have_are_scores_like_others(tmp_path: Path) -> None:
    metrics = {"org/t_mc": {"acc,none": 0.5}, "n" * 300: {"acc,none": 0.25}}
    write(tmp_path, a=result_file(metrics, model="hf"))
    assert set(load(tmp_path)["score"]) == {0.5, 0.25}
    for command in (["show"], ["validate"], ["build", "--strict", "--output", str(tmp_path.parent / "site")]):
        assert main([*command, str(tmp_path)]) == 0
    content = suite_file(n_masks=2)
    content["group_subtasks"]["mdlm_context"].append("mdlm_context")
    write(tmp_path, b=content, c=content | {"group_subtasks": {"mdlm_context": ["missing"]}})
    with (
        pytest.warns(UserWarning, match="b.json is left out: it has groups that are in each other: mdlm_context, mdlm"),
        pytest.warns(UserWarning, match="c.json is left out: it names 'missing' in one place and lacks it in another"),
    ):
        load(tmp_path)


def test_no_cell_of_the_csv_is_a_formula(tmp_path: Path) -> None:
    write(tmp_path / "results", a=gsm8k_file(pretrained="=cmd|x"), b=gsm8k_file(pretrained="+1"))
    assert main(["build", str(tmp_path / "results"), "--output", str(tmp_path / "site")]) == 0
    table = (tmp_path / "site" / "leaderboard.csv").read_text()
    assert ",'=cmd|x," in table
    assert ",'+1," in table
    assert ",=" not in table
