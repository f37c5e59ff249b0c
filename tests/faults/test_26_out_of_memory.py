"""Memory runs out in a step: the micro-batch is halved and the update stays the same; with a single image it is one error with
a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.faults.runs import ten, whole_batches
from tests.training.small import last, losses, run_to, small_run, without_noise
from vitlab.errors import TrainingError
from vitlab.training.events import MicroBatchReduced
from vitlab.training.tasks import Classify, Inputs

Loss = tuple[Tensor, Tensor]


@pytest.mark.parametrize("words", ["CUDA out of memory", "DefaultCPUAllocator: can't allocate memory: you tried"])
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_update(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = whole_batches(without_noise(small_run(steps=6)))
    expected = losses(run_to(run, tmp_path / "whole"))
    real = Classify.loss

    def loss(self: Classify, model: nn.Module, work: Inputs) -> Loss:
        if len(work.images_BHWC) > 3:
            raise RuntimeError(words)
        return real(self, model, work)

    monkeypatch.setattr(Classify, "loss", loss)
    events = run_to(run, tmp_path / "parts")
    (shrunk,) = [event for event in events if isinstance(event, MicroBatchReduced)]
    assert shrunk.micro_batch == 3
    for (_, one), (_, other) in zip(losses(events), expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    for name, tensor in last(tmp_path / "whole").model.items():
        torch.testing.assert_close(tensor, last(tmp_path / "parts").model[name], atol=1e-6, rtol=1e-5)


def test_out_of_memory_with_one_image_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def loss(self: Classify, model: nn.Module, work: Inputs) -> Loss:
        raise MemoryError

    monkeypatch.setattr(Classify, "loss", loss)
    with pytest.raises(TrainingError, match="single image"):
        run_to(small_run(), tmp_path / "run")


def test_another_error_of_the_model_is_not_taken_for_out_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def loss(self: Classify, model: nn.Module, work: Inputs) -> Loss:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(Classify, "loss", loss)
    with pytest.raises(RuntimeError, match="multiplied"):
        run_to(small_run(), tmp_path / "run")


def test_out_of_memory_with_one_image_leaves_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, calls = Classify.loss, iter(range(10**6))

    def loss(self: Classify, model: nn.Module, work: Inputs) -> tuple[Tensor, Tensor]:
        if next(calls) >= 3 * 6:
            raise MemoryError
        return real(self, model, work)

    monkeypatch.setattr(Classify, "loss", loss)
    with pytest.raises(TrainingError, match="single image") as caught:
        run_to(ten(evaluate_every=0), tmp_path / "run")
    assert last(tmp_path / "run").progress.step == 6
    assert str(caught.value.hint).endswith(f"step 6 is saved in {tmp_path / 'run'}")


def test_the_micro_batch_size_changes_nothing_but_rounding(tmp_path: Path) -> None:
    still = without_noise(small_run(steps=6))
    whole = run_to(replace(still, train=replace(still.train, micro_batch=0)), tmp_path / "whole")
    parts = run_to(replace(still, train=replace(still.train, micro_batch=5)), tmp_path / "parts")
    for (_, one), (_, other) in zip(losses(whole), losses(parts), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    for name, tensor in last(tmp_path / "whole").model.items():
        torch.testing.assert_close(tensor, last(tmp_path / "parts").model[name], atol=1e-6, rtol=1e-5)
