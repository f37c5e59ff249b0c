"""Signals and dying workers during a run: wherever they strike, a checkpoint is kept, and resuming changes no bit."""

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
from tests.training.small import last, losses, run_to, same, small_run
from tests.training.test_faults import CHILD
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_text
from vitlab.data.batch import Batch
from vitlab.data.dataset import Pixels
from vitlab.data.sampler import Picks
from vitlab.data.synthetic.dataset import SyntheticDataset
from vitlab.data.workers.threads import InCaller
from vitlab.errors import DataError, TrainingError
from vitlab.inference.backends import Backend, Outputs
from vitlab.inference.engine import run_batches
from vitlab.training import checkpointing, train, trainer
from vitlab.training.control import Control, signals
from vitlab.training.events import Evaluated, Event, Finished, Saved, Stepped
from vitlab.training.run_folder import RunDirectory
from vitlab.training.state import Snapshot
from vitlab.training.tasks import Classify, Inputs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def ten(*, save_every: int = 0, evaluate_every: int = 4) -> RunConfig:
    run = small_run(steps=10)
    return replace(run, train=replace(run.train, save_every=save_every, evaluate_every=evaluate_every))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(ten(), out)
    return out


def with_signals(run: RunConfig, out: Path) -> list[Event]:
    control = Control()
    with signals(control):
        return list(train(run, out=out, control=control))


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

    monkeypatch.setattr(trainer, "run_batches", run)


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
        told, expected = (
            [
                (event["step"], event.get("loss"), event.get("metrics"))
                for event in RunDirectory(out).events()
                if event["event"] == kind
            ]
            for out in (tmp_path / "run", whole)
        )
        assert told == expected


def test_sigusr1_writes_a_checkpoint_and_changes_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, calls = Classify.loss, iter(range(10**6))

    def loss(self: Classify, model: nn.Module, work: Inputs) -> tuple[Tensor, Tensor]:
        if next(calls) == 3 * 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real(self, model, work)

    monkeypatch.setattr(Classify, "loss", loss)
    events = with_signals(ten(evaluate_every=0), tmp_path / "run")
    assert next(event.step for event in events if isinstance(event, Saved)) == 3
    assert losses(events) == [
        (event["step"], event["loss"]) for event in RunDirectory(whole).events() if event["event"] == "stepped"
    ]
    for name, tensor in last(whole).model.items():
        assert tensor.equal(last(tmp_path / "run").model[name])


STUCK = """
from vitlab.training.control import Control
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


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """`nohup vitlab finetune ... &`: a Ctrl-C meant for another program does not stop it, SIGTERM does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control = Control()
        asked = []
        with signals(control):
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
                asked.append(control.stop)
        assert asked == [None, "terminated"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def workers() -> list[int]:
    """The data workers of this process."""
    return [worker for child in processes.children(os.getpid()) for worker in processes.children(child)]


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs the children of a process in /proc")
@pytest.mark.parametrize(
    ("number", "words", "timeout"), [(signal.SIGKILL, "was killed by SIGKILL", 120.0), (signal.SIGSTOP, "no progress", 10.0)]
)
def test_a_worker_that_dies_or_hangs_ends_the_run_with_its_name_and_a_checkpoint(
    number: signal.Signals, words: str, timeout: float, whole: Path, tmp_path: Path
) -> None:
    run = ten(evaluate_every=0)
    loader = replace(run.data.loader, workers=1, timeout=timeout)
    run = replace(run, data=replace(run.data, loader=loader))
    steps = list[int]()

    def strike() -> None:
        for event in train(run, out=tmp_path / "run"):
            if isinstance(event, Stepped):
                steps.append(event.step)
                if event.step == 3:
                    for pid in workers():
                        os.kill(pid, number)

    with pytest.raises(DataError, match=words):
        strike()
    reached = steps[-1]
    assert 3 <= reached < 10
    assert last(tmp_path / "run").progress.step == reached  # written because of the error: nothing else asked for it
    assert not workers()
    run_to(ten(), tmp_path / "run")
    for name, tensor in last(whole).model.items():
        assert tensor.equal(last(tmp_path / "run").model[name])


def test_out_of_memory_with_one_image_leaves_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, calls = Classify.loss, iter(range(10**6))

    def loss(self: Classify, model: nn.Module, work: Inputs) -> tuple[Tensor, Tensor]:
        if next(calls) >= 3 * 6:
            raise MemoryError
        return real(self, model, work)

    monkeypatch.setattr(Classify, "loss", loss)
    with pytest.raises(TrainingError, match="single image"):
        run_to(ten(evaluate_every=0), tmp_path / "run")
    assert last(tmp_path / "run").progress.step == 6


def test_a_clock_that_jumps_changes_neither_the_run_nor_its_limit(
    whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The time of day may be set back or forward by years during a run; only the monotonic clock is used."""
    hours = iter(range(0, -(10**9), -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    run = ten()
    limited = replace(run, train=replace(run.train, max_minutes=60.0))
    events = run_to(limited, tmp_path / "run")
    monkeypatch.undo()
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "finished"
    assert all(event.seconds >= 0 for event in events if isinstance(event, Stepped | Saved | Finished))
    assert same(last(tmp_path / "run"), last(whole))


def test_nan_weights_never_become_the_last_or_the_best_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = ten(save_every=1, evaluate_every=2)
    seen = list[Event]()
    with pytest.raises(TrainingError, match="not a number"):
        seen.extend(poisoned(run, tmp_path / "run", monkeypatch))
    assert [event.step for event in seen if isinstance(event, Evaluated)] == [2, 4]
    for name in ("last", "best"):
        kept = checkpointing.read_snapshot(tmp_path / "run" / name)
        assert kept.progress.step <= 4
        assert all(tensor.isfinite().all() for tensor in kept.model.values())


def poisoned(run: RunConfig, out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """A run whose fifth step leaves a nan weight, though loss and gradient were finite."""
    import torch

    real, calls = torch.optim.AdamW.step, iter(range(10**6))

    def step(self: torch.optim.AdamW, closure: None = None) -> None:
        real(self, closure)
        if next(calls) == 4:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(torch.nan)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    yield from train(run, out=out)
