"""A run's folder: what is in it, who may write to it, and which checkpoint to go on from.

    run.json               the whole run as config
    events.jsonl           what happened, a line each
    checkpoints/step-N/    everything needed to go on after N updates (see snapshot.py)
    last, best             links to one of them
    lock                   held by who is writing, with process and host

A checkpoint folder appears whole or not at all, and `last` moves only after it is on the disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from vitlab.checkpoint.files.atomic import REPLACED, UNFINISHED, clear_unfinished, replacing
from vitlab.config.change import differences
from vitlab.config.run import RunConfig
from vitlab.config.text import from_text, to_text
from vitlab.errors import CheckpointError, ConfigError, TrainingError
from vitlab.train.snapshot import Snapshot, read

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
                found.append(json.loads(line))
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
