"""A checkpoint: a model with its preprocessing and the names of its classes; and the checks that they fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from vitlab.config.data import Preprocess, is_detector, takes_one_size, why_not_packed
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.errors import CheckpointError
from vitlab.models.families import build_on_meta
from vitlab.models.model import Model


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Checkpoint:
    """A model with everything needed to use it.

    `config` is what `model` was built from, `preprocess` how images become its input, `labels` the names of the classes in the
    order of the logits. `notes` says what was guessed, converted or changed when the file was read, `history` what was noted when
    it was made; `format` is the format of the file. `recipe` is the training run's config as JSON and `metrics` are its results,
    if they are known.
    `allow_nonfinite` says that NaN and Inf are accepted in the weights and in what the model computes.
    """

    model: Model
    config: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    format: str = "native"
    recipe: dict[str, Json] | None = None
    metrics: dict[str, float] | None = None
    allow_nonfinite: bool = False

    def __repr__(self) -> str:
        size = _by(self.preprocess.image_size)
        return f"<Checkpoint: {self.config.name or self.config.family}, {self.config.num_classes:,} classes, {size} pixels>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the header of a file says; the model is not built.

    `parameters` counts the numbers in the tensors; `dtypes` are the types that they are stored in. `metadata` is the rest of the
    header: of a native file its version, the SHA-256 of the tensors, recipe and metrics. `notes` are about reading it, `history`
    about how it was made.
    """

    format: str
    config: ModelConfig
    parameters: int
    dtypes: tuple[str, ...]
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    notes: tuple[str, ...]
    history: tuple[str, ...]
    metadata: dict[str, Json]


MAX_POSITIONS = 1 << 24  # numbers of fixed positions: the model computes them, so that the file's size is no bound
_SHOWN = 20
_LISTED = 8


def check_state(state: Mapping[str, torch.Tensor], config: ModelConfig, *, where: str) -> None:
    """Refuse weights that are not exactly those of the model; the error names what is missing, unknown or of another shape."""
    _check_extent(config, len(state), where)
    try:
        wanted = {name: tuple(tensor.shape) for name, tensor in build_on_meta(config).state_dict().items()}
    except RuntimeError as error:  # a number of elements that does not fit into 64 bits
        raise CheckpointError(f"{where}: the config describes a model that cannot be: {str(error)[:120]}") from error
    faults = [f"{name} is missing" for name in wanted if name not in state]
    faults += [f"{name} is unknown" for name in state if name not in wanted]
    faults += [
        f"{name} is {_by(state[name].shape)} and should be {_by(shape)}"
        for name, shape in wanted.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise CheckpointError(f"{where}: the weights are not those of the model: {'; '.join(faults[:_SHOWN])}{more}")
    odd = [
        f"{name} is {str(tensor.dtype).removeprefix('torch.')}" for name, tensor in state.items() if not tensor.is_floating_point()
    ]
    if odd:
        raise CheckpointError(f"{where}: weights must be floating-point numbers: {'; '.join(odd[:_SHOWN])}")


def nonfinite_tensors(state: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of the tensors that hold NaN or Inf. One pass: 0.02 s of CPU time for the 86 million weights of ViT-B."""
    return [name for name, tensor in state.items() if not _is_finite(tensor)]


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.numel():
        return True
    wide = tensor.to(torch.float32) if tensor.dtype.itemsize == 1 else tensor  # torch has no minimum of float8
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(wide))  # NaN is the minimum of what holds it


def check_finite(state: Mapping[str, torch.Tensor], *, where: str, hint: str) -> None:
    """Refuse weights that hold NaN or Inf, naming the tensors."""
    if odd := nonfinite_tensors(state):
        raise CheckpointError(f"{where}: the weights hold NaN or Inf: {listed(odd)}", hint=hint)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")


def check_labels(labels: Sequence[str] | None, num_classes: int) -> None:
    """Refuse another number of labels than of classes."""
    if labels is not None and len(labels) != num_classes:
        raise CheckpointError(
            f"{len(labels)} labels for a head of {num_classes} classes",
            hint="give one label for each class, in the order of the logits",
        )


def of_one_size(checkpoint: Checkpoint) -> tuple[Checkpoint, tuple[str, ...]]:
    """The checkpoint with preprocessing that gives all images of a batch one size, and a note where that is not its own."""
    if checkpoint.preprocess.resize not in ("fit", "native"):
        return checkpoint, ()
    height, width = checkpoint.config.image_size
    squashed = replace(checkpoint.preprocess, resize="squash", image_size=(height, width))
    whose = "features of a detector" if checkpoint.preprocess.resize == "fit" else "made for the native aspect ratio"
    note = f"{whose}: images are squashed to {height}x{width}, so that a batch has one size"
    return replace(checkpoint, preprocess=squashed), (note,)


def check_preprocess(preprocess: Preprocess, config: ModelConfig) -> None:
    """Refuse preprocessing whose images the model does not take."""
    if preprocess.resize == "fit" and not is_detector(config):
        raise CheckpointError(
            "resize='fit' gives each image a size of its own, which only a detector takes",
            hint="resize='pad' keeps the whole image",
        )
    if preprocess.resize == "native" and (why := why_not_packed(config)) is not None:
        raise CheckpointError(
            f"resize='native' packs images of different shapes, which this model does not take: {why}",
            hint="resize='squash' or 'pad'",
        )
    if preprocess.channels != config.channels:
        raise CheckpointError(f"preprocessing gives {preprocess.channels} channels and the model takes {config.channels}")
    if takes_one_size(config) and preprocess.image_size != config.image_size:
        raise CheckpointError(
            f"preprocessing gives {_by(preprocess.image_size)} pixels and the model takes {_by(config.image_size)}",
            hint="load with image_size=, or with dynamic_size=True",
        )


def _check_extent(config: ModelConfig, tensors: int, where: str) -> None:
    """Refuse a config whose model would be far larger than the file, before it is built on the meta device."""
    if config.block_count > tensors:
        raise CheckpointError(f"{where}: the config has {config.block_count:,} layers and there are only {tensors:,} tensors")
    if config.computed_numbers > MAX_POSITIONS:
        raise CheckpointError(f"{where}: the config makes the model compute {config.computed_numbers:,} numbers, beyond any model")


def _by(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
