"""What vitlab adds to the header of a .safetensors file of another format, so that it guesses nothing when it reads the file again.

The tensors decide: the header adds what they cannot show, and nothing is allocated in a size that only the header states.
The files of the authors of Swin and ConvNeXt, which say nothing else, are read and written here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Found, Hints, Reading, Row, State, Written, native_shapes, to_ours, to_theirs
from vitlab.checkpoints.formats.infer import cropped, described, making, zero_head
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import from_json, parsed, to_json
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import CheckpointError, ConfigError

KEY = "vitlab_converted"
Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The config, preprocessing and labels of the model that was converted."""

    config: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None

    def labels_for(self, classes: int) -> tuple[str, ...] | None:
        """The labels, if there is one for each class of the head in the tensors."""
        return self.labels if self.labels is not None and len(self.labels) == classes else None


def metadata_of(config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> dict[str, str]:
    """The metadata of a safetensors header: `format`, which PyTorch libraries expect, and vitlab's."""
    header = Header(config=config, preprocess=preprocess, labels=labels)
    return {"format": "pt", KEY: json.dumps(to_json(header), allow_nan=False)}


def header_of(raw: RawFile) -> Header | None:
    """What `convert` wrote into the header, or None."""
    if KEY not in raw.metadata:
        return None
    try:
        header = from_json(Header, parsed(raw.metadata[KEY]))
    except ConfigError as error:
        raise CheckpointError(f"{raw.path.name}: the header's {KEY} is unusable: {error.message}", hint=error.hint) from error
    except ValueError as error:  # also a number of thousands of digits
        raise CheckpointError(f"{raw.path.name}: the header's {KEY} is not JSON", hint="the file is damaged") from error
    assert isinstance(header, Header)
    return header


def adopted(found: ModelConfig, header: Header, hints: Hints, *, where: str) -> ModelConfig:
    """The config `found` from the tensors, completed from the header; what the caller gives comes first."""
    stated = header.config
    if isinstance(found, ViTConfig) and isinstance(stated, ViTConfig):
        if (found.width, found.depth, found.mlp_width) == (stated.width, stated.depth, stated.mlp_width):
            with making(where):
                return _adopted_vit(found, stated, hints)
    elif isinstance(found, ResNetConfig) and isinstance(stated, ResNetConfig) and found.blocks == stated.blocks:
        eps = stated.standardise_eps if hints.profile is None else found.standardise_eps
        with making(where):
            return replace(
                found,
                image_size=stated.image_size,
                head_bias=stated.head_bias,
                groups=stated.groups,
                standardise_eps=eps,
                norm_eps=stated.norm_eps,
            )
    elif not isinstance(found, ViTConfig | ResNetConfig):
        return adopted_family(found, header, where=where)
    raise _another(where)


def adopted_family(found: Config, header: Header, *, where: str) -> Config:
    """The config of the header, if the tensors are of that model; classes and channels are those of the tensors."""
    stated = header.config
    if not isinstance(stated, type(found)) or _shown_by_tensors(stated) != _shown_by_tensors(found):
        raise _another(where)
    with making(where):
        return replace(stated, num_classes=found.num_classes, channels=found.channels)


def _shown_by_tensors(config: ModelConfig) -> tuple[object, ...]:
    """The choices of a model that its tensors show."""
    match config:
        case SwinConfig():
            sizes = (config.width, config.depths, config.heads, config.mlp_ratio, config.patch_size, config.qkv_bias)
            return (*sizes, config.windows)
        case ConvNeXtConfig():
            scaled = config.layer_scale > 0
            return config.depths, config.widths, config.kernel, config.patch_size, config.mlp_ratio, scaled
        case EfficientNetConfig():
            return config.stages, config.stem_width, config.head_width
        case _:
            return ()


def _another(where: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: the header describes another model than the tensors make",
        hint="the tensors were changed after vitlab wrote the file: save them without its header",
    )


def _adopted_vit(found: ViTConfig, stated: ViTConfig, hints: Hints) -> ViTConfig:
    config = replace(
        found,
        head_bias=stated.head_bias,
        dropout=stated.dropout,
        drop_path=stated.drop_path,
        patch_dropout=stated.patch_dropout,
        layer_scale=stated.layer_scale if found.layer_scale and stated.layer_scale else found.layer_scale,
        dynamic_size=stated.dynamic_size,
    )
    if found.grid == stated.grid and found.step == stated.step:
        config = replace(config, pad=stated.pad, image_size=stated.image_size)
    if hints.profile is not None:
        return config
    stem = config.stem
    if stem is not None and stated.stem is not None:
        stem = replace(stated.stem, blocks=stem.blocks, width=stem.width)
    return replace(config, numerics=stated.numerics, stem=stem)


# --- files of the authors of Swin and ConvNeXt: read without a config, written as safetensors ----------------------------------


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
