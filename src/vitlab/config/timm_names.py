"""timm's names of models, both ways: `vit_base_patch16_224` is `ViT-B/16` with timm's numerics. No torch here.

A name is an architecture, or an architecture and after a dot the tag of its public weights:
`vit_base_patch16_224.augreg_in21k`. An architecture that vitlab does not build exactly is refused with what it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from vitlab.config.convnext import CONVNEXTS, ConvNeXtConfig
from vitlab.config.efficientnet import SCALES, EfficientNetConfig, efficientnet
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import RESNETS, ResNetConfig
from vitlab.config.swin import SWINS, SwinConfig
from vitlab.config.vit import PROFILES, SIZES, STEMS, Numerics, Position, Size, ViTConfig
from vitlab.config.vit_parts import FeedForward, Norm, Pooling, Projections, RelativeBias, Rotary
from vitlab.errors import ConfigError

# --- Vision Transformers -----------------------------------------------------------------------------------------------------

# A group is a style, a ViTConfig whose sizes do not matter, and the names that have it. Size, patch and image size stand in a name,
# or in the tables below the groups.

_TIMM = PROFILES["timm"]
_COARSE = replace(_TIMM, norm_eps=1e-5)
_NO_POSITION, _BARE = Position(kind="none"), Position(prefix=False)

_CLASS = ViTConfig(width=64, depth=1, heads=1, mlp_width=64, numerics=_TIMM)
_MEAN = replace(_CLASS, pool="mean", class_token=False)
_MAP = replace(_MEAN, pool="map")
_TANH = replace(_TIMM, gelu="tanh")
_REGISTERS = replace(_MEAN, norm_after_pool=True, layer_scale=1e-5, position=_BARE)
_CLIP = replace(_CLASS, norm=Norm(before=True), numerics=_COARSE)
_SWIGLU = FeedForward(gated=True)

_RELPOS = replace(_MEAN, qkv_bias=False, layer_scale=1e-6, position=Position(kind="none", bias=RelativeBias(kind="mlp")))
_RELPOS_CLASS = replace(_RELPOS, pool="token", class_token=True)
_RELPOS_POST = replace(_RELPOS, layer_scale=0.0, norm=Norm(place="res-post"))

_NO_KEY_BIAS = Projections(key_bias=False)
_EVA = replace(_CLASS, pool="mean", norm_after_pool=True, projections=_NO_KEY_BIAS)
_EVA_TOKEN = replace(_CLASS, projections=_NO_KEY_BIAS)
_BEIT = replace(_EVA, layer_scale=1e-5, position=Position(kind="none", bias=RelativeBias()))
_EVA02 = replace(_EVA, mlp=_SWIGLU, position=Position(rotary=Rotary(reference=(16, 16))))
_EVA02_CLIP = replace(
    _EVA02,
    pool="token",
    norm_after_pool=False,
    mlp=FeedForward(gated=True, norm=True),
    projections=Projections(key_bias=False, out_norm=True),
)
_ROPE_GAP = replace(
    _REGISTERS, projections=_NO_KEY_BIAS, position=Position(kind="none", rotary=Rotary(reference=(16, 16))), register_tokens=1
)
_AXIAL = Rotary(temperature=100.0, columns_first=True)
_MIXED = Rotary(kind="mixed", temperature=10.0, columns_first=True)
_ROPE = replace(_CLASS, layer_scale=1e-5, position=Position(kind="none", rotary=_AXIAL))
_CENTRED = Position(kind="none", rotary=Rotary(kind="centred", temperature=100.0))
_DINOV3 = replace(_CLASS, pool="mean", layer_scale=1e-5, register_tokens=4, qkv_bias=False, position=_CENTRED, numerics=_COARSE)
_DINOV3_BIAS = replace(_DINOV3, qkv_bias=True, projections=_NO_KEY_BIAS)


def _perception(grid: int, offset: float = 1.0) -> ViTConfig:
    """The Perception Encoder without its pool: PE-Spatial, and with layer scale PE-Lang."""
    rotary = Rotary(reference=(grid, grid), offset=offset, columns_first=True)
    return replace(_CLIP, pool="mean", norm=Norm(before=True, last=False), position=Position(rotary=rotary))


def _perception_core(grid: int, offset: float = 1.0) -> ViTConfig:
    pooling = Pooling(prefix=True, heads=8)
    return replace(_perception(grid, offset), pool="map", norm=Norm(before=True), pooling=pooling)


STYLES: tuple[tuple[ViTConfig, str], ...] = (
    (
        _CLASS,
        """
        vit_tiny_patch16_224 vit_tiny_patch16_384
        vit_small_patch8_224 vit_small_patch16_224 vit_small_patch16_384 vit_small_patch32_224 vit_small_patch32_384
        vit_base_patch8_224 vit_base_patch16_224 vit_base_patch16_384 vit_base_patch32_224 vit_base_patch32_384
        vit_large_patch14_224 vit_large_patch16_224 vit_large_patch16_384 vit_large_patch32_224 vit_large_patch32_384
        vit_huge_patch14_224 vit_giant_patch14_224 vit_gigantic_patch14_224
        deit_tiny_patch16_224 deit_small_patch16_224 deit_base_patch16_224 deit_base_patch16_384
        test_vit
        """,
    ),
    (
        replace(_CLASS, distill_token=True),
        """
        deit_tiny_distilled_patch16_224 deit_small_distilled_patch16_224
        deit_base_distilled_patch16_224 deit_base_distilled_patch16_384
        """,
    ),
    (
        replace(_CLASS, layer_scale=1e-6, position=_BARE),
        """
        deit3_small_patch16_224 deit3_small_patch16_384 deit3_medium_patch16_224 deit3_base_patch16_224 deit3_base_patch16_384
        deit3_large_patch16_224 deit3_large_patch16_384 deit3_huge_patch14_224
        """,
    ),
    (
        replace(_CLASS, layer_scale=1e-5),
        """
        vit_small_patch16_36x1_224 vit_base_patch16_plus_240 vit_base_patch32_plus_256
        vit_small_patch14_dinov2 vit_base_patch14_dinov2 vit_large_patch14_dinov2
        """,
    ),
    (replace(_CLASS, layer_scale=1e-5, mlp=_SWIGLU), "vit_giant_patch14_dinov2"),
    (
        replace(_CLASS, layer_scale=1e-5, register_tokens=4, position=_BARE),
        "vit_small_patch14_reg4_dinov2 vit_base_patch14_reg4_dinov2 vit_large_patch14_reg4_dinov2",
    ),
    (replace(_CLASS, layer_scale=1e-5, register_tokens=4, position=_BARE, mlp=_SWIGLU), "vit_giant_patch14_reg4_dinov2"),
    (
        replace(_CLASS, layer_scale=1.0, register_tokens=1, position=_BARE),
        "vit_base_patch14_reg1_tipsv2 vit_large_patch14_reg1_tipsv2 vit_so400m_patch14_reg1_tipsv2",
    ),
    (replace(_CLASS, layer_scale=1.0, register_tokens=1, position=_BARE, mlp=_SWIGLU), "vit_giant_patch14_reg1_tipsv2"),
    (replace(_CLASS, position=_BARE), "flexivit_small flexivit_base flexivit_large"),
    (replace(_MEAN, register_tokens=1, norm_after_pool=True, layer_scale=1e-5), "test_vit2"),
    (replace(_MAP, register_tokens=1, layer_scale=1e-5, pooling=Pooling(prefix=True)), "test_vit3"),
    (replace(_MEAN, register_tokens=1, norm_after_pool=True, layer_scale=1e-5, norm=Norm(kind="rms")), "test_vit4"),
    (replace(_CLASS, layer_scale=0.1, norm=Norm(last=False)), "vit_intern300m_patch14_448"),
    (replace(_CLASS, layer_scale=1e-5, parallel="branches"), "vit_small_patch16_18x2_224 vit_base_patch16_18x2_224"),
    (
        replace(
            _CLASS,
            qkv_bias=False,
            parallel="mlp",
            norm=Norm(kind="rms", before=True),
            projections=Projections(qk_norm=True),
            position=_BARE,
        ),
        "vit_base_patch16_xp_224 vit_large_patch14_xp_224 vit_huge_patch14_xp_224",
    ),
    (replace(_REGISTERS, register_tokens=1, parallel="mlp"), "vit_pwee_patch16_reg1_gap_256"),
    (replace(_CLASS, pool="mean", norm_after_pool=True), "eva_large_patch14_196 eva_large_patch14_336"),
    (
        replace(
            _CLASS,
            pool="mean",
            norm_after_pool=True,
            mlp=FeedForward(norm=True),
            projections=Projections(out_norm=True),
            numerics=_COARSE,
        ),
        "beit3_base_patch16_224 beit3_large_patch16_224 beit3_giant_patch14_224 beit3_giant_patch14_336",
    ),
    (replace(_CLASS, qkv_bias=False), "vit_base_patch16_224_miil"),
    (
        _CLIP,
        """
        vit_xsmall_patch16_clip_224 vit_medium_patch16_clip_224 vit_medium_patch32_clip_224 vit_betwixt_patch32_clip_224
        vit_base_patch16_clip_224 vit_base_patch16_clip_384 vit_base_patch16_plus_clip_240
        vit_base_patch32_clip_224 vit_base_patch32_clip_256 vit_base_patch32_clip_384 vit_base_patch32_clip_448
        vit_large_patch14_clip_224 vit_large_patch14_clip_336
        vit_huge_patch14_clip_224 vit_huge_patch14_clip_336 vit_huge_patch14_clip_378
        vit_giant_patch14_clip_224 vit_gigantic_patch14_clip_224 vit_gigantic_patch14_clip_378
        """,
    ),
    (
        replace(_CLIP, numerics=replace(_COARSE, gelu="quick")),
        """
        vit_base_patch16_clip_quickgelu_224 vit_base_patch32_clip_quickgelu_224
        vit_large_patch14_clip_quickgelu_224 vit_large_patch14_clip_quickgelu_336
        vit_huge_patch14_clip_quickgelu_224 vit_huge_patch14_clip_quickgelu_378 vit_gigantic_patch14_clip_quickgelu_224
        """,
    ),
    (
        _MAP,
        """
        vit_base_patch16_siglip_224 vit_base_patch16_siglip_256 vit_base_patch16_siglip_384 vit_base_patch16_siglip_512
        vit_large_patch16_siglip_256 vit_large_patch16_siglip_384
        vit_so400m_patch14_siglip_224 vit_so400m_patch14_siglip_378
        """,
    ),
    (replace(_MAP, crop=True), "vit_so400m_patch14_siglip_384"),
    (
        replace(_MAP, numerics=_TANH),
        """
        vit_base_patch32_siglip_256 vit_large_patch16_siglip_512
        vit_so400m_patch16_siglip_256 vit_so400m_patch16_siglip_384 vit_so400m_patch16_siglip_512
        vit_giantopt_patch16_siglip_256 vit_giantopt_patch16_siglip_384
        """,
    ),
    (
        _MEAN,
        """
        vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256 vit_base_patch16_siglip_gap_384
        vit_base_patch16_siglip_gap_512 vit_large_patch16_siglip_gap_256 vit_large_patch16_siglip_gap_384
        vit_so400m_patch14_siglip_gap_224 vit_so400m_patch14_siglip_gap_378
        vit_so400m_patch14_siglip_gap_448 vit_so400m_patch14_siglip_gap_896
        vit_base_patch16_gap_224 vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 vit_giant_patch16_gap_224
        """,
    ),
    (replace(_MEAN, crop=True), "vit_so400m_patch14_siglip_gap_384"),
    (
        replace(_MEAN, numerics=_TANH),
        """
        vit_base_patch32_siglip_gap_256 vit_large_patch16_siglip_gap_512
        vit_so400m_patch16_siglip_gap_256 vit_so400m_patch16_siglip_gap_384 vit_so400m_patch16_siglip_gap_512
        vit_giantopt_patch16_siglip_gap_256 vit_giantopt_patch16_siglip_gap_384
        """,
    ),
    (
        replace(_MEAN, qkv_bias=False, norm_after_pool=True, norm=Norm(place="res-post")),
        "vit_base_patch16_rpn_224",
    ),
    (
        replace(_MEAN, qkv_bias=False, layer_scale=1e-6),
        "vit_medium_patch16_gap_240 vit_medium_patch16_gap_256 vit_medium_patch16_gap_384 vit_betwixt_patch16_gap_256",
    ),
    (
        replace(_REGISTERS, register_tokens=1),
        """
        vit_wee_patch16_reg1_gap_256 vit_little_patch16_reg1_gap_256 vit_medium_patch16_reg1_gap_256
        vit_betwixt_patch16_reg1_gap_256
        """,
    ),
    (
        replace(_REGISTERS, register_tokens=4),
        """
        vit_little_patch16_reg4_gap_256 vit_medium_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_256
        vit_mediumd_patch16_reg4_gap_384 vit_betwixt_patch16_reg4_gap_256 vit_betwixt_patch16_reg4_gap_384
        """,
    ),
    (replace(_REGISTERS, register_tokens=4, layer_scale=0.0), "vit_base_patch16_reg4_gap_256"),
    (replace(_MEAN, register_tokens=4), "vit_so150m_patch16_reg4_gap_256 vit_so150m_patch16_reg4_gap_384"),
    (replace(_MAP, register_tokens=4), "vit_so150m_patch16_reg4_map_256"),
    (
        replace(_MEAN, register_tokens=1, norm_after_pool=True, qkv_bias=False, layer_scale=1e-5),
        "vit_so150m2_patch16_reg1_gap_256 vit_so150m2_patch16_reg1_gap_384 vit_so150m2_patch16_reg1_gap_448",
    ),
    (
        replace(
            _MEAN,
            qkv_bias=False,
            norm=Norm(kind="rms", patches=True),
            mlp=FeedForward(gated=True, bias=False),
            projections=Projections(out_bias=False),
            numerics=_COARSE,
        ),
        """
        aimv2_large_patch14_224 aimv2_large_patch14_336 aimv2_large_patch14_448
        aimv2_huge_patch14_224 aimv2_huge_patch14_336 aimv2_huge_patch14_448
        aimv2_1b_patch14_224 aimv2_1b_patch14_336 aimv2_1b_patch14_448
        aimv2_3b_patch14_224 aimv2_3b_patch14_336 aimv2_3b_patch14_448
        """,
    ),
    # vision_transformer_relpos
    (
        replace(_RELPOS, norm_after_pool=True),
        "vit_relpos_small_patch16_224 vit_relpos_medium_patch16_224 vit_relpos_base_patch16_224",
    ),
    (_RELPOS_CLASS, "vit_relpos_base_patch16_cls_224"),
    (
        replace(_RELPOS_CLASS, position=Position(kind="none", bias=RelativeBias(kind="mlp", hidden=256))),
        "vit_relpos_medium_patch16_cls_224",
    ),
    (replace(_RELPOS_CLASS, pool="mean", norm_after_pool=True), "vit_relpos_base_patch16_clsgap_224"),
    (replace(_RELPOS, qkv_bias=True), "vit_relpos_base_patch16_plus_240"),
    (
        _RELPOS_POST,
        "vit_relpos_small_patch16_rpn_224 vit_relpos_medium_patch16_rpn_224 vit_relpos_base_patch16_rpn_224",
    ),
    (replace(_RELPOS_POST, qkv_bias=True), "vit_relpos_base_patch32_plus_rpn_256"),
    (
        replace(_RELPOS, position=Position(kind="none", bias=RelativeBias(kind="mlp", shared=True, hidden=384))),
        "vit_srelpos_small_patch16_224",
    ),
    (
        replace(_RELPOS, position=Position(kind="none", bias=RelativeBias(kind="mlp", shared=True, hidden=512))),
        "vit_srelpos_medium_patch16_224",
    ),
    # beit
    (replace(_BEIT, layer_scale=0.1), "beit_base_patch16_224 beit_base_patch16_384"),
    (
        _BEIT,
        """
        beit_large_patch16_224 beit_large_patch16_384 beit_large_patch16_512 beitv2_base_patch16_224 beitv2_large_patch16_224
        """,
    ),
    # eva
    (_EVA, "eva_giant_patch14_224 eva_giant_patch14_336 eva_giant_patch14_560"),
    (_EVA_TOKEN, "eva_giant_patch14_clip_224"),
    (replace(_EVA_TOKEN, norm=Norm(place="res-post")), "eva02_enormous_patch14_clip_224"),
    (_EVA02, "eva02_tiny_patch14_224 eva02_tiny_patch14_336 eva02_small_patch14_224 eva02_small_patch14_336"),
    (
        replace(_EVA02, mlp=FeedForward(gated=True, norm=True)),
        "eva02_base_patch14_224 eva02_base_patch14_448 eva02_large_patch14_224 eva02_large_patch14_448",
    ),
    (_EVA02_CLIP, "eva02_base_patch16_clip_224 eva02_large_patch14_clip_224 eva02_large_patch14_clip_336"),
    (_ROPE_GAP, "vit_medium_patch16_rope_reg1_gap_256 vit_base_patch16_rope_reg1_gap_256"),
    (replace(_ROPE_GAP, register_tokens=4), "vit_betwixt_patch16_rope_reg4_gap_256"),
    (replace(_ROPE_GAP, qkv_bias=False, projections=Projections()), "vit_mediumd_patch16_rope_reg1_gap_256"),
    (_ROPE, "vit_small_patch16_rope_224 vit_base_patch16_rope_224 vit_large_patch16_rope_224"),
    (
        replace(_ROPE, position=Position(prefix=False, rotary=_AXIAL)),
        "vit_small_patch16_rope_ape_224 vit_base_patch16_rope_ape_224 vit_large_patch16_rope_ape_224",
    ),
    (
        replace(_ROPE, position=Position(kind="none", rotary=_MIXED)),
        "vit_small_patch16_rope_mixed_224 vit_base_patch16_rope_mixed_224 vit_large_patch16_rope_mixed_224",
    ),
    (
        replace(_ROPE, position=Position(prefix=False, rotary=_MIXED)),
        "vit_small_patch16_rope_mixed_ape_224 vit_base_patch16_rope_mixed_ape_224 vit_large_patch16_rope_mixed_ape_224",
    ),
    (_DINOV3, "vit_small_patch16_dinov3 vit_base_patch16_dinov3 vit_large_patch16_dinov3"),
    (
        _DINOV3_BIAS,
        "vit_tiny_patch16_dinov3_qkvb vit_small_patch16_dinov3_qkvb vit_base_patch16_dinov3_qkvb vit_large_patch16_dinov3_qkvb",
    ),
    (replace(_DINOV3, mlp=_SWIGLU), "vit_small_plus_patch16_dinov3 vit_huge_plus_patch16_dinov3 vit_7b_patch16_dinov3"),
    (replace(_DINOV3_BIAS, mlp=_SWIGLU), "vit_small_plus_patch16_dinov3_qkvb vit_huge_plus_patch16_dinov3_qkvb"),
    (
        replace(_DINOV3_BIAS, pool="token"),
        "vit_small_patch16_lingbot vit_base_patch16_lingbot vit_large_patch16_lingbot",
    ),
    (replace(_DINOV3, pool="token", mlp=_SWIGLU), "vit_giant_patch16_lingbot"),
    (
        replace(
            _CLASS,
            register_tokens=8,
            layer_scale=1.0,
            layer_scale_on="attention",
            norm=Norm(kind="rms"),
            mlp=_SWIGLU,
            projections=Projections(qk_norm=True),
            position=_CENTRED,
        ),
        """
        vit_base_patch16_sapiens2 vit_large_patch16_sapiens2 vit_huge_patch16_sapiens2 vit_giant_patch16_sapiens2
        vit_5b_patch16_sapiens2
        """,
    ),
    (_perception_core(14), "vit_pe_core_base_patch16_224"),
    (_perception_core(24), "vit_pe_core_tiny_patch16_384 vit_pe_core_small_patch16_384 vit_pe_core_large_patch14_336"),
    (replace(_perception_core(32, 0.0), class_token=False), "vit_pe_core_gigantic_patch14_448"),
    (
        _perception(32),
        """
        vit_pe_spatial_tiny_patch16_512 vit_pe_spatial_small_patch16_512 vit_pe_spatial_base_patch16_512
        vit_pe_spatial_large_patch14_448
        """,
    ),
    (replace(_perception(32), layer_scale=0.1), "vit_pe_lang_large_patch14_448"),
    (
        replace(_perception(32, 0.0), layer_scale=0.1, class_token=False),
        "vit_pe_lang_gigantic_patch14_448 vit_pe_spatial_gigantic_patch14_448",
    ),
    # naflexvit
    (
        replace(_REGISTERS, register_tokens=4, position=Position(prefix=False, grid=(16, 16))),
        "naflexvit_base_patch16_gap",
    ),
    (
        replace(_MAP, register_tokens=1, layer_scale=1e-5, position=Position(prefix=False, grid=(16, 16))),
        "naflexvit_base_patch16_map",
    ),
    (
        replace(_REGISTERS, register_tokens=1, qkv_bias=False, position=Position(prefix=False, grid=(16, 16))),
        "naflexvit_so150m2_patch16_reg1_gap",
    ),
    (
        replace(_MAP, register_tokens=1, qkv_bias=False, layer_scale=1e-5, position=Position(prefix=False, grid=(16, 16))),
        "naflexvit_so150m2_patch16_reg1_map",
    ),
    (
        replace(
            _MAP,
            position=Position(prefix=False, grid=(16, 16)),
            numerics=Numerics(gelu="tanh", norm_eps=1e-6, resize="bilinear"),
        ),
        "naflexvit_base_patch16_siglip naflexvit_so400m_patch16_siglip",
    ),
)

# timm's words for sizes: first the paper's and their successors, then its own.
_WORDS: dict[str, Size] = {
    "tiny": SIZES["Ti"],
    "small": SIZES["S"],
    "base": SIZES["B"],
    "large": SIZES["L"],
    "huge": SIZES["H"],
    "giant": SIZES["g"],
    "gigantic": SIZES["G"],
    "so400m": SIZES["So400m"],
    "giantopt": Size(width=1536, depth=40, heads=16, mlp_width=6144),  # SigLIP 2's g-opt
    "xsmall": Size(width=256, depth=10, heads=4, mlp_width=1024),
    "wee": Size(width=256, depth=14, heads=4, mlp_width=1280),
    "pwee": Size(width=256, depth=16, heads=4, mlp_width=1280),
    "little": Size(width=320, depth=14, heads=5, mlp_width=1792),
    "medium": Size(width=512, depth=12, heads=8, mlp_width=2048),
    "mediumd": Size(width=512, depth=20, heads=8, mlp_width=2048),
    "betwixt": Size(width=640, depth=12, heads=10, mlp_width=2560),
    "so150m": Size(width=896, depth=18, heads=14, mlp_width=2304),
    "so150m2": Size(width=832, depth=21, heads=13, mlp_width=2176),
    "intern300m": SIZES["L"],
}
_PLUS = Size(width=896, depth=12, heads=14, mlp_width=3584)
_SWIGLU_GIANT = Size(width=1536, depth=40, heads=24, mlp_width=4096)
_PE_GIGANTIC = Size(width=1536, depth=50, heads=16, mlp_width=8960)
# Names, or beginnings of names, whose word says another size than it does elsewhere; the longest that fits.
_ODD: dict[str, Size] = {
    "vit_base_patch16_gap_224": replace(SIZES["B"], heads=16),
    "vit_small_patch16_36x1_224": replace(SIZES["S"], depth=36),
    "vit_small_patch16_18x2_224": replace(SIZES["S"], depth=18),
    "vit_base_patch16_18x2_224": replace(SIZES["B"], depth=18),
    "test_vit": Size(width=64, depth=6, heads=2, mlp_width=192),
    "test_vit2": Size(width=64, depth=8, heads=2, mlp_width=192),
    "test_vit3": Size(width=96, depth=9, heads=3, mlp_width=192),
    "test_vit4": Size(width=96, depth=9, heads=3, mlp_width=288),
    "vit_base_patch16_plus": _PLUS,
    "vit_base_patch32_plus": _PLUS,
    "vit_relpos_base_patch16_plus": _PLUS,
    "vit_relpos_base_patch32_plus": _PLUS,
    "vit_giant_patch14_dinov2": _SWIGLU_GIANT,
    "vit_giant_patch14_reg4_dinov2": _SWIGLU_GIANT,
    "vit_giant_patch14_reg1_tipsv2": _SWIGLU_GIANT,
    "vit_giant_patch16_lingbot": _SWIGLU_GIANT,
    "aimv2_large": Size(width=1024, depth=24, heads=8, mlp_width=2816),
    "aimv2_huge": Size(width=1536, depth=24, heads=12, mlp_width=4096),
    "aimv2_1b": Size(width=2048, depth=24, heads=16, mlp_width=5632),
    "aimv2_3b": Size(width=3072, depth=24, heads=24, mlp_width=8192),
    "eva02_tiny": Size(width=192, depth=12, heads=3, mlp_width=512),
    "eva02_small": Size(width=384, depth=12, heads=6, mlp_width=1024),
    "eva02_base": Size(width=768, depth=12, heads=12, mlp_width=2048),
    "eva02_large": Size(width=1024, depth=24, heads=16, mlp_width=2730),
    "eva02_enormous": Size(width=1792, depth=64, heads=16, mlp_width=15360),
    "vit_small_plus": SIZES["S"],
    "vit_huge_plus": replace(SIZES["H"], heads=20),
    "vit_7b": Size(width=4096, depth=40, heads=32, mlp_width=8192),
    "vit_giant_patch16_sapiens2": Size(width=1536, depth=40, heads=24, mlp_width=6144),
    "vit_5b": Size(width=2432, depth=56, heads=32, mlp_width=9728),
    "vit_pe_core_gigantic": _PE_GIGANTIC,
    "vit_pe_spatial_gigantic": _PE_GIGANTIC,
    "vit_pe_lang_gigantic": replace(_PE_GIGANTIC, depth=47),
    "vit_pe_lang_large": replace(SIZES["L"], depth=23),
}
# Endings or whole names that do not end in their image size.
_SIDES: dict[str, tuple[int, int]] = {
    "dinov2": (518, 518),
    "tipsv2": (448, 448),
    "dinov3": (256, 256),
    "dinov3_qkvb": (256, 256),
    "lingbot": (512, 512),
    "sapiens2": (1024, 768),
    "miil": (224, 224),
}
_BEGINNINGS = {"flexivit": (240, 240), "test": (160, 160), "naflexvit": (384, 384)}


@cache
def vit_names() -> tuple[str, ...]:
    """The names of timm's Vision Transformers that vitlab builds, without hybrids."""
    return tuple(name for _, names in STYLES for name in names.split())


def timm_vit(name: str) -> ViTConfig:
    """The model of one of `vit_names`, at its own image size and with 1000 classes."""
    style = next(style for style, names in STYLES if name in names.split())
    size, patch = _size(name), re.search(r"_patch(\d+)", name)
    side = int(patch[1]) if patch else 16
    mlp_width = 0 if style.pooling.heads == 0 else 4 * size.width
    kv_heads = _shared_heads(size) if name.endswith("sapiens2") and size.depth > 12 else ()
    return replace(
        style,
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        mlp_width=size.mlp_width,
        patch_size=(side, side),
        image_size=_image_size(name),
        pooling=replace(style.pooling, mlp_width=mlp_width),
        projections=replace(style.projections, kv_heads=kv_heads),
    )


def style_of(config: ViTConfig) -> ViTConfig:
    """What is left of a model without its sizes, image size, classes, rates of training: what a style of the table is."""
    plain = _CLASS
    return replace(
        config,
        width=plain.width,
        depth=plain.depth,
        heads=plain.heads,
        mlp_width=plain.mlp_width,
        patch_size=plain.patch_size,
        image_size=plain.image_size,
        channels=plain.channels,
        num_classes=plain.num_classes,
        head_bias=0.0,
        pad=False,
        dynamic_size=False,
        stem=None,
        conv_stem=None,
        layer_scale=1e-5 if config.layer_scale else 0.0,
        dropout=0.0,
        drop_path=0.0,
        patch_dropout=0.0,
        pooling=replace(config.pooling, heads=8 if config.pooling.heads else 0, mlp_width=0),
        projections=replace(config.projections, kv_heads=()),
    )


def _size(name: str) -> Size:
    odd = max((start for start in _ODD if name.startswith(start)), key=len, default=None)
    if odd is not None:
        return _ODD[odd]
    words = name.partition("_patch")[0].removesuffix("_distilled").split("_")
    return _WORDS[words[-1]]


def _image_size(name: str) -> tuple[int, int]:
    for end, size in _SIDES.items():
        if name.endswith(f"_{end}"):
            return size
    side = int((re.findall(r"\d+", name) or ["0"])[-1])
    return _BEGINNINGS.get(name.partition("_")[0], (side, side))


def _shared_heads(size: Size) -> tuple[int, ...]:
    """Sapiens 2 halves the heads of keys and values in all layers but the first and the last eight."""
    return tuple(size.heads if layer < 8 or layer >= size.depth - 8 else size.heads // 2 for layer in range(size.depth))


# --- names of all families ---------------------------------------------------------------------------------------------------

# Architecture -> size, the key of its stem in STEMS, image size.
_HYBRIDS: dict[str, tuple[str, tuple[str, int], int]] = {
    "vit_tiny_r_s16_p8_224": ("Ti", ("R", 16), 224),
    "vit_tiny_r_s16_p8_384": ("Ti", ("R", 16), 384),
    "vit_small_r26_s32_224": ("S", ("R26", 32), 224),
    "vit_small_r26_s32_384": ("S", ("R26", 32), 384),
    "vit_base_r26_s32_224": ("B", ("R26", 32), 224),
    "vit_base_r50_s16_224": ("B", ("R50", 16), 224),
    "vit_base_r50_s16_384": ("B", ("R50", 16), 384),
    "vit_large_r50_s32_224": ("L", ("R50", 32), 224),
    "vit_large_r50_s32_384": ("L", ("R50", 32), 384),
}
# Architecture -> depth and width factor.
_BITS: dict[str, tuple[int, int]] = {
    "resnetv2_50x1_bit": (50, 1),
    "resnetv2_50x3_bit": (50, 3),
    "resnetv2_101x1_bit": (101, 1),
    "resnetv2_101x3_bit": (101, 3),
    "resnetv2_152x2_bit": (152, 2),
    "resnetv2_152x4_bit": (152, 4),
}
# Architecture -> size, window, image size. At 224 pixels the last map is 7x7, so that S3-S's windows are 14, 14, 14, 7.
_SWINS: dict[str, tuple[str, int, int]] = {
    "swin_tiny_patch4_window7_224": ("T", 7, 224),
    "swin_small_patch4_window7_224": ("S", 7, 224),
    "swin_base_patch4_window7_224": ("B", 7, 224),
    "swin_base_patch4_window12_384": ("B", 12, 384),
    "swin_large_patch4_window7_224": ("L", 7, 224),
    "swin_large_patch4_window12_384": ("L", 12, 384),
    "swin_s3_small_224": ("S", 14, 224),
}
_CONVNEXTS: dict[str, ConvNeXtConfig] = {
    "convnext_atto": ConvNeXtConfig(depths=(2, 2, 6, 2), widths=(40, 80, 160, 320)),
    "convnext_femto": ConvNeXtConfig(depths=(2, 2, 6, 2), widths=(48, 96, 192, 384)),
    "convnext_pico": ConvNeXtConfig(depths=(2, 2, 6, 2), widths=(64, 128, 256, 512)),
    "convnext_nano": ConvNeXtConfig(depths=(2, 2, 8, 2), widths=(80, 160, 320, 640)),
    "convnext_tiny": CONVNEXTS["T"],
    "convnext_small": CONVNEXTS["S"],
    "convnext_base": CONVNEXTS["B"],
    "convnext_large": CONVNEXTS["L"],
    "convnext_xlarge": CONVNEXTS["XL"],
    "convnext_xxlarge": ConvNeXtConfig(depths=(3, 4, 30, 3), widths=(384, 768, 1536, 3072), image_size=(256, 256), norm_eps=1e-5),
}
# The TensorFlow authors' weights are called tf_; timm trained its own at other image sizes.
_OWN_SIDES = {"B2": 256, "B3": 288, "B4": 320, "B5": 448}

_FAMILY = "an architecture family that vitlab does not have"
# What timm's other architectures need; the first pattern that fits the whole name answers.
_NEEDS: tuple[tuple[str, str], ...] = (
    (r"vit_(dwee|dpwee|dlittle)_\w+", "differential attention"),
    (r"vit_\w+_resnet\w+|vit_base_mci_224", "another convolutional stem"),
    (r"naflexvit_\w+_(par|parfac)_gap", "positions that keep their aspect ratio on images that are not square"),
    (r"test_convnext\d?", "the tanh GELU in a ConvNeXt"),
    (r"resnetv2_\d\w*", "a pre-activation ResNet with other norms than BiT's"),
    (r"swin_s3_(tiny|base)_224", "a window of its own at each stage"),
    (r"swinv2\w*", "Swin V2's attention"),
    (r"convnextv2_\w+", "global response normalisation"),
    (r"convnext_\w+_ols", "an overlapping stem"),
    (r"convnext_\w+_rms", "RMSNorm"),
    (r"convnext_\w+_mlp", "a hidden layer before the head"),
    (r"convnext_\w+_hnf", "the last norm before the pooling"),
    (r"((tf|gc)_)?efficientnetv2_\w+", "fused inverted bottlenecks"),
    (r"((tf|test)_)?efficientnet(_\w+)?|tinynet_[a-e]", "another EfficientNet than B0 to B8 and L2"),
    (r"(cait|coat|coatnet|crossvit|davit|hiera|levit|maxvit|mobilevit|mvit|pit|pvt|tnt|twins|volo|xcit)\w*_\w+", _FAMILY),
    (r"(densenet|dpn|hrnet_w|inception_v|mixer_|nfnet|regnet|resne[sx]?t|tiny_vit|vgg)\w*\d\w*", _FAMILY),
    (r"(tf_)?(fbnet|mixnet|mnasnet|mobilenet|semnasnet|spnasnet)\w*_\w+", _FAMILY),
)


class Shape(NamedTuple):
    """What makes two models the same architecture: the grid of patches or windows that their tensors fix, and the rest.

    Classes, channels, numerics and dropout are left out, and for a ConvNet the image size.
    """

    grid: object
    rest: tuple[object, ...]


def config_of(name: str) -> ModelConfig | None:
    """The model that timm builds under this name, with its numerics; None where the name is not timm's.

    Image size and classes are those of the weights that the tag names, without a tag of the architecture's default weights.
    """
    architecture, _, tag = name.partition(".")
    config = architecture_config(architecture)
    if config is None:
        if error := refusal(name):
            raise error
        return None
    from vitlab.config.public_weights import tagged

    row = tagged(architecture, tag)
    if row is None:
        return config
    return replace(config, image_size=(row.image_size, row.image_size), num_classes=row.num_classes)


def refusal(name: str) -> ConfigError | None:
    """Why a model of timm's cannot be built; None for a name that is not timm's, or that can."""
    architecture = name.partition(".")[0]
    need = need_of(architecture)
    if need is None:
        return None
    return ConfigError(
        f"vitlab does not build timm's {architecture} yet: it needs {need}", hint="`vitlab models` lists what it builds"
    )


def timm_name(config: ModelConfig) -> str | None:
    """timm's name of the architecture, or None."""
    return _by_shape().get(shape_of(config))


@cache
def architectures() -> tuple[str, ...]:
    """Every architecture of timm that vitlab builds exactly."""
    return tuple(_builders())


@cache
def architecture_config(architecture: str) -> ModelConfig | None:
    """The model of an architecture at its own image size, with 1000 classes; None for one that vitlab does not build."""
    build = _builders().get(architecture)
    return None if build is None else build(architecture)


def need_of(architecture: str) -> str | None:
    """What vitlab lacks to build an architecture of timm; None for one that it builds, and for a name that is not timm's."""
    if architecture in _builders():
        return None
    return next((need for pattern, need in _NEEDS if re.fullmatch(pattern, architecture)), None)


@cache
def _builders() -> dict[str, Callable[[str], ModelConfig]]:
    nets = [f"{prefix}efficientnet_{size.lower()}" for prefix in ("tf_", "") for size in SCALES]
    return {
        **dict.fromkeys(vit_names(), timm_vit),
        **dict.fromkeys(_HYBRIDS, _hybrid),
        **dict.fromkeys(_BITS, _bit),
        **dict.fromkeys(_SWINS, _swin),
        **dict.fromkeys(_CONVNEXTS, _CONVNEXTS.__getitem__),
        **dict.fromkeys(nets, _efficientnet),
    }


def _hybrid(name: str) -> ViTConfig:
    word, key, side = _HYBRIDS[name]
    size, (stem, cells) = SIZES[word], STEMS[key]
    return ViTConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        mlp_width=size.mlp_width,
        patch_size=(cells, cells),
        image_size=(side, side),
        stem=replace(stem, standardise="variance", standardise_eps=1e-8, norm_eps=1e-5),
        numerics=PROFILES["timm"],
    )


def _bit(name: str) -> ResNetConfig:
    depth, factor = _BITS[name]
    return ResNetConfig(blocks=RESNETS[depth], width_factor=factor, standardise_eps=1e-8)


def _swin(name: str) -> SwinConfig:
    size, window, side = _SWINS[name]
    return replace(SWINS[size], window=(window, window), image_size=(side, side), pad_first=False)


def _efficientnet(name: str) -> EfficientNetConfig:
    size = name.rpartition("_")[2].upper()
    net = efficientnet(size)
    if name.startswith("tf_"):
        return net
    side = _OWN_SIDES.get(size, net.image_size[0])
    return replace(net, image_size=(side, side), padding="half", norm_eps=1e-5)


@cache
def _by_shape() -> dict[Shape, str]:
    shapes: dict[Shape, str] = {}
    for name in architectures():
        config = architecture_config(name)
        assert config is not None
        shapes.setdefault(shape_of(config), name)
    return shapes


def shape_of(config: ModelConfig) -> Shape:
    """The architecture of a model, to be compared with that of another."""
    size: tuple[object, ...]
    match config:
        case ViTConfig():
            stem = None if config.stem is None else (config.stem.blocks, config.stem.width, config.stem.groups)
            size = (config.width, config.depth, config.heads, config.mlp_width, config.patch_size, config.projections.kv_heads)
            plain = replace(style_of(config), numerics=PROFILES["timm"])
            quick = config.numerics.gelu == "quick"  # two functions of one size, with weights of their own
            return Shape(config.grid, ("vit", *size, stem, config.conv_stem, plain, quick))
        case ResNetConfig():
            return Shape(
                None, ("resnet", config.blocks, config.width_factor, config.root_width, config.stage_widths, config.groups)
            )
        case SwinConfig():
            size = (config.width, config.depths, config.heads, config.patch_size, config.mlp_ratio)
            return Shape(config.windows, ("swin", *size, config.window, config.qkv_bias))
        case ConvNeXtConfig():
            size = (config.depths, config.widths, config.kernel, config.patch_size, config.mlp_ratio)
            return Shape(None, ("convnext", *size, config.layer_scale > 0))
        case EfficientNetConfig():
            return Shape(
                None, ("efficientnet", config.stages, config.stem_width, config.head_width, config.squeeze, config.padding)
            )
        case _:  # a family that timm does not have
            return Shape(None, (config.family, config))
