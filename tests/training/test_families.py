"""Training of other architecture families: BatchNorm's running statistics, and the layer of each parameter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.small import SIZE, run_to, small_run
from vitlab.checkpoints import load
from vitlab.config import variant
from vitlab.config.run import RunConfig
from vitlab.config.train import Average, TrainConfig
from vitlab.models import build
from vitlab.training.distributed import World
from vitlab.training.events import Finished, Stepped
from vitlab.training.optim import freeze, parameter_layers
from vitlab.training.step import AveragedWeights, RunningStatistics

MINIS = ("Swin-Mini", "ConvNeXt-Mini", "EfficientNet-Mini", "LSTM-Mini/8")


def run_of(name: str, *, steps: int) -> RunConfig:
    """The small run with another model and no micro-batches, since BatchNorm normalises each micro-batch by itself."""
    run = small_run(steps=steps)
    model = variant(name, num_classes=4, channels=1, image_size=SIZE)
    return replace(run, model=model, train=replace(run.train, micro_batch=0, evaluate_every=0))


@pytest.mark.parametrize("name", MINIS)
def test_a_resumed_run_writes_the_same_file_as_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    run = run_of(name, steps=6)
    whole = run_to(run, tmp_path / "whole")
    run_to(run, tmp_path / "parts", stop=3)
    rest = run_to(run, tmp_path / "parts")
    assert isinstance(rest[-1], Finished)
    losses = [event.loss for event in whole if isinstance(event, Stepped)]
    assert losses[3:] == [event.loss for event in rest if isinstance(event, Stepped)]
    one, other = (load(tmp_path / place / "model.safetensors").model.state_dict() for place in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_running_statistics_are_averaged_like_weights() -> None:
    model = build(variant("EfficientNet-Mini", num_classes=4))
    average = AveragedWeights(model, Average(decay=0.5))
    key = "stages.1.0.expand_norm.running_mean"
    with torch.no_grad():
        model.get_buffer(key).fill_(8)
    for step in range(50):
        average.update(model, step)
    assert torch.allclose(average.state[key], model.get_buffer(key), atol=1e-3)
    assert average.state.keys() == model.state_dict().keys()


def test_statistics_of_a_skipped_step_are_restored() -> None:
    model = build(variant("EfficientNet-Mini", num_classes=4)).train()
    statistics = RunningStatistics(model)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    statistics.keep()
    model(torch.full((4, 3, 32, 32), float("nan")))
    assert any(not torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    statistics.restore()
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


class Pair(World):
    """One of two ranks; the other one has zeros."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values


def test_ranks_take_the_mean_of_their_statistics() -> None:
    model = build(variant("EfficientNet-Mini", num_classes=4)).train()
    model(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    own = model.get_buffer("stem_norm.running_mean").clone()
    RunningStatistics(model).synchronise(Pair(rank=0, ranks=2))
    assert torch.allclose(model.get_buffer("stem_norm.running_mean"), own / 2)


def test_the_layers_of_swin_are_its_blocks_and_patch_merging_belongs_to_the_next() -> None:
    found, layers = parameter_layers(build(variant("Swin-Mini"), device="meta"))
    assert layers == 4
    names = ("patches.weight", "patch_norm.bias", "stages.0.blocks.1.mlp.up.weight", "stages.1.merge.reduction.weight")
    assert [found[name] for name in names] == [0, 0, 2, 3]
    assert [found[name] for name in ("stages.1.blocks.0.norm1.weight", "stages.1.blocks.1.norm1.weight")] == [3, 4]
    assert [found[name] for name in ("norm.weight", "head.bias")] == [5, 5]


@pytest.mark.parametrize(
    ("name", "layers", "first", "last"),
    [
        ("ConvNeXt-T", 18, "patch_norm.weight", "stages.3.blocks.2.scale"),
        ("EfficientNet-B0", 7, "stem.weight", "stages.6.0.project.weight"),
        ("LSTM-S/16", 2, "patches.bias", "layers.1.state.weight"),
        ("Swin-T", 12, "patches.weight", "stages.3.blocks.1.attention.offset_bias"),
    ],
)
def test_layers_count_from_the_image_to_the_head(name: str, layers: int, first: str, last: str) -> None:
    found, count = parameter_layers(build(variant(name), device="meta"))
    assert count == layers
    assert (found[first], found[last], found["head.weight"]) == (0, layers, layers + 1)
    assert set(found.values()) == set(range(layers + 2))


@pytest.mark.parametrize("name", MINIS)
def test_a_frozen_backbone_leaves_the_head_trainable(name: str) -> None:
    model = build(variant(name, num_classes=4))
    assert freeze(model, TrainConfig(steps=1, trainable="head")) == ("head.weight", "head.bias")
    learning = freeze(model, TrainConfig(steps=1, trainable="last-blocks", blocks=1))
    assert {"head.weight", "norm.weight" if name != "EfficientNet-Mini" else "last.weight"} <= set(learning)
    assert "patches.weight" not in learning
    assert len(learning) < len(list(model.parameters()))
