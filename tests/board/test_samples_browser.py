"""The page of single questions in a real browser: filters, replays, keys, hostile texts; and its size."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board.test_board_browser import browser, media, resize  # noqa: F401  # skips this file too without a browser

from mdlm_leaderboard.__main__ import main  # isort: skip
from mdlm_lm_eval.decoding.trace import Event, as_recorded, replay  # isort: skip
from selenium import webdriver  # isort: skip
from selenium.webdriver.common.by import By  # isort: skip
from selenium.webdriver.common.keys import Keys  # isort: skip
from selenium.webdriver.support.ui import Select, WebDriverWait  # isort: skip
from tests.support.sampled_runs import HOSTILE, WORDS, MASK, events_of, plain_trace, two_runs, write_run  # isort: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("samples")
    first, second = two_runs(folder)
    assert main(["samples", str(first), str(second.parent), "--output_path", str(folder / "out")]) == 0
    return (folder / "out" / "index.html").as_uri()


def opened(browser: webdriver.Chrome, address: str) -> None:  # noqa: F811
    browser.get("about:blank")
    browser.get(address)
    WebDriverWait(browser, 20).until(lambda page: page.execute_script("return document.body.dataset.ready") == "true")


@pytest.fixture
def page(browser: webdriver.Chrome, site: str) -> Iterator[webdriver.Chrome]:  # noqa: F811
    """The page, freshly opened; afterwards nothing was logged, and no text of a model has done anything."""
    browser.get_log("browser")
    opened(browser, site)
    yield browser
    media(browser, "")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_log("browser") == []
    assert browser.title.startswith("Questions of organisation/model (steps=8) and organisation/model (steps=4)")
    assert browser.find_elements(By.CSS_SELECTOR, "img, main script, main b") == []


def listed(page: webdriver.Chrome) -> list[str]:
    buttons = page.find_elements(By.CSS_SELECTOR, "#list button")
    return [one.get_attribute("aria-label").partition(":")[0] for one in buttons]


def choose(page: webdriver.Chrome, name: str, value: str) -> None:
    Select(page.find_element(By.NAME, name)).select_by_value(value)


def head(page: webdriver.Chrome) -> str:
    return page.find_element(By.CSS_SELECTOR, "#question h2").text


def test_questions_are_filtered(page: webdriver.Chrome) -> None:
    told = [f"Question {n} of told" for n in range(3)]
    assert listed(page) == [*told, "Question 0 of chosen"]
    for which, expected in (("flipped", [1]), ("lost", [1]), ("won", []), ("differs", [1, 2])):
        choose(page, "which", which)
        assert listed(page) == [told[n] for n in expected]
    choose(page, "which", "wrong")
    assert listed(page) == [*told[1:], "Question 0 of chosen"]
    choose(page, "task", "told")
    assert page.find_element(By.ID, "count").text == "2 of 4 questions; right in run 1: 1, in run 2: 0"
    choose(page, "order", "longest")
    assert listed(page) == [told[2], told[1]]
    page.find_element(By.NAME, "text").send_keys("TOKEN differs")
    assert listed(page) == [told[1]]


def test_a_question_shows_both_answers_and_their_difference(page: webdriver.Chrome) -> None:
    page.find_element(By.CSS_SELECTOR, "#list li:nth-child(2) button").send_keys(Keys.ENTER)
    question = page.find_element(By.ID, "question")
    assert head(page) == "told, question 1"
    assert [one.text for one in question.find_elements(By.CSS_SELECTOR, ".difference > *")] == ["word", "token"]
    assert [one.text for one in question.find_elements(By.CSS_SELECTOR, "h3 > span:first-child")] == ["✓", "✗"]
    prompt = question.find_element(By.TAG_NAME, "details")
    assert prompt.get_attribute("open") is None
    prompt.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert "question question" in prompt.text
    assert "target 1" in question.text
    assert len(question.find_elements(By.CLASS_NAME, "traced")) == 2


def test_a_single_run_marks_its_answer_against_the_target(browser: webdriver.Chrome, tmp_path: Path) -> None:  # noqa: F811
    run = write_run(tmp_path / "run", ["a target 0", "target 1"], [0, 1], [], {})
    assert main(["samples", str(run), "--output_path", str(tmp_path / "out")]) == 0
    opened(browser, (tmp_path / "out" / "index.html").as_uri())
    wrong, right, chosen = browser.find_elements(By.CSS_SELECTOR, "#list button")
    assert "question question" in wrong.text
    assert "target" not in wrong.text
    question = browser.find_element(By.ID, "question")
    assert "From the answer to the target" in question.text
    assert [one.text for one in question.find_elements(By.CSS_SELECTOR, ".difference del")] == ["a", " "]
    right.click()
    assert "From the answer" not in question.text
    chosen.click()
    assert "</script>" in question.find_element(By.CSS_SELECTOR, "h3 + .text").text  # the target's text, not its place
    ticked = [row for row in question.find_elements(By.CSS_SELECTOR, "tbody tr") if "✓" in row.text]
    assert len(ticked) == 1
    assert "-2.250" in ticked[0].text


def test_a_replay_outlines_wrong_tokens_and_shows_the_target(browser: webdriver.Chrome, tmp_path: Path) -> None:  # noqa: F811
    """Only where the answer has as many words as the target, so that each word has its own."""
    words = {MASK: "<|mask|>", 10: "tar", 11: "get", 12: " 7", 13: " and more"}
    traces = [
        {"doc_id": n, "prompt_hash": f"p{n}", "repetition": 0, "ending": "cut", "text": text, "returned": len(ids)}
        | as_recorded([MASK] * len(ids), 0, [Event(k + 1, k, MASK, id, 0.5) for k, id in enumerate(ids)])
        | {"blocks": str(len(ids)), "steps": " ".join("1" * len(ids))}
        for n, (text, ids) in enumerate((("target 7", [10, 11, 12]), ("target 7 and more", [10, 11, 12, 13])))
    ]
    run = write_run(tmp_path / "run", [str(one["text"]) for one in traces], [0, 0], traces, words)
    assert main(["samples", str(run), "--output_path", str(tmp_path / "out")]) == 0
    opened(browser, (tmp_path / "out" / "index.html").as_uri())
    traced = browser.find_element(By.CLASS_NAME, "traced")
    (marked,) = traced.find_elements(By.CSS_SELECTOR, ".canvas .wrong-one")
    assert marked.text.strip() == "7"
    assert marked.get_attribute("title").endswith("wrong: the target has “0”")
    assert "Target: target 0" in traced.text
    traced.find_element(By.CSS_SELECTOR, "input").send_keys(Keys.ARROW_LEFT)
    assert traced.find_elements(By.CSS_SELECTOR, ".canvas .wrong-one") == [], (
        "the wrong token is written in the last pass"
    )
    browser.find_element(By.CSS_SELECTOR, "#list li:nth-child(2) button").click()
    assert browser.find_elements(By.CLASS_NAME, "wrong-one") == []


def test_choices_show_the_log_likelihood_of_each(page: webdriver.Chrome) -> None:
    page.find_element(By.CSS_SELECTOR, "#list li:nth-child(4) button").click()
    rows = page.find_elements(By.CSS_SELECTOR, "#question tbody tr")
    assert [[one.text for one in row.find_elements(By.CLASS_NAME, "num")] for row in rows] == [
        ["-1.500 ◂", "-1.500 ◂"],
        ["-2.250", "-2.250"],
    ]
    assert "</script>" in rows[1].text


def spelled(id: int) -> str:
    return {MASK: "▒ ", 61: "⟨U+202E⟩ab", 62: "↵\n", 63: "⟨⟩"}.get(id, WORDS[id])


@pytest.mark.parametrize("question", range(3))
def test_the_slider_replays_the_canvas(page: webdriver.Chrome, question: int) -> None:
    """Pass by pass it is the canvas that the events give in Python, with what was taken back or changed marked."""
    page.find_element(By.CSS_SELECTOR, f"#list li:nth-child({question + 1}) button").click()
    place = page.find_element(By.CLASS_NAME, "traced")
    slider = place.find_element(By.CSS_SELECTOR, "input")
    canvas = [MASK] * 12
    events = events_of(random.Random(question), 12, 6)
    slider.send_keys(Keys.HOME)
    expected = [(0, canvas), *replay(canvas, events)]
    marks = set()
    for step, ids in expected:
        tokens = place.find_elements(By.CSS_SELECTOR, ".canvas .token")
        shown = [one.get_property("textContent") for one in tokens]
        assert shown == [spelled(id) for id in ids]
        assert place.find_element(By.TAG_NAME, "output").text.startswith(f"pass {step} of ")
        marks |= {kind for one in tokens for kind in one.get_attribute("class").split()}
        slider.send_keys(Keys.ARROW_RIGHT)
    assert {"mask", "now", "block"} <= marks
    assert ("after" in marks) == any(id != MASK for _, ids in expected for id in ids[10:])
    rewritten = [event for event in events if event.old not in (None, MASK) and event.new is not None]
    assert ("back" in marks) == any(event.new == MASK for event in rewritten)
    assert ("changed" in marks) >= any(event.new != MASK for event in rewritten)
    assert ("changed" in marks) <= bool(rewritten)
    assert place.find_element(By.CLASS_NAME, "ending").text == "◼ stop string"


def test_keys_go_from_question_to_question_and_token_to_token(page: webdriver.Chrome) -> None:
    body = page.find_element(By.TAG_NAME, "body")
    assert head(page) == "told, question 1", "the first that flipped"
    body.send_keys("j", "k", "k")
    assert head(page) == "told, question 0"
    assert page.current_url.endswith("#0")
    canvas = page.find_element(By.CLASS_NAME, "canvas")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    about = page.find_element(By.CLASS_NAME, "about").text
    assert about.startswith("token 2, ")
    assert "pass " in about or "mask" in about
    body.send_keys("/")
    assert page.switch_to.active_element.get_attribute("name") == "text"


def test_a_hostile_answer_is_text(page: webdriver.Chrome) -> None:
    """Characters without a shape, and those that turn the direction of a text, are named."""
    page.find_element(By.CSS_SELECTOR, "#list li:nth-child(3) button").click()
    (answer, *_) = page.find_elements(By.CSS_SELECTOR, "#question h3 + .text")[-2:]
    shown = HOSTILE.replace("\u202e", "⟨U+202E⟩").replace("\x07", "⟨U+0007⟩").replace("\x00", "⟨U+0000⟩")
    assert answer.get_property("textContent") == shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_it_fits_narrow_pages_and_dark_ones(page: webdriver.Chrome, site: str, width: int, scheme: str) -> None:
    media(page, scheme)
    resize(page, width)
    opened(page, site)
    for n in (1, 3, 4):
        page.find_element(By.CSS_SELECTOR, f"#list li:nth-child({n}) button").click()
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")


def test_more_questions_than_the_list_shows_at_once_are_small(browser: webdriver.Chrome, tmp_path: Path) -> None:  # noqa: F811
    """The list begins with 500; each answer has 512 tokens, so that a thousand questions are below 20 MB."""
    draw = random.Random(0)
    words = {MASK: "<|mask|>", **{id: f" {id:x}" for id in range(10, 30000)}}
    paths = []
    for name in ("a", "b"):
        texts = [" ".join(draw.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(400)) for _ in range(510)]
        traces = [plain_trace(n, 512, text, draw) for n, text in enumerate(texts)]
        rights = [draw.randrange(2) for _ in texts]
        paths.append(write_run(tmp_path / name, texts, rights, traces, words, steps=len(name) + 7))
    assert main(["samples", *map(str, paths), "--output_path", str(tmp_path / "out")]) == 0
    page = tmp_path / "out" / "index.html"
    assert page.stat().st_size < 10e6
    opened(browser, page.as_uri())
    assert browser.find_element(By.ID, "count").text == "511 of 511 questions; right in run 1: 281, in run 2: 249"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#question .token")) > 1000
