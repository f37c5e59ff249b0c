"""Public weights by name: where they are, how good they are and who says so. No torch here.

The table is written out below, a line for each file: its name, its published score (- where none was found) and, where it
differs from the architecture's own, its image size in pixels. The first line of an architecture is its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from vitlab.config import timm_names
from vitlab.config.model import variant
from vitlab.config.timm_names import Shape
from vitlab.errors import ConfigError, did_you_mean

Metric = Literal["top-1", "fine-tuned top-1", "linear top-1", "zero-shot top-1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicWeights:
    """One file of weights that anybody can download.

    `name` is timm's tagged name, or the repository on the Hub. `model` is the name that builds the model; `variant` is
    vitlab's name of its size, None where it has none. `data` is what it was trained on, in order. `num_classes` counts the
    outputs, 0 for features alone. `score` is percent of ImageNet-1k's validation images: `top-1` of these weights,
    `fine-tuned top-1` after the authors fine-tuned them, `linear top-1` of a linear classifier on frozen features,
    `zero-shot top-1` with the text encoder that is not part of the file. `licence` is what timm 1.0 or the model card states.
    `needs` says what vitlab lacks to load it, None for a file that it loads.
    """

    name: str
    model: str
    variant: str | None
    address: str
    family: str
    data: str
    image_size: int
    num_classes: int
    score: float | None
    metric: Metric | None
    source: str | None
    licence: str | None
    needs: str | None

    @property
    def loads(self) -> bool:
        """Whether vitlab builds this model exactly."""
        return self.needs is None


class _Group(NamedTuple):
    family: str
    data: str
    num_classes: int
    licence: str
    metric: Metric | None
    source: str | None
    rows: str


TIMM = "huggingface/pytorch-image-models, results/results-imagenet.csv at commit 7479d45"
TIMM_NEWS = "huggingface/pytorch-image-models, README.md, What's New of {}"
DINO = "facebookresearch/dino, README.md"
DINOV2 = "facebookresearch/dinov2, README.md"
MAE = "facebookresearch/mae, FINETUNE.md"
SIGLIP2 = "google-research/big_vision, README_siglip2.md"
OPEN_CLIP = "mlfoundations/open_clip, docs/openclip_results.csv at commit f862f86"
DEIT = "facebookresearch/deit, README_deit.md"

# fmt: off
_TIMM: tuple[_Group, ...] = (
    _Group("ViT", "ImageNet-21k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_tiny_patch16_224.augreg_in21k_ft_in1k 75.452
        vit_tiny_patch16_384.augreg_in21k_ft_in1k 78.446
        vit_small_patch16_224.augreg_in21k_ft_in1k 81.414
        vit_small_patch16_384.augreg_in21k_ft_in1k 83.804
        vit_small_patch32_224.augreg_in21k_ft_in1k 75.996
        vit_small_patch32_384.augreg_in21k_ft_in1k 80.482
        vit_base_patch8_224.augreg2_in21k_ft_in1k 86.228
        vit_base_patch8_224.augreg_in21k_ft_in1k 85.836
        vit_base_patch16_224.augreg2_in21k_ft_in1k 85.110
        vit_base_patch16_224.augreg_in21k_ft_in1k 84.532
        vit_base_patch16_224.orig_in21k_ft_in1k 81.786
        vit_base_patch16_384.augreg_in21k_ft_in1k 86.006
        vit_base_patch16_384.orig_in21k_ft_in1k 84.208
        vit_base_patch32_224.augreg_in21k_ft_in1k 80.736
        vit_base_patch32_384.augreg_in21k_ft_in1k 83.352
        vit_large_patch16_224.augreg_in21k_ft_in1k 85.850
        vit_large_patch16_384.augreg_in21k_ft_in1k 87.094
        vit_large_patch32_384.orig_in21k_ft_in1k 81.506
        vit_base_patch16_224_miil.in21k_ft_in1k 84.272
        vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k 71.820
        vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k 75.962
        vit_small_r26_s32_224.augreg_in21k_ft_in1k 81.844
        vit_small_r26_s32_384.augreg_in21k_ft_in1k 84.074
        vit_base_r50_s16_384.orig_in21k_ft_in1k 84.994
        vit_large_r50_s32_224.augreg_in21k_ft_in1k 84.432
        vit_large_r50_s32_384.augreg_in21k_ft_in1k 86.184
    """),
    _Group("ViT", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_small_patch16_224.augreg_in1k 78.842
        vit_small_patch16_384.augreg_in1k 81.134
        vit_base_patch16_224.augreg_in1k 79.142
        vit_base_patch16_224.sam_in1k 80.242
        vit_base_patch16_384.augreg_in1k 81.096
        vit_base_patch32_224.augreg_in1k 74.906
        vit_base_patch32_224.sam_in1k 73.706
        vit_base_patch32_384.augreg_in1k 78.754
    """),
    _Group("ViT", "ImageNet-21k", 21843, "apache-2.0", None, None, """
        vit_tiny_patch16_224.augreg_in21k -
        vit_small_patch16_224.augreg_in21k -
        vit_small_patch32_224.augreg_in21k -
        vit_base_patch8_224.augreg_in21k -
        vit_base_patch16_224.augreg_in21k -
        vit_base_patch32_224.augreg_in21k -
        vit_large_patch16_224.augreg_in21k -
        vit_tiny_r_s16_p8_224.augreg_in21k -
        vit_small_r26_s32_224.augreg_in21k -
        vit_large_r50_s32_224.augreg_in21k -
    """),
    _Group("ViT", "ImageNet-21k", 11221, "apache-2.0", None, None, """
        vit_base_patch16_224_miil.in21k -
    """),
    _Group("ViT", "ImageNet-21k", 0, "apache-2.0", None, None, """
        vit_base_patch16_224.orig_in21k -
        vit_base_patch32_224.orig_in21k -
        vit_large_patch16_224.orig_in21k -
        vit_large_patch32_224.orig_in21k -
        vit_huge_patch14_224.orig_in21k -
        vit_base_r50_s16_224.orig_in21k -
    """),
    _Group("DeiT", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        deit_tiny_patch16_224.fb_in1k 72.196
        deit_small_patch16_224.fb_in1k 79.862
        deit_base_patch16_224.fb_in1k 81.980
        deit_base_patch16_384.fb_in1k 83.116
        deit_tiny_distilled_patch16_224.fb_in1k 74.540
        deit_small_distilled_patch16_224.fb_in1k 81.216
        deit_base_distilled_patch16_224.fb_in1k 83.388
        deit_base_distilled_patch16_384.fb_in1k 85.428
    """),
    _Group("DeiT III", "ImageNet-22k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        deit3_small_patch16_224.fb_in22k_ft_in1k 83.082
        deit3_small_patch16_384.fb_in22k_ft_in1k 84.842
        deit3_medium_patch16_224.fb_in22k_ft_in1k 84.566
        deit3_base_patch16_224.fb_in22k_ft_in1k 85.728
        deit3_base_patch16_384.fb_in22k_ft_in1k 86.744
        deit3_large_patch16_224.fb_in22k_ft_in1k 86.986
        deit3_large_patch16_384.fb_in22k_ft_in1k 87.734
        deit3_huge_patch14_224.fb_in22k_ft_in1k 87.180
    """),
    _Group("DeiT III", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        deit3_small_patch16_224.fb_in1k 81.374
        deit3_small_patch16_384.fb_in1k 83.428
        deit3_medium_patch16_224.fb_in1k 83.086
        deit3_base_patch16_224.fb_in1k 83.794
        deit3_base_patch16_384.fb_in1k 85.086
        deit3_large_patch16_224.fb_in1k 84.778
        deit3_large_patch16_384.fb_in1k 85.818
        deit3_huge_patch14_224.fb_in1k 85.222
    """),
    _Group("DINO", "ImageNet-1k, unlabelled", 0, "apache-2.0", "linear top-1", DINO, """
        vit_small_patch8_224.dino 79.7
        vit_small_patch16_224.dino 77.0
        vit_base_patch8_224.dino 80.1
        vit_base_patch16_224.dino 78.2
    """),
    _Group("DINOv2", "LVD-142M, unlabelled", 0, "apache-2.0", "linear top-1", DINOV2, """
        vit_small_patch14_dinov2.lvd142m 81.1
        vit_base_patch14_dinov2.lvd142m 84.5
        vit_large_patch14_dinov2.lvd142m 86.3
        vit_small_patch14_reg4_dinov2.lvd142m 80.9
        vit_base_patch14_reg4_dinov2.lvd142m 84.6
        vit_large_patch14_reg4_dinov2.lvd142m 86.7
        vit_giant_patch14_dinov2.lvd142m 86.5 518
        vit_giant_patch14_reg4_dinov2.lvd142m 87.1 518
    """),
    _Group("MAE", "ImageNet-1k, unlabelled", 0, "cc-by-nc-4.0", "fine-tuned top-1", MAE, """
        vit_base_patch16_224.mae 83.664
        vit_large_patch16_224.mae 85.952
        vit_huge_patch14_224.mae 86.928
    """),
    _Group("SigLIP 2", "WebLI", 0, "apache-2.0", "zero-shot top-1", SIGLIP2, """
        vit_base_patch16_siglip_224.v2_webli 78.2
        vit_base_patch16_siglip_256.v2_webli 79.1
        vit_base_patch16_siglip_384.v2_webli 80.6
        vit_base_patch16_siglip_512.v2_webli 81.2
        vit_large_patch16_siglip_256.v2_webli 82.5
        vit_large_patch16_siglip_384.v2_webli 83.1
        vit_so400m_patch14_siglip_224.v2_webli 83.2
        vit_so400m_patch14_siglip_378.v2_webli 84.1
        vit_base_patch32_siglip_256.v2_webli 74.0
        vit_large_patch16_siglip_512.v2_webli 83.5
        vit_so400m_patch16_siglip_256.v2_webli 83.4
        vit_so400m_patch16_siglip_384.v2_webli 84.1
        vit_so400m_patch16_siglip_512.v2_webli 84.3
        vit_giantopt_patch16_siglip_256.v2_webli 84.5
        vit_giantopt_patch16_siglip_384.v2_webli 85.0
        vit_base_patch16_siglip_gap_224.v2_webli -
        vit_base_patch16_siglip_gap_256.v2_webli -
        vit_base_patch16_siglip_gap_384.v2_webli -
        vit_base_patch16_siglip_gap_512.v2_webli -
        vit_large_patch16_siglip_gap_256.v2_webli -
        vit_large_patch16_siglip_gap_384.v2_webli -
        vit_so400m_patch14_siglip_gap_224.v2_webli -
        vit_so400m_patch14_siglip_gap_378.v2_webli -
        vit_base_patch32_siglip_gap_256.v2_webli -
        vit_large_patch16_siglip_gap_512.v2_webli -
        vit_so400m_patch16_siglip_gap_256.v2_webli -
        vit_so400m_patch16_siglip_gap_384.v2_webli -
        vit_so400m_patch16_siglip_gap_512.v2_webli -
        vit_giantopt_patch16_siglip_gap_256.v2_webli -
        vit_giantopt_patch16_siglip_gap_384.v2_webli -
    """),
    _Group("SigLIP", "WebLI, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM_NEWS.format("Oct 11, 2024"), """
        vit_so400m_patch14_siglip_378.webli_ft_in1k 89.42
        vit_so400m_patch14_siglip_gap_378.webli_ft_in1k 89.03
    """),
    _Group("SigLIP", "WebLI", 0, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_base_patch16_siglip_224.webli 76.04
        vit_base_patch16_siglip_256.webli 76.53
        vit_base_patch16_siglip_256.webli_i18n 75.13
        vit_base_patch16_siglip_384.webli 78.49
        vit_base_patch16_siglip_512.webli 79.14
        vit_large_patch16_siglip_256.webli 80.45
        vit_large_patch16_siglip_384.webli 82.07
        vit_so400m_patch14_siglip_224.webli 82.03
        vit_so400m_patch14_siglip_378.webli 83.08
        vit_so400m_patch16_siglip_256.webli_i18n -
        vit_base_patch16_siglip_gap_224.webli -
        vit_base_patch16_siglip_gap_256.webli -
        vit_base_patch16_siglip_gap_256.webli_i18n -
        vit_base_patch16_siglip_gap_384.webli -
        vit_base_patch16_siglip_gap_512.webli -
        vit_large_patch16_siglip_gap_256.webli -
        vit_large_patch16_siglip_gap_384.webli -
        vit_so400m_patch14_siglip_gap_224.webli -
        vit_so400m_patch14_siglip_gap_378.webli -
        vit_so400m_patch16_siglip_gap_256.webli_i18n -
    """),
    _Group("SigLIP", "WebLI, then PaliGemma's data", 0, "apache-2.0", None, None, """
        vit_so400m_patch14_siglip_gap_224.pali_mix -
        vit_so400m_patch14_siglip_gap_224.pali_pt -
        vit_so400m_patch14_siglip_gap_224.pali2_3b_pt -
        vit_so400m_patch14_siglip_gap_224.pali2_10b_pt -
        vit_so400m_patch14_siglip_gap_448.pali_mix -
        vit_so400m_patch14_siglip_gap_448.pali_pt -
        vit_so400m_patch14_siglip_gap_448.pali_refcoco_seg -
        vit_so400m_patch14_siglip_gap_448.pali_ocrvqa -
        vit_so400m_patch14_siglip_gap_448.pali2_3b_pt -
        vit_so400m_patch14_siglip_gap_448.pali2_10b_pt -
        vit_so400m_patch14_siglip_gap_448.pali2_3b_docci -
        vit_so400m_patch14_siglip_gap_448.pali2_10b_docci -
        vit_so400m_patch14_siglip_gap_896.pali_pt -
        vit_so400m_patch14_siglip_gap_896.pali_refcoco_seg -
        vit_so400m_patch14_siglip_gap_896.pali_ocrvqa -
        vit_so400m_patch14_siglip_gap_896.pali2_3b_pt -
        vit_so400m_patch14_siglip_gap_896.pali2_10b_pt -
    """),
    _Group("TIPS v2", "WebLI", 0, "apache-2.0", None, None, """
        vit_base_patch14_reg1_tipsv2.webli -
        vit_large_patch14_reg1_tipsv2.webli -
        vit_so400m_patch14_reg1_tipsv2.webli -
    """),
    _Group("CLIP", "LAION-2B, ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_base_patch32_clip_224.laion2b_ft_in12k_in1k 83.306 224
        vit_base_patch32_clip_384.laion2b_ft_in12k_in1k 85.410 384
        vit_base_patch32_clip_448.laion2b_ft_in12k_in1k 85.800 448
        vit_base_patch16_clip_224.laion2b_ft_in12k_in1k 86.210 224
        vit_base_patch16_clip_384.laion2b_ft_in12k_in1k 87.212 384
        vit_large_patch14_clip_224.laion2b_ft_in12k_in1k 87.898 224
        vit_large_patch14_clip_336.laion2b_ft_in12k_in1k 88.192 336
        vit_huge_patch14_clip_224.laion2b_ft_in12k_in1k 88.278 224
        vit_huge_patch14_clip_336.laion2b_ft_in12k_in1k 88.628 336
    """),
    _Group("CLIP", "LAION-2B, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_base_patch32_clip_224.laion2b_ft_in1k 82.630 224
        vit_base_patch16_clip_224.laion2b_ft_in1k 85.494 224
        vit_base_patch16_clip_384.laion2b_ft_in1k 86.638 384
        vit_large_patch14_clip_224.laion2b_ft_in1k 87.298 224
        vit_large_patch14_clip_336.laion2b_ft_in1k 87.866 336
        vit_huge_patch14_clip_224.laion2b_ft_in1k 87.624 224
    """),
    _Group("CLIP", "OpenAI's WebImageText, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_base_patch32_clip_224.openai_ft_in1k 81.946 224
        vit_base_patch16_clip_224.openai_ft_in1k 85.286 224
        vit_base_patch16_clip_384.openai_ft_in1k 86.218 384
        vit_large_patch14_clip_224.openai_ft_in1k 87.860 224
    """),
    _Group("CLIP", "OpenAI's WebImageText, ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_base_patch32_clip_384.openai_ft_in12k_in1k 85.226 384
        vit_base_patch16_clip_224.openai_ft_in12k_in1k 85.962 224
        vit_base_patch16_clip_384.openai_ft_in12k_in1k 87.028 384
        vit_large_patch14_clip_224.openai_ft_in12k_in1k 88.162 224
        vit_large_patch14_clip_336.openai_ft_in12k_in1k 88.264 336
    """),
    _Group("CLIP", "LAION-2B", 512, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_base_patch32_clip_224.laion2b 66.56 224
        vit_base_patch16_clip_224.laion2b 70.23 224
    """),
    _Group("CLIP", "DataComp-1B", 512, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_base_patch32_clip_224.datacompxl 69.17 224
        vit_base_patch32_clip_256.datacompxl 72.81 256
        vit_base_patch16_clip_224.datacompxl 73.49 224
    """),
    _Group("CLIP", "LAION-2B", 768, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_large_patch14_clip_224.laion2b 75.25 224
    """),
    _Group("CLIP", "DataComp-1B", 768, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_large_patch14_clip_224.datacompxl 79.21 224
    """),
    _Group("CLIP", "LAION-2B", 1024, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_huge_patch14_clip_224.laion2b 77.96 224
        vit_giant_patch14_clip_224.laion2b 78.47 224
    """),
    _Group("CLIP", "LAION-2B", 1280, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_gigantic_patch14_clip_224.laion2b 80.09 224
    """),
    _Group("CLIP", "OpenAI's WebImageText", 512, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_base_patch32_clip_quickgelu_224.openai 63.32 224
        vit_base_patch16_clip_quickgelu_224.openai 68.34 224
    """),
    _Group("CLIP", "OpenAI's WebImageText", 768, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        vit_large_patch14_clip_quickgelu_224.openai 75.54 224
        vit_large_patch14_clip_quickgelu_336.openai 76.56 336
    """),
    _Group("EVA", "ImageNet-22k, ImageNet-1k", 1000, "mit", "top-1", TIMM, """
        eva_large_patch14_196.in22k_ft_in22k_in1k 88.596
        eva_large_patch14_196.in22k_ft_in1k 87.956
        eva_large_patch14_336.in22k_ft_in22k_in1k 89.250
        eva_large_patch14_336.in22k_ft_in1k 88.690
    """),
    _Group("FlexiViT", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        flexivit_small.1200ep_in1k 82.592
        flexivit_small.600ep_in1k 82.392
        flexivit_small.300ep_in1k 82.170
        flexivit_base.1200ep_in1k 84.688
        flexivit_base.600ep_in1k 84.560
        flexivit_base.300ep_in1k 84.402
        flexivit_large.1200ep_in1k 85.644
        flexivit_large.600ep_in1k 85.530
        flexivit_large.300ep_in1k 85.282
    """),
    _Group("FlexiViT", "ImageNet-21k", 21843, "apache-2.0", None, None, """
        flexivit_base.1000ep_in21k -
        flexivit_base.300ep_in21k -
        flexivit_base.patch16_in21k -
        flexivit_base.patch30_in21k -
    """),
    _Group("timm's own ViTs", "ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        vit_medium_patch16_gap_256.sw_in12k_ft_in1k 84.450
        vit_medium_patch16_gap_384.sw_in12k_ft_in1k 85.554
        vit_little_patch16_reg1_gap_256.sbb_in12k_ft_in1k 83.802
        vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k 84.944
        vit_mediumd_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k 86.604
        vit_mediumd_patch16_reg4_gap_256.sbb_in12k_ft_in1k 86.208
        vit_mediumd_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k 87.436
        vit_betwixt_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k 85.728
        vit_betwixt_patch16_reg4_gap_256.sbb_in12k_ft_in1k 85.424
        vit_betwixt_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k 86.602
    """),
    _Group("timm's own ViTs", "ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM_NEWS.format("Jan 19, 2025"), """
        vit_so150m_patch16_reg4_gap_256.sbb_e250_in12k_ft_in1k 86.7
        vit_so150m_patch16_reg4_gap_384.sbb_e250_in12k_ft_in1k 87.4
    """),
    _Group("timm's own ViTs", "ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM_NEWS.format("Feb 21, 2025"), """
        vit_so150m2_patch16_reg1_gap_256.sbb_e200_in12k_ft_in1k 87.3
        vit_so150m2_patch16_reg1_gap_384.sbb_e200_in12k_ft_in1k 87.9
        vit_so150m2_patch16_reg1_gap_448.sbb_e200_in12k_ft_in1k 88.1
    """),
    _Group("timm's own ViTs", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        test_vit.r160_in1k 40.832
        vit_wee_patch16_reg1_gap_256.sbb_in1k 80.268
        vit_medium_patch16_reg1_gap_256.sbb_in1k 83.458
        vit_betwixt_patch16_reg1_gap_256.sbb_in1k 83.644
        vit_little_patch16_reg4_gap_256.sbb_in1k 82.514
        vit_medium_patch16_reg4_gap_256.sbb_in1k 83.468
        vit_betwixt_patch16_reg4_gap_256.sbb_in1k 83.708
        test_vit2.r160_in1k -
    """),
    _Group("timm's own ViTs", "ImageNet-12k", 11821, "apache-2.0", None, None, """
        vit_medium_patch16_gap_240.sw_in12k -
        vit_little_patch16_reg1_gap_256.sbb_in12k -
        vit_medium_patch16_reg4_gap_256.sbb_in12k -
        vit_mediumd_patch16_reg4_gap_256.sbb2_e200_in12k -
        vit_mediumd_patch16_reg4_gap_256.sbb_in12k -
        vit_betwixt_patch16_reg4_gap_256.sbb2_e200_in12k -
        vit_betwixt_patch16_reg4_gap_256.sbb_in12k -
        vit_so150m_patch16_reg4_gap_256.sbb_e250_in12k -
        vit_so150m2_patch16_reg1_gap_256.sbb_e200_in12k -
    """),
    _Group("BiT", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        resnetv2_50x1_bit.goog_distilled_in1k 82.820
    """),
    _Group("BiT", "ImageNet-21k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        resnetv2_50x1_bit.goog_in21k_ft_in1k 80.378 448
        resnetv2_50x3_bit.goog_in21k_ft_in1k 83.992 448
        resnetv2_101x1_bit.goog_in21k_ft_in1k 82.332 448
        resnetv2_101x3_bit.goog_in21k_ft_in1k 84.430 448
        resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k 82.916
        resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384 83.882 384
        resnetv2_152x2_bit.goog_in21k_ft_in1k 84.480 448
        resnetv2_152x4_bit.goog_in21k_ft_in1k 84.924 480
    """),
    _Group("BiT", "ImageNet-21k", 21843, "apache-2.0", None, None, """
        resnetv2_50x1_bit.goog_in21k -
        resnetv2_50x3_bit.goog_in21k -
        resnetv2_101x1_bit.goog_in21k -
        resnetv2_101x3_bit.goog_in21k -
        resnetv2_152x2_bit.goog_in21k -
        resnetv2_152x4_bit.goog_in21k -
    """),
    _Group("Swin", "ImageNet-22k, ImageNet-1k", 1000, "mit", "top-1", TIMM, """
        swin_small_patch4_window7_224.ms_in22k_ft_in1k 83.330
        swin_base_patch4_window7_224.ms_in22k_ft_in1k 85.270
        swin_base_patch4_window12_384.ms_in22k_ft_in1k 86.438
        swin_large_patch4_window7_224.ms_in22k_ft_in1k 86.330
        swin_large_patch4_window12_384.ms_in22k_ft_in1k 87.138
    """),
    _Group("Swin", "ImageNet-1k", 1000, "mit", "top-1", TIMM, """
        swin_tiny_patch4_window7_224.ms_in1k 81.388
        swin_small_patch4_window7_224.ms_in1k 83.228
        swin_base_patch4_window7_224.ms_in1k 83.610
        swin_base_patch4_window12_384.ms_in1k 84.476
        swin_s3_small_224.ms_in1k 83.778
    """),
    _Group("Swin", "ImageNet-22k, ImageNet-1k", 1000, "mit", "top-1", TIMM, """
        swin_tiny_patch4_window7_224.ms_in22k_ft_in1k 80.966
    """),
    _Group("Swin", "ImageNet-22k", 21841, "mit", None, None, """
        swin_tiny_patch4_window7_224.ms_in22k -
        swin_small_patch4_window7_224.ms_in22k -
        swin_base_patch4_window7_224.ms_in22k -
        swin_base_patch4_window12_384.ms_in22k -
        swin_large_patch4_window7_224.ms_in22k -
        swin_large_patch4_window12_384.ms_in22k -
    """),
    _Group("ConvNeXt", "ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        convnext_nano.in12k_ft_in1k 82.306
        convnext_tiny.in12k_ft_in1k 84.192
        convnext_tiny.in12k_ft_in1k_384 85.154 384
        convnext_small.in12k_ft_in1k 85.164
        convnext_small.in12k_ft_in1k_384 86.186 384
        convnext_nano.r384_in12k_ft_in1k - 384
    """),
    _Group("ConvNeXt", "ImageNet-22k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        convnext_tiny.fb_in22k_ft_in1k 82.888
        convnext_tiny.fb_in22k_ft_in1k_384 84.098 384
        convnext_small.fb_in22k_ft_in1k 84.582
        convnext_small.fb_in22k_ft_in1k_384 85.754 384
        convnext_base.fb_in22k_ft_in1k 85.816
        convnext_base.fb_in22k_ft_in1k_384 86.826 384
        convnext_large.fb_in22k_ft_in1k 86.612
        convnext_large.fb_in22k_ft_in1k_384 87.456 384
        convnext_xlarge.fb_in22k_ft_in1k 86.970
        convnext_xlarge.fb_in22k_ft_in1k_384 87.766 384
    """),
    _Group("ConvNeXt", "LAION-2B, ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        convnext_base.clip_laion2b_augreg_ft_in12k_in1k 86.386 256
        convnext_base.clip_laion2b_augreg_ft_in12k_in1k_384 87.150 384
    """),
    _Group("ConvNeXt", "LAION-2B, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        convnext_base.clip_laion2b_augreg_ft_in1k 86.184 256
        convnext_xxlarge.clip_laion2b_soup_ft_in1k 88.622
    """),
    _Group("ConvNeXt", "LAION-Aesthetic, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        convnext_base.clip_laiona_augreg_ft_in1k_384 86.488 384
    """),
    _Group("ConvNeXt", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        convnext_atto.d2_in1k 75.668
        convnext_femto.d1_in1k 77.508
        convnext_pico.d1_in1k 79.516
        convnext_nano.d1h_in1k 80.762
        convnext_tiny.fb_in1k 82.066
        convnext_small.fb_in1k 83.144
        convnext_base.fb_in1k 83.834
        convnext_large.fb_in1k 84.298
    """),
    _Group("ConvNeXt", "LAION-2B", 640, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        convnext_base.clip_laion2b 70.78 256
        convnext_base.clip_laion2b_augreg 71.47 256
    """),
    _Group("ConvNeXt", "LAION-Aesthetic", 640, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        convnext_base.clip_laiona 70.99 256
        convnext_base.clip_laiona_320 71.67 320
        convnext_base.clip_laiona_augreg_320 71.28 320
    """),
    _Group("ConvNeXt", "LAION-2B", 1024, "apache-2.0", "zero-shot top-1", OPEN_CLIP, """
        convnext_xxlarge.clip_laion2b_soup 79.47
        convnext_xxlarge.clip_laion2b_rewind 79.31
    """),
    _Group("ConvNeXt", "ImageNet-12k", 11821, "apache-2.0", None, None, """
        convnext_nano.in12k -
        convnext_nano.r384_in12k - 384
        convnext_nano.r384_ad_in12k - 384
        convnext_tiny.in12k -
        convnext_small.in12k -
    """),
    _Group("ConvNeXt", "ImageNet-22k", 21841, "apache-2.0", None, None, """
        convnext_tiny.fb_in22k -
        convnext_small.fb_in22k -
        convnext_base.fb_in22k -
        convnext_large.fb_in22k -
        convnext_xlarge.fb_in22k -
    """),
    _Group("ConvNeXt", "LAION-2B, ImageNet-12k", 11821, "apache-2.0", None, None, """
        convnext_base.clip_laion2b_augreg_ft_in12k - 256
        convnext_xxlarge.clip_laion2b_soup_ft_in12k -
    """),
    _Group("ConvNeXt", "LVD-1689M, unlabelled", 0, "dinov3-license", None, None, """
        convnext_tiny.dinov3_lvd1689m -
        convnext_small.dinov3_lvd1689m -
        convnext_base.dinov3_lvd1689m -
        convnext_large.dinov3_lvd1689m -
    """),
    _Group("ConvNeXt", "LVD-1689M, unlabelled", 0, "fair-noncommercial-research-license", None, None, """
        convnext_tiny.eupe_lvd1689m - 256
        convnext_small.eupe_lvd1689m - 256
        convnext_base.eupe_lvd1689m - 256
    """),
    _Group("EfficientNet", "ImageNet-1k, JFT-300M unlabelled", 1000, "apache-2.0", "top-1", TIMM, """
        tf_efficientnet_b0.ns_jft_in1k 78.684
        tf_efficientnet_b1.ns_jft_in1k 81.388
        tf_efficientnet_b2.ns_jft_in1k 82.412
        tf_efficientnet_b3.ns_jft_in1k 84.064
        tf_efficientnet_b4.ns_jft_in1k 85.176
        tf_efficientnet_b5.ns_jft_in1k 86.102
        tf_efficientnet_b6.ns_jft_in1k 86.476
        tf_efficientnet_b7.ns_jft_in1k 86.852
        tf_efficientnet_l2.ns_jft_in1k_475 88.250 475
        tf_efficientnet_l2.ns_jft_in1k 88.362
    """),
    _Group("EfficientNet", "ImageNet-12k, ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        efficientnet_b5.sw_in12k_ft_in1k 85.892
    """),
    _Group("EfficientNet", "ImageNet-1k", 1000, "apache-2.0", "top-1", TIMM, """
        tf_efficientnet_b0.ap_in1k 77.094
        tf_efficientnet_b0.aa_in1k 76.882
        tf_efficientnet_b0.in1k 76.536
        tf_efficientnet_b1.ap_in1k 79.288
        tf_efficientnet_b1.aa_in1k 78.840
        tf_efficientnet_b1.in1k 78.558
        tf_efficientnet_b2.ap_in1k 80.296
        tf_efficientnet_b2.aa_in1k 80.082
        tf_efficientnet_b2.in1k 79.614
        tf_efficientnet_b3.ap_in1k 81.854
        tf_efficientnet_b3.aa_in1k 81.648
        tf_efficientnet_b3.in1k 80.880
        tf_efficientnet_b4.ap_in1k 83.250
        tf_efficientnet_b4.aa_in1k 83.040
        tf_efficientnet_b4.in1k 82.608
        tf_efficientnet_b5.ap_in1k 84.254
        tf_efficientnet_b5.ra_in1k 83.828
        tf_efficientnet_b5.aa_in1k 83.696
        tf_efficientnet_b5.in1k 83.166
        tf_efficientnet_b6.ap_in1k 84.792
        tf_efficientnet_b6.aa_in1k 84.118
        tf_efficientnet_b7.ap_in1k 85.132
        tf_efficientnet_b7.ra_in1k 84.930
        tf_efficientnet_b7.aa_in1k 84.436
        tf_efficientnet_b8.ap_in1k 85.366
        tf_efficientnet_b8.ra_in1k 85.356
        efficientnet_b0.ra_in1k 77.696
        efficientnet_b0.ra4_e3600_r224_in1k 78.572
        efficientnet_b1.ra4_e3600_r240_in1k 80.404
        efficientnet_b1.ft_in1k 77.594 224
        efficientnet_b2.ra_in1k 79.340
        efficientnet_b3.ra2_in1k 81.474
        efficientnet_b4.ra2_in1k 82.654
    """),
    _Group("EfficientNet", "ImageNet-12k", 11821, "apache-2.0", None, None, """
        efficientnet_b5.sw_in12k - 416
    """),
    _Group("AIMv2", "AIMv2's images and image-text pairs", 0, "apple-ascl", None, None, """
        aimv2_large_patch14_224.apple_pt -
        aimv2_large_patch14_336.apple_pt -
        aimv2_large_patch14_448.apple_pt -
        aimv2_huge_patch14_224.apple_pt -
        aimv2_huge_patch14_336.apple_pt -
        aimv2_huge_patch14_448.apple_pt -
        aimv2_1b_patch14_224.apple_pt -
        aimv2_1b_patch14_336.apple_pt -
        aimv2_1b_patch14_448.apple_pt -
        aimv2_3b_patch14_224.apple_pt -
        aimv2_3b_patch14_336.apple_pt -
        aimv2_3b_patch14_448.apple_pt -
    """),
    _Group("BEiT", "ImageNet-22k, ImageNet-1k", 1000, "apache-2.0", None, None, """
        beit_base_patch16_224.in22k_ft_in22k_in1k -
        beit_base_patch16_384.in22k_ft_in22k_in1k -
        beit_large_patch16_224.in22k_ft_in22k_in1k -
        beit_large_patch16_384.in22k_ft_in22k_in1k -
        beit_large_patch16_512.in22k_ft_in22k_in1k -
    """),
    _Group("BEiT v2", "ImageNet-1k, ImageNet-22k", 1000, "apache-2.0", None, None, """
        beitv2_base_patch16_224.in1k_ft_in22k_in1k -
        beitv2_large_patch16_224.in1k_ft_in22k_in1k -
    """),
    _Group("BEiT-3", "ImageNet-22k, ImageNet-1k", 1000, "apache-2.0", None, None, """
        beit3_base_patch16_224.in22k_ft_in1k -
        beit3_large_patch16_224.in22k_ft_in1k -
    """),
    _Group("CLIP", "DFN-2B", 768, "apple-ascl", None, None, """
        vit_large_patch14_clip_quickgelu_224.dfn2b -
    """),
    _Group("CLIP", "DFN-5B", 1024, "apple-ascl", None, None, """
        vit_huge_patch14_clip_378.dfn5b -
        vit_huge_patch14_clip_quickgelu_224.dfn5b -
        vit_huge_patch14_clip_quickgelu_378.dfn5b -
    """),
    _Group("CLIP", "LAION-400M", 512, "mit", None, None, """
        vit_medium_patch32_clip_224.tinyclip_laion400m -
        vit_betwixt_patch32_clip_224.tinyclip_laion400m -
        vit_base_patch32_clip_quickgelu_224.laion400m_e32 -
    """),
    _Group("CLIP", "LAION-400M", 640, "mit", None, None, """
        vit_base_patch16_plus_clip_240.laion400m_e32 -
    """),
    _Group("CLIP", "MetaCLIP 2", 1280, "cc-by-nc-4.0", None, None, """
        vit_gigantic_patch14_clip_378.metaclip2_worldwide -
    """),
    _Group("CLIP", "MetaCLIP-2.5B", 512, "cc-by-nc-4.0", None, None, """
        vit_base_patch16_clip_quickgelu_224.metaclip_2pt5b -
    """),
    _Group("CLIP", "MetaCLIP-2.5B", 1280, "cc-by-nc-4.0", None, None, """
        vit_gigantic_patch14_clip_quickgelu_224.metaclip_2pt5b -
    """),
    _Group("CLIP", "YFCC-15M", 512, "mit", None, None, """
        vit_xsmall_patch16_clip_224.tinyclip_yfcc15m -
        vit_medium_patch16_clip_224.tinyclip_yfcc15m -
    """),
    _Group("DINOv3", "LVD-1689M", 0, "dinov3-license", None, None, """
        vit_small_patch16_dinov3.lvd1689m -
        vit_base_patch16_dinov3.lvd1689m -
        vit_large_patch16_dinov3.lvd1689m -
        vit_small_patch16_dinov3_qkvb.lvd1689m -
        vit_base_patch16_dinov3_qkvb.lvd1689m -
        vit_large_patch16_dinov3_qkvb.lvd1689m -
        vit_small_plus_patch16_dinov3.lvd1689m -
        vit_huge_plus_patch16_dinov3.lvd1689m -
        vit_7b_patch16_dinov3.lvd1689m -
        vit_small_plus_patch16_dinov3_qkvb.lvd1689m -
        vit_huge_plus_patch16_dinov3_qkvb.lvd1689m -
    """),
    _Group("DINOv3", "LVD-1689M", 0, "fair-noncommercial-research-license", None, None, """
        vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m -
    """),
    _Group("EVA", "LAION-400M", 1024, "mit", None, None, """
        eva_giant_patch14_clip_224.laion400m -
    """),
    _Group("EVA", "LAION-400M, ImageNet-1k", 1000, "mit", None, None, """
        eva_giant_patch14_224.clip_ft_in1k -
        eva_giant_patch14_336.clip_ft_in1k -
    """),
    _Group("EVA", "Merged-30M, ImageNet-22k, ImageNet-1k", 1000, "mit", None, None, """
        eva_giant_patch14_560.m30m_ft_in22k_in1k -
    """),
    _Group("EVA-02", "ImageNet-22k", 0, "mit", None, None, """
        eva02_tiny_patch14_224.mim_in22k -
        eva02_small_patch14_224.mim_in22k -
        eva02_base_patch14_224.mim_in22k -
        eva02_large_patch14_224.mim_in22k -
    """),
    _Group("EVA-02", "ImageNet-22k, ImageNet-1k", 1000, "mit", None, None, """
        eva02_tiny_patch14_336.mim_in22k_ft_in1k -
        eva02_small_patch14_336.mim_in22k_ft_in1k -
        eva02_base_patch14_448.mim_in22k_ft_in22k_in1k -
        eva02_large_patch14_448.mim_in22k_ft_in22k_in1k -
    """),
    _Group("EVA-02", "LAION-2B", 1024, "mit", None, None, """
        eva02_enormous_patch14_clip_224.laion2b -
    """),
    _Group("EVA-02", "Merged-2B", 512, "mit", None, None, """
        eva02_base_patch16_clip_224.merged2b -
    """),
    _Group("EVA-02", "Merged-2B", 768, "mit", None, None, """
        eva02_large_patch14_clip_224.merged2b -
        eva02_large_patch14_clip_336.merged2b -
    """),
    _Group("InternViT", "InternVL's image-text pairs", 0, "mit", None, None, """
        vit_intern300m_patch14_448.ogvl_dist -
    """),
    _Group("NaFlexViT", "ImageNet-1k", 1000, "apache-2.0", None, None, """
        naflexvit_base_patch16_gap.e300_s576_in1k -
    """),
    _Group("NaFlexViT", "WebLI", 0, "apache-2.0", None, None, """
        naflexvit_base_patch16_siglip.v2_webli -
        naflexvit_so400m_patch16_siglip.v2_webli -
    """),
    _Group("Perception Encoder", "the Perception Encoder's images and videos", 0, "apache-2.0", None, None, """
        vit_pe_spatial_tiny_patch16_512.fb -
        vit_pe_spatial_small_patch16_512.fb -
        vit_pe_spatial_base_patch16_512.fb -
        vit_pe_spatial_large_patch14_448.fb -
        vit_pe_lang_large_patch14_448.fb -
        vit_pe_lang_gigantic_patch14_448.fb -
        vit_pe_spatial_gigantic_patch14_448.fb -
    """),
    _Group("Perception Encoder", "the Perception Encoder's images and videos", 512, "apache-2.0", None, None, """
        vit_pe_core_tiny_patch16_384.fb -
        vit_pe_core_small_patch16_384.fb -
    """),
    _Group("Perception Encoder", "the Perception Encoder's images and videos", 1024, "apache-2.0", None, None, """
        vit_pe_core_base_patch16_224.fb -
        vit_pe_core_large_patch14_336.fb -
    """),
    _Group("Perception Encoder", "the Perception Encoder's images and videos", 1280, "apache-2.0", None, None, """
        vit_pe_core_gigantic_patch14_448.fb -
    """),
    _Group("SigLIP", "WebLI", 0, "apache-2.0", None, None, """
        vit_so400m_patch14_siglip_384.webli -
        vit_so400m_patch14_siglip_gap_384.webli -
    """),
    _Group("ViT", "ImageNet-1k", 1000, "apache-2.0", None, None, """
        test_vit3.r160_in1k -
        vit_pwee_patch16_reg1_gap_256.sbb_in1k -
        vit_base_patch16_rpn_224.sw_in1k -
        vit_relpos_small_patch16_224.sw_in1k -
        vit_relpos_medium_patch16_224.sw_in1k -
        vit_relpos_base_patch16_224.sw_in1k -
        vit_relpos_medium_patch16_cls_224.sw_in1k -
        vit_relpos_base_patch16_clsgap_224.sw_in1k -
        vit_relpos_medium_patch16_rpn_224.sw_in1k -
        vit_relpos_base_patch32_plus_rpn_256.sw_in1k -
        vit_srelpos_small_patch16_224.sw_in1k -
        vit_srelpos_medium_patch16_224.sw_in1k -
        vit_small_patch16_rope_224.naver_in1k -
        vit_base_patch16_rope_224.naver_in1k -
        vit_large_patch16_rope_224.naver_in1k -
        vit_small_patch16_rope_ape_224.naver_in1k -
        vit_base_patch16_rope_ape_224.naver_in1k -
        vit_large_patch16_rope_ape_224.naver_in1k -
        vit_small_patch16_rope_mixed_224.naver_in1k -
        vit_base_patch16_rope_mixed_224.naver_in1k -
        vit_large_patch16_rope_mixed_224.naver_in1k -
        vit_small_patch16_rope_mixed_ape_224.naver_in1k -
        vit_base_patch16_rope_mixed_ape_224.naver_in1k -
        vit_large_patch16_rope_mixed_ape_224.naver_in1k -
    """),
    _Group("ViT", "ImageNet-1k", 1000, "mit", None, None, """
        vit_medium_patch16_rope_reg1_gap_256.sbb_in1k -
        vit_base_patch16_rope_reg1_gap_256.sbb_in1k -
        vit_betwixt_patch16_rope_reg4_gap_256.sbb_in1k -
        vit_mediumd_patch16_rope_reg1_gap_256.sbb_in1k -
    """),
    _Group("ViT", "WebLI", 0, "apache-2.0", None, None, """
        vit_giant_patch14_reg1_tipsv2.webli -
    """),
    _Group("AIMv2", "AIMv2's images and image-text pairs", 0, "apple-ascl", None, None, """
        aimv2_large_patch14_224.apple_pt_dist -
        aimv2_large_patch14_336.apple_pt_dist -
    """),
    _Group("BEiT", "ImageNet-22k", 21841, "apache-2.0", None, None, """
        beit_base_patch16_224.in22k_ft_in22k -
        beit_large_patch16_224.in22k_ft_in22k -
    """),
    _Group("BEiT v2", "ImageNet-1k", 1000, "apache-2.0", None, None, """
        beitv2_base_patch16_224.in1k_ft_in1k -
        beitv2_large_patch16_224.in1k_ft_in1k -
    """),
    _Group("BEiT v2", "ImageNet-1k, ImageNet-22k", 21841, "apache-2.0", None, None, """
        beitv2_base_patch16_224.in1k_ft_in22k -
        beitv2_large_patch16_224.in1k_ft_in22k -
    """),
    _Group("BEiT-3", "BEiT-3's images and image-text pairs", 0, "apache-2.0", None, None, """
        beit3_base_patch16_224.indomain_pt -
        beit3_large_patch16_224.indomain_pt -
    """),
    _Group("BEiT-3", "BEiT-3's images and image-text pairs, ImageNet-22k, ImageNet-1k", 1000, "apache-2.0", None, None, """
        beit3_base_patch16_224.indomain_in22k_ft_in1k -
        beit3_large_patch16_224.indomain_in22k_ft_in1k -
    """),
    _Group("CLIP", "DFN-2B", 512, "apple-ascl", None, None, """
        vit_base_patch16_clip_224.dfn2b -
    """),
    _Group("CLIP", "DFN-2B", 768, "apple-ascl", None, None, """
        vit_large_patch14_clip_224.dfn2b -
        vit_large_patch14_clip_224.dfn2b_s39b -
    """),
    _Group("CLIP", "DFN-5B", 1024, "apple-ascl", None, None, """
        vit_huge_patch14_clip_224.dfn5b -
    """),
    _Group("CLIP", "DFNDR-2B", 768, "apple-amlr", None, None, """
        vit_large_patch14_clip_224.apple_mclip2_dfndr2b -
    """),
    _Group("CLIP", "LAION-2B, ImageNet-12k", 11821, "apache-2.0", None, None, """
        vit_base_patch16_clip_224.laion2b_ft_in12k -
        vit_large_patch14_clip_224.laion2b_ft_in12k -
        vit_huge_patch14_clip_224.laion2b_ft_in12k -
    """),
    _Group("CLIP", "LAION-400M", 512, "mit", None, None, """
        vit_base_patch16_clip_224.laion400m_e32 -
        vit_base_patch32_clip_224.laion400m_e32 -
    """),
    _Group("CLIP", "LAION-400M", 768, "mit", None, None, """
        vit_large_patch14_clip_224.laion400m_e32 -
    """),
    _Group("CLIP", "MetaCLIP 2", 1024, "cc-by-nc-4.0", None, None, """
        vit_huge_patch14_clip_224.metaclip2_worldwide -
        vit_huge_patch14_clip_378.metaclip2_worldwide -
        vit_huge_patch14_clip_quickgelu_224.metaclip2_worldwide -
    """),
    _Group("CLIP", "MetaCLIP 2", 1280, "cc-by-nc-4.0", None, None, """
        vit_gigantic_patch14_clip_224.metaclip2_worldwide -
    """),
    _Group("CLIP", "MetaCLIP-2.5B", 512, "cc-by-nc-4.0", None, None, """
        vit_base_patch16_clip_224.metaclip_2pt5b -
        vit_base_patch32_clip_224.metaclip_2pt5b -
        vit_base_patch32_clip_quickgelu_224.metaclip_2pt5b -
    """),
    _Group("CLIP", "MetaCLIP-2.5B", 768, "cc-by-nc-4.0", None, None, """
        vit_large_patch14_clip_224.metaclip_2pt5b -
        vit_large_patch14_clip_quickgelu_224.metaclip_2pt5b -
    """),
    _Group("CLIP", "MetaCLIP-2.5B", 1024, "cc-by-nc-4.0", None, None, """
        vit_huge_patch14_clip_224.metaclip_2pt5b -
        vit_huge_patch14_clip_quickgelu_224.metaclip_2pt5b -
    """),
    _Group("CLIP", "MetaCLIP-2.5B", 1280, "cc-by-nc-4.0", None, None, """
        vit_gigantic_patch14_clip_224.metaclip_2pt5b -
    """),
    _Group("CLIP", "MetaCLIP-400M", 512, "cc-by-nc-4.0", None, None, """
        vit_base_patch16_clip_224.metaclip_400m -
        vit_base_patch32_clip_224.metaclip_400m -
        vit_base_patch16_clip_quickgelu_224.metaclip_400m -
        vit_base_patch32_clip_quickgelu_224.metaclip_400m -
    """),
    _Group("CLIP", "MetaCLIP-400M", 768, "cc-by-nc-4.0", None, None, """
        vit_large_patch14_clip_224.metaclip_400m -
        vit_large_patch14_clip_quickgelu_224.metaclip_400m -
    """),
    _Group("CLIP", "MetaCLIP-Altogether", 1024, "cc-by-nc-4.0", None, None, """
        vit_huge_patch14_clip_224.metaclip_altogether -
    """),
    _Group("CLIP", "OpenAI's image-text pairs", 512, "apache-2.0", None, None, """
        vit_base_patch16_clip_224.openai -
        vit_base_patch32_clip_224.openai -
    """),
    _Group("CLIP", "OpenAI's image-text pairs", 768, "apache-2.0", None, None, """
        vit_large_patch14_clip_224.openai -
        vit_large_patch14_clip_336.openai -
    """),
    _Group("CLIP", "OpenAI's image-text pairs, ImageNet-12k", 11821, "apache-2.0", None, None, """
        vit_base_patch16_clip_224.openai_ft_in12k -
        vit_large_patch14_clip_224.openai_ft_in12k -
    """),
    _Group("DINOv3", "LVD-1689M", 0, "fair-noncommercial-research-license", None, None, """
        vit_small_patch16_dinov3_qkvb.eupe_lvd1689m -
        vit_base_patch16_dinov3_qkvb.eupe_lvd1689m -
    """),
    _Group("DINOv3", "SAT-493M", 0, "dinov3-license", None, None, """
        vit_large_patch16_dinov3.sat493m -
        vit_large_patch16_dinov3_qkvb.sat493m -
        vit_7b_patch16_dinov3.sat493m -
    """),
    _Group("EVA", "Merged-2B", 1024, "mit", None, None, """
        eva_giant_patch14_clip_224.merged2b -
    """),
    _Group("EVA", "Merged-30M, ImageNet-22k, ImageNet-1k", 1000, "mit", None, None, """
        eva_giant_patch14_336.m30m_ft_in22k_in1k -
    """),
    _Group("EVA-02", "ImageNet-22k", 21841, "mit", None, None, """
        eva02_base_patch14_448.mim_in22k_ft_in22k -
        eva02_large_patch14_448.mim_in22k_ft_in22k -
    """),
    _Group("EVA-02", "ImageNet-22k, ImageNet-1k", 1000, "mit", None, None, """
        eva02_base_patch14_448.mim_in22k_ft_in1k -
        eva02_large_patch14_448.mim_in22k_ft_in1k -
    """),
    _Group("EVA-02", "LAION-2B", 1024, "mit", None, None, """
        eva02_enormous_patch14_clip_224.laion2b_plus -
    """),
    _Group("EVA-02", "Merged-38M", 0, "mit", None, None, """
        eva02_large_patch14_224.mim_m38m -
    """),
    _Group("EVA-02", "Merged-38M, ImageNet-1k", 1000, "mit", None, None, """
        eva02_large_patch14_448.mim_m38m_ft_in1k -
    """),
    _Group("EVA-02", "Merged-38M, ImageNet-22k", 21841, "mit", None, None, """
        eva02_large_patch14_448.mim_m38m_ft_in22k -
    """),
    _Group("EVA-02", "Merged-38M, ImageNet-22k, ImageNet-1k", 1000, "mit", None, None, """
        eva02_large_patch14_448.mim_m38m_ft_in22k_in1k -
    """),
    _Group("InternViT", "InternVL's image-text pairs", 0, "apache-2.0", None, None, """
        vit_intern300m_patch14_448.ogvl_2pt5 -
    """),
    _Group("Perception Encoder", "the Perception Encoder's images and videos", 0, "apache-2.0", None, None, """
        vit_pe_lang_large_patch14_448.fb_tiling -
        vit_pe_lang_gigantic_patch14_448.fb_tiling -
    """),
)

# Repositories in the format of transformers: name, the model that it is, score, image size.
_TRANSFORMERS: tuple[_Group, ...] = (
    _Group("ViT", "ImageNet-21k, ImageNet-1k", 1000, "apache-2.0", None, None, """
        google/vit-base-patch16-224 ViT-B/16 - 224
        google/vit-base-patch16-384 ViT-B/16 - 384
        google/vit-base-patch32-384 ViT-B/32 - 384
        google/vit-large-patch16-224 ViT-L/16 - 224
        google/vit-large-patch16-384 ViT-L/16 - 384
        google/vit-large-patch32-384 ViT-L/32 - 384
    """),
    _Group("ViT", "ImageNet-21k", 0, "apache-2.0", None, None, """
        google/vit-base-patch16-224-in21k ViT-B/16 - 224
        google/vit-base-patch32-224-in21k ViT-B/32 - 224
        google/vit-large-patch16-224-in21k ViT-L/16 - 224
        google/vit-large-patch32-224-in21k ViT-L/32 - 224
        google/vit-huge-patch14-224-in21k ViT-H/14 - 224
    """),
    _Group("DeiT", "ImageNet-1k", 1000, "apache-2.0", "top-1", DEIT, """
        facebook/deit-tiny-patch16-224 deit_tiny_patch16_224 72.2 224
        facebook/deit-small-patch16-224 deit_small_patch16_224 79.9 224
        facebook/deit-base-patch16-224 deit_base_patch16_224 81.8 224
        facebook/deit-base-patch16-384 deit_base_patch16_384 82.9 384
        facebook/deit-tiny-distilled-patch16-224 deit_tiny_distilled_patch16_224 74.5 224
        facebook/deit-small-distilled-patch16-224 deit_small_distilled_patch16_224 81.2 224
        facebook/deit-base-distilled-patch16-224 deit_base_distilled_patch16_224 83.4 224
        facebook/deit-base-distilled-patch16-384 deit_base_distilled_patch16_384 85.2 384
    """),
)
# fmt: on


@cache
def public_weights() -> tuple[PublicWeights, ...]:
    """The whole table."""
    return tuple(_row(group, fields) for group, fields in _lines())


def weights_for(name: str) -> tuple[PublicWeights, ...]:
    """The public weights of a model, the nearest first; perhaps none.

    Of timm's architecture: those under its name. Of vitlab's name: those of the very architecture and image size, then those
    of other image sizes, then those whose pooling, registers or layer scale differ.
    """
    if rows := _rows_of(name):
        return rows
    if name in timm_names.architectures():
        return ()
    config = variant(name)
    wanted, size = timm_names.shape_of(config), config.name
    near = [(distance, row) for row in public_weights() if (distance := _distance(row, wanted, size)) is not None]
    return tuple(row for _, row in sorted(near, key=lambda pair: pair[0]))


def find_weights(name: str) -> PublicWeights:
    """The weights of that tagged name, hub address or repository, or the default ones of a model's name."""
    bare = name.removeprefix("hub:")
    exact = next((row for row in public_weights() if bare in (row.name, row.address.removeprefix("hub:"))), None)
    if exact is not None:
        return exact
    rows = weights_for(bare)
    if not rows:
        hint = did_you_mean(bare, [row.name for row in public_weights()]) or "give a file, or hub:owner/name"
        raise ConfigError(f"no public weights of {name} are known", hint=hint)
    return rows[0]


def tagged(architecture: str, tag: str) -> PublicWeights | None:
    """The weights of timm's architecture under that tag, without a tag the default ones; None where it has no public weights."""
    rows = _rows_of(architecture)
    if not tag:
        return rows[0] if rows else None
    found = next((row for row in rows if row.name == f"{architecture}.{tag}"), None)
    if found is None:
        known = [row.name for row in rows]
        hint = did_you_mean(f"{architecture}.{tag}", known) or ("one of " + ", ".join(known) if known else "leave the tag out")
        raise ConfigError(f"no public weights of {architecture} are called {tag!r}", hint=hint)
    return found


@cache
def _lines() -> tuple[tuple[_Group, list[str]], ...]:
    """The lines of the table, each as name, model, score and, if given, image size."""
    timm = [(group, line.split()) for group in _TIMM for line in group.rows.strip().splitlines()]
    hub = [(group, line.split()) for group in _TRANSFORMERS for line in group.rows.strip().splitlines()]
    return (*((group, [name, name.partition(".")[0], *rest]) for group, (name, *rest) in timm), *hub)


@cache
def _rows_of(architecture: str) -> tuple[PublicWeights, ...]:
    """The rows of an architecture of timm."""
    return tuple(_row(group, fields) for group, fields in _lines() if fields[1] == architecture and "_" in architecture)


def _row(group: _Group, fields: list[str]) -> PublicWeights:
    name, model, score, *side = fields
    config = timm_names.architecture_config(model) or (None if "_" in model else variant(model))
    repository = name if "/" in name else "timm/" + name.replace("_quickgelu", "")  # timm has one repository for both GELUs
    scored = score != "-"
    return PublicWeights(
        name=name,
        model=model,
        variant=None if config is None else config.name,
        address=f"hub:{repository}",
        family=group.family,
        data=group.data,
        image_size=int(side[0]) if side or config is None else config.image_size[0],
        num_classes=group.num_classes,
        score=float(score) if scored else None,
        metric=group.metric if scored else None,
        source=group.source if scored else None,
        licence=group.licence,
        needs=None if config is not None else timm_names.need_of(model),
    )


def _distance(row: PublicWeights, wanted: Shape, size: str | None) -> int | None:
    """How far a row's model is from the wanted one: 0 the same, 1 of another image size, 2 of the same name; None for others."""
    if not row.loads:
        return None
    shape = _shape_of(row.model)
    if shape.rest == wanted.rest:
        return 0 if shape.grid == wanted.grid else 1
    return 2 if size is not None and row.variant == size else None


@cache
def _shape_of(model: str) -> Shape:
    return timm_names.shape_of(timm_names.architecture_config(model) or variant(model))
