"""Files of DINOv2's authors and of OpenAI's CLIP, as timm's own conversion understands them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.checkpoints.formats.samples import OPTIONS, random_state, written
from tests.peer.compare import TOLERANCE
from vitlab.checkpoints import load
from vitlab.config import ViTConfig

SIZE: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "mlp_ratio": 2}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # format, timm's model, its arguments
    "dinov2": ("dinov2", "vit_small_patch14_dinov2", SIZE | {"num_classes": 0}),
    "dinov2, registers": ("dinov2", "vit_giant_patch14_reg4_dinov2", SIZE | {"num_classes": 0, "mlp_ratio": 4}),
    "clip": ("openai-clip", "vit_base_patch32_clip_quickgelu_224", SIZE | {"num_classes": 24}),
}


@pytest.mark.parametrize("name", CASES)
def test_timms_conversion_of_an_authors_file_answers_as_vitlab_does(timm: ModuleType, name: str, tmp_path: Path) -> None:
    layout, architecture, arguments = CASES[name]
    config = OPTIONS[name]
    assert isinstance(config, ViTConfig)
    state = {key: tensor * (1 if tensor.ndim == 1 else tensor[0].numel() ** -0.5) for key, tensor in random_state(config).items()}
    tensors = written(layout, config, state).tensors
    torch.save(tensors, tmp_path / "authors.pth")
    ours = load(tmp_path / "authors.pth").model
    theirs = timm.create_model(architecture, **arguments).eval()
    converted = timm.models.vision_transformer.checkpoint_filter_fn(dict(tensors), theirs)
    theirs.load_state_dict(converted, strict=True)
    images_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert float((ours(images_BCHW) - theirs(images_BCHW)).abs().max()) < TOLERANCE
