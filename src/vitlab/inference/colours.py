"""Colours of classes in what is drawn over images."""

from __future__ import annotations

import colorsys

_COLOURS = (  # colours that nearly everybody can tell apart (Okabe and Ito), then hues in steps of the golden angle
    *((213, 94, 0), (0, 114, 178), (0, 158, 115), (240, 228, 66)),
    *((204, 121, 167), (86, 180, 233), (230, 159, 0), (120, 120, 120)),
)


def colours(classes: int) -> list[tuple[int, int, int]]:
    """A colour for each class, as far apart as possible."""
    more = (
        tuple(round(255 * level) for level in colorsys.hsv_to_rgb((code * 0.618034) % 1, 0.55 + 0.4 * (code % 2), 0.9))
        for code in range(max(0, classes - len(_COLOURS)))
    )
    return [*_COLOURS, *((red, green, blue) for red, green, blue in more)][:classes]
