"""Runs of the tests of faults: small ones, in this process or in one of their own."""

from __future__ import annotations

import codecs
import ctypes
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests import processes
from tests.training.small import last, run_to, same, small_run
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_json, to_text
from vitlab.training import train
from vitlab.training.events import Control, Event, Stepped, Warned, signals
from vitlab.training.run_folder import RunDirectory
from vitlab.training.tasks import Classify, Inputs

_NOBODY = 65534  # the user and group without rights

CHILD = """
import sys
from pathlib import Path
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text
from vitlab.training import train
from vitlab.training.events import Control, signals
control = Control()
with signals(control):
    for event in train(from_text(RunConfig, Path(sys.argv[1]).read_text()), out=sys.argv[2], control=control):
        if event.event in ("stepped", "finished"):
            print(event.event, event.step, flush=True)
"""


@contextmanager
def child(run: RunConfig, folder: Path, warm: Path, *, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The run in its own process, which first calls `before`."""
    (folder / "wanted.json").write_text(to_text(run))
    words: list[str | Path] = [warm / "python", "-c", before + CHILD, folder / "wanted.json", folder / "run"]
    with processes.started(words) as process:
        yield process


def wait_for(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:2] == ["stepped", str(step)]:
            return
    raise AssertionError(process.communicate(timeout=processes.LIMIT)[1])


def reached(out: Path) -> int:
    return max(RunDirectory(out).steps(), default=0)


def losses_of(out: Path) -> list[tuple[object, object]]:
    lines = (out / "events.jsonl").read_text().splitlines()
    return [(event["step"], event["loss"]) for event in map(json.loads, lines) if event["event"] == "stepped"]


def poison(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Make the loss nan in the given calls, counted from 0."""
    real, count = Classify.loss, iter(range(10**6))

    def loss(self: Classify, model: nn.Module, work: Inputs) -> tuple[Tensor, Tensor]:
        loss_B, right_B = real(self, model, work)
        return (loss_B * torch.nan if next(count) in calls else loss_B), right_B

    monkeypatch.setattr(Classify, "loss", loss)


def whole_batches(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, micro_batch=0))


def long_run(*, steps: int, save_every: int = 1) -> RunConfig:
    run = small_run(steps=steps)
    return replace(run, train=replace(run.train, save_every=save_every, evaluate_every=4))


def killed(run: RunConfig, folder: Path, warm: Path, moments: list[dict[str, Any]]) -> list[dict[str, int]]:
    """The outcome of each attempt, when the run is killed at these moments, one after the other."""
    (folder / "plan.json").write_text(json.dumps({"run": to_json(run), "out": str(folder / "run"), "moments": moments}))
    done = processes.run([warm / "python", Path(__file__).parents[1] / "training" / "deaths.py", folder / "plan.json"])
    return list(json.loads(done.stdout))


def ends_like(run: RunConfig, out: Path, whole: Path) -> None:
    """After one more start the run equals an uninterrupted one, and leaves nothing behind."""
    run_to(run, out)
    run_to(run, whole)
    assert same(last(out), last(whole))
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for kind in ("stepped", "evaluated"):
        found, expected = (
            [_what(event) for event in RunDirectory(place).events() if event["event"] == kind] for place in (out, whole)
        )
        assert found == expected
    assert [path.name for path in out.rglob(".*")] == []


def _what(event: dict[str, object]) -> tuple[object, ...]:
    return event["step"], event.get("loss"), event.get("metrics")


def nothing_is_lost(attempts: list[dict[str, int]], *, every: int) -> None:
    """Reported checkpoints exist, no attempt falls behind an earlier one, and at most one interval is repeated."""
    before = 0
    for attempt in attempts:
        assert attempt["kept"] >= max(attempt["saved"], before)
        assert attempt["step"] - attempt["kept"] <= every
        before = attempt["kept"]


def ten(*, save_every: int = 0, evaluate_every: int = 4) -> RunConfig:
    run = small_run(steps=10)
    return replace(run, train=replace(run.train, save_every=save_every, evaluate_every=evaluate_every))


def with_signals(run: RunConfig, out: Path) -> list[Event]:
    control = Control()
    with signals(control):
        return list(train(run, out=out, control=control))


def three(*, steps: int = 8) -> RunConfig:
    run = small_run(steps=steps)
    return replace(run, train=replace(run.train, keep=3, evaluate_every=0))


def words(run: RunConfig, folder: Path) -> list[str]:
    (folder / "run.json").write_text(to_text(run))
    return ["-m", "vitlab", "train", str(folder / "run.json"), "--out", str(folder / "out")]


def workers() -> list[int]:
    """The data workers of this process."""
    return [worker for child in processes.children(os.getpid()) for worker in processes.children(child)]


def strike_the_worker(strike: Callable[[int], None], out: Path) -> None:
    """Train with one worker, whose process is struck after step 3: the run ends with an error, which is raised, and a checkpoint.

    Resumed, it ends with the bits of a run without workers.
    """
    run = ten(evaluate_every=0)
    run = replace(run, data=replace(run.data, loader=replace(run.data.loader, workers=1)))
    steps = list[int]()
    try:
        for event in train(run, out=out):
            if isinstance(event, Stepped):
                steps.append(event.step)
                if event.step == 3:
                    for pid in workers():
                        strike(pid)
    finally:
        assert 3 <= steps[-1] < 10
        assert last(out).progress.step == steps[-1]  # written because of the error: nothing else asked for it
        assert not workers()
        run_to(run, out)
        run_to(ten(evaluate_every=0), out.with_name("whole"))
        assert same(last(out), last(out.with_name("whole")))


def image_folder(root: Path, classes: Sequence[str] = ("bee", "cat", "eel"), *, images: int = 8) -> Path:
    """Class folders of small random images, `root/bee/0.png` and so on."""
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(images):
            Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8)).save(root / name / f"{number}.png")
    return root


def run_on(dataset: Path, *, classes: int = 3, steps: int = 6) -> RunConfig:
    """A run on images of the user, of which the hash of each decides whether it is for training, validation or test."""
    run = small_run(steps=steps)
    return replace(run, model=replace(run.model, num_classes=classes), data=replace(run.data, dataset=str(dataset)))


def warnings_of(events: Iterable[Event]) -> list[str]:
    """What the run warned of."""
    return [event.message for event in events if isinstance(event, Warned)]


def become_nobody(folder: Path) -> None:
    """Work in a folder without the rights of root, for whom no file is read-only; for other users nothing changes.

    Other processes must not need this one's rights afterwards. Paths are relative to the folder, which lies below private ones.
    """
    os.chdir(folder)
    if os.geteuid() != 0:
        return
    codecs.lookup("utf-8-sig")  # what is imported later must be readable by everybody, and Python itself may not be
    for path in (Path(), *Path().rglob("*")):
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


class Mounts:
    """Mounts that this process alone sees. `possible` says whether the system lets it make any."""

    _PRIVATE, _REMOUNT, _READ_ONLY, _BIND, _ALL, _DETACH = 1 << 18, 32, 1, 4096, 16384, 2

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        new_namespaces = 0x20000 if os.geteuid() == 0 else 0x20000 | 0x10000000  # of mounts, and of users
        self.possible = self._library.unshare(new_namespaces) == 0 and self._mount(b"none", Path("/"), self._PRIVATE | self._ALL)

    def tmpfs(self, folder: Path, *, size: int) -> None:
        """A file system of so many bytes."""
        assert self._mount(b"tmpfs", folder, 0, f"size={size}".encode())

    def make_read_only(self, folder: Path) -> None:
        """From now on nothing below the folder can be written, as after an error of the disk; open files stay open."""
        assert self._mount(os.fsencode(folder), folder, self._BIND)
        assert self._mount(b"none", folder, self._BIND | self._REMOUNT | self._READ_ONLY)

    def unmount(self, folder: Path) -> None:
        """Take a file system away, though it is in use."""
        assert self._library.umount2(os.fsencode(folder), self._DETACH) == 0

    def _mount(self, what: bytes, where: Path, flags: int, options: bytes | None = None) -> bool:
        return bool(self._library.mount(what, os.fsencode(where), b"tmpfs", ctypes.c_ulong(flags), options) == 0)


def in_a_child(warm: Path, code: str, *arguments: str | Path) -> list[str]:
    """The lines that Python code prints in a process of its own; the test is skipped if it prints `impossible: WHY`."""
    lines = processes.run([warm / "python", "-c", code, *map(str, arguments)]).stdout.splitlines()
    for line in lines:
        if line.startswith("impossible: "):
            pytest.skip(line)
    return lines
