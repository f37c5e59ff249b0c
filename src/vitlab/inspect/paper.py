"""What figures are drawn on: paper and ink of a theme, by matplotlib's objects alone: no pyplot, no window, no state left."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.config.check import at_least, choice
from vitlab.config.inspect import Form, Theme
from vitlab.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER: dict[str, str] = {"light": "#ffffff", "dark": "#14171c"}
INK: dict[str, str] = {"light": "#1f2328", "dark": "#e6e8eb"}
FAINT: dict[str, str] = {"light": "#c9ced6", "dark": "#3a414b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How figures are drawn: on white or on dark paper, as PNG or SVG, `dpi` pixels an inch."""

    theme: Theme = "light"
    form: Form = "png"
    dpi: int = 110

    def __post_init__(self) -> None:
        choice("theme", self.theme, Theme)
        choice("form", self.form, Form)
        at_least("dpi", self.dpi, 20)


def new_paper(width: float, height: float, style: Style) -> Figure:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib", hint="pip install 'vitlab[figures]'") from error
    return Figure(figsize=(width, height), dpi=style.dpi, facecolor=PAPER[style.theme], layout="constrained")


def tint(axes: Any, style: Style) -> None:
    """Words, ticks and edges in the theme's ink."""
    axes.set_facecolor(PAPER[style.theme])
    axes.tick_params(colors=INK[style.theme], labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK[style.theme])
        label.set_fontsize(9)
    for spine in axes.spines.values():
        spine.set_edgecolor(FAINT[style.theme])


def entitle(axes: Any, title: str, style: Style, *, size: float = 10) -> None:
    if title:  # parse_math: a file's name may hold a dollar, which is no formula
        axes.set_title(drawable(title), color=INK[style.theme], fontsize=size, parse_math=False)


def drawable(text: str) -> str:
    """The text with what the font has no letters for, or a line cannot hold, as replacement signs: names come from strangers."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    letters = get_font(findfont(FontProperties())).get_charmap()
    return "".join(letter if ord(letter) in letters and letter.isprintable() else "\ufffd" for letter in text)


def written(figure: Figure, style: Style) -> bytes:
    file = io.BytesIO()
    if style.form == "svg":
        figure.savefig(file, format="svg", metadata={"Date": None})
    else:
        figure.savefig(file, format="png", pil_kwargs={"optimize": True})
    return file.getvalue()
