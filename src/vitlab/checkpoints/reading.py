"""`load` and `describe`: a checkpoint of any format is translated, fitted and loaded strictly; notes say what was guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from vitlab.checkpoints.fit import Wanted, fit
from vitlab.checkpoints.formats import FORMATS
from vitlab.checkpoints.formats.contract import Hints, Reading
from vitlab.checkpoints.formats.header import KEY as CONVERTED
from vitlab.checkpoints.formats.huggingface import KINDS, named_by, unknown_kind
from vitlab.checkpoints.hub import address_of, fetch, is_hub
from vitlab.checkpoints.native import HeaderFacts, is_native, read_facts, read_native, summary
from vitlab.checkpoints.parts import parts_in, read_weights
from vitlab.checkpoints.remote_copy import header_copy, local_copy
from vitlab.config.class_names import usual_names
from vitlab.config.data import Preprocess, feeding, named_classes
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.config.vit import PositionResize, ViTConfig, with_profile
from vitlab.errors import CheckpointError, pair
from vitlab.io import address as io_address
from vitlab.io.address import is_address
from vitlab.io.display import line_on_terminal
from vitlab.io.files import is_folder, open_regular
from vitlab.models.batch_norm import STATISTICS
from vitlab.models.families import build_on_meta

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


State = dict[str, torch.Tensor]
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
    return given, ("preprocessing as given, not as in the file",) if given != of_file else ()


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
