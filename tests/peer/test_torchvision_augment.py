"""torchvision v2 as an oracle: each operation alone, against its Pillow backend to the bit and its tensor backend closely."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.images import Pixels, scene
from vitlab.config.data import Augment, Preprocess
from vitlab.data.augment import Operation, apply, as_pixels, brighten, contrast, cutout, erase, saturate, turn_hue
from vitlab.data.sampler import rng_of
from vitlab.data.transforms import cut, inception_box, mirror, pad, preprocess, scale

IMAGES = [scene(61, 83, seed=seed, finest=11) for seed in range(3)] + [scene(64, 64, seed=9)]
FILL = 128


def tensor(image_HWC: Pixels) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(image_HWC.transpose(2, 0, 1)))


def pixels(image_CHW: torch.Tensor) -> Pixels:
    return image_CHW.permute(1, 2, 0).numpy()


Ask = Callable[[Any, Any], Any]  # (torchvision's functional module, image) -> image


def sheared(x: float, y: float) -> Ask:
    angles = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return lambda F, image: F.affine(image, angle=0, translate=[0, 0], scale=1.0, shear=angles, center=[0, 0], fill=[FILL] * 3)


def moved(x: int, y: int) -> Ask:
    return lambda F, image: F.affine(image, angle=0, translate=[-x, -y], scale=1.0, shear=[0.0, 0.0], fill=[FILL] * 3)


# operation, our argument, torchvision's call, and how its tensor backend may differ: levels, and share of pixels beyond them
CASES: list[tuple[Operation, float, Ask, float, float]] = [
    ("autocontrast", 0, lambda F, image: F.autocontrast(image), 1, 0),
    ("equalize", 0, lambda F, image: F.equalize(image), 0, 0),
    ("invert", 0, lambda F, image: F.invert(image), 0, 0),
    *(("posterize", bits, lambda F, image, bits=bits: F.posterize(image, bits), 0, 0) for bits in (1, 4, 7)),
    *(("solarize", level, lambda F, image, level=level: F.solarize(image, level), 0, 0) for level in (0, 100, 255)),
    *(("color", factor, lambda F, image, f=factor: F.adjust_saturation(image, f), 2, 0) for factor in (0.1, 0.64, 1.9)),
    *(("contrast", factor, lambda F, image, f=factor: F.adjust_contrast(image, f), 2, 0) for factor in (0.1, 0.64, 1.9)),
    *(("brightness", factor, lambda F, image, f=factor: F.adjust_brightness(image, f), 1, 0) for factor in (0.1, 0.64, 1.9)),
    *(("sharpness", factor, lambda F, image, f=factor: F.adjust_sharpness(image, f), 2, 0) for factor in (0.1, 0.64, 1.9)),
    *(("rotate", angle, lambda F, image, a=angle: F.rotate(image, a, fill=[FILL] * 3), 0, 0.02) for angle in (-45, 12.5, 60)),
    *(("shear-x", amount, sheared(amount, 0), 0, 0.02) for amount in (-0.31, 0.15, 0.57)),
    *(("shear-y", amount, sheared(0, amount), 0, 0.02) for amount in (-0.31, 0.15, 0.57)),
    *(("translate-x", amount, moved(amount, 0), 0, 0) for amount in (-20, 7)),
    *(("translate-y", amount, moved(0, amount), 0, 0) for amount in (-20, 7)),
]


@pytest.mark.parametrize(
    ("operation", "argument", "ask", "levels", "share"), CASES, ids=[f"{case[0]} {case[1]:g}" for case in CASES]
)
def test_an_operation_is_torchvisions(
    v2: ModuleType, operation: Operation, argument: float, ask: Ask, levels: float, share: float
) -> None:
    for image_HWC in IMAGES:
        image = Image.fromarray(image_HWC)
        ours_HWC = as_pixels(apply(image, operation, argument, FILL))
        on_pillow = np.asarray(ask(v2.functional, image))
        np.testing.assert_array_equal(ours_HWC, on_pillow)
        on_tensor = pixels(ask(v2.functional, tensor(image_HWC)))
        beyond = (np.abs(on_tensor.astype(int) - ours_HWC) > levels).any(2)
        assert beyond.mean() <= share


def test_cutout_is_an_erased_box(v2: ModuleType) -> None:
    for image_HWC in IMAGES:
        ours_HWC = as_pixels(cutout(Image.fromarray(image_HWC), 9, FILL, centre=(30, 40)))
        fill = torch.full((3, 1, 1), FILL, dtype=torch.uint8)
        np.testing.assert_array_equal(ours_HWC, pixels(v2.functional.erase(tensor(image_HWC), 21, 31, 18, 18, fill)))


def test_colour_jitters_four_changes_are_torchvisions(v2: ModuleType) -> None:
    F = v2.functional
    pairs: list[tuple[Callable[[Image.Image, float], Image.Image], Any, tuple[float, ...]]] = [
        (brighten, F.adjust_brightness, (0.0, 0.6, 1.4)),
        (contrast, F.adjust_contrast, (0.0, 0.6, 1.4)),
        (saturate, F.adjust_saturation, (0.0, 0.6, 1.4)),
        (turn_hue, F.adjust_hue, (-0.5, -0.1, 0.0, 0.23, 0.5)),
    ]
    for image_HWC in IMAGES:
        image = Image.fromarray(image_HWC)
        for ours, theirs, amounts in pairs:
            for amount in amounts:
                np.testing.assert_array_equal(np.asarray(ours(image, amount)), np.asarray(theirs(image, amount)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_and_resize_are_torchvisions_on_tensors_to_the_bit(v2: ModuleType, interpolation: Any) -> None:
    mode = v2.InterpolationMode(interpolation)
    for image_HWC in IMAGES:
        ours_HWC = scale(cut(image_HWC, (5, 9, 41, 37)), (48, 32), interpolation)
        theirs = v2.functional.resized_crop(tensor(image_HWC), 5, 9, 41, 37, size=[48, 32], interpolation=mode, antialias=True)
        assert np.abs(ours_HWC.astype(int) - pixels(theirs)).max() <= 1
        np.testing.assert_array_equal(mirror(image_HWC), pixels(v2.functional.horizontal_flip(tensor(image_HWC))))
        np.testing.assert_array_equal(pad(image_HWC, 4, 9), pixels(v2.functional.pad(tensor(image_HWC), [4], fill=9)))


@pytest.mark.parametrize("size", [(96, 128), (300, 200), (256, 341)])
def test_evaluation_preprocessing_is_torchvisions_where_both_round_alike(v2: ModuleType, size: tuple[int, int]) -> None:
    image_HWC = scene(*size)
    both = v2.Compose([v2.Resize(64, interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(48)])
    expected = both(Image.fromarray(image_HWC))
    np.testing.assert_array_equal(preprocess(image_HWC, Preprocess(image_size=(48, 48), resize_to=64)), expected)


def quantiles(values: list[float]) -> list[float]:
    return [float(q) for q in np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])]


def test_inception_boxes_are_drawn_as_torchvision_draws_them(v2: ModuleType) -> None:
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(224, scale=(0.05, 1.0))
    image = torch.zeros(3, 240, 300, dtype=torch.uint8)
    drawn = [theirs.make_params([image]) for _ in range(4000)]
    ours = [inception_box(240, 300, rng_of(0, 0, index), Augment()) for index in range(4000)]
    for mine, other in (
        ([box[2] * box[3] / 72_000 for box in ours], [p["height"] * p["width"] / 72_000 for p in drawn]),
        ([math.log(box[3] / box[2]) for box in ours], [math.log(p["width"] / p["height"]) for p in drawn]),
        ([box[0] / 240 for box in ours], [p["top"] / 240 for p in drawn]),
        ([box[1] / 300 for box in ours], [p["left"] / 300 for p in drawn]),
    ):
        np.testing.assert_allclose(quantiles(mine), quantiles(other), atol=0.03)


def test_erased_boxes_are_drawn_as_torchvision_draws_them(v2: ModuleType) -> None:
    torch.manual_seed(0)
    theirs = v2.RandomErasing(p=1.0, scale=(0.02, 0.33), ratio=(0.3, 3.3))
    config = Augment(erase=1.0, erase_area=(0.02, 0.33), erase_aspect=(0.3, 3.3), erase_fill="grey", fill=0)
    white_HWC = np.full((60, 60, 3), 255, np.uint8)
    mine = [float((erase(white_HWC, config, rng_of(0, 0, index)) == 0).mean()) for index in range(2000)]
    other = [float((theirs(tensor(white_HWC)) == 0).float().mean()) for _ in range(2000)]
    np.testing.assert_allclose(quantiles(mine), quantiles(other), atol=0.015)
