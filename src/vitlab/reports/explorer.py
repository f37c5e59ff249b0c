"""The explorer: a page that shows how a model sees images, and the same page as one file with everything in it.

`write_explorer` makes the file: it opens from disk, and its Content-Security-Policy forbids every request. A server sends the same
page (`served_page`) and computes `model_bytes` and `image_bytes` on request. The page is `page/`: HTML, CSS and JavaScript modules,
which are read as they are; in the file the modules stand one after another, without their imports.

Attention fills most of a file. It is stored as whole numbers from 0 to `levels`, whose square times the largest value of its row
is the attention; queries are the tokens before the patches (16 bits) and as many patches, as finely, as fit into the file.

With a search index of the model, the page shows the nearest images and a map of the index in two dimensions.

Axes: N images of the map, D width of the features.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.data.decode import as_rgb
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import DataError
from vitlab.inference.backends import evaluating
from vitlab.inference.engine import Engine
from vitlab.inference.images import ImageLike, ImageReader, NamedImage, image_name
from vitlab.inference.search_index import Index
from vitlab.interpretation.attention import as_floats
from vitlab.interpretation.exploration import Exploration, ModelView, explore_image, explore_model, kept_queries, patches_of
from vitlab.interpretation.paint import Pixels
from vitlab.interpretation.weights import principal_directions
from vitlab.io.arrays import pack_arrays
from vitlab.io.atomic import check_parent, write_text
from vitlab.io.display import Block, Displayed, ProgressCallback, json_text, printable, silent
from vitlab.models.vit import ViT

MODULES = ("pack.js", "source.js", "state.js", "draw.js", "panels.js", "tour.js", "main.js")
"""The page's modules, each after those that it imports."""

BUILTIN = ("cat.jpg", "coffee.jpg", "rocket.jpg", "astronaut.jpg")
"""The images that the explorer starts with."""

FILE_BYTES = 10_000_000  # of a file of at most 12 images, as a rule
_IMAGES = 12
_EXACT = 65_535
_EFFORT = 6  # of gzip: 9 takes four times as long for one hundredth of the size
_LEVELS = (_EXACT, 255, 127, 63, 31, 23, 15)
_TAG = 64  # bytes around a block
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WrittenExplorer(Displayed):
    """An explorer on disk: its path and size in bytes, its images and models, and how finely attention is stored.

    `stride` 1 means that the attention of every patch is in the file, 2 of every second one down and across; `levels` is the number
    of steps from 0 to the largest value of a row. Both are None for models without attention.
    """

    path: Path
    bytes: int
    images: int
    models: tuple[str, ...]
    stride: int | None
    levels: int | None

    def tables(self) -> Iterable[Block]:
        """Where the explorer is, and what is in it."""
        return [self.to_json()]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "explorer": str(self.path),
            "images": self.images,
            "models": ", ".join(self.models),
            "bytes": self.bytes,
            "stride": self.stride,
            "levels": self.levels,
        }


def builtin_images() -> list[NamedImage]:
    """The images that the explorer starts with: free photographs (page/images/LICENCES.txt)."""
    return [NamedImage(name=file.name, read=file.read_bytes) for file in _image_files()]


def write_explorer(
    path: Path,
    models: Mapping[str, Checkpoint],
    images: Sequence[ImageLike],
    *,
    title: str | None = None,
    cover: bool = True,
    neighbourhood: Neighbourhood | None = None,
    progress: ProgressCallback = silent,
) -> WrittenExplorer:
    """Write the explorer of one or two models and these images as one HTML file.

    `cover` computes the answer with each patch covered, one forward pass for each patch of each image. `neighbourhood` adds the
    images of a search index that are most similar, for the first model.
    """
    if not images:
        raise DataError("no image given")
    check_parent(path, DataError)
    allowed = FILE_BYTES * max(1, len(images) / _IMAGES)
    explored = list[_Explored]()
    done, total = 0, len(images) * len(models)
    for name, checkpoint in models.items():
        view, near = explore_model(checkpoint), None if explored else neighbourhood
        stride, reader = _stride(checkpoint, allowed / total), model_reader(checkpoint)
        found = list[Exploration]()
        for number, image in enumerate(images):
            progress("exploring", done, total)
            shown = image_name(image, number)
            found.append(
                explore_image(checkpoint, reader(image, shown), name=_short(shown), stride=stride, cover=cover, shuffle=True)
            )
            done += 1
        neighbours = [None if near is None else near.nearest(checkpoint, one.pixels_HWC) for one in found]
        explored.append(_Explored(name, checkpoint, view, stride, found, neighbours, near))
    progress("exploring", total, total)
    start = {
        "title": title or (f"How {next(iter(models))} sees" if len(models) == 1 else " and ".join(models)),
        "served": False,
        "models": [
            {
                "name": printable(one.name),
                "block": f"model-{place}",
                "images": [f"image-{place}-{number}" for number in range(len(images))],
            }
            for place, one in enumerate(explored)
        ],
        "images": [printable(_short(image_name(image, number))) for number, image in enumerate(images)],
        "thumbnails": [_thumbnail(one.pixels_HWC) for one in explored[0].images],
    }
    blocks = {
        f"model-{place}": model_bytes(one.view, name=one.name, neighbourhood=one.neighbourhood)
        for place, one in enumerate(explored)
    }
    each = (allowed - len(file_page(start, blocks).encode())) / total * 3 / 4 - _TAG  # base64 makes four bytes of three
    strides, levels = set[int](), set[int]()
    for place, one in enumerate(explored):
        stride, chosen = one.stride, _EXACT
        if stride is not None:
            stride, chosen = _fitting(one, each, stride)
            strides.add(stride)
            levels.add(chosen)
        for number in range(len(images)):
            blocks[f"image-{place}-{number}"] = one.content(number, stride, chosen)
    text = file_page(start, blocks)
    write_text(path, text)
    return WrittenExplorer(
        path=path,
        bytes=len(text.encode()),
        images=len(images),
        models=tuple(models),
        stride=max(strides, default=None),
        levels=min(levels, default=None),
    )


@dataclass(frozen=True, slots=True)
class _Explored:
    """A model and its images, with the nearest images of each where there is an index."""

    name: str
    checkpoint: Checkpoint
    view: ModelView
    stride: int | None
    images: list[Exploration]
    neighbours: list[Nearest | None]
    neighbourhood: Neighbourhood | None

    def content(self, number: int, stride: int | None, levels: int) -> bytes:
        """An image with the attention of every `stride`-th patch, in so many levels."""
        kept = self.images[number] if stride is None else _thinned(self.view, self.images[number], stride)
        return image_bytes(self.view, self.checkpoint, kept, levels=levels, neighbours=self.neighbours[number])


def model_reader(checkpoint: Checkpoint) -> Callable[[ImageLike, str], Pixels]:
    """From an image in any form to the pixels of the model's input."""
    return ImageReader(EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits()))


def model_bytes(view: ModelView, *, name: str, neighbourhood: Neighbourhood | None = None) -> bytes:
    """What the page needs of a model."""
    arrays: dict[str, NDArray[Any]] = {}
    if view.filters is not None:
        arrays["filters"], _ = _encoded(view.filters)
    if view.similarity_NN is not None:
        arrays["similarity"] = np.rint(127.5 * (view.similarity_NN + 1)).astype(np.uint8)
    if view.positions_ND is not None:
        arrays["positions"] = view.positions_ND
    facts: dict[str, Any] = {
        "name": printable(name),
        "family": view.family,
        "grid": list(view.grid),
        "step": list(view.step),
        "layers": view.layers,
        "heads": view.heads,
        "width": view.width,
        "tokens": list(view.tokens),
        "reads": view.reads,
        "filters_of": view.filters_of,
        "shuffles": list(view.shuffles),
        "missing": view.missing,
    }
    if neighbourhood is not None:
        facts["neighbours"] = neighbourhood.facts()
        arrays["map"] = neighbourhood.points_N2
        arrays["map_labels"] = neighbourhood.codes_N
    return pack_arrays(facts, arrays)


def image_bytes(
    view: ModelView,
    checkpoint: Checkpoint,
    exploration: Exploration,
    *,
    levels: int = 0,
    neighbours: Nearest | None = None,
) -> bytes:
    """What the page needs of an image; attention as numbers from 0 to `levels`, or exactly for 0."""
    pixels, kind = _encoded(exploration.pixels_HWC)
    arrays: dict[str, NDArray[Any]] = {"pixels": pixels}
    classes, probabilities_C = list(exploration.classes), exploration.probabilities_C
    facts: dict[str, Any] = {
        "name": printable(exploration.name),
        "kind": kind,
        "size": list(exploration.pixels_HWC.shape[:2]),
        "classes": classes,
        "labels": [_label(checkpoint, label) for label in classes],
        "target": exploration.target,
        "target_label": None if exploration.target is None else _label(checkpoint, exploration.target),
        "probabilities": [float(probabilities_C[label]) for label in classes],
        "maps": list(exploration.maps),
        "features": [list(colours.shape[:2]) for colours in exploration.features],
        "missing": exploration.missing,
        "attention": [],
    }
    for name, map_GJ in exploration.maps.items():
        arrays[f"map.{name}"] = map_GJ
    optional = {
        "lens": exploration.lens_LK,
        "norms": exploration.norms_LHN,
        "distance": exploration.distance_LH,
        "embedding": exploration.embedding_ND,
        "covered": exploration.covered_NK,
    }
    arrays |= {name: array for name, array in optional.items() if array is not None}
    if levels and exploration.embedding_ND is not None:
        arrays["embedding"], facts["embedding_scale"] = _bytes_of(exploration.embedding_ND)
    for number, colours in enumerate(exploration.features):
        arrays[f"features.{number}"] = colours
    facts["shuffled"] = {}
    for side, changed in exploration.shuffled.items():
        facts["shuffled"][str(side)] = answer_facts(checkpoint, changed.probabilities_C)
        arrays[f"order.{side}"] = np.array(changed.order_N, np.uint16)
    if exploration.attention_RLHN is not None:
        prefix = len(view.tokens)
        for first, last, fine in ((0, prefix, levels and _EXACT), (prefix, len(exploration.queries), levels)):
            if first < last:
                group = len(facts["attention"])
                part_LHRN = exploration.attention_RLHN[first:last].transpose(1, 2, 0, 3)  # neighbours are alike: they compress
                arrays[f"attention.{group}"], arrays[f"largest.{group}"] = coded(part_LHRN, fine)
                facts["attention"].append({"queries": list(exploration.queries[first:last]), "levels": fine})
    if neighbours is not None:
        facts["neighbours"], thumbnails = neighbours
        for number, thumbnail in thumbnails.items():
            arrays[f"neighbour.{number}"], facts["neighbours"]["images"][number]["kind"] = _encoded(thumbnail)
    return pack_arrays(facts, arrays)


def answer_facts(checkpoint: Checkpoint, probabilities_C: NDArray[np.float32], count: int = 5) -> list[dict[str, Any]]:
    """The most probable classes as plain values."""
    best = np.argsort(-probabilities_C, kind="stable")[:count].tolist()
    return [{"class": label, "label": _label(checkpoint, label), "probability": float(probabilities_C[label])} for label in best]


def coded(attention_LHRN: NDArray[np.float32], levels: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Attention as numbers from 0 to `levels`, and the largest value of each row; with 0 levels as it is."""
    largest_LHR = attention_LHRN.max(-1, initial=0)
    if not levels:
        return attention_LHRN, largest_LHR
    root_LHRN = np.sqrt(attention_LHRN / np.maximum(largest_LHR, np.float32(1e-30))[..., None])
    return np.rint(levels * root_LHRN).astype(np.uint16 if levels > 255 else np.uint8), largest_LHR


def file_page(start: Mapping[str, Any], blocks: Mapping[str, bytes]) -> str:
    """The page with everything in it: modules one after another, data as compressed blocks of text."""
    script = "".join(_EXPORT.sub("", _IMPORT.sub("", _read(name))) for name in MODULES)
    script = f'"use strict";\n{script}'
    style = _read("style.css")
    policy = (
        "default-src 'none'; img-src data: blob:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    data = "".join(
        f'<script type="text/plain" id="{name}">{base64.b64encode(gzip.compress(content, _EFFORT, mtime=0)).decode()}</script>\n'
        for name, content in blocks.items()
    )
    values = {
        "POLICY": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "STYLE": f"<style>{style}</style>",
        "START": _start(start) + data,
        "SCRIPT": f'<script type="module">{script}</script>',
        "TITLE": html.escape(printable(str(start["title"]))),
    }
    return _filled_in(_read("index.html"), values)


def served_page(start: Mapping[str, Any], assets: str) -> str:
    """The page as a server sends it; `assets` is the address of the folder of its style and modules."""
    values = {
        "POLICY": "",  # the server sends it as a header
        "STYLE": f'<link rel="stylesheet" href="{html.escape(assets)}/style.css">',
        "START": _start(start),
        "SCRIPT": f'<script type="module" src="{html.escape(assets)}/main.js"></script>',
        "TITLE": html.escape(printable(str(start["title"]))),
    }
    return _filled_in(_read("index.html"), values)


def page_files() -> Iterator[tuple[str, bytes]]:
    """The style, the modules and the images of the served page, by name."""
    for name in ("style.css", *MODULES):
        yield name, _read(name).encode()
    yield from ((file.name, file.read_bytes()) for file in _image_files())


def _filled_in(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: values[found[1]], template)


def _start(start: Mapping[str, Any]) -> str:
    text = json_text(dict(start)).replace("<", "\\u003c")  # so that no name can end the script
    return f'<script type="application/json" id="start">{text}</script>\n'


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _stride(checkpoint: Checkpoint, allowed: float) -> int | None:
    """Which patches' attention may fit: every one, every second one, ...; a value takes at least a quarter of a byte."""
    if not isinstance(checkpoint.model, ViT):
        return None
    grid, _ = patches_of(checkpoint)
    config = checkpoint.model.config
    row = config.layers * config.heads * (config.prefix_tokens + grid[0] * grid[1]) * 0.25
    stride = 1
    while -(-grid[0] // stride) * -(-grid[1] // stride) * row > allowed and stride < max(grid):
        stride += 1
    return stride


def _fitting(one: _Explored, allowed: float, stride: int) -> tuple[int, int]:
    """The finest stride and levels with which a model's images fit into `allowed` bytes each, on average."""
    count = len(one.images)

    def size(number: int, levels: int) -> int:
        return len(gzip.compress(one.content(number, stride, levels), _EFFORT))

    while True:
        for levels in _LEVELS:
            if size(count // 2, levels) > 1.3 * allowed:  # no need to look at the others
                continue
            if sum(size(number, levels) for number in range(count)) <= allowed * count:
                return stride, levels
        if stride >= max(one.view.grid):
            return stride, _LEVELS[-1]
        stride += 1


def _thinned(view: ModelView, exploration: Exploration, stride: int) -> Exploration:
    """The exploration with the attention of every `stride`-th patch only."""
    if exploration.attention_RLHN is None:
        return exploration
    wanted = set(kept_queries(len(view.tokens), view.grid, stride))
    places = [place for place, query in enumerate(exploration.queries) if query in wanted]
    queries = tuple(exploration.queries[place] for place in places)
    return replace(exploration, queries=queries, attention_RLHN=exploration.attention_RLHN[places])


def _bytes_of(values_ND: NDArray[np.float32]) -> tuple[NDArray[np.uint8], float]:
    """Values as bytes, 128 for zero, and what one step means."""
    scale = float(np.abs(values_ND).max(initial=1e-12)) / 127
    return (np.rint(values_ND / scale) + 128).astype(np.uint8), scale


def _encoded(pixels_HWC: Pixels) -> tuple[NDArray[np.uint8], str]:
    """Pixels as the smaller of a PNG and a good JPEG, and which it is."""
    image = Image.fromarray(as_rgb(pixels_HWC))
    files = {}
    for kind in ("png", "jpeg"):
        file = io.BytesIO()
        image.save(file, kind, **({"optimize": True} if kind == "png" else {"quality": 90, "subsampling": 0}))
        files[kind] = file.getvalue()
    kind = min(files, key=lambda name: len(files[name]))
    return np.frombuffer(files[kind], np.uint8), f"image/{kind}"


def _thumbnail(pixels_HWC: Pixels, side: int = 104) -> str:
    image = Image.fromarray(as_rgb(pixels_HWC))
    image.thumbnail((side, side))
    content, kind = _encoded(np.asarray(image))
    return f"data:{kind};base64,{base64.b64encode(content.tobytes()).decode()}"


def _label(checkpoint: Checkpoint, label: int) -> str:
    return f"class {label}" if checkpoint.labels is None else printable(checkpoint.labels[label])


def _short(name: str) -> str:
    return PurePosixPath(name).name or name


def _page() -> Traversable:
    return resources.files("vitlab.reports").joinpath("page")


def _image_files() -> list[Traversable]:
    return [_page().joinpath("images", name) for name in BUILTIN]


def _read(name: str) -> str:
    return _page().joinpath(name).read_text(encoding="utf-8")


# --- the nearest images of a search index, and its map ------------------------------------------------------------------------

Nearest = tuple[dict[str, Any], dict[int, Pixels]]
"""The nearest images as plain values, and thumbnails of those that can be read, by their place in the list."""

NO_LABEL = 65_535
_MOST = 2_000  # images on the map
_SHOWN = 8  # nearest images
_SIDE = 96  # pixels of their thumbnails


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbourhood:
    """An index that a model made, ready to be searched.

    `points_N2` are the places of some of its images on the map, from -1 to 1, and `codes_N` the numbers of their labels, 65535
    without one. `images` is the folder of the indexed images, where their names do not lead to them.
    """

    index: Index
    images: Path | None
    points_N2: NDArray[np.float32]
    codes_N: NDArray[np.uint16]
    mean_D: NDArray[np.float32]
    directions_2D: NDArray[np.float32]
    scale_2: NDArray[np.float32]

    @staticmethod
    def of(index: Index, checkpoint: Checkpoint, images: Path | None = None) -> Neighbourhood:
        """The index as a map; DataError if another model made it."""
        digest = Engine(checkpoint, backend="torch", device=next(checkpoint.model.parameters()).device).digest
        if digest != index.digest:
            raise DataError(
                f"the model did not make {printable(str(index.path))}: its features cannot be compared",
                hint=f"the index is of {index.digest[:16]}, the model with its preprocessing is {digest[:16]}",
            )
        features_ND, labels = index.sample(_MOST)
        mean_D = features_ND.mean(0)
        directions_MD, _ = principal_directions(torch.from_numpy(features_ND))
        directions_2D = np.zeros((2, features_ND.shape[1]), np.float32)
        directions_2D[: min(2, len(directions_MD))] = as_floats(directions_MD[:2])
        points_N2 = (features_ND - mean_D) @ directions_2D.T
        scale_2 = np.maximum(np.abs(points_N2).max(0), np.float32(1e-12))
        numbers = {label: number for number, label in enumerate(sorted({label for label in labels if label is not None}))}
        codes = [NO_LABEL if label is None else numbers[label] % NO_LABEL for label in labels]
        return Neighbourhood(
            index=index,
            images=images,
            points_N2=points_N2 / scale_2,
            codes_N=np.array(codes, np.uint16),
            mean_D=mean_D,
            directions_2D=directions_2D,
            scale_2=scale_2,
        )

    def facts(self) -> dict[str, Any]:
        """What the page says about the index."""
        return {"count": len(self.index), "shown": len(self.codes_N)}

    def nearest(self, checkpoint: Checkpoint, pixels_HWC: Pixels) -> Nearest:
        """The nearest images and the place on the map, as plain values; and thumbnails of those that can be read."""
        like = next(checkpoint.model.parameters())
        image_1CHW = normalise(torch.from_numpy(np.ascontiguousarray(pixels_HWC))[None], checkpoint.preprocess)
        with evaluating(checkpoint.model), torch.inference_mode():
            features_D = as_floats(checkpoint.model.features(image_1CHW.to(device=like.device, dtype=like.dtype)))[0]
        found = self.index.nearest(features_D, _SHOWN)
        unit_D = features_D / max(float(np.linalg.norm(features_D)), 1e-12)
        at_2 = ((unit_D - self.mean_D) @ self.directions_2D.T / self.scale_2).clip(-1, 1)
        reader = ImageReader(EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits()))
        thumbnails = {}
        for number, match in enumerate(found):
            thumbnail = self._thumbnail(reader, match.name)
            if thumbnail is not None:
                thumbnails[number] = thumbnail
        images = [
            {"name": printable(match.name), "label": match.label and printable(match.label), "similarity": match.similarity}
            for match in found
        ]
        return {"images": images, "at": [float(value) for value in at_2]}, thumbnails

    def _thumbnail(self, reader: ImageReader, name: str) -> Pixels | None:
        """The image as the model sees it, small; None where its name does not lead to a file."""
        path = name if self.images is None else f"{self.images}/{name}"
        try:
            pixels_HWC = reader(path, name)
        except DataError:  # an index outlives its images
            return None
        step = max(1, min(pixels_HWC.shape[:2]) // _SIDE)
        return pixels_HWC[::step, ::step]
