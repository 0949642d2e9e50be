"""The built page in a real browser: sorting, filtering and opening rows, without errors or requests."""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from mdlm_leaderboard.figures import draw_figures, write_headline
from mdlm_leaderboard.page import write_page
from mdlm_leaderboard.rows import Board, Section
from tests.leaderboard_boards import row, sample_board
from tests.test_leaderboard_page import hostile_board

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
ROOT = Path(__file__).parents[1]
# CONTRIBUTING.md says how to install it.
AXE = Path(os.environ.get("AXE_CORE", ROOT.parent / "node_modules/axe-core")) / "axe.min.js"
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
    write_headline(sample_board(), folder / "figures")
    return write_page(sample_board(), folder).as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, site: str) -> Iterator[webdriver.Chrome]:
    """The page, freshly opened; afterwards it must not have logged or asked the network for anything."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get("about:blank")  # the address of the last test may differ in its state only, which would load nothing
    browser.get(site)
    yield browser
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []


def shown(page: webdriver.Chrome) -> list[str]:
    """The ids of the rows that can be seen, in their order."""
    visible = "return [...document.querySelectorAll('.entry')].filter((e) => e.checkVisibility()).map((e) => e.id)"
    return list(page.execute_script(visible))


def head(page: webdriver.Chrome, text: str) -> webdriver.remote.webelement.WebElement:
    """The head of the first table's column that starts with `text`."""
    heads = page.find_element(By.CSS_SELECTOR, ".section table").find_elements(By.CSS_SELECTOR, "th[data-sort]")
    return next(one for one in heads if (one.get_attribute("textContent") or "").split()[0] == text)


def choose(page: webdriver.Chrome, name: str, text: str) -> None:
    Select(page.find_element(By.NAME, name)).select_by_visible_text(text)


def open_filters(page: webdriver.Chrome) -> None:
    page.find_element(By.CSS_SELECTOR, ".more > summary").click()


def tick(page: webdriver.Chrome, selector: str) -> None:
    page.find_element(By.CSS_SELECTOR, selector).send_keys(Keys.SPACE)


def state(page: webdriver.Chrome) -> dict[str, str]:
    """What the address says of the page."""
    return dict(parse_qsl(urlsplit(page.current_url).fragment))


def test_a_column_sorts_both_ways_and_says_so(page: webdriver.Chrome) -> None:
    column = head(page, "drop")
    assert column.get_attribute("aria-sort") == "none"
    column.find_element(By.TAG_NAME, "button").click()
    assert column.get_attribute("aria-sort") == "descending"
    assert shown(page)[:2] == ["instruct-40-random", "gsai-ml-llada-8b-instruct"]
    assert shown(page)[9] == "qwen-qwen2-5-7b", "rows without a value come last"
    assert state(page) == {"sort": "drop_points-descending"}
    column.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert column.get_attribute("aria-sort") == "ascending"
    assert shown(page)[0] == "base-ma"
    assert shown(page)[9] == "qwen-qwen2-5-7b"
    name = head(page, "model")
    name.find_element(By.TAG_NAME, "button").click()
    assert (name.get_attribute("aria-sort"), column.get_attribute("aria-sort")) == ("ascending", "none")
    assert shown(page)[0] == "dream-org-dream-v0-base-7b"


def test_search_and_choices_filter_rows(page: webdriver.Chrome) -> None:
    count = page.find_element(By.ID, "count")
    assert count.text == "11 of 12 rows; 1 row of part of the questions is hidden"
    search = page.find_element(By.NAME, "text")
    search.send_keys("INSTRUCT ma-ce")
    assert shown(page) == ["instruct-ma"]
    assert count.text == "1 of 12 rows"
    assert page.find_element(By.CSS_SELECTOR, ".none:not([hidden])")
    search.clear()
    search.send_keys(Keys.SPACE)
    open_filters(page)
    choose(page, "family", "dream")
    assert shown(page) == ["dream-org-dream-v0-base-7b"]
    tick(page, "[name=apart]")
    assert shown(page) == ["dream-org-dream-v0-base-7b", "dream-limit"]
    choose(page, "family", "all")
    choose(page, "steps", "40")
    assert shown(page) == ["base-40-confidence", "base-40-random", "instruct-40-random"]


def test_the_address_holds_what_is_shown_and_brings_it_back(page: webdriver.Chrome) -> None:
    page.find_element(By.NAME, "text").send_keys("llada")
    open_filters(page)
    choose(page, "adapter", "without")
    tick(page, "[name=columns][value=masks]")
    tick(page, "[name=apart]")
    head(page, "drop").find_element(By.TAG_NAME, "button").click()
    page.find_element(By.CSS_SELECTOR, "#base-40-random .toggle").click()
    for name in ("base-40-random", "gsai-ml-llada-8b-base"):
        tick(page, f"#{name} .pick input")
    address, rows = page.current_url, shown(page)
    assert state(page) == {
        "text": "llada",
        "adapter": "without",
        "sort": "drop_points-descending",
        "columns": "masks",
        "open": "base-40-random",
        "compare": "base-40-random,gsai-ml-llada-8b-base",
        "apart": "1",
    }
    page.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    page.find_element(By.ID, "copy-link").click()
    assert page.execute_script("return window.copied") == address
    page.get("about:blank")
    page.get(address)
    assert shown(page) == rows
    assert page.current_url == address
    assert page.find_element(By.ID, "base-40-random-detail").is_displayed()
    assert page.find_element(By.ID, "compared").is_displayed()
    assert page.find_element(By.CSS_SELECTOR, "tbody .g-masks").is_displayed()


def test_what_is_shown_is_downloaded(page: webdriver.Chrome) -> None:
    page.execute_script(
        "HTMLAnchorElement.prototype.click = () => {};"
        "URL.createObjectURL = (blob) =>"
        " { blob.text().then((text) => { window.made = text; }); return 'about:blank'; };"
    )
    page.find_element(By.NAME, "text").send_keys("instruct")
    page.find_element(By.ID, "download").click()
    page.set_script_timeout(10)
    text = page.execute_async_script(
        "const done = arguments[0]; const wait = () => window.made ? done(window.made) : setTimeout(wait, 20); wait();"
    )
    names, *lines = csv.reader(io.StringIO(text))
    assert names[:4] == ["table", "rank", "model", "best"]
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    assert [one["model"].split("/")[-1] for one in rows] == [
        "LLaDA-8B-Instruct + ma-ce-tv, 1 step, bfloat16",
        "LLaDA-8B-Instruct, 40 steps, random, bfloat16",
        "LLaDA-8B-Instruct, 1 step, bfloat16",
    ]
    assert rows[2]["drop_points"] == "23.5"
    assert float(rows[2]["drop_points ±"]) > 0


def test_two_rows_are_compared_on_the_same_questions(page: webdriver.Chrome) -> None:
    compared = page.find_element(By.ID, "compared")
    tick(page, "#gsai-ml-llada-8b-base .pick input")
    assert not compared.is_displayed()
    assert page.find_element(By.ID, "said").text == "Choose a second row to compare."
    tick(page, "#base-ma .pick input")
    assert compared.is_displayed()
    lines = [line.text for line in compared.find_elements(By.CSS_SELECTOR, "tbody tr")]
    assert "accuracy (%), 200 masks 70.0 89.0 +19.0 ±0.2" in lines
    assert len([line for line in lines if line.split()[1] in ("smallest", "largest")]) == 16
    # The tasks' accuracies lie within 3% of their mean, and so do the differences: ± is 1.2% of each.
    assert "best accuracy (%) 87.4 at 1 mask 91.6 at 1 mask +4.2 ±0.1" in lines
    assert "worst accuracy (%) 70.0 at 200 masks 89.0 at 200 masks +19.0 ±0.2" in lines
    (drop,) = (line for line in lines if line.startswith("drop (points) 17.4 ±"))
    assert drop.endswith(" −14.8 ±0.2")
    (degradation,) = (line for line in lines if line.startswith("degradation (%)"))
    assert degradation.endswith(" –")
    assert "LLaDA-8B-Base, 1 step, bfloat16" in compared.find_element(By.TAG_NAME, "thead").text
    assert not page.find_element(By.CSS_SELECTOR, "#base-ce .pick input").is_enabled()
    tick(page, "#base-ma .pick input")
    tick(page, "[name=apart]")
    tick(page, "#dream-limit .pick input")
    assert "answer other questions" in compared.text
    assert "±" not in compared.find_element(By.TAG_NAME, "tbody").text.split("accuracy (%), 1 mask")[1]


def test_a_row_opens_by_keyboard_to_curves_command_settings_and_versions(page: webdriver.Chrome) -> None:
    row = page.find_element(By.ID, "base-ma")
    toggle = row.find_element(By.CSS_SELECTOR, ".toggle")
    assert toggle.get_attribute("aria-expanded") == "false"
    assert toggle.get_attribute("aria-controls") == "base-ma-detail"
    assert page.find_elements(By.ID, "base-ma-detail") == []
    toggle.send_keys(Keys.ENTER)
    assert toggle.get_attribute("aria-expanded") == "true"
    detail = page.find_element(By.ID, "base-ma-detail")
    assert detail.is_displayed()
    curves = detail.find_elements(By.CSS_SELECTOR, ".curve")
    assert len(curves) == 12
    assert all(curve.size["width"] > 100 for curve in curves)
    for text in ("lm_eval --model mdlm", "n_masks 200", "dtype bfloat16", "torch 2.13.0"):
        assert text in detail.text.replace("\n", " ")
    toggle.send_keys(Keys.SPACE)
    assert toggle.get_attribute("aria-expanded") == "false"
    assert page.find_elements(By.ID, "base-ma-detail") == []


def test_a_copy_button_stands_beside_the_command(page: webdriver.Chrome) -> None:
    page.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    page.find_element(By.CSS_SELECTOR, "#base-ma .toggle").click()
    page.find_element(By.CSS_SELECTOR, "#base-ma .command button").click()
    assert page.execute_script("return window.copied") == page.find_element(By.CSS_SELECTOR, "#base-ma pre").text


def test_columns_are_switched_on_and_off(page: webdriver.Chrome) -> None:
    left = page.find_element(By.CSS_SELECTOR, "tbody .g-positions-left")
    assert not left.is_displayed()
    open_filters(page)
    tick(page, "[name=columns][value=positions-left]")
    assert left.is_displayed()
    assert state(page) == {"columns": "positions-left"}


def test_a_link_to_a_row_opens_it(page: webdriver.Chrome, site: str) -> None:
    page.get(f"{site}#base-ce")
    assert page.find_element(By.ID, "base-ce-detail").is_displayed()
    page.get(f"{site}#dream-limit")
    assert page.find_element(By.ID, "dream-limit-detail").is_displayed(), "also behind the switch"
    page.get(f"{site}#%")
    assert shown(page), "a link that was cut off names no row"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_shown(page: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        loaded = page.execute_async_script(
            "const done = arguments[1]; const images = [...document.images];"
            "images.forEach((image) => image.loading = 'eager');"
            # A browser exchanges the sources some time after the scheme.
            "const exchanged = () => images.every((image) => /figures.*dark/.test(image.currentSrc) === dark);"
            "const when = (left) => new Promise((then) => exchanged() || !left ? then() : "
            "setTimeout(() => when(left - 1).then(then), 50));"
            "const dark = arguments[0] === 'dark';"
            "when(100).then(() => Promise.all(images.map((image) => image.decode())).then("
            "() => done(images.map((image) => [image.naturalWidth, image.currentSrc])), "
            "(e) => done([[0, String(e)]])));",
            scheme,
        )
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(loaded) == 11
    assert all(width > 200 for width, _ in loaded), loaded
    assert all(("dark" in source.rpartition("figures/")[2]) == (scheme == "dark") for _, source in loaded)


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_scrolls_tables_and_not_the_page(page: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.find_element(By.CSS_SELECTOR, "#base-ma .toggle").click()
        widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
        assert page.execute_script(widths) == [width, width]
        body = page.find_element(By.CSS_SELECTOR, "#base-ma .body")
        assert body.size["width"] <= width
        drop = page.find_element(By.CSS_SELECTOR, "#base-ma td.g-overview:nth-of-type(4)")
        assert drop.text.startswith("2.6")
        edges = page.execute_script("const r = arguments[0].getBoundingClientRect(); return [r.left, r.right]", drop)
        assert width < 390 or 0 < edges[0] < edges[1] <= width, "the drop is seen without scrolling"
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
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
        assert page.execute_script(colours)[0] == light, "paper is white"
        assert not page.find_element(By.CSS_SELECTOR, ".filters").is_displayed()
        assert not page.find_element(By.CSS_SELECTOR, ".toggle").is_displayed()
        cut = (
            "return [...document.querySelectorAll('.table')]"
            ".filter((table) => getComputedStyle(table).overflowX !== 'visible').length"
        )
        assert page.execute_script(cut) == 0
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.skipif(not AXE.is_file(), reason=f"axe-core is not installed: there is no {AXE.name} where AXE_CORE says")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "address",
    [
        "",
        "#apart=1&columns=masks,positions-left,benchmarks",
        "#open=base-ma&compare=gsai-ml-llada-8b-base,base-ma",
        "#text=x",
    ],
    ids=["plain", "columns", "open-and-compared", "empty"],
)
def test_axe_finds_nothing(page: webdriver.Chrome, site: str, address: str, width: int, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.get(site + address)
        page.execute_script(AXE.read_text(encoding="utf-8"))
        page.set_script_timeout(120)
        found = page.execute_async_script("const done = arguments[0]; axe.run().then(done, (e) => done(String(e)));")
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    violations = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]]
    assert violations == []
    assert len(found["passes"]) > 20


@pytest.fixture(scope="module")
def thousand_rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = tuple(row(f"organisation/model-{n:04}", is_full=False, start=0.5 + n / 3000) for n in range(1000))
    board = Board((Section("Suite", "", rows),), ())
    return write_page(board, tmp_path_factory.mktemp("thousand")).as_uri()


def test_a_thousand_rows_sort_and_filter(browser: webdriver.Chrome, thousand_rows: str) -> None:
    browser.get(thousand_rows)
    assert shown(browser) == [f"organisation-model-{n:04}" for n in range(999, 899, -1)]
    assert browser.find_element(By.ID, "count").text == "1000 of 1000 rows"
    head(browser, "worst").find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER, Keys.ENTER)
    assert shown(browser) == [f"organisation-model-{n:04}" for n in range(100)]
    browser.find_element(By.NAME, "text").send_keys("model-0999")
    assert shown(browser) == ["organisation-model-0999"]
    assert browser.find_element(By.ID, "count").text == "1 of 1000 rows"


def test_the_rest_of_a_thousand_rows_is_shown_on_demand(browser: webdriver.Chrome, thousand_rows: str) -> None:
    browser.get("about:blank")
    browser.get(thousand_rows)
    rest = browser.find_element(By.CLASS_NAME, "rest")
    assert rest.text == "Show all 1000 rows"
    rest.send_keys(Keys.ENTER)
    assert len(shown(browser)) == 1000
    assert not rest.is_displayed()
    focused = browser.switch_to.active_element
    assert focused.get_attribute("aria-controls") == "organisation-model-0899-detail", "the first that was not shown"
    browser.get(f"{thousand_rows}#organisation-model-0001")
    assert browser.find_element(By.ID, "organisation-model-0001-detail").is_displayed(), "a link reaches every row"


def test_scripts_in_names_are_shown_and_not_run(browser: webdriver.Chrome, tmp_path: Path) -> None:
    draw_figures(hostile_board(), tmp_path)
    write_headline(hostile_board(), tmp_path / "figures")
    browser.get_log("browser")
    browser.get(write_page(hostile_board(), tmp_path).as_uri())
    browser.find_element(By.CSS_SELECTOR, "#bad .toggle").click()
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
