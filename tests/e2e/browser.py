"""Chromium through Playwright, and a tab that remembers everything that complained and everything that was asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars"),
)
LIMIT = 120_000.0  # milliseconds: only a browser that hangs takes so long

Scheme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Tab:
    """A page, what went to its console or was not caught, and every address that it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is gone after the block. The test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
    path = os.environ.get("VITLAB_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on PATH")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, headless=True, args=list(_FLAGS), timeout=LIMIT)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(
    browser: Browser, url: str, *, size: tuple[int, int] = (1400, 900), scheme: Scheme = "light", scripts: bool = True
) -> Iterator[Tab]:
    """A tab at an address, loaded."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, java_script_enabled=scripts, reduced_motion="reduce"
    )
    context.set_default_timeout(LIMIT)
    opened = Tab(context.new_page())
    opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    try:
        opened.page.goto(url)
        yield opened
    finally:
        context.close()


def address(path: Path) -> str:
    """The address of a file."""
    return path.resolve().as_uri()
