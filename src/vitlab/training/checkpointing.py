"""Keeps what a run has learned: checkpoints written in the background, told of when they are on the disk, and the final model."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from vitlab.checkpoints.containers import write_safetensors
from vitlab.checkpoints.native import write_native
from vitlab.checkpoints.parts import part_name, write_weights_part
from vitlab.config.run import RunConfig
from vitlab.errors import CheckpointError, DivergedError, TrainingError
from vitlab.io.atomic import put_in_place, unfinished_folder
from vitlab.training.distributed import World, is_sharded, own_rows, patient_group
from vitlab.training.events import Event, Saved, Warned
from vitlab.training.optim import optimizer_state
from vitlab.training.run_folder import (
    Progress,
    RunDirectory,
    Snapshot,
    Writer,
    copied,
    file_digest,
    read,
    replaceable,
    write_progress,
)
from vitlab.training.state import TrainState
from vitlab.training.tasks import extra_state

# A checkpoint that several ranks write together: each its own rows of every tensor, in the background, and then one rename.
#
# 1. each rank writes its parts into one unfinished folder, every file complete and on the disk before the next
# 2. the ranks tell each other the SHA-256 of what they wrote, or what went wrong: nobody passes before all have written
# 3. rank 0 writes progress.json with all digests, and gives the folder its name
# 4. the ranks hear whether it has it, so that a full disk on one ends the run on all
#
# A rank that is killed before the rename leaves the checkpoint before as it was; the unfinished folder is removed at the next start.
# The ranks speak over a group of their own, so that this does not get in the way of the training that goes on meanwhile.

_SEEN = 30.0  # seconds after which a file of another machine must be visible on a shared disk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a rank says of its parts: their digests by name and their bytes, or what went wrong."""

    files: dict[str, str]
    bytes: int
    fault: str | None = None


class Together:
    """The ranks as writers of one checkpoint, over a group that is as patient as their disks are slow."""

    def __init__(self, here: World, group: dist.ProcessGroup) -> None:
        self.here = here
        self._group = group

    def write(self, folder: Path, snapshot: Snapshot) -> None:
        """Write this rank's part of the snapshot; returns on every rank when the whole folder is on the disk under its name.

        CheckpointError on every rank if one of them could not write.
        """
        new = unfinished_folder(folder)
        told: list[_Told | None] = [None] * self.here.ranks
        dist.all_gather_object(told, self._own(new, snapshot), group=self._group)
        outcome: list[str | None] = [None]
        if self.here.leads:
            outcome = [self._finish(new, folder, snapshot, [said for said in told if said is not None])]
        dist.broadcast_object_list(outcome, src=0, group=self._group)
        if outcome[0] is not None:
            raise CheckpointError(outcome[0], hint="what was there before is untouched")

    def _own(self, new: Path, snapshot: Snapshot) -> _Told:
        try:
            new.mkdir(exist_ok=True)
            written = self._write_parts(new, snapshot)
            return _Told(files={path.name: file_digest(path) for path in written}, bytes=snapshot.bytes)
        except (OSError, CheckpointError) as error:
            reason = error.message if isinstance(error, CheckpointError) else str(error)
            return _Told(files={}, bytes=snapshot.bytes, fault=f"rank {self.here.rank}: {reason}")

    def _write_parts(self, new: Path, snapshot: Snapshot) -> list[Path]:
        rank, ranks = self.here.rank, self.here.ranks
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

    def _finish(self, new: Path, folder: Path, snapshot: Snapshot, told: list[_Told]) -> str | None:
        """Give the folder its name; what went wrong, or None."""
        faults = [said.fault for said in told if said.fault is not None]
        try:
            if faults:
                return "; ".join(faults)
            files = {name: digest for said in told for name, digest in said.files.items()}
            if unseen := _unseen(new, files):
                return f"{new.parent} is not one folder for all ranks: {unseen[0]}, which another rank wrote, is not in it"
            write_progress(new, snapshot.progress, files)
            put_in_place(new, folder, needed=sum(said.bytes for said in told), names=replaceable(folder))
        except CheckpointError as error:
            return error.message
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return None


def _unseen(folder: Path, names: dict[str, str]) -> list[str]:
    """Which of the files are not there; a network disk may take a moment to show what another machine wrote."""
    deadline = time.monotonic() + _SEEN
    while missing := sorted(names.keys() - {entry.name for entry in folder.iterdir()}):
        if time.monotonic() > deadline:
            return missing
        time.sleep(0.2)
    return []


@dataclass(slots=True, kw_only=True)
class _Saving:
    """A checkpoint that is being written, since the moment `began`, and what could not be tidied up after it."""

    step: int
    began: float
    troubles: list[str] = field(default_factory=list)


class Checkpointer:
    """Writes one run's checkpoints.

    `saved` is the step of the last that was begun, -1 before the first; `broken` says that one could not be written.

    Where ranks hold parts of the model, each has a keeper and they write together; else the one that leads writes alone.
    """

    def __init__(self, run: RunConfig, directory: RunDirectory, here: World, players: TrainState) -> None:
        self.run = run
        self.directory = directory
        self.here = here
        self.players = players
        self._group = patient_group() if here.ranks > 1 else None
        self.together = Together(here, self._group) if self._group is not None and is_sharded(players.model) else None
        self.saved = -1
        self.broken = False
        self._writer = Writer()
        self._saving: _Saving | None = None

    def save(self, progress: Progress, metrics: dict[str, float], *, best: bool = False) -> Iterator[Event]:
        """Begin to write a checkpoint in the background; `last`, and `best` where it is, follow when it is on the disk."""
        step = progress.step
        if step == self.saved and not best:
            return
        began = time.monotonic()
        yield from self.written()
        self.saved = step
        self._saving = saving = _Saving(step=step, began=began)
        if self.together is None and not self.here.leads:
            return
        snapshot = self._snapshot(progress, metrics)
        self._refuse_non_finite(snapshot.model)
        directory, keep = self.directory, self.run.train.keep

        def then() -> None:
            if not self.here.leads:
                return
            directory.point("last", step)
            if best:
                directory.point("best", step)
            saving.troubles.extend(directory.retain(keep))

        self._writer.start(directory.step_path(step), snapshot, then, None if self.together is None else self.together.write)

    def written(self) -> Iterator[Event]:
        """Wait for the checkpoint that was begun, and tell of it. Every rank waits, also where only one writes."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        self.broken = True
        self._wait()
        self.broken = False
        yield Saved(step=saving.step, path=self.directory.step_path(saving.step), seconds=time.monotonic() - saving.began)
        for trouble in saving.troubles:
            yield Warned(step=saving.step, message=trouble)

    def _wait(self) -> None:
        if self._group is None or self.together is not None:  # who write together have told each other how it ended
            self._writer.wait()
            return
        told: list[tuple[str, str | None] | None] = [None]
        try:
            self._writer.wait()
        except TrainingError as error:
            told = [(error.message, error.hint)]
        dist.broadcast_object_list(told, src=0, group=self._group)
        if told[0] is not None:
            raise TrainingError(told[0][0], hint=told[0][1])

    def close(self) -> None:
        """What was begun is on the disk; raises what went wrong with it."""
        self._writer.wait()

    def keep_model(self) -> Path:
        """The file to keep: the best weights where the run stops early, else the last; averaged where the run averages."""
        path = self.directory.root / "model.safetensors"
        step = self.directory.pointed("best" if self.run.train.patience else "last")
        assert step is not None
        snapshot = read(self.directory.step_path(step), lean=True)
        write_native(path, snapshot.model if snapshot.average is None else dict(snapshot.average), snapshot.facts)
        return path

    def _snapshot(self, progress: Progress, metrics: dict[str, float]) -> Snapshot:
        players, here = self.players, self.here
        return Snapshot(
            progress=progress,
            model=copied(own_rows(players.bare.state_dict(), here)),
            facts=replace(players.facts, metrics=metrics or None),
            optimizer=copied(own_rows(optimizer_state(players.whole, players.optimizers), here)),
            average=None if players.average is None else copied(own_rows(players.average.state, here)),
            extra=copied(own_rows(extra_state(players.whole), here)),
        )

    def _refuse_non_finite(self, state: Mapping[str, Tensor]) -> None:
        """Where ranks hold parts, all refuse what one of them finds."""
        odd = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
        if bool(odd) if self.together is None else self.here.any(bool(odd)):
            where = f" ({odd[0]})" if odd else ""
            raise DivergedError(f"weights became infinite or not a number{where}, so no checkpoint of them is kept")
