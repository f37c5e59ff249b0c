"""A sweep tries each learning rate on the validation split, resumes, and ends with one run on all training images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.training.small import last, run_to, same, small_run, without_noise
from tests.warm import torchrun
from vitlab.config import RunConfig
from vitlab.config.serialize import to_text
from vitlab.config.train import Masked
from vitlab.errors import ConfigError, DivergedError, TrainingError
from vitlab.training import train
from vitlab.training.events import Control, Event, Finished, Started, Stepped
from vitlab.training.run_folder import RunDirectory
from vitlab.training.sweep import SweepEvent, SweepFinished, Trial, TrialFinished, TrialStarted, final_config, sweep, trial_config

LRS = (1e-4, 1e-2)


def tiny_run() -> RunConfig:
    """Five steps, evaluated once at the end."""
    run = small_run(steps=5)
    train = replace(run.train, evaluate_every=0, save_every=0, micro_batch=0, schedule=replace(run.train.schedule, warmup=1))
    return replace(run, train=train)


def swept(
    out: Path, *, lrs: Sequence[float] = LRS, run: RunConfig | None = None, control: Control | None = None
) -> list[SweepEvent]:
    return list(sweep(run or tiny_run(), lrs, out=out, evaluate_split="test", control=control))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SweepEvent]]:
    out = tmp_path_factory.mktemp("sweep")
    return out, swept(out)


def test_every_learning_rate_is_tried_on_val_and_the_best_trains_on_all_images(whole: tuple[Path, list[SweepEvent]]) -> None:
    out, events = whole
    ended = events[-1]
    assert isinstance(ended, SweepFinished)
    assert [trial.lr for trial in ended.trials] == list(LRS)
    assert ended.lr == max(ended.trials, key=lambda trial: (trial.metrics["top1"], -trial.metrics["loss"])).lr
    trials = [RunDirectory(out / "trials" / f"lr-{lr:g}").config() for lr in LRS]
    assert [(run.data.train_split, run.data.evaluate_split) for run in trials if run is not None] == [("train", "val")] * 2
    assert [run.train.optimizer.lr for run in trials if run is not None] == list(LRS)
    final = RunDirectory(out / "final").config()
    assert final is not None
    assert (final.data.train_split, final.data.evaluate_split) == ("train+val", "test")
    assert final.train.optimizer.lr == ended.lr
    counts = [event.images for event in events if isinstance(event, Started)]
    assert counts == [64, 64, 80]  # the generated set's train, and with its val
    assert ended.finished.model == out / "final" / "model.safetensors"
    assert ended.finished.model.is_file()


def test_the_result_is_also_a_file(whole: tuple[Path, list[SweepEvent]]) -> None:
    out, events = whole
    ended = events[-1]
    assert isinstance(ended, SweepFinished)
    found = json.loads((out / "sweep.json").read_text())
    assert found["chosen"] == ended.lr
    assert [(row["lr"], row["metrics"]) for row in found["trials"]] == [(trial.lr, trial.metrics) for trial in ended.trials]


def test_a_trial_is_an_ordinary_run(whole: tuple[Path, list[SweepEvent]], tmp_path: Path) -> None:
    out, _ = whole
    run_to(trial_config(tiny_run(), LRS[1]), tmp_path / "alone")
    assert same(last(tmp_path / "alone"), last(out / "trials" / "lr-0.01"))


def test_a_complete_sweep_is_not_repeated(whole: tuple[Path, list[SweepEvent]]) -> None:
    out, events = whole
    again = swept(out)
    assert not [event for event in again if isinstance(event, Stepped)]
    assert [event.cached for event in again if isinstance(event, TrialFinished)] == [True, True]
    one, other = events[-1], again[-1]
    assert isinstance(one, SweepFinished)
    assert isinstance(other, SweepFinished)
    assert (one.trials, one.lr, one.finished.metrics) == (other.trials, other.lr, other.finished.metrics)


def test_an_interrupted_sweep_resumes_to_the_same_end(whole: tuple[Path, list[SweepEvent]], tmp_path: Path) -> None:
    out, _ = whole
    for stop_after in (2, 3, 3):  # in the first trial, the second, the final run
        control = Control()
        seen = 0
        for event in sweep(tiny_run(), LRS, out=tmp_path / "s", evaluate_split="test", control=control):
            seen += isinstance(event, Stepped)
            if seen == stop_after:
                control.request_stop("interrupted")
        assert isinstance(event, Finished)
        assert event.reason == "interrupted"
    final = swept(tmp_path / "s")[-1]
    assert isinstance(final, SweepFinished)
    for place in ("trials/lr-0.0001", "trials/lr-0.01", "final"):
        assert same(last(out / place), last(tmp_path / "s" / place))


def test_the_time_limit_is_for_the_whole_sweep_which_can_be_resumed(tmp_path: Path) -> None:
    hasty = replace(tiny_run(), train=replace(tiny_run().train, max_minutes=1e-9))
    events = swept(tmp_path, run=hasty)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "max-time"
    assert events[-1].step < 5
    assert isinstance(swept(tmp_path)[-1], SweepFinished)  # without the limit, which is not part of a trial


def test_a_learning_rate_at_which_training_diverges_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(run: RunConfig, *, out: Path, control: Control, **options: Any) -> Iterator[Event]:
        if run.train.optimizer.lr == 1e-2:
            raise DivergedError("the loss is nan for the 3rd time in a row")
        return train(run, out=out, control=control, **options)

    monkeypatch.setattr("vitlab.training.sweep.train", breaking)
    ended = swept(tmp_path)[-1]
    assert isinstance(ended, SweepFinished)
    assert ended.lr == 1e-4
    assert ended.trials[1] == Trial(lr=1e-2, error="the loss is nan for the 3rd time in a row")
    with pytest.raises(TrainingError, match="every learning rate: the loss is nan"):
        swept(tmp_path / "other", lrs=(1e-2,))


def test_a_folder_in_use_does_not_count_as_a_failed_trial(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "trials" / "lr-0.0001").locked(), pytest.raises(TrainingError, match="is in use"):
        swept(tmp_path)


def test_with_equal_accuracy_the_lower_loss_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {0.1: (0.5, 1.0), 0.2: (0.5, 0.9), 0.3: (0.5, 0.9), 0.4: (0.4, 0.1)}

    def quick(run: RunConfig, *, out: Path, control: Control, **options: Any) -> Iterator[Event]:
        top1, loss = scores[run.train.optimizer.lr]
        yield Finished(step=1, reason="finished", model=None, metrics={"top1": top1, "loss": loss})

    monkeypatch.setattr("vitlab.training.sweep.train", quick)
    ended = swept(tmp_path / "s", lrs=tuple(scores))[-1]
    assert isinstance(ended, SweepFinished)
    assert ended.lr == 0.2


def test_more_learning_rates_can_be_added_to_a_complete_sweep(whole: tuple[Path, list[SweepEvent]]) -> None:
    out, _ = whole
    events = swept(out, lrs=(*LRS, 1e-3))
    began = [event for event in events if isinstance(event, TrialStarted) and not event.final]
    assert [event.lr for event in began] == [1e-3]
    assert (began[0].number, began[0].runs) == (3, 4)


@pytest.mark.parametrize(
    ("lrs", "message"),
    [((), "needs learning rates"), ((0.1, -1.0), "positive"), ((0.1, float("nan")), "positive"), ((0.1, 0.1), "twice")],
)
def test_impossible_learning_rates_are_refused(lrs: tuple[float, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        swept(tmp_path, lrs=lrs)


def test_masked_prediction_cannot_be_swept(tmp_path: Path) -> None:
    run = tiny_run()
    with pytest.raises(ConfigError, match="masked"):
        swept(tmp_path, run=replace(run, train=replace(run.train, masked=Masked(target="pixels"))))


def test_a_final_run_without_a_test_split_is_not_evaluated() -> None:
    run = final_config(tiny_run(), 0.1, None)
    assert run.data.evaluate_split is None
    assert run.name == tiny_run().name


RANK = """
import sys
from pathlib import Path
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text
from vitlab.training.sweep import sweep
for event in sweep(from_text(RunConfig, Path(sys.argv[1]).read_text()), (1e-4, 1e-2), out=sys.argv[2], evaluate_split="test"):
    pass
"""


@pytest.mark.slow
def test_two_ranks_sweep_as_one(warm: Path, tmp_path: Path) -> None:
    even = without_noise(replace(tiny_run(), train=replace(tiny_run().train, micro_batch=3)))
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "wanted.json").write_text(to_text(even))
    processes.run(torchrun(warm, *(tmp_path / name for name in ("rank.py", "wanted.json", "ranks"))))
    swept(tmp_path / "alone", run=even)
    one, other = (json.loads((tmp_path / place / "sweep.json").read_text()) for place in ("ranks", "alone"))
    assert one["chosen"] == other["chosen"]
    for mine, theirs in zip(one["trials"], other["trials"], strict=True):
        assert mine["metrics"] == pytest.approx(theirs["metrics"], abs=1e-4)
