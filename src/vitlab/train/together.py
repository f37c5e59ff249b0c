"""A checkpoint that several ranks write together: each its own rows of every tensor, in the background, and then one rename.

    1. each rank writes its parts into one unfinished folder, every file complete and on the disk before the next
    2. the ranks tell each other the SHA-256 of what they wrote, or what went wrong: nobody passes before all have written
    3. rank 0 writes progress.json with all digests, and gives the folder its name
    4. the ranks hear whether it has it, so that a full disk on one ends the run on all

A rank that is killed before the rename leaves the checkpoint before as it was; the unfinished folder is removed at the next start.
The ranks speak over a group of their own, so that this does not get in the way of the training that goes on meanwhile.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from vitlab.checkpoint.files import write_safetensors
from vitlab.checkpoint.files.atomic import put_in_place, unfinished_folder
from vitlab.checkpoint.parts import part_name, write_weights_part
from vitlab.errors import CheckpointError
from vitlab.train.distributed import World
from vitlab.train.snapshot import Snapshot, file_digest, replaceable, write_progress

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
