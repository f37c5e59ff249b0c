"""Plots of studies: points and named lines, as PNG or SVG by the file's ending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.config.published import Published
from vitlab.errors import ConfigError
from vitlab.interpretation.config import Form
from vitlab.interpretation.drawing import Axis, Line, Panel, Row, Style, draw_dots, draw_lines
from vitlab.studies.compare import ModelRow
from vitlab.studies.positions import KIND_WORDS, PLACE_WORDS, Cell
from vitlab.studies.transfer import Curve

_COST = Axis(name="GMACs of one image", log=True)
_FORMS: dict[str, Form] = {".png": "png", ".svg": "svg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    family: str
    x: float
    y: float


def form_of(path: Path) -> Form:
    """PNG or SVG, by the file's ending."""
    if path.suffix not in _FORMS:
        raise ConfigError(f"{path.name} is neither .png nor .svg", hint="end the name with one of them")
    return _FORMS[path.suffix]


def draw_compared(rows: Sequence[ModelRow], path: Path) -> bytes:
    """Images/s if measured, else accuracy, against multiply-adds; one line for each family."""
    style = Style(form=form_of(path))
    timed = [row for row in rows if row.speed is not None]
    if timed:
        points = [_Point(family=_family(row), x=row.gmacs, y=row.speed.median) for row in timed if row.speed is not None]
        return draw_lines(_lines(points), _COST, Axis(name="images/s", log=True), style, title="Speed on this machine")
    points = []
    for row in rows:
        points += [_Point(family=f"{_family(row)}, {_trained_on(quoted)}", x=row.gmacs, y=quoted.top1) for quoted in row.published]
        if row.measured is not None:
            points.append(_Point(family=f"{_family(row)}, measured", x=row.gmacs, y=row.measured))
    if not points:
        raise ConfigError("none of these models has an accuracy to draw", hint="--speed draws images/s")
    return draw_lines(_lines(points), _COST, Axis(name="top-1, %"), style, title="Accuracy against cost")


def draw_curves(curves: Sequence[Curve], path: Path) -> bytes:
    """Accuracy by the number of labels of each class: one colour for each family, dashed from scratch."""
    families = list(dict.fromkeys(curve.family for curve in curves))
    lines = [
        Line(
            name=f"{curve.family}{', pre-trained' if curve.pretrained else ''}",
            x=curve.shots,
            y=[100 * value for value in curve.accuracy],
            dashed=not curve.pretrained,
            like=families.index(curve.family),
        )
        for curve in curves
    ]
    at = sorted({shots for curve in curves for shots in curve.shots})
    x = Axis(name="labels of each digit", log=True, at=at)
    return draw_lines(lines, x, Axis(name="test accuracy, %"), Style(form=form_of(path)), title="Few labels, by family")


def draw_positions(cells: Sequence[Cell], path: Path) -> bytes:
    """Accuracy of each position embedding, with its deviation between seeds; beside it the paper's."""
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    rows = [Row(name=_title(cell), group=kinds.index(cell.kind)) for cell in cells]
    seeds = max((len(cell.accuracy) for cell in cells), default=0)
    here = Panel(
        axis="test accuracy, %",
        title="Here" if seeds < 2 else f"Here, mean of {seeds} seeds ± deviation",
        values=[100 * cell.mean for cell in cells],
        spread=[100 * cell.deviation for cell in cells],
    )
    paper = Panel(
        axis="ImageNet, 5-shot linear, %",
        title="The paper's ViT-B/16 (Table 8)",
        values=[cell.published for cell in cells],
        missing="not in the table",
    )
    return draw_dots(rows, (here, paper), Style(form=form_of(path)))


def _title(cell: Cell) -> str:
    return KIND_WORDS[cell.kind] if cell.kind == "none" else f"{KIND_WORDS[cell.kind]}, {PLACE_WORDS[cell.place]}"


def _lines(points: Sequence[_Point]) -> list[Line]:
    lines = []
    for family in dict.fromkeys(point.family for point in points):
        mine = sorted((point for point in points if point.family == family), key=lambda point: point.x)
        lines.append(Line(name=family, x=[point.x for point in mine], y=[point.y for point in mine]))
    return lines


def _trained_on(quoted: Published) -> str:
    return "from 1k" if quoted.trained_on == "ImageNet-1k" else "from more"


def _family(row: ModelRow) -> str:
    """The beginning of a model's name and its image size: one line holds models of one image size."""
    words = row.name.split("-")[0].split("+")
    return f"{'hybrid' if len(words) > 1 else words[0]} {row.image_size[0]} px"
