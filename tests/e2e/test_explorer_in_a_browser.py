"""The explorer in a real browser, served and as a file: what one drops, touches and covers shows the library's own numbers."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from tests.e2e.browser import Scheme, address, chromium, tab
from tests.inference import small
from tests.interpretation.test_exploration import checkpoint_of, pixels_of
from tests.models.test_contract import CLASSIFIERS
from tests.reports.small import HOSTILE
from tests.serving.small import photo, serving
from vitlab.inference import Predictor
from vitlab.interpretation.exploration import attention_of, changed_answer, shuffled_order
from vitlab.interpretation.paint import Pixels
from vitlab.reports.explorer import model_reader, write_explorer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

DESK, PHONE = (1400, 900), (390, 844)
SETTLED = "() => (({ready, asked}) => ready && ready === asked)(document.documentElement.dataset)"
LABELS = (*HOSTILE, *small.LABELS[3:])
VIT = replace(small.checkpoint(), labels=LABELS)
RESNET = replace(checkpoint_of("resnet"), labels=LABELS[:5])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def url(browser: Browser) -> Iterator[str]:
    with serving({"vit": VIT, "resnet": RESNET}) as server:
        yield f"{server.url}/"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    write_explorer(path, {"vit": VIT, "<b>resnet": RESNET}, [photo(1), photo(2), photo(3)], title="</title><i>How")
    return path


def settled(page: Page, action: Callable[[], Any] | None = None) -> None:
    """Wait until the page shows what it was asked for last."""
    if action is not None:
        before = page.evaluate("document.documentElement.dataset.asked")
        action()
        page.wait_for_function("before => document.documentElement.dataset.asked !== before", arg=before)
    page.wait_for_function(SETTLED)


def drop(page: Page, content: bytes, *, name: str = "mine.jpg", how: str = "drop") -> None:
    """Drop a file onto the page, or paste it."""
    page.evaluate(
        """([text, name, how]) => {
          const data = new DataTransfer();
          data.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name, {type: "image/jpeg"}));
          const event = how === "drop"
            ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
          document.body.dispatchEvent(event);
        }""",
        [base64.b64encode(content).decode(), name, how],
    )


def shown_answer(page: Page) -> dict[int, float]:
    rows = page.evaluate(
        "[...document.querySelectorAll('#answer li')].map(row => [Number(row.dataset.class), Number(row.dataset.value)])"
    )
    return {int(number): float(value) for number, value in rows}


def strongest(page: Page) -> dict[int, float]:
    cells = page.evaluate(
        "[...document.querySelectorAll('#strongest li')].map(item => [Number(item.dataset.token), Number(item.dataset.value)])"
    )
    return {int(token): float(value) for token, value in cells}


def touch(page: Page, row: int, column: int, *, grid: tuple[int, int] = (4, 4)) -> None:
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * (column + 0.5) / grid[1], box["y"] + box["height"] * (row + 0.5) / grid[0])


def seen(content: bytes) -> Pixels:
    return model_reader(VIT)(content, "photo")


def assert_top(found: dict[int, float], probabilities_C: np.ndarray) -> None:
    expected = np.argsort(-probabilities_C, kind="stable")[:5].tolist()
    assert list(found) == expected
    np.testing.assert_allclose(list(found.values()), probabilities_C[expected], atol=1e-4)


@pytest.mark.parametrize("how", ["drop", "paste", "choose"])
def test_an_image_that_is_given_is_answered_as_the_predictor_does(browser: Browser, url: str, how: str) -> None:
    with tab(browser, f"{url}#mode=free") as opened:
        page = opened.page
        settled(page)
        if how == "choose":
            settled(page, lambda: page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": photo(7)}))
        else:
            settled(page, lambda: drop(page, photo(7), how=how))
        assert_top(shown_answer(page), Predictor(VIT, backend="torch", workers=0)(photo(7))[0].probabilities)
        assert opened.complaints == []
        assert all(asked.startswith((url, "data:", "blob:")) for asked in opened.requests)


def test_what_is_no_image_is_refused_with_a_reason_and_the_page_goes_on(browser: Browser, url: str) -> None:
    with tab(browser, f"{url}#mode=free") as opened:
        page = opened.page
        settled(page)
        before = shown_answer(page)
        settled(page, lambda: drop(page, b"no image at all", name="<b>x.jpg"))
        assert "image" in page.inner_text("#status")
        assert shown_answer(page) == before
        settled(page, lambda: drop(page, photo(7)))
        assert page.inner_text("#status") == ""
        assert shown_answer(page) != before


@pytest.mark.parametrize("where", ["served", "file"])
def test_a_touched_patch_shows_the_librarys_attention(browser: Browser, url: str, file: Path, where: str) -> None:
    with tab(browser, f"{url if where == 'served' else address(file)}#mode=free&view=attention&layer=1&head=2") as opened:
        page = opened.page
        settled(page)
        content = photo(2)
        if where == "served":
            settled(page, lambda: drop(page, content))
        else:
            settled(page, lambda: page.locator(".shot").nth(1).click())
        settled(page, lambda: touch(page, 2, 1))
        attention_LHN = attention_of(VIT, seen(content), 1 + 2 * 4 + 1)
        for token, value in strongest(page).items():
            assert abs(attention_LHN[1, 2, token] - value) < 1e-4
        assert next(iter(strongest(page))) == attention_LHN[1, 2].argmax()
        assert abs(float(page.get_attribute("#readout", "data-value") or "nan") - attention_LHN[1, 2, 1 + 9]) < 1e-4
        assert parse_qs(urlsplit(page.url).fragment)["token"] == ["10"]
        settled(page, lambda: page.select_option("#head", "-1"))
        assert abs(strongest(page)[int(attention_LHN[1].mean(0).argmax())] - attention_LHN[1].mean(0).max()) < 1e-4
        assert opened.complaints == []


def test_covered_patches_change_the_answer_as_in_the_library(browser: Browser, url: str) -> None:
    with tab(browser, f"{url}#mode=free") as opened:
        page, content = opened.page, photo(5)
        settled(page)
        settled(page, lambda: drop(page, content))
        page.click("#tool-cover")
        settled(page)
        for row, column in ((0, 0), (1, 2), (3, 3)):
            settled(page, lambda row=row, column=column: touch(page, row, column))  # type: ignore[misc]
        assert_top(shown_answer(page), changed_answer(VIT, seen(content), covered=[0, 6, 15]).probabilities_C)
        settled(page, lambda: touch(page, 1, 2))
        assert_top(shown_answer(page), changed_answer(VIT, seen(content), covered=[0, 15]).probabilities_C)
        settled(page, lambda: page.click("#shuffle-1"))
        order = shuffled_order((4, 4), 1, seed=0)
        assert_top(shown_answer(page), changed_answer(VIT, seen(content), order=order).probabilities_C)
        settled(page, lambda: page.click("#reset"))
        assert_top(shown_answer(page), Predictor(VIT, backend="torch", workers=0)(content)[0].probabilities)
        assert opened.complaints == []


def test_a_file_covers_one_patch_and_shuffles_without_a_server(browser: Browser, file: Path) -> None:
    with tab(browser, f"{address(file)}#mode=free") as opened:
        page = opened.page
        settled(page)
        page.click("#tool-cover")
        settled(page)
        settled(page, lambda: touch(page, 1, 2))
        assert_top(shown_answer(page), changed_answer(VIT, seen(photo(1)), covered=[6]).probabilities_C)
        settled(page, lambda: page.click("#shuffle-2"))
        order = shuffled_order((4, 4), 2, seed=0)
        assert_top(shown_answer(page), changed_answer(VIT, seen(photo(1)), order=order).probabilities_C)
        assert all(asked.startswith((address(file), "data:", "blob:")) for asked in opened.requests)
        assert opened.complaints == []


@pytest.mark.parametrize("where", ["served", "file"])
@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_the_tour_goes_from_the_image_to_free_exploration(
    browser: Browser, url: str, file: Path, where: str, size: tuple[int, int], scheme: Scheme
) -> None:
    with tab(browser, url if where == "served" else address(file), size=size, scheme=scheme) as opened:
        page = opened.page
        settled(page)
        titles = []
        while page.locator("#guide-title").count():
            titles.append(page.inner_text("#guide-title"))
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            settled(page, lambda: page.click("#next"))
        assert len(titles) == len(set(titles)) == 13
        assert titles[0] == "An image and an answer"
        assert page.locator(".card").count() >= 9
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert opened.complaints == []


def test_the_address_keeps_the_view(browser: Browser, file: Path) -> None:
    with tab(browser, f"{address(file)}#mode=free") as opened:
        page = opened.page
        settled(page)
        settled(page, lambda: page.click("#view-attention"))
        settled(page, lambda: page.locator(".shot").nth(2).click())
        settled(page, lambda: page.get_by_role("radio", name="layer 0, head 3").click())
        settled(page, lambda: touch(page, 3, 0))
        shown, link = (strongest(page), page.inner_text("#caption")), page.url
    with tab(browser, link) as opened:
        settled(opened.page)
        assert (strongest(opened.page), opened.page.inner_text("#caption")) == shown
        assert opened.page.url == link


def test_an_address_with_nonsense_shows_the_page_all_the_same(browser: Browser, file: Path) -> None:
    hash_ = (
        "#mode=x&step=nowhere&image=99&layer=-7&head=1e9&token=abc&view=<b>&covered=1.x.99999&side=5&model=7&beside=7&opacity=900"
    )
    with tab(browser, f"{address(file)}{hash_}") as opened:
        settled(opened.page)
        assert opened.page.inner_text("#guide-title") == "An image and an answer"
        assert opened.complaints == []


def test_everything_is_reached_by_keyboard(browser: Browser, url: str) -> None:
    with tab(browser, f"{url}#mode=free&view=attention&token=6") as opened:
        page = opened.page
        settled(page)
        page.focus("#canvas")
        settled(page, lambda: page.keyboard.press("ArrowRight"))
        settled(page, lambda: page.keyboard.press("ArrowDown"))
        assert parse_qs(urlsplit(page.url).fragment)["token"] == ["11"]
        assert page.evaluate("document.activeElement.id") == "canvas"
        page.locator(".heads [aria-checked=true]").focus()
        settled(page, lambda: page.keyboard.press("ArrowLeft"))
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 0, mean of all heads"
        settled(page, lambda: page.keyboard.press("ArrowUp"))
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 0, head 3"
        page.focus("#mode-tour")
        settled(page, lambda: page.keyboard.press("Enter"))
        page.focus("#next")
        settled(page, lambda: page.keyboard.press("Enter"))
        assert page.inner_text("#guide-title") == "An image is worth its patches"
        assert opened.complaints == []


@pytest.mark.parametrize("where", ["served", "file"])
def test_two_models_stand_side_by_side(browser: Browser, url: str, file: Path, where: str) -> None:
    with tab(browser, f"{url if where == 'served' else address(file)}#mode=free&beside=1") as opened:
        page = opened.page
        settled(page)
        names = page.evaluate("[...document.querySelectorAll('.pair h3')].map(title => title.textContent)")
        assert names == ["vit", "resnet" if where == "served" else "<b>resnet"]
        titles = page.evaluate("[...document.querySelectorAll('.pair canvas')].map(canvas => canvas.ariaLabel)")
        assert "gradient-weighted attention" in titles[0]
        assert "Grad-CAM" in titles[1]
        settled(page, lambda: page.select_option("#model", "1"))
        assert page.locator("#view-attention").count() == 0
        assert page.locator("#view-activation").count() == 1
        assert "no attention" in page.inner_text("#card-about")
        assert opened.complaints == []


def test_names_are_text_and_never_markup(browser: Browser, file: Path) -> None:
    with tab(browser, f"{address(file)}#mode=free&beside=1") as opened:
        page = opened.page
        settled(page)
        assert page.evaluate("window.owned") is None
        assert page.inner_text("h1") == "</title><i>How"
        assert page.evaluate("document.querySelectorAll('img[onerror], h1 i, h3 b, .label b').length") == 0
        assert any(label in page.inner_text("#answer") for label in HOSTILE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_axe_finds_nothing_serious(browser: Browser, url: str, scheme: Scheme, size: tuple[int, int]) -> None:
    path = os.environ.get("VITLAB_AXE", "")
    if not path:
        pytest.skip("make test-browser fetches axe-core")
    axe = Path(path).read_text(encoding="utf-8")
    views = (
        "",
        "#step=heads&view=attention&token=0",
        "#step=lens",
        "#step=what-if&covered=3",
        "#mode=free&view=attention&beside=1",
        "#mode=free&model=1",
    )
    for view in views:
        with tab(browser, f"{url}{view}", scheme=scheme, size=size) as opened:
            settled(opened.page)
            opened.page.evaluate(axe)
            found = opened.page.evaluate("axe.run().then(result => result.violations)")
            serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
            told = [
                (rule["id"], [node["html"][:200] + json.dumps(node["any"][:1])[:300] for node in rule["nodes"][:3]])
                for rule in serious
            ]
            assert told == [], view


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_kind_of_model_can_be_walked_through(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "explorer.html"
    write_explorer(path, {name: checkpoint_of(name)}, [pixels_of(name)])
    with tab(browser, address(path)) as opened:
        page = opened.page
        settled(page)
        while page.locator("#guide-title").count():
            settled(page, lambda: page.click("#next"))
        for view in page.evaluate("[...document.querySelectorAll('.views button')].map(button => button.id)"):
            settled(page, lambda view=view: page.click(f"#{view}"))  # type: ignore[misc]
        assert opened.complaints == []
