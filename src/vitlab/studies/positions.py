"""Table 8 of the paper in miniature: every position embedding at every place in a ViT, all trained alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from vitlab.config.paper_tables import TABLE_8
from vitlab.config.serialize import Json
from vitlab.config.vit import Position, PositionKind, PositionPlace
from vitlab.interpretation.drawing import DotRow, Panel, Style, draw_dots
from vitlab.io.progress import ProgressCallback, silent
from vitlab.studies.fits import difference, percent
from vitlab.studies.packs import StudyImages, prepare
from vitlab.studies.protocol import (
    LEARNING_RATES,
    SHOTS,
    StudyPlan,
    accuracy_of,
    few_shot_of,
    pretrained_job,
    pretraining,
    seeds_panel,
    vit,
)
from vitlab.studies.runner import Job, counts_of
from vitlab.studies.study import Study, Verdict

KINDS: tuple[PositionKind, ...] = ("none", "learned-1d", "learned-2d", "relative")
PLACES: tuple[PositionPlace, ...] = ("stem", "every", "shared")
KIND_WORDS: dict[PositionKind, str] = {"none": "none", "learned-1d": "1-D", "learned-2d": "2-D", "relative": "relative"}
PLACE_WORDS: dict[PositionPlace, str] = {"stem": "at the stem", "every": "at every layer", "shared": "every layer, shared"}

CELLS: tuple[tuple[PositionKind, PositionPlace], ...] = tuple(
    (kind, place) for kind in KINDS for place in PLACES if kind != "none" or place == "stem"
)
_MODEL = vit(96, 3, 3)
_DEFAULT: tuple[PositionKind, PositionPlace] = ("learned-1d", "stem")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCell:
    """One position embedding: 5-shot and test accuracy, 0 to 1, for each seed; `published` is the paper's percentage, if any."""

    kind: PositionKind
    place: PositionPlace
    few_shot: tuple[float, ...]
    test: tuple[float, ...]
    published: float | None

    @property
    def title(self) -> str:
        """Its name in the plot."""
        return KIND_WORDS[self.kind] if self.kind == "none" else f"{KIND_WORDS[self.kind]}, {PLACE_WORDS[self.place]}"


def positions(out: Path, plan: StudyPlan, *, progress: ProgressCallback = silent) -> Study:
    """The study: one run for each position embedding and seed."""
    images = prepare(out, plan.images, progress=progress)
    results = yield tuple(_job(out, plan, images, kind, place, seed) for seed in range(plan.seeds) for kind, place in CELLS)
    cells = [
        PositionCell(
            kind=kind,
            place=place,
            few_shot=tuple(few_shot_of(results[_name(kind, place, seed)]) for seed in range(plan.seeds)),
            test=tuple(accuracy_of(results[_name(kind, place, seed)], "test") for seed in range(plan.seeds)),
            published=TABLE_8.get((kind, place)),
        )
        for kind, place in CELLS
    ]
    return _verdict(images, cells, counts_of(results[_name(*CELLS[0], 0)], "test").total)


def _name(kind: PositionKind, place: PositionPlace, seed: int) -> str:
    return f"{kind}-{place}-{seed}"


def _job(out: Path, plan: StudyPlan, images: StudyImages, kind: PositionKind, place: PositionPlace, seed: int) -> Job:
    model = replace(_MODEL, position=Position(kind=kind, place=place, prefix=False))
    run = pretraining(model, images.pretrain, seen=plan.seen, seed=seed, lr=LEARNING_RATES["ViT"])
    return pretrained_job(_name(kind, place, seed), f"{kind}, {place}, seed {seed}", run, out, images.transfer)


def _verdict(images: StudyImages, cells: list[PositionCell], total: int) -> Verdict:
    by_place = {(cell.kind, cell.place): cell for cell in cells}
    rows = [
        {"positions": words, **{head: _text(by_place.get((kind, place))) for place, head in PLACE_WORDS.items()}}
        for kind, words in KIND_WORDS.items()
    ]
    data: list[Json] = [
        {
            "kind": cell.kind,
            "place": cell.place,
            "few_shot": list(cell.few_shot),
            "test": list(cell.test),
            "published": cell.published,
        }
        for cell in cells
    ]
    sentences = [*images.notes, f"{SHOTS}-shot accuracy; in brackets the paper's ViT-B/16 on ImageNet, {SHOTS}-shot linear"]
    if {("none", "stem"), _DEFAULT} <= set(by_place):
        gain = difference(by_place[_DEFAULT].few_shot, by_place["none", "stem"].few_shot, total=total)
        sentences.append(f"1-D positions at the stem are {gain.points()} none")
    others = [fmean(cell.few_shot) for cell in cells if cell.kind != "none"]
    if len(others) > 1:
        sentences.append(f"all kinds and places of positions are within {100 * (max(others) - min(others)):.1f} points")
    return Verdict(rows=[rows], data=data, sentences=sentences, plots={"positions.png": draw_cells(cells)})


def _text(cell: PositionCell | None) -> str:
    if cell is None:
        return "-"
    return percent(cell.few_shot) if cell.published is None else f"{percent(cell.few_shot)} [{cell.published:.1f}]"


def draw_cells(cells: list[PositionCell]) -> bytes:
    """Accuracy of each position embedding, with its deviation between seeds; beside it the paper's."""
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    rows = [DotRow(name=cell.title, group=kinds.index(cell.kind)) for cell in cells]
    paper = Panel(
        axis="ImageNet, 5-shot linear, %",
        title="The paper's ViT-B/16 (Table 8)",
        values=[cell.published for cell in cells],
        missing="not in the table",
    )
    return draw_dots(rows, (seeds_panel(f"{SHOTS}-shot accuracy, %", [cell.few_shot for cell in cells]), paper), Style())
