"""Flax's own layers put together as the paper puts them: the official and big_vision files, both ways.

Axes: B batch, H W pixels, C channels, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints.formats.samples import mini
from tests.peer.compare import TOLERANCE, distance, images, saved
from tests.peer.conftest import installed
from vitlab.checkpoints import convert, load
from vitlab.checkpoints.formats.flax import BY_CLASS, PUBLISHED, Numbering
from vitlab.config import Position, ViTConfig

Tree = dict[str, Any]
PLAIN = mini()
OFFICIAL = {
    "token": PLAIN,
    "hidden layer": replace(PLAIN, representation_width=48),
    "rectangular patch": replace(PLAIN, patch_size=(8, 4)),
}
BIG_VISION = {
    "token": replace(PLAIN, position=Position(prefix=False)),
    "mean": replace(PLAIN, pool="mean", class_token=False),
    "map": replace(PLAIN, pool="map", class_token=False),
}


def vit(nn: ModuleType, config: ViTConfig, tree: Tree, *, official: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model of a parameter tree, from the layers of the library that the authors used."""
    numbering = PUBLISHED if official else BY_CLASS

    def answer(images_BCHW: torch.Tensor) -> torch.Tensor:
        x = _embedded(nn, config, tree, images_BCHW.permute(0, 2, 3, 1).numpy(), official=official)
        for layer in range(config.depth):
            x = _block(nn, config, tree["Transformer"][f"encoderblock_{layer}"], numbering, x)
        x = nn.LayerNorm().apply(_of(tree["Transformer"]["encoder_norm"]), x)
        x = _pooled(nn, config, tree, x)
        if config.representation_width:
            x = nn.tanh(nn.Dense(config.representation_width).apply(_of(tree["pre_logits"]), x))
        return torch.from_numpy(np.array(nn.Dense(config.num_classes).apply(_of(tree["head"]), x)))

    return answer


def _of(tree: Tree) -> Tree:
    return {"params": tree}


def _embedded(nn: ModuleType, config: ViTConfig, tree: Tree, images_BHWC: Any, *, official: bool) -> Any:
    patches = nn.Conv(config.width, config.patch_size, strides=config.patch_size, padding="VALID")
    x = patches.apply(_of(tree["embedding"]), images_BHWC)
    x = x.reshape(x.shape[0], -1, config.width)
    table = tree["Transformer"]["posembed_input"]["pos_embedding"] if official else tree["pos_embedding"]
    token = [np.broadcast_to(tree["cls"], (len(x), 1, config.width))] if config.class_token else []
    if official:
        return np.concatenate([*token, x], axis=1) + table  # eq. 1
    return np.concatenate([*token, x + table], axis=1)  # the class token comes after positions are added


def _block(nn: ModuleType, config: ViTConfig, tree: Tree, numbering: Numbering, x: Any) -> Any:
    attention = nn.MultiHeadDotProductAttention(num_heads=config.heads)
    y = nn.LayerNorm().apply(_of(tree["LayerNorm_0"]), x)
    x = x + attention.apply(_of(tree[numbering.attention]), y, y)  # eq. 2
    return x + _mlp(nn, config, tree[numbering.mlp], nn.LayerNorm().apply(_of(tree[numbering.norm2]), x))  # eq. 3


def _mlp(nn: ModuleType, config: ViTConfig, tree: Tree, x: Any) -> Any:
    hidden = nn.gelu(nn.Dense(config.mlp_width).apply(_of(tree["Dense_0"]), x))
    return nn.Dense(config.width).apply(_of(tree["Dense_1"]), hidden)


def _pooled(nn: ModuleType, config: ViTConfig, tree: Tree, x: Any) -> Any:
    if config.pool == "token":
        return x[:, 0]
    if config.pool == "mean":
        return x.mean(axis=1)
    head = tree["MAPHead_0"]
    probe = np.broadcast_to(head["probe"], (len(x), 1, config.width))
    attention = nn.MultiHeadDotProductAttention(num_heads=config.heads)
    y = attention.apply(_of(head["MultiHeadDotProductAttention_0"]), probe, x)
    y = y + _mlp(nn, config, head["MlpBlock_0"], nn.LayerNorm().apply(_of(head["LayerNorm_0"]), y))
    return y[:, 0]


def tree_in(file: Path, *, below: str) -> Tree:
    """The arrays of an .npz as the tree that their names spell."""
    tree: Tree = {}
    with np.load(file) as arrays:
        for name in arrays.files:
            *folders, leaf = name.removeprefix(below).split("/")
            branch = tree
            for folder in folders:
                branch = branch.setdefault(folder, {})
            branch[leaf] = arrays[name]
    return tree


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_file_written_here_is_what_flaxs_layers_make_of_it(flax: ModuleType, name: str, tmp_path: Path) -> None:
    ours = saved(tmp_path / "native.safetensors", OFFICIAL[name])
    convert(tmp_path / "native.safetensors", tmp_path / "official.npz", to="jax-npz")
    theirs = vit(flax, OFFICIAL[name], tree_in(tmp_path / "official.npz", below=""), official=True)
    assert distance(ours.model, theirs, images(ours.config)) < TOLERANCE


@pytest.mark.parametrize("name", BIG_VISION)
def test_a_big_vision_file_written_here_is_what_flaxs_layers_make_of_it(flax: ModuleType, name: str, tmp_path: Path) -> None:
    ours = saved(tmp_path / "native.safetensors", BIG_VISION[name])
    convert(tmp_path / "native.safetensors", tmp_path / "big_vision.npz", to="big-vision")
    theirs = vit(flax, BIG_VISION[name], tree_in(tmp_path / "big_vision.npz", below="params/"), official=False)
    assert distance(ours.model, theirs, images(ours.config)) < TOLERANCE


def test_parameters_that_flax_itself_drew_are_read_alike(flax: ModuleType, tmp_path: Path) -> None:
    """The shapes of attention come from Flax here, not from what vitlab wrote."""
    jax, config = installed("jax"), PLAIN
    saved(tmp_path / "native.safetensors", config)
    convert(tmp_path / "native.safetensors", tmp_path / "official.npz", to="jax-npz")
    with np.load(tmp_path / "official.npz") as arrays:
        content = {name: arrays[name] for name in arrays.files}
    attention = flax.MultiHeadDotProductAttention(num_heads=config.heads, bias_init=flax.initializers.normal(0.5))
    example = np.zeros((1, config.tokens, config.width), np.float32)
    for layer in range(config.depth):
        drawn = attention.init(jax.random.PRNGKey(layer), example, example)["params"]
        for part, values in drawn.items():
            for leaf, array in values.items():
                content[f"Transformer/encoderblock_{layer}/{PUBLISHED.attention}/{part}/{leaf}"] = np.array(array)
    np.savez(tmp_path / "flax.npz", **content)
    checkpoint = load(tmp_path / "flax.npz")
    theirs = vit(flax, config, tree_in(tmp_path / "flax.npz", below=""), official=True)
    assert distance(checkpoint.model, theirs, images(config)) < TOLERANCE
