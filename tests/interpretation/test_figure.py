"""What is drawn: sizes, colours, words; PNG and SVG, light and dark; nothing left behind."""

from __future__ import annotations

import io
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests import processes
from tests.conftest import CHECKOUT
from vitlab.data.decode import as_rgb
from vitlab.errors import ConfigError
from vitlab.interpretation.drawing import Style, draw_distance, draw_filters, draw_positions, draw_sheet, lettering
from vitlab.interpretation.paint import (
    GAP,
    Pixels,
    feature_maps,
    filter_tiles,
    overlay,
    png,
    position_tiles,
    ramp,
    shown_places,
)


def image(height: int = 32, width: int = 48, channels: int = 3) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


GRID = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
DRAWN: dict[str, Callable[[Style, str], bytes]] = {
    "filters": lambda style, title: draw_filters(np.random.default_rng(2).normal(size=(9, 4, 6, 3)), style, title=title),
    "positions": lambda style, title: draw_positions(
        np.clip(np.random.default_rng(3).normal(size=(3, 5, 3, 5)), -1, 1), style, title=title
    ),
    "distance": lambda style, title: draw_distance(np.random.default_rng(4).uniform(size=(4, 3)) * 100, style, title=title),
    "sheet": lambda style, title: draw_sheet([[image(), image()], [image()]], style, title=title, captions=[["a", "b"], [title]]),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_is_drawn_on_its_theme_s_paper(name: str, theme: str) -> None:
    image = opened(DRAWN[name](Style(theme=theme), "title"))  # type: ignore[arg-type]
    corner = image.getpixel((0, image.height - 1))
    assert isinstance(corner, tuple)
    assert (min(corner) > 240) if theme == "light" else (max(corner) < 40)
    assert len(set(image.resize((40, 40)).get_flattened_data())) > 10


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_is_drawn_as_svg_whatever_it_is_called(name: str) -> None:
    svg = DRAWN[name](Style(form="svg"), "<script>$x$ & \n 你好")
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert not [element for element in root.iter() if element.tag.endswith("script")]


@pytest.mark.filterwarnings("error")  # those of Matplotlib too
@pytest.mark.parametrize("title", ["cost: $5 to $10", "\x1b[31m", "你好.jpg", "a" * 300, "_^{\\frac"])
def test_a_title_is_text_and_never_a_formula_or_a_warning(title: str) -> None:
    assert DRAWN["sheet"](Style(), title)


def test_a_title_wider_than_its_figure_is_broken_into_lines() -> None:
    title = "without a patch the class loses (orange) or gains (blue)"
    one, two = (draw_sheet([[np.zeros((8, 8, 3), np.uint8)] * columns], Style(form="svg"), title=title) for columns in (4, 2))
    assert "without a patch the class loses (orange) or gains (blue)" in one.decode()
    assert "without a patch the class loses (orange) or gains (blue)" not in two.decode()
    assert all(word in two.decode() for word in title.split())


def test_drawing_twice_gives_the_same_png() -> None:
    assert DRAWN["distance"](Style(), "x") == DRAWN["distance"](Style(), "x")


def test_drawing_does_not_touch_pyplot() -> None:
    code = "import sys; from tests.interpretation.test_figure import DRAWN, Style; [draw(Style(), 'x') for draw in DRAWN.values()]"
    command = [sys.executable, "-c", f"{code}; print('matplotlib.pyplot' in sys.modules)"]
    done = processes.run(command, cwd=CHECKOUT)
    assert done.stdout == "False\n"


def test_without_matplotlib_a_figure_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="figures need matplotlib") as refusal:
        DRAWN["distance"](Style(), "")
    assert refusal.value.hint == "pip install 'vitlab[figures]'"


@pytest.mark.parametrize("wrong", [{"theme": "sepia"}, {"form": "gif"}, {"dpi": 0}])
def test_a_style_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Style(**wrong)  # type: ignore[arg-type]


def test_a_sheet_without_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="no image"):
        draw_sheet([])


@pytest.mark.parametrize("how", ["shade", "colour", "signed"])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_heat_is_laid_over_an_image_of_any_channels(how: str, smooth: bool, channels: int) -> None:
    laid = overlay(image(channels=channels), GRID, how, smooth=smooth)  # type: ignore[arg-type]
    assert laid.shape == (32, 48, 3)
    assert laid.dtype == np.uint8


def test_shade_keeps_the_hottest_patch_and_darkens_the_coldest() -> None:
    white = np.full((32, 48, 3), 200, np.uint8)
    laid = overlay(white, GRID, smooth=False)
    row, column = np.unravel_index(GRID.argmax(), GRID.shape)
    assert (laid[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] == 200).all()
    row, column = np.unravel_index(GRID.argmin(), GRID.shape)
    assert (laid[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] == 24).all()


def test_signed_heat_is_red_above_zero_blue_below_and_nothing_at_zero() -> None:
    grey = np.full((8, 24, 3), 120, np.uint8)
    left, middle, right = overlay(grey, np.array([[-1.0, 0.0, 1.0]]), "signed", smooth=False)[4, [4, 12, 20]].astype(int)
    assert left[2] > left[0]
    assert right[0] > right[2]
    assert middle.tolist() == [120, 120, 120]


def test_a_map_that_hangs_over_the_edge_is_cut_and_not_squeezed() -> None:
    white = np.full((30, 41, 3), 200, np.uint8)
    laid = overlay(white, np.arange(24.0).reshape(4, 6), smooth=False, step=(8, 8))
    assert laid.shape == (30, 41, 3)
    assert len(np.unique(laid[:8, :8])) == len(np.unique(laid[24:, 40:])) == 1
    assert laid[0, 7, 0] != laid[0, 8, 0]
    with pytest.raises(ConfigError, match="does not cover"):
        overlay(white, np.zeros((2, 2)), step=(8, 8))


def test_heat_that_is_the_same_everywhere_is_no_division_by_zero() -> None:
    for how in ("shade", "colour", "signed"):
        assert overlay(image(), np.zeros((2, 2)), how).shape == (32, 48, 3)


@pytest.mark.parametrize("heat", [np.zeros((2, 2, 2)), np.zeros((0, 2)), np.array([[np.nan, 1.0]])])
def test_heat_that_is_no_map_is_refused(heat: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(ConfigError, match="heat is a map"):
        overlay(image(), heat)


def test_an_image_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="an image is uint8"):
        as_rgb(np.zeros((2, 2, 3)))  # type: ignore[arg-type]


def test_colours_get_lighter_all_the_way() -> None:
    lightness = ramp(np.linspace(0, 1, 64)) @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(lightness) > 0).all()


def test_tiles_of_filters_are_grey_at_zero_and_reach_to_both_sides() -> None:
    filters_MPQC = np.zeros((3, 2, 2, 3))
    filters_MPQC[0, 0, 0] = 1
    filters_MPQC[1, 0, 0] = -2
    tiles = filter_tiles(filters_MPQC, columns=2, scale=1)
    assert tiles.shape == (4 + GAP, 4 + GAP, 3)
    assert tiles[0, 0].tolist() == [255, 255, 255]
    assert tiles[0, 2 + GAP].tolist() == [0, 0, 0]
    assert tiles[1, 1].tolist() == [128, 128, 128]


def test_a_position_s_tile_stands_at_its_place_and_its_brightest_pixel_at_its_place_in_the_tile() -> None:
    table_ND = np.random.default_rng(5).normal(size=(15, 32))
    table_ND /= np.linalg.norm(table_ND, axis=1, keepdims=True)
    tiles = position_tiles((table_ND @ table_ND.T).reshape(3, 5, 3, 5), scale=1).astype(int).sum(2)
    for row in range(3):
        for column in range(5):
            tile = tiles[row * (3 + GAP) : row * (3 + GAP) + 3, column * (5 + GAP) : column * (5 + GAP) + 5]
            assert np.unravel_index(tile.argmax(), tile.shape) == (row, column)


def test_of_a_fine_grid_evenly_spaced_positions_are_shown() -> None:
    assert shown_places(5) == [0, 1, 2, 3, 4]
    assert len(shown_places(64)) == 16
    assert shown_places(64)[0] == 0
    assert shown_places(64)[-1] == 63


def test_places_of_like_features_get_like_colours_and_the_first_component_is_lightness() -> None:
    scores_BGJM = np.zeros((1, 1, 3, 3), np.float32)
    scores_BGJM[0, 0, :, 0] = [-1, -1, 1]
    (printable,) = feature_maps(scores_BGJM, (4, 12))
    left, middle, right = printable[2, [2, 6, 10]].astype(int)
    assert left.tolist() == middle.tolist()
    assert right.sum() > left.sum() + 200


@pytest.mark.parametrize("components", [1, 2, 3, 5])
def test_any_number_of_components_makes_colours(components: int) -> None:
    scores_BGJM = np.random.default_rng(6).normal(size=(2, 3, 4, components))
    assert [shown.shape for shown in feature_maps(scores_BGJM, (6, 8))] == [(6, 8, 3)] * 2


def test_png_keeps_every_pixel() -> None:
    pixels = image()
    assert np.array_equal(np.asarray(opened(png(pixels))), pixels)


def test_words_in_other_scripts_are_letters_or_code_points_and_never_boxes() -> None:
    text, font = lettering("кот café", 9)
    assert text == "кот café"  # matplotlib's own font has them
    assert font.get_size() == 9
    cat, _ = lettering("猫", 9)
    assert cat in ("猫", "U+732B")
    assert "\N{REPLACEMENT CHARACTER}" not in lettering("\U000e0fff\n", 9)[0]
    found = draw_sheet([[image()]], Style(form="svg"), title="猫", captions=[["कुत्ता $5"]])
    assert found.startswith(b"<?xml")
