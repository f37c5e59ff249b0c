"""The post-activation ResNet before a hybrid's patches, and whole hybrids against the peers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitlab.config.vit import PROFILES, ViTConfig
from vitlab.config.vit_parts import ResNetStem
from vitlab.models import build
from vitlab.models.model import Draw
from vitlab.models.stems import ResNetBody, init_stem


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(config: ResNetStem, channels: int = 3) -> ResNetBody:
    stem = ResNetBody(config, channels)
    with torch.no_grad():
        init_stem(stem, Draw(0))
    return stem.eval()


SMALL = ResNetStem(blocks=(2, 1), width=32)


def from_flax(arrays: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """The authors' names and layouts to ours."""
    state: dict[str, Tensor] = {}
    for key, tensor in arrays.items():
        if key.startswith("Transformer/encoderblock"):
            continue
        key = key.replace("Transformer/posembed_input/pos_embedding", "position.table")
        key = key.replace("Transformer/encoder_norm", "encoder.norm").replace("embedding", "patches").replace("cls", "class_token")
        key = key.replace("conv_root", "stem.root").replace("gn_root", "stem.root_norm")
        if key.startswith("block"):
            block, unit, *rest = key.split("/")
            key = "/".join([f"stem.stages.{int(block[5:]) - 1}.{int(unit[4:]) - 1}", *rest])
        key = key.replace("conv_proj", "shortcut").replace("gn_proj", "shortcut_norm").replace("gn", "norm")
        key = key.replace("/scale", ".weight").replace("/kernel", ".weight").replace("/", ".")
        state[key] = tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T if key == "head.weight" else tensor
    for layer in range(depth):
        theirs, ours = f"Transformer/encoderblock_{layer}", f"encoder.blocks.{layer}"
        attention = f"{theirs}/MultiHeadDotProductAttention_0"
        three = ("query", "key", "value")
        state[f"{ours}.attention.qkv.weight"] = torch.cat([arrays[f"{attention}/{w}/kernel"].flatten(1).T for w in three])
        state[f"{ours}.attention.qkv.bias"] = torch.cat([arrays[f"{attention}/{w}/bias"].flatten() for w in three])
        state[f"{ours}.attention.out.weight"] = arrays[f"{attention}/out/kernel"].flatten(0, 1).T
        state[f"{ours}.attention.out.bias"] = arrays[f"{attention}/out/bias"]
        for index, name in enumerate(("norm1", "norm2")):
            state[f"{ours}.{name}.weight"] = arrays[f"{theirs}/LayerNorm_{index}/scale"]
            state[f"{ours}.{name}.bias"] = arrays[f"{theirs}/LayerNorm_{index}/bias"]
        for index, name in enumerate(("up", "down")):
            state[f"{ours}.mlp.{name}.weight"] = arrays[f"{theirs}/MlpBlock_0/Dense_{index}/kernel"].T
            state[f"{ours}.mlp.{name}.bias"] = arrays[f"{theirs}/MlpBlock_0/Dense_{index}/bias"]
    return state


@pytest.mark.parametrize(
    ("name", "blocks", "patch", "heads", "depth"), [("hybrid", (2, 2), 1, 4, 2), ("hybrid_patch2", (1, 1, 1), 2, 2, 1)]
)
def test_the_authors_hybrid_weights_give_the_authors_logits(
    checkout: Path, name: str, blocks: tuple[int, ...], patch: int, heads: int, depth: int
) -> None:
    folder = checkout / "tests" / "golden" / "official"
    with np.load(folder / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    with np.load(folder / f"{name}.expected.npz") as file:
        images_BCHW = torch.from_numpy(file["images_BHWC"]).permute(0, 3, 1, 2)
        logits_BC = torch.from_numpy(file["logits_BC"])
    config = ViTConfig(
        width=arrays["cls"].shape[-1],
        depth=depth,
        heads=heads,
        mlp_width=arrays["Transformer/encoderblock_0/MlpBlock_0/Dense_0/bias"].shape[0],
        patch_size=(patch, patch),
        image_size=(images_BCHW.shape[2], images_BCHW.shape[3]),
        num_classes=logits_BC.shape[1],
        stem=ResNetStem(blocks=blocks, width=32),
    )
    model = build(config).eval()
    model.load_state_dict(from_flax(arrays, depth), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(model(images_BCHW), logits_BC, atol=2e-6, rtol=0)


def test_timm_s_hybrid_weights_give_timm_s_logits(checkout: Path) -> None:
    folder = checkout / "tests" / "golden" / "peers"
    theirs, expected = load_file(folder / "timm_hybrid.safetensors"), load_file(folder / "timm_hybrid.expected.safetensors")
    words = (
        ("patch_embed.backbone.conv", "stem.root"),
        ("patch_embed.backbone.norm", "stem.root_norm"),
        ("patch_embed.proj", "patches"),
        ("cls_token", "class_token"),
        ("pos_embed", "position.table"),
        ("attn.proj", "attention.out"),
        ("attn.qkv", "attention.qkv"),
        ("mlp.fc1", "mlp.up"),
        ("mlp.fc2", "mlp.down"),
        ("blocks.", "encoder.blocks."),
    )
    state = {}
    for key, tensor in theirs.items():
        for word, ours in words:
            key = key.replace(word, ours)
        state[f"encoder.{key}" if key.startswith("norm.") else key] = tensor
    config = ViTConfig(
        width=128,
        depth=2,
        heads=2,
        mlp_width=512,
        patch_size=(8, 8),
        image_size=(64, 64),
        num_classes=5,
        stem=ResNetStem(blocks=(), standardise="variance", standardise_eps=1e-8, norm_eps=1e-5),
        numerics=PROFILES["timm"],
    )
    model = build(config).eval()
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        torch.testing.assert_close(model(expected["images_BCHW"]), expected["logits_BC"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("size", [(64, 64), (65, 63), (30, 97), (5, 5)])
@pytest.mark.parametrize("blocks", [(), (1,), (1, 1), (1, 1, 1)])
def test_the_maps_have_a_cell_for_each_stride_begun_and_the_width_the_config_says(
    size: tuple[int, int], blocks: tuple[int, ...]
) -> None:
    config = ResNetStem(blocks=blocks, width=32)
    with torch.no_grad():
        maps_BCHW = made(config)(noise(2, 3, *size))
    down, across = (-(-side // config.stride) for side in size)
    assert maps_BCHW.shape == (2, config.out_width, down, across)
    assert maps_BCHW.min() >= 0  # a ReLU comes last


def test_a_new_unit_is_its_shortcut_alone() -> None:
    unit = made(SMALL).stages[0][1]  # type: ignore[index]
    maps_BCHW = noise(2, 128, 8, 8).relu()
    with torch.no_grad():
        assert torch.equal(unit(maps_BCHW), maps_BCHW)


def test_the_first_unit_of_a_stage_alone_has_a_projected_shortcut() -> None:
    keys = set(made(SMALL).state_dict())
    for unit, projected in {"stages.0.0": True, "stages.0.1": False, "stages.1.0": True}.items():
        for key in ("shortcut.weight", "shortcut_norm.weight", "shortcut_norm.bias"):
            assert (f"{unit}.{key}" in keys) == projected


def test_the_stride_is_the_middle_convolution_s_and_the_shortcut_s() -> None:
    unit = made(SMALL).stages[1][0]  # type: ignore[index]
    assert [unit.conv1.stride, unit.conv2.stride, unit.conv3.stride, unit.shortcut.stride] == [1, 2, 1, 2]


def test_an_image_moved_by_the_stride_gives_maps_moved_by_one_cell() -> None:
    """True away from the edges, and before any GroupNorm sees another mean: for images that are zero at their border."""
    config = ResNetStem(blocks=(), width=32)
    image_BCHW = torch.zeros(1, 3, 64, 64)
    image_BCHW[:, :, 20:40, 20:40] = noise(1, 3, 20, 20)
    moved_BCHW = image_BCHW.roll((config.stride, 2 * config.stride), (2, 3))
    stem = made(config)
    with torch.no_grad():
        torch.testing.assert_close(stem(moved_BCHW), stem(image_BCHW).roll((1, 2), (2, 3)), atol=1e-5, rtol=0)


def test_the_maps_of_a_constant_image_differ_only_at_the_edges() -> None:
    with torch.no_grad():
        maps_BCHW = made(ResNetStem(blocks=(), width=32))(torch.ones(1, 3, 64, 64))
    inner_BCHW = maps_BCHW[:, :, 2:-2, 2:-2]
    torch.testing.assert_close(inner_BCHW, inner_BCHW[:, :, :1, :1].expand_as(inner_BCHW), atol=1e-5, rtol=0)
