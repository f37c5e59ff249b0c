"""The files of ConvNeXt's authors (facebookresearch/ConvNeXt): a torch file with the weights under "model"."""

from __future__ import annotations

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.authors import reading_of, written_of
from vitlab.checkpoints.formats.contract import Hints, Reading, State, Written, not_of
from vitlab.checkpoints.formats.convnext_layout import AUTHORS, convnext_config, convnext_rows, names_of
from vitlab.checkpoints.formats.header import adopted_family, header_of
from vitlab.checkpoints.formats.infer import numerics_of, unwrapped
from vitlab.checkpoints.formats.timm_families import Found
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import PROFILES

FORMAT = "convnext"


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of the authors' ConvNeXt."""
    names = names_of(unwrapped(raw)[0])
    return names is not None and names.block == AUTHORS.block


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of an authors' file."""
    tensors, notes = unwrapped(raw)
    numerics_of(hints, PROFILES["official"])  # refuses a profile nobody knows
    where, header, names = raw.path.name, header_of(raw), names_of(tensors)
    assert names is not None
    said = None if header is None else header.config.image_size
    config, guessed = convnext_config(tensors, names, hints, said, where=where)
    if header is not None:
        config = adopted_family(config, header, where=where)
    return reading_of(raw, Found(config=config, tensors=tensors, notes=tuple(guessed)), convnext_rows(config, names), FORMAT, notes)


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under the authors' names."""
    if not isinstance(config, ConvNeXtConfig):
        raise not_of(FORMAT, "ConvNeXts", config)
    return written_of(state, config, convnext_rows(config, AUTHORS), preprocess, labels)
