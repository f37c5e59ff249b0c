"""Contact sheets: some images of each class side by side, each with its label below; and a font for a label in any script."""

from __future__ import annotations

import io
import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitlab.data.dataset import Dataset
from vitlab.data.decode import as_rgb, decode
from vitlab.errors import ConfigError, DataError
from vitlab.io.atomic import cannot_write, write_bytes
from vitlab.io.display import ProgressCallback, silent

_MARGIN, _GAP = 12, 8  # pixels
_TEXT, _TITLE = 12, 15  # pixels of letters
_LINES = 2  # of a label at most
_MOST_COLUMNS = 12
_PAPER, _CELL, _INK, _FAINT, _FAULT = "#ffffff", "#ececec", "#202020", "#606060", "#b03030"
_MOST = 2500  # images; a larger sheet is hard to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactSheet:
    """Facts about a sheet: its images and classes, the number of broken images, and its size in pixels.

    `undrawable` are letters of labels that no font of this machine has.
    """

    images: int
    classes: int
    broken: int
    height: int
    width: int
    undrawable: str = ""


def write_sheet(
    dataset: Dataset, path: Path, *, title: str, count: int = 64, seed: int = 0, side: int = 96, progress: ProgressCallback = silent
) -> ContactSheet:
    """Write a contact sheet of about `count` images as a PNG file, atomically.

    `seed` draws the images, equally many of each class if possible; with more classes than `count`, one image of `count` classes.
    `side` is the size in pixels of the square for each image.
    """
    for name, value, least, most in (("count", count, 1, _MOST), ("side", side, 16, 512), ("seed", seed, 0, 2**63 - 1)):
        if not least <= value <= most:
            raise ConfigError(f"{name}={value} must be from {least} to {most}")
    if len(dataset) == 0:
        raise DataError(f"{title} holds no image")
    groups = choose(dataset, count, seed)
    cells = []
    for indices in groups:
        for index in indices:
            cells.append(_cell(dataset, index, side))
            progress("drawing images", len(cells), sum(map(len, groups)))
    sheet = _drawn(cells, title=_heading(title, dataset, groups), side=side, columns=_columns(groups))
    _save(sheet, path)
    return ContactSheet(
        images=len(cells),
        classes=len(groups) if dataset.labels else 0,
        broken=sum(cell.image is None for cell in cells),
        height=sheet.height,
        width=sheet.width,
        undrawable=undrawable(cell.label for cell in cells),
    )


def choose(dataset: Dataset, count: int, seed: int) -> list[list[int]]:
    """The images to show, per class; the same seed gives the same images."""
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in range(len(dataset)):
        label = dataset.label(index)
        # An image of several classes counts for the first; images without labels form one group.
        key = (label[:1] if isinstance(label, tuple) else (label,)) if label is not None else ()
        members[key].append(index)
    keys = sorted(members)
    rng = np.random.default_rng([seed, 0])
    if len(keys) > count:
        keys = [keys[place] for place in sorted(rng.choice(len(keys), count, replace=False).tolist())]
    each = max(1, count // len(keys))
    chosen = []
    for place, key in enumerate(keys):
        among = members[key]
        drawn = np.random.default_rng([seed, 1, place]).permutation(len(among))[:each]
        chosen.append(sorted(among[int(number)] for number in drawn))
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One image of a sheet, or None if it cannot be decoded, and its label."""

    image: Image.Image | None
    label: str


def _cell(dataset: Dataset, index: int, side: int) -> _Cell:
    label = dataset.label(index)
    text = ""
    if isinstance(label, tuple):
        text = ", ".join(dataset.labels[code] for code in label)
    elif label is not None:
        text = dataset.labels[label]
    try:
        sample = dataset.read(index)
        pixels = sample.content
        if isinstance(pixels, bytes):  # images of more than 8 bits as the eye sees them best
            pixels = decode(pixels, name=sample.name, at_least=(side, side), channels=None, scale="percentile")
    except DataError:
        return _Cell(image=None, label=text)
    return _Cell(image=_fitted(pixels, side), label=text or PurePosixPath(sample.name).stem)


def _fitted(pixels_HWC: NDArray[np.uint8], side: int) -> Image.Image:
    """Scale an image to the square: photographs smoothly, tiny images by whole multiples, so that their pixels stay square."""
    image = Image.fromarray(pixels_HWC[:, :, 0] if pixels_HWC.shape[2] == 1 else as_rgb(pixels_HWC))
    scale = side / max(image.size)
    if scale >= 2:
        scale = math.floor(scale)
    width, height = (max(1, round(length * scale)) for length in image.size)
    return image.resize((width, height), Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS)


def _columns(groups: Sequence[Sequence[int]]) -> int:
    """The number of columns: classes start at the same column in each row, and the sheet is slightly wider than high."""
    each, total = max(map(len, groups)), sum(map(len, groups))
    wished = min(_MOST_COLUMNS, max(1, math.ceil(math.sqrt(total * 1.5))))
    if len(groups) == 1 or each == 1:
        return min(wished, total)
    if each >= wished:
        return min(each, _MOST_COLUMNS)
    return max(1, wished // each) * each


def _heading(title: str, dataset: Dataset, groups: Sequence[Sequence[int]]) -> str:
    shown = f"{title}: {sum(map(len, groups)):,} of {len(dataset):,} images"
    if not dataset.labels:
        return shown
    if len(groups) == len(dataset.labels):
        return f"{shown}, {len(groups):,} classes"
    return f"{shown}, {len(groups):,} of {len(dataset.labels):,} classes"


def _drawn(cells: Sequence[_Cell], *, title: str, side: int, columns: int) -> Image.Image:
    fonts, large = [font_for(cell.label, _TEXT) for cell in cells], font_for(title, _TITLE)
    labels = [wrapped(cell.label, font, side) for cell, font in zip(cells, fonts, strict=True)]
    line = _TEXT + 3
    pitch = side + 3 + line * max(1, max(map(len, labels))) + _GAP
    rows = math.ceil(len(cells) / columns)
    width = 2 * _MARGIN + columns * (side + _GAP) - _GAP
    heading = wrapped(title, large, width - 2 * _MARGIN)
    top = _MARGIN + (_TITLE + 4) * len(heading) + 4
    sheet = Image.new("RGB", (width, top + rows * pitch - _GAP + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, text in enumerate(heading):
        pen.text((_MARGIN, _MARGIN - 4 + number * (_TITLE + 4)), text, fill=_INK, font=large)
    for place, (cell, words, font) in enumerate(zip(cells, labels, fonts, strict=True)):
        x, y = _MARGIN + place % columns * (side + _GAP), top + place // columns * pitch
        pen.rectangle((x, y, x + side - 1, y + side - 1), fill=_CELL)
        if cell.image is None:
            pen.line((x, y, x + side - 1, y + side - 1), fill=_FAULT)
            pen.line((x, y + side - 1, x + side - 1, y), fill=_FAULT)
        else:
            sheet.paste(cell.image, (x + (side - cell.image.width) // 2, y + (side - cell.image.height) // 2))
        for number, text in enumerate(words):
            across = x + (side - font.getlength(text)) / 2
            pen.text((across, y + side + 2 + number * line), text, fill=_FAULT if cell.image is None else _FAINT, font=font)
    return sheet


def wrapped(text: str, font: Font, width: int, *, lines: int = _LINES) -> list[str]:
    """A text in lines of at most `width` pixels, broken at spaces and the like, shortened by `...`."""
    left = drawable(text, font)
    made: list[str] = []
    while left and len(made) < lines:
        if font.getlength(left) <= width:
            made.append(left)
            break
        if len(made) == lines - 1:
            made.append(_cut(left, font, width))
            break
        fits = next((end for end in range(len(left) - 1, 0, -1) if font.getlength(left[:end]) <= width), 1)
        # After a space, dash or underscore if one is near; else in the middle of the word.
        soft = max((place + 1 for place, letter in enumerate(left[:fits]) if letter in " -_/,"), default=0)
        end = soft if soft > fits // 3 else fits
        made.append(left[:end].rstrip())
        left = left[end:].lstrip()
    return made


def _cut(text: str, font: Font, width: int) -> str:
    for end in range(len(text), 0, -1):
        if font.getlength(text[:end].rstrip() + "...") <= width:
            return text[:end].rstrip() + "..."
    return ""


def _save(sheet: Image.Image, path: Path) -> None:
    red, green, blue = sheet.split()
    grey = np.array_equal(np.asarray(red), np.asarray(green)) and np.array_equal(np.asarray(green), np.asarray(blue))
    made = io.BytesIO()
    (red if grey else sheet).save(made, "PNG", optimize=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise cannot_write(path, fault, error=DataError) from fault
    write_bytes(path, made.getvalue())


# --- fonts: Pillow's own for Latin, else one of this machine that has the letters, else code points --------------------------

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont

# File names that Pillow looks up among the fonts of Linux, macOS and Windows; the first that has every letter is taken.
_KNOWN = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKsc-Regular.otf",
    "wqy-microhei.ttc",
    "wqy-zenhei.ttc",
    "DroidSansFallbackFull.ttf",
    "NotoSansArabic-Regular.ttf",
    "NotoSansHebrew-Regular.ttf",
    "NotoSansDevanagari-Regular.ttf",
    "NotoSansBengali-Regular.ttf",
    "NotoSansTamil-Regular.ttf",
    "NotoSansThai-Regular.ttf",
    "unifont.ttf",
    "Arial Unicode.ttf",
    "PingFang.ttc",
    "AppleGothic.ttf",
    "arial.ttf",
    "msyh.ttc",
    "msgothic.ttc",
    "malgun.ttf",
    "Nirmala.ttf",
    "LeelawUI.ttf",
)


_TRIED = 12  # pixels of a letter that is looked for


def font_for(text: str, size: int) -> Font:
    """The font that shows the text, or most of its letters."""
    usual = ImageFont.load_default(size)
    if all(has(usual, letter) for letter in text):
        return usual
    fonts = [usual, *(font for name in _KNOWN if (font := _called(name, size)) is not None)]
    return max(fonts, key=lambda font: sum(has(font, letter) for letter in text))  # the first of the best


def drawable(text: str, font: Font | Callable[[str], bool]) -> str:
    """The text in letters of the font: without accents if these are missing, else by code point (U+732B); spaces for line ends.

    `font` may also be a function that says whether a font has a letter.
    """
    known = font if callable(font) else partial(has, font)
    letters = []
    for letter in text:
        if not letter.isprintable():
            letters.append(" ")
        elif known(letter):
            letters.append(letter)
        else:
            plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
            letters.append(plain or f"U+{ord(letter):04X} ")
    return "".join(letters).rstrip()


def undrawable(texts: Iterable[str]) -> str:
    """The letters of some texts that no known font of this machine has, each once: they are drawn as code points."""
    letters = sorted({letter for text in texts for letter in text})
    lacking = [one for one in letters if drawable(one, font_for(one, _TRIED)).startswith("U+")]
    return "".join(lacking)


def has(font: Font, letter: str) -> bool:
    """Whether a font has a letter; a font draws one box for all that it lacks."""
    return letter.isascii() or not letter.isprintable() or bytes(font.getmask(letter)) != _box(font)


@cache
def _box(font: Font) -> bytes:
    return bytes(font.getmask("\U0010ffff"))


@cache
def _called(name: str, size: int) -> Font | None:
    try:
        return ImageFont.truetype(name, size)
    except OSError:  # not on this machine
        return None
