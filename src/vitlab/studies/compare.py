"""Compares models: their cost by formula, published accuracy, and the speed and memory measured on this machine; or one ViT at
several budgets.

    rows = compared_models([variant("Swin-T"), variant("ViT-S/16")])   # builds nothing
    speeds = measure_speed([row.config for row in rows], batch=4, rounds=5)

A budget is a patch size (FlexiViT) or a number of merged tokens: accuracy against images/s. All budgets run the same weights in
PyTorch and are timed in turn, round after round. With labelled images each is evaluated too.

Axes: B batch.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitlab.config.model import ModelConfig, variant
from vitlab.config.published import Published, published
from vitlab.config.serialize import from_text, to_text
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, DataError, at_least
from vitlab.interpretation.drawing import Axis, Line, Style, draw_lines, form_of
from vitlab.io.atomic import replacing
from vitlab.io.display import Facts, ProgressCallback, Table, silent
from vitlab.models.cost import Cost, cost
from vitlab.models.families import build
from vitlab.models.vit import ViT

if TYPE_CHECKING:  # the child processes that measure memory import little
    from vitlab.checkpoints import Checkpoint
    from vitlab.config.data import Split
    from vitlab.inference.bench import Run
    from vitlab.studies.study import Notify

_COST = Axis(name="GMACs of one image", log=True)
_STATUS = Path("/proc/self/status")
_PEAK = "VmHWM:"  # peak resident memory of the process, in kB
_TIMEOUT = 600.0  # seconds for one model
_CHILD = "from vitlab.studies.compare import print_peak; print_peak()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes that one model takes, or None and why they are not known."""

    bytes: int | None
    why: str = ""


def measure_memory(configs: Sequence[ModelConfig], *, progress: ProgressCallback = silent) -> list[Peak]:
    """Peak memory of a process that builds the model and runs one image, less that of a process that only imports PyTorch.

    In float32, randomly initialised. It includes what PyTorch keeps besides weights and activations.
    """
    if not _STATUS.is_file():
        return [Peak(bytes=None, why=f"this system has no {_STATUS}") for _ in configs]
    progress("memory", 0, len(configs))
    empty, found = _measured_by_child(""), list[Peak]()
    for place, config in enumerate(configs):
        whole = empty if empty.bytes is None else _measured_by_child(to_text(config))
        known = whole.bytes is not None and empty.bytes is not None
        found.append(Peak(bytes=max(0, whole.bytes - empty.bytes)) if known else whole)  # type: ignore[operator]
        progress("memory", place + 1, len(configs))
    return found


def print_peak() -> None:
    """The child process: build the model whose config is on stdin, if any, run one image, and print the peak memory in kB."""
    text = sys.stdin.read()
    import torch

    from vitlab.models.families import build
    from vitlab.models.vit import ViT

    if text:
        config: ModelConfig = from_text(ModelConfig, text)  # type: ignore[arg-type]
        model = build(config).eval()
        if isinstance(model, ViT):
            model.skip_unused_tokens = True  # as in prediction
        with torch.inference_mode():
            model(torch.zeros(1, config.channels, *config.image_size))
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(_PEAK))
    print(line.split()[1])


def _measured_by_child(text: str) -> Peak:
    """The peak of a child process that runs this config; an empty text runs no model."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _CHILD], input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return Peak(bytes=None, why=f"the process took more than {_TIMEOUT:.0f} seconds")
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2][:200]
        failure = f"died of signal {-ended.returncode}: too little memory?" if ended.returncode < 0 else f"failed: {last}"
        return Peak(bytes=None, why=f"the process {failure}")
    return Peak(bytes=1024 * int(ended.stdout))


_SAME = 1.1  # ratios of speeds within this factor count as the same: two runs of one model differ as much on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Images/s: the median of all rounds, the slowest and the fastest."""

    median: float
    low: float
    high: float
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel:
    """One model at one image size. `speed`, `peak` and `measured`, the accuracy in percent, are None if they are not measured."""

    name: str
    config: ModelConfig
    cost: Cost
    published: tuple[Published, ...] = ()
    speed: Speed | None = None
    peak: Peak | None = None
    measured: float | None = None

    @property
    def image_size(self) -> tuple[int, int]:
        """Pixels, height and width."""
        return self.config.image_size

    @property
    def gmacs(self) -> float:
        """Multiply-adds of one image, in units of 10^9."""
        return self.cost.macs / 1e9

    @property
    def published_speed(self) -> float | None:
        """Images/s on the GPU of the publication."""
        return next((quoted.images_per_sec for quoted in self.published if quoted.images_per_sec is not None), None)

    @property
    def memory(self) -> int:
        """Peak of bytes in use for one image in float32, with the weights, by formula."""
        return self.cost.inference_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRatio:
    """Speed of the first model over that of the second, on this machine and on the GPU of the publication."""

    first: str
    second: str
    here: float
    there: float

    @property
    def sentence(self) -> str:
        """The two ratios in a sentence."""
        by = self.here / self.there
        ratios = f"on this machine {self.first} is {self.here:.2f} times as fast as {self.second}, on a V100 {self.there:.2f} times"
        if abs(math.log(by)) < math.log(_SAME):
            return f"{ratios}: nearly the same"
        return f"{ratios}: this machine favours {self.first if by > 1 else self.second}, by a factor of {max(by, 1 / by):.2f}"


def compared_models(configs: Sequence[ModelConfig]) -> list[ComparedModel]:
    """One row a model, without building any."""
    if not configs:
        raise ConfigError("no models to compare", hint="name some: Swin-T ConvNeXt-T ViT-S/16")
    return [
        ComparedModel(name=config.name or config.family, config=config, cost=cost(config), published=published(config))
        for config in configs
    ]


def measure_speed(configs: Sequence[ModelConfig], *, batch: int, rounds: int, progress: ProgressCallback = silent) -> list[Speed]:
    """Measure each model's speed in PyTorch: all models in turn, round after round, after one round of warm-up.

    The models are randomly initialised and all in memory at once. A ViT skips what its head does not read in the last layer, as it
    does in prediction.
    """
    at_least("batch", batch, 1)
    at_least("rounds", rounds, 1)
    models, spent = list[torch.nn.Module](), [list[float]() for _ in configs]
    for place, config in enumerate(configs):
        progress("building", place, len(configs))
        model = build(config)
        model.eval()
        if isinstance(model, ViT):
            model.skip_unused_tokens = True
        models.append(model)
    images = [torch.randn(batch, config.channels, *config.image_size) for config in configs]
    total = (rounds + 1) * len(configs)
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for place, (runner, images_BCHW) in enumerate(zip(models, images, strict=True)):
                progress("measuring", turn * len(configs) + place, total)
                began = time.perf_counter()
                runner(images_BCHW)
                if turn:
                    spent[place].append(time.perf_counter() - began)
    progress("measuring", total, total)
    return [
        Speed(median=batch / statistics.median(times), low=batch / max(times), high=batch / min(times), batch=batch)
        for times in spent
    ]


def speed_ratios(rows: Sequence[ComparedModel]) -> list[SpeedRatio]:
    """The ratio of speeds for each ConvNeXt and the Swin of the same size and image size, here and as published."""
    found = []
    for row in rows:
        for other in rows:
            pair = row.name.startswith("ConvNeXt-") and other.name == row.name.replace("ConvNeXt-", "Swin-")
            if not pair or other.image_size != row.image_size or row.speed is None or other.speed is None:
                continue
            if row.published_speed is None or other.published_speed is None:
                continue
            found.append(
                SpeedRatio(
                    first=f"{row.name} {row.image_size[0]}",
                    second=f"{other.name} {other.image_size[0]}",
                    here=row.speed.median / other.speed.median,
                    there=row.published_speed / other.published_speed,
                )
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    family: str
    x: float
    y: float


def draw_compared(rows: Sequence[ComparedModel], path: Path) -> bytes:
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
        raise ConfigError("none of these models has an accuracy to draw", hint="`speed=True` draws images/s")
    return draw_lines(_lines(points), _COST, Axis(name="top-1, %"), style, title="Accuracy against cost")


def _lines(points: Sequence[_Point]) -> list[Line]:
    lines = []
    for family in dict.fromkeys(point.family for point in points):
        mine = sorted((point for point in points if point.family == family), key=lambda point: point.x)
        lines.append(Line(name=family, x=[point.x for point in mine], y=[point.y for point in mine]))
    return lines


def _trained_on(quoted: Published) -> str:
    return "from 1k" if quoted.trained_on == "ImageNet-1k" else "from more"


def _family(row: ComparedModel) -> str:
    """The beginning of a model's name and its image size: one line holds models of one image size."""
    words = row.name.split("-")[0].split("+")
    return f"{'hybrid' if len(words) > 1 else words[0]} {row.image_size[0]} px"


# --- as a table ---------------------------------------------------------------------------------------------------------------

# "Transformers or CNNs?": the two families at both sizes.
_COMPARED = ("Swin-T", "ConvNeXt-T", "Swin-S", "ConvNeXt-S", "Swin-B", "ConvNeXt-B", "Swin-L", "ConvNeXt-L", "ConvNeXt-XL")
_SIZES = ((224, 224), (384, 384))


def _draw(path: Path, image: bytes, notify: Notify) -> None:
    path.write_bytes(image)
    notify(f"plot: {path}")


def compare_models(
    models: tuple[str, ...],
    *,
    sizes: tuple[tuple[int, int], ...] | None,
    speed: bool,
    batch_size: int,
    rounds: int,
    checkpoints: tuple[str, ...] | None,
    data: str | None,
    plot: Path | None,
    notify: Notify,
    progress: ProgressCallback,
) -> Table:
    """One row a model and image size; checkpoints are evaluated on the data."""
    configs = [] if not models and checkpoints is not None else _configs(models, sizes, notify)
    rows = compared_models(configs) if configs else []
    if checkpoints is not None and data is not None:
        rows += _evaluated(checkpoints, data, notify, progress)
    if speed:
        found = measure_speed([row.config for row in rows], batch=batch_size, rounds=rounds, progress=progress)
        taken = measure_memory([row.config for row in rows], progress=progress)
        rows = [replace(row, speed=measured, peak=peak) for row, measured, peak in zip(rows, found, taken, strict=True)]
    pairs = speed_ratios(rows)
    _explain(rows, pairs, notify)
    if plot is not None:
        _draw(plot, draw_compared(rows, plot), notify)
    numbers = {"models": [_compared_json(row) for row in rows], "against": [_against_json(pair) for pair in pairs]}
    return Table([_compared_row(row, measured=checkpoints is not None) for row in rows], data=numbers)


def _configs(models: tuple[str, ...], sizes: tuple[tuple[int, int], ...] | None, notify: Notify) -> list[ModelConfig]:
    found = list[ModelConfig]()
    for size in sizes or ((None,) if models else _SIZES):
        for name in models or _COMPARED:
            try:
                found.append(variant(name, image_size=size))
            except ConfigError as error:
                if size is None or "multiple of the patch" not in error.message:
                    raise
                notify(f"left out: {name} at {size[0]}x{size[1]}: {error.message}")
    return found


def _evaluated(paths: Sequence[str], data: str, notify: Notify, progress: ProgressCallback) -> list[ComparedModel]:
    """Checkpoints as rows, their accuracy measured on every image of the data."""
    from vitlab.checkpoints import load
    from vitlab.evaluation.classification import Classification
    from vitlab.evaluation.evaluation import evaluate, open_split
    from vitlab.evaluation.label_mapping import match_by_name

    rows = []
    for path in paths:
        checkpoint = load(path)
        dataset, notes = open_split(data, None, checkpoint)
        for line in notes:
            notify(f"note: {line}")
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=True)
        result = evaluate(checkpoint, dataset, targets, progress=progress).result
        if not isinstance(result, Classification):
            raise DataError(f"{data}: models are compared on images of one class each")
        row = compared_models([checkpoint.config])[0]
        rows.append(replace(row, name=f"{path} ({row.name})", published=(), measured=100 * result.top1.value))
    return rows


def _compared_row(row: ComparedModel, *, measured: bool) -> dict[str, Any]:
    height, width = row.image_size
    shown: dict[str, Any] = {
        "model": row.name,
        "pixels": f"{height}" if height == width else f"{height}x{width}",
        "parameters": f"{row.cost.parameters / 1e6:.2f} M",
        "GMACs": f"{row.gmacs:.1f}" if row.gmacs >= 1 else f"{row.gmacs:.2f}",
        "activations": f"{row.cost.activations / 1e6:.1f} M",
        "memory": f"{row.memory / 1e6:,.0f} MB",
    }
    if row.peak is not None:
        shown["measured"] = "-" if row.peak.bytes is None else f"{row.peak.bytes / 1e6:,.0f} MB"
    if row.speed is not None:
        shown["images/s"] = f"{row.speed.median:.1f} ({row.speed.low:.1f} to {row.speed.high:.1f})"
    if measured:
        shown["measured top-1"] = "-" if row.measured is None else f"{row.measured:.2f} %"
    shown["published top-1, trained on"] = "; ".join(f"{quoted.top1:g} % {quoted.trained_on}" for quoted in row.published) or "-"
    return shown


def _compared_json(row: ComparedModel) -> dict[str, Any]:
    measured = row.speed
    return {
        "model": row.name,
        "variant": row.config.name,
        "image_size": list(row.image_size),
        "parameters": row.cost.parameters,
        "macs": row.cost.macs,
        "activations": row.cost.activations,
        "memory_bytes": row.memory,
        "measured_memory_bytes": None if row.peak is None else row.peak.bytes,
        "measured_top1": row.measured,
        "published": [
            {
                "top1": quoted.top1,
                "trained_on": quoted.trained_on,
                "source": quoted.source,
                "gmacs": quoted.gmacs,
                "images_per_sec_v100": quoted.images_per_sec,
                "images_per_sec_a100": quoted.images_per_sec_a100,
            }
            for quoted in row.published
        ],
        "images_per_sec": None
        if measured is None
        else {"median": measured.median, "low": measured.low, "high": measured.high, "batch_size": measured.batch},
    }


def _against_json(pair: SpeedRatio) -> dict[str, Any]:
    return {"first": pair.first, "second": pair.second, "here": pair.here, "published": pair.there, "sentence": pair.sentence}


def _explain(rows: Sequence[ComparedModel], pairs: Sequence[SpeedRatio], notify: Notify) -> None:
    """Sources, and how speeds relate here and where they were published."""
    for source in dict.fromkeys(quoted.source for row in rows for quoted in row.published):
        notify(f"source: {source}")
    for why in dict.fromkeys(row.peak.why for row in rows if row.peak is not None and row.peak.bytes is None):
        notify(f"note: memory is not measured: {why}")
    for pair in pairs:
        notify(f"speed: {pair.sentence}")
    if pairs:
        notify("note: speeds on a V100 GPU are those of the ConvNeXt paper, Table 1, which measured both families alike")


# --- one ViT at several budgets -----------------------------------------------------------------------------------------------

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
        from vitlab.inference.backends import FoldedBackend

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
    from vitlab.inference.auto import cpu_name
    from vitlab.inference.bench import bench

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
    from vitlab.config.evaluation import EvaluateConfig
    from vitlab.evaluation.evaluation import evaluate, open_split
    from vitlab.evaluation.label_mapping import match_by_name

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
        (row["images_per_sec"], 100 * row["top1"], _patch_text(budget.patch), budget)
        for budget, row in zip(budgets, rows, strict=True)
    ]
    own = next((budget.patch for budget in budgets if budget.merge), None)
    sizes = sorted((point for point in points if not point[3].merge), key=lambda point: point[0])
    merged = sorted((point for point in points if point[3].patch == own), key=lambda point: point[3].merge)
    lines = [_budget_line(f"patches of {', '.join(word for _, _, word, _ in sizes)}", sizes)]
    if merged:
        lines.append(_budget_line(f"merging {', '.join(str(budget.merge) for *_, budget in merged)} pairs a layer", merged))
    title = "One model at several budgets, from the slowest to the fastest"
    return draw_lines(lines, Axis(name="images/s"), Axis(name="top-1, %"), Style(form=form_of(path)), title=title)


def _budget_line(name: str, points: Sequence[tuple[float, float, str, Budget]]) -> Line:
    return Line(name=name, x=[x for x, *_ in points], y=[y for _, y, *_ in points])


def _patch_text(size: Size) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
