"""NaViT: images of different shapes in one sequence give what each gives alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.data.images import scene
from vitlab.checkpoints import Checkpoint
from vitlab.config import ModelConfig, Position, Preprocess, ViTConfig, variant
from vitlab.config.data import DecodeLimits, why_not_packed
from vitlab.config.vit_parts import FeedForward, Norm, Pooling, Projections, RelativeBias, Rotary
from vitlab.data.transforms import NativeTransform, budget_of, grids_of, native_grid, normalise, resize, to_rows
from vitlab.errors import ConfigError
from vitlab.inference.packed import PackedBackend, PackedTorchBackend, packed_backend
from vitlab.models import build
from vitlab.models.packing import PackedViT, dropped
from vitlab.models.vit import ViT

SHAPES = ((40, 40), (30, 75), (90, 20), (64, 48), (7, 300))  # of images, height x width; (64, 48) is packed twice


def mini(**changes: object) -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5, image_size=(48, 48))
    assert isinstance(config, ViTConfig)
    return replace(config, dynamic_size=True, **changes)  # type: ignore[arg-type]  # the config checks each


CONFIGS = {
    "token": mini(),
    "mean": mini(pool="mean", class_token=False),
    "map": mini(pool="map", class_token=False),
    "mean-after-registers": mini(pool="mean", norm_after_pool=True, register_tokens=3, position=Position(prefix=False)),
    "distilled": mini(distill_token=True),
    "no-head": mini(num_classes=0),
    "rectangular": mini(patch_size=(8, 4)),
    "learned-2d-every": mini(position=Position(kind="learned-2d", place="every")),
    "sincos": mini(position=Position(kind="sincos-2d"), pool="mean"),
    "rotary": mini(position=Position(kind="none", rotary=Rotary(kind="axial")), projections=Projections(qk_norm=True)),
    "relative-bias": mini(position=Position(kind="none", bias=RelativeBias(kind="table"))),
    "res-post": mini(norm=Norm(place="res-post")),
    "gated": mini(mlp=FeedForward(gated=True), layer_scale=0.1),
    "parallel": mini(parallel="mlp"),
    "prefix-pool": mini(pool="mean", pooling=Pooling(prefix=True)),
}


def trained(config: ViTConfig) -> ViT:
    model = build(config, seed=1).eval()
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


def prepared(config: ViTConfig) -> tuple[NativeTransform, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    own = Preprocess(image_size=config.image_size, resize="native", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    transform = NativeTransform(preprocess=own, limits=DecodeLimits(), patch=config.patch_size)
    images = [scene(*shape) for shape in (*SHAPES, SHAPES[3])]
    return transform, np.stack([transform.apply(image, name="scene") for image in images])


def alone(model: ViT, transform: NativeTransform) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of each image by itself, through the model's own forward pass."""
    logits, features = [], []
    for shape in (*SHAPES, SHAPES[3]):
        (g, j), (p, q) = native_grid(*shape, transform.preprocess.image_size, transform.patch), transform.patch
        image_HWC = resize(scene(*shape), (g * p, j * q), transform.preprocess.interpolation)
        images_BCHW = normalise(torch.from_numpy(image_HWC)[None], transform.preprocess)
        logits.append(model(images_BCHW))
        features.append(model.features(images_BCHW))
    return torch.cat(logits), torch.cat(features)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packed_image_gives_the_logits_and_features_of_the_image_alone(name: str) -> None:
    model = trained(CONFIGS[name])
    transform, rows_BRVC = prepared(model.config)
    with torch.no_grad():
        logits_BK, features_BD = alone(model, transform)
        images_BCRV = normalise(torch.from_numpy(rows_BRVC), transform.preprocess)
        torch.testing.assert_close(PackedViT(model)(images_BCRV, grids_of(rows_BRVC)), logits_BK, atol=1e-5, rtol=1e-5)
    backend = packed_backend(
        Checkpoint(model=model, config=model.config, preprocess=transform.preprocess), "auto", torch.device("cpu"), merge=0
    )
    folds = name not in ("rotary", "relative-bias", "learned-2d-every")
    assert isinstance(backend, PackedBackend if folds else PackedTorchBackend)
    found = backend.run(rows_BRVC, features=True)
    assert found.features_BD is not None
    np.testing.assert_allclose(found.features_BD, features_BD, atol=1e-5, rtol=1e-5)
    if model.config.num_classes:
        np.testing.assert_allclose(found.logits_BK, logits_BK, atol=1e-5, rtol=1e-5)
    else:
        assert found.logits_BK.shape == (len(rows_BRVC), 0)


def test_packing_trains_as_the_images_one_by_one_do() -> None:
    model = trained(mini(layer_scale=0.1))
    transform, rows_BRVC = prepared(model.config)
    images_BCRV = normalise(torch.from_numpy(rows_BRVC), transform.preprocess)
    gradients = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        model.zero_grad()
        torch.autograd.backward(PackedViT(model)(images_BCRV, grids_of(rows_BRVC)).square().sum())
        gradients.append([parameter.grad for parameter in model.parameters()])
    model.zero_grad()
    torch.autograd.backward(alone(model, transform)[0].square().sum())
    for parameter, packed, again in zip(model.parameters(), *gradients, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(packed, parameter.grad, atol=2e-3, rtol=1e-4)
        torch.testing.assert_close(packed, again, atol=1e-4, rtol=1e-4)


def test_stochastic_depth_drops_a_branch_for_whole_images() -> None:
    lengths = [1 + image % 7 for image in range(200)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        branch_1TD = dropped(torch.ones(1, sum(lengths), 2), torch.tensor([1.0, 3.0]), 0.25, lengths)
    kept = []
    for part_1ND in torch.split(branch_1TD, lengths, dim=1):
        assert bool((part_1ND == part_1ND[:, :1]).all())
        kept.append(float(part_1ND[0, 0, 0]))
        assert float(part_1ND[0, 0, 1]) == pytest.approx(3 * kept[-1])
    assert set(kept) == {0.0, float(torch.tensor(1.0) / 0.75)}
    assert 0.85 < sum(kept) / len(kept) < 1.15


def test_a_grid_keeps_the_aspect_ratio_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    for height, width in rng.integers(1, 2000, (300, 2)).tolist():
        g, j = native_grid(height, width, (224, 224), (16, 16))
        assert 1 <= g * j <= 196
        if 1 / 4 < height / width < 4:
            assert g * j >= 160
            assert abs(np.log(g / j * width / height)) < 0.2
    assert native_grid(500, 500, (224, 224), (16, 16)) == (14, 14)
    assert native_grid(480, 640, (224, 224), (16, 16)) == (12, 16)
    assert native_grid(100, 100, (224, 224), (32, 16)) == (7, 14)


def test_rows_hold_the_patches_of_an_image_in_reading_order_and_its_grid() -> None:
    image_HWC = scene(24, 40)
    rows_RVC = to_rows(image_HWC, (8, 8), 20)
    assert grids_of(rows_RVC[None]) == ((3, 5),)
    np.testing.assert_array_equal(rows_RVC[7].reshape(8, 8, 3), image_HWC[8:16, 16:24])
    assert budget_of((224, 224), (16, 32)) == 14 * 7


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (variant("ConvNeXt-B"), "whole images"),
        (variant("Swin-T"), "whole images"),
        (variant("R50+ViT-B/16"), "stem"),
        (mini(attention="local", window=3), "grid of one shape"),
        (mini(position=Position(kind="relative")), "grid of one shape"),
        (mini(parallel="branches"), "branches"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_the_reason(config: ModelConfig, reason: str) -> None:
    why = why_not_packed(config)
    assert why is not None
    assert reason in why


def test_other_backends_and_merged_tokens_are_refused() -> None:
    model = trained(mini())
    checkpoint = Checkpoint(model=model, config=model.config, preprocess=prepared(model.config)[0].preprocess)
    with pytest.raises(ConfigError, match="one shape"):
        packed_backend(checkpoint, "openvino", torch.device("cpu"), merge=0)
    with pytest.raises(ConfigError, match="merged"):
        packed_backend(checkpoint, "torch", torch.device("cpu"), merge=2)
