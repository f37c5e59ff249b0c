"""HTML out of Python values, where text can never become markup.

    tag("p", {"class": "note"}, "5 < 6")    ->    <p class="note">5 &lt; 6</p>

A plain str is text and is escaped; only what `tag`, `joined` and `raw` made is markup.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from html import escape

from PIL import Image

from vitlab.data.files.names import shown
from vitlab.inspect.paint import Pixels, png

_VOID = frozenset({"img", "br", "meta", "link", "hr"})
_MOST_PNG = 24_000  # bytes: a picture that takes more is a photograph, which JPEG keeps smaller


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | Markup | None
Attributes = Mapping[str, str | int | float | None]


def tag(name: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """An element. An attribute that is None is left out, one that is "" stands without a value."""
    told = "".join(
        f" {key}" if value == "" else f' {key}="{escape(shown(str(value)))}"'
        for key, value in (attributes or {}).items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children if child is not None))


def text(words: str) -> Markup:
    """Words as markup that shows them; what a terminal or a page would act on is escaped."""
    return Markup(escape(shown(words)))


def raw(trusted: str) -> Markup:
    """Markup that this package wrote itself, never what came from outside."""
    return Markup(trusted)


def picture(pixels_HWC: Pixels, *, alt: str, kind: str = "") -> Markup:
    """A picture inside the page itself: PNG, or JPEG where that is much smaller."""
    data, form = png(pixels_HWC), "png"
    if len(data) > _MOST_PNG and not kind:
        file = io.BytesIO()
        Image.fromarray(pixels_HWC).save(file, "JPEG", quality=85, optimize=True)
        data, form = file.getvalue(), "jpeg"
    height, width = pixels_HWC.shape[:2]
    return tag(
        "img",
        {
            "src": f"data:image/{form};base64,{base64.b64encode(data).decode()}",
            "alt": alt,
            "class": kind or ("pixels" if max(height, width) <= 96 else None),
            "width": width,
            "height": height,
            "loading": "lazy",
        },
    )
