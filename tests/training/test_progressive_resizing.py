"""Progressive resizing: the image size at each step, and that a resumed run repeats an uninterrupted one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.small import last, losses, run_to, same, small_run
from vitlab.checkpoints import load
from vitlab.config import ConvStem, Position, ViTConfig
from vitlab.config.run import RunConfig
from vitlab.config.train import mean_area, scale_at
from vitlab.errors import ConfigError
from vitlab.training.plan import plan

RESIZING = ((0.0, 0.5), (0.4, 0.75), (0.7, 1.0))


def resizing(*, steps: int = 10) -> RunConfig:
    """A small run with convolutions, Muon and images of 8, 12 and 16 pixels."""
    run = small_run(steps=steps)
    assert isinstance(run.model, ViTConfig)
    model = replace(run.model, conv_stem=ConvStem(widths=(8,), units=(2,)), patch_size=(2, 2))
    optimizer = replace(run.train.optimizer, kind="muon", lr=3e-3)
    return replace(run, model=model, train=replace(run.train, progressive_resizing=RESIZING, optimizer=optimizer))


def test_the_scale_follows_the_fraction_of_the_steps() -> None:
    scales = [scale_at(step, steps=10, resizing=RESIZING) for step in range(10)]
    assert scales == [0.5] * 4 + [0.75] * 3 + [1.0] * 3
    assert scale_at(3, steps=10, resizing=()) == 1
    assert mean_area(RESIZING) == pytest.approx(sum(scale**2 for scale in scales) / 10)
    assert mean_area(()) == 1


@pytest.mark.parametrize("stop", [2, 4, 8])  # among small images; at a change of size; among full-size images
def test_a_resumed_run_equals_an_uninterrupted_one(stop: int, tmp_path: Path) -> None:
    run = resizing()
    whole = run_to(run, tmp_path / "whole")
    first = run_to(run, tmp_path / "parts", stop=stop)
    rest = run_to(run, tmp_path / "parts")
    assert losses(first) + losses(rest) == losses(whole)
    assert same(last(tmp_path / "parts"), last(tmp_path / "whole"))


def test_a_resumed_run_with_batch_norm_has_the_same_bits_and_averages_the_statistics(tmp_path: Path) -> None:
    run = resizing(steps=6)
    assert isinstance(run.model, ViTConfig)
    run = replace(run, model=replace(run.model, conv_stem=ConvStem(widths=(9,), units=(2,), norm="batch")))
    whole = run_to(run, tmp_path / "whole")
    first = run_to(run, tmp_path / "parts", stop=3)
    rest = run_to(run, tmp_path / "parts")
    assert losses(first) + losses(rest) == losses(whole)
    kept = last(tmp_path / "whole")
    assert same(last(tmp_path / "parts"), kept)
    assert kept.average is not None
    for unit in range(2):
        name = f"early.stages.0.{unit}.norm.running_var"
        assert not torch.equal(kept.model[name], torch.ones(9))
        assert not torch.equal(kept.average[name], kept.model[name])
    exported = load(tmp_path / "whole" / "model.safetensors").model.state_dict()
    assert all(torch.equal(exported[name], tensor) for name, tensor in kept.average.items())


def test_only_small_images_change_the_run(tmp_path: Path) -> None:
    run = resizing(steps=5)
    full = replace(run, train=replace(run.train, progressive_resizing=()))
    late = replace(run, train=replace(run.train, progressive_resizing=((0.0, 0.5), (0.3, 1.0))))
    assert losses(run_to(full, tmp_path / "full")) != losses(run_to(late, tmp_path / "late"))
    always = replace(run, train=replace(run.train, progressive_resizing=((0.0, 1.0),)))
    assert losses(run_to(always, tmp_path / "always")) == losses(run_to(full, tmp_path / "full again"))


def test_a_plan_counts_small_images_as_less_work() -> None:
    run = resizing()
    grown = replace(run, train=replace(run.train, progressive_resizing=()))
    assert plan(run).exaflops == pytest.approx(plan(grown).exaflops * mean_area(RESIZING))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (((0.1, 0.5), (0.5, 1.0)), "begin with 0"),
        (((0.0, 0.5), (1.0, 1.0)), "stay below 1"),
        (((0.0, 0.5), (0.5, 0.75)), "end with 1"),
        (((0.0, 1.0), (0.5, 0.5)), "end with 1"),
        (((0.0, 0.0), (0.5, 1.0)), "above 0"),
        (((0.0, 0.3), (0.5, 1.0)), "not a multiple of the patch"),
    ],
)
def test_an_impossible_schedule_of_sizes_is_refused(rows: tuple[tuple[float, float], ...], said: str) -> None:
    run = resizing()
    with pytest.raises(ConfigError, match=said):
        replace(run, train=replace(run.train, progressive_resizing=rows))


def test_progressive_resizing_needs_positions_that_can_be_interpolated() -> None:
    run = resizing()
    assert isinstance(run.model, ViTConfig)
    with pytest.raises(ConfigError, match="relative"):
        replace(run, model=replace(run.model, position=Position(kind="relative")))
