"""A folder written for a peer makes that peer feed its model the pixels that vitlab feeds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from tests.checkpoints.formats.samples import OPTIONS
from tests.data.images import Pixels, scene
from tests.peer.compare import saved
from vitlab.checkpoints import convert, save
from vitlab.config import Preprocess
from vitlab.data.transforms import normalise, preprocess

WAYS = {
    "squash": Preprocess(image_size=(32, 32), resize="squash", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)),
    "crop, bilinear": Preprocess(image_size=(32, 32), resize_to=37, interpolation="bilinear"),
    "crop, bicubic": Preprocess(image_size=(32, 32), resize_to=36, interpolation="bicubic"),
}
# Of sizes where both round alike: torchvision, which the peers use, cuts off a longer side's fraction and vitlab rounds it.
IMAGES = [scene(72, 90, seed=0), scene(64, 64, seed=1), scene(108, 54, seed=2)]


def native(path: Path, way: str) -> Path:
    """A model that is fed that way."""
    save(replace(saved(path / "native.safetensors", OPTIONS["plain"]), preprocess=WAYS[way]), path / "native.safetensors")
    return path / "native.safetensors"


def pixels(image_HWC: Pixels, way: str) -> torch.Tensor:
    """The tensor that vitlab's model gets for the image."""
    return normalise(torch.from_numpy(preprocess(image_HWC, WAYS[way]))[None], WAYS[way])[0]


@pytest.mark.parametrize("way", WAYS)
def test_timms_own_transform_of_a_written_folder_gives_the_same_pixels(timm: ModuleType, way: str, tmp_path: Path) -> None:
    convert(native(tmp_path, way), tmp_path / "timm", to="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    for image_HWC in IMAGES:
        assert torch.allclose(transform(Image.fromarray(image_HWC)), pixels(image_HWC, way), atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_the_image_processor_of_a_written_folder_gives_the_same_pixels_to_one_level(
    transformers: ModuleType, way: str, tmp_path: Path
) -> None:
    convert(native(tmp_path, way), tmp_path / "hf", to="huggingface")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    level = 1 / 255 / min(WAYS[way].std) + 1e-6  # it scales tensors, vitlab scales as Pillow does
    for image_HWC in IMAGES:
        theirs_BCHW = processor(images=Image.fromarray(image_HWC), return_tensors="pt")["pixel_values"]
        assert (theirs_BCHW[0] - pixels(image_HWC, way)).abs().max() <= level
