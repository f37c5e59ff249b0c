"""The report opens from disk in a real browser: nothing complains, nothing is asked of the outside, and all of it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.browser import Tab, address, chromium, tab
from tests.reports.small import HOSTILE, made_run, run_of, write_pack
from vitlab.reports.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    folder = made_run(root / "<i>run", run_of(write_pack(root / "<img src=y onerror=alert(2)>.npz")))
    return write_report(folder).path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def opened(browser: Browser, report: Path) -> Iterator[Tab]:
    with tab(browser, address(report)) as found:
        yield found


@pytest.fixture
def page(opened: Tab) -> Page:
    return opened.page


def test_nothing_complains_and_nothing_is_asked_of_the_outside(opened: Tab, report: Path) -> None:
    page = opened.page
    page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
    assert page.evaluate("Promise.all([...document.images].map(image => image.decode())).then(() => document.images.length)") > 3
    assert opened.complaints == []
    outside = [url for url in opened.requests if not url.startswith(("data:", address(report)))]
    assert outside == []


def test_the_browser_reports_errors_and_requests(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('seen')</script><img src='http://localhost:9/x.png'>")
    with tab(browser, address(bad)) as other:
        assert any("seen" in complaint for complaint in other.complaints)
        assert "http://localhost:9/x.png" in other.requests


def test_every_part_is_reached_by_its_link(opened: Tab) -> None:
    page = opened.page
    anchors = page.evaluate("[...document.querySelectorAll('nav.sections a')].map(link => link.getAttribute('href'))")
    assert {"#summary", "#curves", "#classes", "#mistakes", "#inside", "#calibration", "#data", "#cost", "#again"} == set(anchors)
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    for anchor in anchors:
        page.evaluate(f"document.querySelector('nav.sections a[href=\"{anchor}\"]').click()")
        assert page.evaluate("location.hash") == anchor
        top = page.evaluate(f"document.querySelector('{anchor}').getBoundingClientRect().top")
        at_end = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert at_end or -1 <= top < 40
    assert opened.complaints == []


def test_names_are_text_and_never_markup(page: Page) -> None:
    assert page.evaluate("window.owned") is None
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.querySelectorAll('img[onerror], b > b, h1 i').length") == 0
    shown = page.evaluate("[...document.querySelectorAll('#classes table.sortable td:first-child')].map(cell => cell.textContent)")
    assert sorted(shown) == sorted(HOSTILE)
    assert page.evaluate("document.querySelector('h1').textContent") == "<i>run"


def test_a_table_sorts_both_ways_by_the_column_that_is_clicked(page: Page) -> None:
    column = "[...document.querySelectorAll('#classes table.sortable td:nth-child(1)')].map(cell => cell.textContent)"
    knob = "document.querySelector('#classes table.sortable th:nth-child(1) button')"
    page.evaluate(f"{knob}.click()")
    up = page.evaluate(column)
    page.evaluate(f"{knob}.click()")
    assert page.evaluate(column) == up[::-1] != up
    assert page.evaluate(f"{knob}.parentElement.getAttribute('aria-sort')") == "descending"


@pytest.mark.parametrize("width", [320, 400, 800, 1400])
def test_no_width_makes_the_page_scroll_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1400, "height": 900})


def test_it_follows_the_systems_theme_until_one_is_chosen(opened: Tab) -> None:
    page = opened.page
    colour = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert light != dark
    button = "document.querySelector('button.theme')"
    page.evaluate(f"{button}.click()")
    assert (page.evaluate(colour), page.evaluate(f"{button}.textContent")) == (light, "theme: light")
    page.evaluate(f"{button}.click()")
    page.emulate_media(color_scheme="light")
    assert (page.evaluate(colour), page.evaluate(f"{button}.textContent")) == (dark, "theme: dark")
    page.evaluate(f"{button}.click()")
    assert page.evaluate(colour) == light
    assert opened.complaints == []


def test_everything_is_there_without_script(browser: Browser, report: Path) -> None:
    with tab(browser, address(report), scripts=False) as plain:
        text = plain.page.content()
    assert all(f"<h2>{title}</h2>" in text for title in ("Summary", "Class by class", "A look inside", "Run it again"))
