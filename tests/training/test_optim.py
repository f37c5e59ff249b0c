"""Weight decay, layer decay, frozen parameters, and a restored optimizer that takes the same steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitlab.config import ResNetConfig, ViTConfig, variant
from vitlab.config.train import Average, Optimizer, TrainConfig
from vitlab.errors import ConfigError
from vitlab.models import build
from vitlab.models.model import Model
from vitlab.training.optim import (
    create_optimizers,
    freeze,
    optimizer_state,
    parameter_layers,
    restore_optimizers,
    set_learning_rates,
)
from vitlab.training.step import AveragedWeights


def mini() -> Model:
    return build(variant("ViT-Mini/8", num_classes=5))


def step(model: Model, made: list[torch.optim.Optimizer], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for optimizer in made:
        optimizer.step()
        optimizer.zero_grad()


def test_weight_decay_applies_to_matrices_and_kernels_only() -> None:
    model = mini()
    (made,) = create_optimizers(model, Optimizer(weight_decay=0.1))
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed = {names[parameter] for group in made.param_groups if group["weight_decay"] for parameter in group["params"]}
    assert "encoder.blocks.0.mlp.up.weight" in decayed
    assert "patches.weight" in decayed
    assert not {name for name in decayed if name.endswith("bias") or "norm" in name or "token" in name or "position" in name}


def test_layers_further_from_the_head_have_lower_learning_rates() -> None:
    model = mini()
    config = Optimizer(lr=1.0, layer_decay=0.5)
    (made,) = create_optimizers(model, config)
    set_learning_rates([made], 0.8, config)
    names = {parameter: name for name, parameter in model.named_parameters()}
    rate = {names[parameter]: group["lr"] for group in made.param_groups for parameter in group["params"]}
    assert rate["head.weight"] == pytest.approx(0.8)
    assert rate["encoder.norm.weight"] == pytest.approx(0.8)
    assert rate["encoder.blocks.1.mlp.up.weight"] == pytest.approx(0.4)
    assert rate["encoder.blocks.0.mlp.up.weight"] == pytest.approx(0.2)
    assert rate["patches.weight"] == pytest.approx(0.1)


def test_the_layers_of_a_resnet_are_its_stages() -> None:
    model = build(ResNetConfig(blocks=(1, 2), stage_widths=(128, 256), root_width=32, num_classes=5))
    found, layers = parameter_layers(model)
    assert layers == 2
    assert [found[name] for name in ("root.weight", "stages.1.0.conv1.weight", "norm.weight", "head.bias")] == [0, 2, 3, 3]


@pytest.mark.parametrize(("trainable", "blocks", "learning"), [("head", 0, {"head"}), ("last-blocks", 1, {"head", "encoder"})])
def test_only_the_requested_parameters_are_trainable(trainable: str, blocks: int, learning: set[str]) -> None:
    model = mini()
    names = freeze(model, TrainConfig(steps=1, trainable=trainable, blocks=blocks))  # type: ignore[arg-type]
    assert {name.partition(".")[0] for name in names} == learning
    assert not any(name.startswith("encoder.blocks.0") for name in names)


def test_training_the_head_of_a_model_without_one_is_refused() -> None:
    config = variant("ViT-Mini/8")
    assert isinstance(config, ViTConfig)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        freeze(build(replace(config, num_classes=0)), TrainConfig(steps=1, trainable="head"))


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_a_restored_optimizer_takes_the_same_steps(kind: str) -> None:
    config = Optimizer(kind=kind, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]
    first = mini()
    made = create_optimizers(first, config)
    for seed in range(3):
        step(first, made, seed)
    saved = {name: tensor.clone() for name, tensor in optimizer_state(first, made).items()}
    second = mini()
    second.load_state_dict(first.state_dict())
    again = create_optimizers(second, config)
    restore_optimizers(second, again, saved)
    for seed in range(3, 6):
        step(first, made, seed)
        step(second, again, seed)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(first.parameters(), second.parameters(), strict=True))


def test_an_optimiser_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rnn\.weight"):
        restore_optimizers(mini(), [], {"rnn.weight/exp_avg": torch.zeros(1)})


def test_an_average_of_constant_weights_is_the_weights_and_follows_slowly() -> None:
    model = mini()
    average = AveragedWeights(model, Average(decay=0.9, warmup=False))
    average.update(model, 0)
    state = model.state_dict()
    assert all(torch.equal(average.state[name], state[name]) for name in average.state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    average.update(model, 1)
    torch.testing.assert_close(average.state["class_token"], model.state_dict()["class_token"] - 0.9)
