"""A font for a text in any script: Pillow's own for Latin, else one of this machine that has its letters, else code points."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, partial

from PIL import ImageFont

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
