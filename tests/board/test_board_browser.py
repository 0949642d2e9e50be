"""The built page in a real browser: sorting, filtering, opening and comparing rows, without errors or requests."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from mdlm_leaderboard.__main__ import main
from tests.support.leaderboard_files import six_cells, suite_file, write

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
# CONTRIBUTING.md says how to install it.
AXE = Path(os.environ.get("AXE_CORE", Path(__file__).parents[3] / "node_modules/axe-core")) / "axe.min.js"
if not (BROWSER and DRIVER):
    pytest.skip("neither Chromium nor Chrome with its chromedriver is installed", allow_module_level=True)
pytest.importorskip("selenium")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
MORE_FLAGS = ("--disable-background-networking", "--disable-component-update", "--window-size=1300,900")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, *MORE_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three models, one with two seeds of an adapter, at three mask counts; a subset; benchmarks; what papers state."""
    folder = tmp_path_factory.mktemp("site")
    losses = {2: 0.0, 50: 0.05, 200: 0.15}
    contents = {}
    for name, best in (("LLaDA-8B-Base", 0.9), ("LLaDA-8B-Instruct", 0.85), ("Dream-v0-Base-7B", 0.8)):
        for n, lost in losses.items():
            model = {"pretrained": f"org/{name}", "weights": name, "accuracy": best - lost}
            contents[f"{name}{n}"] = suite_file(n_masks=n, **model)
    for seed in (0, 1):
        for n in losses:
            model = {"pretrained": "org/LLaDA-8B-Base", "weights": "LLaDA-8B-Base", "adapter": f"MA, seed {seed}"}
            contents[f"ma{seed}{n}"] = suite_file(n_masks=n, accuracy=0.88 - seed / 100, **model)
    contents["limited"] = suite_file(limit=50, pretrained="org/Dream-v0-Base-7B", weights="Dream-v0-Base-7B")
    write(six_cells(folder / "results"), **contents)
    assert main(["build", str(folder / "results"), "--output", str(folder / "out")]) == 0
    return (folder / "out" / "index.html").as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, site: str) -> Iterator[webdriver.Chrome]:
    """The page, freshly opened; afterwards it must not have logged or asked the network for anything."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get("about:blank")  # the address of the last test may differ in its state only, which would load nothing
    browser.get(site)
    yield browser
    media(browser, "")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:", "chrome"))] == []


def shown(page: webdriver.Chrome) -> list[str]:
    """The names of the rows that can be seen, in their order, without organisation."""
    entries = "[...document.querySelectorAll('.entry')]"
    visible = f"return {entries}.filter((e) => e.checkVisibility()).map((e) => e.dataset.called)"
    WebDriverWait(page, 30).until(lambda page: page.execute_script("return document.readyState") == "complete")
    return [name.replace("org/", "").partition(",")[0] for name in page.execute_script(visible)]


def row(page: webdriver.Chrome, called: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f'.entry[data-called="{called}"]')


def head(page: webdriver.Chrome, name: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f'.section th[data-name="{name}"]')


def press(page: webdriver.Chrome, selector: str) -> None:
    page.find_element(By.CSS_SELECTOR, selector).send_keys(Keys.SPACE)


def state(page: webdriver.Chrome) -> dict[str, str]:
    """What the address says of the page."""
    return dict(parse_qsl(urlsplit(page.current_url).fragment))


BASE, OTHER = "org/LLaDA-8B-Base", "org/LLaDA-8B-Instruct"
MA = f"{BASE} + MA, median of 2 seeds"


def test_a_column_sorts_both_ways_and_says_so(page: webdriver.Chrome) -> None:
    column, name = head(page, "few"), head(page, "model")
    assert column.get_attribute("aria-sort") == "none"
    column.find_element(By.TAG_NAME, "button").click()
    assert column.get_attribute("aria-sort") == "descending"
    assert shown(page)[:2] == ["LLaDA-8B-Base", "LLaDA-8B-Base + MA"]
    assert state(page) == {"sort": "few-descending"}
    column.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert shown(page)[0] == "Dream-v0-Base-7B"
    name.find_element(By.TAG_NAME, "button").click()
    assert (name.get_attribute("aria-sort"), column.get_attribute("aria-sort")) == ("ascending", "none")


def test_rows_are_filtered_and_set_apart(page: webdriver.Chrome) -> None:
    count = page.find_element(By.ID, "count")
    assert shown(page).count("Dream-v0-Base-7B") == 1, "that of a subset is folded"
    search = page.find_element(By.NAME, "text")
    search.send_keys("BASE ma")
    assert shown(page) == ["LLaDA-8B-Base + MA"]
    assert count.text == "1 of 11 rows"
    assert page.find_element(By.CSS_SELECTOR, ".none:not([hidden])")
    search.clear()
    search.send_keys("dream")
    assert shown(page) == ["Dream-v0-Base-7B"] * 2
    page.find_element(By.ID, "clear").click()
    assert count.text == ""
    assert state(page) == {}


def test_the_address_brings_back_what_is_shown(page: webdriver.Chrome) -> None:
    page.find_element(By.NAME, "text").send_keys("llada")
    press(page, "[name=points]")
    head(page, "loss").find_element(By.TAG_NAME, "button").click()
    row(page, BASE).find_element(By.CLASS_NAME, "toggle").click()
    row(page, BASE).find_element(By.CSS_SELECTOR, ".pick input").send_keys(Keys.SPACE)
    address, rows = page.current_url, shown(page)
    assert state(page).keys() == {"text", "points", "sort", "open", "baseline"}
    page.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    page.find_element(By.ID, "copy-link").click()
    assert page.execute_script("return window.copied") == address
    page.get("about:blank")
    page.get(address)
    assert (shown(page), page.current_url) == (rows, address)
    assert row(page, BASE).find_element(By.CLASS_NAME, "detail").is_displayed()
    assert page.find_elements(By.CSS_SELECTOR, ".difference")
    assert page.find_element(By.CSS_SELECTOR, "td.points").is_displayed()


def test_differences_are_to_the_row_that_is_chosen(page: webdriver.Chrome) -> None:
    def cell(called: str) -> str:
        return row(page, called).find_element(By.CSS_SELECTOR, "td[data-versus]").text.replace("\n", " ")

    own = cell(BASE), cell(OTHER)
    assert [one.split()[0] for one in own] == ["75.0", "70.0"]
    note = page.find_element(By.CLASS_NAME, "versus")
    assert not note.is_displayed()
    row(page, BASE).find_element(By.CSS_SELECTOR, ".pick input").send_keys(Keys.SPACE)
    assert cell(BASE) == own[0]
    assert "rows with a significant difference can share a rank" in note.text
    assert re.match(r"70\.0 -5\.0 \(-6\.\d to -4\.\d\)", cell(OTHER))
    assert cell(MA) == "87.5 +12.5 (median of +13.0, +12.0)", "two seeds have no interval"
    row(page, OTHER).find_element(By.CLASS_NAME, "rank").click()
    assert cell(BASE).startswith("75.0 +5.0 ("), "a press on the row does the same"
    row(page, OTHER).find_element(By.CSS_SELECTOR, ".pick input").send_keys(Keys.SPACE)
    assert (cell(BASE), cell(OTHER)) == own


def test_a_row_opens_by_keyboard_to_seeds_and_commands(page: webdriver.Chrome) -> None:
    toggle = row(page, MA).find_element(By.CLASS_NAME, "toggle")
    assert toggle.get_attribute("aria-expanded") == "false"
    toggle.send_keys(Keys.ENTER)
    detail = row(page, MA).find_element(By.CLASS_NAME, "detail")
    assert toggle.get_attribute("aria-expanded") == "true"
    table = detail.find_element(By.CSS_SELECTOR, "table.small")
    heads = [one.text for one in table.find_elements(By.CSS_SELECTOR, ":scope > tbody th")]
    assert heads == ["median", "seed 0", "seed 1"]
    assert "lm_eval" not in detail.text, "commands are behind one toggle"
    detail.find_element(By.CSS_SELECTOR, ".runs > summary").send_keys(Keys.ENTER)
    for words in ("lm_eval --model mdlm", "device_name", "NVIDIA H200", "2.13.0"):
        assert words in detail.text
    page.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    detail.find_element(By.CSS_SELECTOR, ".command button").click()
    assert page.execute_script("return window.copied").startswith("lm_eval --model mdlm")
    toggle.send_keys(Keys.SPACE)
    assert row(page, MA).find_elements(By.CLASS_NAME, "detail") == []


def test_a_link_to_a_row_opens_it(page: webdriver.Chrome, site: str) -> None:
    for called in (MA, "org/Dream-v0-Base-7B"):
        entry = page.find_elements(By.CSS_SELECTOR, f'.entry[data-called^="{called}"]')[-1].get_attribute("id")
        page.get(f"{site}#{entry}")
        assert page.find_element(By.ID, f"{entry}-detail").is_displayed(), "also in a table that is set apart"
    page.get(f"{site}#%")
    assert shown(page), "a link that was cut off names no row"


def media(page: webdriver.Chrome, scheme: str, kind: str = "") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})


def resize(page: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_figures_and_print_follow_the_reader(page: webdriver.Chrome, site: str, scheme: str) -> None:
    media(page, scheme)
    page.get("about:blank")
    page.get(site)
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = "rgb(255, 255, 255)"
    assert (page.execute_script(colour) == light) == (scheme == "light")
    loaded = page.execute_async_script(
        "const done = arguments[0]; const images = [...document.images];"
        "images.forEach((image) => image.loading = 'eager');"
        "Promise.all(images.map((image) => image.decode())).then("
        "() => done(images.map((image) => [image.naturalWidth, image.currentSrc])), (e) => done([[0, String(e)]]));"
    )
    assert len(loaded) == 2
    assert all(
        width > 200 and ("dark" in source.rpartition("figures/")[2]) == (scheme == "dark") for width, source in loaded
    )
    media(page, scheme, "print")
    assert page.execute_script(colour) == light, "paper is white"
    assert not page.find_element(By.CLASS_NAME, "filters").is_displayed()
    tables = "[...document.querySelectorAll('.table')]"
    cut = f"return {tables}.filter((t) => getComputedStyle(t).overflowX !== 'visible').length"
    assert page.execute_script(cut) == 0


@pytest.mark.parametrize("width", [320, 390, 500, 768, 1900])
def test_tables_scroll_and_the_page_does_not(page: webdriver.Chrome, width: int) -> None:
    resize(page, width)
    assert row(page, MA).find_element(By.CLASS_NAME, "rank").is_displayed()
    row(page, MA).find_element(By.CLASS_NAME, "toggle").click()
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert row(page, MA).find_element(By.CLASS_NAME, "body").size["width"] <= width
    small = (
        "return [...document.querySelectorAll('button, select, input, summary, nav a')]"
        ".filter((e) => e.checkVisibility()).map((e) => (e.type === 'checkbox' ? e.closest('label') : e))"
        ".map((e) => [e.outerHTML, e.getBoundingClientRect()])"
        ".filter(([_, box]) => box.width < 24 || box.height < 24).map(([html]) => html)"
    )
    assert page.execute_script(small) == [], "targets are at least 24 pixels wide and high"
    for region in page.find_elements(By.CSS_SELECTOR, ".section:not(.apart) .table"):
        said = page.execute_script("return getComputedStyle(arguments[0], '::before').content", region)
        is_cut = page.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", region)
        assert ("scroll sideways" in said) == is_cut
    numbers = row(page, MA).find_element(By.CLASS_NAME, "cells")
    assert row(page, BASE).find_element(By.CLASS_NAME, "band").is_displayed() == (width > 640)
    assert numbers.is_displayed() == (width < 640), "intervals that cells do not show"
    if width == 500:
        cells = row(page, MA).find_elements(By.CSS_SELECTOR, "td.num:not(.rank)")
        assert max(cell.rect["x"] + cell.rect["width"] for cell in cells[:3]) <= width, "three scores are in sight"
        assert "at 200 masks (%)\n87.5 (" in numbers.text
        assert page.find_element(By.CSS_SELECTOR, ".words > .cells").text == "Open a row for its intervals."
    if width == 1900:
        table = page.find_element(By.CSS_SELECTOR, ".section table")
        assert table.size["width"] > 0.9 * width, "the page uses the width"
        assert row(page, BASE).find_element(By.TAG_NAME, "tr").size["height"] < 36, "a row is one line"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_cut_or_without_a_label(page: webdriver.Chrome, site: str, width: int, scheme: str) -> None:
    media(page, scheme)
    resize(page, width)
    page.get("about:blank")
    page.get(site)
    cut = (
        "return [...document.querySelectorAll('h1, h2, h3, p, figcaption, img, caption *, .line, th, label')]"
        ".filter((e) => e.checkVisibility() && !e.closest('.said') && !e.matches('.said'))"
        ".filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline'"
        f" || (e.matches('img, p, figcaption, caption *') && e.getBoundingClientRect().right > {width}))"
        ".map((e) => e.outerHTML)"
    )
    assert page.execute_script(cut) == []
    nameless = "return [...document.querySelectorAll('thead th')].filter((e) => !e.textContent.trim()).length"
    assert page.execute_script(nameless) == 0
    if width == 1400:
        wide = "return [...document.querySelectorAll('.section:not(.apart) .table')].map((e) => e.scrollWidth)"
        assert max(page.execute_script(wide)) <= width, "all columns are in sight"
    folder = Path(site.removeprefix("file://")).parent / "figures"
    figures = [path for path in folder.rglob("*.svg") if ("dark" in path.parts) == (scheme == "dark")]
    assert len(figures) == 2
    for path in figures:
        page.get(path.as_uri())
        outside = (
            "const svg = document.documentElement, all = svg.getBBox(), box = svg.viewBox.baseVal;"
            "return [all.x, all.y, box.width - all.x - all.width, box.height - all.y - all.height];"
        )
        assert min(page.execute_script(outside)) > -0.5, path.name


@pytest.mark.skipif(not AXE.is_file(), reason=f"axe-core is not installed: there is no {AXE.name} where AXE_CORE says")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("address", ["", "#text=org&points=1", "#open=OPEN&baseline=OTHER", "#text=nothing"])
def test_axe_finds_nothing(page: webdriver.Chrome, site: str, address: str, width: int, scheme: str) -> None:
    ids = {"OPEN": row(page, MA).get_attribute("id"), "OTHER": row(page, BASE).get_attribute("id")}
    for name, id in ids.items():
        address = address.replace(name, id or "")
    media(page, scheme)
    resize(page, width)
    page.get(site + address)
    page.execute_script(AXE.read_text(encoding="utf-8"))
    page.set_script_timeout(120)
    found = page.execute_async_script("const done = arguments[0]; axe.run().then(done, (e) => done(String(e)));")
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]] == []
    assert len(found["passes"]) > 20


def test_more_than_a_hundred_rows_are_sorted_and_found(browser: webdriver.Chrome, tmp_path: Path) -> None:
    contents = {
        f"m{n}": suite_file(n_masks=200, pretrained=f"org/m{n:03}", weights=str(n), accuracy=n / 200, spread=0.0)
        for n in range(104)
    }
    write(tmp_path / "results", **contents)
    assert main(["build", str(tmp_path / "results"), "--output", str(tmp_path / "out")]) == 0
    browser.get((tmp_path / "out" / "index.html").as_uri())
    assert shown(browser) == [f"m{n:03}" for n in range(103, 3, -1)], "the first hundred"
    for first in ("m103", "m000"):
        browser.find_element(By.CSS_SELECTOR, "th[data-name=most] button").click()
        assert shown(browser)[0] == first
    rest = browser.find_element(By.CLASS_NAME, "rest")
    rest.send_keys(Keys.ENTER)
    assert len(shown(browser)) == 104
    browser.find_element(By.NAME, "text").send_keys("m103")
    assert shown(browser) == ["m103"]


def test_without_script_the_table_and_its_details_are_there(browser: webdriver.Chrome, site: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(site)
        assert not browser.find_element(By.CLASS_NAME, "filters").is_displayed()
        details = row(browser, MA).find_element(By.CSS_SELECTOR, ".detail details")
        assert not details.find_element(By.CLASS_NAME, "body").is_displayed()
        details.find_element(By.TAG_NAME, "summary").click()
        assert details.find_element(By.CLASS_NAME, "body").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
