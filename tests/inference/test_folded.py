"""A folded ViT gives the model's own numbers, whatever the model is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.models.modern import MODERN
from vitlab.checkpoints import Checkpoint
from vitlab.config import Preprocess, variant
from vitlab.config.vit import PROFILES, Position, ViTConfig
from vitlab.config.vit_parts import ResNetStem
from vitlab.errors import ConfigError
from vitlab.inference import Predictor
from vitlab.inference.backends import FoldedBackend, TorchBackend, torch_backend
from vitlab.inference.folded import FoldedGraph, exportable, why_not_folded
from vitlab.models import build
from vitlab.models.vit import ViT

MADE_OF: dict[str, dict[str, object]] = {
    "as in the paper": {},
    "the mean of patches": {"pool": "mean"},
    "patches alone": {"pool": "mean", "class_token": False},
    "attention pooling": {"pool": "map"},
    "a distillation token": {"distill_token": True},
    "registers": {"register_tokens": 3},
    "layer scale": {"layer_scale": 0.1},
    "no bias of queries, keys and values": {"qkv_bias": False},
    "the norm after the mean": {"pool": "mean", "norm_after_pool": True},
    "the norm after the token": {"norm_after_pool": True},
    "two distilled and normed": {"norm_after_pool": True, "distill_token": True},
    "a padded edge": {"pad": True, "image_size": (30, 37)},
    "rows and columns at every layer": {"position": Position(kind="learned-2d", place="every")},
    "one table at every layer": {"position": Position(kind="sincos-2d", place="shared")},
    "waves of the reading order": {"position": Position(kind="sincos-1d")},
    "no positions": {"position": Position(kind="none")},
    "the error function": {"numerics": PROFILES["timm"]},
    "another epsilon": {"numerics": PROFILES["huggingface"]},
    "a representation layer": {"representation_width": 16},
    "a ResNet before it": {"stem": ResNetStem(blocks=(1, 1), width=32), "patch_size": (1, 1)},
    "one layer": {"depth": 1},
    "any size": {"dynamic_size": True},
}
MADE_OF |= {name: {"config": config} for name, config in MODERN.items() if name not in ("aimv2", "branches")}
FED = Preprocess(image_size=(32, 40), resize_to=64, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


def vit(changes: Mapping[str, object] | None = None) -> Checkpoint:
    """A small ViT with large random weights."""
    base = variant("ViT-Mini/8", num_classes=7, image_size=(32, 40))
    assert isinstance(base, ViTConfig)
    config = (changes or {}).get("config") or replace(base, **(changes or {}))  # type: ignore[arg-type]
    assert isinstance(config, ViTConfig)
    model = build(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    size = (48, 32) if config.dynamic_size else config.image_size
    fed = replace(FED, image_size=size, resize_to=max(64, *size))
    return Checkpoint(model=model.eval(), config=config, preprocess=fed)


def noise(checkpoint: Checkpoint, count: int = 3) -> NDArray[np.uint8]:
    shape = (count, *checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


def close(found: NDArray[np.float32] | None, expected: NDArray[np.float32] | None) -> None:
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found, expected, atol=1e-5 * max(1.0, float(np.abs(expected).max(initial=0))), rtol=0)


@pytest.mark.parametrize("made_of", MADE_OF)
def test_folded_weights_give_the_models_own_logits_and_features(made_of: str) -> None:
    checkpoint = vit(MADE_OF[made_of])
    images_BHWC = noise(checkpoint)
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC, features=True)
    found = FoldedBackend(checkpoint, images=2).run(images_BHWC, features=True)
    close(found.logits_BK, expected.logits_BK)
    close(found.features_BD, expected.features_BD)


@pytest.mark.parametrize("takes", ["pixels", "normalised"])
@pytest.mark.parametrize("made_of", MADE_OF)
def test_the_graph_for_other_runtimes_gives_the_same(made_of: str, takes: str) -> None:
    from vitlab.data.transforms import normalise

    checkpoint = vit(MADE_OF[made_of])
    images_BHWC = noise(checkpoint)
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC, features=True)
    images = torch.from_numpy(images_BHWC)
    with torch.inference_mode():
        graph = exportable(checkpoint, takes=takes, gives="both")  # type: ignore[arg-type]
        logits_BK, features_BD = graph(images if takes == "pixels" else normalise(images, checkpoint.preprocess))
        likely = exportable(checkpoint, takes="pixels", gives="probabilities")(images)
    close(logits_BK.numpy(), expected.logits_BK)
    close(features_BD.numpy(), expected.features_BD)
    close(likely.sum(-1).numpy(), np.ones(3, np.float32))


def test_folding_leaves_the_model_as_it_was() -> None:
    checkpoint = vit({"layer_scale": 0.1})
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    FoldedBackend(checkpoint).run(noise(checkpoint))
    for name, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.requires_grad for parameter in checkpoint.model.parameters())


def test_slices_and_batches_of_any_size_give_the_same() -> None:
    checkpoint = vit()
    images_BHWC = noise(checkpoint, 9)
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC)
    for images in (1, 2, 4, 16):
        close(FoldedBackend(checkpoint, images=images).run(images_BHWC).logits_BK, expected.logits_BK)
    backend = FoldedBackend(checkpoint)
    for count in (1, 2, 5, 9):
        close(backend.run(images_BHWC[:count]).logits_BK, expected.logits_BK[:count])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_attention_logits_beyond_what_exp_can_hold_are_computed_safely(sign: float) -> None:
    checkpoint = vit()
    model = checkpoint.model
    assert isinstance(model, ViT)
    with torch.no_grad():
        for block in model.encoder.blocks:
            width = model.config.width
            block.attention.qkv.bias[:width] = 2000.0 * sign  # type: ignore[union-attr, operator]
    images_BHWC = noise(checkpoint)
    assert np.isfinite(FoldedBackend(checkpoint).run(images_BHWC).logits_BK).all()


def test_what_cannot_be_folded_runs_as_it_is_and_is_said() -> None:
    for changes in (
        {"attention": "local", "window": 3},
        {"attention": "axial"},
        {"position": Position(kind="relative")},
    ):
        checkpoint = vit(changes)
        assert why_not_folded(checkpoint.model) is not None
        backend, why = torch_backend(checkpoint)
        assert isinstance(backend, TorchBackend)
        assert why is not None
        predictor = Predictor(checkpoint, backend="torch")
        assert any("without folded weights" in note for note in predictor.notes)
        with torch.inference_mode():
            graph_BK = exportable(checkpoint)(torch.from_numpy(noise(checkpoint)))
        close(graph_BK.numpy(), backend.run(noise(checkpoint)).logits_BK)
    assert "float64" in str(why_not_folded(vit().model.double()))


def test_a_model_fed_at_a_size_or_with_channels_it_does_not_take_is_refused() -> None:
    checkpoint = vit()
    assert isinstance(checkpoint.model, ViT)
    with pytest.raises(ConfigError, match="64x64"):
        FoldedGraph(checkpoint.model, replace(FED, image_size=(64, 64)), pixels=True)
    with pytest.raises(ConfigError, match="1 channels"):
        FoldedGraph(checkpoint.model, replace(FED, mean=(0.5,), std=(0.5,)), pixels=True)
    with pytest.raises(ConfigError, match="no head"):
        exportable(vit({"num_classes": 0}))
    with pytest.raises(ConfigError, match="gives='nothing'"):
        exportable(checkpoint, gives="nothing")  # type: ignore[arg-type]
