"""`vitlab paper`: every table and figure of the paper and of the talks about it, published beside what is found here.

An item is a name, its source, what vitlab reproduces and what that needs, and a function of `paper_rows.py` that makes its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.config.hardware import EFFICIENCY
from vitlab.config.published import (
    IMAGENET,
    IMAGENET21K,
    JFT,
    PAPER,
    PAPER_V1,
    TABLE_6,
    UPSTREAM_SOURCE,
    Score,
)
from vitlab.errors import UsageError, did_you_mean
from vitlab.io.display import Block, Displayed, ProgressCallback, silent
from vitlab.recipes import paper as recipes
from vitlab.studies import paper_rows
from vitlab.studies.paper_rows import Cell, Measured, PaperRow, Rows

if TYPE_CHECKING:
    from vitlab.interpretation.drawing import Axis, Line
    from vitlab.studies.explained import Explained

State = Literal["measured in miniature", "computed", "numbers only", "drawn for any model", "as code", "run when asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A table or figure.

    `state` is how far vitlab reproduces it here, `here` says it in a sentence; `needs` is what the whole takes; `command` makes it.
    `absent` says which numbers are not here, because the paper draws and does not print them. `sections` are those of
    docs/results.md that have a miniature of it. A `live` item has an experiment in place of rows: it runs when the item is shown.
    """

    name: str
    title: str
    source: str
    state: State
    here: str
    needs: str
    command: str
    rows: Rows | None = None
    absent: str = ""
    sections: tuple[str, ...] = ()
    live: bool = False


# --- the items ----------------------------------------------------------------------------------------------------------------

_INSPECT = "vitlab inspect model.safetensors images --figure {} --out figures"
_JFT_NEEDS = "JFT-300M, which is not public, and many TPUs"
_BARS = "the paper draws these values and does not print them"

ITEMS: tuple[Item, ...] = (
    Item(
        name="table1",
        title="Sizes of the Vision Transformer",
        source=f"{PAPER}, Table 1",
        state="computed",
        here="all sizes, by formula; the 307 M of ViT-L are those of patch 32",
        needs="nothing",
        command="vitlab describe ViT-L/32",
        rows=paper_rows.table_1,
    ),
    Item(
        name="table2",
        title="Comparison with the state of the art",
        source=f"{PAPER}, Table 2",
        state="computed",
        here=f"parameters, multiply-adds, exaFLOPs, and core-days at {EFFICIENCY:g} of the peak; no model of this size was trained",
        needs=_JFT_NEEDS,
        command="vitlab finetune imagenet --recipe finetune-imagenet-table2 --from h14.safetensors",
        rows=paper_rows.table_2,
    ),
    Item(
        name="table2-v1",
        title="The same in the first version, October 2020",
        source=f"{PAPER_V1}, Table 2",
        state="computed",
        here="as table2",
        needs=_JFT_NEEDS,
        command="vitlab finetune imagenet --recipe finetune-imagenet-table2 --from h14.safetensors",
        rows=paper_rows.table_2_v1,
    ),
    Item(
        name="table3",
        title="Settings of pre-training",
        source=f"{PAPER}, Table 3",
        state="computed",
        here="the recipes jft, imagenet21k and imagenet-scratch; they run in miniature in the tests",
        needs="ImageNet, ImageNet-21k or JFT-300M, and accelerators",
        command="vitlab pretrain imagenet --recipe imagenet-scratch --model ViT-B/16",
        rows=paper_rows.table_3,
    ),
    Item(
        name="table4",
        title="Settings of fine-tuning",
        source=f"{PAPER}, Table 4 and app. B.1.1",
        state="computed",
        here="the recipes finetune-*; they run in miniature in the tests",
        needs="the datasets and a checkpoint; both are public",
        command="vitlab finetune pets --recipe finetune-pets --from b16.npz --sweep",
        rows=paper_rows.table_4,
    ),
    Item(
        name="table5",
        title="Transfer by pre-training data",
        source=f"{PAPER}, Table 5",
        state="measured in miniature",
        here="a DeiT-Ti on Pets; parameters and multiply-adds at 384 px (H/14: 378)",
        needs="the authors' public checkpoints, the datasets and an accelerator; JFT-300M is not public",
        command="vitlab finetune cifar10:cifar-10-batches-bin --recipe finetune-cifar10 --from b16.npz --sweep",
        rows=paper_rows.table_5,
        sections=(paper_rows.PETS,),
    ),
    Item(
        name="table6",
        title="Scaling: accuracy and compute of pre-training",
        source=f"{PAPER}, Table 6",
        state="computed",
        here="exaFLOPs of every row: 6 operations for each multiply-add (none for padding), 303 M images an epoch",
        needs=_JFT_NEEDS,
        command="vitlab pretrain jft --recipe jft --model ViT-H/14",
        rows=paper_rows.table_6,
    ),
    Item(
        name="table7",
        title="ResNets pre-trained with Adam and with SGD",
        source=f"{PAPER}, Table 7",
        state="numbers only",
        here="the averages",
        needs=_JFT_NEEDS,
        command="vitlab study optimizer",
        rows=paper_rows.table_7,
    ),
    Item(
        name="table8",
        title="Position embeddings",
        source=f"{PAPER}, Table 8",
        state="measured in miniature",
        here="every position embedding in a small ViT on 30,000 synthetic letters",
        needs="ImageNet and JFT-300M for the whole",
        command="vitlab study positions",
        rows=paper_rows.table_8,
        sections=(paper_rows.POSITIONS,),
    ),
    Item(
        name="table9",
        title="VTAB-1k task by task",
        source=f"{PAPER}, Table 9",
        state="measured in miniature",
        here="a linear probe of a DeiT-Ti on one of the 19 tasks",
        needs="VTAB's datasets, most of them public",
        command="vitlab evaluate model.safetensors --vtab vtab",
        rows=paper_rows.table_9,
        sections=(paper_rows.FEW_SHOT,),
    ),
    Item(
        name="figure1",
        title="The model",
        source=f"{PAPER}, Figure 1",
        state="as code",
        here="models/vit.py, with the equations' numbers",
        needs="nothing",
        command="vitlab describe ViT-B/16",
    ),
    Item(
        name="figure2",
        title="VTAB by group of tasks",
        source=f"{PAPER}, Figure 2; Tables 2 and 9",
        state="computed",
        here="the means of the groups, from Table 9",
        needs="VTAB's datasets",
        command="vitlab evaluate model.safetensors --vtab vtab",
        rows=paper_rows.figure_2,
        absent=f"BiT-L, VIVI and S4L: {_BARS}",
    ),
    Item(
        name="figure3",
        title="ImageNet accuracy by pre-training data",
        source=f"{PAPER}, Figure 3; Table 5",
        state="measured in miniature",
        here="the published numbers; `study scaling` varies the pre-training images of small models",
        needs="ImageNet-21k; JFT-300M is not public",
        command="vitlab study scaling",
        rows=paper_rows.figure_3,
        absent=f"the range of BiT: {_BARS}",
        sections=(paper_rows.SCALING,),
    ),
    Item(
        name="figure4",
        title="Few-shot accuracy by number of pre-training images",
        source=f"{PAPER}, Figure 4",
        state="measured in miniature",
        here="cost of the models; `study scaling` varies the pre-training images of small models",
        needs=_JFT_NEEDS,
        command="vitlab study scaling",
        rows=paper_rows.figure_4,
        absent=f"every accuracy: {_BARS}",
        sections=(paper_rows.SCALING,),
    ),
    Item(
        name="figure5",
        title="Accuracy by compute of pre-training",
        source=f"{PAPER}, Figure 5; Table 6",
        state="measured in miniature",
        here="exaFLOPs; the average of five datasets; and how much more compute a ResNet takes than a ViT as good",
        needs=_JFT_NEEDS,
        command="vitlab study scaling",
        rows=paper_rows.figure_5,
        sections=(paper_rows.SCALING,),
    ),
    Item(
        name="figure6",
        title="Attention from the class token to the image",
        source=f"{PAPER}, Figure 6",
        state="drawn for any model",
        here="rollout of any ViT and image",
        needs="a checkpoint and an image",
        command=_INSPECT.format("rollout"),
    ),
    Item(
        name="figure7",
        title="Filters, similarity of positions, attention distance",
        source=f"{PAPER}, Figure 7",
        state="drawn for any model",
        here="any ViT",
        needs="a checkpoint, and images for the distance",
        command=_INSPECT.format("filters,positions,distance"),
        sections=(paper_rows.FIGURES,),
    ),
    Item(
        name="figure8",
        title="Depth, width, MLP width and patch size",
        source=f"{PAPER}, Figure 8 and app. D.2",
        state="measured in miniature",
        here="cost of the base shape, and of each dimension doubled",
        needs=_JFT_NEEDS,
        command="vitlab study shape",
        rows=paper_rows.figure_8,
        absent=f"every accuracy: {_BARS}",
        sections=(paper_rows.SHAPE,),
    ),
    Item(
        name="figure9",
        title="Class token or mean of the patches",
        source=f"{PAPER}, Figure 9 and app. D.3",
        state="measured in miniature",
        here="cost of both; the paper finds them equally good, each with its own learning rate",
        needs=_JFT_NEEDS,
        command="vitlab study shape",
        rows=paper_rows.figure_9,
        absent=f"every accuracy: {_BARS}",
        sections=(paper_rows.SHAPE,),
    ),
    Item(
        name="figure10",
        title="Similarity of positions over training time and for a larger grid",
        source=f"{PAPER}, Figure 10 and app. D.4",
        state="run when asked",
        here="a small ViT on the built-in digits, each pixel a patch; `inspect --figure positions` draws any ViT",
        needs="nothing; the paper's models for the whole",
        command="vitlab paper figure10 --figure figure10.png",
        absent=f"the paper's similarities: {_BARS}",
        live=True,
    ),
    Item(
        name="figure11",
        title="Attention distance by layer",
        source=f"{PAPER}, Figure 11 and app. D.7",
        state="measured in miniature",
        here="a DeiT-Ti/16 on 128 ImageNet images",
        needs="a checkpoint and images",
        command=_INSPECT.format("distance"),
        rows=paper_rows.figure_11,
        absent=f"the paper's distances: {_BARS}",
        sections=(paper_rows.FIGURES,),
    ),
    Item(
        name="figure12",
        title="Speed and largest batch by image size",
        source=f"{PAPER}, Figure 12 and app. D.5",
        state="computed",
        here="largest float32 batch of prediction in the 16 GiB of a TPUv3 core, by formula",
        needs="a TPUv3",
        command="vitlab study compare ViT-B/16 BiT-R50x1 --speed",
        rows=paper_rows.figure_12,
        absent=f"every speed and batch: {_BARS}",
        sections=("Cost by number of tokens",),
    ),
    Item(
        name="figure13",
        title="Axial attention",
        source=f"{PAPER}, Figure 13 and app. D.6",
        state="measured in miniature",
        here="cost of ViT-B with global and with axial attention",
        needs=_JFT_NEEDS,
        command="vitlab study shape",
        rows=paper_rows.figure_13,
        absent=f"every accuracy and speed: {_BARS}",
        sections=(paper_rows.SHAPE,),
    ),
    Item(
        name="figure14",
        title="More attention maps",
        source=f"{PAPER}, Figure 14 and app. D.8",
        state="drawn for any model",
        here="as figure6",
        needs="a checkpoint and images",
        command=_INSPECT.format("rollout"),
    ),
    Item(
        name="objectnet",
        title="ObjectNet",
        source=f"{PAPER}, app. D.9",
        state="numbers only",
        here="evaluation with a mapping of classes",
        needs="ObjectNet, and ViT-H/14 from JFT-300M, which is not public",
        command="vitlab evaluate h14.safetensors objectnet --mapping objectnet.json",
        rows=paper_rows.objectnet,
    ),
    Item(
        name="self-supervision",
        title="Masked patch prediction against supervised pre-training",
        source=f"{PAPER}, section 4.6 and app. B.1.2; Table 5",
        state="numbers only",
        here="the recipe masked; it runs in miniature in the tests",
        needs=_JFT_NEEDS,
        command="vitlab study self-supervision",
        rows=paper_rows.self_supervision,
    ),
    Item(
        name="upstream",
        title="Accuracy of pre-training, before fine-tuning",
        source=UPSTREAM_SOURCE,
        state="numbers only",
        here="the recipes imagenet21k and imagenet-scratch; they run in miniature in the tests",
        needs="ImageNet or ImageNet-21k, and accelerators",
        command="vitlab pretrain imagenet --recipe imagenet-scratch --model ViT-B/16",
        rows=paper_rows.upstream,
    ),
    Item(
        name="transformers-or-cnns",
        title="Transformers or CNNs? Swin and ConvNeXt",
        source="Liu et al. 2021, Table 1; Liu et al. 2022, Table 1 (V100); the talk's slide (A100)",
        state="measured in miniature",
        here="multiply-adds, and the speed of the small models on two CPU cores",
        needs="a V100 or A100 for the published speeds",
        command="vitlab study compare --speed",
        rows=paper_rows.transformers_or_cnns,
        sections=(paper_rows.FAMILIES,),
    ),
    Item(
        name="imagenet-years",
        title="ImageNet top-1 over the years",
        source="a publication for each row",
        state="computed",
        here="cost of the models that vitlab has",
        needs="their training data and machines",
        command="vitlab study compare EfficientNet-B7 ViT-H/14 ConvNeXt-XL",
        rows=paper_rows.imagenet_years,
    ),
    Item(
        name="receptive-field",
        title="Effective receptive field and attention distance of ViT, hybrid and CNN",
        source="the talks about the paper",
        state="run when asked",
        here="three models of full size, randomly initialised, but with 1 for GroupNorm scales that begin at 0 (else a ResNet"
        " would be its shortcuts alone); `inspect --figure receptive` draws any trained one",
        needs="nothing",
        command="vitlab paper receptive-field --figure receptive-field.png",
        live=True,
    ),
    Item(
        name="shift-equivariance",
        title="Is a shift of the image a shift of the features? Convolution and ViT",
        source="the talks about the paper",
        state="run when asked",
        here="exact errors of small models, randomly initialised",
        needs="nothing",
        command="vitlab paper shift-equivariance --figure shift-equivariance.png",
        live=True,
    ),
    Item(
        name="shuffled-patches",
        title="Shuffled patches, with and without positions",
        source="the talks about the paper",
        state="run when asked",
        here="small models trained on the built-in digits",
        needs="nothing",
        command="vitlab paper shuffled-patches --figure shuffled-patches.png",
        live=True,
    ),
    Item(
        name="gradients-through-time",
        title="Gradients through time of RNN, LSTM and attention",
        source="the talks about the paper",
        state="run when asked",
        here="one layer of each, randomly initialised",
        needs="nothing",
        command="vitlab paper gradients-through-time --figure gradients-through-time.png",
        live=True,
    ),
    Item(
        name="sequence-length",
        title="Time against the length of the sequence and the number of cores, LSTM and attention",
        source="the talks about the paper",
        state="run when asked",
        here="measured on this machine, now",
        needs="nothing",
        command="vitlab paper sequence-length --figure sequence-length.png",
        live=True,
    ),
    Item(
        name="words",
        title="Attention between words: what does it mean?",
        source="the talks about the paper",
        state="run when asked",
        here="a Transformer of two layers, trained on sentences in less than a minute",
        needs="nothing",
        command="vitlab paper words --figure words.png",
        live=True,
    ),
)


def _experiment(name: str) -> Callable[[ProgressCallback], Explained]:
    """The experiment of a live item."""
    from vitlab.studies import explained

    experiments: dict[str, Callable[[ProgressCallback], Explained]] = {
        "receptive-field": explained.receptive_field,
        "shift-equivariance": explained.shift_equivariance,
        "shuffled-patches": explained.shuffled_patches,
        "figure10": explained.positions_over_time,
        "gradients-through-time": explained.gradients_through_time,
        "sequence-length": explained.sequence_length,
        "words": explained.words,
    }
    return experiments[name]


def item_called(name: str) -> Item:
    """The item of that name; capitals, spaces and hyphens do not matter: `Table 2` is table2."""
    known = {_folded(item.name): item for item in ITEMS}
    if (found := known.get(_folded(name))) is not None:
        return found
    names = [item.name for item in ITEMS]
    raise UsageError(f"no table or figure called {name!r}", hint=did_you_mean(name, names, count=3) or f"one of {', '.join(names)}")


def _folded(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


# --- results ------------------------------------------------------------------------------------------------------------------


class PaperList(Displayed):
    """All items: what they are, what is reproduced here, what the whole needs, and the command."""

    def tables(self) -> list[Block]:
        """Two rows for each item: what it is and needs; what is here and the command."""
        rows = [{"item": item.name, "what": item.title, "state": item.state, "needs": item.needs} for item in ITEMS]
        commands = [{"item": item.name, "here": item.here, "command": item.command} for item in ITEMS]
        return [rows, commands]

    def to_json(self) -> list[dict[str, Any]]:
        """Every item without its rows."""
        return [_described(item) for item in ITEMS]


def _described(item: Item) -> dict[str, Any]:
    return {
        "item": item.name,
        "title": item.title,
        "source": item.source,
        "state": item.state,
        "here": item.here,
        "needs": item.needs,
        "absent": item.absent or None,
        "results": [f"docs/results.md: {section}" for section in item.sections],
        "command": item.command,
    }


class PaperItem(Displayed):
    """One table or figure: published, computed and measured numbers side by side. `rows` has them."""

    def __init__(self, item: Item, progress: ProgressCallback = silent) -> None:
        self.item = item
        self.rows = tuple(item.rows()) if item.rows is not None else ()
        self.explained: Explained | None = None
        if item.live:
            self.explained = _experiment(item.name)(progress)
            self.rows = tuple(PaperRow(about=about, computed=numbers) for about, numbers in self.explained.rows)

    def tables(self) -> list[Block]:
        """What the item is, its rows, and what they are made of."""
        item = self.item
        about: dict[str, Any] = {
            "item": item.title,
            "source": item.source,
            "here": f"{item.state}: {item.here}",
            "needs": item.needs,
        }
        about |= {"not printed": item.absent} if item.absent else {}
        about |= {"measured": ", ".join(f"docs/results.md: {section}" for section in item.sections)} if item.sections else {}
        about |= {"finding": self.explained.finding} if self.explained is not None else {}
        about["command"] = item.command
        return [about, [self._shown(row) for row in self.rows]] if self.rows else [about]

    def _shown(self, row: PaperRow) -> dict[str, Any]:
        shown: dict[str, Any] = dict(row.about)
        for group in ("published", "computed", "measured"):
            for name in self._columns(group):
                value = getattr(row, group).get(name)
                title = name if group == "published" or self.item.live else f"{group}: {name}"
                shown[title] = None if value is None else _text(value)
        differ = {other.command for other in self.rows} - {"", self.item.command}
        return shown | ({"command": row.command} if differ else {})

    def _columns(self, group: str) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in getattr(row, group)))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; a number with a deviation is an object."""
        finding = {} if self.explained is None else {"finding": self.explained.finding}
        return (
            _described(self.item)
            | finding
            | {
                "rows": [
                    {
                        **row.about,
                        "published": {name: _plain(value) for name, value in row.published.items()},
                        "computed": dict(row.computed),
                        "measured": {name: _plain(value) for name, value in row.measured.items()},
                        "command": row.command or None,
                    }
                    for row in self.rows
                ]
            }
        )

    def draw(self, path: Path) -> bytes:
        """The item as a chart, PNG or SVG by the ending of the path: lines where it is a curve, else a panel for each column."""
        from vitlab.interpretation.drawing import Style, draw_dots, draw_lines, form_of

        style = Style(form=form_of(path))
        if self.explained is not None:
            return self.explained.draw(style)
        if not self.rows:
            raise UsageError(f"{self.item.name} has no numbers to draw", hint=self.item.command)
        if self.item.name in _CHARTS:
            lines, x, y = _CHARTS[self.item.name](self.rows)
            return draw_lines(lines, x, y, style, title=self.item.title)
        rows, panels = self._panels()
        return draw_dots(rows, panels, style)

    def _panels(self) -> tuple[list[Any], list[Any]]:
        from vitlab.interpretation.drawing import DotRow, Panel

        panels = []
        groups = [group for group in ("published", "measured") if self._columns(group)] or ["computed"]
        groups += ["computed"] if self.item.name == "figure2" else []  # whose groups of tasks are means of published numbers
        for group in groups:
            for name in self._columns(group):
                cells = [getattr(row, group).get(name) for row in self.rows]
                values = [_number(cell) for cell in cells]
                if any(value is not None for value in values):
                    spread = [getattr(cell, "deviation", None) or 0.0 for cell in cells]
                    panels.append(Panel(axis=name, title=group, values=values, spread=spread))
        names = [", ".join(row.about.values()) for row in self.rows]
        kinds = [next(iter(row.about.values())) for row in self.rows]
        colours = list(dict.fromkeys(kinds))
        rows = [DotRow(name=name, group=colours.index(kind)) for name, kind in zip(names, kinds, strict=True)]
        return rows, panels


def _text(value: Cell | Measured) -> str:
    if isinstance(value, bool | str | Score | Measured):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if abs(value or 0) < 1e5 else f"{value:,.0f}"


def _plain(value: Cell | Measured) -> Any:
    if isinstance(value, Measured):
        return {"value": value.value, "deviation": value.deviation, "section": f"docs/results.md: {value.section}"}
    if isinstance(value, Score):
        more = {} if value.second is None else {"second": value.second}
        return {"value": value.value, "deviation": value.deviation, **more}
    return value


def _number(value: Cell | Measured) -> float | None:
    if isinstance(value, Score | Measured):
        return value.value
    return value if isinstance(value, int | float) else None


# --- charts -------------------------------------------------------------------------------------------------------------------

_Chart = tuple[list["Line"], "Axis", "Axis"]


def _curves(points: Sequence[tuple[str, float, float]]) -> list[Line]:
    """A line for each name, its points from left to right."""
    from vitlab.interpretation.drawing import Line

    lines = []
    for name in dict.fromkeys(name for name, _, _ in points):
        mine = sorted((x, y) for other, x, y in points if other == name)
        lines.append(Line(name=name, x=[x for x, _ in mine], y=[y for _, y in mine]))
    return lines


def _chart_data(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    images = {IMAGENET: recipes.IMAGENET.images, IMAGENET21K: recipes.IMAGENET21K.images, JFT: recipes.JFT.images}
    points = [
        (row.about["model"], images[data], value)
        for row in rows
        for data, score in row.published.items()
        if (value := _number(score)) is not None
    ]
    return _curves(points), Axis(name="images of pre-training", log=True), Axis(name="ImageNet top-1, %")


def _chart_compute(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    points = [(paper_rows.family_6(row), row.exaflops, row.average) for row in TABLE_6]
    return _curves(points), Axis(name="exaFLOPs of pre-training", log=True), Axis(name="average of 5 datasets, %")


def _chart_speed(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    points = [
        (f"{row.about['model'].partition('-')[0]} {row.about['pixels']} px, {gpu}", gmacs, speed)
        for row in rows
        for gpu in ("A100", "V100")
        if (gmacs := _number(row.published["GMACs"])) and (speed := _number(row.published[f"images/s, {gpu}"]))
    ]
    return _curves(points), Axis(name="GMACs of one image", log=True), Axis(name="images/s", log=True)


def _chart_years(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis, Line

    points = [
        (row.about["kind"], float(row.about["year"]), value)
        for row in rows
        if (value := _number(row.published["ImageNet"])) is not None
    ]
    years = sorted({year for _, year, _ in points})
    best = [max(value for _, other, value in points if other <= year) for year in years]
    kinds = [
        Line(
            name=kind, x=[x for name, x, _ in points if name == kind], y=[y for name, _, y in points if name == kind], joined=False
        )
        for kind in dict.fromkeys(name for name, _, _ in points)
    ]
    return (
        [Line(name="best so far", x=years, y=best, dashed=True), *kinds],
        Axis(name="year", at=years),
        Axis(name="ImageNet top-1, %"),
    )


def _chart_batches(rows: Sequence[PaperRow]) -> _Chart:
    from vitlab.interpretation.drawing import Axis

    points = [
        (row.about["model"], float(side), value)
        for row in rows
        for side in paper_rows.SIDES
        if (value := _number(row.computed[f"batch at {side} px"]))
    ]
    return (
        _curves(points),
        Axis(name="image size, pixels", log=True, at=paper_rows.SIDES),
        Axis(name="largest batch on a TPUv3 core", log=True),
    )


_CHARTS: dict[str, Callable[[Sequence[PaperRow]], _Chart]] = {
    "figure3": _chart_data,
    "figure5": _chart_compute,
    "figure12": _chart_batches,
    "table6": _chart_compute,
    "transformers-or-cnns": _chart_speed,
    "imagenet-years": _chart_years,
}
