"""The built page in a real browser: sorting, filtering and opening rows, without errors or requests."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mdlm_leaderboard.figures import draw_figures
from mdlm_leaderboard.page import write_page
from tests.leaderboard_boards import sample_board
from tests.test_leaderboard_page import hostile_board

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
if not (BROWSER and DRIVER):
    pytest.skip("neither Chromium nor Chrome with its chromedriver is installed", allow_module_level=True)
pytest.importorskip("selenium")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,900",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site")
    draw_figures(sample_board(), folder)
    return write_page(sample_board(), folder).as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, site: str) -> Iterator[webdriver.Chrome]:
    """The page, freshly opened; afterwards it must not have logged or asked the network for anything."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(site)
    yield browser
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def shown(page: webdriver.Chrome) -> list[str]:
    """The ids of the rows that can be seen, in their order."""
    return [
        row.get_attribute("id") or "" for row in page.find_elements(By.CSS_SELECTOR, ".entry") if row.is_displayed()
    ]


def head(page: webdriver.Chrome, text: str) -> webdriver.remote.webelement.WebElement:
    """The head of the first table's column that starts with `text`."""
    heads = page.find_element(By.TAG_NAME, "table").find_elements(By.CSS_SELECTOR, "th[data-sort]")
    return next(one for one in heads if (one.get_attribute("textContent") or "").split()[0] == text)


def test_a_column_sorts_both_ways_and_says_so(page: webdriver.Chrome) -> None:
    column = head(page, "200")
    assert column.get_attribute("aria-sort") == "none"
    column.find_element(By.TAG_NAME, "button").click()
    assert column.get_attribute("aria-sort") == "descending"
    by_accuracy = ["base-ma", "dream-org-dream-v0-base-7b", "base-ce", "base-40-confidence", "instruct-ma"]
    assert shown(page)[:5] == by_accuracy
    assert shown(page)[9] == "qwen-qwen2-5-7b", "rows without a value come last"
    column.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert column.get_attribute("aria-sort") == "ascending"
    assert shown(page)[0] == "gsai-ml-llada-8b-instruct"
    assert shown(page)[9] == "qwen-qwen2-5-7b"
    name = head(page, "model")
    name.find_element(By.TAG_NAME, "button").click()
    assert (name.get_attribute("aria-sort"), column.get_attribute("aria-sort")) == ("ascending", "none")
    assert shown(page)[0] == "dream-org-dream-v0-base-7b"


def test_search_and_choices_filter_rows(page: webdriver.Chrome) -> None:
    count = page.find_element(By.ID, "count")
    assert count.text == "12 of 12 rows"
    search = page.find_element(By.NAME, "text")
    search.send_keys("INSTRUCT ma-ce")
    assert shown(page) == ["instruct-ma"]
    assert count.text == "1 of 12 rows"
    search.clear()
    search.send_keys(Keys.SPACE)
    Select(page.find_element(By.NAME, "family")).select_by_visible_text("dream")
    assert shown(page) == ["dream-org-dream-v0-base-7b", "dream-limit"]
    Select(page.find_element(By.NAME, "family")).select_by_visible_text("all")
    Select(page.find_element(By.NAME, "origin")).select_by_visible_text("published")
    assert shown(page) == ["published-llada-8b-base"]
    assert page.find_element(By.CSS_SELECTOR, ".none").is_displayed()
    Select(page.find_element(By.NAME, "origin")).select_by_visible_text("all")
    Select(page.find_element(By.NAME, "steps")).select_by_visible_text("40")
    assert shown(page) == ["base-40-random", "base-40-confidence", "instruct-40-random"]


def test_a_row_opens_by_keyboard_to_curves_command_settings_and_versions(page: webdriver.Chrome) -> None:
    row = page.find_element(By.ID, "base-ma")
    detail = page.find_element(By.ID, "base-ma-detail")
    toggle = row.find_element(By.CSS_SELECTOR, ".name button")
    assert toggle.get_attribute("aria-expanded") == "false"
    assert toggle.get_attribute("aria-controls") == "base-ma-detail"
    assert not detail.is_displayed()
    toggle.send_keys(Keys.ENTER)
    assert toggle.get_attribute("aria-expanded") == "true"
    assert detail.is_displayed()
    curves = detail.find_elements(By.CSS_SELECTOR, ".curve")
    assert len(curves) == 11
    assert all(curve.size["width"] > 100 for curve in curves)
    for text in ("lm_eval --model mdlm", "n_masks 200", "dtype bfloat16", "torch 2.13.0"):
        assert text in detail.text.replace("\n", " ")
    toggle.send_keys(Keys.SPACE)
    assert toggle.get_attribute("aria-expanded") == "false"
    assert not detail.is_displayed()


def test_a_copy_button_stands_beside_the_command(page: webdriver.Chrome) -> None:
    page.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    page.find_element(By.CSS_SELECTOR, "#base-ma .name button").click()
    page.find_element(By.CSS_SELECTOR, "#base-ma .command button").click()
    assert page.execute_script("return window.copied") == page.find_element(By.CSS_SELECTOR, "#base-ma pre").text


def test_columns_are_switched_on_and_off(page: webdriver.Chrome) -> None:
    left = page.find_element(By.CSS_SELECTOR, "tbody .g-positions-left")
    box = page.find_element(By.CSS_SELECTOR, "[name=columns][value=positions-left]")
    assert not left.is_displayed()
    box.send_keys(Keys.SPACE)
    assert left.is_displayed()


def test_a_link_to_a_row_opens_it(page: webdriver.Chrome, site: str) -> None:
    page.get(f"{site}#base-ce")
    assert page.find_element(By.ID, "base-ce-detail").is_displayed()


def test_every_figure_is_shown(page: webdriver.Chrome) -> None:
    loaded = page.execute_async_script(
        "const done = arguments[0]; const images = [...document.images];"
        "images.forEach((image) => image.loading = 'eager');"
        "Promise.all(images.map((image) => image.decode())).then("
        "() => done(images.map((image) => image.naturalWidth)), (error) => done([String(error)]));"
    )
    assert len(loaded) == 10
    assert all(width > 200 for width in loaded)


@pytest.mark.parametrize("width", [320, 380, 768])
def test_a_phone_scrolls_tables_and_not_the_page(page: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.find_element(By.CSS_SELECTOR, "#base-ma .name button").click()
        widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
        assert page.execute_script(widths) == [width, width]
        body = page.find_element(By.CSS_SELECTOR, "#base-ma .body")
        assert body.size["width"] <= width
        hits = "return [...document.querySelectorAll('button, select')].filter(e => e.checkVisibility()).length"
        assert page.execute_script(hits) > 10
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_readers_colour_scheme(page: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        colours = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        light, dark = "rgb(255, 255, 255)", "rgb(22, 24, 27)"
        assert page.execute_script(colours)[0] == {"light": light, "dark": dark}[scheme]
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_scripts_in_names_are_shown_and_not_run(browser: webdriver.Chrome, tmp_path: Path) -> None:
    draw_figures(hostile_board(), tmp_path)
    browser.get_log("browser")
    browser.get(write_page(hostile_board(), tmp_path).as_uri())
    browser.find_element(By.CSS_SELECTOR, "#bad .name button").click()
    assert "<script>alert(1)</script>" in browser.find_element(By.ID, "bad").text
    assert browser.get_log("browser") == []


def test_without_script_the_table_and_its_details_are_there(browser: webdriver.Chrome, site: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(site)
        assert browser.find_element(By.ID, "base-ma").is_displayed()
        assert not browser.find_element(By.CSS_SELECTOR, ".filters").is_displayed()
        details = browser.find_element(By.CSS_SELECTOR, "#base-ma-detail details")
        body = details.find_element(By.CSS_SELECTOR, ".body")
        assert not body.is_displayed()
        details.find_element(By.TAG_NAME, "summary").click()
        assert body.is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
