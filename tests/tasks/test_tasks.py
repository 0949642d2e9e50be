"""The few-shot suite: its words, questions, prompts, task files and settings."""

import hashlib
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.tasks import generate, questions
from tests.conftest import drawn_questions, evaluate, fake_template, refused, requests_of, suite
from tests.support.local_tasks import Stub

LISTS = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (tasks_path() / "words").glob("*.txt")}
CAPITALISED = {"country", "name"}
CLOSED = {"colour": 30, "fruit": 44, "preposition": 41}  # of these, English has few that are common and nothing else


@pytest.mark.parametrize("category", sorted(LISTS))
def test_words_are_many_single_and_cased_alike(category: str) -> None:
    words = LISTS[category]
    assert len(words) >= CLOSED.get(category, 50)
    assert all(word.isalpha() for word in words), [word for word in words if not word.isalpha()]
    cased = str.capitalize if category in CAPITALISED else str.lower
    assert [word for word in words if word != cased(word)] == []
    assert words == sorted(words)


def test_no_word_occurs_twice() -> None:
    words = [word.lower() for word in chain.from_iterable(LISTS.values())]
    assert sorted(word for word in set(words) if words.count(word) > 1) == []


def test_words_that_could_be_of_two_categories_are_in_none() -> None:
    arguable = (
        "orange rose turkey china light kind chicken chad jordan georgia play fast present hammer like near past clear "
        "keen bold gentle tough pillow in above bear duck tan melancholy"
    )
    assert {word.lower() for word in chain.from_iterable(LISTS.values())} & set(arguable.split()) == set()


POSITIONS = (0, 10, 20, 30, 40)
FOLDERS = {Path(path).parent.name for path in generate.files()}
PROMPTS_SHA256 = "1f1b82823b300b6ab83afc609d779de60a39edea594800b0eaa016d6a38e5ad8"


def load(name: str, **metadata: Any) -> Any:
    """A task with these settings, from its folder, or with the default ones."""
    folder = str(suite()._index[name].yaml_path.parent)
    manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata) if metadata else suite()
    return manager.load([name])["tasks"][name]


def requests(name: str, limit: int | None = None, chat: bool = False, **metadata: object) -> list[tuple[str, dict]]:
    return requests_of(load(name, **metadata), limit, chat=chat)


def prompt(name: str, **metadata: object) -> str:
    return requests(name, limit=1, **metadata)[0][0]


def test_plain_prompt_character_for_character() -> None:
    few = {"fewshot_relevant": 1, "fewshot_distractors": 2}
    word = "Options: (A) Russia, (B) Tristan, (C) Melissa\nAnswer:[A].\n\n"
    two = "Options: (A) 105, (B) 931, (C) 778\nAnswer:[B].\n\n"
    one = "Options: (A) 572, (B) 467, (C) 928\nAnswer:[C].\n\n"
    asked = "Options: (A) Patrick, (B) Hungary, (C) Ryan\nAnswer:["
    slot = asked + "<|mask|>].\n\n"
    assert prompt("mdlm_country_largest", fewshot_relevant=0, fewshot_distractors=0) == asked
    assert prompt("mdlm_country_largest_pos0", **few) == word + two + one + asked
    assert prompt("mdlm_country_largest_right_pos0", **few) + "\n\n" == word + two + one + slot


def test_answers_are_balanced_and_questions_differ() -> None:
    for rule in questions.WRONG_CATEGORIES:
        for distractor in questions.DISTRACTOR_RULES:
            tests = drawn_questions(rule, distractor)
            assert Counter(question.answer for question in tests) == {0: 334, 1: 333, 2: 333}
            assert len({question.options for question in tests}) == 1000
            assert all(map(questions.is_reserved_for_tests, tests))
            relevant = questions.relevant_examples(rule, distractor, 10)
            distractors = questions.distractor_examples(rule, distractor, 40)
            examples = {question.options for question in [*relevant, *distractors]}
            assert len(examples) == 50
            assert not any(map(questions.is_reserved_for_tests, [*relevant, *distractors]))
            assert not examples & {question.options for question in tests}
            for group in (relevant, distractors):
                counts = Counter(question.answer for question in group)
                assert max(counts.values()) - min(counts[answer] for answer in range(3)) <= 1


def test_the_right_option_alone_follows_the_rule() -> None:
    words = questions.load_words()
    for rule, wrong in questions.WRONG_CATEGORIES.items():
        for question in drawn_questions(rule, "smallest")[:50]:
            others = [option for index, option in enumerate(question.options) if index != question.answer]
            assert question.options[question.answer] in words[rule]
            assert all(any(option in words[category] for category in wrong) for option in others)
    for rule, extreme in (("smallest", min), ("largest", max)):
        for question in questions.distractor_examples("verb", rule, 40):
            numbers = [int(option) for option in question.options]
            assert numbers[question.answer] == extreme(numbers)
            assert len(set(numbers)) == 3
            assert 1 <= min(numbers) <= max(numbers) <= 1000


def test_prompts_are_the_published_ones() -> None:
    digest = hashlib.sha256()
    for text, _ in requests("mdlm_verb_smallest"):
        digest.update(text.encode() + b"\0")
    assert digest.hexdigest() == PROMPTS_SHA256


def test_a_block_moves_through_distractors_that_stay() -> None:
    parts = {p: prompt(f"mdlm_emotion_smallest_pos{p}").split("\n\n") for p in POSITIONS}
    relevant, distractors = parts[0][:10], parts[0][10:50]
    assert not any(part.split()[2].rstrip(",").isdigit() for part in relevant)
    for p in POSITIONS:
        assert parts[p] == [*distractors[:p], *relevant, *distractors[p:], parts[0][50]]
    mixed = prompt("mdlm_emotion_smallest").split("\n\n")
    assert sorted(mixed) == sorted(parts[0])
    assert mixed[-1] == parts[0][-1]
    assert mixed not in parts.values()


def test_a_fixed_slot_question_stands_left_middle_or_right() -> None:
    examples = prompt("mdlm_emotion_smallest_pos10").split("\n\n")
    asked = examples.pop() + "<|mask|>]."
    for place, n_before in (("left", 0), ("middle", 25), ("right", 50)):
        ((text, arguments),) = requests(f"mdlm_emotion_smallest_{place}_pos10", limit=1)
        assert text.split("\n\n") == [*examples[:n_before], asked, *examples[n_before:]]
        assert arguments == {"max_gen_toks": 1, "until": [], "infill": True}
    assert prompt("mdlm_emotion_smallest_slot") == prompt("mdlm_emotion_smallest") + "<|mask|>]."
    assert requests("mdlm_emotion_smallest", limit=1)[0][1] == {"max_gen_toks": 1, "until": []}


def test_chat_messages_are_pairs_with_a_prefilled_answer() -> None:
    few = {"fewshot_relevant": 1, "fewshot_distractors": 1}
    plain = prompt("mdlm_verb_largest", **few)
    chat = "<user>" + plain.replace("\n\n", "<user>").replace("\n", "<assistant>")
    assert requests("mdlm_verb_largest", limit=1, chat=True, **few)[0][0] == chat
    assert chat.endswith("<assistant>Answer:[")

    name = "mdlm_verb_largest_middle_pos0"
    before, asked, after = prompt(name, **few).split("\n\n")
    assert requests(name, limit=1, chat=True, **few)[0][0] == "<user>" + "<user>".join(
        part.replace("\n", "<assistant>") for part in (before, asked, after)
    )
    assert asked.endswith("\nAnswer:[<|mask|>].")


def test_system_instruction_comes_first() -> None:
    task = load("mdlm_verb_largest")
    document = task.eval_docs[0]
    assert task.fewshot_context(document, 50, "Obey.").startswith("Obey.\n\nOptions: (A) ")
    chat = task.fewshot_context(document, 50, "Obey.", True, True, fake_template)
    assert chat.startswith("<system>Obey.<user>Options: (A) ")


def test_settings_change_the_examples() -> None:
    few = prompt("mdlm_colour_largest_pos0", fewshot_relevant="3", fewshot_distractors=5).split("\n\n")
    many = prompt("mdlm_colour_largest_pos0").split("\n\n")
    assert few == [*many[:3], *many[10:15], many[-1]]
    other = prompt("mdlm_colour_largest_pos0", fewshot_seed=2, pretrained="model arguments stand beside the settings")
    assert not set(other.split("\n\n")) & set(many)
    hidden = prompt("mdlm_colour_largest_pos0", fewshot_labels="hidden").split("\n\n")
    assert hidden == [*(re.sub("[ABC](?=].$)", "?", text) for text in many[:10]), *many[10:]]
    task = load("mdlm_colour_largest", fewshot_relevant=5)
    assert task.dump_config()["metadata"].items() >= {
        ("version", "2.2"),
        ("fewshot_relevant", 5),
        ("fewshot_distractors", 40),
        ("fewshot_seed", 1),
        ("fewshot_labels", "true"),
        ("arrangement", "mixed"),
    }


@pytest.mark.parametrize(("name", "metadata", "sentence"), refused("lm_eval --metadata"))
def test_wrong_settings_are_refused(name: str, metadata: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load(name, **metadata)


@pytest.mark.parametrize("n", [0, 5, 50])
def test_num_fewshot_is_refused_before_the_model_runs(n: int) -> None:
    lm = Stub("A")
    wanted = "fewshot_relevant=0 fewshot_distractors=0" if n == 0 else "fewshot_relevant="
    with pytest.raises(OptionError, match=rf"num_fewshot={n} does not say .* --metadata {wanted}"):
        evaluate(lm, ["mdlm_verb_smallest"], num_fewshot=n)
    assert not lm.asked


def test_single_turn_chat_is_refused() -> None:
    task = load("mdlm_verb_smallest")
    with pytest.raises(OptionError, match="fewshot_as_multiturn must be true"):
        task.build_all_requests(limit=1, apply_chat_template=True, chat_template=fake_template)


def test_scores_and_their_mean() -> None:
    results = evaluate(Stub("A"), ["mdlm_context"], limit=100, bootstrap_iters=2)
    rights = {
        f"mdlm_{rule}_{distractor}": [question.answer == 0 for question in drawn_questions(rule, distractor)]
        for rule in questions.WRONG_CATEGORIES
        for distractor in questions.DISTRACTOR_RULES
    }
    expected = {name: mean(right[:100]) for name, right in rights.items()}
    scores = {name.rpartition("::")[2]: one["exact_match,none"] for name, one in results["results"].items()}
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert len(results["results"]) == 17
    assert results["groups"]["mdlm_context"]["exact_match,none"] == pytest.approx(mean(expected.values()))
    assert results["groups"]["mdlm_context"]["exact_match_stderr,none"] == pytest.approx(0.0118, abs=1e-3)
    assert set(results["versions"].values()) == {"2.2"}
    assert set(results["n-shot"].values()) == {50}


def members_of(name: str) -> list[str]:
    """A group's members; of a task, itself."""
    members: str | list[str] = suite()._index[name].cfg["task"]
    return members if isinstance(members, list) else [members]


def test_groups_hold_every_task_once() -> None:
    counts = {"mdlm_context": 16, "mdlm_slot": 16, "mdlm_position": 80, "mdlm_locality": 240}
    counts |= {"mdlm_rules": 16, "mdlm_rules_slot": 16, "mdlm_rules_position": 80}
    names: list[str] = []
    for group, count in counts.items():
        leaves = [name for member in members_of(group) for name in members_of(member)]
        assert len(leaves) == count
        names += leaves
    index, folders = suite()._index, {"context", "slot", "position", "locality", "rules"}
    assert sorted(names) == sorted(n for n in suite().all_subtasks if index[n].yaml_path.parent.name in folders)
    assert len(set(names)) == 464


def test_tags_and_short_names() -> None:
    index = suite()._index
    tagged = index["mdlm_animal"].tags
    assert len(tagged) == 44
    assert {index[name].cfg["rule"] for name in tagged} == {"animal"}
    results = evaluate(Stub("A"), ["mdlm_animal_largest_pos10"], limit=1)
    assert results["results"]["mdlm_animal_largest_pos10"]["alias"] == "animal_largest_pos10"


def test_committed_files_are_the_generated_ones() -> None:
    committed = {
        path.relative_to(tasks_path()).as_posix(): path.read_text(encoding="utf-8")
        for path in tasks_path().rglob("*.yaml")
        if path.parent.name in FOLDERS
    }
    assert committed == generate.files()
    readme = (tasks_path() / "README.md").read_text(encoding="utf-8")
    assert readme == generate.readme(readme)
