"""Corruptions: fifteen, each harder from severity to severity, and a function of the image, its index, kind and severity."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.data.images import jpeg, scene
from vitlab.config import Preprocess
from vitlab.config.data import DecodeLimits
from vitlab.data.dataset import RawSample
from vitlab.data.loader import Loader
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError
from vitlab.evaluation.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    CorruptedTransform,
    chosen_corruptions,
    convolved,
    corrupt,
    gaussian,
    mirrored,
    moved,
    plasma,
    sampled,
    zoomed,
)

Pixels = NDArray[np.uint8]
PIXELS = scene(96, 96, seed=3)
GROWS = [name for name in CORRUPTIONS if name not in ("elastic", "glass-blur", "snow", "frost")]  # they change in kind as well


def distance(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


def made(name: str, severity: int, *, image: Pixels = PIXELS, seed: int = 0) -> Pixels:
    return corrupt(image, name, severity, np.random.default_rng(seed))


def test_there_are_the_papers_fifteen() -> None:
    assert len(CORRUPTIONS) == 15
    assert chosen_corruptions(["all"]) == tuple(CORRUPTIONS)
    assert chosen_corruptions(["fog", "gaussian-noise"]) == ("gaussian-noise", "fog")
    assert chosen_corruptions([]) == ()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_changes_the_image_and_nothing_but_its_pixels(name: str) -> None:
    before = PIXELS.copy()
    for severity in SEVERITIES:
        after = made(name, severity)
        assert after.shape == PIXELS.shape
        assert after.dtype == np.uint8
        assert distance(after, PIXELS) > 1
    assert np.array_equal(PIXELS, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_same_randomness_gives_the_same_pixels(name: str) -> None:
    assert np.array_equal(made(name, 3), made(name, 3))


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in (
    "defocus-blur", "zoom-blur", "brightness", "contrast", "pixelate", "jpeg",
)])  # fmt: skip
def test_other_randomness_gives_other_pixels(name: str) -> None:
    assert not np.array_equal(made(name, 3), made(name, 3, seed=1))


@pytest.mark.parametrize("name", GROWS)
def test_a_higher_severity_changes_more(name: str) -> None:
    amounts = [np.mean([distance(made(name, severity, seed=seed), PIXELS) for seed in range(3)]) for severity in SEVERITIES]
    assert amounts == sorted(amounts)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(32, 32, 3), (40, 64, 3), (33, 20, 1), (24, 24, 4), (1, 1, 3)])
def test_any_size_and_number_of_channels_is_taken(name: str, shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for severity in (1, 5):
        assert made(name, severity, image=image).shape == shape


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_black_stays_darker_than_white(name: str) -> None:
    black, white = (made(name, 5, image=np.full((32, 32, 3), level, np.uint8)).astype(float) for level in (0, 255))
    assert black.mean() + 50 < white.mean()


@pytest.mark.parametrize(
    "name", ["defocus-blur", "glass-blur", "motion-blur", "zoom-blur", "contrast", "elastic", "pixelate", "jpeg"]
)
@pytest.mark.parametrize("level", [0, 255])
def test_what_moves_or_mixes_pixels_leaves_a_black_or_white_image_as_it_is(name: str, level: int) -> None:
    flat = np.full((32, 32, 3), level, np.uint8)
    assert np.array_equal(made(name, 5, image=flat), flat)


def test_noise_has_the_strength_it_says() -> None:
    grey = np.full((224, 224, 3), 128, np.uint8)
    assert made("gaussian-noise", 1, image=grey).std() / 255 == pytest.approx(0.08, rel=0.02)
    impulse = made("impulse-noise", 5, image=grey)
    assert np.isin(impulse, (0, 255)).mean() == pytest.approx(0.27, rel=0.05)
    assert (impulse == 0).mean() == pytest.approx((impulse == 255).mean(), rel=0.05)
    light = made("shot-noise", 1, image=grey) / 255
    assert light.mean() == pytest.approx(128 / 255, rel=0.01)
    assert light.var() == pytest.approx(128 / 255 / 60, rel=0.05)  # Poisson: the variance is the mean over the particles


def test_contrast_keeps_the_mean_and_shrinks_the_spread() -> None:
    after = made("contrast", 2).astype(float)
    np.testing.assert_allclose(after.mean((0, 1)), PIXELS.mean((0, 1)), atol=0.5)
    np.testing.assert_allclose(after.std((0, 1)), 0.3 * PIXELS.std((0, 1)), rtol=0.03)


def test_brightness_adds_to_the_value_and_keeps_the_hue() -> None:
    dark = (PIXELS // 2).astype(np.uint8)
    after = made("brightness", 3, image=dark).astype(float)
    np.testing.assert_allclose(after.max(2), dark.max(2) + 0.3 * 255, atol=0.6)
    ratio = after[:, :, 0] / after.max(2)
    np.testing.assert_allclose(ratio, dark[:, :, 0] / dark.max(2), atol=0.02)


def test_pixelate_makes_blocks() -> None:
    after = made("pixelate", 5, image=scene(64, 64))  # a quarter of the side
    assert np.array_equal(after, np.kron(after[::4, ::4], np.ones((4, 4, 1), np.uint8)))


def test_blurs_keep_the_light_in_the_image() -> None:
    for name in ("defocus-blur", "glass-blur", "motion-blur", "zoom-blur"):
        flat = np.full((48, 48, 3), 90, np.uint8)
        assert distance(made(name, 5, image=flat), flat) <= 1


def test_a_corruption_looks_alike_at_half_the_size() -> None:
    large = scene(128, 128, finest=12)
    half = large.reshape(64, 2, 64, 2, 3).mean((1, 3)).astype(np.uint8)
    for name in ("defocus-blur", "zoom-blur"):
        shrunk = made(name, 5, image=large).reshape(64, 2, 64, 2, 3).mean((1, 3))
        assert distance(shrunk.astype(np.uint8), made(name, 5, image=half)) < 0.5 * distance(made(name, 5, image=half), half)


def test_an_unknown_corruption_or_severity_is_refused_and_a_near_miss_is_named() -> None:
    with pytest.raises(ConfigError, match="gausian-noise") as caught:
        made("gausian-noise", 1)
    assert caught.value.hint == "did you mean gaussian-noise?"
    for severity in (0, 6):
        with pytest.raises(ConfigError, match="from 1 to 5"):
            made("fog", severity)
    with pytest.raises(ConfigError):
        chosen_corruptions(["all", "smog"])


def test_gaussian_blur_is_scipys() -> None:
    image = np.random.default_rng(0).random((21, 30, 2)).astype(np.float32)
    for sigma in (0.4, 2.0, 25.0):  # the last reaches round the image several times
        expected = ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="reflect", truncate=4)
        np.testing.assert_allclose(gaussian(image, sigma), expected, atol=1e-5)


def test_convolution_is_scipys() -> None:
    rng = np.random.default_rng(0)
    image, kernel = rng.random((21, 30, 2)).astype(np.float32), rng.random((7, 7)).astype(np.float32)
    expected = np.stack([ndimage.convolve(image[:, :, c], kernel, mode="reflect") for c in range(2)], axis=2)
    np.testing.assert_allclose(convolved(image, kernel), expected, rtol=1e-4)


def test_sampling_at_whole_pixels_gives_the_image_and_between_them_scipys_interpolation() -> None:
    rng = np.random.default_rng(0)
    image = rng.random((9, 12, 1)).astype(np.float32)
    y_HW, x_HW = np.mgrid[:9, :12].astype(float)
    np.testing.assert_array_equal(sampled(image, y_HW, x_HW), image)
    y_HW, x_HW = rng.uniform(-8, 16, (2, 9, 12))
    expected = ndimage.map_coordinates(image[:, :, 0], [y_HW, x_HW], order=1, mode="reflect")
    np.testing.assert_allclose(sampled(image, y_HW, x_HW)[:, :, 0], expected, atol=1e-5)


def test_small_parts_do_what_they_say() -> None:
    assert mirrored(np.arange(-4, 8), 3).tolist() == [2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1]
    image = np.random.default_rng(0).random((15, 15, 1)).astype(np.float32)
    np.testing.assert_allclose(zoomed(image, 1.0), image)
    np.testing.assert_allclose(zoomed(image, 2.0)[7, 7], image[7, 7])  # the centre stays
    np.testing.assert_allclose(moved(image, 1, 3.0, 0.5), image, rtol=1e-6)
    np.testing.assert_allclose(moved(image, 4, 1e9, 0.0)[:, :12, 0], sum(image[:, s : s + 12, 0] for s in range(4)) / 4, rtol=1e-5)
    cloud = plasma(50, 2.0, np.random.default_rng(0))
    assert cloud.shape == (50, 50)
    assert (cloud.min(), cloud.max()) == (0, 1)
    rough = plasma(64, 1.2, np.random.default_rng(0))
    assert np.abs(np.diff(rough, axis=0)).mean() > np.abs(np.diff(plasma(64, 4.0, np.random.default_rng(0)), axis=0)).mean()


class Files:
    """Images as files."""

    labels = ("a", "b")
    multi_label = False

    def __len__(self) -> int:
        return 5

    def read(self, index: int) -> RawSample:
        return RawSample(name=f"{index}.jpg", content=jpeg(scene(40, 40, seed=index // 2)), label=index % 2)

    def label(self, index: int) -> int:
        return index % 2

    def fingerprint(self) -> str:
        return "files"


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (1, "process")])
def test_a_loader_corrupts_by_index_kind_and_severity_alone(workers: int, kind: str) -> None:
    from vitlab.config.evaluation import EvaluateConfig

    view = EvaluationTransform(preprocess=Preprocess(image_size=(32, 32), resize_to=36), limits=DecodeLimits())
    config = EvaluateConfig(batch_size=2, workers=workers, worker_kind=kind)  # type: ignore[arg-type]

    def seen(name: str, severity: int) -> Pixels:
        hard = CorruptedTransform(transform=view, corruption=name, severity=severity)
        with Loader(Files(), hard.pipeline(), config=config.loader(seed=hard.seed), train=False).batches() as batches:
            return np.concatenate([batch.images_BHWC for batch in batches])

    noise = seen("gaussian-noise", 1)
    assert not np.array_equal(noise[0], noise[1])  # one image at two places
    from vitlab.data.sampler import rng_of

    clean = view.apply(jpeg(scene(40, 40, seed=1)), name="a")
    assert np.array_equal(noise[2], corrupt(clean, "gaussian-noise", 1, rng_of(1, 0, 2)))


def test_no_two_corruptions_share_their_randomness() -> None:
    view = EvaluationTransform(preprocess=Preprocess(), limits=DecodeLimits())
    seeds = {
        CorruptedTransform(transform=view, corruption=name, severity=level).seed for name in CORRUPTIONS for level in SEVERITIES
    }
    assert len(seeds) == 75
    assert 0 not in seeds
