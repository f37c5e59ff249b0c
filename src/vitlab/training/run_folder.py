"""A run folder: what is in it, and who may write to it.

    run.json               the run's config
    events.jsonl           the run's events, a line each
    checkpoints/step-N/    everything needed to resume after N steps
    last, best             links to checkpoints
    model.safetensors      the trained model, once the run is finished
    lock                   held by the process that writes, with its id and host

A checkpoint folder appears complete or not at all, and `last` moves only once the checkpoint is on disk.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitlab.config.overrides import differences
from vitlab.config.renamed import current_event
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text, to_text
from vitlab.errors import ConfigError, TrainingError
from vitlab.io.atomic import REPLACED, UNFINISHED, clear_unfinished, replacing, sync_folder
from vitlab.io.lock import locked

_STEP = re.compile(r"step-(\d+)")
_NEW, _DELETED = ".new", ".deleted"  # suffixes of a link not yet in place, and of a checkpoint that is being deleted


class RunDirectory:
    """The folder of one run; `root` is created if it does not exist."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.checkpoints = self.root / "checkpoints"

    @property
    def config_path(self) -> Path:
        """The file of the run's config."""
        return self.root / "run.json"

    @property
    def events_path(self) -> Path:
        """The file of the run's events."""
        return self.root / "events.jsonl"

    @property
    def model_path(self) -> Path:
        """The file of the trained model."""
        return self.root / "model.safetensors"

    def step_path(self, step: int) -> Path:
        """The folder of the checkpoint after that many steps."""
        return self.checkpoints / f"step-{step}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.checkpoints.iterdir() if (match := _STEP.fullmatch(entry.name)))

    def config(self) -> RunConfig | None:
        """The config of the run in this folder, or None."""
        return from_text(RunConfig, self.config_path.read_text()) if self.config_path.exists() else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer; TrainingError names the other one. The lock of a killed process is gone with it."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with locked(self.root / "lock", refuse=self._in_use):
            self._remove_leftovers()
            yield

    def _in_use(self, holder: str) -> TrainingError:
        return TrainingError(f"{self.root} is in use by {holder}", hint="wait for it, stop it, or choose another folder")

    def _remove_leftovers(self) -> None:
        """Remove what a killed process left half written or half deleted."""
        for entry in [*self.checkpoints.iterdir(), *self.root.iterdir()]:
            if entry.name.endswith(REPLACED):
                clear_unfinished(entry.with_name(entry.name.split(".")[1]))
            elif entry.name.startswith(".") and entry.name.endswith((UNFINISHED, _DELETED, _NEW)):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def begin(self, run: RunConfig, *, override: bool = False) -> bool:
        """Write the run's config, or check that it matches the folder's; returns whether the run resumes.

        Settings that do not affect the weights, such as the number of workers, may change. Any other change is refused and
        named, unless `override`, which writes the new config. A folder without a checkpoint accepts any config.
        """
        before = self.config()
        if before is not None and self.steps() and not override and (changes := differences(before, run, course=True)):
            raise ConfigError(
                f"{self.root} was started with another config: {', '.join(changes)}",
                hint="choose another folder, or confirm the change with --override",
            )
        if before != run:
            text = to_text(run).encode()
            with replacing(self.config_path, needed=len(text)) as file:
                file.write(text)
        return bool(self.steps())

    def set_link(self, name: str, step: int) -> None:
        """Point the link `last` or `best` to a checkpoint, atomically."""
        link, new = self.root / name, self.root / f".{name}{_NEW}"
        new.unlink(missing_ok=True)
        new.symlink_to(Path("checkpoints") / f"step-{step}")
        new.replace(link)
        sync_folder(self.root)

    def linked_step(self, name: str) -> int | None:
        """The step that `last` or `best` points to, or None."""
        link = self.root / name
        match = _STEP.fullmatch(link.readlink().name) if link.is_symlink() else None
        return None if match is None else int(match[1])

    def delete_old(self, keep: int) -> list[str]:
        """Delete all checkpoints but the newest `keep`, the best and the last; returns a warning for each that stays by error."""
        steps = self.steps()
        kept = {self.linked_step("best"), self.linked_step("last"), *steps[-keep:]}
        warnings = []
        for step in steps:
            if step in kept:
                continue
            try:
                _remove(self.step_path(step))
            except OSError as error:
                warnings.append(f"cannot delete the old checkpoint {self.step_path(step)}: {error.strerror}")
        return warnings

    def append_event(self, line: dict[str, Any]) -> None:
        """Add a line to the events; a crash may cut the last line short, and readers skip such a line."""
        with self.events_path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def drop_events_after(self, step: int) -> None:
        """Drop the events of steps that will be repeated."""
        kept = [event for event in self.events() if isinstance(at := event.get("step"), int) and at <= step]
        text = "".join(json.dumps(event) + "\n" for event in kept).encode()
        with replacing(self.events_path, needed=len(text)) as file:
            file.write(text)

    def events(self) -> list[dict[str, Any]]:
        """All events that were written completely, with the names of today."""
        if not self.events_path.exists():
            return []
        found = []
        for line in self.events_path.read_text().splitlines():
            try:
                found.append(current_event(json.loads(line)))
            except json.JSONDecodeError:
                continue  # cut short by a crash
        return found


def _remove(folder: Path) -> None:
    """Delete a checkpoint; rename it first, so that a crash leaves no half-deleted checkpoint under its name."""
    dying = folder.with_name(f".{folder.name}{_DELETED}")
    if dying.exists():
        shutil.rmtree(dying)
    folder.rename(dying)
    shutil.rmtree(dying)
