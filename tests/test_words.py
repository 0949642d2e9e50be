"""The suite's word lists."""

from itertools import chain

import pytest

from mdlm_lm_eval import tasks_path

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
