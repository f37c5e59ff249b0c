"""Keeps what a run has learned: checkpoints written in the background, told of when they are on the disk, and the final model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from vitlab.checkpoint.native import write_native
from vitlab.config.run import RunConfig
from vitlab.errors import DivergedError, TrainingError
from vitlab.train.directory import RunDirectory
from vitlab.train.distributed import World, patient_group
from vitlab.train.events import Event, Saved, Warned
from vitlab.train.optim import optimizer_state
from vitlab.train.parallel import is_sharded, own_rows
from vitlab.train.setup import Players
from vitlab.train.snapshot import Progress, Snapshot, Writer, copied, read
from vitlab.train.task import extra_state
from vitlab.train.together import Together


@dataclass(slots=True, kw_only=True)
class _Saving:
    """A checkpoint that is being written, since the moment `began`, and what could not be tidied up after it."""

    step: int
    began: float
    troubles: list[str] = field(default_factory=list)


class Keeper:
    """Writes one run's checkpoints.

    `saved` is the step of the last that was begun, -1 before the first; `broken` says that one could not be written.

    Where ranks hold parts of the model, each has a keeper and they write together; else the one that leads writes alone.
    """

    def __init__(self, run: RunConfig, directory: RunDirectory, here: World, players: Players) -> None:
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
