"""timm's names of models: what vitlab builds under each is what timm builds, and the others are refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.peer.compare import CONVOLUTIONAL, distance, images, randomised, shapes_only
from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import FORMATS, Hints
from vitlab.config import ConvNeXtConfig, EfficientNetConfig, ModelConfig, SwinConfig, ViTConfig, variant
from vitlab.config.public_weights import public_weights
from vitlab.config.serialize import Json
from vitlab.config.timm_names import architecture_config, architectures, need_of
from vitlab.errors import ConfigError
from vitlab.models import build
from vitlab.models.cost import cost

pytestmark = pytest.mark.peer

MODULES = (
    "vision_transformer",
    "deit",
    "vision_transformer_hybrid",
    "vision_transformer_relpos",
    "beit",
    "eva",
    "naflexvit",
    "resnetv2",
    "swin_transformer",
    "convnext",
    "efficientnet",
)
# One of each style, and the others whose numerics differ.
COMPUTED = (
    *("vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "deit3_small_patch16_224", "vit_small_patch16_36x1_224"),
    *("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_base_patch14_reg1_tipsv2", "flexivit_small"),
    *("test_vit", "test_vit2", "eva_large_patch14_196", "vit_base_patch16_224_miil"),
    *("vit_base_patch16_siglip_224", "vit_base_patch32_siglip_256", "vit_base_patch16_siglip_gap_224"),
    *("vit_base_patch32_siglip_gap_256", "vit_base_patch16_gap_224", "vit_medium_patch16_gap_256", "vit_base_patch16_plus_240"),
    *("vit_wee_patch16_reg1_gap_256", "vit_little_patch16_reg4_gap_256", "vit_base_patch16_reg4_gap_256"),
    *("vit_so150m_patch16_reg4_gap_256", "vit_so150m_patch16_reg4_map_256", "vit_so150m2_patch16_reg1_gap_256"),
    *("vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224", "vit_base_r50_s16_224", "vit_large_r50_s32_224"),
    *("resnetv2_50x1_bit", "swin_tiny_patch4_window7_224", "swin_s3_small_224"),
    *("convnext_atto", "convnext_tiny", "convnext_xxlarge", "efficientnet_b0", "tf_efficientnet_b0"),
)


def shrunk(config: ModelConfig) -> tuple[ModelConfig, dict[str, Any]]:
    """A quick model of the same style, and the arguments with which timm builds it."""
    small: ModelConfig = replace(config, num_classes=5)
    arguments: dict[str, Any] = {"num_classes": 5}
    match small:
        case ViTConfig():
            side = small.step[0] * (7 if small.stem else 3)
            arguments |= {"depth": 2, "img_size": side}
            small = replace(small, depth=2, image_size=(side, side))
        case SwinConfig():
            arguments |= {"depths": (2, 2, 2, 2)}
            small = replace(small, depths=(2, 2, 2, 2))
        case ConvNeXtConfig():
            arguments |= {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48)}
            small = replace(small, depths=(1, 1, 1, 1), widths=(16, 24, 32, 48), image_size=(64, 64))
        case _:
            small = replace(small, image_size=(64, 64))
    return small, arguments


def with_statistics(model: nn.Module, images_BCHW: Tensor) -> nn.Module:
    """The model with the running statistics of these images, in float64: many random layers magnify rounding errors."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model.double().train()(images_BCHW.double())
    return model.eval()


@pytest.mark.parametrize("name", COMPUTED)
def test_the_model_of_a_timm_name_computes_what_timms_does(timm: ModuleType, name: str) -> None:
    config = architecture_config(name)
    assert config is not None
    small, arguments = shrunk(config)
    theirs = timm.create_model(name, **arguments)
    if isinstance(small, ViTConfig) and small.layer_scale:
        assert theirs.blocks[0].ls1.gamma[0].item() == pytest.approx(small.layer_scale)
    randomised(theirs)
    images_BCHW = images(small)
    if isinstance(small, EfficientNetConfig):
        with_statistics(theirs, images_BCHW)
    beside: dict[str, Json] = {"architecture": name, "pretrained_cfg": {"input_size": [3, *small.image_size]}}
    if isinstance(small, ViTConfig):
        beside |= {"global_pool": theirs.global_pool, "model_args": {"num_heads": small.heads}}
    raw = RawFile(path=Path(name), tensors=dict(theirs.state_dict()), metadata={}, sidecar=beside, preprocessor=None)
    dtype = torch.float64 if isinstance(small, EfficientNetConfig) else torch.float32
    ours = build(small).to(dtype).eval()
    ours.load_state_dict(FORMATS["timm"].read(raw, Hints()).state)
    assert distance(ours, theirs, images_BCHW.to(dtype)) < CONVOLUTIONAL


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_architecture_is_built_as_timm_builds_it_or_refused_with_a_reason(timm: ModuleType, module: str) -> None:
    wrong: dict[str, object] = {}
    for name in timm.list_models(module=module):
        try:
            config = variant(name)
        except ConfigError:
            if need_of(name) is None:
                wrong[name] = "refused without a reason"
            continue
        with shapes_only():
            model = timm.create_model(name, num_classes=config.num_classes)
        found = (cost(config).parameters, config.image_size)
        made = (sum(parameter.numel() for parameter in model.parameters()), tuple(model.pretrained_cfg["input_size"][1:]))
        if found != made:
            wrong[name] = (found, made)
    assert not wrong


def test_every_architecture_and_every_public_weight_is_one_of_timms(timm: ModuleType) -> None:
    assert set(architectures()) <= set(timm.list_models())
    wrong: dict[str, object] = {}
    for row in public_weights():
        if "/" in row.name:
            continue
        theirs = timm.get_pretrained_cfg(row.name)
        assert theirs is not None, row.name
        stated = (theirs.num_classes, theirs.input_size[1:], f"hub:{theirs.hf_hub_id}", theirs.license)
        ours = (row.num_classes, (row.image_size, row.image_size), row.address, row.licence)
        if stated != ours:
            wrong[row.name] = (stated, ours)
    assert not wrong
