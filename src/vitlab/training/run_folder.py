"""A run's folder: what is in it, who may write to it, and which checkpoint to go on from.

    run.json               the whole run as config
    events.jsonl           what happened, a line each
    checkpoints/step-N/    everything needed to go on after N updates (see snapshot.py)
    last, best             links to one of them
    lock                   held by who is writing, with process and host

A checkpoint folder appears whole or not at all, and `last` moves only after it is on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from vitlab.checkpoints.containers import write_safetensors
from vitlab.checkpoints.containers.safetensors_file import open_safetensors
from vitlab.checkpoints.native import Facts, read_native, write_native
from vitlab.checkpoints.parts import Pieces, is_part, parts_in, read_weights
from vitlab.config.overrides import differences
from vitlab.config.renamed import current_event
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json, from_text, to_json, to_text
from vitlab.errors import CheckpointError, ConfigError, TrainingError
from vitlab.io.atomic import REPLACED, UNFINISHED, clear_unfinished, replacing, replacing_folder

# Everything needed to go on after a number of updates, as files of one folder.
#
# model.safetensors       the weights as a native checkpoint: any command takes it
# extra.safetensors       weights that serve training alone, such as masked prediction's head, where there are any
# average.safetensors     the averaged weights likewise, where the run averages
# optimizer.safetensors   the optimiser's tensors by parameter name
# progress.json           where the run is, and the SHA-256 of every file and of itself
#
# Where ranks hold parts of the tensors, each writes its own, `model-part-0-of-2.safetensors` and so on in place of
# `model.safetensors` (see together.py); `read` puts them together.
#
# Dropout, order and augmentation are functions of the seed and the step, so no random state needs to be kept: `step` and `seed` in
# progress.json are it, and the loader's position is the step times the batch.

State = dict[str, Tensor]
MODEL, AVERAGE, EXTRA = "model.safetensors", "average.safetensors", "extra.safetensors"
OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"
_FILES = (MODEL, AVERAGE, EXTRA, OPTIMIZER, PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run is: after `step` updates and `position` images.

    `best` is the best value of the metric that is watched so far, `stale` the evaluations since. `skipped` counts batches without
    an update, `in_a_row` the last ones. `micro_batch` is what fitted into memory. `seconds` of training so far. `unseen`
    where a stop came before the held-out images, which were due, had been looked at. `seed` and `step` are the whole state of
    every random choice.
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
    unseen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment, its tensors copies of their own: training may go on while this is written.

    Where ranks hold parts, `model`, `optimizer`, `average` and `extra` are this rank's part to be written, and whole when read.
    """

    progress: Progress
    model: State
    facts: Facts
    optimizer: Mapping[str, Tensor]
    average: Mapping[str, Tensor] | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What it takes on the disk, headers aside."""
        parts = (self.model, self.optimizer, self.extra, self.average or {})
        return sum(tensor.nbytes for part in parts for tensor in part.values())


def write(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot as that folder: complete and durable when it appears, absent before."""
    with replacing_folder(folder, needed=snapshot.bytes, names=replaceable(folder)) as new:
        write_native(new / MODEL, snapshot.model, snapshot.facts)
        if snapshot.average is not None:
            write_native(new / AVERAGE, snapshot.average, snapshot.facts)
        write_safetensors(new / OPTIMIZER, snapshot.optimizer, {"format": "pt"})
        if snapshot.extra:
            write_safetensors(new / EXTRA, snapshot.extra, {"format": "pt"})
        write_progress(new, snapshot.progress, {entry.name: file_digest(entry) for entry in sorted(new.iterdir())})


def replaceable(folder: Path) -> tuple[str, ...]:
    """What a new snapshot of the same step may take the place of: another's files, whole or in parts."""
    parts = (entry.name for entry in folder.iterdir() if is_part(entry.name)) if folder.is_dir() else ()
    return (*_FILES, *parts)


def read(folder: Path, *, lean: bool = False) -> Snapshot:
    """A snapshot, every byte of it checked; CheckpointError says what is damaged.

    Parts become whole again. With `lean` the optimiser's and the averaged tensors are not held in memory: each is read when it is
    asked for, as long as the folder is there.
    """
    progress = read_progress(folder)
    parts = parts_in(folder, _stem(MODEL))
    if parts:
        model, facts = read_weights(parts)
    else:
        with open_safetensors(folder / MODEL) as opened:
            model, facts = read_native(opened)
    optimizer, average, extra = (_pieces(folder, name) for name in (OPTIMIZER, AVERAGE, EXTRA))
    if optimizer is None:
        raise CheckpointError(f"{folder} holds no {OPTIMIZER}")
    return Snapshot(
        progress=progress,
        model=model,
        facts=facts,
        optimizer=optimizer if lean else optimizer.all(),
        average=average if lean or average is None else average.all(),
        extra={} if extra is None else extra.all(),
    )


def _pieces(folder: Path, name: str) -> Pieces | None:
    paths = parts_in(folder, _stem(name)) or ((folder / name,) if (folder / name).exists() else ())
    return Pieces(paths) if paths else None


def _stem(name: str) -> str:
    return name.removesuffix(".safetensors")


def read_progress(folder: Path) -> Progress:
    """Where the run was, after checking the digests of all files of the snapshot."""
    path = folder / PROGRESS
    try:
        data = json.loads(path.read_text())
        digest, said = data.pop("sha256"), dict(data["files"])
        progress: Progress = from_json(Progress, data["progress"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if _digest_of(data) != digest:
        raise CheckpointError(f"{path} was damaged: it does not have the SHA-256 that it says")
    found = {entry.name: file_digest(entry) for entry in folder.iterdir() if entry.name != PROGRESS}
    odd = sorted({name for name in found.keys() | said.keys() if found.get(name) != said.get(name)})
    if odd:
        raise CheckpointError(f"{folder} was damaged: {', '.join(odd)} not as written")
    return progress


def write_progress(folder: Path, progress: Progress, files: Mapping[str, str]) -> None:
    """Write progress.json, with the SHA-256 of all other files of the folder."""
    data = {"version": 1, "progress": to_json(progress), "files": dict(files), "torch": torch.__version__}
    text = (json.dumps(data | {"sha256": _digest_of(data)}, indent=2) + "\n").encode()
    with replacing(folder / PROGRESS, needed=len(text)) as file:
        file.write(text)


def _digest_of(data: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
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

    def start(
        self, folder: Path, snapshot: Snapshot, then: Callable[[], None], how: Callable[[Path, Snapshot], None] | None = None
    ) -> None:
        """Begin writing, by `how` or by `write`, and do `then` when the folder is on the disk; waits for the write before."""
        self.wait()

        def work() -> None:
            try:
                (how or write)(folder, snapshot)
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


if sys.platform != "win32":
    import fcntl

_STEP = re.compile(r"step-(\d+)")
_NEW, _DELETED = ".new", ".deleted"  # end the names of a link not yet in place, and of a checkpoint on its way out


class RunDirectory:
    """The folder of one run; `root` is made if it does not exist."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.checkpoints = self.root / "checkpoints"

    @property
    def config_path(self) -> Path:
        """Where the run's config is."""
        return self.root / "run.json"

    @property
    def events_path(self) -> Path:
        """Where what happened is."""
        return self.root / "events.jsonl"

    def step_path(self, step: int) -> Path:
        """The checkpoint after that many updates."""
        return self.checkpoints / f"step-{step}"

    def steps(self) -> list[int]:
        """The checkpoints there are, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.checkpoints.iterdir() if (match := _STEP.fullmatch(entry.name)))

    def config(self) -> RunConfig | None:
        """The run that began here, or None."""
        return from_text(RunConfig, self.config_path.read_text()) if self.config_path.exists() else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who writes here; TrainingError names who else does. A killed writer's lock is gone with it."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a+") as file:
            if not _lock(file):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise TrainingError(
                    f"{self.root} is being written by {holder}", hint="wait for it, stop it, or choose another folder"
                )
            file.seek(0)
            file.truncate()
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            self._tidy()
            yield

    def _tidy(self) -> None:
        """Remove what a killed writer left half written or half deleted; nobody else writes here now."""
        for entry in [*self.checkpoints.iterdir(), *self.root.iterdir()]:
            if entry.name.endswith(REPLACED):
                clear_unfinished(entry.with_name(entry.name.split(".")[1]))
            elif entry.name.startswith(".") and entry.name.endswith((UNFINISHED, _DELETED, _NEW)):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def begin(self, run: RunConfig, *, override: bool = False) -> bool:
        """Write the run's config, or check that it is the one that began here; whether the run goes on from before.

        What does not change the course of a run, such as the number of workers, may change. Anything else is refused, and named,
        unless `override`, which writes the new config. Where no checkpoint was written there is nothing to be gone on with.
        """
        before = self.config()
        if before is not None and self.steps() and not override and (changes := differences(before, run, course=True)):
            raise ConfigError(
                f"{self.root} was begun with another config: {', '.join(changes)}",
                hint="choose another folder, or say that the change is meant (--override)",
            )
        if before != run:
            text = to_text(run).encode()
            with replacing(self.config_path, needed=len(text)) as file:
                file.write(text)
        return bool(self.steps())

    def point(self, name: str, step: int) -> None:
        """Let the link `last` or `best` lead to a checkpoint, at once or not at all."""
        link, new = self.root / name, self.root / f".{name}{_NEW}"
        new.unlink(missing_ok=True)
        new.symlink_to(Path("checkpoints") / f"step-{step}")
        new.replace(link)
        _sync(self.root)

    def pointed(self, name: str) -> int | None:
        """The step that `last` or `best` leads to, or None."""
        link = self.root / name
        match = _STEP.fullmatch(link.readlink().name) if link.is_symlink() else None
        return None if match is None else int(match[1])

    def retain(self, keep: int) -> list[str]:
        """Delete all but the newest `keep` checkpoints, and never the best or the last; what could not be deleted, as sentences."""
        steps = self.steps()
        sacred = {self.pointed("best"), self.pointed("last"), *steps[-keep:]}
        troubles = []
        for step in steps:
            if step in sacred:
                continue
            try:
                _remove(self.step_path(step))
            except OSError as error:
                troubles.append(f"the old checkpoint {self.step_path(step)} could not be deleted: {error.strerror}")
        return troubles

    def append_event(self, line: dict[str, object]) -> None:
        """Add one line to the events; a crash may cut the last line short, which readers skip."""
        with self.events_path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def forget_events_after(self, step: int) -> None:
        """Drop what is told of updates that will be made again."""
        kept = [event for event in self.events() if isinstance(at := event.get("step"), int) and at <= step]
        text = "".join(json.dumps(event) + "\n" for event in kept).encode()
        with replacing(self.events_path, needed=len(text)) as file:
            file.write(text)

    def events(self) -> list[dict[str, object]]:
        """What happened, as far as it was written whole."""
        if not self.events_path.exists():
            return []
        found = []
        for line in self.events_path.read_text().splitlines():
            try:
                found.append(current_event(json.loads(line)))
            except json.JSONDecodeError:
                continue  # cut short by a crash
        return found


def last_good(directory: RunDirectory, *, lean: bool = False) -> tuple[Snapshot | None, list[str]]:
    """The newest checkpoint that is whole, and a sentence for each newer one that is not."""
    troubles = list[str]()
    for step in reversed(directory.steps()):
        try:
            return read(directory.step_path(step), lean=lean), troubles
        except CheckpointError as error:
            troubles.append(f"passed over the checkpoint of step {step}: {error.message}")
    if troubles:
        raise TrainingError(
            f"no checkpoint in {directory.checkpoints} can be used: {troubles[0]}", hint="begin again in another folder"
        )
    return None, troubles


def _remove(folder: Path) -> None:
    """Delete a checkpoint so that a crash in between leaves none that looks whole: it loses its name first."""
    dying = folder.with_name(f".{folder.name}{_DELETED}")
    if dying.exists():
        shutil.rmtree(dying)
    folder.rename(dying)
    shutil.rmtree(dying)


def _lock(file: TextIO) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(folder: Path) -> None:
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
