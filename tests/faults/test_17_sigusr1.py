"""SIGUSR1 asks for a checkpoint: it is written after the current step, and the run continues to the same result."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from tests.faults.runs import ten, with_signals
from tests.training.small import last, losses, run_to, same, small_run
from vitlab.training import train
from vitlab.training.events import Control, Saved, Stepped
from vitlab.training.run_folder import RunDirectory
from vitlab.training.tasks import Classify, Inputs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(ten(), out)
    return out


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


def test_a_requested_checkpoint_changes_no_result(tmp_path: Path) -> None:
    run = small_run(steps=8)
    rare = replace(run, train=replace(run.train, save_every=0, evaluate_every=0))
    run_to(rare, tmp_path / "plain")
    control = Control()
    seen = []
    for event in train(rare, out=tmp_path / "asked", control=control):
        seen.append(event)
        if isinstance(event, Stepped) and event.step == 3:
            control.request_checkpoint()
    assert next(event.step for event in seen if isinstance(event, Saved)) == 3
    assert same(last(tmp_path / "plain"), last(tmp_path / "asked"))
