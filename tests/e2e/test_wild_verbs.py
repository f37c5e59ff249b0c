"""Vision Transformers of today take the same verbs: fine-tuned at another image size, looked into, exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.checkpoints import load
from vitlab.config.vit import ViTConfig
from vitlab.interpretation.attention import attention_distance, rollout
from vitlab.models.vit import ViT

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("onnx_operators")]

WILD = Path(__file__).parents[1] / "golden" / "wild"
# Rotary positions, centred and learned; relative biases in tables and by an MLP; norms before and after; SwiGLU; RMSNorm.
FAMILIES = (
    *("timm_eva02_clip", "timm_dinov3_qkvb", "timm_rope_mixed", "timm_beit", "timm_relpos_rpn", "timm_clip_quickgelu"),
    *("timm_aimv2", "timm_pe_core"),
)
EXPORTED = ("timm_eva02_clip",)


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and light images."""
    folder, rng = tmp_path_factory.mktemp("tones"), np.random.default_rng(0)
    for label, tone in (("dark", 50), ("light", 200)):
        (folder / label).mkdir()
        for number in range(12):
            pixels_HWC = np.clip(tone + rng.normal(0, 30, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels_HWC).save(folder / label / f"{number}.png")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_takes_the_verbs(family: str, tones: Path, tmp_path: Path) -> None:
    before = load(WILD / family).config
    assert isinstance(before, ViTConfig)
    size = before.patch_size[0] * 5
    run = vitlab.finetune(
        tones,
        WILD / family,
        image_size=size,
        preset="none",
        lr=0.01,
        steps=2,
        batch_size=8,
        workers=0,
        out=tmp_path / "run",
        quiet=True,
    )
    checkpoint = load(run.path / "model.safetensors")
    model, config = checkpoint.model, checkpoint.config
    assert isinstance(model, ViT)
    assert isinstance(config, ViTConfig)
    assert (config.image_size, config.num_classes, config.traits) == ((size, size), 2, before.traits)
    images_BCHW = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    assert rollout(model, images_BCHW).shape == (2, 5, 5)
    assert attention_distance(model, images_BCHW).shape == (config.depth, config.heads)
    if family in EXPORTED:  # which compares the file's answers with the model's
        assert vitlab.export(checkpoint, tmp_path / "model.onnx").paths[0].exists()
