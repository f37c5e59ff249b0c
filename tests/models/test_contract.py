"""One contract that every architecture family obeys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from vitlab.config import (
    ConvNeXtConfig,
    ConvStem,
    EfficientNetConfig,
    GridDetectorConfig,
    ModelConfig,
    Position,
    RecurrentConfig,
    ResNetConfig,
    ResNetStem,
    SegmenterConfig,
    SwinConfig,
    ViTConfig,
    variant,
)
from vitlab.config.model import MODEL_CONFIGS
from vitlab.models import Record, build
from vitlab.models.families import FAMILIES, build_on_meta
from vitlab.models.model import Model
from vitlab.models.vit import ViT


def mini() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return config


CONFIGS: dict[str, ModelConfig] = {
    "token": mini(),
    "mean": replace(mini(), pool="mean", class_token=False),
    "mean-after": replace(mini(), pool="mean", norm_after_pool=True),
    "map": replace(mini(), pool="map", class_token=False),
    "pretraining-head": replace(mini(), representation_width=48),
    "no-head": replace(mini(), num_classes=0),
    "distilled": replace(mini(), distill_token=True),
    "registers": replace(mini(), register_tokens=3, position=Position(prefix=False)),
    "layer-scale": replace(mini(), layer_scale=0.1),
    "no-qkv-bias": replace(mini(), qkv_bias=False),
    "local": replace(mini(), attention="local", window=3),
    "axial": replace(mini(), attention="axial"),
    "padded": replace(mini(), image_size=(30, 41), pad=True),
    "rectangular": replace(mini(), image_size=(24, 40), patch_size=(8, 4)),
    "one-channel": replace(mini(), channels=1),
    "relative": replace(mini(), position=Position(kind="relative", place="every")),
    "dynamic": replace(mini(), dynamic_size=True),
    "hybrid": replace(mini(), stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1), image_size=(64, 64)),
    "early": replace(mini(), conv_stem=ConvStem(widths=(16, 32), units=(2, 2)), patch_size=(2, 2)),
    "early-batch-norm": replace(mini(), conv_stem=ConvStem(widths=(12, 20), units=(2, 1), norm="batch"), patch_size=(2, 2)),
    "hybrid-root": replace(mini(), stem=ResNetStem(blocks=(), width=32), patch_size=(2, 2)),
    "resnet": ResNetConfig(blocks=(1, 2), stage_widths=(128, 256), root_width=32, image_size=(64, 64), num_classes=5),
    "swin": SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4), image_size=(32, 32), num_classes=5),
    "swin-padded": SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(3, 4), image_size=(37, 52), num_classes=5),
    "swin-as-timm-pads": SwinConfig(
        width=24, depths=(2, 2), heads=(2, 4), window=(3, 3), image_size=(40, 28), num_classes=5, pad_first=False, qkv_bias=False
    ),
    "convnext": ConvNeXtConfig(depths=(1, 2), widths=(16, 24), image_size=(32, 32), num_classes=5, layer_scale=0.1),
    "convnext-no-scale": ConvNeXtConfig(
        depths=(1, 1), widths=(16, 24), image_size=(37, 30), channels=1, layer_scale=0.0, num_classes=0
    ),
    "efficientnet": EfficientNetConfig(
        stages=((1, 3, 1, 1, 8), (2, 5, 2, 4, 16)),
        stem_width=8,
        head_width=32,
        image_size=(33, 36),
        num_classes=5,
        drop_path=0.0,
        dropout=0.0,
    ),
    "efficientnet-half": EfficientNetConfig(
        stages=((2, 3, 2, 2, 8),),
        stem_width=8,
        head_width=32,
        image_size=(32, 32),
        num_classes=5,
        padding="half",
        norm_eps=1e-5,
        drop_path=0.0,
        dropout=0.0,
    ),
    "efficientnet-uneven": EfficientNetConfig(
        stages=((1, 3, 2, 2, 8), (1, 5, 2, 2, 8)),
        stem_width=8,
        head_width=32,
        image_size=(36, 33),
        num_classes=5,
        padding="uneven",
        even_blocks=(1,),
        drop_path=0.0,
        dropout=0.0,
    ),
    "lstm": RecurrentConfig(cell="lstm", width=32, depth=2, patch_size=(8, 8), image_size=(32, 32), num_classes=5),
    "segmenter": SegmenterConfig(backbone=mini(), image_size=(32, 32), num_classes=5),
    "segmenter-mask-transformer": SegmenterConfig(
        backbone=mini(), image_size=(32, 48), num_classes=3, decoder="mask-transformer", decoder_heads=2
    ),
    "segmenter-layers": SegmenterConfig(
        backbone=replace(mini(), pool="map", class_token=False, pad=True), image_size=(30, 41), num_classes=4, layers=(0, 1)
    ),
    "segmenter-hybrid": SegmenterConfig(
        backbone=replace(mini(), stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1)),
        image_size=(64, 48),
        num_classes=3,
        layers=(0, 1),
    ),
    "segmenter-swin": SegmenterConfig(
        backbone=SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4)), image_size=(36, 32), num_classes=5
    ),
    "segmenter-convnext": SegmenterConfig(
        backbone=ConvNeXtConfig(depths=(1, 2), widths=(16, 24), layer_scale=0.1),
        image_size=(37, 32),
        num_classes=3,
        decoder="mask-transformer",
        decoder_heads=2,
    ),
    "grid-detector": GridDetectorConfig(backbone=mini(), image_size=(32, 40), num_classes=3, head_width=16, upsample=4),
    "grid-detector-swin": GridDetectorConfig(
        backbone=SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4)),
        image_size=(36, 32),
        num_classes=2,
        head_width=16,
        upsample=1,
    ),
    "rnn-mean": RecurrentConfig(cell="rnn", width=32, depth=1, patch_size=(8, 4), image_size=(30, 21), num_classes=5, pool="mean"),
}
MAPS = (ResNetConfig, SwinConfig, ConvNeXtConfig, EfficientNetConfig)  # what a record has of these is maps

CLASSIFIERS = {name: config for name, config in CONFIGS.items() if not isinstance(config, SegmenterConfig | GridDetectorConfig)}
classifies = pytest.mark.parametrize("name", CLASSIFIERS)
each = pytest.mark.parametrize("name", CONFIGS)
each_vit = pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if isinstance(config, ViTConfig)])


def test_every_family_has_a_row_and_a_case_here() -> None:
    assert set(FAMILIES) == set(MODEL_CONFIGS) == {type(config) for config in CONFIGS.values()}
    assert len({config.family for config in FAMILIES}) == len(set(map(id, FAMILIES.values()))) == len(FAMILIES)


def shorter(name: str, **changes: Any) -> ModelConfig:
    return replace(CONFIGS[name], **changes)


# What torch.compile and torch.export follow, which takes seconds a case: options that are independent stand in one case, and there
# is one layer where all are alike, since a trace takes as long as there are layers and repeats itself.
TRACED: dict[str, ModelConfig] = {
    "token": replace(mini(), depth=1),
    "registers, scale, representation": replace(
        mini(),
        depth=1,
        image_size=(24, 40),
        patch_size=(8, 4),
        register_tokens=3,
        position=Position(prefix=False),
        layer_scale=0.1,
        qkv_bias=False,
        representation_width=48,
    ),
    "distilled, local, padded, one channel": replace(
        mini(), depth=1, distill_token=True, attention="local", window=3, image_size=(30, 41), pad=True, channels=1
    ),
    "axial, mean, root, dynamic": replace(
        mini(),
        depth=1,
        attention="axial",
        pool="mean",
        class_token=False,
        stem=ResNetStem(blocks=(), width=32),
        patch_size=(2, 2),
        dynamic_size=True,
    ),
    "relative, mean and norm, early": replace(
        mini(),
        position=Position(kind="relative", place="every"),
        pool="mean",
        norm_after_pool=True,
        conv_stem=ConvStem(widths=(16, 32), units=(1, 2)),
        patch_size=(2, 2),
    ),
    "map, no head, early batch norm": replace(
        mini(),
        depth=1,
        pool="map",
        class_token=False,
        num_classes=0,
        conv_stem=ConvStem(widths=(12, 20), units=(2, 1), norm="batch"),
        patch_size=(2, 2),
    ),
    "resnet": shorter("resnet", blocks=(1, 1)),
    "swin": shorter("swin", depths=(2, 1)),
    "swin-as-timm-pads": shorter("swin-as-timm-pads", depths=(2,), heads=(2,)),
    "convnext": shorter("convnext", depths=(1, 1)),
    "efficientnet": shorter("efficientnet", stages=((1, 3, 1, 1, 8), (1, 5, 2, 4, 16))),
    "efficientnet-half": shorter("efficientnet-half", stages=((1, 3, 2, 2, 8),)),
    "efficientnet-uneven": CONFIGS["efficientnet-uneven"],
    "lstm": shorter("lstm", depth=1, patch_size=(16, 16)),
    "rnn-mean": shorter("rnn-mean", depth=2, patch_size=(16, 8)),
    "segmenter, mask transformer": SegmenterConfig(
        backbone=replace(mini(), depth=1),
        image_size=(32, 48),
        num_classes=3,
        decoder="mask-transformer",
        decoder_heads=2,
        decoder_depth=1,
    ),
    "segmenter, layers of a padded hybrid": SegmenterConfig(
        backbone=replace(mini(), stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1), pad=True),
        image_size=(60, 41),
        num_classes=3,
        layers=(0, 1),
    ),
    "segmenter-swin": SegmenterConfig(
        backbone=SwinConfig(width=24, depths=(1, 2), heads=(2, 4), window=(3, 4)), image_size=(37, 52), num_classes=5
    ),
    "grid-detector": shorter("grid-detector", backbone=replace(mini(), depth=1), head_depth=1),
    "grid-detector-convnext": GridDetectorConfig(
        backbone=ConvNeXtConfig(depths=(1, 1), widths=(16, 24), layer_scale=0.0),
        image_size=(37, 32),
        num_classes=2,
        head_width=16,
        head_depth=1,
        upsample=1,
    ),
}
each_traced = pytest.mark.parametrize("name", TRACED)


def options(config: Any) -> Iterator[tuple[str, str, object]]:
    """Every option with its value, or whether it has one if that is a number or a list of them."""
    for option in fields(config):
        value = getattr(config, option.name)
        if is_dataclass(value):
            yield from options(value)
        yield type(config).__name__, option.name, value if isinstance(value, bool | str) else bool(value)


def test_every_option_of_a_case_is_in_a_traced_one() -> None:
    traced = {option for config in TRACED.values() for option in options(config)}
    assert {option for config in CONFIGS.values() for option in options(config)} <= traced


def trained(config: ModelConfig) -> Model:
    """A model whose head and other zero-initialised parts have values, so that outputs and gradients mean something."""
    model = build(config, seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


def images(config: ModelConfig, count: int = 3) -> torch.Tensor:
    return torch.randn(count, config.channels, *config.image_size, generator=torch.Generator().manual_seed(3))


@each
def test_a_batch_gives_the_same_logits_as_its_images_one_by_one(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]), images(CONFIGS[name])
    with torch.no_grad():
        together = model(images_BCHW)
        apart = torch.cat([model(image_CHW[None]) for image_CHW in images_BCHW])
    torch.testing.assert_close(together, apart, atol=2e-5, rtol=1e-4)
    assert together.std() > 1e-3


@each
def test_evaluation_is_deterministic(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]), images(CONFIGS[name])
    with torch.no_grad():
        assert torch.equal(model(images_BCHW), model(images_BCHW))


@classifies
def test_the_head_on_the_features_gives_the_logits(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]), images(CONFIGS[name])
    with torch.no_grad():
        logits_BC, features_BD = model(images_BCHW), model.features(images_BCHW)
    assert features_BD.shape == (3, CONFIGS[name].feature_width)
    if name == "distilled":
        return  # two heads, each on its own token
    assert torch.equal(logits_BC, features_BD if model.head is None else model.head(features_BD))


@each
def test_every_parameter_gets_a_finite_gradient(name: str) -> None:
    model = trained(CONFIGS[name]).train()
    model(images(CONFIGS[name])).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


@each
def test_recording_changes_no_output_bit(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]), images(CONFIGS[name])
    config = CONFIGS[name]
    inner = config.backbone if isinstance(config, SegmenterConfig | GridDetectorConfig) else config
    maps, attends = isinstance(inner, MAPS), isinstance(inner, ViTConfig)
    record = Record(attention=attends, tokens=not maps, queries_keys=attends, maps=maps)
    with torch.no_grad():
        assert torch.equal(model(images_BCHW), model(images_BCHW, record))
    assert record.maps_BCHW if maps else record.tokens_BND
    assert bool(record.attention_BHNN) == attends


@each_traced
def test_a_compiled_model_gives_the_same_logits(name: str) -> None:
    model, images_BCHW = trained(TRACED[name]), images(TRACED[name])
    torch.compiler.reset()  # or the other cases' graphs count against this one's limit
    compiled = torch.compile(model, backend="eager", fullgraph=True)  # the whole trace, and nothing made from it
    with torch.no_grad():
        torch.testing.assert_close(compiled(images_BCHW), model(images_BCHW), atol=1e-5, rtol=1e-5)


@each_traced
def test_an_exported_model_takes_any_batch_and_gives_the_same_logits(name: str) -> None:
    model = trained(TRACED[name])
    batch = Dim("batch", min=1, max=64)
    exported = export(model, (images(TRACED[name], 2),), dynamic_shapes=({0: batch},)).module()
    with torch.no_grad():
        for count in (1, 2, 5):
            images_BCHW = images(TRACED[name], count)
            torch.testing.assert_close(exported(images_BCHW), model(images_BCHW), atol=1e-5, rtol=1e-5)


@each
def test_bfloat16_autocast_stays_near_float32(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]), images(CONFIGS[name])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(images_BCHW).float()
    with torch.no_grad():
        full = model(images_BCHW)
    assert (half - full).abs().max() < 0.1 * full.abs().max()


@each
def test_the_same_seed_gives_the_same_model_and_another_seed_another(name: str) -> None:
    first, again, other = (build(CONFIGS[name], seed=seed).state_dict() for seed in (4, 4, 5))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@each
def test_under_the_meta_device_a_model_has_shapes_and_no_values(name: str) -> None:
    with torch.device("meta"):
        model = build(CONFIGS[name])
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == {
        key: tensor.shape for key, tensor in build(CONFIGS[name]).state_dict().items()
    }


@each
def test_the_default_device_changes_no_initial_value(name: str) -> None:
    with torch.device("meta"):  # any device but the CPU; the values are drawn on the CPU
        model = build(CONFIGS[name], seed=4, device="cpu")
    wanted = build(CONFIGS[name], seed=4).state_dict()
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in model.state_dict().items())


@each
def test_a_state_dict_fills_a_model_built_on_meta(name: str) -> None:
    model, empty, images_BCHW = trained(CONFIGS[name]), build_on_meta(CONFIGS[name]), images(CONFIGS[name])
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.load_state_dict(model.state_dict(), strict=True, assign=True)
    with torch.no_grad():
        assert torch.equal(empty.eval()(images_BCHW), model(images_BCHW))


@each
def test_building_leaves_the_global_random_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    build(CONFIGS[name], seed=7)
    assert torch.equal(before, torch.get_rng_state())


@each_vit
def test_skipping_unused_tokens_gives_the_same_logits_and_gradients(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]), images(CONFIGS[name])
    assert isinstance(model, ViT)
    plain = model(images_BCHW)
    plain.square().sum().backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    model.skip_unused_tokens = True
    fewer = model(images_BCHW)
    fewer.square().sum().backward()
    torch.testing.assert_close(fewer, plain, atol=1e-5, rtol=1e-5)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], atol=1e-4, rtol=1e-3)
    with torch.no_grad():
        record = Record(tokens=True, queries_keys=True)
        assert torch.equal(model(images_BCHW), model(images_BCHW, record))
    assert len(record.attention_BHNN) == len(record.tokens_BND) == len(model.encoder.blocks)


@each
def test_computing_activations_again_changes_no_bit_of_the_gradient(name: str) -> None:
    model, images_BCHW = trained(CONFIGS[name]).train(), images(CONFIGS[name])
    gradients = []
    for again in (False, True):
        model.zero_grad()
        (model.encoder if isinstance(model, ViT) else model).recompute = again
        model(images_BCHW).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@classifies
def test_timms_methods_are_there_and_agree_with_the_model(name: str) -> None:
    config = CONFIGS[name]
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    images_BCHW = torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = model.forward_features(images_BCHW)
        torch.testing.assert_close(model.forward_head(features), model(images_BCHW))
        seen_BD = model.forward_head(features, pre_logits=True)
        torch.testing.assert_close(seen_BD, model.features(images_BCHW))
    assert seen_BD.shape == (2, model.num_features)
    assert model.num_classes == config.num_classes
    assert model.get_classifier() is model.head
    model.reset_classifier(7)
    with torch.inference_mode():
        assert torch.equal(model(images_BCHW), torch.zeros(2, 7))
        assert (model.config.num_classes, model.num_classes) == (7, 7)
        model.reset_classifier(0)
        torch.testing.assert_close(model(images_BCHW), model.features(images_BCHW))
    assert model.config == replace(config, num_classes=0)
