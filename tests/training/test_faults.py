"""Faults during a run: numbers that are not finite, memory, disks and processes that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests import processes
from tests.training.small import last, losses, run_to, same, small_run, without_noise
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_text
from vitlab.errors import TrainingError
from vitlab.io.lock import locked
from vitlab.training import train
from vitlab.training.checkpointing import BackgroundWriter, read_snapshot
from vitlab.training.control import Control
from vitlab.training.events import Finished, MicroBatchReduced, Saved, Skipped, Stepped, Warned
from vitlab.training.run_folder import RunDirectory
from vitlab.training.tasks import Classify, Inputs

Loss = tuple[Tensor, Tensor]


def poison(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Make the loss nan in the given calls, counted from 0."""
    real, count = Classify.loss, iter(range(10**6))

    def loss(self: Classify, model: nn.Module, work: Inputs) -> Loss:
        loss_B, right_B = real(self, model, work)
        return (loss_B * torch.nan if next(count) in calls else loss_B), right_B

    monkeypatch.setattr(Classify, "loss", loss)


def whole_batches(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, micro_batch=0))


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


def test_a_gradient_that_is_not_finite_is_not_applied_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = whole_batches(small_run(steps=5))
    real = nn.utils.clip_grad_norm_
    count = iter(range(100))

    def norm(parameters: list[nn.Parameter], limit: float, *, foreach: bool) -> Tensor:
        if next(count) == 1:
            next(iter(parameters)).grad.fill_(torch.inf)  # type: ignore[union-attr]
        return real(parameters, limit, foreach=foreach)

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", norm)
    events = run_to(run, tmp_path / "run")
    (skipped,) = [event for event in events if isinstance(event, Skipped)]
    assert skipped.step == 2
    assert "gradient" in skipped.reason
    assert all(tensor.isfinite().all() for tensor in last(tmp_path / "run").model.values())


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


def test_a_second_process_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    first = train(small_run(), out=tmp_path / "run")
    next(first)
    with pytest.raises(TrainingError, match=f"process {os.getpid()} on "):
        next(train(small_run(), out=tmp_path / "run"))
    first.close()
    run_to(small_run(steps=20), tmp_path / "run")


def test_the_best_and_the_last_checkpoint_are_kept_and_a_failed_deletion_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "run")
    run = small_run()
    run_to(replace(run, train=replace(run.train, keep=5)), tmp_path / "run")
    steps = directory.steps()
    assert {16, 17, 18, 19, 20} <= set(steps)
    directory.set_link("best", 17)
    monkeypatch.setattr("shutil.rmtree", _refuse)
    troubles = directory.delete_old(1)
    assert len(troubles) == len(steps) - 2
    monkeypatch.undo()
    directory.delete_old(1)
    assert directory.steps() == [17, 20]


def _refuse(path: Path, **_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_leftovers_of_a_killed_process_are_gone_after_the_next_start(tmp_path: Path) -> None:
    run_to(small_run(), tmp_path / "run", stop=2)
    for name in (".step-9.a1b2c3.vitlab-tmp", ".step-1.deleted"):
        (tmp_path / "run" / "checkpoints" / name).mkdir()
        (tmp_path / "run" / "checkpoints" / name / "model.safetensors").write_bytes(b"half")
    (tmp_path / "run" / ".last.new").symlink_to("checkpoints/step-2")
    next(train(small_run(), out=tmp_path / "run"))
    assert sorted(path.name for path in (tmp_path / "run").rglob("*") if path.name.startswith(".")) == []


def test_weights_that_change_during_a_save_do_not_leak_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = BackgroundWriter.start

    def start(self: BackgroundWriter, *arguments: object) -> None:
        slow(self, *arguments)  # type: ignore[arg-type]
        time.sleep(0.02)

    run = small_run(steps=5)
    kept = replace(run, train=replace(run.train, keep=5))
    run_to(kept, tmp_path / "one")
    monkeypatch.setattr(BackgroundWriter, "start", start)
    run_to(kept, tmp_path / "other")
    for step in range(1, 6):
        one, other = (tmp_path / name / "checkpoints" / f"step-{step}" for name in ("one", "other"))
        assert same(read_snapshot(one), read_snapshot(other))


def test_an_error_of_the_writer_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitlab.training.checkpointing.write_snapshot", write)
    with pytest.raises(OSError, match="No space"):
        run_to(small_run(), tmp_path / "run")


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


def test_a_time_limit_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    run = small_run(steps=10_000)
    events = run_to(replace(run, train=replace(run.train, max_minutes=0.02, save_every=0, evaluate_every=0)), tmp_path / "run")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "max-time"
    assert last(tmp_path / "run").progress.step == events[-1].step > 0


def test_patience_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    run = small_run(steps=200)
    frozen = replace(
        run.train,
        optimizer=replace(run.train.optimizer, lr=1e-12),
        evaluate_every=2,
        patience=3,
        average=replace(run.train.average, decay=0.0),
    )
    events = run_to(replace(run, train=frozen), tmp_path / "run")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "patience"
    assert events[-1].step < 20
    assert not any(isinstance(event, Warned) for event in events)


CHILD = """
import sys
from pathlib import Path
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text
from vitlab.training import train
from vitlab.training.control import Control, signals
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


def test_a_run_killed_several_times_ends_bit_identical_without_leftovers(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=30)
    run_to(run, tmp_path / "whole")
    for step in (1, 4, 9, 17):
        with child(run, tmp_path, warm) as process:
            wait_for(process, max(step, _reached(tmp_path / "run") + 1))
            process.kill()
            process.wait(processes.LIMIT)
        with locked(tmp_path / "run" / "lock"):  # free once the run's own process is gone
            pass
        assert _reached(tmp_path / "run") >= step - 2
    run_to(run, tmp_path / "run")
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))
    assert losses_of(tmp_path / "run") == losses_of(tmp_path / "whole")
    hidden = [path.name for path in (tmp_path / "run").rglob(".*")]
    assert hidden == []


def _reached(out: Path) -> int:
    return max(RunDirectory(out).steps(), default=0)


def losses_of(out: Path) -> list[tuple[object, object]]:
    lines = (out / "events.jsonl").read_text().splitlines()
    return [(event["step"], event["loss"]) for event in map(json.loads, lines) if event["event"] == "stepped"]


def test_a_full_disk_leaves_the_last_checkpoint_and_says_how_much_is_needed(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=30)
    run_to(run, tmp_path / "run", stop=3)
    before = last(tmp_path / "run")

    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    with child(run, tmp_path, warm, before=limit) as process:
        _, said = process.communicate(timeout=processes.LIMIT)
    assert process.returncode != 0
    assert "bytes are needed" in said
    assert same(read_snapshot(tmp_path / "run" / "last"), before)
    assert not list((tmp_path / "run").rglob("*.vitlab-tmp"))
