"""Checkpoints and run folders at an address (s3://bucket/runs/a), as local copies that every other function reads.

A run folder on a server holds what one on disk holds (training/run_folder.py), with `last` and `best` as small files that name a
checkpoint. Of a run, only what a model needs is copied: its config and the finished model, or the weights of the last checkpoint.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from vitlab.checkpoints.containers.safetensors_file import MAX_HEADER
from vitlab.errors import CheckpointError, DataError
from vitlab.io.address import Address
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.files import SMALL_FILE
from vitlab.io.remote import Info, copies_of, fetch, files_below, info, is_file, read_now, read_range

RUN, SWEEP, MODEL, LAST, BEST = "run.json", "sweep.json", "model.safetensors", "last", "best"
FACTS = (RUN, "data.npz", "events.jsonl")
_POINTER = re.compile(r"checkpoints/step-(\d+)")
_SMALL = 2**12
_PREFIX = 8  # bytes of a safetensors file that state the length of its header
_BESIDE = ("config.json", "preprocessor_config.json")
_WEIGHTS = (".safetensors", ".npz", ".pt", ".pth", ".bin", ".json")
_TRAINING_ONLY = ("optimizer", "extra")
_TRIES = 5  # a running run deletes old checkpoints while they are copied


def local_copy(address: Address, *, progress: ProgressCallback = silent) -> tuple[Path, tuple[str, ...]]:
    """The file, the folder of weights or the run at an address, on disk; and a note that says where it is from."""
    found = None if address.is_folder else info(address, error=CheckpointError)
    note = (f"from {address}",)
    if found is not None:
        path = fetch(address, error=CheckpointError, progress=progress)
        for name in _BESIDE:
            with suppress(DataError, CheckpointError):
                fetch(address.parent / name)
        return path, note
    names = files_below(address, error=CheckpointError)
    if SWEEP in names:
        return local_copy(address / "final", progress=progress)
    if RUN in names:
        return copied_run(address, progress=progress), note
    weights = [name for name in names if "/" not in name and name.endswith(_WEIGHTS)]
    if not weights:
        raise CheckpointError(f"{address} holds no weights, and is no run", hint="give the address of a file, its folder or a run")
    for name in weights:
        fetch(address / name, root=address, error=CheckpointError, progress=progress)
    return copies_of(address), note


@contextmanager
def header_copy(address: Address) -> Iterator[Path | None]:
    """A safetensors file at an address, or that of a finished run, as a local file that is empty after its header; else None.

    The file exists during the block, with the settings that lie beside it on the server.
    """
    found = None if address.is_folder else info(address, error=CheckpointError)
    if found is None and is_file(address / RUN):
        address, found = address / MODEL, info(address / MODEL) if is_file(address / MODEL) else None
    if found is None or address.suffix != ".safetensors":
        yield None
        return
    length = int.from_bytes(read_range(address, 0, min(_PREFIX, found.size), error=CheckpointError), "little")
    start = read_range(address, 0, min(_PREFIX + min(length, MAX_HEADER), found.size), error=CheckpointError)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / address.name
        path.write_bytes(start)
        os.truncate(path, found.size)  # takes no space on disk
        for name in _BESIDE:
            with suppress(DataError, CheckpointError):
                (path.parent / name).write_bytes(read_now(address.parent / name, most=SMALL_FILE))
        yield path


def copied_run(address: Address, *, model: bool = True, progress: ProgressCallback = silent) -> Path:
    """A local run folder with the config, the record of the data and the events of the run at an address, and its model."""
    for attempt in range(_TRIES):
        try:
            return _copied_run(address, model, progress)
        except CheckpointError:
            if attempt + 1 == _TRIES:
                raise
    raise AssertionError("unreachable")


def _copied_run(address: Address, model: bool, progress: ProgressCallback) -> Path:
    names = files_below(address, error=CheckpointError)
    if RUN not in names:
        raise CheckpointError(f"{address} is not the folder of a run: it has no {RUN}", hint="give the `out` of a training command")
    for name in FACTS:
        if name in names:
            fetch(address / name, root=address, error=CheckpointError)
    folder = copies_of(address)
    if not model:
        return folder
    if MODEL in names:
        fetch(address / MODEL, root=address, error=CheckpointError, progress=progress)
        return folder
    (folder / MODEL).unlink(missing_ok=True)
    step = pointed(address, LAST)
    if step is None:
        raise CheckpointError(f"the run in {address} has no checkpoint yet", hint="wait for its first one")
    copied_checkpoint(address, step, names, training=False, progress=progress)
    _link(folder, LAST, step)
    return folder


def pointed(address: Address, name: str) -> int | None:
    """The step that the pointer `last` or `best` of a run names; None if there is no pointer."""
    try:
        text = read_now(address / name, most=_SMALL, error=CheckpointError).decode("utf-8", "replace").strip()
    except CheckpointError:
        return None
    found = _POINTER.fullmatch(text)
    if found is None:
        raise CheckpointError(f"{address / name} names no checkpoint: {text[:80]!r}")
    return int(found[1])


def copied_checkpoint(
    address: Address, step: int, names: Mapping[str, Info], *, training: bool, progress: ProgressCallback = silent
) -> Path:
    """The files of one checkpoint; without `training`, the weights alone."""
    start = f"checkpoints/step-{step}/"
    wanted = [name for name in names if name.startswith(start)]
    if not training:
        wanted = [name for name in wanted if not name.removeprefix(start).startswith(_TRAINING_ONLY)]
    if not wanted:
        raise CheckpointError(f"{address / start} is not there any more, although the run names it")
    folder = copies_of(address) / start
    for former in folder.iterdir() if folder.is_dir() else ():
        if not former.name.startswith(".") and start + former.name not in wanted:
            former.unlink()  # of an earlier checkpoint of the same step
    for name in wanted:
        fetch(address / name, root=address, error=CheckpointError, progress=progress)
    return folder


def _link(folder: Path, name: str, step: int) -> None:
    link, new = folder / name, folder / f".{name}.new"
    new.unlink(missing_ok=True)
    new.symlink_to(Path("checkpoints") / f"step-{step}")
    new.replace(link)
