"""From a path or Hub address to a checkpoint understood: which format it is in, and what it holds under our names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from vitlab.checkpoint.files import RawFile, read_file
from vitlab.checkpoint.files.folder import weights_in
from vitlab.checkpoint.files.safetensors_file import OpenFile
from vitlab.checkpoint.files.safetensors_header import read_header
from vitlab.checkpoint.files.sniff import is_folder, kind_of, open_regular
from vitlab.checkpoint.formats import FORMATS
from vitlab.checkpoint.formats.contract import Reading, Told
from vitlab.checkpoint.formats.header import KEY as CONVERTED
from vitlab.checkpoint.hub import fetch, is_hub
from vitlab.checkpoint.native import Facts, is_native, read_facts, read_native, summary
from vitlab.checkpoint.parts import parts_in, read_weights
from vitlab.config.feed import feeding
from vitlab.config.model import ModelConfig, ViTConfig, with_profile
from vitlab.config.text import Json
from vitlab.config.variants import called
from vitlab.errors import CheckpointError

NATIVE = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint read but not built: `reading` in our names, and what only a native file knows.

    `metadata` is what the file's header holds beside what is in `reading`.
    """

    reading: Reading
    recipe: dict[str, Json] | None = None
    metrics: dict[str, float] | None = None
    metadata: dict[str, Json]


def read_source(path: str | Path, told: Told, *, values: bool = True) -> Source:
    """Read a file, folder or `hub:owner/name` of any known format, told from its content.

    Without `values`, only headers are read and the tensors of the reading are on the meta device.
    """
    fetched: tuple[str, ...] = ()
    if is_hub(path):
        folder, fetched = fetch(str(path))
        path = folder
    place = Path(path)
    source = _read_native(place, told, values) or _read_foreign(place, told, values)
    return replace(source, reading=replace(source.reading, notes=(*fetched, *source.reading.notes)))


def _read_native(place: Path, told: Told, values: bool) -> Source | None:
    """The native checkpoint at `place`, or None if what is there is not one."""
    if is_folder(place):
        if parts := parts_in(place, "model"):
            return _read_parts(place, parts, told, values)
        place, _ = weights_in(place)
    with open_regular(place) as file:
        if kind_of(file, place) != "safetensors":
            return None
        opened = OpenFile(path=place, header=read_header(file, place), file=file)
        if not is_native(opened.header.metadata):
            return None
        state, facts = read_native(opened) if values else (opened.shapes(), read_facts(opened))
    return _native_source(place, told, state, facts, metadata=summary(opened, facts))


def _read_parts(folder: Path, parts: tuple[Path, ...], told: Told, values: bool) -> Source:
    """What the processes of a training run wrote side by side, put together."""
    state, facts = read_weights(parts, values=values)
    source = _native_source(folder, told, state, facts, metadata={"parts": len(parts)})
    notes = (f"put together from the parts of {len(parts)} processes", *source.reading.notes)
    return replace(source, reading=replace(source.reading, notes=notes))


def _native_source(place: Path, told: Told, state: dict[str, Tensor], facts: Facts, *, metadata: dict[str, Json]) -> Source:
    return Source(
        reading=Reading(
            format=NATIVE,
            config=_profiled(facts, told, place),
            state=state,
            preprocess=facts.preprocess,
            labels=facts.labels,
            notes=facts.notes if told.profile is None else (*facts.notes, f"numerics of the profile {told.profile!r}, as told"),
        ),
        recipe=facts.recipe,
        metrics=facts.metrics,
        metadata=metadata,
    )


def _profiled(facts: Facts, told: Told, place: Path) -> ModelConfig:
    """The config with the told profile; a native file says its heads and grid itself."""
    config = facts.config
    said = {"heads": config.heads, "grid": config.grid} if isinstance(config, ViTConfig) else {"heads": None, "grid": None}
    for name, value in (("heads", told.heads), ("grid", told.grid)):
        if value is not None and value != said[name]:
            raise CheckpointError(f"{place} says {name}={said[name]} itself; {name}={value} contradicts it")
    if told.profile is None:
        return config
    if not isinstance(config, ViTConfig):
        raise CheckpointError(f"{place} is {called(config)}: profiles are for ViTs", hint="leave profile out")
    return with_profile(config, told.profile)


def _read_foreign(place: Path, told: Told, values: bool) -> Source:
    raw = read_file(place, values=False)  # no gigabytes are read to find that nobody knows them
    found = [name for name, layout in FORMATS.items() if layout.matches(raw)]
    if not found:
        raise _unknown(raw)
    if len(found) > 1:
        raise CheckpointError(f"{place} could be {' or '.join(found)}: which one is not clear from its keys")
    reading = FORMATS[found[0]].read(read_file(place) if values else raw, told)
    preprocess, fed = feeding(reading.preprocess, reading.config)  # a folder's two JSON files need not agree
    metadata: dict[str, Json] = {key: text for key, text in raw.metadata.items() if key != CONVERTED}  # that is in the reading
    return Source(reading=replace(reading, preprocess=preprocess, notes=(*raw.notes, *reading.notes, *fed)), metadata=metadata)


def _unknown(raw: RawFile) -> CheckpointError:
    first = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in list(raw.tensors.items())[:6])
    return CheckpointError(
        f"{raw.path} holds {len(raw.tensors):,} tensors of no layout that vitlab knows; the first are {first}",
        hint=f"tried {', '.join([NATIVE, *FORMATS])}",
    )
