"""What the files of the authors of Swin and ConvNeXt have in common: read without a config, written as safetensors."""

from __future__ import annotations

from collections.abc import Iterable

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Found, Reading, State, Written
from vitlab.checkpoints.formats.header import header_of, metadata_of
from vitlab.checkpoints.formats.infer import cropped, described, zero_head
from vitlab.checkpoints.table import Row, native_shapes, to_ours, to_theirs
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.config.model import ModelConfig


def reading_of(raw: RawFile, found: Found, rows: Iterable[Row], name: str, notes: tuple[str, ...]) -> Reading:
    """The model with its authors' preprocessing."""
    config, header = found.config, header_of(raw)
    state = to_ours(found.tensors, list(rows), native_shapes(config), where=raw.path.name)
    preprocess = cropped(config.image_size, config.channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    fed: tuple[str, ...] = (f"preprocessing is that of the authors' evaluation ({described(preprocess)}): the file does not say",)
    labels = None
    if header is not None:
        preprocess, fed, labels = header.preprocess, (), header.labels_for(config.num_classes)
    return Reading(
        format=name,
        config=config,
        state=state,
        preprocess=preprocess,
        labels=labels,
        notes=(*notes, *found.notes, *zero_head(state), *fed),
    )


def written_of(
    state: State, config: ModelConfig, rows: Iterable[Row], preprocess: Preprocess, labels: tuple[str, ...] | None
) -> Written:
    """The model under its authors' names, in one safetensors file."""
    return Written(
        container="safetensors",
        tensors=to_theirs(state, list(rows), native_shapes(config)),
        metadata=metadata_of(config, preprocess, labels),
    )
