"""The figures of `vitlab.inspect`: what each computes and how it is drawn; several figures of one model, shown and saved.

Axes: L layers, B batch, H heads (of images: height), W width, C channels or classes, G x J patches down and across.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.config.serialize import Json
from vitlab.data.decode import as_rgb
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import ConfigError, DataError, UsageError, did_you_mean
from vitlab.inference.backends import evaluating
from vitlab.inference.images import ImageLike, ImageReader, ImagesLike, image_name
from vitlab.inference.writing import all_images
from vitlab.interpretation.attention import (
    Floats,
    Query,
    attention_distance,
    batches,
    class_attention,
    filtered_values,
    needs_attention,
    needs_head,
    query_attention,
    relevance,
    rollout,
    what_is_read,
)
from vitlab.interpretation.config import OF_THE_WEIGHTS, FigureName, InspectConfig
from vitlab.interpretation.drawing import Style, draw_distance, draw_filters, draw_positions, draw_sheet
from vitlab.interpretation.features import principal_components, receptive_fields, token_pca
from vitlab.interpretation.occlusion import WINDOW, occlusion
from vitlab.interpretation.paint import Pixels, feature_maps, field_pixels, overlay
from vitlab.interpretation.weights import first_filters, meets_pixels_by, position_similarity, principal_filters
from vitlab.io.atomic import cannot_write, write_bytes
from vitlab.io.display import Block, Displayed, ProgressCallback
from vitlab.models.recurrent import Recurrent
from vitlab.models.vit import ViT

T = TypeVar("T")
NAMES: tuple[FigureName, ...] = get_args(FigureName)
_FEW, _MANY = 12, 128  # images of a sheet; images of the mean distance, as many as in the paper's (app. D.7)
_NAMED = 5  # classes in a hint
_PAIRS = 3  # images in a row of a sheet, each with its map beside it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """A figure: its file, the array it shows, and facts about it."""

    name: FigureName
    file: bytes = field(repr=False)
    array: Floats = field(repr=False)
    facts: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Figures(Displayed):
    """Figures of one model: `save` writes them, `[0].array` has the values of the first. `notes` name unsupported ones."""

    figures: tuple[Drawn, ...]
    form: str = "png"
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.figures)

    def __getitem__(self, place: int) -> Drawn:
        return self.figures[place]

    def __iter__(self) -> Iterator[Drawn]:
        return iter(self.figures)

    @property
    def array(self) -> Any:
        """The values that the first figure shows."""
        return self.figures[0].array

    def save(self, path: str | Path, *, arrays: bool = False) -> Figures:
        """Write one figure to a file, or any number into a folder, as NAME.png; with `arrays` also their values as .npy."""
        place = Path(path)
        one = len(self.figures) == 1 and place.suffix != "" and not place.is_dir()
        folder = place.parent if one else place
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise cannot_write(folder, fault, error=DataError) from fault
        if one and place.suffix.lower() != f".{self.form}":
            raise ConfigError(f"{place.name} is not the name of a .{self.form} file", hint="inspect(..., format='svg') draws SVG")
        files = []
        for figure in self.figures:
            file = place if one else folder / f"{figure.name}.{self.form}"
            write_bytes(file, figure.file)
            files.append(file)
            if arrays:
                array = io.BytesIO()
                np.save(array, figure.array, allow_pickle=False)
                write_bytes(file.with_suffix(".npy"), array.getvalue())
        return Figures(figures=self.figures, form=self.form, notes=self.notes, files=tuple(files))

    def tables(self) -> Iterable[Block]:
        """A row for each figure."""
        columns = ("figure", "shape", "least", "most", "file")
        return [[{column: row.get(column) for column in columns} for row in self.to_json()]]

    def to_json(self) -> list[dict[str, Any]]:
        """The name, shape, range and file of each figure."""
        rows = []
        for place, figure in enumerate(self.figures):
            row: dict[str, Any] = {"figure": figure.name}
            if self.files:
                row["file"] = str(self.files[place])
                array = self.files[place].with_suffix(".npy")
                row |= {"array": str(array)} if array.exists() else {}
            row |= {"shape": list(figure.array.shape), "least": float(figure.array.min()), "most": float(figure.array.max())}
            rows.append(row | {"mean": float(figure.array.mean()), **figure.facts})
        return rows

    def _repr_html_(self) -> str:
        from base64 import b64encode

        kind = "svg+xml" if self.form == "svg" else self.form
        return "".join(f'<img src="data:image/{kind};base64,{b64encode(figure.file).decode()}">' for figure in self.figures)


def figure_names(figure: str | Sequence[str]) -> tuple[FigureName, ...]:
    """The figures that `rollout`, `rollout,class`, `all` or a list of names means."""
    words = figure.split(",") if isinstance(figure, str) else list(figure)
    if words == ["all"]:
        return NAMES
    known: dict[str, FigureName] = {name: name for name in NAMES}
    for word in words:
        if word not in known:
            near = did_you_mean(word, NAMES)
            raise UsageError(f"`figure`: {word!r} is not one of {', '.join(NAMES)}, all", hint=near)
    return tuple(dict.fromkeys(known[word] for word in words))


def refuse_present(folder: Path, names: Iterable[str], form: str) -> None:
    """Refuse to replace figures, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`out`: {folder} is a file", hint="give a folder")
    for name in names:
        if (file := folder / f"{name}.{form}").exists():
            raise DataError(f"{file} exists already", hint="`overwrite=True` replaces it")


def inspect_checkpoint(
    checkpoint: Checkpoint,
    images: ImagesLike,
    names: tuple[FigureName, ...],
    config: InspectConfig,
    *,
    count: int | None,
    progress: ProgressCallback,
) -> Figures:
    """Draw the figures. With `all`, figures that the model does not support are left out, with a note."""
    given = [] if isinstance(images, tuple | list) and not images else list(all_images(images)[0])
    wanted = [name for name in names if given or name in OF_THE_WEIGHTS]
    few, many = _seen(checkpoint, given, wanted, count)
    figures, notes = list[Drawn](), list[str]()
    for place, name in enumerate(wanted):
        progress(f"drawing {name}", place, len(wanted))
        try:
            figures.append(draw(name, Subject(checkpoint=checkpoint, config=config, seen=many if name == "distance" else few)))
        except ConfigError as refusal:
            if names != NAMES:
                raise
            notes.append(f"no {name}: {refusal.message}")
    if few is not None and (channels := checkpoint.preprocess.channels) > 3:
        notes.append(f"images of {channels} channels are drawn by their first three, as red, green and blue")
    return Figures(figures=tuple(figures), form=config.form, notes=tuple(notes))


def _seen(
    checkpoint: Checkpoint, images: list[Any], wanted: Sequence[str], count: int | None
) -> tuple[ModelImages | None, ModelImages | None]:
    """The images of sheets, and the images of the mean distance, which needs more."""
    if not images:
        return None, None
    sheets = any(name not in OF_THE_WEIGHTS and name != "distance" for name in wanted)
    few = model_images(checkpoint, spread(images, count or _FEW)) if sheets else None
    many = model_images(checkpoint, spread(images, count or _MANY)) if "distance" in wanted else None
    return few, many


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelImages:
    """Images by name: their pixels after resizing and cropping, and the normalised input of the model."""

    names: tuple[str, ...]
    pixels_BHWC: NDArray[np.uint8]
    images_BCHW: Tensor


def model_images(checkpoint: Checkpoint, images: Iterable[ImageLike]) -> ModelImages:
    """Images that `Predictor` accepts, preprocessed for the checkpoint's model; DataError names one that cannot be read."""
    reader = ImageReader(EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits()))
    names, views = [], []
    for place, image in enumerate(images):
        names.append(image_name(image, place))
        views.append(reader(image, names[-1]))
    if not views:
        raise DataError("no image given")
    pixels_BHWC = np.stack(views)
    images_BCHW = normalise(torch.from_numpy(pixels_BHWC), checkpoint.preprocess)
    return ModelImages(names=tuple(names), pixels_BHWC=pixels_BHWC, images_BCHW=images_BCHW)


def spread(found: list[T], count: int) -> list[T]:
    """At most `count` of the images, evenly spread: the first images of a folder may all be of one class."""
    if len(found) <= count:
        return found
    return [found[place * len(found) // count] for place in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """What a figure shows: a checkpoint, images if the figure needs some, and the settings."""

    checkpoint: Checkpoint
    config: InspectConfig
    seen: ModelImages | None = None

    @property
    def style(self) -> Style:
        return Style(theme=self.config.theme, form=self.config.form)

    @property
    def images(self) -> ModelImages:
        if self.seen is None:
            raise ConfigError("this figure needs images", hint="give an image, a folder or a pattern")
        return self.seen


def draw(name: FigureName, subject: Subject) -> Drawn:
    """One figure; ConfigError with the reason if the model does not support it."""
    if subject.seen is None and name not in OF_THE_WEIGHTS:
        raise ConfigError(f"the figure {name} needs images", hint="give an image, a folder or a pattern")
    return FIGURES[name](subject)


def _filters(subject: Subject) -> Drawn:
    model = subject.checkpoint.model
    met_by = meets_pixels_by(model)
    principal = met_by == "patch embedding"  # a convolution has few filters, which are drawn as they are
    array = principal_filters(model) if principal else first_filters(model)[:56]
    title = f"principal components of the {met_by}" if principal else f"filters of the {met_by}"
    if array.shape[3] > 3:
        title += f", channels 0 to 2 of {array.shape[3]}"
    return Drawn(name="filters", file=draw_filters(array, subject.style, title=title), array=array, facts={"of": met_by})


def _positions(subject: Subject) -> Drawn:
    array = position_similarity(subject.checkpoint.model, layer=subject.config.layer or 0)
    file = draw_positions(array, subject.style, title="similarity of positions")
    return Drawn(name="positions", file=file, array=array, facts={"grid": list(array.shape[:2])})


def _distance(subject: Subject) -> Drawn:
    array = attention_distance(subject.checkpoint.model, subject.images.images_BCHW)
    count = len(subject.images.names)
    file = draw_distance(array, subject.style, title=f"mean of {count} image{'s' * (count > 1)}")
    return Drawn(
        name="distance", file=file, array=array, facts={"unit": "pixels", "images": count, "of_layers_and_heads": array.tolist()}
    )


def _rollout(subject: Subject) -> Drawn:
    array = rollout(subject.checkpoint.model, subject.images.images_BCHW)
    reads = what_is_read(needs_attention(subject.checkpoint.model, "attention rollout").config)
    file = _pairs(subject, _overlaid(subject, array), title=f"attention rollout from {reads}")
    return Drawn(name="rollout", file=file, array=array, facts={"reads": reads})


def _attention(subject: Subject) -> Drawn:
    model, seen, config = subject.checkpoint.model, subject.images, subject.config
    vit = needs_attention(model, "attention")
    grid = vit.config.grid_of(seen.pixels_BHWC.shape[1:3])
    query: Query = _query(config, grid)
    layer = -1 if config.layer is None else config.layer
    array_BHGJ = query_attention(model, seen.images_BCHW, query, layers=[layer])[0]
    heads = _heads(config, array_BHGJ.shape[1])
    rows = []
    for pixels_HWC, maps_HGJ in zip(seen.pixels_BHWC, array_BHGJ, strict=True):
        shown = [as_rgb(pixels_HWC) if isinstance(query, str) else _marked(pixels_HWC, query, vit.config.step)]
        maps = [*maps_HGJ[heads], maps_HGJ[heads].mean(0)] if len(heads) > 1 else maps_HGJ[heads]
        rows.append([*shown, *(overlay(pixels_HWC, map_GJ, config.overlay, step=vit.config.step) for map_GJ in maps)])
    words = [f"head {head}" for head in heads] + (["mean"] if len(heads) > 1 else [])
    captions = [[_short(name), *words] for name in seen.names]
    asks = f"the {query} token" if isinstance(query, str) else f"patch ({query[0]}, {query[1]})"
    number = layer % len(vit.encoder.blocks)
    file = draw_sheet(rows, subject.style, title=f"layer {number}: what {asks} attends to", captions=captions)
    facts: dict[str, Json] = {"layer": number, "query": query if isinstance(query, str) else list(query)}
    return Drawn(name="attention", file=file, array=array_BHGJ, facts=facts)


def _filtered(subject: Subject) -> Drawn:
    model, seen, config = subject.checkpoint.model, subject.images, subject.config
    vit = needs_attention(model, "the attention filter")
    query = _query(config, vit.config.grid_of(seen.pixels_BHWC.shape[1:3]))
    layer = -1 if config.layer is None else config.layer
    found = filtered_values(model, seen.images_BCHW, query, layer=layer)
    count = len(seen.names)
    size = (found.filter_BHGJ.shape[2] * vit.config.step[0], found.filter_BHGJ.shape[3] * vit.config.step[1])
    height, width = seen.pixels_BHWC.shape[1:3]
    heads, maps = _heads(config, found.filter_BHGJ.shape[1]), dict[int, list[Pixels]]()
    for head in heads:
        both_BGJK = torch.cat([found.values_BHGJK[:, head], found.filtered_BHGJK[:, head]])  # in the same colours
        maps[head] = [shown[:height, :width] for shown in feature_maps(principal_components(both_BGJK).scores_BGJM, size)]
    rows, captions = list[list[Pixels]](), list[list[str]]()
    for place, (name, pixels_HWC) in enumerate(zip(seen.names, seen.pixels_BHWC, strict=True)):
        first = as_rgb(pixels_HWC) if isinstance(query, str) else _marked(pixels_HWC, query, vit.config.step)
        for head in heads:
            weights = overlay(pixels_HWC, found.filter_BHGJ[place, head].numpy(), config.overlay, step=vit.config.step)
            rows.append([first, weights, maps[head][place], maps[head][count + place]])
            captions.append([_short(name), f"head {head}: filter A", "values v", "filtered A v"])
    number = layer % len(vit.encoder.blocks)
    file = draw_sheet(rows, subject.style, title=f"layer {number}: attention as a filter of values", captions=captions)
    facts: dict[str, Json] = {"layer": number, "query": query if isinstance(query, str) else list(query), "of": "A v"}
    return Drawn(name="filtered", file=file, array=found.filtered_BHGJK.numpy(), facts=facts)


def _receptive(subject: Subject) -> Drawn:
    model, seen, config = subject.checkpoint.model, subject.images, subject.config
    asked = None if config.layer is None else [config.layer]
    layers, array_LHW = receptive_fields(model, seen.images_BCHW, layers=asked)
    shown = sorted({round(place) for place in np.linspace(0, len(layers) - 1, min(len(layers), 6)).tolist()})
    row = [field_pixels(array_LHW[place]) for place in shown]
    part = "layer" if isinstance(model, ViT | Recurrent) else "stage"
    count = len(seen.names)
    title = f"effective receptive field of the middle, mean of {count} image{'s' * (count > 1)}"
    file = draw_sheet([row], subject.style, title=title, captions=[[f"{part} {layers[place]}" for place in shown]])
    facts: dict[str, Json] = {"of": f"each {part}", "layers": list[Json](layers)}
    return Drawn(name="receptive", file=file, array=array_LHW, facts=facts)


def _class(subject: Subject) -> Drawn:
    model, seen, config = subject.checkpoint.model, subject.images, subject.config
    array_LBHGJ = class_attention(model, seen.images_BCHW, layers=None if config.layer is None else [config.layer])
    heads = _heads(config, array_LBHGJ.shape[2])
    if len(array_LBHGJ) == 1:  # one layer: its heads side by side
        columns, words = array_LBHGJ[0].swapaxes(0, 1)[heads], [f"head {head}" for head in heads]
    else:
        columns, words = array_LBHGJ[:, :, heads].mean(2), [f"layer {layer}" for layer in range(len(array_LBHGJ))]
    step = _step(subject)
    rows = [
        [as_rgb(pixels_HWC), *(overlay(pixels_HWC, maps_BGJ[place], config.overlay, step=step) for maps_BGJ in columns)]
        for place, pixels_HWC in enumerate(seen.pixels_BHWC)
    ]
    captions = [[_short(name), *words] for name in seen.names]
    who = "class token" if needs_attention(model, "class-token attention").config.class_token else "query of the attention pool"
    file = draw_sheet(rows, subject.style, title=f"what the {who} attends to", captions=captions, inches=1.3)
    return Drawn(name="class", file=file, array=array_LBHGJ, facts={"of": who})


def _relevance(subject: Subject) -> Drawn:
    needs_attention(subject.checkpoint.model, "gradient-weighted attention")
    classes = _classes(subject)
    array = relevance(subject.checkpoint.model, subject.images.images_BCHW, classes)
    words = [_label(subject, label) for label in classes]
    file = _pairs(subject, _overlaid(subject, array), title="evidence for the class: gradient-weighted attention", beside=words)
    return Drawn(name="relevance", file=file, array=array, facts={"classes": list[Json](words)})


def _features(subject: Subject) -> Drawn:
    found = token_pca(subject.checkpoint.model, subject.images.images_BCHW, layer=subject.config.layer)
    (height, width), step = subject.images.pixels_BHWC.shape[1:3], _step(subject)
    _, rows, columns, _ = found.scores_BGJM.shape
    size = (height, width) if step is None else (rows * step[0], columns * step[1])
    maps = [shown[:height, :width] for shown in feature_maps(found.scores_BGJM, size)]
    explained = [round(float(fraction), 6) for fraction in found.explained_M]
    percent = ", ".join(f"{fraction:.0%}" for fraction in explained)
    file = _pairs(subject, maps, title=f"principal components of the patches' features ({percent})")
    return Drawn(name="features", file=file, array=found.scores_BGJM, facts={"explained": list[Json](explained)})


def _occlusion(subject: Subject) -> Drawn:
    classes = _classes(subject)
    array = occlusion(subject.checkpoint.model, subject.images.images_BCHW, classes, how=subject.config.occluder)
    step, pixels_BHWC = _step(subject) or (WINDOW, WINDOW), subject.images.pixels_BHWC
    maps = [overlay(pixels, heat, "signed", smooth=False, step=step) for pixels, heat in zip(pixels_BHWC, array, strict=True)]
    words = [_label(subject, label) for label in classes]
    file = _pairs(subject, maps, title="without a patch the class loses (orange) or gains (blue)", beside=words)
    return Drawn(name="occlusion", file=file, array=array, facts={"unit": "nats", "classes": list[Json](words)})


FIGURES: dict[FigureName, Callable[[Subject], Drawn]] = {
    "filters": _filters,
    "positions": _positions,
    "distance": _distance,
    "rollout": _rollout,
    "attention": _attention,
    "filtered": _filtered,
    "class": _class,
    "relevance": _relevance,
    "features": _features,
    "receptive": _receptive,
    "occlusion": _occlusion,
}


def _overlaid(subject: Subject, maps_BGJ: Floats) -> list[Pixels]:
    pixels = subject.images.pixels_BHWC
    how, step = subject.config.overlay, _step(subject)
    return [overlay(pixels_HWC, map_GJ, how, step=step) for pixels_HWC, map_GJ in zip(pixels, maps_BGJ, strict=True)]


def _step(subject: Subject) -> tuple[int, int] | None:
    """Pixels between two patches of a ViT's map; None if a map is as large as the image."""
    model = subject.checkpoint.model
    return model.config.step if isinstance(model, ViT) else None


def _pairs(subject: Subject, maps: Sequence[Pixels], *, title: str, beside: Sequence[str] | None = None) -> bytes:
    """A sheet of images, each with its map to the right, as in Fig. 14; `beside` are words over the maps."""
    seen = subject.images
    cells = [(as_rgb(pixels), printable) for pixels, printable in zip(seen.pixels_BHWC, maps, strict=True)]
    words = [(_short(name), "" if beside is None else beside[place]) for place, name in enumerate(seen.names)]
    rows, captions = [], []
    for start in range(0, len(cells), _PAIRS):
        rows.append([pixels for cell in cells[start : start + _PAIRS] for pixels in cell])
        captions.append([word for pair in words[start : start + _PAIRS] for word in pair])
    return draw_sheet(rows, subject.style, title=title, captions=captions)


def _classes(subject: Subject) -> list[int]:
    """The requested class, or the most probable class of each image."""
    model, target, labels = subject.checkpoint.model, subject.config.target, subject.checkpoint.labels
    needs_head(model, "this figure")
    count = subject.checkpoint.config.num_classes
    images_BCHW = subject.images.images_BCHW
    if target is None:
        with evaluating(model), torch.inference_mode():
            chosen = [model(part_BCHW).argmax(1).cpu() for part_BCHW in batches(model, images_BCHW, bytes_each=1 << 23)]
        return [int(label) for label in torch.cat(chosen)]
    if labels is not None and target in labels:
        return [labels.index(target)] * len(images_BCHW)
    if target.isascii() and target.isdigit() and int(target) < count:
        return [int(target)] * len(images_BCHW)
    hint = did_you_mean(target, labels or ())
    if labels and hint is None:
        hint = f"classes are {', '.join(labels[:_NAMED])}{', ...' if len(labels) > _NAMED else ''}"
    raise ConfigError(f"no class called {target!r}, and no number below {count}", hint=hint)


def _label(subject: Subject, label: int) -> str:
    labels = subject.checkpoint.labels
    return f"class {label}" if labels is None else labels[label]


def _query(config: InspectConfig, grid: tuple[int, int]) -> Query:
    match config.query:
        case None:
            return grid[0] // 2, grid[1] // 2
        case "class":
            return "class"
        case "distill":
            return "distill"
        case (int() as row, int() as column):
            return row, column
    raise ConfigError(f"query={config.query!r} is neither a token nor a patch")


def _heads(config: InspectConfig, count: int) -> list[int]:
    if config.head is None:
        return list(range(count))
    if config.head >= count:
        raise ConfigError(f"there is no head {config.head}: a layer has {count}, numbered from 0")
    return [config.head]


def _marked(image_HWC: Pixels, patch: tuple[int, int], step: tuple[int, int]) -> Pixels:
    """The image with a frame around one patch: vermilion, white inside it."""
    out_HWC = as_rgb(image_HWC).copy()
    top, left = patch[0] * step[0], patch[1] * step[1]
    for inset, colour in ((0, (213, 94, 0)), (max(1, min(step) // 12), (255, 255, 255))):
        thick = max(1, min(step) // 12)
        inner_HWC = out_HWC[top + inset : top + step[0] - inset, left + inset : left + step[1] - inset]
        frame_HW = np.ones(inner_HWC.shape[:2], bool)
        frame_HW[thick:-thick, thick:-thick] = False
        inner_HWC[frame_HW] = colour
    return out_HWC


def _short(name: str) -> str:
    return PurePosixPath(name).name or name
