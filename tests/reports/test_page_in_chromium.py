"""The pages of reports in a real, headless Chromium: they open, filter, sort and follow links, by the keyboard too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradconform.report.kill_matrix import kill_page
from gradconform.report.page.pages import report_page, runs_page, side_by_side
from gradconform.results import Report
from gradconform.sources.faults.matrix import KillMatrix
from gradconform.sources.faults.outcome import Outcome
from gradconform.sources.faults.subject import SelftestOptions

if not os.environ.get("CI"):  # there the group `dev` is installed, and a skip would be a test that is lost
    for name in ("selenium", "axe_core_python"):
        pytest.importorskip(name, reason=f"{name} is not installed; `pip install --group dev` brings it")

from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

pytestmark = pytest.mark.slow  # each worker starts a browser

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
WIDE, NARROW = 1280, 360


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One Chromium for all tests of the module: to start it takes longer than all of them."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        reason = "chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; .ci/run installs them where it is root")
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as found:
        yield found


@pytest.fixture
def opened(browser: webdriver.Chrome, real: Report, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """The page of the real run, open; at the end nothing may have complained."""
    yield open_page(browser, report_page(real), tmp_path)
    assert browser.get_log("browser") == []


def open_page(browser: webdriver.Chrome, page: str, folder: Path, fragment: str = "") -> webdriver.Chrome:
    """Open a page anew, at the width of a desk."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    set_width(browser, WIDE)
    browser.get("about:blank")
    browser.get(f"{file.as_uri()}{fragment}")
    return browser


def set_width(browser: webdriver.Chrome, width: int) -> None:
    metrics: dict[str, Any] = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def shown(browser: webdriver.Chrome) -> list[str]:
    """Return the checks of the list that are shown, in their order."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll('#rows [id]:not([hidden])')].map((row) => row.id.split('[')[0])"
    )
    return found


def expect_rows(browser: webdriver.Chrome, wanted: list[str]) -> None:
    """Wait until these checks are shown; the page answers a reset a moment later."""
    WebDriverWait(browser, 10).until(lambda _: sorted(shown(browser)) == sorted(wanted))


def find(browser: webdriver.Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def test_a_page_filters_by_status_area_and_words(opened: webdriver.Chrome, real: Report) -> None:
    every = [result.check for result in real.results]
    failed = [result.check for result in real.results if result.status == "failed"]
    assert sorted(shown(opened)) == sorted(every)
    Select(find(opened, "[data-filter=status]")).select_by_value("failed")
    expect_rows(opened, failed)
    assert find(opened, "#shown").text == f"{len(failed)} of {len(every)} shown"
    Select(find(opened, "[data-filter=area]")).select_by_value("split")
    expect_rows(opened, [check for check in failed if check.startswith("split.")])
    find(opened, "#search").send_keys("LINEAR-3D no-such-word")
    expect_rows(opened, [])
    assert find(opened, "#nothing").is_displayed()
    find(opened, "[data-clear]").click()
    expect_rows(opened, every)
    find(opened, "#search").send_keys("linear-3d")
    expect_rows(opened, [check for check in every if "linear-3d" in check])


def test_a_count_or_a_matrix_cell_filters_to_its_checks(opened: webdriver.Chrome, real: Report) -> None:
    find(opened, "[data-set-status=failed]").click()
    expect_rows(opened, [result.check for result in real.results if result.status == "failed"])
    find(opened, "[data-set-area=hooks]").click()
    expect_rows(opened, [result.check for result in real.results if result.check.startswith("hooks.")])


def test_a_page_sorts_both_ways_and_by_verdict_with_failures_first(opened: webdriver.Chrome, real: Report) -> None:
    statuses = {result.check: result.status for result in real.results}
    failed = sum(status == "failed" for status in statuses.values())
    find(opened, "[data-sort=verdict]").click()
    assert {statuses[check] for check in shown(opened)[:failed]} == {"failed"}
    find(opened, "[data-sort=headroom]").click()
    error_ratios = {r.check: -1.0 if r.error_ratio is None else float(f"{r.error_ratio:.2g}") for r in real.results}
    assert len(set(error_ratios.values())) > 1
    assert [error_ratios[check] for check in shown(opened)] == sorted(error_ratios.values(), reverse=True)
    button = find(opened, "[data-sort=duration]")
    button.click()
    longest = {result.check: as_shown(result.duration_s) for result in real.results}
    found = [longest[check] for check in shown(opened)]
    assert found == sorted(found, reverse=True)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert [longest[check] for check in shown(opened)] == sorted(found)
    find(opened, "[data-sort=topic]").click()
    topics = [check.rpartition(".")[0] for check in shown(opened)]
    assert topics == sorted(topics)


def as_shown(seconds: float) -> float:
    """Return what a page shows of a duration, in seconds: what it shows alike may stand in any order."""
    return float(f"{seconds:.1f}") if seconds >= 1 else float(f"{seconds * 1000:.3g}") / 1000


def test_a_link_opens_its_check_with_its_program_even_if_a_filter_hid_it(
    opened: webdriver.Chrome, real: Report
) -> None:
    failed = next(result for result in real.failures if result.findings)
    name = f"{failed.check}[cpu-float32]"
    Select(find(opened, "[data-filter=status]")).select_by_value("passed")
    link = f"//a[text()='{failed.check}']"
    opened.execute_script("for (const part of document.querySelectorAll('#causes details')) part.open = true")
    WebDriverWait(opened, 10).until(lambda _: opened.find_elements(By.XPATH, link))
    opened.find_element(By.XPATH, link).click()
    row = opened.find_element(By.ID, name)
    WebDriverWait(opened, 10).until(lambda _: row.get_attribute("open") is not None and row.is_displayed())
    topic = row.find_element(By.XPATH, "./..")  # it has what the requirements of its checks share
    shared, stage = failed.requirement.split(" embedding ")
    assert f"{shared} …" in topic.text
    page = opened.find_element(By.TAG_NAME, "body").get_attribute("textContent") or ""
    assert stage.strip("().") in page
    assert "gradconform replay" in page  # a command that fits all checks is printed once
    drawing = row.find_element(By.CSS_SELECTOR, ".program.drawn")
    assert drawing.get_attribute("aria-label").endswith(f"first wrong action: {failed.findings[0]['action']}")
    assert drawing.find_element(By.CSS_SELECTOR, ".wrong").text == failed.findings[0]["action"]
    places = opened.execute_script(LANES, drawing)
    assert [text for text, _, _ in places] == failed.programs[0].split()
    assert len({top for _, top, _ in places}) == 2
    assert [left for _, _, left in places] == sorted(left for _, _, left in places)


#: The actions of a drawing, with where they stand.
LANES = """
return [...arguments[0].querySelectorAll(".action")].map((action) => {
  const { top, left } = action.getBoundingClientRect();
  return [action.textContent, Math.round(top), Math.round(left)];
});
"""


def test_every_check_link_of_a_cause_works(opened: webdriver.Chrome, real: Report) -> None:
    opened.execute_script("for (const part of document.querySelectorAll('#causes details')) part.open = true")
    dead = "return [...document.querySelectorAll('#causes a')].filter((a) => !a.hash || !document.getElementById({}))"
    target = "decodeURIComponent(a.hash.slice(1))"
    WebDriverWait(opened, 10).until(lambda _: opened.find_elements(By.CSS_SELECTOR, ".ids a"))
    assert opened.execute_script(dead.format(target)) == []
    assert len(opened.find_elements(By.CSS_SELECTOR, "#causes a")) > len(real.failures)


def test_a_url_with_a_check_opens_that_check(browser: webdriver.Chrome, real: Report, tmp_path: Path) -> None:
    name = f"{real.failures[0].check}[cpu-float32]"
    open_page(browser, report_page(real), tmp_path, f"#{name.replace('[', '%5B').replace(']', '%5D')}")
    assert browser.find_element(By.ID, name).get_attribute("open") is not None
    assert browser.get_log("browser") == []


def test_filters_sort_buttons_and_checks_are_reachable_by_keyboard(opened: webdriver.Chrome) -> None:
    find(opened, "#search").send_keys("split.gradients.linear-3d")
    expect_rows(opened, ["split.gradients.linear-3d"])
    reached: list[str] = []
    for _ in range(20):
        opened.switch_to.active_element.send_keys(Keys.TAB)
        element = opened.switch_to.active_element
        reached.append(element.get_attribute("data-filter") or element.get_attribute("data-sort") or element.tag_name)
        if element.tag_name == "summary":
            break
    assert reached == [
        "status",
        "area",
        "cell",
        "level",
        "button",
        "topic",
        "verdict",
        "headroom",
        "duration",
        "summary",
    ]
    names = opened.switch_to.active_element
    names.send_keys(Keys.ENTER)
    assert names.find_element(By.XPATH, "..").get_attribute("open") is not None


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_no_element_is_wider_than_the_window(opened: webdriver.Chrome, width: int) -> None:
    set_width(opened, width)
    opened.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    widest = opened.execute_script("return document.documentElement.scrollWidth")
    assert widest <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_light_and_dark_mode(opened: webdriver.Chrome, scheme: str) -> None:
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    low: list[str] = opened.execute_script(CONTRASTS)
    assert low == []


#: The elements whose own text has less than 4.5 to 1 of contrast, WCAG's AA.
CONTRASTS = """
const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
const part = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const paper = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
function ground(element) {
  for (; element; element = element.parentElement) {
    const found = numbers(getComputedStyle(element).backgroundColor);
    if (found.length === 3) return found;
  }
  return paper;
}
const low = new Set();
for (const element of document.querySelectorAll("main :not(svg, svg *, option)")) {
  if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
  const [one, other] = [light(numbers(getComputedStyle(element).color)), light(ground(element))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) low.add(`${element.tagName}.${element.className}: ${contrast.toFixed(1)}`);
}
return [...low];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_axe_reports_nothing_on_any_fully_opened_page(
    browser: webdriver.Chrome, real: Report, tmp_path: Path, width: int, scheme: str
) -> None:
    other = replace(real, results=[replace(real.results[0], status="unsupported", findings=()), *real.results[1:]])
    passing = replace(real, results=[result for result in real.results if result.status == "passed"])
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    for page in (report_page(real), report_page(passing), runs_page(side_by_side([real, other])), kill_page(MATRIX)):
        open_page(browser, page, tmp_path)
        set_width(browser, width)
        browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
        assert [f"{one['id']}: {one['nodes'][0]['html']}" for one in axe(browser)] == []


#: A self-test in which a fault of two was not found, and a right variant was accused.
MATRIX = KillMatrix(
    options=SelftestOptions(),
    checks=("full.gradients.mlp", "split.gradients.mlp"),
    outcomes=(
        Outcome(role="fault", name="doubled", topic="numerics", failed=("full.gradients.mlp",), idea="B adds twice."),
        Outcome(role="fault", name="dropped", topic="numerics", named=("split.gradients.mlp",), idea="W adds nothing."),
        Outcome(role="variant", name="swapped", failed=("split.gradients.mlp",), passed=1),
    ),
    planned=3,
)


def axe(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """Return what axe-core finds on the page that is open."""
    found: list[dict[str, Any]] = Axe().run(browser)["violations"]
    return found


def test_several_runs_first_show_their_differences(browser: webdriver.Chrome, real: Report, tmp_path: Path) -> None:
    changed = real.results[0].check
    other = replace(
        real, results=[replace(real.results[0], status="unsupported", kind=None, findings=()), *real.results[1:]]
    )
    open_page(browser, runs_page(side_by_side([real, other])), tmp_path)
    assert shown(browser) == [changed]
    find(browser, "[data-filter=differs]").click()
    expect_rows(browser, [result.check for result in real.results])
    Select(find(browser, "[data-filter=status]")).select_by_value("unsupported")
    assert changed in shown(browser)
    assert browser.get_log("browser") == []


def test_markup_in_a_report_is_not_executed(browser: webdriver.Chrome, real: Report, tmp_path: Path) -> None:
    harm = "</script></style><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>\"><b onclick=1>"
    results = [replace(one, requirement=harm, message=harm, device=harm) for one in real.results[:3]]
    report = replace(
        real, results=results, target={**real.target, "name": harm}, environment={**real.environment, harm: harm}
    )
    for page in (report_page(report), runs_page(side_by_side([report, report]))):
        open_page(browser, page, tmp_path)
        assert browser.execute_script("return window.harmed") is None
        assert browser.find_elements(By.TAG_NAME, "img") == []
        assert harm in find(browser, "body").get_attribute("textContent")
        assert browser.get_log("browser") == []
