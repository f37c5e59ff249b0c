"""`load` and `describe`: a checkpoint of any format is translated, fitted and loaded strictly; notes say what was guessed.

Axes: L tables, N patches, D width, O outputs, C channels in, P x Q cells of a patch or kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.checkpoints.checkpoint import (
    Checkpoint,
    Description,
    check_finite,
    check_labels,
    check_preprocess,
    check_state,
    listed,
    nonfinite_tensors,
)
from vitlab.checkpoints.containers import RawFile, read_file
from vitlab.checkpoints.containers.read import container_of, weights_in
from vitlab.checkpoints.containers.safetensors_file import OpenFile, read_header
from vitlab.checkpoints.formats import FORMATS
from vitlab.checkpoints.formats.contract import Hints, Reading
from vitlab.checkpoints.formats.header import KEY as CONVERTED
from vitlab.checkpoints.formats.huggingface import KINDS, named_by, unknown_kind
from vitlab.checkpoints.hub import address_of, fetch, is_hub
from vitlab.checkpoints.native import HeaderFacts, is_native, parts_in, read_facts, read_native, read_weights, summary
from vitlab.checkpoints.remote_copy import header_copy, local_copy
from vitlab.config.backbone import BackboneConfig
from vitlab.config.class_names import usual_names
from vitlab.config.data import Preprocess, feeding, named_classes
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.serialize import Json
from vitlab.config.vit import PositionResize, ViTConfig, with_profile
from vitlab.errors import CheckpointError, at_least, pair
from vitlab.io import address as io_address
from vitlab.io.address import is_address
from vitlab.io.display import line_on_terminal
from vitlab.io.files import is_folder, open_regular
from vitlab.models.batch_norm import STATISTICS
from vitlab.models.families import build_on_meta, family_of
from vitlab.models.flexible import resize_patch
from vitlab.models.position import resize_bias, resize_grid

State = dict[str, Tensor]

NATIVE = "native"
AVERAGED = "average.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint that has been read but not built: `reading` has vitlab's names.

    `recipe`, `metrics` and `history` (what was noted when it was made) are of a native file.

    `metadata` is the rest of the file's header.
    """

    reading: Reading
    recipe: dict[str, Json] | None = None
    metrics: dict[str, float] | None = None
    history: tuple[str, ...] = ()
    metadata: dict[str, Json]


def read_source(path: str | Path, hints: Hints, *, values: bool = True) -> Source:
    """Read a file, folder, address (s3://...) or `hub:owner/name`; its content decides which format it is.

    Without `values`, only headers are read, and the tensors are on the meta device.
    """
    path, fetched = address_of(path)
    if is_hub(path):
        try:
            folder, downloaded = fetch(str(path))
        except CheckpointError as error:
            raise CheckpointError("; ".join((*fetched, error.message)), hint=error.hint) from error
        path, fetched = folder, (*fetched, *downloaded)
    if is_address(path) and not values:
        address = io_address.address_of(str(path))
        with header_copy(address) as header:
            if header is not None:
                return _noted(
                    _read_native(header, hints, values) or _read_foreign(header, hints, values), *fetched, f"from {address}"
                )
    if is_address(path):
        path, copied = local_copy(io_address.address_of(str(path)), progress=line_on_terminal)
        fetched = (*fetched, *copied)
    place = model_in(Path(path))
    if place != Path(path) and place.name != Path(path).name and "last" in place.parts[-2:]:
        weights = "averaged weights" if place.name == AVERAGED else "weights"
        fetched = (*fetched, f"the run in {path} is not finished: the {weights} of its last checkpoint are taken")
    return _noted(_read_native(place, hints, values) or _read_foreign(place, hints, values), *fetched)


def _noted(source: Source, *notes: str) -> Source:
    return replace(source, reading=replace(source.reading, notes=(*notes, *source.reading.notes)))


def model_in(place: Path) -> Path:
    """The model in the folder of a training run or of a sweep: the finished one, else the last checkpoint's, averaged if the run
    averages, as its metrics are. Any other path is returned as is.
    """
    if (place / "sweep.json").is_file():
        place = place / "final"
    if not (place / "run.json").is_file():
        return place
    last = place / "last"  # it may be in parts
    for model in (place / "model.safetensors", last / AVERAGED, last / "model.safetensors", last):
        if model.exists():
            return model
    raise CheckpointError(f"the run in {place} has no checkpoint yet", hint="run its command again to resume it")


def _read_native(place: Path, hints: Hints, values: bool) -> Source | None:
    """The native checkpoint at `place`, or None if it is of another format."""
    if is_folder(place):
        if parts := parts_in(place, "model"):
            return _read_parts(place, parts, hints, values)
        place, _ = weights_in(place)
    with open_regular(place) as file:
        if container_of(file, place) != "safetensors":
            return None
        opened = OpenFile(path=place, header=read_header(file, place), file=file)
        if not is_native(opened.header.metadata):
            return None
        state, facts = read_native(opened) if values else (opened.shapes(), read_facts(opened))
    return _native_source(place, hints, state, facts, metadata=summary(opened, facts))


def _read_parts(folder: Path, parts: tuple[Path, ...], hints: Hints, values: bool) -> Source:
    """The checkpoint of a run with several processes, joined from the part that each has written."""
    state, facts = read_weights(parts, values=values)
    source = _native_source(folder, hints, state, facts, metadata={"parts": len(parts)})
    notes = (f"joined from the parts of {len(parts)} processes", *source.reading.notes)
    return replace(source, reading=replace(source.reading, notes=notes))


def _native_source(place: Path, hints: Hints, state: dict[str, Tensor], facts: HeaderFacts, *, metadata: dict[str, Json]) -> Source:
    return Source(
        reading=Reading(
            format=NATIVE,
            config=_profiled(facts, hints, place),
            state=state,
            preprocess=facts.preprocess,
            labels=facts.labels,
            notes=() if hints.profile is None else (f"numerics of the profile {hints.profile!r}, as given",),
        ),
        recipe=facts.recipe,
        metrics=facts.metrics,
        history=facts.notes,
        metadata=metadata,
    )


def _profiled(facts: HeaderFacts, hints: Hints, place: Path) -> ModelConfig:
    """The config, with the profile if one was given; heads and grid must be those of the file."""
    config = facts.config
    said = {"heads": config.heads, "grid": config.grid} if isinstance(config, ViTConfig) else {"heads": None, "grid": None}
    for name, value in (("heads", hints.heads), ("grid", hints.grid)):
        if value is not None and value != said[name]:
            raise CheckpointError(f"{place} says {name}={said[name]} itself; {name}={value} contradicts it")
    if hints.profile is None:
        return config
    if not isinstance(config, ViTConfig):
        raise CheckpointError(f"{place} is {config.title}: profiles are for ViTs", hint="leave profile out")
    return with_profile(config, hints.profile)


def _read_foreign(place: Path, hints: Hints, values: bool) -> Source:
    raw = read_file(place, values=False)  # no gigabytes are read of a layout that is unknown
    if (error := unknown_kind(raw)) is not None:
        raise error
    found = [name for name, layout in FORMATS.items() if layout.matches(raw)]
    if not found:
        raise _unknown(raw)
    if len(found) > 1:
        raise CheckpointError(f"{place} could be {' or '.join(found)}: which one is not clear from its keys")
    reading = FORMATS[found[0]].read(read_file(place) if values else raw, hints)
    preprocess, fed = feeding(reading.preprocess, reading.config)  # the two JSON files of a folder may disagree
    metadata: dict[str, Json] = {key: text for key, text in raw.metadata.items() if key != CONVERTED}  # that is in the reading
    return Source(reading=replace(reading, preprocess=preprocess, notes=(*raw.notes, *reading.notes, *fed)), metadata=metadata)


# Names of tensors by which other models are told from those that vitlab has, and what such a model is.
_STRANGERS = (
    (r"visual\.layer1\.0\.conv1\.weight", "a CLIP with a ResNet"),
    (r"(?:.*\.)?layer1\.0\.conv1\.weight", "a ResNet with BatchNorm, as in torchvision"),
    (r"features\.\d+\..*", "a convolutional network of torchvision"),
    (r"(?:.*\.)?h\.0\.attn\.c_attn\.weight|(?:.*\.)?embed_tokens\.weight", "a language model"),
    (r"(?:bert|roberta|distilbert)\..*|(?:.*\.)?word_embeddings\.weight", "a text encoder"),
    (r"text_model\..*|token_embedding\.weight", "a text tower without a vision tower"),
    (r"image_encoder\.patch_embed\..*", "a Segment Anything model"),
    (r"(?:model\.diffusion_model|down_blocks|time_embed)\..*", "a diffusion model"),
    (r"videomae\..*|.*patch_embed.*\.temporal.*", "a model of videos"),
    (r".*\.running_mean", "a network with BatchNorm"),
)


def _unknown(raw: RawFile) -> CheckpointError:
    """The refusal of a file whose tensors have the names of no format: it says what the model is where the names tell."""
    kind = KINDS.get(named_by(raw.sidecar) or "")
    what = next((words for pattern, words in _STRANGERS if any(re.fullmatch(pattern, key) for key in raw.tensors)), None)
    if kind is not None:
        said = f"{raw.path} is not the Hugging Face {kind.title} model that the config.json beside it names"
    elif what is not None:
        said = f"{raw.path} is {what}, which vitlab does not have"
    else:
        said = f"{raw.path} is a model that vitlab does not know: its tensors are called {', '.join(list(raw.tensors)[:6])}, ..."
    return CheckpointError(said, hint=f"vitlab reads {', '.join([NATIVE, *FORMATS])}")


Size = int | tuple[int, int]


def load(
    path: str | Path,
    *,
    num_classes: int | None = None,
    new_head: bool = False,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    channels: int | None = None,
    interpolation: PositionResize | None = None,
    dynamic_size: bool | None = None,
    window: Size | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: str | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    dtype: torch.dtype | None = torch.float32,
    allow_nonfinite: bool = False,
) -> Checkpoint:
    """Load a checkpoint; its content decides the format. The model is in eval mode.

    `path` is a file, a folder, `hub:owner/name[@revision]`, or the name of a model with public weights (`ViT-B/16`).
    Some files leave things open, which you can give: `heads`, `grid` (patches down, across), `profile` (whose numerics: official,
    timm, huggingface, torchvision), `labels` (one for each class), `preprocess`.
    The model is fitted to what you ask for: `num_classes` (another number gets a head of zeros, 0 none; `new_head` also for the
    same number), `image_size`, `patch_size` and `channels` of the images, `interpolation` of positions, `dynamic_size`, and the
    `window` of a Swin Transformer, in patches.
    The weights become `dtype`, or stay as in the file if it is None. Weights that hold NaN or Inf are refused, unless
    `allow_nonfinite`, which is for looking at a broken model.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise CheckpointError(f"weights cannot be {dtype}", hint="float32, bfloat16, float16 or float64")
    hints = Hints(heads=heads, grid=None if grid is None else pair("grid", grid), profile=profile)
    wanted = Wanted(
        num_classes=num_classes,
        new_head=new_head,
        image_size=None if image_size is None else pair("image_size", image_size),
        patch_size=None if patch_size is None else pair("patch_size", patch_size),
        channels=channels,
        interpolation=interpolation,
        dynamic_size=dynamic_size,
        window=None if window is None else pair("window", window),
    )
    source = read_source(path, hints)
    reading = source.reading
    state, typed = _as_type(reading.state, dtype)
    config, fitted = reading.config, tuple[str, ...]()
    if wanted != Wanted():
        state, config, fitted = fit(state, config, wanted)
    fed, refed = _fed(reading.preprocess, reading.config, config, preprocess)
    named, naming = _labels(reading.labels, reading.config, config, new_head=new_head, given=labels)
    if named is None and not fitted and not new_head:
        named, naming = _usual_labels(source)
    if fitted and source.metrics is not None:  # what the old model reached says nothing of this one
        fitted = (*fitted, "metrics of the model before fitting left out")
    check_state(state, config, where=str(path))
    broken = _broken(state, str(path), allow=allow_nonfinite)
    model = build_on_meta(config)
    model.load_state_dict({name: tensor.contiguous() for name, tensor in state.items()}, strict=True, assign=True)
    return Checkpoint(
        model=model.eval(),
        config=config,
        preprocess=fed,
        labels=named,
        notes=(*reading.notes, *typed, *fitted, *refed, *naming, *broken),
        format=reading.format,
        recipe=source.recipe,
        metrics=None if fitted else source.metrics,
        history=source.history,
        allow_nonfinite=allow_nonfinite,
    )


def describe(path: str | Path, *, heads: int | None = None, grid: Size | None = None, profile: str | None = None) -> Description:
    """Describe a checkpoint by its header. No model is built and no weights are read, so they are not checked either."""
    hints = Hints(heads=heads, grid=None if grid is None else pair("grid", grid), profile=profile)
    source = read_source(path, hints, values=False)
    reading = source.reading
    named, naming = (reading.labels, ()) if reading.labels is not None else _usual_labels(source)
    return Description(
        format=reading.format,
        config=reading.config,
        parameters=sum(tensor.numel() for name, tensor in reading.state.items() if not name.endswith(STATISTICS)),
        dtypes=_types(reading.state),
        preprocess=reading.preprocess,
        labels=named,
        notes=(*reading.notes, *naming),
        history=source.history,
        metadata=source.metadata,
    )


def _broken(state: State, where: str, *, allow: bool) -> tuple[str, ...]:
    """A note of the tensors that hold NaN or Inf, which are refused unless allowed."""
    if allow:
        odd = nonfinite_tensors(state)
        return (f"the weights hold NaN or Inf: {listed(odd)}",) if odd else ()
    check_finite(state, where=where, hint="the file is damaged or its training diverged; `allow_nonfinite` opens it to look at it")
    return ()


def _as_type(state: State, dtype: torch.dtype | None) -> tuple[State, tuple[str, ...]]:
    """The weights in one type, and a note if the file has another."""
    types = _types(state)
    if dtype is None:
        return state, () if types == ("float32",) else (f"weights kept as in the file: {', '.join(types)}",)
    name = _name(dtype)
    if types == (name,):
        return state, ()
    return {key: tensor.to(dtype) for key, tensor in state.items()}, (f"weights converted from {', '.join(types)} to {name}",)


def _types(state: State) -> tuple[str, ...]:
    return tuple(sorted({_name(tensor.dtype) for tensor in state.values()}))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _fed(
    of_file: Preprocess, before: ModelConfig, after: ModelConfig, given: Preprocess | None
) -> tuple[Preprocess, tuple[str, ...]]:
    """The preprocessing of the fitted model: as given, else the file's, adapted to the new size and channels."""
    if given is None:
        return feeding(of_file, after, resized=after.image_size != before.image_size)
    check_preprocess(given, after)
    differs = [field.name for field in fields(given) if getattr(given, field.name) != getattr(of_file, field.name)]
    return given, (f"preprocessing as given, not as in the file: {', '.join(differs)}",) if differs else ()


def _usual_labels(source: Source) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """ImageNet's class names for a public model that names none; a run of vitlab writes its own."""
    classes = source.reading.config.num_classes
    usual = None if source.recipe is not None else usual_names(classes)
    if usual is None:
        return None, ()
    title, names = usual
    return names, (f"the file names no classes: those of {title} are assumed, since there are {classes:,} (`labels` gives others)",)


def _labels(
    of_file: tuple[str, ...] | None, before: ModelConfig, after: ModelConfig, *, new_head: bool, given: Sequence[str] | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The labels given, else those of the file if its head is still there."""
    if given is not None:
        if isinstance(given, str):
            raise CheckpointError(f"labels={given!r} is one text", hint="give a list of texts")
        check_labels(given, named_classes(after))
        return tuple(given), ("labels as given, not as in the file",) if of_file not in (None, tuple(given)) else ()
    if of_file is not None and (new_head or after.num_classes != before.num_classes):
        return None, ("labels of the old head left out",)
    return of_file, ()


# --- fit weights to another grid, patch size, number of channels or head; notes say what was done -----------------------------


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the caller wants to change; None keeps what the file has.

    `num_classes` other than the file's replaces the whole head, the pre-training head's hidden layer included, by a linear one of
    zeros (app. B.1.1), and 0 removes the last linear layer; `new_head` replaces it even where the number is the same.
    `interpolation` is how positions are resized, now and at run time: `official` or `bicubic`.
    `window` is a Swin's, in patches (down, across); where it or the image size changes its windows, their biases are resized.
    """

    num_classes: int | None = None
    new_head: bool = False
    image_size: tuple[int, int] | None = None
    patch_size: tuple[int, int] | None = None
    channels: int | None = None
    interpolation: PositionResize | None = None
    dynamic_size: bool | None = None
    window: tuple[int, int] | None = None


def fit(state: State, config: ModelConfig, wanted: Wanted) -> tuple[State, ModelConfig, tuple[str, ...]]:
    """The fitted weights and config, and a note for each change. The given tensors are not modified."""
    state, notes = dict(state), list[str]()
    for name in ("patch_size", "interpolation", "dynamic_size", "window"):
        if getattr(wanted, name) is not None and name not in config.fit_options:
            raise CheckpointError(f"{config.title} has no {name} to change")
    if isinstance(config, ViTConfig):
        return state, _fit_vit(state, config, wanted, notes), tuple(notes)
    if isinstance(config, SegmenterConfig | GridDetectorConfig):
        return _fit_on_backbone(state, config, wanted)
    return state, _fit_other(state, config, wanted, notes), tuple(notes)


def _fit_vit(state: State, config: ViTConfig, wanted: Wanted, notes: list[str]) -> ViTConfig:
    if wanted.interpolation is not None:
        config = replace(config, numerics=replace(config.numerics, resize=wanted.interpolation))
    if wanted.dynamic_size is not None:
        config = replace(config, dynamic_size=wanted.dynamic_size)
    if wanted.channels is not None and wanted.channels != config.channels:
        _fit_channels(state, config.first_kernel, wanted.channels, notes)
    target = replace(
        config,
        channels=wanted.channels or config.channels,
        patch_size=wanted.patch_size or config.patch_size,
        image_size=wanted.image_size or config.image_size,
    )
    if target.patch_size != config.patch_size:
        state["patches.weight"] = resize_patch(state["patches.weight"], target.patch_size)
        notes.append(f"patch embedding resized from {_by(config.patch_size)} to {_by(target.patch_size)} by pseudo-inverse")
    if target.grid != config.grid:
        _fit_positions(state, config, target.grid, notes)
    elif target.image_size != config.image_size:
        notes.append(f"image size {_by(target.image_size)} instead of {_by(config.image_size)}: the same grid, positions kept")
    return _fit_vit_head(state, target, wanted, notes)


def _fit_on_backbone(
    state: State, config: SegmenterConfig | GridDetectorConfig, wanted: Wanted
) -> tuple[State, ModelConfig, tuple[str, ...]]:
    """Fit the backbone; the decoder stays, since it works on a grid of any size."""
    if wanted.new_head or wanted.num_classes not in (None, config.num_classes):
        task = "segment" if isinstance(config, SegmenterConfig) else "detect"
        raise CheckpointError(
            f"the decoder of {config.title} of {config.num_classes} classes cannot be replaced in its file",
            hint=f"`finetune` with task='{task}' starts from its backbone and makes a new decoder",
        )
    inner = {name.removeprefix("backbone."): tensor for name, tensor in state.items() if name.startswith("backbone.")}
    fitted, backbone, notes = fit(inner, config.backbone, replace(wanted, num_classes=None))
    assert isinstance(backbone, BackboneConfig)
    rest = {name: tensor for name, tensor in state.items() if not name.startswith("backbone.")}
    target = replace(config, backbone=backbone, image_size=backbone.image_size, channels=backbone.channels)
    return {**{f"backbone.{name}": tensor for name, tensor in fitted.items()}, **rest}, target, notes


def _fit_other(state: State, config: ModelConfig, wanted: Wanted, notes: list[str]) -> ModelConfig:
    """Fit a model that is not a ViT; `refit` of its family adapts what depends on the image size."""
    if wanted.channels is not None and wanted.channels != config.channels:
        _fit_channels(state, config.first_kernel, wanted.channels, notes)
        config = replace(config, channels=wanted.channels)
    options: dict[str, Any] = {} if wanted.window is None else {"window": wanted.window}
    target = replace(config, image_size=wanted.image_size or config.image_size, **options)
    if (refit := family_of(config).refit) is not None:
        notes += refit(state, config, target)
    config = target
    if _keeps_head(config, wanted):
        return config
    assert wanted.num_classes is not None or wanted.new_head
    classes = config.num_classes if wanted.num_classes is None else wanted.num_classes
    _replace_heads(state, ("head",), config.feature_width, classes, notes)
    return replace(config, num_classes=classes)


def _fit_channels(state: State, key: str, channels: int, notes: list[str]) -> None:
    at_least("channels", channels, 1)
    weight_OCPQ = state[key]
    state[key] = resize_channels(weight_OCPQ, channels)
    old = weight_OCPQ.shape[1]
    fourth = (old, channels) == (3, 4)
    how = "RGB kept and their mean for the fourth, times 3/4" if fourth else f"the mean kernel times {old}/{channels}"
    notes.append(f"{key} takes {channels} channels instead of {old}: {how}, so that the response to grey stays")


def _fit_positions(state: State, config: ViTConfig, grid: tuple[int, int], notes: list[str]) -> None:
    how, (g, j) = config.numerics.resize, config.grid
    _fit_bias(state, config, grid, notes)
    if config.position.grid is not None:
        notes.append(f"grid {_by(grid)} instead of {_by(config.grid)}: the model interpolates its positions as it runs")
        return
    match config.position.kind:
        case "learned-1d":
            table_LND = state["position.table"]
            placed = table_LND.shape[1] - g * j
            patches_LND = resize_grid(table_LND[:, placed:], config.grid, grid, how)
            state["position.table"] = torch.cat([table_LND[:, :placed], patches_LND], dim=1)
        case "learned-2d":
            state["position.rows"] = resize_grid(state["position.rows"], (g, 1), (grid[0], 1), how)
            state["position.columns"] = resize_grid(state["position.columns"], (1, j), (1, grid[1]), how)
        case "relative":
            raise CheckpointError(
                f"relative positions learned on a {_by(config.grid)} grid cannot be fitted to {_by(grid)}",
                hint="an offset in reading order means another direction there; train at the size you need",
            )
        case "none" | "sincos-1d" | "sincos-2d":
            if config.position.bias is None:
                notes.append(f"grid {_by(grid)} instead of {_by(config.grid)}: these positions need no fitting")
            return
    notes.append(f"positions interpolated from {_by(config.grid)} to {_by(grid)} ({how})")


def _fit_bias(state: State, config: ViTConfig, grid: tuple[int, int], notes: list[str]) -> None:
    """Fit the tables of a relative position bias; an MLP of the offsets needs none."""
    bias = config.position.bias
    if bias is None:
        return
    if bias.kind == "mlp":
        notes.append(f"grid {_by(grid)} instead of {_by(config.grid)}: the position bias is computed from offsets")
        return
    for key in [key for key in state if re.fullmatch(r"position\.(bias\.\d+|shared_bias)", key)]:
        state[key] = resize_bias(state[key], config.grid, grid)
    notes.append(f"tables of the position bias interpolated from {_by(config.grid)} to {_by(grid)}, as BEiT's authors do")


def _fit_vit_head(state: State, config: ViTConfig, wanted: Wanted, notes: list[str]) -> ViTConfig:
    if _keeps_head(config, wanted):
        return config
    if config.detection_classes:
        raise CheckpointError(
            "this model is an object detector (YOLOS): it gives boxes, and has no head for the class of an image",
            hint="`vitlab predict` prints its boxes; to classify, start from a ViT or DeiT",
        )
    classes = config.num_classes if wanted.num_classes is None else wanted.num_classes
    if classes == 0:
        _remove(state, ("head", "distill_head"))
        notes.append("head removed: the model gives features")
        return replace(config, num_classes=0)
    if config.representation_width:
        _remove(state, ("representation",))
        notes.append(f"the pre-training head's hidden layer of width {config.representation_width} removed (app. B.1.1)")
    heads = ("head", "distill_head") if config.distill_token else ("head",)
    _replace_heads(state, heads, replace(config, representation_width=0).feature_width, classes, notes)
    return replace(config, num_classes=classes, representation_width=0)


def _keeps_head(config: ModelConfig, wanted: Wanted) -> bool:
    if wanted.num_classes is not None:
        at_least("num_classes", wanted.num_classes, 0)
    return not wanted.new_head and wanted.num_classes in (None, config.num_classes)


def _replace_heads(state: State, heads: tuple[str, ...], width: int, classes: int, notes: list[str]) -> None:
    dtype = next(iter(state.values())).dtype
    _remove(state, heads)
    for head in heads:
        if classes:
            state |= {f"{head}.weight": torch.zeros(classes, width, dtype=dtype), f"{head}.bias": torch.zeros(classes, dtype=dtype)}
    notes.append(f"new head of {classes} classes, all zeros" if classes else "head removed: the model gives features")


def _remove(state: State, layers: tuple[str, ...]) -> None:
    for layer in layers:
        state.pop(f"{layer}.weight", None)
        state.pop(f"{layer}.bias", None)


def resize_channels(weight_OCPQ: Tensor, channels: int) -> Tensor:
    """Kernels for another number of channels: each new channel c gets W'_c = (1 / new) sum_k W_k over the old channels k.

    This is the mean of the old kernels times old / new, so that the same grey in every channel gives the same response as before.
    RGB with a fourth channel keeps its colours: W'_c = 3/4 W_c for red, green and blue, and 3/4 of their mean for the fourth.
    """
    old = weight_OCPQ.shape[1]
    mean_O1PQ = weight_OCPQ.mean(1, keepdim=True)
    if (old, channels) == (3, 4):
        return torch.cat([weight_OCPQ, mean_O1PQ], dim=1) * (3 / 4)
    return (mean_O1PQ * (old / channels)).expand(-1, channels, -1, -1).contiguous()
