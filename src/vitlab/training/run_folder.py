"""A run folder: what is in it, and who may write to it.

    run.json               the run's config
    data.npz               the record of the run's data, with which a resumed run compares its data
    events.jsonl           the run's events, a line each
    checkpoints/step-N/    everything needed to resume after N steps
    last, best             links to checkpoints
    model.safetensors      the trained model, once the run is finished
    lock                   held by the process that writes, with its id and host

A checkpoint folder appears complete or not at all, and `last` moves only once the checkpoint is on disk. A copy of the folder may
hold folders or nothing instead of links; the next start makes them links again.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vitlab.config.overrides import differences
from vitlab.config.renamed import current_event
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text, to_text
from vitlab.errors import ConfigError, DataError, TrainingError
from vitlab.io.atomic import REPLACED, UNFINISHED, cannot_write, clear_unfinished, locked, replacing, sync_folder
from vitlab.io.display import json_text
from vitlab.io.files import read_bytes, read_text
from vitlab.training.run_data import DataRecord, refuse_other_labels

_STEP = re.compile(r"step-(\d+)")
_NEW, _DELETED = ".new", ".deleted"  # suffixes of a link not yet in place, and of a checkpoint that is being deleted


_MOST_EVENTS = 2**31  # bytes
_ELSEWHERE = "choose another folder with `out`"


class RunDirectory:
    """The folder of one run; `root` is created if it does not exist.

    `warnings` are sentences about what does not end a run, such as a file that cannot be deleted. `data` is the record of the
    data that `begin` was given.
    """

    shared = True  # whether every rank sees the same folder

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.checkpoints = self.root / "checkpoints"
        self.warnings: list[str] = []
        self.data: DataRecord | None = None
        self._undeletable: set[int] = set()

    @property
    def config_path(self) -> Path:
        """The file of the run's config."""
        return self.root / "run.json"

    @property
    def events_path(self) -> Path:
        """The file of the run's events."""
        return self.root / "events.jsonl"

    @property
    def data_path(self) -> Path:
        """The file of the record of the run's data."""
        return self.root / "data.npz"

    @property
    def model_path(self) -> Path:
        """The file of the trained model."""
        return self.root / "model.safetensors"

    def step_path(self, step: int) -> Path:
        """The folder of the checkpoint after that many steps."""
        return self.checkpoints / f"step-{step}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        try:
            return sorted(int(match[1]) for entry in self.checkpoints.iterdir() if (match := _STEP.fullmatch(entry.name)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise TrainingError(f"cannot read {self.checkpoints}: {error.strerror}", hint=_ELSEWHERE) from error

    def config(self) -> RunConfig | None:
        """The config of the run in this folder, or None; ConfigError names a file that cannot be read."""
        if not os.path.lexists(self.config_path):
            return None
        try:
            return from_text(RunConfig, read_text(self.config_path, error=ConfigError))
        except (ValueError, RecursionError, ConfigError) as error:
            raise ConfigError(
                f"{self.config_path} is not the config of a run: {error.message if isinstance(error, ConfigError) else error}",
                hint="restore the file, or delete it to resume with the config that you give",
            ) from error

    def check_place(self) -> None:
        """TrainingError if the folder cannot be made, since a file is in its way or a folder may not be written to."""
        there = next(place for place in (self.root, *self.root.absolute().parents) if os.path.lexists(place))
        if not there.is_dir():
            raise self._cannot_write(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.root)))
        if not os.access(there, os.W_OK | os.X_OK):
            raise self._cannot_write(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.root)))

    @contextmanager
    def locked(self, *, wait: float = 0.0) -> Iterator[None]:
        """Be the only writer, at the latest after `wait` seconds; TrainingError names the other one.

        The lock of a killed process is gone with it. What a killed process left is removed, and links that a copy lost are made
        again.
        """
        with ExitStack() as stack:
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.root / "lock", refuse=self._in_use, wait=wait))
                for folder in (self.root, self.checkpoints):
                    _try_to_write(folder)
                self._remove_leftovers()
                self._restore_links()
            except OSError as error:
                raise self._cannot_write(error) from error
            yield

    def _in_use(self, holder: str) -> TrainingError:
        return TrainingError(f"{self.root} is in use by {holder}", hint="wait for it, stop it, or choose another folder")

    def _cannot_write(self, error: OSError) -> TrainingError:
        fault = cannot_write(Path(error.filename or self.root), error, error=TrainingError)
        return TrainingError(fault.message, hint=fault.hint or _ELSEWHERE)

    def _remove_leftovers(self) -> None:
        """Remove what a killed process left half written or half deleted; what cannot be removed is a warning."""
        for entry in [*self.checkpoints.iterdir(), *self.root.iterdir()]:
            if entry.name.endswith(REPLACED):
                clear_unfinished(entry.with_name(entry.name.split(".")[1]))
            elif entry.name.startswith(".") and entry.name.endswith((UNFINISHED, _DELETED, _NEW)):
                try:
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
                except OSError as error:
                    self.warnings.append(f"cannot delete {entry}, which an earlier process left: {error.strerror}")

    def _restore_links(self) -> None:
        """Make `last` and `best` links again, where a copy or an archive of the run folder holds folders, files or nothing."""
        steps = self.steps()
        for name in ("last", "best") if steps else ():
            link = self.root / name
            if link.is_symlink():
                continue
            if link.is_dir() and not any(link.iterdir()):
                link.rmdir()  # some archivers keep of a link to a folder its name alone
            copy = link.is_dir()
            step = _step_in(link) if copy else self._lost_step(name)
            if step not in steps:
                if copy:
                    self.warnings.append(f"{link} is not a link to a checkpoint of this run, and is left as it is")
                continue
            if copy:
                _remove(link)
            self.set_link(name, step)

    def _lost_step(self, name: str) -> int | None:
        """The step that a link pointed to, by its text if a program wrote that instead, else by the events."""
        link = self.root / name
        if link.is_file():
            match = _STEP.fullmatch(Path(link.read_text(encoding="utf-8", errors="replace").strip()).name)
            return None if match is None else int(match[1])
        if name == "last":
            return self.steps()[-1]
        best = [event.get("step") for event in self.events() if event.get("event") == "evaluated" and event.get("best")]
        return best[-1] if best and isinstance(best[-1], int) else None

    def begin(self, run: RunConfig, data: DataRecord, *, override: bool = False) -> list[str]:
        """Write the run's config and the record of its data, or check that they match the folder's.

        Settings that do not affect the weights, such as the number of workers, may change. Any other change, and other samples,
        are refused and named, unless `override`, which writes the new config and record. Other classes are always refused. A
        folder without a checkpoint accepts any config and data. Returns how the data has changed.
        """
        self.data = data
        resumes = bool(self.steps())
        known = DataRecord.read(self.data_path) if resumes and self.data_path.exists() else None
        if known is not None:
            refuse_other_labels(known.labels, data.labels, where=self.root)
        elif resumes:
            self.warnings.append(f"{self.root} has no record of its data, so the data is not compared; now it has one")
        changed = [] if known is None else known.changes(data)
        if changed and not override:
            raise DataError(
                f"{self.root} was started with other data: {'; '.join(changed)}",
                hint=f"restore the data, {_ELSEWHERE}, or confirm the change with `override=True`",
            )
        before = self._known_config(override)
        if resumes and before is not None and not override and (changes := differences(before, run, course=True)):
            raise ConfigError(
                f"{self.root} was started with another config: {', '.join(changes)}",
                hint=f"{_ELSEWHERE}, or confirm the change with `override=True`",
            )
        if before != run:
            text = to_text(run).encode()
            with replacing(self.config_path, needed=len(text), error=TrainingError) as file:
                file.write(text)
        if known is None or changed or known.splits.keys() != data.splits.keys():
            data.write(self.data_path)
        return changed

    def _known_config(self, override: bool) -> RunConfig | None:
        try:
            return self.config()
        except ConfigError as error:
            if not override:
                raise
            self.warnings.append(f"{error.message}; it is replaced")
            return None

    def set_link(self, name: str, step: int) -> None:
        """Point the link `last` or `best` to a checkpoint, atomically; CheckpointError if that is impossible."""
        link, new = self.root / name, self.root / f".{name}{_NEW}"
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(Path("checkpoints") / f"step-{step}")
            new.replace(link)
            sync_folder(self.root)
        except OSError as error:
            raise cannot_write(link, error) from error

    def linked_step(self, name: str) -> int | None:
        """The step that `last` or `best` points to, or None."""
        link = self.root / name
        match = _STEP.fullmatch(link.readlink().name) if link.is_symlink() else None
        return None if match is None else int(match[1])

    def delete_old(self, keep: int) -> list[str]:
        """Delete all checkpoints but the newest `keep`, the best and the last; returns a warning for each that cannot be deleted.

        Such a checkpoint is tried once in each process.
        """
        steps = self.steps()
        kept = {self.linked_step("best"), self.linked_step("last"), *steps[-keep:]}
        warnings = []
        for step in steps:
            if step in kept or step in self._undeletable:
                continue
            try:
                _remove(self.step_path(step))
            except OSError as error:
                self._undeletable.add(step)
                warnings.append(f"cannot delete the old checkpoint {self.step_path(step)}: {error.strerror}")
        return warnings

    def publish(self, step: int) -> list[str]:
        """Make a finished checkpoint known outside this folder; warnings. A folder on disk is known already."""
        return []

    def join(self) -> None:
        """On a rank other than the first, which has opened the folder: make it visible here, unless it is `shared`."""

    def append_event(self, line: dict[str, Any]) -> None:
        """Add a line to the events; a crash may cut the last line short, and readers skip such a line."""
        with self.events_path.open("a", encoding="utf-8") as file:
            file.write(json_text(line) + "\n")

    def drop_events_after(self, step: int) -> None:
        """Drop the events of steps that will be repeated; CheckpointError if the file cannot be written."""
        kept = [event for event in self.events() if isinstance(at := event.get("step"), int) and at <= step]
        text = "".join(json_text(event) + "\n" for event in kept).encode()
        with replacing(self.events_path, needed=len(text)) as file:
            file.write(text)

    def events(self) -> list[dict[str, Any]]:
        """All events that were written completely, with the names of today; none if the file cannot be read."""
        try:
            lines = read_bytes(self.events_path, most=_MOST_EVENTS, error=TrainingError).splitlines()
        except TrainingError:
            return []  # events describe a run and never change it
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue  # cut short by a crash, or damaged
            if isinstance(event, dict):
                event = current_event(event)
                if isinstance(metrics := event.get("metrics"), dict):  # what is not finite is null in JSON
                    event["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
                found.append(event)
        return found


def _try_to_write(folder: Path) -> None:
    """OSError if no file can be made in a folder: better now than at the first checkpoint."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _remove(folder: Path) -> None:
    """Delete a checkpoint; rename it first, so that a crash leaves no half-deleted checkpoint under its name."""
    dying = folder.with_name(f".{folder.name}{_DELETED}")
    if dying.exists():
        shutil.rmtree(dying)
    folder.rename(dying)
    shutil.rmtree(dying)


def _step_in(folder: Path) -> int | None:
    """The step of the checkpoint in a folder; None if there is none."""
    try:
        step = json.loads((folder / "progress.json").read_bytes())["progress"]["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None


def rescue_folders(root: Path) -> Iterator[Path]:
    """New, empty folders for what cannot be written into the run folder `root`: beside it, then among the temporary files."""
    for parent in (root.absolute().parent, Path(tempfile.gettempdir())):
        try:
            yield Path(tempfile.mkdtemp(prefix=f"{root.name}-rescued-", dir=parent))
        except OSError:
            continue  # the next one may be on a disk that works
