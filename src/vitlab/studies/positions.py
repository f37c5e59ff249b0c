"""Table 8 of the paper in miniature: every position embedding at every place in a ViT, all trained alike."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from vitlab.config.overrides import Overrides
from vitlab.config.paper_tables import TABLE_8
from vitlab.config.vit import Position, PositionKind, PositionPlace, ViTConfig
from vitlab.errors import at_least
from vitlab.interpretation.drawing import DotRow, Panel, Style, draw_dots, form_of
from vitlab.recipes.table import recipe
from vitlab.studies.runner import Done, Job, JobProgress, counts_of, evaluate_run, on_one_core, run_jobs
from vitlab.studies.transfer import FAMILIES
from vitlab.training.control import Control

KINDS: tuple[PositionKind, ...] = ("none", "learned-1d", "learned-2d", "relative")
PLACES: tuple[PositionPlace, ...] = ("stem", "every", "shared")
KIND_WORDS: dict[PositionKind, str] = {"none": "none", "learned-1d": "1-D", "learned-2d": "2-D", "relative": "relative"}
PLACE_WORDS: dict[PositionPlace, str] = {"stem": "at the stem", "every": "at every layer", "shared": "every layer, shared"}

CELLS: tuple[tuple[PositionKind, PositionPlace], ...] = tuple(
    (kind, place) for kind in KINDS for place in PLACES if kind != "none" or place == "stem"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One position embedding: test accuracy, 0 to 1, for each seed; `published` is the paper's percentage, if any."""

    kind: PositionKind
    place: PositionPlace
    accuracy: tuple[float, ...]
    published: float | None

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.accuracy)

    @property
    def deviation(self) -> float:
        """Standard deviation between the seeds; 0 for one seed."""
        return stdev(self.accuracy) if len(self.accuracy) > 1 else 0.0


def jobs_of(out: Path, *, images: int, seeds: int) -> tuple[Job, ...]:
    """One run for each position embedding and seed, each on this many synthetic letters."""
    at_least("images", images, 64)
    at_least("seeds", seeds, 1)
    model = FAMILIES["ViT"]
    assert isinstance(model, ViTConfig)
    made = []
    for seed in range(seeds):
        for kind, place in CELLS:
            placed = replace(model, position=Position(kind=kind, place=place, prefix=False))
            run = recipe("quickstart", Overrides(model=placed, epochs=images / 100_000, seed=seed))
            name = f"{kind}-{place}-{seed}"
            made.append(
                Job(name=name, title=f"{kind}, {place}, seed {seed}", run=on_one_core(run), out=out / name, evaluate=evaluate_run)
            )
    return tuple(made)


def positions(out: Path, *, images: int, seeds: int, control: Control) -> Iterator[JobProgress | Done | tuple[Cell, ...]]:
    """Run what is not finished yet; the last event is the table. A stopped study has none."""
    out.mkdir(parents=True, exist_ok=True)
    jobs, found = jobs_of(out, images=images, seeds=seeds), dict[str, float]()
    for event in run_jobs(jobs, processes=min(2, os.cpu_count() or 1), control=control):
        if isinstance(event, Done):
            found[event.job] = counts_of(event.result, "test").accuracy
        yield event
    if len(found) == len(jobs):
        yield tuple(
            Cell(
                kind=kind,
                place=place,
                accuracy=tuple(found[f"{kind}-{place}-{seed}"] for seed in range(seeds)),
                published=TABLE_8.get((kind, place)),
            )
            for kind, place in CELLS
        )


def draw_positions(cells: Sequence[Cell], path: Path) -> bytes:
    """Accuracy of each position embedding, with its deviation between seeds; beside it the paper's."""
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    rows = [DotRow(name=_title(cell), group=kinds.index(cell.kind)) for cell in cells]
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
