"""SIGTERM strikes in a step, a wait for images, an evaluation or a save: the step ends, a checkpoint is written, and resuming
changes no bit; a second SIGTERM ends the run at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from tests import processes
from tests.faults.runs import CHILD, child, ten, wait_for, with_signals
from tests.training.small import last, run_to, same, small_run
from vitlab.config.serialize import to_text
from vitlab.data.batch import Batch
from vitlab.data.dataset import Pixels
from vitlab.data.sampler import Picks
from vitlab.data.synthetic import SyntheticDataset
from vitlab.data.worker_threads import InCaller
from vitlab.inference.backends import Backend, Outputs
from vitlab.inference.engine import run_batches
from vitlab.training import checkpointing, tasks
from vitlab.training.events import Finished
from vitlab.training.run_folder import RunDirectory
from vitlab.training.step import Snapshot
from vitlab.training.tasks import Classify, Inputs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(ten(), out)
    return out


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def strike_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two micro-batches of a step."""
    real, calls = Classify.loss, iter(range(10**6))

    def loss(self: Classify, model: nn.Module, work: Inputs) -> tuple[Tensor, Tensor]:
        if next(calls) == 3 * 4 + 1:  # three parts an update; in the middle of the fifth
            terminate()
        return real(self, model, work)

    monkeypatch.setattr(Classify, "loss", loss)


def strike_in_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the run waits for an image that never arrives."""
    real, calls = InCaller.start, iter(range(10**6))

    def start(self: InCaller, number: int, picks: Picks) -> None:
        if next(calls) == 2:
            terminate()
            time.sleep(3600)  # longer than a test may take
        real(self, number, picks)

    monkeypatch.setattr(InCaller, "start", start)


def strike_in_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an image is generated, by code that handles every error as a fault of the image."""
    real, real_loss, parts = SyntheticDataset.images, Classify.loss, list[Inputs]()

    def loss(self: Classify, model: nn.Module, work: Inputs) -> tuple[Tensor, Tensor]:
        parts.append(work)
        return real_loss(self, model, work)

    def images(self: SyntheticDataset, indices: Sequence[int]) -> Pixels:
        if len(parts) == 3 * 2:  # after the second update
            terminate()
        return real(self, indices)

    monkeypatch.setattr(Classify, "loss", loss)
    monkeypatch.setattr(SyntheticDataset, "images", images)


def strike_in_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """During an evaluation, with the averaged weights in the model."""
    calls = iter(range(10**6))

    def run(backend: Backend, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Outputs | None]]:
        def struck() -> Iterator[Batch]:
            for number, batch in enumerate(batches):
                if number == 0 and first:
                    terminate()
                yield batch

        first = next(calls) == 0
        return run_batches(backend, struck())

    monkeypatch.setattr(tasks, "run_batches", run)


def strike_in_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a checkpoint is being written."""
    real, calls = checkpointing.write_snapshot, iter(range(10**6))

    def write(folder: Path, taken: Snapshot) -> None:
        if next(calls) == 0:
            terminate()
        real(folder, taken)

    monkeypatch.setattr(checkpointing, "write_snapshot", write)


STRIKES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "step": strike_in_a_step,
    "wait": strike_in_a_wait,
    "image": strike_in_an_image,
    "evaluation": strike_in_an_evaluation,
    "save": strike_in_a_save,
}


@pytest.mark.parametrize("where", STRIKES)
def test_sigterm_stops_the_run_wherever_it_strikes_and_resuming_changes_no_bit(
    where: str, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between two micro-batches; waiting for images; in an evaluation; while a checkpoint is written."""
    STRIKES[where](monkeypatch)
    events = with_signals(ten(), tmp_path / "run")
    monkeypatch.undo()
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "terminated"
    assert (
        last(tmp_path / "run").progress.step
        == events[-1].step
        == {"step": 5, "wait": 2, "image": 2, "evaluation": 4}.get(where, events[-1].step)
    )
    run_to(ten(), tmp_path / "run")
    assert same(last(tmp_path / "run"), last(whole))
    for kind in ("stepped", "evaluated"):
        found, expected = (
            [
                (event["step"], event.get("loss"), event.get("metrics"))
                for event in RunDirectory(out).events()
                if event["event"] == kind
            ]
            for out in (tmp_path / "run", whole)
        )
        assert found == expected


STUCK = """
from vitlab.training.events import Control
from vitlab.training.tasks import Classify
import time
def loss(self, model, work):
    print("stepped 0", flush=True)
    while True:
        time.sleep(600)
def request_stop(self, reason):
    self.stop = reason
    print("asked", flush=True)
Classify.loss = loss
Control.request_stop = request_stop
"""


def test_a_second_sigterm_ends_the_run_at_once(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "wanted.json").write_text(to_text(ten()))
    words: list[str | Path] = [warm / "python", "-c", STUCK + CHILD, tmp_path / "wanted.json", tmp_path / "run"]
    with processes.started(words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stepped 0\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"  # and the update is not over
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.LIMIT) == 143


def test_a_run_resumed_after_sigterm_equals_an_uninterrupted_one(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=60)
    run = replace(run, train=replace(run.train, save_every=0, evaluate_every=0))
    with child(run, tmp_path, warm) as process:
        wait_for(process, 5)
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=processes.LIMIT)
    assert process.returncode == 0, said
    stopped = last(tmp_path / "run").progress.step
    assert 5 <= stopped < 60
    run_to(run, tmp_path / "run")
    run_to(run, tmp_path / "whole")
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))
