"""The report opens from disk in a real browser: nothing complains, nothing is asked of the outside, and all of it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.devtools import Page, browser, find_browser
from tests.reports.small import HOSTILE, made_run, run_of, write_pack
from vitlab.reports.report import write_report

pytestmark = [pytest.mark.browser, pytest.mark.e2e]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    folder = made_run(root / "<i>run", run_of(write_pack(root / "<img src=y onerror=alert(2)>.npz")))
    return write_report(folder).path


@pytest.fixture(scope="module")
def page(report: Path) -> Iterator[Page]:
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on PATH")
    with browser(path) as opened:
        opened.resize(1400, 900)
        opened.open(report)
        yield opened


def test_nothing_complains_and_nothing_is_asked_of_the_outside(page: Page, report: Path) -> None:
    page.value("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
    assert page.value("Promise.all([...document.images].map(image => image.decode())).then(() => document.images.length)") > 3
    assert page.complaints() == []
    outside = [url for url in page.requests() if not url.startswith(("data:", report.resolve().as_uri()))]
    assert outside == []


def test_the_browser_reports_errors_and_requests(page: Page, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('seen')</script><img src='http://localhost:9/x.png'>")
    path = find_browser()
    assert path is not None
    with browser(path) as other:
        other.open(bad)
        assert any("seen" in complaint for complaint in other.complaints())
        assert "http://localhost:9/x.png" in other.requests()


def test_every_part_is_reached_by_its_link(page: Page) -> None:
    anchors = page.value("[...document.querySelectorAll('nav.sections a')].map(link => link.getAttribute('href'))")
    assert {"#summary", "#curves", "#classes", "#mistakes", "#inside", "#calibration", "#data", "#cost", "#again"} == set(anchors)
    page.value("document.documentElement.style.scrollBehavior = 'auto'")
    for anchor in anchors:
        page.value(f"document.querySelector('nav.sections a[href=\"{anchor}\"]').click()")
        assert page.value("location.hash") == anchor
        top = page.value(f"document.querySelector('{anchor}').getBoundingClientRect().top")
        at_end = page.value("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert at_end or -1 <= top < 40
    assert page.complaints() == []


def test_names_are_text_and_never_markup(page: Page) -> None:
    assert page.value("window.owned") is None
    assert page.value("document.scripts.length") == 1
    assert page.value("document.querySelectorAll('img[onerror], b > b, h1 i').length") == 0
    shown = page.value("[...document.querySelectorAll('#classes table.sortable td:first-child')].map(cell => cell.textContent)")
    assert sorted(shown) == sorted(HOSTILE)
    assert page.value("document.querySelector('h1').textContent") == "<i>run"


def test_a_table_sorts_both_ways_by_the_column_that_is_clicked(page: Page) -> None:
    column = "[...document.querySelectorAll('#classes table.sortable td:nth-child(1)')].map(cell => cell.textContent)"
    knob = "document.querySelector('#classes table.sortable th:nth-child(1) button')"
    page.value(f"{knob}.click()")
    up = page.value(column)
    page.value(f"{knob}.click()")
    assert page.value(column) == up[::-1] != up
    assert page.value(f"{knob}.parentElement.getAttribute('aria-sort')") == "descending"


@pytest.mark.parametrize("width", [320, 400, 800, 1400])
def test_no_width_makes_the_page_scroll_sideways(page: Page, width: int) -> None:
    page.resize(width, 900)
    assert page.value("document.documentElement.scrollWidth") <= width
    page.resize(1400, 900)


def test_it_follows_the_systems_theme_until_one_is_chosen(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.prefer("light")
    light = page.value(colour)
    page.prefer("dark")
    dark = page.value(colour)
    assert light != dark
    button = "document.querySelector('button.theme')"
    page.value(f"{button}.click()")
    assert (page.value(colour), page.value(f"{button}.textContent")) == (light, "theme: light")
    page.value(f"{button}.click()")
    page.prefer("light")
    assert (page.value(colour), page.value(f"{button}.textContent")) == (dark, "theme: dark")
    page.value(f"{button}.click()")
    assert page.value(colour) == light
    assert page.complaints() == []


def test_everything_is_there_without_script(page: Page, report: Path) -> None:
    path = find_browser()
    assert path is not None
    with browser(path) as plain:
        plain.call("Emulation.setScriptExecutionDisabled", value=True)
        plain.open(report)
        text = plain.call("DOMSnapshot.captureSnapshot", computedStyles=[])["strings"]
    assert {"Summary", "Class by class", "A look inside", "Run it again"} <= set(text)
