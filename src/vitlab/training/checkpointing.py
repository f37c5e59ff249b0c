"""Checkpoints of a run: the files of a snapshot, written in the background by one rank or by all, and which one to resume from.

    model.safetensors, average.safetensors      the weights and the averaged weights, each a complete native checkpoint
    optimizer.safetensors, extra.safetensors    the optimizer's tensors, and the weights that only training needs
    progress.json                               how far the run is, and the SHA-256 of every other file

Under FSDP each rank writes its rows, `model-part-0-of-2.safetensors` and so on, and any number of ranks can read them:

1. every rank writes its parts into one unfinished folder
2. the ranks exchange the digests of their files, or what went wrong: no rank continues before all have written
3. rank 0 writes progress.json with all digests and gives the folder its name
4. the ranks learn whether that worked, so that a full disk on one ends the run on all

If a rank is killed before the rename, the previous checkpoint stays as it was, and the next start removes the unfinished folder.
If a checkpoint cannot be written (the run folder was deleted, the disk is full or read-only), it is saved as a run folder of its
own, beside the run folder or among the temporary files, and the error says where.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from vitlab.checkpoints.containers import write_safetensors
from vitlab.checkpoints.containers.safetensors_file import open_safetensors
from vitlab.checkpoints.native import (
    Pieces,
    is_part,
    part_name,
    parts_in,
    read_native,
    read_weights,
    write_native,
    write_weights_part,
)
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json, to_json
from vitlab.errors import CheckpointError, ConfigError, DivergedError, TrainingError, VitlabError
from vitlab.io.atomic import cannot_write, put_in_place, replacing, replacing_folder, unfinished_folder
from vitlab.io.files import open_regular, read_bytes
from vitlab.training.distributed import World, disk_group, is_sharded
from vitlab.training.events import Event, Saved, Warned
from vitlab.training.run_folder import RunDirectory, rescue_folders
from vitlab.training.step import Progress, Snapshot, TrainState

MODEL, AVERAGE, EXTRA, OPTIMIZER, PROGRESS = (
    "model.safetensors", "average.safetensors", "extra.safetensors", "optimizer.safetensors", "progress.json"
)  # fmt: skip
_FILES = (MODEL, AVERAGE, EXTRA, OPTIMIZER, PROGRESS)
_VISIBLE = 30.0  # seconds after which a network disk must show a file that another machine wrote


class Checkpointer:
    """Writes the checkpoints of one run.

    `saved` is the step of the latest checkpoint, -1 before the first, and `saved_metrics` its metrics; `failed` says that one
    could not be written. Under FSDP every rank writes its part; otherwise rank 0 writes alone.
    """

    def __init__(self, directory: RunDirectory, state: TrainState) -> None:
        self.directory = directory
        self.state = state
        self.world = state.world
        self.saved = -1
        self.saved_metrics = dict[str, float]()
        self.failed = False
        self._group = disk_group() if self.world.ranks > 1 else None
        sharded = self._group is not None and is_sharded(state.model)
        self._parts = PartWriter(self.world, self._group) if self._group is not None and sharded else None
        self._writer = BackgroundWriter()
        self._pending: _Pending | None = None

    def save(self, metrics: dict[str, float], *, best: bool = False) -> Iterator[Event]:
        """Start to write a checkpoint in the background; the links `last` and `best` move once it is on disk."""
        step = self.state.step
        if step == self.saved and metrics == self.saved_metrics and not best:
            return
        began = time.monotonic()
        yield from self.wait()
        self.saved, self.saved_metrics = step, metrics
        self._pending = pending = _Pending(step=step, began=began)
        if self._parts is None and not self.world.is_main:
            return
        snapshot = self.state.snapshot(metrics)
        self._refuse_non_finite(snapshot.model)

        def finish() -> None:
            if not self.world.is_main:
                return
            self.directory.set_link("last", step)
            if best:
                self.directory.set_link("best", step)
            pending.warnings.extend(self.directory.delete_old(self.state.run.train.keep))
            pending.warnings.extend(self.directory.publish(step))

        write = self._write if self._parts is None else self._parts.write
        self._writer.start(self.directory.step_path(step), snapshot, finish, write)

    def save_alone(self, metrics: dict[str, float]) -> Path | None:
        """Write a checkpoint without the other ranks, which are gone; None if this one has not the whole state of a step.

        Only what every rank has can be saved: not shards, not statistics that a forward pass has changed, and not weights of which
        some are updated already.
        """
        state = self.state
        if self._parts is not None or state.updating or state.statistics.norms:
            return None
        self._writer.wait()
        folder = self.directory.step_path(state.step)
        if state.step != self.saved:
            state.zero_grad()
            snapshot = state.snapshot(metrics)
            self._refuse_non_finite(snapshot.model)
            write_snapshot(folder, snapshot)
            self.directory.set_link("last", state.step)
            self.directory.publish(state.step)
            self.saved = state.step
        self._pending = None
        return folder

    def _write(self, folder: Path, snapshot: Snapshot) -> None:
        """Write a snapshot; if that is impossible, save it elsewhere and say where."""
        try:
            write_snapshot(folder, snapshot)
        except (CheckpointError, OSError) as error:
            fault = error if isinstance(error, CheckpointError) else cannot_write(folder, error, needed=snapshot.bytes)
            rescued = rescue(self.directory, self.state.run, snapshot)
            if rescued is None:
                raise fault from error
            raise CheckpointError(
                f"{fault.message}; step {snapshot.progress.step} is saved in {rescued} instead",
                hint=f"resume there with `out={rescued}`, or repair {self.directory.root} and move it there",
            ) from error

    def wait(self) -> Iterator[Event]:
        """Wait for the pending checkpoint and report it. Every rank waits, also if only one writes."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self.failed = True
        self._wait_for_writer()
        self.failed = False
        yield Saved(step=pending.step, path=self.directory.step_path(pending.step), seconds=time.monotonic() - pending.began)
        for warning in pending.warnings:
            yield Warned(step=pending.step, message=warning)

    def _wait_for_writer(self) -> None:
        if self._group is None or self._parts is not None:  # ranks that write together already know how it ended
            self._writer.wait()
            return
        outcome: list[tuple[str, str | None] | None] = [None]
        try:
            self._writer.wait()
        except TrainingError as error:
            outcome = [(error.message, error.hint)]
        dist.broadcast_object_list(outcome, src=0, group=self._group)
        if outcome[0] is not None:
            raise TrainingError(outcome[0][0], hint=outcome[0][1])

    def close(self) -> None:
        """Wait for the pending checkpoint; raises what went wrong with it."""
        self._writer.wait()

    def export_model(self) -> Snapshot:
        """Write the model to keep, and give its checkpoint: the best one with early stopping or a time budget, else the last.

        The weights are the averaged ones if the run averages.
        """
        config = self.state.run.train
        best = self.directory.linked_step("best" if config.patience or config.minutes else "last")
        snapshot = read_snapshot(self.directory.step_path(self.saved if best is None else best), lazy=True)
        weights = snapshot.model if snapshot.average is None else dict(snapshot.average)
        write_native(self.directory.model_path, weights, snapshot.facts)
        return snapshot

    def _refuse_non_finite(self, state: Mapping[str, Tensor]) -> None:
        """Under FSDP all ranks refuse what one of them finds."""
        odd = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
        if bool(odd) if self._parts is None else self.world.any(bool(odd)):
            where = f" ({odd[0]})" if odd else ""
            raise DivergedError(
                f"weights are infinite or not a number{where}; no checkpoint of them is written",
                hint="use a lower learning rate or a longer warm-up",
            )


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A checkpoint that is being written, and what went wrong when old ones were deleted after it."""

    step: int
    began: float
    warnings: list[str] = field(default_factory=list)


def latest_snapshot(directory: RunDirectory, *, lazy: bool = False) -> tuple[Snapshot | None, list[str]]:
    """The newest undamaged checkpoint, and a warning for each newer one that is damaged."""
    warnings = list[str]()
    for step in reversed(directory.steps()):
        try:
            return read_snapshot(directory.step_path(step), lazy=lazy), warnings
        except CheckpointError as error:
            warnings.append(f"ignored the checkpoint of step {step}: {error.message}")
    if warnings:
        raise TrainingError(
            f"no checkpoint in {directory.checkpoints} can be read: {warnings[0]}", hint="start again in another folder"
        )
    return None, warnings


def agreed_snapshot(directory: RunDirectory, world: World) -> tuple[Snapshot | None, list[str]]:
    """The newest undamaged checkpoint as the main rank sees it, the same on every rank, and the main rank's warnings.

    A network disk may show a rank an older folder than another one. TrainingError if a rank has a newer checkpoint than the main
    rank, which then does not see the folder that the others see.
    """
    if world.ranks == 1:
        return latest_snapshot(directory)
    newest = world.gather(max(directory.steps(), default=-1))
    if max(newest) > newest[0]:
        rank = newest.index(max(newest))
        raise TrainingError(
            f"{directory.root} is not one folder for all ranks: rank {rank} has a checkpoint of step {max(newest)},"
            f" and rank 0 {f'only one of step {newest[0]}' if newest[0] >= 0 else 'none'}",
            hint="give all machines the same folder, on a disk that they share",
        )
    found = world.on_main(lambda: latest_snapshot(directory, lazy=True))
    snapshot, warnings = found if found is not None else (None, [])
    step = world.gather(-1 if snapshot is None else snapshot.progress.step)[0]
    if step >= 0 and not world.is_main:
        _wait_for(directory.step_path(step))
        snapshot = read_snapshot(directory.step_path(step), lazy=True)
    world.disk_barrier()  # ranks may read at different speeds
    return snapshot, warnings


def _wait_for(folder: Path) -> None:
    """Wait until a network disk shows a checkpoint that another machine has written; reading says if it does not."""
    deadline = time.monotonic() + _VISIBLE
    while not (folder / PROGRESS).exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def rescue(directory: RunDirectory, run: RunConfig, snapshot: Snapshot) -> Path | None:
    """Save a snapshot as a run folder of its own, from which the run can resume; None if no other disk takes it either."""
    for place in rescue_folders(directory.root):
        other = RunDirectory(place)
        try:
            if directory.data is not None:
                other.begin(run, directory.data)
            other.checkpoints.mkdir()
            write_snapshot(other.step_path(snapshot.progress.step), snapshot)
            other.set_link("last", snapshot.progress.step)
        except (VitlabError, OSError):
            shutil.rmtree(place, ignore_errors=True)
        else:
            return place
    return None


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot as that folder: it appears complete and durable, or not at all."""
    with replacing_folder(folder, needed=snapshot.bytes, names=_replaceable(folder)) as new:
        write_native(new / MODEL, snapshot.model, snapshot.facts)
        if snapshot.average is not None:
            write_native(new / AVERAGE, snapshot.average, snapshot.facts)
        write_safetensors(new / OPTIMIZER, snapshot.optimizer, {"format": "pt"})
        if snapshot.extra:
            write_safetensors(new / EXTRA, snapshot.extra, {"format": "pt"})
        _write_progress(new, snapshot.progress, {entry.name: file_digest(entry) for entry in sorted(new.iterdir())})


def read_snapshot(folder: Path, *, lazy: bool = False) -> Snapshot:
    """A snapshot, every byte checked; CheckpointError says what is damaged. Parts of ranks are joined.

    With `lazy` the optimizer's and the averaged tensors stay on disk until each is asked for, as long as the folder exists.
    """
    progress = read_progress(folder)
    if parts := parts_in(folder, _stem(MODEL)):
        model, facts = read_weights(parts)
    else:
        with open_safetensors(folder / MODEL) as opened:
            model, facts = read_native(opened)
    optimizer, average, extra = (_tensors(folder, name) for name in (OPTIMIZER, AVERAGE, EXTRA))
    if optimizer is None:
        raise CheckpointError(f"{folder} has no {OPTIMIZER}")
    return Snapshot(
        progress=progress,
        model=model,
        facts=facts,
        optimizer=optimizer if lazy else optimizer.all(),
        average=average if lazy or average is None else average.all(),
        extra={} if extra is None else extra.all(),
    )


def read_progress(folder: Path) -> Progress:
    """How far the run is, after checking the digests of all files of the snapshot."""
    path = folder / PROGRESS
    try:
        data = json.loads(read_bytes(path, error=CheckpointError))
        digest, expected = data.pop("sha256"), dict(data["files"])
        progress: Progress = from_json(Progress, data["progress"])
        computed = _digest_of(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if computed != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 differs")
    try:
        found = {entry.name: file_digest(entry) for entry in folder.iterdir() if entry.name != PROGRESS and not _is_hidden(entry)}
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror}") from error
    odd = sorted({name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)})
    if odd:
        raise CheckpointError(f"{folder} is damaged: {', '.join(odd)} missing or changed")
    return progress


def _is_hidden(entry: Path) -> bool:
    """Whether a program that copies or shows folders left it there (.DS_Store)."""
    return entry.name.startswith(".")


def _write_progress(folder: Path, progress: Progress, files: Mapping[str, str]) -> None:
    data = {"version": 1, "progress": to_json(progress), "files": dict(files), "torch": torch.__version__}
    text = (json.dumps(data | {"sha256": _digest_of(data)}, indent=2) + "\n").encode()
    with replacing(folder / PROGRESS, needed=len(text)) as file:
        file.write(text)


def _replaceable(folder: Path) -> tuple[str, ...]:
    """The files that a new snapshot of the same step may replace: whole ones, parts, and hidden ones, which are nobody's work."""
    more = (entry.name for entry in folder.iterdir() if is_part(entry.name) or _is_hidden(entry)) if folder.is_dir() else ()
    return (*_FILES, *more)


def _tensors(folder: Path, name: str) -> Pieces | None:
    paths = parts_in(folder, _stem(name)) or ((folder / name,) if (folder / name).exists() else ())
    return Pieces(paths) if paths else None


def _stem(name: str) -> str:
    return name.removesuffix(".safetensors")


def _digest_of(data: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a regular file; CheckpointError if it cannot be read."""
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


class BackgroundWriter:
    """Writes snapshots in a thread, one at a time; an error is raised by the next call."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, folder: Path, snapshot: Snapshot, finish: Callable[[], None], write: Callable[[Path, Snapshot], None]) -> None:
        """Start to `write` the snapshot, and call `finish` once the folder is on disk."""
        self.wait()

        def work() -> None:
            try:
                write(folder, snapshot)
                finish()
            except BaseException as error:  # noqa: BLE001 (the training thread raises it)
                self._error = error

        thread = threading.Thread(target=work, name="vitlab-writer", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # no memory for its stack: training waits
            work()
        else:
            self._thread = thread

    def wait(self) -> None:
        """Wait until the snapshot is on disk; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if isinstance(error, CheckpointError):
            raise TrainingError(f"cannot write the checkpoint: {error.message}", hint=error.hint) from error
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What one rank wrote: the digests of its files and their bytes, or what went wrong."""

    files: dict[str, str]
    bytes: int
    fault: str | None = None


class PartWriter:
    """Writes one checkpoint together with all other ranks, over a process group of its own, so that training continues."""

    def __init__(self, world: World, group: dist.ProcessGroup) -> None:
        self.world = world
        self._group = group

    def write(self, folder: Path, snapshot: Snapshot) -> None:
        """Write this rank's parts; returns on every rank once the whole folder is on disk under its name.

        CheckpointError on every rank if one of them cannot write.
        """
        new = unfinished_folder(folder)
        written: list[_Written | None] = [None] * self.world.ranks
        dist.all_gather_object(written, self._write_own(new, snapshot), group=self._group)
        outcome: list[str | None] = [None]
        if self.world.is_main:
            outcome = [self._finish(new, folder, snapshot, [part for part in written if part is not None])]
        dist.broadcast_object_list(outcome, src=0, group=self._group)
        if outcome[0] is not None:
            raise CheckpointError(outcome[0], hint="the previous checkpoint is unchanged")

    def _write_own(self, new: Path, snapshot: Snapshot) -> _Written:
        try:
            new.mkdir(exist_ok=True)
            paths = self._write_parts(new, snapshot)
            return _Written(files={path.name: file_digest(path) for path in paths}, bytes=snapshot.bytes)
        except (OSError, CheckpointError) as error:
            reason = error.message if isinstance(error, CheckpointError) else str(error)
            return _Written(files={}, bytes=snapshot.bytes, fault=f"rank {self.world.rank}: {reason}")

    def _write_parts(self, new: Path, snapshot: Snapshot) -> list[Path]:
        rank, ranks = self.world.rank, self.world.ranks
        paths = []
        for stem, weights in (("model", snapshot.model), ("average", snapshot.average)):
            if weights is not None:
                paths.append(new / part_name(stem, rank, ranks))
                write_weights_part(paths[-1], weights, snapshot.facts, rank=rank, ranks=ranks)
        for stem, state in (("optimizer", snapshot.optimizer), ("extra", snapshot.extra)):
            if state or stem == "optimizer":
                paths.append(new / part_name(stem, rank, ranks))
                write_safetensors(paths[-1], state, {"format": "pt"})
        return paths

    def _finish(self, new: Path, folder: Path, snapshot: Snapshot, written: list[_Written]) -> str | None:
        """Give the folder its name; returns what went wrong, or None."""
        faults = [part.fault for part in written if part.fault is not None]
        try:
            if faults:
                return "; ".join(faults)
            files = {name: digest for part in written for name, digest in part.files.items()}
            if missing := _missing(new, files):
                return f"{new.parent} is not one folder for all ranks: another rank wrote {missing[0]}, which is not in it"
            _write_progress(new, snapshot.progress, files)
            put_in_place(new, folder, needed=sum(part.bytes for part in written), names=_replaceable(folder))
        except CheckpointError as error:
            return error.message
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return None


def _missing(folder: Path, names: Mapping[str, str]) -> list[str]:
    """The files that are not there; a network disk may take a moment to show what another machine wrote."""
    deadline = time.monotonic() + _VISIBLE
    while missing := sorted(names.keys() - {entry.name for entry in folder.iterdir()}):
        if time.monotonic() > deadline:
            return missing
        time.sleep(0.2)
    return []
