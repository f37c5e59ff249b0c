"""A run folder at an address: the run works in a local folder, the stage, and what is finished is copied to the server.

    run.json, data.npz                 the config and the record of the data
    checkpoints/step-N/...             as on disk; progress.json, which has the SHA-256 of the other files, comes last
    last, best                         small files, `checkpoints/step-N`: written after everything of that checkpoint was verified
    events.jsonl, model.safetensors    with each checkpoint; at the end
    id                                 which run this is
    lock/N                             the lease of the N-th writer

So a checkpoint on the server is complete or not there: until `last` names it, nobody reads it, and the next upload overwrites or
deletes what a killed one left. A start on another machine finds an empty stage, copies the checkpoint that `last` names and resumes
bit-exactly. A stage of the same run that is further than the server (the network was gone) is continued. One of another run, or of
one that was deleted on the server, is removed: the server has the truth.

Two writers. Who wants to write creates lock/N+1, which the server allows to one of several at the same moment (`create`), and
renews it every 15 s. A second writer waits a minute for a sign of life: with one it is refused, without one it takes over with the
next number. Before `last` is written, and before anything is deleted, the holder looks whether somebody has taken over. A holder
that is suspended between this look and the write could still write one pointer; it names a complete checkpoint all the same.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from vitlab.checkpoints.remote_copy import BEST, FACTS, LAST, MODEL, pointed
from vitlab.errors import CheckpointError, DataError, StorageError, TrainingError, VitlabError
from vitlab.io.address import Address, Place, place_of
from vitlab.io.atomic import has_died, locked
from vitlab.io.cache import cache_folder
from vitlab.io.remote import Info, create, delete, download, files_below, read_now, upload, write
from vitlab.training.run_folder import RunDirectory

_ID = "id"
_SMALL = 2**16
_KNOWN = ".remote-id"  # in the stage: which run it is of
_LINKED = ".publish"  # in the stage: what is being copied, so that an old checkpoint may be deleted meanwhile
_STEP = re.compile(r"checkpoints/step-(\d+)/")
_TRIES = 5


def stage_of(address: Address) -> Path:
    """The local folder in which the run at an address works."""
    key = blake2b(str(address).rstrip("/").encode(), digest_size=8).hexdigest()
    return cache_folder() / "runs" / f"{address.name}-{key}"


def run_directory(out: str | os.PathLike[str] | Address) -> RunDirectory:
    """The run folder on disk or at an address."""
    place: Place = place_of(out)
    return RemoteRunDirectory(place) if isinstance(place, Address) else RunDirectory(place)


class RemoteRunDirectory(RunDirectory):
    """The folder of one run at an address; `root` is its stage."""

    shared = False

    def __init__(self, address: Address, *, lease: float = 60.0) -> None:
        super().__init__(stage_of(address))
        self.address = address
        self._lease = Lease(address, seconds=lease)
        self._job: threading.Thread | None = None
        self._fault: VitlabError | OSError | None = None
        self._published: set[str] = set()  # files that do not change during a run

    @contextmanager
    def locked(self, *, wait: float = 0.0) -> Iterator[None]:
        """Be the only writer on the server and in the stage, which first gets the newest checkpoint; `wait` as on disk.

        When the block ends, everything that is finished is on the server; TrainingError if that is impossible.
        """
        with self._lease.held(wait=wait):
            self._restore()
            with super().locked(wait=wait):
                ahead = self.steps()[-1:] if self._is_ahead() else []
                for step in ahead:
                    self.publish(step)
                try:
                    yield
                except BaseException:
                    with suppress(VitlabError, OSError):  # the error of the run is the one to see
                        self._finish()
                    raise
                self._finish()

    def join(self) -> None:
        """On a rank of another host: copy the checkpoint that the first rank resumes from."""
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root.with_name(f".{self.root.name}.lock")):
            self._restore(owner=False)

    def publish(self, step: int) -> list[str]:
        """Copy a checkpoint to the server in the background, after the one before it; what went wrong with that, as a warning."""
        warnings = self._wait()
        kept = self.root / _LINKED
        shutil.rmtree(kept, ignore_errors=True)
        folder = self.step_path(step)
        try:
            (kept / folder.name).mkdir(parents=True)
            for file in folder.iterdir():
                if not file.name.startswith("."):
                    os.link(file, kept / folder.name / file.name)
        except OSError as error:
            return [*warnings, f"step {step} is not copied to {self.address}: {error.strerror}"]
        best, steps = self.linked_step(BEST), set(self.steps())
        self._job = threading.Thread(target=self._work, args=(step, best, steps, kept / folder.name), name="vitlab-publisher")
        self._job.start()
        return warnings

    def _work(self, step: int, best: int | None, steps: set[int], folder: Path) -> None:
        try:
            self._copy_facts()
            place = self.address / f"checkpoints/step-{step}"
            for file in sorted(folder.iterdir(), key=lambda file: file.name == "progress.json"):
                upload(file, place / file.name)
            self._lease.check()
            write(self.address / LAST, f"checkpoints/step-{step}\n".encode())
            if best == step:
                write(self.address / BEST, f"checkpoints/step-{best}\n".encode())
            self._copy_events()
            self._delete_old(steps | {step} | {pointed(self.address, BEST) or step})
        except (VitlabError, OSError) as fault:
            self._fault = fault

    def _copy_facts(self) -> None:
        for name in FACTS[:2]:
            path = self.root / name
            if path.is_file() and (name not in self._published or name == FACTS[0]):
                upload(path, self.address / name)
                self._published.add(name)

    def _copy_events(self) -> None:
        if self.events_path.is_file():
            write(self.address / FACTS[2], self.events_path.read_bytes())

    def _delete_old(self, kept: set[int]) -> None:
        """Delete the checkpoints on the server that the run has deleted here; progress.json first, so that none is half."""
        old = [name for name in files_below(self.address) if (found := _STEP.match(name)) and int(found[1]) not in kept]
        if old:
            self._lease.check()
        for name in sorted(old, key=lambda name: not name.endswith("progress.json")):
            delete(self.address / name)

    def _wait(self) -> list[str]:
        """Wait for the copy in progress; what went wrong with it."""
        if self._job is not None:
            self._job.join()
            self._job = None
        fault, self._fault = self._fault, None
        if fault is None:
            return []
        if isinstance(fault, TrainingError):  # somebody else writes there now
            raise fault
        said = fault.message if isinstance(fault, VitlabError) else str(fault)
        return [f"the checkpoint is not on the server yet, and the next one is tried again: {said}"]

    def _finish(self) -> None:
        """Wait for the last checkpoint, and copy the model and the events; TrainingError if that is impossible."""
        where = f"everything is in {self.root}; run the same command again to copy it"
        warnings = self._wait()
        if warnings and self.steps():  # once more: the server may be back
            self.publish(self.steps()[-1])
            warnings = self._wait()
        if warnings:
            raise TrainingError(warnings[0], hint=where)
        try:
            self._copy_facts()
            if self.model_path.is_file():
                upload(self.model_path, self.address / MODEL)
            self._copy_events()
        except (StorageError, OSError) as error:
            raise TrainingError(f"cannot finish {self.address}: {error}", hint=where) from error

    def _is_ahead(self) -> bool:
        """Whether the stage has a checkpoint that the server does not have."""
        there, here = pointed(self.address, LAST), self.steps()
        return bool(here) and (there is None or here[-1] > there)

    def _restore(self, *, owner: bool = True) -> None:
        """Make the stage one of the run on the server, with the checkpoints that it names."""
        there = self._identity(owner)
        known = self.root / _KNOWN
        here = known.read_text(encoding="utf-8") if known.is_file() else None
        if here != there:
            shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True, exist_ok=True)
        for attempt in range(_TRIES):
            try:
                self._copy_here()
                break
            except DataError as error:  # a checkpoint was deleted while it was copied
                if attempt + 1 == _TRIES:
                    raise TrainingError(f"cannot resume from {self.address}: {error.message}") from error
        known.write_text(there, encoding="utf-8")

    def _identity(self, owner: bool) -> str:
        """Which run is on the server; the first writer decides."""
        for _ in range(_TRIES):
            with suppress(DataError):
                return read_now(self.address / _ID, most=_SMALL).decode("utf-8", "replace")
            if owner:
                create(self.address / _ID, secrets.token_hex(8).encode())
        raise TrainingError(f"{self.address} has no run yet")

    def _copy_here(self) -> None:
        steps = [step for step in (pointed(self.address, LAST), pointed(self.address, BEST)) if step is not None]
        if not steps:
            return
        names = files_below(self.address)
        newer = steps[0] not in self.steps() and (not self.steps() or self.steps()[-1] < steps[0])
        for name in FACTS:
            if name in names and (newer or not (self.root / name).is_file()):
                self._download(name, names[name])
        if MODEL in names and newer:
            self._download(MODEL, names[MODEL])
        for step, link in zip(steps, (LAST, BEST), strict=False):
            if step not in self.steps() and (newer or link == BEST):
                self._download_checkpoint(step, names)
            if step in self.steps() and (newer or self.linked_step(link) is None):
                self.set_link(link, step)

    def _download_checkpoint(self, step: int, names: dict[str, Info]) -> None:
        start = f"checkpoints/step-{step}/"
        wanted = [name for name in names if name.startswith(start)]
        if not any(name.endswith("progress.json") for name in wanted):
            raise DataError(f"{self.address / start} is not there any more")
        new = self.checkpoints / f".step-{step}.vitlab-tmp"  # what a killed process leaves of it, the next removes
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for name in wanted:
            download(self.address / name, new / name.removeprefix(start), names[name])
        new.rename(self.step_path(step))

    def _download(self, name: str, found: Info) -> None:
        download(self.address / name, self.root / name, found)


class Lease:
    """The right to write to a folder on a server, until it is released or not renewed for `seconds`."""

    def __init__(self, address: Address, *, seconds: float = 60.0) -> None:
        self.folder = address / "lock"
        self.number = 0
        self._seconds = seconds
        self._token = secrets.token_hex(8)
        self._lost = threading.Event()
        self._ended = threading.Event()

    @contextmanager
    def held(self, *, wait: float = 0.0) -> Iterator[None]:
        """Hold the lease during the block; TrainingError names the other holder if it is alive after `wait` seconds."""
        self._acquire(time.monotonic() + wait)
        renewing = threading.Thread(target=self._renew, name="vitlab-lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._ended.set()
            renewing.join()
            with suppress(VitlabError):  # not released, it ends by itself
                if not self._lost.is_set():
                    write(self._place(self.number), self._text(0, released=True))

    def check(self) -> None:
        """TrainingError if somebody else has taken over."""
        if self._lost.is_set() or self._newest() != self.number:
            self._lost.set()
            raise TrainingError(
                f"another process has taken over {self.folder.parent}, because this one did not answer for {self._seconds:g} s",
                hint="let the other one finish",
            )

    def _acquire(self, deadline: float) -> None:
        while True:
            number = self._newest()
            if number and not self._is_free(number, deadline):
                continue  # somebody took it first, or its holder lives and may end soon
            if create(self._place(number + 1), self._text(0)):
                self.number = number + 1
                for old in range(max(1, number - 5), number + 1):
                    delete(self._place(old))
                return

    def _is_free(self, number: int, refuse_after: float) -> bool:
        """Whether a lease has been released, or its holder is dead; False if another one has come.

        False also if the holder lives, and TrainingError if it does after a time (monotonic seconds).
        """
        first = self._read(number)
        if first is None or first.get("released"):
            return True
        if first.get("machine") == _machine() and has_died(str(first.get("holder"))):
            return True
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            time.sleep(min(2.0, self._seconds / 8))
            now = self._read(number)
            if self._newest() != number:
                return False
            if now is None or now.get("released"):
                return True
            if now.get("beat") != first.get("beat") and time.monotonic() < refuse_after:
                return False
            if now.get("beat") != first.get("beat"):
                raise TrainingError(
                    f"{self.folder.parent} is in use by {first.get('holder')}",
                    hint="wait for it, stop it, or choose another folder",
                )
        return True

    def _renew(self) -> None:
        beat = 0
        while not self._ended.wait(self._seconds / 4):
            beat += 1
            try:
                if self._newest() != self.number:
                    self._lost.set()
                    return
                write(self._place(self.number), self._text(beat))
            except VitlabError:
                continue  # the server does not answer; `check` decides whether somebody took over

    def _newest(self) -> int:
        return max((int(name) for name in files_below(self.folder) if name.isdigit()), default=0)

    def _place(self, number: int) -> Address:
        return self.folder / f"{number:06d}"

    def _text(self, beat: int, *, released: bool = False) -> bytes:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        facts = {"holder": holder, "machine": _machine(), "token": self._token, "beat": beat, "released": released}
        return json.dumps(facts).encode()

    def _read(self, number: int) -> dict[str, object] | None:
        try:
            found = json.loads(read_now(self._place(number), most=_SMALL, error=CheckpointError))
        except (CheckpointError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _machine() -> str:
    """What tells this machine, since its last start, from others with the same name; a new text each time where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return secrets.token_hex(8)
