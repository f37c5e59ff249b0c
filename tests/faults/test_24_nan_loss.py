"""The loss is not a number: no update is applied, the samples are named, the third in a row ends the run, and no checkpoint has
such weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.faults.runs import poison, ten, whole_batches
from tests.training.small import last, losses, run_to, small_run
from vitlab.config.run import RunConfig
from vitlab.errors import TrainingError
from vitlab.training import checkpointing, train
from vitlab.training.events import Evaluated, Event, Skipped


def test_a_nan_loss_is_not_applied_and_names_its_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    poison(monkeypatch, {4, 6, 7})
    run = whole_batches(small_run(steps=10))
    events = run_to(run, tmp_path / "run")
    skipped = [event for event in events if isinstance(event, Skipped)]
    assert [(event.step, event.in_a_row) for event in skipped] == [(5, 1), (7, 1), (8, 2)]
    assert "nan" in skipped[0].reason
    assert len(skipped[0].samples) == 12
    assert [step for step, _ in losses(events)] == [1, 2, 3, 4, 6, 9, 10]
    assert last(tmp_path / "run").progress.skipped == 3
    assert all(tensor.isfinite().all() for tensor in last(tmp_path / "run").model.values())


def test_the_third_nan_loss_in_a_row_ends_the_run_with_good_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    poison(monkeypatch, {4, 5, 6})
    with pytest.raises(TrainingError, match="at step 7"):
        run_to(whole_batches(small_run()), tmp_path / "run")
    kept = last(tmp_path / "run")
    assert kept.progress.step == 6
    assert all(tensor.isfinite().all() for tensor in kept.model.values())


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
