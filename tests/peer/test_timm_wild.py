"""One model of each style of timm's Vision Transformers, at a reduced size, live: at two image sizes, one of them not square."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.peer.compare import randomised
from vitlab.checkpoints import Checkpoint, convert, load, save
from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import FORMATS, Hints
from vitlab.config.data import Preprocess
from vitlab.config.timm_names import STYLES, architecture_config, timm_vit
from vitlab.config.vit import ViTConfig
from vitlab.models import build

pytestmark = pytest.mark.peer

ONE_OF_EACH = tuple(names.split()[0] for _, names in STYLES)
ATOL = 2e-5


def made(timm: ModuleType, name: str, size: tuple[int, int]) -> tuple[Any, dict[str, Any]]:
    """timm's model with two layers of width 64, every parameter moved off its initial value, and its arguments."""
    style = architecture_config(name)
    assert isinstance(style, ViTConfig)
    arguments: dict[str, Any] = {"embed_dim": 64, "depth": 2, "num_heads": 2}
    if style.position.grid is None:
        arguments["img_size"] = size
    if name.endswith("sapiens2"):
        arguments["num_kv_heads"] = [2, 1]
    if style.mlp.gated:
        arguments["mlp_ratio"] = 4.0
    model = timm.create_model(name, num_classes=5, **arguments)
    return randomised(model).eval(), arguments


def read(model: Any, name: str, arguments: dict[str, Any], size: tuple[int, int]) -> Any:
    beside: dict[str, Any] = {
        "architecture": name,
        "global_pool": model.global_pool,
        "model_args": {key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()},
        "pretrained_cfg": {"input_size": [3, *size]},
    }
    raw = RawFile(path=Path(name), tensors=dict(model.state_dict()), metadata={}, sidecar=beside, preprocessor=None)
    reading = FORMATS["timm"].read(raw, Hints())
    ours = build(reading.config).eval()
    ours.load_state_dict(reading.state)
    return ours


@pytest.mark.parametrize("grid", [(3, 3), (2, 5)], ids=["square", "not-square"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_of_each_style_computes_what_timms_does(timm: ModuleType, name: str, grid: tuple[int, int]) -> None:
    style = architecture_config(name)
    assert isinstance(style, ViTConfig)
    size = (grid[0] * style.patch_size[0], grid[1] * style.patch_size[1])
    theirs, arguments = made(timm, name, size)
    ours = read(theirs, name, arguments, size)
    images_BCHW = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(ours(images_BCHW), theirs(images_BCHW), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if timm_vit(name).traits])
def test_timm_builds_and_computes_what_vitlab_writes(timm: ModuleType, name: str, tmp_path: Path) -> None:
    style = architecture_config(name)
    assert isinstance(style, ViTConfig)
    size = (3 * style.patch_size[0],) * 2
    theirs, arguments = made(timm, name, size)
    ours = read(theirs, name, arguments, size)
    save(Checkpoint(model=ours, config=ours.config, preprocess=Preprocess(image_size=size)), tmp_path / "model.safetensors")
    convert(tmp_path / "model.safetensors", tmp_path / "folder", to="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    images_BCHW = torch.randn(2, 3, *size)
    with torch.inference_mode():
        torch.testing.assert_close(again(images_BCHW), theirs(images_BCHW), rtol=0, atol=ATOL)
    assert load(tmp_path / "folder").config == ours.config
