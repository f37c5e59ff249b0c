"""Tiny models of the families that came after the paper: one for each way in which they differ from it."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.vit import Numerics, Position, ViTConfig
from vitlab.config.vit_parts import FeedForward, Norm, Pooling, Projections, RelativeBias, Rotary

_NONE = Position(kind="none")
PLAIN = ViTConfig(width=32, depth=2, heads=2, mlp_width=64, patch_size=(8, 8), image_size=(24, 32), num_classes=5)
MEAN = replace(PLAIN, pool="mean", class_token=False)

MODERN: dict[str, ViTConfig] = {
    "clip": replace(PLAIN, norm=Norm(before=True), numerics=Numerics(gelu="quick", norm_eps=1e-5), projection_width=24),
    "dinov2": replace(PLAIN, layer_scale=1e-2, register_tokens=3, position=Position(registers=False), pool="token+mean"),
    "dinov2-giant": replace(PLAIN, layer_scale=1e-2, mlp=FeedForward(gated=True)),
    "dinov3": replace(
        PLAIN,
        layer_scale=1e-2,
        register_tokens=4,
        projections=Projections(key_bias=False),
        position=Position(kind="none", rotary=Rotary(kind="centred", temperature=100.0)),
    ),
    "eva02": replace(
        PLAIN,
        pool="mean",
        norm_after_pool=True,
        projections=Projections(key_bias=False),
        mlp=FeedForward(gated=True, norm=True),
        position=Position(rotary=Rotary(reference=(4, 4))),
    ),
    "eva02-clip": replace(
        PLAIN,
        projections=Projections(key_bias=False, out_norm=True),
        mlp=FeedForward(gated=True, norm=True),
        position=Position(rotary=Rotary(reference=(4, 4))),
    ),
    "rope-mixed": replace(
        PLAIN, layer_scale=1e-2, position=Position(kind="none", rotary=Rotary(kind="mixed", temperature=10.0, columns_first=True))
    ),
    "beit": replace(
        PLAIN,
        layer_scale=0.1,
        pool="mean",
        norm_after_pool=True,
        projections=Projections(key_bias=False),
        position=Position(kind="none", bias=RelativeBias()),
    ),
    "data2vec": replace(
        PLAIN,
        layer_scale=0.1,
        projections=Projections(key_bias=False),
        position=Position(kind="none", bias=RelativeBias(shared=True)),
    ),
    "relpos": replace(MEAN, layer_scale=1e-2, position=Position(kind="none", bias=RelativeBias(kind="mlp", hidden=16))),
    "relpos-rpn": replace(
        PLAIN, norm=Norm(place="res-post"), position=Position(kind="none", bias=RelativeBias(kind="mlp", shared=True, hidden=16))
    ),
    "aimv2": replace(
        MEAN,
        qkv_bias=False,
        norm=Norm(kind="rms", patches=True),
        mlp=FeedForward(gated=True, bias=False),
        projections=Projections(out_bias=False),
    ),
    "perception-encoder": replace(
        PLAIN,
        pool="map",
        norm=Norm(before=True),
        pooling=Pooling(prefix=True, heads=4, mlp_width=48),
        position=Position(rotary=Rotary(reference=(3, 4), offset=1.0, columns_first=True)),
    ),
    "pe-spatial": replace(MEAN, layer_scale=0.1, norm=Norm(before=True, last=False), position=Position(rotary=Rotary())),
    "sapiens2": replace(
        PLAIN,
        register_tokens=2,
        layer_scale=1.0,
        layer_scale_on="attention",
        norm=Norm(kind="rms"),
        mlp=FeedForward(gated=True),
        projections=Projections(qk_norm=True, kv_heads=(2, 1)),
        position=Position(kind="none", rotary=Rotary(kind="centred", temperature=100.0)),
    ),
    "parallel": replace(
        PLAIN,
        qkv_bias=False,
        parallel="mlp",
        norm=Norm(kind="rms", before=True),
        projections=Projections(qk_norm=True),
        position=Position(prefix=False),
    ),
    "branches": replace(PLAIN, parallel="branches", layer_scale=1e-2),
    "beit3": replace(PLAIN, pool="mean", projections=Projections(out_norm=True), mlp=FeedForward(norm=True)),
    "naflex": replace(MEAN, register_tokens=2, position=Position(prefix=False, grid=(3, 3)), pooling=Pooling(prefix=True)),
    "siglip-384": replace(MEAN, crop=True, pool="map", image_size=(30, 37)),
}
