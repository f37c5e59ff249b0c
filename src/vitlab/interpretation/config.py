"""Which figure shows what, and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.errors import ConfigError, at_least, choice

FigureName = Literal[
    "filters",
    "positions",
    "distance",
    "rollout",
    "attention",
    "filtered",
    "class",
    "relevance",
    "features",
    "receptive",
    "occlusion",
]
Theme = Literal["light", "dark"]
Form = Literal["png", "svg"]
Overlay = Literal["shade", "colour"]
Occluder = Literal["fill", "remove"]

OF_THE_WEIGHTS: tuple[FigureName, ...] = ("filters", "positions")
"""The figures that need no images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig:
    """Choices of a figure; each figure uses those that apply to it.

    `layer` counts from 0, or negative from the end; `head` from 0; None leaves it to the figure. `query` is a patch (row, column)
    from 0, or the token "class" or "distill"; None is the patch in the middle. `target` is a class by label or by number from 0;
    None is the predicted class of each image. `occluder`: `fill` covers a patch with the mean colour, `remove` takes its token out.
    `overlay`: `shade` darkens what gets little attention, as the paper does; `colour` lays colours over the image.
    """

    layer: int | None = None
    head: int | None = None
    query: str | tuple[int, int] | None = None
    target: str | None = None
    occluder: Occluder = "fill"
    overlay: Overlay = "shade"
    theme: Theme = "light"
    form: Form = "png"

    def __post_init__(self) -> None:
        choice("overlay", self.overlay, Overlay)
        choice("occluder", self.occluder, Occluder)
        choice("theme", self.theme, Theme)
        choice("form", self.form, Form)
        if self.head is not None:
            at_least("head", self.head, 0)
        if isinstance(self.query, str) and self.query not in ("class", "distill"):
            raise ConfigError(f"query={self.query!r} is neither class nor distill nor a patch (row, column)")
