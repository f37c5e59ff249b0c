"""`convert`: from one format to another. The new file is read back and compared bit for bit before it gets its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import torch

from vitlab.checkpoints.checkpoint import check_finite
from vitlab.checkpoints.containers import read_file, write_npz, write_safetensors, write_torch
from vitlab.checkpoints.containers.safetensors_file import Check, open_safetensors
from vitlab.checkpoints.formats import LAYOUTS, TORCH_KEYS
from vitlab.checkpoints.formats.contract import Hints, Reading, Written
from vitlab.checkpoints.native import REPAIR, HeaderFacts, read_native, sealed_header, write_native
from vitlab.checkpoints.reading import NATIVE, Source, read_source
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import CheckpointError, did_you_mean, pair
from vitlab.io.atomic import replacing, replacing_folder

State = Mapping[str, torch.Tensor]

_TORCH = (".pth", ".pt")
_FOLDERS = ("huggingface", "timm")  # formats whose own programs open a folder; timm's is one file where a file's name is given
_TOLD_ALREADY = ("numerics", "stem", "standardise_eps", "norm_eps")  # the formats' own notes speak of these


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str,
    heads: int | None = None,
    grid: int | tuple[int, int] | None = None,
    profile: str | None = None,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Write the checkpoint `source` in the format `to`; returns notes of what was guessed, converted and left out.

    The weights keep their dtype and every bit; NaN and Inf are refused. The destination is one file, for `huggingface` a folder,
    and for `timm` a folder if its name has no ending; the formats of authors whose code reads torch files are written as one if the
    name ends in .pth or .pt. A destination that exists is refused unless `overwrite`. It appears only after it was read back and
    found to hold exactly the same weights.
    """
    place = Path(destination)
    if to not in (NATIVE, *LAYOUTS):
        known = [NATIVE, *LAYOUTS]
        raise CheckpointError(f"no format called {to!r}", hint=did_you_mean(to, known) or f"one of {', '.join(known)}")
    if place.exists() and not overwrite:
        raise CheckpointError(f"{place} exists already", hint="give another name, or `overwrite=True` to replace it")
    _check_name(place, to)
    found = read_source(source, Hints(heads=heads, grid=None if grid is None else pair("grid", grid), profile=profile))
    reading = replace(found.reading, state={name: tensor.contiguous() for name, tensor in found.reading.state.items()})
    check_finite(reading.state, where=f"cannot convert {source}", hint=REPAIR)
    if to == NATIVE:
        return _to_native(place, reading, found)
    written = LAYOUTS[to].write(reading.state, reading.config, reading.preprocess, reading.labels)
    folder = _is_folder(place, to)
    if folder and written.no_folder is not None:
        raise CheckpointError(
            f"{to} cannot open this model as a folder: {written.no_folder}",
            hint=f"write its weights alone, to {place.with_suffix('.safetensors')}",
        )
    back = (_write_folder if folder else _write_file)(place, written, reading, to)
    return (
        *reading.notes,
        *written.notes,
        *(() if folder else written.alone),
        *_left_out(found, back, to),
        *_torch_notes(place, to),
    )


def _to_native(place: Path, reading: Reading, found: Source) -> tuple[str, ...]:
    facts = HeaderFacts(
        config=reading.config,
        preprocess=reading.preprocess,
        labels=reading.labels,
        recipe=found.recipe,
        metrics=found.metrics,
        notes=(*found.history, *reading.notes),
    )

    def check(unfinished: Path) -> None:
        with open_safetensors(unfinished) as opened:
            state, facts_back = read_native(opened)
        _same(reading.state, state, place)
        if sealed_header(state, facts_back).text != sealed_header(reading.state, facts).text:
            raise CheckpointError(f"{place} would not say what it should: nothing was written")

    write_native(place, reading.state, facts, check=check)
    return reading.notes


def _write_file(place: Path, written: Written, reading: Reading, to: str) -> ModelConfig:
    """Write a file of another format, if reading it back gives the same tensors and state; returns the config that it gives."""
    config: list[ModelConfig] = []

    def check(unfinished: Path) -> None:
        config.append(_read_back(unfinished, written, reading, to, place))

    _write_tensors(place, written, to, check)
    return config[0]


def _write_folder(place: Path, written: Written, reading: Reading, to: str) -> ModelConfig:
    """The same for a folder, with the JSON files beside the tensors."""
    names = (written.weights_name, *written.sidecars)
    with replacing_folder(place, needed=_bytes(written), names=names) as folder:
        _write_tensors(folder / written.weights_name, written, to, None)
        for name, value in written.sidecars.items():
            _write_json(folder / name, value)
        return _read_back(folder, written, reading, to, place)


def _write_tensors(place: Path, written: Written, to: str, check: Check | None) -> None:
    if place.suffix in _TORCH:
        write_torch(place, written.tensors, under=TORCH_KEYS[to], check=check)
    elif written.container == "npz":
        write_npz(place, written.tensors, check=check)
    else:
        write_safetensors(place, written.tensors, written.metadata, check=check)


def _write_json(place: Path, value: Json) -> None:
    text = (json.dumps(value, indent=2, allow_nan=False) + "\n").encode("ascii")
    with replacing(place, needed=len(text)) as file:
        file.write(text)


def _read_back(unfinished: Path, written: Written, reading: Reading, to: str, place: Path) -> ModelConfig:
    """Read the new file and compare every tensor with its source; returns the config that reading gives."""
    raw = read_file(unfinished)
    if not unfinished.is_dir():  # other files of that folder are not part of it
        raw = replace(raw, sidecar=None, preprocessor=None)
    _same(written.tensors, raw.tensors, place)
    hints = Hints()
    if isinstance(reading.config, ViTConfig):
        hints = Hints(heads=reading.config.heads, grid=reading.config.grid)
    elif isinstance(reading.config, SwinConfig):
        hints = Hints(grid=reading.config.grids[0])
    try:
        back = LAYOUTS[to].read(raw, hints)
    except CheckpointError as error:
        if place.suffix not in _TORCH:
            raise
        raise CheckpointError(
            f"a torch file of this model would not say enough to be read again: {error.message}",
            hint=f"write to {place.with_suffix('.safetensors')}, whose header says the rest",
        ) from error
    _same(reading.state, back.state, place)
    return back.config


def _same(wanted: State, found: State, place: Path) -> None:
    """Refuse a difference in names, types, shapes or any bit."""
    odd = sorted(wanted.keys() ^ found.keys())
    odd += [name for name in wanted.keys() & found.keys() if not _identical(wanted[name], found[name])]
    if odd:
        shown = ", ".join(odd[:8]) + (", ..." if len(odd) > 8 else "")
        raise CheckpointError(f"{place} would not hold the same weights, so it was not written: {shown}")


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_as_bytes(one), _as_bytes(other))  # as bytes: NaN equals itself, and 0 is not -0


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _left_out(found: Source, back: ModelConfig, to: str) -> tuple[str, ...]:
    """Notes of what the new file cannot store, so that its readers assume something else."""
    config = found.reading.config
    notes = [
        f"{to} does not say {field.name}={getattr(config, field.name)}: its readers assume {getattr(back, field.name, None)}"
        for field in fields(config)
        if field.name not in _TOLD_ALREADY and getattr(config, field.name) != getattr(back, field.name, None)
    ]
    lost = [name for name, value in (("recipe", found.recipe), ("metrics", found.metrics)) if value is not None]
    if lost:
        notes.append(f"{to} cannot store {' and '.join(lost)}: left out")
    return tuple(notes)


def _torch_notes(place: Path, to: str) -> tuple[str, ...]:
    """What to know about a format whose authors' code reads torch files."""
    if to not in TORCH_KEYS:
        return ()
    if place.suffix in _TORCH:
        return ("a torch file has no place for settings, labels and preprocessing: they are guessed when it is read",)
    return (f"the authors' code reads torch files: write to {place.with_suffix('.pth').name} for one",)


def _bytes(written: Written) -> int:
    return sum(tensor.nbytes for tensor in written.tensors.values())


def _is_folder(place: Path, to: str) -> bool:
    """Whether this format, under this name, is a folder."""
    return to in _FOLDERS and (to != "timm" or not place.suffix)


def _check_name(place: Path, to: str) -> None:
    """Refuse a name with the ending of another format: other programs trust it."""
    if _is_folder(place, to):
        if place.suffix in (".safetensors", ".npz", ".json", ".bin", ".pt", ".pth"):
            raise CheckpointError(
                f"{to} is a folder of files, and {place.name} is a file's name", hint=f"write to {place.with_suffix('')}"
            )
        return
    ending = ".npz" if to in ("jax-npz", "big-vision", "bit-npz") else ".safetensors"
    if place.suffix != ending and not (to in TORCH_KEYS and place.suffix in _TORCH):
        raise CheckpointError(
            f"{to} is written as {ending}, and {place.name} has another ending", hint=f"write to {place.with_suffix(ending)}"
        )
