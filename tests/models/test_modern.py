"""Vision Transformers after the paper: relations that hold for every family's model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.models.modern import MODERN, PLAIN
from vitlab.config.serialize import from_json, to_json
from vitlab.config.vit import Position, ViTConfig
from vitlab.config.vit_parts import FeedForward, Norm, RelativeBias, Rotary
from vitlab.errors import ConfigError
from vitlab.models.cost import cost
from vitlab.models.families import build, build_on_meta, layer_ids
from vitlab.models.position import Rotation, cos_and_sin, mixed_angles, resize_bias, rotary_angles
from vitlab.models.record import Record
from vitlab.models.vit import ViT

NAMES = sorted(MODERN)


def made(name: str, seed: int = 0, config: ViTConfig | None = None) -> ViT:
    """The family's model with every parameter moved off its initial value."""
    model = build(config or MODERN[name], seed=seed)
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator) * (parameter.abs().mean() + 0.1))
    return model.eval()


def images_for(config: ViTConfig, count: int = 2) -> Tensor:
    return torch.randn(count, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_read_back_from_its_json(name: str) -> None:
    assert from_json(ViTConfig, to_json(MODERN[name])) == MODERN[name]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_macs_by_formula_are_those_of_the_built_model(name: str) -> None:
    config = MODERN[name]
    model = build(config, device="meta").eval()
    counted = cost(config)
    assert counted.parameters == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, config.channels, *config.image_size, device="meta"))
    assert counter.get_total_flops() == 2 * counted.macs


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_an_initial_value_and_a_gradient(name: str) -> None:
    model = made(name).train()
    model(images_for(model.config)).square().sum().backward()
    assert all(parameter.isfinite().all() for parameter in build(MODERN[name]).parameters())
    without = [key for key, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert without == []


@pytest.mark.parametrize("name", NAMES)
def test_recorded_attention_is_what_the_kernel_computed(name: str) -> None:
    model = made(name)
    images_BCHW = images_for(model.config)
    record = Record(captures=True)
    if name == "branches":
        with pytest.raises(ConfigError, match="two attentions"):
            model(images_BCHW, record)
        return
    with torch.enable_grad():
        logits_BC = model(images_BCHW, record)
    assert torch.equal(logits_BC, model(images_BCHW))
    for capture, weights_BHNN in zip(record.captures, record.attention_BHNN, strict=True):
        assert capture.values_BHNK is not None
        assert capture.mixed_BHNK is not None
        torch.testing.assert_close(weights_BHNN @ capture.values_BHNK, capture.mixed_BHNK, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(capture.rows(1, 4), weights_BHNN[:, :, 1:4])
        torch.testing.assert_close(weights_BHNN.sum(-1), torch.ones(weights_BHNN.shape[:3]))


@pytest.mark.parametrize("name", [name for name in NAMES if MODERN[name].pool == "token"])
def test_leaving_out_unread_tokens_changes_no_logit(name: str) -> None:
    model = made(name)
    whole = model(images_for(model.config))
    model.skip_unused_tokens = True
    torch.testing.assert_close(model(images_for(model.config)), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_recomputing_activations_gives_the_same_gradients(name: str) -> None:
    model = made(name).train()
    gradients = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        model.zero_grad()
        model(images_for(model.config)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_biases_of_a_layer_are_trained_with_the_rate_of_that_layer() -> None:
    config = MODERN["beit"]
    ids, layers = layer_ids(config, [name for name, _ in build_on_meta(config).named_parameters()])
    assert layers == config.depth
    assert [ids[f"position.bias.{layer}"] for layer in range(2)] == [
        ids[f"encoder.blocks.{layer}.norm1.weight"] for layer in range(2)
    ]


@pytest.mark.parametrize("kind", ["axial", "centred", "mixed"])
def test_rotary_logits_depend_on_the_difference_of_two_positions_alone(kind: str) -> None:
    rotary = Rotary(kind=kind, temperature=100.0, columns_first=kind == "mixed")  # type: ignore[arg-type]
    grid = (4, 4)
    generator = torch.Generator().manual_seed(0)
    if kind == "mixed":
        turn = cos_and_sin(mixed_angles(torch.randn(2, 1, 4, generator=generator), grid), 0)
    else:
        turn = cos_and_sin(rotary_angles(rotary, grid, 8), 0)
    rotation = Rotation(cos_NK=turn[0], sin_NK=turn[1], halves=kind == "centred")
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator).expand(2, 1, 1, 16, 8)
    logits_NN = (rotation(query) @ rotation(key).transpose(-1, -2))[0, 0]
    torch.testing.assert_close(logits_NN[0, 5], logits_NN[5, 10])  # one down, one across
    torch.testing.assert_close(logits_NN[3, 6], logits_NN[7, 10])  # one down, one back
    assert not torch.allclose(logits_NN[0, 5], logits_NN[0, 6])
    torch.testing.assert_close(rotation(query).norm(dim=-1), query.norm(dim=-1))


def test_prefix_tokens_are_not_turned() -> None:
    turn = cos_and_sin(rotary_angles(Rotary(), (2, 2), 8), prefix=3)
    x_BHNK = torch.randn(1, 1, 7, 8)
    turned = Rotation(cos_NK=turn[0], sin_NK=turn[1], halves=False)(x_BHNK)
    assert torch.equal(turned[:, :, :3], x_BHNK[:, :, :3])
    assert not torch.allclose(turned[:, :, 4:], x_BHNK[:, :, 4:])


@pytest.mark.parametrize(("grid", "to"), [((3, 4), (5, 4)), ((4, 4), (9, 7)), ((6, 6), (4, 5)), ((2, 2), (3, 3)), ((1, 3), (2, 3))])
def test_a_bias_table_is_resized_as_beits_authors_do(grid: tuple[int, int], to: tuple[int, int]) -> None:
    interpolate = pytest.importorskip("scipy.interpolate")
    rows = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    table_OH = torch.randn(rows + 3, 2, generator=torch.Generator().manual_seed(0))
    resized = resize_bias(table_OH, grid, to)
    assert torch.equal(resized[-3:], table_OH[-3:])

    def places(old: int, new: int) -> list[float]:  # the authors' bisection and loop
        left, right = 1.01, 1.5
        while right - left > 1e-6:
            q = (left + right) / 2.0
            if (1.0 - q ** (old // 2)) / (1.0 - q) > new // 2:
                right = q
            else:
                left = q
        found, at = list[float](), 1.0
        for i in range(old // 2):
            found.append(at)
            at += q ** (i + 1)
        return [-place for place in reversed(found)] + [0.0, *found]

    sides = [(2 * old - 1, 2 * new - 1) for old, new in zip(grid, to, strict=True)]
    y, x = (places(old, new) for old, new in sides)
    orders = [3 if len(axis) > 3 else len(axis) // 2 for axis in (y, x)]
    for head in range(2):
        image = table_OH[:-3, head].view(sides[0][0], sides[1][0]).double().numpy()
        for axis, (order, at, (_, new)) in enumerate(zip(orders, (y, x), sides, strict=True)):
            wanted = np.clip(np.arange(-(new // 2), new // 2 + 1), at[0], at[-1])
            if order:
                image = interpolate.make_interp_spline(at, image, k=order, axis=axis)(wanted)
            else:
                image = np.repeat(image, new, axis=axis)
        torch.testing.assert_close(resized[:-3, head], torch.from_numpy(image).flatten().float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"attention": "local", "norm": Norm(kind="rms")}, "RMSNorm"),
        ({"norm": Norm(place="res-post"), "mlp": FeedForward(gated=True)}, "no public model"),
        ({"parallel": "mlp", "position": Position(rotary=Rotary())}, "no public model"),
        ({"position": Position(rotary=Rotary(), bias=RelativeBias())}, "no public model"),
        ({"position": Position(bias=RelativeBias()), "register_tokens": 1}, "class token"),
        ({"heads": 16, "position": Position(rotary=Rotary())}, "width 4 divides"),
        ({"pool": "token+mean", "class_token": False}, "class_token"),
        ({"patch_dropout": 0.5, "position": Position(rotary=Rotary())}, "whole grid"),
        ({"pad": True, "crop": True}, "exclude each other"),
    ],
)
def test_a_combination_that_no_public_model_has_is_refused(what: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(PLAIN, **what)  # type: ignore[arg-type]
