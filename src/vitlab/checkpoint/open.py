"""Any checkpoint -> a model ready to use: translated, fitted, then loaded strictly. What was changed or guessed is in its notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vitlab.checkpoint.contents import Checkpoint, Description
from vitlab.checkpoint.fit import Wanted, fit
from vitlab.checkpoint.formats.contract import Told
from vitlab.checkpoint.match import check_labels, check_preprocess, check_state
from vitlab.checkpoint.source import read_source
from vitlab.config.check import pair
from vitlab.config.data import Preprocess
from vitlab.config.feed import feeding
from vitlab.config.model import ModelConfig, PositionResize
from vitlab.errors import CheckpointError
from vitlab.model.assemble import skeleton
from vitlab.model.batchnorm import STATISTICS

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
) -> Checkpoint:
    """The checkpoint at a path or at `hub:owner/name[@revision]`, its format told from its content, the model in evaluation mode.

    What the file does not say can be told: `heads`, `grid` (patches down, across), `profile` (whose numerics: official, timm,
    huggingface, torchvision), `labels` (one a class), `preprocess`.
    What shall be otherwise is fitted: `num_classes` (another number gets a head of zeros, 0 none; `new_head` also for the same
    number), `image_size`, `patch_size` and `channels` of the pictures, `interpolation` of positions, `dynamic_size`, and the
    `window` of a Swin Transformer, in patches.
    The weights become `dtype`, or stay as in the file if it is None.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise CheckpointError(f"weights cannot be {dtype}", hint="float32, bfloat16, float16 or float64")
    told = Told(heads=heads, grid=None if grid is None else pair("grid", grid), profile=profile)
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
    source = read_source(path, told)
    reading = source.reading
    state, typed = _as_type(reading.state, dtype)
    config, fitted = reading.config, tuple[str, ...]()
    if wanted != Wanted():
        state, config, fitted = fit(state, config, wanted)
    fed, refed = _fed(reading.preprocess, reading.config, config, preprocess)
    named, naming = _labels(reading.labels, reading.config, config, new_head=new_head, given=labels)
    if fitted and source.metrics is not None:  # what the old model reached says nothing of this one
        fitted = (*fitted, "metrics of the model before fitting left out")
    check_state(state, config, where=str(path))
    model = skeleton(config)
    model.load_state_dict({name: tensor.contiguous() for name, tensor in state.items()}, strict=True, assign=True)
    return Checkpoint(
        model=model.eval(),
        config=config,
        preprocess=fed,
        labels=named,
        notes=(*reading.notes, *typed, *fitted, *refed, *naming),
        format=reading.format,
        recipe=source.recipe,
        metrics=None if fitted else source.metrics,
    )


def describe(path: str | Path, *, heads: int | None = None, grid: Size | None = None, profile: str | None = None) -> Description:
    """What a checkpoint is, from its headers: nothing is built and no weights are read, so none are checked either."""
    told = Told(heads=heads, grid=None if grid is None else pair("grid", grid), profile=profile)
    source = read_source(path, told, values=False)
    reading = source.reading
    return Description(
        format=reading.format,
        config=reading.config,
        parameters=sum(tensor.numel() for name, tensor in reading.state.items() if not name.endswith(STATISTICS)),
        dtypes=_types(reading.state),
        preprocess=reading.preprocess,
        labels=reading.labels,
        notes=reading.notes,
        metadata=source.metadata,
    )


def _as_type(state: State, dtype: torch.dtype | None) -> tuple[State, tuple[str, ...]]:
    """The weights in one type, with a note where that is another than in the file."""
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
    """How the fitted model is fed: as given, else as the file says, made for the new size and channels."""
    if given is None:
        return feeding(of_file, after, resized=after.image_size != before.image_size)
    check_preprocess(given, after)
    return given, ("preprocessing as given, not as in the file",) if given != of_file else ()


def _labels(
    of_file: tuple[str, ...] | None, before: ModelConfig, after: ModelConfig, *, new_head: bool, given: Sequence[str] | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The labels given, else the file's as long as its head is still there."""
    if given is not None:
        if isinstance(given, str):
            raise CheckpointError(f"labels={given!r} is one text", hint="give a list of texts")
        check_labels(given, after.num_classes)
        return tuple(given), ("labels as given, not as in the file",) if of_file not in (None, tuple(given)) else ()
    if of_file is not None and (new_head or after.num_classes != before.num_classes):
        return None, ("labels of the old head left out",)
    return of_file, ()
