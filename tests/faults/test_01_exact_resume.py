"""A run is stopped and resumed at any step: it ends with the bits of an uninterrupted run, whatever the number of workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.small import last, run_to, same, small_run
from vitlab.config.run import RunConfig
from vitlab.config.train import Masked
from vitlab.models.flexible import FlexibleViT
from vitlab.models.packing import PackedViT
from vitlab.training.events import Finished, Started
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(small_run(), out)
    return out


@pytest.mark.parametrize("stop", [1, 7, 16])  # within the warm-up; in mid-epoch; right after an epoch's end
def test_a_resumed_run_equals_an_uninterrupted_one(stop: int, uninterrupted: Path, tmp_path: Path) -> None:
    first = run_to(small_run(), tmp_path / "run", stop=stop)
    assert isinstance(first[-1], Finished)
    assert (first[-1].reason, first[-1].step) == ("terminated", stop)
    second = run_to(small_run(), tmp_path / "run")
    assert isinstance(second[0], Started)
    assert second[0].resumed
    assert same(last(tmp_path / "run"), last(uninterrupted))
    found = RunDirectory(tmp_path / "run").events()
    whole = RunDirectory(uninterrupted).events()
    for kind in ("stepped", "evaluated"):
        mine = [(event["step"], event.get("loss"), event.get("metrics")) for event in found if event["event"] == kind]
        assert mine == [(event["step"], event.get("loss"), event.get("metrics")) for event in whole if event["event"] == kind]


def test_the_number_of_workers_changes_no_bit(uninterrupted: Path, tmp_path: Path) -> None:
    """One process reads the images of the first steps, and two those of the rest."""
    run = small_run()
    for workers, stop in ((1, 7), (2, None)):
        loader = replace(run.data.loader, workers=workers)
        run_to(replace(run, data=replace(run.data, loader=loader)), tmp_path / "run", stop=stop)
    assert same(last(tmp_path / "run"), last(uninterrupted))


def flexible_run() -> RunConfig:
    run = small_run(steps=8)
    return replace(run, train=replace(run.train, patch_sizes=((2, 2), (4, 4), (8, 4)), evaluate_every=4))


def test_a_run_that_draws_patch_sizes_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, forward = list[object](), FlexibleViT.forward

    def noted(self: FlexibleViT, images_BCHW: Tensor, size: tuple[int, int] | None = None) -> object:
        drawn.append(size)
        return forward(self, images_BCHW, size)

    monkeypatch.setattr(FlexibleViT, "forward", noted)
    run_to(flexible_run(), tmp_path / "whole")
    uninterrupted = drawn.copy()
    drawn.clear()
    run_to(flexible_run(), tmp_path / "parts", stop=3)
    run_to(flexible_run(), tmp_path / "parts")
    assert drawn == uninterrupted
    assert {(2, 2), (4, 4), (8, 4)} == {size for size in drawn if size is not None}
    assert same(last(tmp_path / "whole"), last(tmp_path / "parts"))


def native_run() -> RunConfig:
    run = small_run(steps=8)
    data = replace(run.data, augment=replace(run.data.augment, mixup=0.0, area=(0.2, 0.9), aspect=(0.2, 5.0)))
    preprocess = replace(run.preprocess, resize="native")
    return replace(run, data=data, preprocess=preprocess, train=replace(run.train, evaluate_every=4))


def test_a_run_that_packs_images_of_different_shapes_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, forward = list[object](), PackedViT.forward

    def noted(self: PackedViT, images_BCRV: Tensor, grids: tuple[tuple[int, int], ...]) -> Tensor:
        shapes.extend(grids)
        return forward(self, images_BCRV, grids)

    monkeypatch.setattr(PackedViT, "forward", noted)
    run_to(native_run(), tmp_path / "whole")
    run_to(native_run(), tmp_path / "parts", stop=3)
    run_to(native_run(), tmp_path / "parts")
    assert shapes[: len(shapes) // 2] == shapes[len(shapes) // 2 :]
    assert len(set(shapes)) > 3
    assert same(last(tmp_path / "whole"), last(tmp_path / "parts"))


def masked_run() -> RunConfig:
    run = small_run(steps=8)
    augment = replace(run.data.augment, mixup=0.0)
    return replace(
        run, data=replace(run.data, augment=augment), train=replace(run.train, masked=Masked(target="pixels"), evaluate_every=4)
    )


def test_masked_prediction_resumes_exactly(tmp_path: Path) -> None:
    run_to(masked_run(), tmp_path / "whole")
    run_to(masked_run(), tmp_path / "parts", stop=3)
    run_to(masked_run(), tmp_path / "parts")
    one, other = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert same(one, other)
    assert one.extra.keys() == {"mask_token", "predict.weight", "predict.bias"}
    assert all(torch.equal(one.extra[name], other.extra[name]) for name in one.extra)
