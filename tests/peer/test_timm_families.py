"""timm's own Swin, ConvNeXt and EfficientNet, both ways."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.checkpoints.formats.samples import OPTIONS
from tests.peer.compare import CONVOLUTIONAL, TOLERANCE, distance, images, randomised, saved, shapes_only
from vitlab.checkpoints import convert, load, save
from vitlab.checkpoints.formats.contract import native_shapes, their_shapes
from vitlab.checkpoints.formats.timm import family_rows
from vitlab.config import ConvNeXtConfig, EfficientNetConfig, ModelConfig, SwinConfig, variant
from vitlab.config.efficientnet import scaled_stages
from vitlab.errors import CheckpointError
from vitlab.models import build
from vitlab.models.batch_norm import BatchNorm

SMALL_SWIN = {"embed_dim": 24, "depths": (2, 2, 2, 2), "num_heads": (2, 2, 4, 4), "num_classes": 5}
# name: timm's architecture, its arguments, arguments of load, the image size
THEIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "swin": ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "img_size": 224}, {}, (224, 224)),
    "swin, window 4": ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "img_size": 128, "window_size": 4}, {}, (128, 128)),
    "swin, padded": ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "img_size": 96}, {}, (96, 96)),
    "swin, rectangle": ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "img_size": (64, 192)}, {"grid": (16, 48)}, (64, 192)),
    "swin, no qkv bias": ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "qkv_bias": False}, {}, (224, 224)),
    "swin, one channel": ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "in_chans": 1}, {}, (224, 224)),
    "convnext": ("convnext_tiny", {"depths": (1, 2, 3, 1), "dims": (16, 24, 32, 48), "num_classes": 5}, {}, (96, 96)),
    "convnext, odd": ("convnext_tiny", {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "num_classes": 5}, {}, (107, 66)),
    "convnext, no scale": (
        "convnext_tiny",
        {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "num_classes": 5, "ls_init_value": None},
        {},
        (64, 64),
    ),
    "convnext, convolved": (
        "convnext_nano",
        {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "num_classes": 5, "conv_mlp": True},
        {},
        (64, 64),
    ),
    "efficientnet": ("tf_efficientnet_b0", {"num_classes": 5}, {}, (64, 64)),
    "efficientnet, odd": ("tf_efficientnet_b1", {"num_classes": 5}, {}, (67, 91)),
    "efficientnet, timm's own": ("efficientnet_b0", {"num_classes": 5}, {"profile": "timm"}, (65, 64)),
    "efficientnet, one channel": ("tf_efficientnet_b0", {"num_classes": 5, "in_chans": 1}, {}, (64, 64)),
}
OURS: dict[str, ModelConfig] = {
    "swin": SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4), image_size=(64, 64), num_classes=5),
    "swin, small maps": SwinConfig(width=24, depths=(2, 2), heads=(2, 4), image_size=(24, 24), num_classes=5),
    "swin, padded": replace(
        SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(5, 5), image_size=(48, 64), num_classes=5), pad_first=False
    ),
    "swin, two channels": SwinConfig(
        width=24, depths=(2,), heads=(2,), window=(4, 4), image_size=(64, 64), channels=2, num_classes=5
    ),
    "swin, three stages, no qkv bias": SwinConfig(
        width=24, depths=(1, 2, 1), heads=(2, 2, 4), window=(2, 2), image_size=(32, 96), num_classes=5, qkv_bias=False
    ),
    "convnext": ConvNeXtConfig(depths=(1, 2, 1, 1), widths=(16, 24, 32, 48), image_size=(64, 96), num_classes=5),
    "convnext, kernel 5": ConvNeXtConfig(
        depths=(1, 1, 1, 1), widths=(16, 24, 32, 48), kernel=5, layer_scale=0.0, channels=1, image_size=(64, 64), num_classes=5
    ),
    "convnext, no head, other eps": ConvNeXtConfig(
        depths=(1, 1, 1, 1), widths=(16, 24, 32, 48), image_size=(64, 64), num_classes=0, norm_eps=1e-2
    ),
    "efficientnet": variant("EfficientNet-B0", image_size=64, num_classes=5),
    "efficientnet, no head": variant("EfficientNet-B0", image_size=64, num_classes=0),
    "efficientnet, two channels": variant("EfficientNet-B0", image_size=(67, 64), num_classes=5, channels=2),
    "efficientnet, timm's own": replace(
        EfficientNetConfig(stages=scaled_stages(1, 1), image_size=(64, 64), num_classes=5), padding="half", norm_eps=1e-5
    ),
}
FULL = [
    ("Swin-T", "swin_tiny_patch4_window7_224", 224),
    ("Swin-S", "swin_small_patch4_window7_224", 224),
    ("Swin-B", "swin_base_patch4_window12_384", 384),
    ("Swin-L", "swin_large_patch4_window7_224", 224),
    ("ConvNeXt-T", "convnext_tiny", 224),
    ("ConvNeXt-S", "convnext_small", 224),
    ("ConvNeXt-B", "convnext_base", 224),
    ("ConvNeXt-L", "convnext_large", 224),
    ("ConvNeXt-XL", "convnext_xlarge", 224),
    *((f"EfficientNet-B{n}", f"tf_efficientnet_b{n}", None) for n in range(8)),
    ("EfficientNet-L2", "tf_efficientnet_l2", None),
]


def shaken(model: nn.Module, images_BCHW: torch.Tensor) -> nn.Module:
    """A random model, offset biases as large as the logits they are added to, running statistics near those of these images."""
    randomised(model)
    generator = torch.Generator().manual_seed(11)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d | BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "position_bias" in name or "offset_bias" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        if norms:
            model.train()(images_BCHW)
        for norm in norms:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            deviation_C = norm.running_var.sqrt()
            norm.running_mean.add_(0.2 * deviation_C * torch.randn(deviation_C.shape, generator=generator))
            norm.running_var.mul_(0.8 + 0.4 * torch.rand(deviation_C.shape, generator=generator))
    return model.eval()


def apart(one: nn.Module, other: nn.Module, config: ModelConfig) -> float:
    """The distance of two models' answers as a share of what is allowed.

    EfficientNets are compared in float64: eighty random layers with BatchNorm make of float32's rounding errors what they like.
    """
    images_BCHW = images(config)
    if isinstance(config, EfficientNetConfig):
        return distance(copy.deepcopy(one).double(), copy.deepcopy(other).double(), images_BCHW.double()) / 1e-8
    return distance(one, other, images_BCHW) / (TOLERANCE if isinstance(config, SwinConfig) else CONVOLUTIONAL)


@pytest.mark.parametrize("name", THEIRS)
def test_a_model_of_timm_gives_its_logits(timm: ModuleType, name: str, tmp_path: Path) -> None:
    architecture, arguments, options, size = THEIRS[name]
    images_BCHW = torch.randn(4, arguments.get("in_chans", 3), *size, generator=torch.Generator().manual_seed(3))
    theirs = shaken(timm.create_model(architecture, **arguments), images_BCHW)
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    checkpoint = load(tmp_path / "timm.safetensors", image_size=size, **options)
    assert checkpoint.format == "timm"
    assert apart(checkpoint.model, theirs, checkpoint.config) < 1


@pytest.mark.parametrize("name", OURS)
def test_timm_opens_a_folder_written_here_and_gives_the_same_logits(timm: ModuleType, name: str, tmp_path: Path) -> None:
    ours = saved(tmp_path / "native.safetensors", OURS[name])
    shaken(ours.model, images(ours.config, batch=4, seed=3))
    save(ours, tmp_path / "native.safetensors")
    convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert apart(ours.model, theirs, ours.config) < 1
    back = load(tmp_path / "timm")
    assert back.config == ours.config
    with torch.inference_mode():
        assert torch.equal(back.model(images(ours.config)), ours.model(images(ours.config)))


def efficientnet_by_hand(timm: ModuleType, config: EfficientNetConfig) -> nn.Module:
    """timm's class, given stages of its own in timm's shorthand."""
    module = timm.models.efficientnet
    blocks = []
    for stage in config.plan:
        kind = "ir" if stage.expansion > 1 else "ds"
        blocks.append(
            [f"{kind}_r{stage.blocks}_k{stage.kernel}_s{stage.stride}_e{stage.expansion}_c{stage.width}_se{config.squeeze}"]
        )
    model: nn.Module = module.EfficientNet(
        block_args=module.decode_arch_def(blocks),
        in_chans=config.channels,
        num_classes=config.num_classes,
        stem_size=config.stem_width,
        fix_stem=True,
        num_features=config.head_width,
        pad_type="same" if config.padding == "same" else "",
        norm_layer=partial(nn.BatchNorm2d, eps=config.norm_eps),
        act_layer=nn.SiLU,
    )
    return model


@pytest.mark.parametrize("option", ["efficientnet", "efficientnet, half"])
def test_an_efficientnet_that_timm_has_no_name_for_goes_into_its_class_and_answers_alike(
    timm: ModuleType, option: str, tmp_path: Path
) -> None:
    ours = saved(tmp_path / "native.safetensors", OPTIONS[option])
    shaken(ours.model, images(ours.config, batch=4, seed=3))
    save(ours, tmp_path / "native.safetensors")
    convert(tmp_path / "native.safetensors", tmp_path / "timm.safetensors", to="timm")
    assert isinstance(ours.config, EfficientNetConfig)
    theirs = efficientnet_by_hand(timm, ours.config)
    theirs.load_state_dict(load_file(tmp_path / "timm.safetensors"), strict=True)
    assert apart(ours.model, theirs.eval(), ours.config) < 1


def test_an_efficientnet_as_timm_draws_it_gives_timms_logits_in_float32(timm: ModuleType, tmp_path: Path) -> None:
    theirs = timm.create_model("tf_efficientnet_b0", num_classes=5).eval()
    with torch.no_grad():
        theirs.classifier.weight.normal_(generator=torch.Generator().manual_seed(0))
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    checkpoint = load(tmp_path / "timm.safetensors", image_size=96)
    images_BCHW = 3 * images(checkpoint.config)
    with torch.inference_mode():
        ours_BC, theirs_BC = checkpoint.model(images_BCHW), theirs(images_BCHW)
    assert theirs_BC.abs().max() > 1e-4
    assert (ours_BC - theirs_BC).abs().max() < 1e-5 * theirs_BC.abs().max()


NO_FOLDER: dict[str, tuple[SwinConfig, str]] = {
    "window that is not square": (
        SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(2, 4), image_size=(32, 64), num_classes=5),
        "timm has no swin of this shape under a name",
    ),
    "no head": (
        SwinConfig(width=24, depths=(1, 2, 1), heads=(2, 2, 4), window=(2, 2), image_size=(32, 96), num_classes=0),
        "timm reads a Swin without a head as a file of Swin's authors",
    ),
}


@pytest.mark.parametrize("name", NO_FOLDER)
def test_a_swin_that_timm_cannot_open_as_a_folder_goes_into_its_class_and_answers_alike(
    timm: ModuleType, name: str, tmp_path: Path
) -> None:
    config, reason = NO_FOLDER[name]
    ours = saved(tmp_path / "native.safetensors", config)
    with pytest.raises(CheckpointError, match=f"timm cannot open this model as a folder: {reason}"):
        convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    convert(tmp_path / "native.safetensors", tmp_path / "timm.safetensors", to="timm")
    theirs = timm.models.swin_transformer.SwinTransformer(
        img_size=config.image_size,
        embed_dim=config.width,
        depths=config.depths,
        num_heads=config.heads,
        window_size=config.window,
        num_classes=config.num_classes,
    )
    theirs.load_state_dict(load_file(tmp_path / "timm.safetensors"), strict=True)
    assert apart(ours.model, theirs.eval(), config) < 1
    assert load(tmp_path / "timm.safetensors").config == config


@pytest.mark.parametrize(("name", "architecture", "size"), FULL)
def test_a_published_model_has_timms_tensors_at_full_size(timm: ModuleType, name: str, architecture: str, size: int | None) -> None:
    with shapes_only():
        theirs = timm.create_model(architecture)
    config = variant(name, image_size=size)
    shapes = their_shapes(list(family_rows(config)), native_shapes(config))
    expected = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items() if not key.endswith("num_batches_tracked")}
    assert shapes == expected


def authors_swin(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """timm's tensors under the names of Swin's authors, with the buffers that their files hold."""
    found = {}
    for key, tensor in state.items():
        key = key.replace("head.fc", "head")
        if ".downsample." in key:
            stage = int(key.split(".")[1])
            key = key.replace(f"layers.{stage}.", f"layers.{stage - 1}.")
        found[key] = tensor
    for stage in range(4):
        found[f"layers.{stage}.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.int64)
        found[f"layers.{stage}.blocks.1.attn_mask"] = torch.zeros(4, 49, 49)
    return found


def test_the_files_of_swins_authors_give_timms_logits(timm: ModuleType, tmp_path: Path) -> None:
    theirs = shaken(timm.create_model("swin_tiny_patch4_window7_224", **SMALL_SWIN), torch.zeros(0))
    torch.save({"model": authors_swin(theirs.state_dict())}, tmp_path / "swin.pth")
    checkpoint = load(tmp_path / "swin.pth")
    assert checkpoint.format == "swin"
    assert distance(checkpoint.model, theirs, images(checkpoint.config)) < TOLERANCE


def test_the_files_of_convnexts_authors_give_timms_logits_as_timm_reads_them(timm: ModuleType, tmp_path: Path) -> None:
    small = {"depths": (1, 2, 1, 1), "dims": (16, 24, 32, 48), "num_classes": 5}
    config = ConvNeXtConfig(depths=(1, 2, 1, 1), widths=(16, 24, 32, 48), image_size=(64, 64), num_classes=5)
    ours = saved(tmp_path / "native.safetensors", config)
    convert(tmp_path / "native.safetensors", tmp_path / "authors.safetensors", to="convnext")
    state = load_file(tmp_path / "authors.safetensors")
    torch.save({"model": state}, tmp_path / "convnext.pth")
    checkpoint = load(tmp_path / "convnext.pth", image_size=64)
    assert checkpoint.format == "convnext"
    theirs = timm.create_model("convnext_tiny", **small).eval()
    theirs.load_state_dict(timm.models.convnext.checkpoint_filter_fn({"model": state}, theirs), strict=True)
    assert distance(checkpoint.model, theirs, images(config)) < CONVOLUTIONAL
    with torch.inference_mode():
        assert torch.equal(checkpoint.model(images(config)), ours.model(images(config)))


def test_swins_bias_tables_resized_to_another_window_are_those_of_the_authors_bicubic(timm: ModuleType, tmp_path: Path) -> None:
    theirs = shaken(timm.create_model("swin_tiny_patch4_window7_224", **SMALL_SWIN), torch.zeros(0))
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    checkpoint = load(tmp_path / "timm.safetensors", image_size=384, window=12)
    table_OH = theirs.state_dict()["layers.2.blocks.1.attn.relative_position_bias_table"]
    resize = import_module("timm.layers.pos_embed_rel").resize_rel_pos_bias_table_simple
    wanted_OH = resize(table_OH, (12, 12), (529, 4))
    assert torch.allclose(checkpoint.model.state_dict()["stages.2.blocks.1.attention.offset_bias"], wanted_OH, atol=1e-6)


def test_a_convnext_v2_is_refused_for_its_response_norm(timm: ModuleType, tmp_path: Path) -> None:
    theirs = timm.create_model("convnextv2_atto", num_classes=5)
    save_file(theirs.state_dict(), tmp_path / "v2.safetensors")
    with pytest.raises(CheckpointError, match="grn"):
        load(tmp_path / "v2.safetensors")


NEW: dict[str, ModelConfig] = {
    "swin": SwinConfig(width=32, depths=(1, 1, 1), heads=(2, 4, 4), window=(4, 4), image_size=(64, 64), num_classes=5),
    "convnext": ConvNeXtConfig(depths=(1, 1, 1, 1), widths=(32, 48, 64, 96), image_size=(64, 64), num_classes=5),
}


@pytest.mark.parametrize("name", NEW)
def test_new_weights_are_drawn_as_timm_draws_them(timm: ModuleType, name: str, tmp_path: Path) -> None:
    """Every matrix and kernel but the head, which is 0 here, has the standard deviation that timm's has."""
    ours = saved(tmp_path / "native.safetensors", NEW[name])
    save(replace(ours, model=build(ours.config, seed=0)), tmp_path / "native.safetensors")
    convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    drawn = load_file(tmp_path / "timm" / "model.safetensors")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}").state_dict()
    matrices = [key for key, tensor in drawn.items() if tensor.ndim > 1 and not key.startswith("head")]
    assert len(matrices) > 10
    for key in matrices:
        assert float(drawn[key].std()) == pytest.approx(float(theirs[key].std()), rel=0.2), key
