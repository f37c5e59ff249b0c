"""Layouts without recorded outputs, against small models written here from what the peers' documentation says of them.

Axes: B batch, N tokens, D width, H heads, K width of a head.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.checkpoints.formats.samples import mini, random_state, raw_of, read, written
from vitlab.checkpoints.formats.contract import Hints
from vitlab.config import Position, ViTConfig
from vitlab.config.vit import PROFILES, with_profile
from vitlab.models.families import build_on_meta

EXACT = with_profile(replace(mini(), width=32, heads=4, mlp_width=48), "torchvision")
FLAX = replace(EXACT, numerics=PROFILES["official"])


def weights(config: ViTConfig) -> dict[str, Tensor]:
    """Small enough that attention is far from a hard choice."""
    return {key: tensor * 0.2 for key, tensor in random_state(config, seed=7).items()}


def ours(config: ViTConfig, state: dict[str, Tensor], images_BCHW: Tensor) -> Tensor:
    model = build_on_meta(config)
    model.load_state_dict(state, strict=True, assign=True)
    with torch.no_grad():
        logits_BC: Tensor = model.eval()(images_BCHW)
    return logits_BC


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    """An encoder layer made of torch's own attention, under torchvision's names."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(config.width, config.heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(config.width, eps=1e-6)
        up, down = nn.Linear(config.width, config.mlp_width), nn.Linear(config.mlp_width, config.width)
        self.mlp = nn.Sequential(up, nn.GELU(), nn.Dropout(0.0), down, nn.Dropout(0.0))

    def forward(self, x_BND: Tensor) -> Tensor:
        y_BND = self.ln_1(x_BND)
        x_BND = x_BND + self.self_attention(y_BND, y_BND, y_BND, need_weights=False)[0]
        z_BND: Tensor = x_BND + self.mlp(self.ln_2(x_BND))
        return z_BND


class Layers(nn.Module):
    """The encoder under torchvision's names."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, 17, config.width))
        self.layers = nn.Sequential()
        for i in range(config.depth):
            self.layers.add_module(f"encoder_layer_{i}", Layer(config))
        self.ln = nn.LayerNorm(config.width, eps=1e-6)

    def forward(self, x_BND: Tensor) -> Tensor:
        z_BND: Tensor = self.ln(self.layers(x_BND + self.pos_embedding))
        return z_BND


class Reference(nn.Module):
    """torchvision's VisionTransformer in a few lines."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, config.width, 8, 8)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.encoder = Layers(config)
        self.heads = nn.Sequential()
        if config.representation_width:
            self.heads.add_module("pre_logits", nn.Linear(config.width, config.representation_width))
            self.heads.add_module("act", nn.Tanh())
        self.heads.add_module("head", nn.Linear(config.feature_width, config.num_classes))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        x_BND = self.conv_proj(images_BCHW).flatten(2).transpose(1, 2)
        x_BND = torch.cat([self.class_token.expand(len(x_BND), -1, -1), x_BND], 1)
        logits_BC: Tensor = self.heads(self.encoder(x_BND)[:, 0])
        return logits_BC


@pytest.mark.parametrize("hidden", [0, 24])
def test_a_torchvision_model_loads_what_is_written_for_it_and_gives_the_same_logits(hidden: int) -> None:
    config = replace(EXACT, representation_width=hidden)
    state = weights(config)
    reference = Reference(config)
    reference.load_state_dict(written("torchvision", config, state).tensors, strict=True)
    with torch.no_grad():
        torch.testing.assert_close(ours(config, state, images()), reference.eval()(images()), atol=1e-5, rtol=0)


def test_a_torchvision_models_own_state_dict_is_read() -> None:
    torch.manual_seed(0)
    reference = Reference(EXACT).eval()
    nn.init.normal_(reference.get_parameter("encoder.pos_embedding"))
    state = dict(reference.state_dict())
    reading = read(raw_of(state), Hints(heads=4))
    assert isinstance(reading.config, ViTConfig)
    with torch.no_grad():
        torch.testing.assert_close(ours(reading.config, reading.state, images()), reference(images()), atol=1e-5, rtol=0)


def big_vision(tree: dict[str, Tensor], images_BCHW: Tensor, pool: str) -> Tensor:
    """big_vision's ViT as einsums over its own arrays."""
    p = {key.removeprefix("params/"): tensor for key, tensor in tree.items()}

    def norm(x: Tensor, at: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{at}/scale"], p[f"{at}/bias"], eps=1e-6)

    def attend(q_BND: Tensor, x_BND: Tensor, at: str) -> Tensor:
        q, k, v = (
            torch.einsum("bnd,dhk->bnhk", source, p[f"{at}/{part}/kernel"]) + p[f"{at}/{part}/bias"]
            for part, source in (("query", q_BND), ("key", x_BND), ("value", x_BND))
        )
        weight_BHNN = (torch.einsum("bqhk,bnhk->bhqn", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        y_BNHK = torch.einsum("bhqn,bnhk->bqhk", weight_BHNN, v)
        return torch.einsum("bqhk,hkd->bqd", y_BNHK, p[f"{at}/out/kernel"]) + p[f"{at}/out/bias"]

    def mlp(x: Tensor, at: str) -> Tensor:
        hidden = F.gelu(x @ p[f"{at}/Dense_0/kernel"] + p[f"{at}/Dense_0/bias"], approximate="tanh")
        return hidden @ p[f"{at}/Dense_1/kernel"] + p[f"{at}/Dense_1/bias"]

    kernel = p["embedding/kernel"]
    size = kernel.shape[0]
    patches = images_BCHW.unfold(2, size, size).unfold(3, size, size)  # b c y x h w
    x = torch.einsum("bcyxhw,hwcd->byxd", patches, kernel).flatten(1, 2) + p["embedding/bias"]
    x = x + (p["pos_embedding"] if "pos_embedding" in p else waves(4, 4, x.shape[-1]))
    if pool == "tok":
        x = torch.cat([p["cls"].expand(len(x), -1, -1), x], 1)
    depth = len({key.split("/")[1] for key in p if key.startswith("Transformer/encoderblock")})
    for i in range(depth):
        at = f"Transformer/encoderblock_{i}"
        y = norm(x, f"{at}/LayerNorm_0")
        x = x + attend(y, y, f"{at}/MultiHeadDotProductAttention_0")
        x = x + mlp(norm(x, f"{at}/LayerNorm_1"), f"{at}/MlpBlock_0")
    x = norm(x, "Transformer/encoder_norm")
    if pool == "map":
        y = attend(p["MAPHead_0/probe"].expand(len(x), -1, -1), x, "MAPHead_0/MultiHeadDotProductAttention_0")
        y = y + mlp(norm(y, "MAPHead_0/LayerNorm_0"), "MAPHead_0/MlpBlock_0")
        y = y[:, 0]
    else:
        y = x[:, 0] if pool == "tok" else x.mean(1)
    if "pre_logits/kernel" in p:
        y = torch.tanh(y @ p["pre_logits/kernel"] + p["pre_logits/bias"])
    return y @ p["head/kernel"] + p["head/bias"]


def waves(down: int, across: int, width: int) -> Tensor:
    """Sines and cosines of x, then of y, with a quarter of the width each, as MoCo v3 has them."""
    y, x = np.mgrid[:down, :across]
    omega = 1.0 / 10_000 ** (np.arange(width // 4) / (width // 4 - 1))
    x, y = np.outer(x.ravel(), omega), np.outer(y.ravel(), omega)
    return torch.from_numpy(np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)[None]).float()


@pytest.mark.parametrize(
    ("pool", "config"),
    {
        "tok": replace(FLAX, position=Position(prefix=False)),
        "gap": replace(FLAX, pool="mean", class_token=False, representation_width=24),
        "map": replace(FLAX, pool="map", class_token=False),
        "map with waves": replace(FLAX, pool="map", class_token=False, position=Position(kind="sincos-2d", prefix=False)),
    }.items(),
)
def test_a_big_vision_file_holds_what_big_visions_formulas_need(pool: str, config: ViTConfig) -> None:
    state = weights(config)
    tree = written("big-vision", config, state).tensors
    expected = big_vision(tree, images(), pool.split()[0])
    torch.testing.assert_close(ours(config, state, images()), expected, atol=1e-5, rtol=0)
    back = read(raw_of(tree), Hints(grid=(4, 4)))
    assert isinstance(back.config, ViTConfig)
    torch.testing.assert_close(ours(back.config, back.state, images()), expected, atol=1e-5, rtol=0)


def test_timms_attention_pool_and_big_visions_are_the_same_model() -> None:
    config = replace(FLAX, pool="map", class_token=False)
    state = weights(config)
    tree = written("timm", config, state).tensors
    back = read(raw_of(tree), Hints(heads=4, profile="official"))
    assert isinstance(back.config, ViTConfig)
    assert back.config.pool == "map"
    assert torch.equal(ours(back.config, back.state, images()), ours(config, state, images()))


def test_deits_unread_distillation_token_is_one_that_only_attention_sees() -> None:
    config = replace(EXACT, register_tokens=1)
    state = weights(config)
    given = written("huggingface", config, state)
    assert given.tensors["deit.embeddings.distillation_token"].shape == (1, 1, 32)
    back = read(raw_of(given.tensors, sidecar=given.sidecars["config.json"]))
    assert isinstance(back.config, ViTConfig)
    assert torch.equal(ours(back.config, back.state, images()), ours(config, state, images()))
    other = dict(state) | {"register_tokens": state["register_tokens"] + 1}
    assert not torch.equal(ours(config, other, images()), ours(config, state, images()))
