"""The generated tasks beside the suite: what they ask, what counts as right and can be reached in parallel."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import datasets
import lm_eval
import pytest
import yaml
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.results.suite import current_version
from mdlm_lm_eval.tasks import croissant, generate, questions
from tests.conftest import data, generation, load_task, stand_in_for_code_eval, suite

Document = dict[str, Any]
SINGLE_ANSWERS = ("copy", "reverse", "sort", "insert_index", "remove_index", "replace_index")
# New digests need `python -m benchmarks.frozen_questions`, which finds out what is promised of these questions.
QUESTIONS = {
    "infill": "dd894fa7ae3a5a6d",
    "parallel": "744c48e1b21bc77f",
    "planning": "36567deb333c03d9",
}  # digests of all documents
SEVERAL_ANSWERS = ("shuffle", "insert_anywhere", "remove_any", "replace_any", "latin_square")


task = cache(load_task)


@cache
def documents(name: str) -> list[Document]:
    return list(task(name).test_docs())


def grade(name: str, doc: Document, answer: str) -> float:
    return task(name).process_results(doc, [answer])["exact_match"]


# A second grader, by what an answer must have and not by a list of answers.


def is_right(doc: Document, answer: list[str]) -> bool:
    names, index, new, n = doc["names"], doc["index"], doc["new"], len(doc["names"])
    differing = sum(a != b for a, b in zip(answer, names, strict=False))
    without = [[*names[:at], *names[at + 1 :]] for at in range(n)]
    match doc["operation"]:
        case "copy":
            return answer == names
        case "reverse":
            return list(reversed(answer)) == names
        case "sort":
            return Counter(answer) == Counter(names) and all(a < b for a, b in pairwise(answer))
        case "shuffle":
            return Counter(answer) == Counter(names) and differing > 0
        case "insert_index":
            return len(answer) == n + 1 and answer[index] == new and answer[:index] + answer[index + 1 :] == names
        case "insert_anywhere":
            return answer.count(new) == 1 and [name for name in answer if name != new] == names
        case "remove_index":
            return answer == without[index]
        case "remove_any":
            return answer in without
        case "replace_index":
            return len(answer) == n and differing == 1 and answer[index] == new
        case "replace_any":
            return len(answer) == n and differing == 1 and answer.count(new) == 1
        case "latin_square":
            rows = [answer[start : start + n] for start in range(0, n * n, n)]
            lines = [*rows, *map(list, zip(*rows, strict=False))]
            return len(answer) == n * n and len(lines) == 2 * n and all(sorted(row) == sorted(names) for row in lines)
    raise AssertionError(doc["operation"])


def candidates(doc: Document, rng: Random) -> list[list[str]]:
    """Right and wrong answers of every kind: the list itself, other orders, insertions, removals, replacements."""
    names, new = doc["names"], doc["new"]
    at = rng.randrange(len(names))
    shuffled = rng.sample(names, len(names))
    shifts = [names[n:] + names[:n] for n in range(len(names))]
    return [
        *(names, names[::-1], sorted(names), shuffled, names[1:], names[:-1], [*names, new], [new, *names], []),
        *([*names[:at], new, *names[at:]], [*names[:at], new, *names[at + 1 :]], [*names[:at], *names[at + 1 :]]),
        *([*names, names[0]], [name for row in shifts for name in row], names * len(names)),
        *([*names[: doc["index"]], new, *names[doc["index"] :]], [*names[: doc["index"]], *names[doc["index"] + 1 :]]),
        [*names[: doc["index"]], new, *names[doc["index"] + 1 :]],
    ]


@pytest.mark.parametrize("operation", [*SINGLE_ANSWERS, *SEVERAL_ANSWERS])
def test_two_graders_agree_on_lists(operation: str) -> None:
    name, rng, n_right = f"mdlm_parallel_{operation}", Random(0), 0
    for doc in documents(name):
        for answer in candidates(doc, rng):
            right = is_right(doc, answer)
            assert grade(name, doc, f" {', '.join(answer)}") == right, (doc["prompt"], answer)
            n_right += right
        assert doc["prompt"].count("\nList: ") == 2
        assert doc["prompt"].endswith(f"{', '.join(doc['names'])}\nAnswer:")
    assert n_right >= 100  # each question has a right answer among the candidates


def test_walks_step_along_tracks() -> None:
    rng, name = Random(0), "mdlm_parallel_walk"
    for doc in documents(name):
        neighbours: dict[str, list[str]] = {}
        for a, b in doc["edges"]:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        walk = [doc["start"]]
        while len(walk) <= doc["length"]:
            walk.append(rng.choice(neighbours[walk[-1]]))
        assert grade(name, doc, " " + ", ".join(walk[1:])) == 1
        assert grade(name, doc, ", ".join(walk)) == 0  # the start is no step
        assert grade(name, doc, ", ".join(walk[1:-1])) == 0
        assert grade(name, doc, ", ".join([*walk[1:-1], walk[-2]])) == 0


def test_countdown_questions_have_the_chain_they_were_made_by() -> None:
    for n in (3, 4, 5):
        name = f"mdlm_countdown_{n}"
        for doc in documents(name):
            assert len(doc["numbers"]) == n
            assert doc["prompt"].count("Input: ") == 9
            assert grade(name, doc, f" {doc['solution']}") == 1
            assert grade(name, doc, doc["solution"].partition(",")[0]) == 0
            assert grade(name, doc, f"{doc['target']}") == 0


@pytest.mark.parametrize(("answer", "right"), data("cases.json")["countdown"])
def test_countdown_takes_any_right_chain(answer: str, right: int) -> None:
    doc = {"numbers": [86, 28, 13, 31], "target": 96}
    assert task("mdlm_countdown_4").process_results(doc, [answer])["exact_match"] == right


def test_sudoku_grids_are_graded_by_their_solution() -> None:
    for n in range(4, 13):
        name = f"mdlm_sudoku_{n}"
        for doc in documents(name):
            cells = doc["grid"].replace("\n", "")
            assert cells.count("0") == n
            assert grade(name, doc, doc["solution"]) == 1
            assert grade(name, doc, f"\n{doc['solution']}\n\nInput:".replace("\n", "\r\n")) == 1
            assert grade(name, doc, doc["grid"]) == 0


def planning_strings() -> Iterator[tuple[str, Document, str]]:
    """1,000 answers to countdown and Sudoku, the right one and what one or two random changes make of it."""
    rng = Random(0)

    def one_of(some: Sequence[Any]) -> Any:
        return some[int(rng.random() * len(some))]

    for n, name in product(range(125), ("mdlm_countdown_3", "mdlm_countdown_4", "mdlm_sudoku_4", "mdlm_sudoku_10")):
        doc = documents(name)[n % 100]
        signs = "\n1234" if "sudoku" in name else "0123456789+-*/=,"
        yield name, doc, doc["solution"]
        answer = list(doc["solution"])
        for _ in range(1 + int(2 * rng.random())):
            at = int(rng.random() * len(answer))
            answer[at : at + int(2 * rng.random())] = one_of(signs) * int(2 * rng.random())
        steps = "".join(answer).split(",")
        if "countdown" in name and rng.random() < 0.5:  # other orders of terms and steps, some of them right
            steps = [re.sub(r"^(\d+)([+*])(\d+)=", r"\3\2\1=", step) for step in doc["solution"].split(",")]
            steps = steps[:: one_of([1, -1])]
        yield name, doc, ",".join(steps)


def test_verdicts_are_those_of_dreams_evaluation() -> None:
    """`cd_metric` and `is_valid_sudoku` of github.com/DreamLM/Dream (eval) gave these, a bit each, the first highest.

    Both were run on these strings once; what follows here is their answers alone.
    """
    strings = list(planning_strings())
    verdicts = f"{int(data('cases.json')['verdicts of Dream'], 16):0{len(strings)}b}"
    assert len(strings) == len(verdicts) == 1000
    assert verdicts.count("1") > 500
    found = "".join(f"{grade(name, doc, answer):.0f}" for name, doc, answer in strings)
    differ = {answer for (_, _, answer), ours, theirs in zip(strings, found, verdicts, strict=True) if ours != theirs}
    # Chains that use a result before it is there, or the target as a number: theirs takes them.
    assert differ == {"56/1=56,92-36=56", "41+15=56,56-41=15,74-18=56"}


def test_reversals_ask_about_the_same_facts_in_both_orders() -> None:
    given, asked_back = documents("mdlm_reversal_as_given"), documents("mdlm_reversal_reversed")
    for one, other in zip(given, asked_back, strict=True):
        facts = other["prompt"].split("\n\n")[-1].split("\n")[0]
        assert facts == one["prompt"].split("\n\n")[-1].split("\n")[0]
        assert facts.count(one["answer"]) == facts.count(other["answer"]) == 1
        assert f" of {other['answer']} is {one['answer']}." in facts
    for rule in (0, -1):  # the first or the last name that the facts name
        rate = mean(
            doc["prompt"].split("\n\n")[-1].split("\n")[0].rstrip(".").split()[rule] == doc["answer"] for doc in given
        )
        assert rate < 1 / 6 + 0.1
    assert grade("mdlm_reversal_as_given", given[0], f" {given[0]['answer']}.") == 1


@pytest.mark.parametrize("kind", ["sentence", "line"])
def test_a_middle_is_asked_with_and_without_what_follows(kind: str) -> None:
    inside, before = documents(f"mdlm_infill_{kind}"), documents(f"mdlm_infill_{kind}_prefix")
    assert [doc["answer"] for doc in inside] == [doc["answer"] for doc in before]
    most_common = Counter(doc["answer"] for doc in before).most_common(1)[0][1]
    assert most_common < 0.1 * len(before)
    for one, other in zip(inside, before, strict=True):
        assert one["prompt"].startswith(other["prompt"] + f"<|mask like {one['answer']}|>")
        assert grade(f"mdlm_infill_{kind}", one, f" {one['answer']}") == 1
        on = f"{one['answer']} Then"
        assert (grade(f"mdlm_infill_{kind}", one, on), grade(f"mdlm_infill_{kind}_prefix", other, on)) == (0, 1)
        assert grade(f"mdlm_infill_{kind}_prefix", other, f"{one['answer']}1") == 0


def test_slots_of_a_fixed_length_come_by_metadata() -> None:
    with_metadata = TaskManager(include_defaults=False, include_path=str(generate.FOLDER), metadata={"infill_masks": 8})
    (loaded,) = with_metadata.load(["mdlm_infill_line"])["tasks"].values()
    assert "<|mask:8|>" in next(iter(loaded.test_docs()))["prompt"]


def humaneval_task(folder: Path, **metadata: object) -> Any:
    """The single-line task on two rows with the published columns, of which the second middle is two lines."""
    common = {"entry_point": "add", "prompt": "def add(a, b):\n", "test": "def check(f):\n    assert f(2, 3) == 5\n"}
    rows = [
        {"suffix": "\n    return c\n", "canonical_solution": "    c = a + b"},
        {"suffix": "", "canonical_solution": "    c = a\n    return c + b\n"},
    ]
    lines = [json.dumps({"task_id": f"SingleLineInfilling/{n}", **common, **row}) for n, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    configs = [
        {"config_name": "HumanEval-SingleLineInfilling", "data_files": [{"split": "test", "path": "rows.jsonl"}]}
    ]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    config = folder / "task.yaml"
    source = generate.FOLDER / "humaneval_infill/mdlm_humaneval_infill_single_line.yaml"
    subset = {"subset": "HumanEval-SingleLineInfilling", "path": str(folder)}
    config.write_text(yaml.safe_dump({"include": str(source), "dataset_kwargs": subset}))
    (loaded,) = TaskManager(include_defaults=False, metadata=metadata).load([str(config)])["tasks"].values()
    return loaded


def test_humaneval_is_asked_with_the_suffix_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    stand_in_for_code_eval(monkeypatch)
    loaded = humaneval_task(tmp_path)
    assert loaded.config.unsafe_code
    loaded.build_all_requests()
    texts = [request.args[0] for request in loaded.instances]
    assert texts[0] == "def add(a, b):\n<|mask like     c = a + b|>\n    return c\n"
    lm = MDLM(steps=1)
    lm.generate_until(loaded.instances)
    lengths = [len(lm.tok_encode(doc["canonical_solution"], False)) for doc in loaded.eval_docs]
    recorded = lm.get_model_info()["mdlm"]["tasks"]["mdlm_humaneval_infill_single_line"]
    assert recorded["masks"] == [min(lengths), max(lengths)]
    for doc in loaded.eval_docs:
        assert loaded.process_results(doc, [doc["canonical_solution"]]) == {"pass@1": 1}
        assert loaded.process_results(doc, ["    c = a - b"]) == {"pass@1": 0}
    fixed = humaneval_task(tmp_path, infill_masks=16)
    assert all(doc["text"].count("<|mask:16|>") == 1 for doc in fixed.eval_docs)


def test_sheets_have_one_answered_question_and_others_of_its_rule() -> None:
    sheets = documents("mdlm_sheet")
    assert Counter(sheet["rule"] for sheet in sheets) == dict.fromkeys(questions.WRONG_CATEGORIES, 12)
    asked = []
    for sheet in sheets:
        (_, first), *others = (part.split("\nAnswer:[") for part in sheet["prompt"].split("\n\n"))
        assert first[0] in "ABC"
        assert [ending for _, ending in others] == ["<|mask|>]."] * 16
        asked += [(sheet["rule"], options) for options, _ in others]
        if sheet["rule"] in questions.load_words() and sheet["rule"] != "capitalised":
            words = {word.lower() for word in questions.load_words()[sheet["rule"]]}
            parts = [options.removeprefix("Options: ").split(", ") for options, _ in others]
            chosen = [options["ABC".index(letter)] for options, letter in zip(parts, sheet["answer"], strict=True)]
            assert all(option[len("(A) ") :].lower() in words for option in chosen)
    assert len(set(asked)) == len(asked) == 96 * 16


@pytest.mark.parametrize(
    ("answer", "scores"),
    [("ABCABCABCABCABCA", (1, 1)), ("ABwordABCABCABCABCA", (15 / 16, 0)), ("ABCA", (4 / 16, 0)), ("", (0, 0))],
)
def test_sheets_are_graded_by_letter_and_as_a_whole(answer: str, scores: tuple[float, float]) -> None:
    graded = task("mdlm_sheet").process_results({"answer": "ABCABCABCABCABCA"}, [answer])
    assert (graded["acc_slots"], graded["exact_match"]) == scores


def test_questions_are_the_same_everywhere() -> None:
    """Scores compare as long as they are; a change needs a new version and a line in the changelog."""
    found = {folder: hashlib.sha256() for folder in QUESTIONS}
    for path in sorted(generate.FOLDER.glob("*/mdlm_*.yaml")):
        if path.parent.name in QUESTIONS and "group:" not in path.read_text():
            found[path.parent.name].update(json.dumps(documents(path.stem), sort_keys=True).encode())
    assert {folder: digest.hexdigest()[:16] for folder, digest in found.items()} == QUESTIONS


def test_an_autoregressive_model_answers_what_has_no_slot(long_checkpoint: Path) -> None:
    tasks = ["mdlm_infill_line_prefix", "mdlm_countdown_3", "mdlm_sudoku_4", "mdlm_reversal_as_given"]
    arguments = {"pretrained": str(long_checkpoint), "device": "cpu", "max_length": 4096}
    result = lm_eval.simple_evaluate("hf", arguments, tasks=tasks, limit=1, bootstrap_iters=0, task_manager=suite())
    assert {name: scores["exact_match,none"] for name, scores in result["results"].items()} == dict.fromkeys(tasks, 0)


def test_a_slot_may_have_several_masks() -> None:
    lm = MDLM(n_masks="auto")
    texts = {"<|mask:3|>": 3, "<|mask like verb|>": 1, "<|mask|>": 1, "<|mask|> and <|mask|>": 2}
    for slot in texts:
        lm.generate_until([generation(f"knit is: {slot}.\n", task=slot, doc=0, infill=True, until=[])])
    found = lm.get_model_info()["mdlm"]["tasks"]
    assert {slot: found[slot]["masks"] for slot in texts} == {slot: [n, n] for slot, n in texts.items()}


def test_the_committed_description_is_that_of_the_command_and_has_all_groups(tmp_path: Path) -> None:
    described = json.loads(croissant.write(tmp_path, ["mdlm_parallel"]).read_text(encoding="utf-8"))
    committed = json.loads((tasks_path() / "croissant.json").read_text(encoding="utf-8"))
    assert [one["@id"] for one in committed["recordSet"]] == list(croissant.GROUPS)
    for part in ("distribution", "recordSet"):
        (one,) = described.pop(part)
        assert one in committed.pop(part), "run python -m mdlm_lm_eval.tasks.croissant"
    versions = described.pop("version"), committed.pop("version")
    assert versions == (task("mdlm_parallel_copy").config.metadata["version"], current_version())
    assert described | {"citeAs": described["citeAs"].replace(*versions)} == committed
