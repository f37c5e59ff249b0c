"""The figures of `vitlab inspect`, by name: what each computes, and how it is drawn.

Axes: L layers, B batch, H heads (of images: height), W width, C channels or classes, G x J patches down and across.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import torch

from vitlab.checkpoints import Checkpoint
from vitlab.config.serialize import Json
from vitlab.errors import ConfigError, did_you_mean
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import (
    Floats,
    Query,
    attention_distance,
    batches,
    class_attention,
    needs_attention,
    needs_head,
    query_attention,
    relevance,
    rollout,
    what_is_read,
)
from vitlab.interpretation.config import OF_THE_WEIGHTS, FigureName, InspectConfig
from vitlab.interpretation.drawing import Style, draw_distance, draw_filters, draw_positions, draw_sheet
from vitlab.interpretation.features import token_pca
from vitlab.interpretation.images import Seen
from vitlab.interpretation.occlusion import WINDOW, occlusion
from vitlab.interpretation.paint import Pixels, as_rgb, feature_maps, overlay
from vitlab.interpretation.weights import first_filters, meets_pixels_by, position_similarity, principal_filters
from vitlab.models.vit import ViT

_PAIRS = 3  # images in a row of a sheet, each with its map beside it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """A figure: its file, the array it shows, and facts about it."""

    name: FigureName
    file: bytes
    array: Floats
    facts: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """What a figure is drawn of: a checkpoint, images where the figure needs some, and its choices."""

    checkpoint: Checkpoint
    config: InspectConfig
    seen: Seen | None = None

    @property
    def style(self) -> Style:
        return Style(theme=self.config.theme, form=self.config.form)

    @property
    def images(self) -> Seen:
        if self.seen is None:
            raise ConfigError("this figure needs images", hint="give an image, a folder or a pattern")
        return self.seen


def draw(name: FigureName, subject: Subject) -> Drawn:
    """One figure; ConfigError with the reason where the model cannot show it."""
    if subject.seen is None and name not in OF_THE_WEIGHTS:
        raise ConfigError(f"the figure {name} needs images", hint="give an image, a folder or a pattern")
    return FIGURES[name](subject)


def _filters(subject: Subject) -> Drawn:
    model = subject.checkpoint.model
    met_by = meets_pixels_by(model)
    principal = met_by == "patch embedding"  # filters of a convolution are few, and looked at as they are
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
    file = draw_sheet(rows, subject.style, title=f"layer {number}: what {asks} looks at", captions=captions)
    facts: dict[str, Json] = {"layer": number, "query": query if isinstance(query, str) else list(query)}
    return Drawn(name="attention", file=file, array=array_BHGJ, facts=facts)


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
    file = draw_sheet(rows, subject.style, title=f"what the {who} looks at", captions=captions, inches=1.3)
    return Drawn(name="class", file=file, array=array_LBHGJ, facts={"of": who})


def _relevance(subject: Subject) -> Drawn:
    needs_attention(subject.checkpoint.model, "gradient-weighted attention")
    classes = _classes(subject)
    array = relevance(subject.checkpoint.model, subject.images.images_BCHW, classes)
    words = [_label(subject, label) for label in classes]
    file = _pairs(subject, _overlaid(subject, array), title="what speaks for the class: gradient-weighted attention", beside=words)
    return Drawn(name="relevance", file=file, array=array, facts={"classes": list[Json](words)})


def _features(subject: Subject) -> Drawn:
    found = token_pca(subject.checkpoint.model, subject.images.images_BCHW, layer=subject.config.layer)
    (height, width), step = subject.images.pixels_BHWC.shape[1:3], _step(subject)
    _, rows, columns, _ = found.scores_BGJM.shape
    size = (height, width) if step is None else (rows * step[0], columns * step[1])
    maps = [shown[:height, :width] for shown in feature_maps(found.scores_BGJM, size)]
    shares = [round(float(share), 6) for share in found.explained_M]
    told = ", ".join(f"{share:.0%}" for share in shares)
    file = _pairs(subject, maps, title=f"principal components of the patches' features ({told})")
    return Drawn(name="features", file=file, array=found.scores_BGJM, facts={"explained": list[Json](shares)})


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
    "class": _class,
    "relevance": _relevance,
    "features": _features,
    "occlusion": _occlusion,
}


def _overlaid(subject: Subject, maps_BGJ: Floats) -> list[Pixels]:
    pixels = subject.images.pixels_BHWC
    how, step = subject.config.overlay, _step(subject)
    return [overlay(pixels_HWC, map_GJ, how, step=step) for pixels_HWC, map_GJ in zip(pixels, maps_BGJ, strict=True)]


def _step(subject: Subject) -> tuple[int, int] | None:
    """Pixels from one place of a ViT's map to the next; None where a map is just as large as the image."""
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
    """The class asked for, or each image's likeliest."""
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
    raise ConfigError(f"no class called {target!r}, and no number below {count}", hint=did_you_mean(target, labels or ()))


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
