"""Everything needed to go on after a number of updates, as files of one folder.

    model.safetensors       the weights as a native checkpoint: any command takes it
    extra.safetensors       weights that serve training alone, such as masked prediction's head, where there are any
    average.safetensors     the averaged weights likewise, where the run averages
    optimizer.safetensors   the optimiser's tensors by parameter name
    progress.json           where the run is, and the SHA-256 of every file and of itself

Dropout, order and augmentation are functions of the seed and the step, so no random state needs to be kept: `step` and `seed` in
progress.json are it, and the loader's position is the step times the batch.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitlab.checkpoint.files import write_safetensors
from vitlab.checkpoint.files.atomic import replacing, replacing_folder
from vitlab.checkpoint.files.safetensors_file import open_safetensors
from vitlab.checkpoint.native import Facts, read_native, write_native
from vitlab.config.text import from_json, to_json
from vitlab.errors import CheckpointError, ConfigError, TrainingError

State = dict[str, Tensor]
MODEL, AVERAGE, EXTRA = "model.safetensors", "average.safetensors", "extra.safetensors"
OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run is: after `step` updates and `position` pictures.

    `best` is the best value of the metric that is watched so far, `stale` the evaluations since. `skipped` counts batches without
    an update, `in_a_row` the last ones. `micro_batch` is what fitted into memory. `seconds` of training so far. `seed` and `step`
    are the whole state of every random choice.
    """

    step: int = 0
    position: int = 0
    seed: int = 0
    best: float | None = None
    stale: int = 0
    skipped: int = 0
    in_a_row: int = 0
    micro_batch: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment, its tensors copies of their own: training may go on while this is written."""

    progress: Progress
    model: State
    facts: Facts
    optimizer: State
    average: State | None = None
    extra: State = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What it takes on the disk, headers aside."""
        parts = (self.model, self.optimizer, self.extra, self.average or {})
        return sum(tensor.nbytes for part in parts for tensor in part.values())


def write(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot as that folder: complete and durable when it appears, absent before."""
    names = (MODEL, AVERAGE, EXTRA, OPTIMIZER, PROGRESS)
    with replacing_folder(folder, needed=snapshot.bytes, names=names) as new:
        write_native(new / MODEL, snapshot.model, snapshot.facts)
        if snapshot.average is not None:
            write_native(new / AVERAGE, snapshot.average, snapshot.facts)
        write_safetensors(new / OPTIMIZER, snapshot.optimizer, {"format": "pt"})
        if snapshot.extra:
            write_safetensors(new / EXTRA, snapshot.extra, {"format": "pt"})
        text = _progress_text(new, snapshot.progress)
        with replacing(new / PROGRESS, needed=len(text)) as file:
            file.write(text)


def read(folder: Path) -> Snapshot:
    """A snapshot, every byte of it checked; CheckpointError says what is damaged."""
    progress = read_progress(folder)
    with open_safetensors(folder / MODEL) as opened:
        model, facts = read_native(opened)
    average = None
    if (folder / AVERAGE).exists():
        with open_safetensors(folder / AVERAGE) as opened:
            average, _ = read_native(opened)
    with open_safetensors(folder / OPTIMIZER) as opened:
        optimizer = opened.tensors()
    extra = State()
    if (folder / EXTRA).exists():
        with open_safetensors(folder / EXTRA) as opened:
            extra = opened.tensors()
    return Snapshot(progress=progress, model=model, facts=facts, optimizer=optimizer, average=average, extra=extra)


def read_progress(folder: Path) -> Progress:
    """Where the run was, after checking the digests of all files of the snapshot."""
    path = folder / PROGRESS
    try:
        data = json.loads(path.read_text())
        digest, said = data.pop("sha256"), dict(data["files"])
        progress: Progress = from_json(Progress, data["progress"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if _digest_of(data) != digest:
        raise CheckpointError(f"{path} was damaged: it does not have the SHA-256 that it says")
    found = {entry.name: _file_digest(entry) for entry in folder.iterdir() if entry.name != PROGRESS}
    odd = sorted({name for name in found.keys() | said.keys() if found.get(name) != said.get(name)})
    if odd:
        raise CheckpointError(f"{folder} was damaged: {', '.join(odd)} not as written")
    return progress


def _progress_text(folder: Path, progress: Progress) -> bytes:
    files = {entry.name: _file_digest(entry) for entry in sorted(folder.iterdir())}
    data = {"version": 1, "progress": to_json(progress), "files": files, "torch": torch.__version__}
    return (json.dumps(data | {"sha256": _digest_of(data)}, indent=2) + "\n").encode()


def _digest_of(data: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copied(state: State) -> State:
    """Copies on the CPU that later updates do not touch."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}


class Writer:
    """Writes snapshots in the background, one at a time; trouble is raised at the next call, and `close` waits for the last."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._trouble: BaseException | None = None

    def start(self, folder: Path, snapshot: Snapshot, then: Callable[[], None]) -> None:
        """Begin writing, and do `then` when the folder is on the disk; waits for the write before."""
        self.wait()

        def work() -> None:
            try:
                write(folder, snapshot)
                then()
            except BaseException as error:  # noqa: BLE001 (whatever it is, the training thread must hear of it)
                self._trouble = error

        self._thread = threading.Thread(target=work, name="vitlab-writer", daemon=False)
        self._thread.start()

    def done(self) -> bool:
        """Whether nothing is being written."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Until what was started is on the disk; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        trouble, self._trouble = self._trouble, None
        if isinstance(trouble, CheckpointError):
            raise TrainingError(f"the checkpoint could not be written: {trouble.message}", hint=trouble.hint) from trouble
        if trouble is not None:
            raise trouble
