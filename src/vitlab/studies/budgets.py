"""One ViT at several budgets: accuracy against images/s for patch sizes (FlexiViT), next to token merging.

All budgets run the same weights in PyTorch and are timed in turn, round after round. With labelled images each is evaluated too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.evaluation.evaluation import evaluate, open_split
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.inference.auto import cpu_name
from vitlab.inference.backends import FoldedBackend
from vitlab.inference.bench import Run, bench
from vitlab.interpretation.drawing import Axis, Line, Style, draw_lines, form_of
from vitlab.io.atomic import replacing
from vitlab.io.display import Facts, ProgressCallback
from vitlab.models.cost import cost

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Budget:
    """A way to run the model: at a patch size, with so many pairs of patches merged in each layer on average."""

    checkpoint: Checkpoint
    patch: Size
    merge: int = 0

    @property
    def name(self) -> str:
        """`patch 16x16`, or `patch 16x16, merge 8`."""
        return f"patch {self.patch[0]}x{self.patch[1]}" + (f", merge {self.merge}" if self.merge else "")

    @property
    def tokens(self) -> int:
        """Tokens before any is merged."""
        assert isinstance(self.checkpoint.config, ViTConfig)
        return self.checkpoint.config.tokens

    def run(self) -> Run:
        """The model in PyTorch, with folded weights."""
        return FoldedBackend(self.checkpoint, merge=self.merge).run


def budgets_of(opened_at: Callable[[Size | None], Checkpoint], patch_sizes: Sequence[Size], merges: Sequence[int]) -> list[Budget]:
    """The model at each patch size, and at its own with each number of merged pairs; `opened_at` opens it at a patch size."""
    own = opened_at(None)
    if not isinstance(own.config, ViTConfig):
        raise ConfigError(f"{own.config.title} has patches of one size and no tokens to merge", hint="measure a ViT")
    patch = own.config.patch_size
    found = [Budget(checkpoint=own if size == patch else opened_at(size), patch=size) for size in patch_sizes]
    if patch not in patch_sizes:
        found.append(Budget(checkpoint=own, patch=patch))
    return found + [Budget(checkpoint=own, patch=patch, merge=merge) for merge in merges]


def bench_budgets(
    budgets: Sequence[Budget],
    *,
    name: str,
    data: str | None,
    split: Split | None,
    plot: Path | None,
    batches: tuple[int, ...],
    seconds: float,
    progress: ProgressCallback,
) -> Facts:
    """Measure every budget: images/s and, on labelled images, accuracy; a row for each, and a plot."""
    if plot is not None and data is None:
        raise ConfigError("the plot is of accuracy against images/s", hint="`data` names labelled images")
    first = budgets[0].checkpoint
    speeds = bench({budget.name: budget.run for budget in budgets}, first, seconds=seconds, batches=batches)
    rows: list[dict[str, Any]] = []
    for budget, speed in zip(budgets, speeds, strict=True):
        row: dict[str, Any] = {
            "budget": budget.name,
            "tokens": budget.tokens,
            "macs": None if budget.merge else cost(budget.checkpoint.config).macs,
            "images_per_sec": round(speed.rate, 2),
            "batch": speed.batch,
        }
        if data is not None:
            row["top1"] = round(_top1(budget, data, split, progress), 4)
        rows.append(row)
    notes = tuple[str, ...]()
    if plot is not None:
        image = draw_budgets(budgets, rows, plot)
        with replacing(plot, needed=len(image)) as file:
            file.write(image)
        notes = (f"plot: {plot}",)
    about = {"model": name, "image_size": list(first.config.image_size), "data": data, "cpu": cpu_name()}
    return Facts({**about, "budgets": rows, "plot": None if plot is None else str(plot)}, shown=[about, rows], notes=notes)


def _top1(budget: Budget, data: str, split: Split | None, progress: ProgressCallback) -> float:
    checkpoint = budget.checkpoint
    dataset, _ = open_split(data, split, checkpoint)
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=False)
    config = EvaluateConfig(backend="torch", device="cpu", merge=budget.merge, resamples=0)

    def named(description: str, done: int, total: int | None) -> None:
        progress(f"{description}, {budget.name}", done, total)

    return evaluate(checkpoint, dataset, targets, config=config, progress=named).top1


def draw_budgets(budgets: Sequence[Budget], rows: Sequence[dict[str, Any]], path: Path) -> bytes:
    """Accuracy against images/s: a line of patch sizes, and a line of token merging from the model's own patch size."""
    points = [
        (row["images_per_sec"], 100 * row["top1"], _short(budget.patch), budget) for budget, row in zip(budgets, rows, strict=True)
    ]
    own = next((budget.patch for budget in budgets if budget.merge), None)
    sizes = sorted((point for point in points if not point[3].merge), key=lambda point: point[0])
    merged = sorted((point for point in points if point[3].patch == own), key=lambda point: point[3].merge)
    lines = [_line(f"patches of {', '.join(word for _, _, word, _ in sizes)}", sizes)]
    if merged:
        lines.append(_line(f"merging {', '.join(str(budget.merge) for *_, budget in merged)} pairs a layer", merged))
    title = "One model at several budgets, from the slowest to the fastest"
    return draw_lines(lines, Axis(name="images/s"), Axis(name="top-1, %"), Style(form=form_of(path)), title=title)


def _line(name: str, points: Sequence[tuple[float, float, str, Budget]]) -> Line:
    return Line(name=name, x=[x for x, *_ in points], y=[y for _, y, *_ in points])


def _short(size: Size) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
