"""Result files that somebody else wrote: no value anywhere in one ends a command, and no secret in one gets out."""

import csv
import gzip
import json
import os
import types
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from html import unescape
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from pydantic import BaseModel

from mdlm_leaderboard.__main__ import main
from mdlm_lm_eval.results import load
from mdlm_lm_eval.results.recorded import Answered, Recorded
from tests.board.conftest import Typed
from tests.conftest import data
from tests.support.leaderboard_files import gsm8k_file, result_file, served, suite_file, write
from tests.support.pages import Page

pytestmark = pytest.mark.slow

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
def test_no_value_in_a_result_file_ends_a_command(tmp_path: Path, content: dict[str, Any], typed: Typed) -> None:
    elsewhere = {*leaves(FIRST)} if content is not FIRST else set()  # places that the first file has, too
    places = [one for one in leaves(content) if one not in elsewhere or "settings" in one]
    changes = [(place, value) for place in places for value in VALUES]
    mutants = {f"m{n}": changed(content, *change) for n, change in enumerate(changes)}
    results = write(tmp_path / "results", good=content, **mutants)
    with pytest.warns(UserWarning, match="is left out: it"):
        used = {*load(results)["file"]}
    assert "good.json" in used
    said = typed("build", results, "--output", tmp_path / "site").splitlines()
    refused = {line.split(": ")[1] for line in said if line.startswith("not used: ")}
    page = json.loads((tmp_path / "site" / "leaderboard.json").read_text())
    assert used <= page["commands"].keys()
    assert {f"{name}.json" for name in mutants} - used <= refused, "what cannot be read is named"
    main(["validate", str(results)])
    for name in [*mutants][:: len(mutants) // 25]:  # these two read what the others read
        path = str(results / f"{name}.json")
        typed("show", path, code=f"{name}.json" not in used)
        assert main(["compare", str(results / "good.json"), path]) in (0, 1)


# Breaks out of attributes, elements, cells and lines, and comes whole out of none of the places where names are cut.
HOSTILE = "'\"></reason>x9=<b>|`& ![i](h) [l](h) <iframe src=h>\x1b[1m\u202e\x00\n\n# H\n- $*_"
WHOLE = "x9=<b>|`&"
# What a file may also have: with it, the files of this test have every text that is declared.
MORE = deepcopy(FIRST)
MORE["config"] |= {"gen_kwargs": {"until": "a"}, "mdlm_sweep": {"command": "mdlm-sweep"}}
MORE["config"]["mdlm_sweep"]["settings"] = {"model_args": {"dtype": "auto"}, "metadata": {"fewshot_labels": "wrong"}}
MORE["config"]["mdlm_sweep"]["settings"]["task_suite"] = {"version": "2.2"}
MORE["config"]["mdlm"] |= {"preset_mismatches": ["dtype"], "check": {"verdict": "agrees", "stale": ["dtype"]}}
MORE["config"]["mdlm"]["arguments"] = {"max_length": "9"}
MORE["config"]["mdlm"]["check"]["noise_floor"] = {"change": {"dtype": "float32"}, "share": 0.1, "interval": [0.0, 0.2]}
MORE["config"]["mdlm"]["tasks"]["gsm8k"]["first_token"] = {"letters": "RW", "entropy": 0.5, "sets": "a a"}
MORE["configs"]["gsm8k"]["generation_kwargs"] = {"until": "a"}


def texts_in(kind: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a declared type whose value may be a text, or anything; "*" stands for any key or index."""
    inside = get_args(kind)
    if kind is str or kind is Any:
        yield place
    elif get_origin(kind) in (Required, NotRequired, Annotated):
        yield from texts_in(inside[0], place)
    elif get_origin(kind) in (Union, types.UnionType):
        yield from {found for one in inside for found in texts_in(one, place)}
    elif get_origin(kind) in (list, dict):
        yield from texts_in(inside[-1], (*place, "*"))
    elif isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__total__")):
        names = {name: field.alias for name, field in getattr(kind, "model_fields", {}).items()}
        for name, one in get_type_hints(kind, include_extras=True).items():
            if name != "model_config":
                yield from texts_in(one, (*place, names.get(name) or name))


def at(content: Any, place: tuple[Any, ...]) -> Any:
    return reduce(getitem, place, content)


def hostile(content: Any, place: tuple[Any, ...]) -> Any:
    """The content with HOSTILE in this place, and as a new key of it if it is a mapping; None if it lacks the place."""
    content = inside = deepcopy(content)
    keys = []
    for wanted in place:
        at = inside[keys[-1]] if keys else content
        known = [*at] if isinstance(at, dict) else [*range(len(at))] if isinstance(at, list) else []
        if not known or (wanted != "*" and wanted not in known and wanted is not place[-1]):
            return None
        inside = at
        keys.append(known[0] if wanted == "*" else wanted)
    if isinstance(inside, list) and keys[-1] not in range(len(inside)):
        return None
    old = inside[keys[-1]] if isinstance(inside, list) else inside.get(keys[-1])
    inside[keys[-1]] = old | {HOSTILE: HOSTILE} if isinstance(old, dict) else HOSTILE
    return content


def in_text(markdown: str) -> str:
    """The text that a Markdown file shows. It must have no elements, pictures or links but the template's."""
    shown = ""
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(markdown):
        assert token.type != "fence"
        for one in token.children or [token]:
            assert one.type not in ("html_inline", "link_open", "s_open", "em_open", "strong_open")
            assert one.type != "image" or str(one.attrs["src"]).startswith("figures/")
            assert one.type != "html_block" or one.content.startswith(("<details><summary>", "</details>"))
            assert one.content != "H"
            shown += f"{unescape(one.content) if one.type == 'html_block' else one.content} "
    return shown


@pytest.fixture(scope="module")
def hostile_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of results: in `each`, one text of a file is hostile; in `all`, those that rows share are, too."""
    folder = tmp_path_factory.mktemp("hostile")
    declared = {*texts_in(Recorded)}
    own = {place for content in FILES.values() for place in leaves(content) if type(at(content, place)) is str}
    tried = set()
    for place in sorted(declared | own, key=str):
        for content in (*FILES.values(), MORE):
            if found := hostile(content, place):
                write(folder / "each", **{f"m{len(tried)}": found})
                tried.add((place, id(content)))
    assert declared <= {place for place, _ in tried}
    given: dict[str, Any] = {"pretrained": HOSTILE, "version": HOSTILE, "end_think": HOSTILE}
    metrics = {HOSTILE: {f"{HOSTILE},{HOSTILE}": 0.5, "acc,none": 0.25}}
    rows = {f"a{n}": gsm8k_file(0.4 + n / 1000, passes=n, steps=n, **given) for n in (64, 256)}
    rows |= {f"b{n}": suite_file(n_masks=n, **given) for n in (2, 200)}
    rows |= {"results_cell": result_file(metrics, group=f"g{HOSTILE}", steps=4, passes=9, **given)}
    for content in rows.values():
        content["system_instruction"] = HOSTILE
    write(folder / "all", **rows)
    write(folder / "all" / "x9=<b>\n# H|", **{"x9=<b>\x1b": "{", "good": FIRST})
    sample = {"doc_id": 0, "metrics": ["exact_match"], "exact_match": 1.0, "arguments": {"a": {"arg_0": HOSTILE}}}
    sample |= dict.fromkeys(("doc_hash", "filter", "prompt_hash", "target"), HOSTILE) | {"resps": [[HOSTILE]]}
    assert {place[0] for place in texts_in(Answered)} <= sample.keys() | {"filtered_resps"}
    (folder / "all" / "samples_gsm8k_a64.jsonl").write_text(json.dumps(sample))
    return folder


@pytest.mark.parametrize("which", ["each", "all"])
def test_every_text_of_a_result_is_shown_and_changes_no_page(
    hostile_results: Path, which: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results, site = hostile_results / which, tmp_path / "site"
    assert main(["build", str(results), "--output", str(site), "--samples", "--title", HOSTILE]) == 0
    said = capfd.readouterr()
    assert all(line.startswith(("not used: ", "set apart: ")) for line in said.err.splitlines())
    assert "default-src 'none'" in (site / "index.html").read_text()
    index, *pages = [site / "index.html", *site.glob("questions/*/index.html")]
    assert bool(pages) == (which == "all")
    ours = {"b", "iframe", "reason", "x9", "img"}
    texts = {"terminal": said.err, "markdown": in_text((site / "LEADERBOARD.md").read_text())}
    if which == "all":
        assert main(["report", str(results), "--output", str(tmp_path / "report")]) == 0
        texts |= {
            "report": capfd.readouterr().out,
            "report.md": in_text((tmp_path / "report" / "report.md").read_text()),
        }
        pages.append(tmp_path / "report" / "index.html")
    for path in (index, *pages):
        page = Page(path)
        assert page.names & ours <= (set() if path.parent.parent.name == "questions" else {"img"})
        texts[str(path)] = page.text
    lines = list(csv.reader((site / "leaderboard.csv").open(newline="")))
    assert {len(line) for line in lines} == {len(lines[0])}
    assert any(WHOLE in cell for line in lines for cell in line)
    for path in site.rglob("*.svg"):
        names = {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(path.read_bytes()).iter()}
        assert not names & {*ours, "script", "image", "a", "foreignObject"}
        texts["labels"] = path.read_text()
    assert ("labels" in texts) == (which == "all")
    for path in results.glob("*.json") if which == "all" else ():
        assert main(["show", str(path)]) == 0
        shown = capfd.readouterr().out
        assert {line.split()[0] for line in shown.splitlines()} <= {"score", "answers", "settings", "speed", "file"}
        texts[f"show {path}"] = shown
    for name, text in texts.items():
        assert text.count("x9=") == text.count("x9=<b>" if name != "labels" else "x9=") > 0
        assert not {*text} & {*"\x1b\u202e\x00"}


@pytest.mark.parametrize("score", [-0.1, 1.1])
def test_a_score_of_the_suite_outside_0_to_1_is_refused_by_all_commands(
    tmp_path: Path, score: float, typed: Typed
) -> None:
    bad = write(tmp_path, bad=suite_file(n_masks=2, accuracy=score), good=suite_file(n_masks=200)) / "bad.json"
    words = "must be a number from 0 to 1"
    for command in (["show"], ["validate"], ["compare", tmp_path / "good.json"]):
        assert words in typed(*command, bad, code=1)
    assert words in typed("build", tmp_path, "--output", tmp_path / "site")
    with pytest.warns(UserWarning, match=words):
        assert set(load(tmp_path)["file"]) == {"good.json"}


SECRETS = data("cases.json")["secrets"]
KEPT = data("cases.json")["arguments that stay"]
HIDDEN = "hf_X sk-proj-1 abc.d 12345678 pass1 query1 query2 hf_abc somebody auth1 list1 mine1 flag1 custom1 custom2"


def in_a_string(arguments: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in arguments.items() if isinstance(value, str | int))


@pytest.mark.parametrize("recorded", [dict, in_a_string], ids=["mapping", "string"])
def test_no_secret_gets_out(tmp_path: Path, recorded: Any, typed: Typed) -> None:
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
    said = [
        typed("build", results, "--output", tmp_path / "site"),
        *(typed("show", path) for path in results.iterdir()),
    ]
    said.append(typed("compare", *results.iterdir()))
    load(results).to_csv(tmp_path / "site" / "frame.csv")
    written = [path.read_text() for path in (tmp_path / "site").rglob("*") if path.suffix != ".png" and path.is_file()]
    shown = "".join([*written, *said])
    assert [word for word in HIDDEN.split() if word in shown] == []
    commands = json.loads((tmp_path / "site" / "leaderboard.json").read_text())["commands"]
    assert "(removed)" in commands["a.json"]
    assert "https://(removed)@host.org/v1/completions?(removed)" in commands["a.json"]
    assert "~/cache" in commands["a.json"]
    assert "--peft ~/a --tasks t" in commands["b.json"]
    assert commands["b.json"].endswith("max_gen_toks=16")
    for name, value in KEPT.items():
        assert f'"{name}": {json.dumps(value)}' in commands["a.json"] or f"{name}={value}" in commands["a.json"]


def test_no_value_in_a_file_of_samples_ends_a_command(tmp_path: Path, typed: Typed) -> None:
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
    typed("compare", good, results / "000" / "results_1.json", code=1)
    assert "has samples that cannot be read" in typed("build", results, "--output", tmp_path / "site")
    assert "mdlm_rules" in (tmp_path / "site" / "LEADERBOARD.md").read_text(), "the scores beside them are used"


def test_names_that_no_file_can_have_are_scores_like_others(tmp_path: Path, typed: Typed) -> None:
    metrics = {"org/t_mc": {"acc,none": 0.5}, "n" * 300: {"acc,none": 0.25}}
    write(tmp_path, a=result_file(metrics, model="hf"))
    assert set(load(tmp_path)["score"]) == {0.5, 0.25}
    for command in (["show"], ["validate"], ["build", "--strict", "--output", tmp_path.parent / "site"]):
        typed(*command, tmp_path)
    content = suite_file(n_masks=2)
    content["group_subtasks"]["mdlm_context"].append("mdlm_context")
    write(tmp_path, b=content, c=content | {"group_subtasks": {"mdlm_context": ["missing"]}})
    with (
        pytest.warns(UserWarning, match="b.json is left out: it has groups that are in each other: mdlm_context, mdlm"),
        pytest.warns(UserWarning, match="c.json is left out: it names 'missing' in one place and lacks it in another"),
    ):
        load(tmp_path)


def test_what_is_no_readable_file_is_named_and_the_rest_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    results = write(tmp_path / "results", good_1=gsm8k_file(0.5), deep=f'{{"config": {"[" * 101}{"]" * 101}}}')
    write(tmp_path, elsewhere=gsm8k_file(0.6))
    (results / "loop.json").symlink_to("loop.json")
    (results / "pipe.json").symlink_to("samples_gsm8k_1.jsonl")
    os.mkfifo(results / "samples_gsm8k_1.jsonl")
    (results / "zero.json").symlink_to("/dev/zero")
    (results / "folder.json").mkdir()
    (results / "linked.json").symlink_to("../elsewhere.json")
    (results / "large.json").touch()
    os.truncate(results / "large.json", 2**28 + 1)
    Path(os.fsdecode(bytes(results) + b"/\xff.json")).write_text("{")
    (results / "cut.json.gz").write_bytes(gzip.compress(b"{}")[:-4])
    write(results / "more", good_2=gsm8k_file(0.6, pretrained="a"))
    (results / "more" / "samples_gsm8k_2.jsonl.gz").write_bytes(gzip.compress(b" " * 5000))
    monkeypatch.setattr("mdlm_lm_eval.results.samples._MOST_BYTES", 4096)
    built, *said = typed("build", results, "--output", results / "site", "--samples").splitlines()
    reasons = dict(line.removeprefix("not used: ").split(": ", 1) for line in said)
    outside, irregular = "is a link to a file outside its folder", "is no regular file"
    bad = "has samples that cannot be read: '{}'"
    assert {name: reason.partition(" (E")[0] for name, reason in reasons.items()} == {
        "deep.json": "has more than 100 lists and mappings in each other",
        **dict.fromkeys(("folder.json", "loop.json", "pipe.json"), irregular),
        **dict.fromkeys(("linked.json", "zero.json"), outside),
        "large.json": "has more than 256 MiB",
        "\\udcff.json": "cannot be read as JSON",
        "cut.json.gz": "cannot be read as JSON (Compressed file ended before the end-of-stream marker was reached)",
        "good_1.json": f"{bad.format('samples_gsm8k_1.jsonl')} ({irregular})",
        "more/good_2.json": f"{bad.format('samples_gsm8k_2.jsonl.gz')} (has more than 0 MiB)",
    }
    assert built.startswith("2 rows")
    typed("show", results / "pipe.json", code=1)
    typed("validate", results, code=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a/b: 1", ", line 1: must be a model and a sentence of at most 500 letters"),
        (b"a/b: " + b"x" * 501, ", line 1: must be a model"),
        (b"a/b: !!python/object/apply:os.getcwd []", ", line 1: must be a model"),
        (b"x: &x [a]\na/b: [*x, *x]", ", line 1: must be a model"),
        (b"a/b: x\nother: y", ", line 2: 'other' is no model of a/b"),
        (b"a/b: x\na/b: y", ", line 2: 'a/b' is a second note"),
        (b"a/b: x\nc: : d", ", line 2: mapping values are not allowed here"),
        (b"- a/b", ": must have a sentence for each of some models: a/b"),
        (b"[" * 20_000, ": maximum recursion depth exceeded"),  # also where mypy has raised the limit
        (b"a/b: \x00", ": unacceptable character #x0000"),
        (b"#" * 2**19, ": has more than 256 KiB"),
        (None, ": is no regular file"),
    ],
)
def test_a_note_that_is_no_sentence_about_a_model_is_refused(
    tmp_path: Path, text: bytes | None, words: str, typed: Typed
) -> None:
    notes = write(tmp_path / "results", a=gsm8k_file(pretrained="a/b")) / "notes.yaml"
    if text is None:
        os.mkfifo(notes)
    else:
        notes.write_bytes(text)
    said = typed("build", tmp_path / "results", "--output", tmp_path / "site", code=2)
    assert said.startswith(f"mdlm-leaderboard: {notes}{words}")
    assert said.count("\n") == 1


def test_no_cell_of_the_csv_is_a_formula(tmp_path: Path, typed: Typed) -> None:
    write(tmp_path / "results", a=gsm8k_file(pretrained="=cmd|x"), b=gsm8k_file(pretrained="+1"))
    typed("build", tmp_path / "results", "--output", tmp_path / "site")
    table = (tmp_path / "site" / "leaderboard.csv").read_text()
    assert ",'=cmd|x," in table
    assert ",'+1," in table
    assert ",=" not in table
