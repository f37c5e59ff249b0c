"""The files of Swin's authors (microsoft/Swin-Transformer): a torch file with the weights under "model"."""

from __future__ import annotations

from dataclasses import replace

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.authors import reading_of, written_of
from vitlab.checkpoints.formats.contract import Hints, Reading, State, Written, not_of
from vitlab.checkpoints.formats.header import adopted_family, header_of
from vitlab.checkpoints.formats.infer import numerics_of, unwrapped
from vitlab.checkpoints.formats.swin_layout import AUTHORS, Said, names_of, swin_config, swin_rows, without_computed
from vitlab.checkpoints.formats.timm_families import Found
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import PROFILES

FORMAT = "swin"


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of the authors' SwinTransformer."""
    return names_of(unwrapped(raw)[0]) is AUTHORS


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of an authors' file; its indices and masks are not read, since they are computed."""
    tensors, notes = unwrapped(raw)
    numerics_of(hints, PROFILES["official"])  # refuses a profile nobody knows
    where, header, kept = raw.path.name, header_of(raw), without_computed(tensors)
    stated = None if header is None else header.config
    said = Said(image_size=stated.image_size, window=stated.window) if isinstance(stated, SwinConfig) else Said()
    config, guessed = swin_config(kept, AUTHORS, hints, said, where=where)
    config = replace(config, pad_first=hints.profile in (None, "official"))
    if header is not None:
        config = adopted_family(config, header, where=where)
    return reading_of(raw, Found(config=config, tensors=kept, notes=tuple(guessed)), swin_rows(config, AUTHORS), FORMAT, notes)


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under the authors' names."""
    if not isinstance(config, SwinConfig):
        raise not_of(FORMAT, "Swin Transformers", config)
    return written_of(state, config, swin_rows(config, AUTHORS), preprocess, labels)
