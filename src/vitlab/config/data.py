"""Settings of data: preprocessing, decoding, splits, augmentation, the loader, synthetic data, packs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vitlab.config.model import ModelConfig, task_of
from vitlab.config.vit import ViTConfig
from vitlab.errors import LARGEST_SIDE, ConfigError, at_least, choice, did_you_mean, fraction, pair

Resize = Literal["short-side", "squash", "pad", "fit", "native"]
Interpolation = Literal["bilinear", "bicubic", "tf-bilinear"]
PixelScale = Literal["full", "percentile", "file"]

_MOST_PIXELS = 1 << 26  # of an input: 8192 x 8192
_MOST_PACKED = 65_535  # patches of an image of its native aspect ratio: its grid is stored in two bytes a side,
_LEAST_NUMBERS = 4  # in the numbers of one patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """From a decoded image to the model's input, in evaluation, prediction, export and serving. Saved in every checkpoint.

    `image_size` is (height, width) of the model's input in pixels.
    `resize`: `short-side` scales the shorter side to `resize_to` pixels, keeping the aspect ratio, and crops the centre; `squash`
    scales to `image_size` and ignores the aspect ratio; `pad` scales to fit inside `image_size` and fills the rest with `fill`.
    `fit` is for detectors: it keeps the aspect ratio and the whole image, so that each image has its own size. The shorter side
    becomes the first of `image_size` unless the longer would exceed the second; both are then rounded down to a multiple of 16.
    `native` keeps the aspect ratio and the whole image too (NaViT): each image gets as many patches as `image_size` has, or a few
    less, in its own shape, and images of different shapes are packed into one sequence.
    `interpolation`: `bilinear` and `bicubic` are Pillow's, with antialiasing; `tf-bilinear` is the official code's
    `tf.image.resize`, without.
    `mean` and `std` are per channel, on the scale where white is 1; (0.5, 0.5) gives the official range [-1, 1].
    `pixel_scale` is how numbers of more than 8 bits and of floating point become levels of 8 bits: `full` takes their whole range
    (0 to 65,535 for 16 bits, 0 to 1 for floating point, the window of a DICOM file), `percentile` the range from the 0.5th to the
    99.5th percentile of each channel of each image, `file` that from its least to its largest number.
    """

    image_size: tuple[int, int] = (224, 224)
    resize: Resize = "short-side"
    resize_to: int = 256
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    fill: int = 127
    pixel_scale: PixelScale = "full"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("resize", self.resize, Resize)
        choice("interpolation", self.interpolation, Interpolation)
        choice("pixel_scale", self.pixel_scale, PixelScale)
        height, width = self.image_size
        if height * width > _MOST_PIXELS:
            raise ConfigError(f"image_size={height}x{width} has {height * width:,} pixels; the limit is {_MOST_PIXELS:,}")
        if self.resize == "short-side":
            at_least("resize_to", self.resize_to, 1, LARGEST_SIDE)
            if self.resize_to < max(self.image_size):
                raise ConfigError(
                    f"resize_to={self.resize_to} is smaller than the crop {self.image_size[0]}x{self.image_size[1]}",
                    hint="make resize_to at least the longer side of image_size",
                )
        if len(self.mean) != len(self.std) or not self.mean:
            raise ConfigError(f"mean has {len(self.mean)} channels but std has {len(self.std)}")
        if not all(map(math.isfinite, (*self.mean, *self.std))):
            raise ConfigError(f"mean={self.mean} and std={self.std} must be finite numbers")
        if min(self.std) <= 0:
            raise ConfigError(f"std={self.std} must be positive")
        if not 0 <= self.fill <= 255:
            raise ConfigError(f"fill={self.fill} must be a grey value from 0 to 255")

    @property
    def channels(self) -> int:
        """Channels of the model's input; 1 is grey."""
        return len(self.mean)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


ImageFormat = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff", "npy", "dicom"]
JpegDecoder = Literal["auto", "pillow", "simplejpeg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Limits that are checked before an image is decoded.

    `formats` are the accepted formats, recognised by the file's content, not by its name.
    `max_pixels` limits height x width in the image's header; `max_memory` limits the bytes that decoding so many pixels of that
    format takes: WebP and PNG need several copies. A file of few bytes may take a quarter of it.
    `jpeg_decoder`: `auto` uses simplejpeg if it is installed, else Pillow. Both are libjpeg-turbo with the same settings and give
    the same bits (a test checks it), so only the speed differs. Use `pillow` to match a Pillow that was built with another
    JPEG library.
    """

    formats: tuple[ImageFormat, ...] = ("jpeg", "png", "webp", "bmp", "gif", "tiff", "npy", "dicom")
    max_pixels: int = 89_478_485  # a quarter of a GiB in three channels: above this Pillow warns
    max_memory: int = 2**30
    jpeg_decoder: JpegDecoder = "auto"

    def __post_init__(self) -> None:
        for word in self.formats:
            choice("formats", word, ImageFormat)
        if not self.formats:
            raise ConfigError("formats is empty, so no image is accepted")
        for field in ("max_pixels", "max_memory"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field}={value!r} must be a whole number")
            at_least(field, value, 1)
        choice("jpeg_decoder", self.jpeg_decoder, JpegDecoder)


Split = Literal["train", "val", "train+val", "test", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How splits are made of data that does not declare them.

    `val` is the fraction of the training images that is held out as `val` if the data has no such split; `test` is the fraction
    that is held out as `test` if the data declares no split at all. Both are from 0 to below 1. With 0 the split does not exist,
    so `val=0` trains on all training images.

    The split of an image depends on the hash of its content: as a number in [0, 1), the hash is below `test`, below
    `test + val`, or above. So new images do not move others, and copies of an image are in one split. Every class has at least
    one image in each split: if it would have none, the image with the next lowest hash is taken. In such a small class, new
    images may move one image per split.
    """

    val: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        fraction("val", self.val)
        fraction("test", self.test)
        if self.val + self.test >= 1:
            raise ConfigError(f"val={self.val} and test={self.test} leave nothing to train on: their sum must be below 1")


Crop = Literal["inception", "random", "pad", "squash"]
EraseFill = Literal["grey", "noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """Augmentation of training images. Every random choice comes from the sample's own generator.

    `image_size` is (height, width) of the result in pixels.
    `crop`: `inception` crops a random box of `area` (fraction of the image) and `aspect` (width / height) and scales it to
    `image_size`; `random` scales the image to `resize_to` x `resize_to` and crops `image_size`; `pad` scales the image to
    `image_size`, adds `padding` pixels of `fill` on each side and crops `image_size` (the usual crop for CIFAR); `squash` only
    scales.
    `interpolation`: `bilinear` and `bicubic` with antialiasing, or `tf-bilinear`, the official code's, without.
    `flip` is the probability of a horizontal flip.
    `randaugment` is (layers, magnitude): the number of operations, drawn from sixteen, and their magnitude on the scale where 10
    ends the range that AutoAugment searched; larger values, such as AugReg's 15 and 20, extrapolate linearly as far as the
    operation allows. None is no RandAugment.
    `brightness`, `contrast`, `saturation` (each >= 0) and `hue` (0 to 0.5 of a turn) are the widths of the colour jitter.
    `erase` is the probability of erasing one box of `erase_area` (fraction of the image) and `erase_aspect` (height / width),
    filled with `grey` (`fill`) or with `noise`.
    `mixup` and `cutmix` are the alphas of the Beta distribution of the mixing weight, 0 for none; if both are set, each batch
    takes one of them with equal probability.
    `fill` is the grey value, 0 to 255, of pixels that a shift or rotation leaves empty.
    """

    image_size: tuple[int, int] = (224, 224)
    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    resize_to: int = 256
    padding: int = 4
    interpolation: Interpolation = "bilinear"
    flip: float = 0.5
    randaugment: tuple[int, float] | None = None
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    erase: float = 0.0
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    erase_aspect: tuple[float, float] = (0.3, 1 / 0.3)
    erase_fill: EraseFill = "noise"
    mixup: float = 0.0
    cutmix: float = 0.0
    fill: int = 128

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("crop", self.crop, Crop)
        choice("interpolation", self.interpolation, Interpolation)
        choice("erase_fill", self.erase_fill, EraseFill)
        _interval("area", self.area, most=1.0)
        _interval("aspect", self.aspect)
        _interval("erase_area", self.erase_area, most=1.0)
        _interval("erase_aspect", self.erase_aspect)
        for field in ("flip", "erase"):
            _within(field, getattr(self, field), 1.0)
        for field in ("brightness", "contrast", "saturation", "mixup", "cutmix"):
            _within(field, getattr(self, field), math.inf)
        _within("hue", self.hue, 0.5)
        at_least("padding", self.padding, 0)
        if self.crop == "random" and self.resize_to < max(self.image_size):
            raise ConfigError(
                f"resize_to={self.resize_to} is smaller than the crop {self.image_size[0]}x{self.image_size[1]}",
                hint="make resize_to at least the longer side of image_size",
            )
        if self.randaugment is not None:
            _randaugment(self.randaugment)
        if not 0 <= self.fill <= 255:
            raise ConfigError(f"fill={self.fill} must be a grey value from 0 to 255")

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed and need soft targets."""
        return self.mixup > 0 or self.cutmix > 0


def _interval(field: str, value: Sequence[float], *, most: float = math.inf) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= most or math.isinf(value[1]):
        limit = "" if math.isinf(most) else f", at most {most:g}"
        raise ConfigError(f"{field}={value} must be two numbers above 0{limit}, the smaller first")


def _within(field: str, value: float, most: float) -> None:
    if not 0 <= value <= most or math.isinf(value):
        raise ConfigError(
            f"{field}={value} must be from 0 to {most:g}" if most < math.inf else f"{field}={value} must be 0 or more"
        )


def _randaugment(value: Sequence[float]) -> None:
    if len(value) != 2 or isinstance(value[0], bool) or not isinstance(value[0], int) or value[0] < 1:
        raise ConfigError(f"randaugment={value} must be (layers, magnitude): a whole number of at least 1, and a number")
    if not 0 <= value[1] <= 30:
        raise ConfigError(f"randaugment={value}: the magnitude must be from 0 to 30", hint="10 is the end of the usual scale")


# "How to train your ViT?" (Steiner et al., 2021), sec. 3.4: RandAugment (layers, magnitude) and Mixup alpha.
AUGREG: dict[str, Augment] = {
    "none": Augment(),
    "light1": Augment(randaugment=(2, 0)),
    "light2": Augment(randaugment=(2, 10), mixup=0.2),
    "medium1": Augment(randaugment=(2, 15), mixup=0.2),
    "medium2": Augment(randaugment=(2, 15), mixup=0.5),
    "strong1": Augment(randaugment=(2, 20), mixup=0.5),
    "strong2": Augment(randaugment=(2, 20), mixup=0.8),
}


def augreg(name: str, *, image_size: int | tuple[int, int] = 224) -> Augment:
    """The AugReg preset of that name (`none`, `light1` ... `strong2`) for images of `image_size`."""
    if name not in AUGREG:
        hint = did_you_mean(name, list(AUGREG)) or f"presets are {', '.join(AUGREG)}"
        raise ConfigError(f"no augmentation preset called {name!r}", hint=hint)
    return replace(AUGREG[name], image_size=pair("image_size", image_size))


WorkerKind = Literal["process", "thread"]
CorruptPolicy = Literal["skip", "fail"]
CachePolicy = Literal["auto", "none", "memory", "disk"]

_WORD = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """The loader. The settings under "How" change the speed and not a bit of the batches.

    What:
    `batch_size` is the number of images of one step over all ranks, so that results do not depend on the number of ranks.
    `seed`, from 0 to 2^64 - 1, determines the order of every epoch and the augmentation of every image.
    `repeats` puts each image that many times into a batch, each time with another augmentation (Hoffer et al. 2020); an epoch is
    then `repeats` times as long.
    `balance` in [0, 1] balances rare classes by drawing with replacement: 0 takes every image once per epoch, 1 draws all classes
    equally often, 0.5 by the square root of their sizes. `class_weights` multiplies this by a number for each class; it also
    draws with replacement.
    `corrupt` is the policy for images that cannot be read: `fail` stops at the first; `skip` reports it and, in training,
    replaces it by another. `corrupt_budget` is the fraction of the images that may be skipped before `skip` stops too.

    How:
    `workers` read and augment images in advance; 0 does it in the caller. `worker_kind`: `process` (faster, shares nothing) or
    `thread` (starts at once, takes transforms and datasets that cannot be pickled).
    `prefetch` is the largest number of batches in advance. `timeout` is the number of seconds that one image may take.
    `cache` caches decoded images: in `memory`, on `disk` in `cache_folder` (None: the user's cache folder), `none`, or `auto`:
    by their size, and only if it changes no pixel.
    """

    batch_size: int = 512
    seed: int = 0
    repeats: int = 1
    balance: float = 0.0
    class_weights: tuple[float, ...] | None = None
    corrupt: CorruptPolicy = "fail"
    corrupt_budget: float = 0.01
    workers: int = 2
    worker_kind: WorkerKind = "process"
    prefetch: int = 2
    timeout: float = 60.0
    cache: CachePolicy = "auto"
    cache_folder: str | None = None

    def __post_init__(self) -> None:
        for field in ("batch_size", "seed", "repeats", "workers", "prefetch"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field}={value!r} must be a whole number")
        at_least("batch_size", self.batch_size, 1)
        at_least("repeats", self.repeats, 1)
        at_least("workers", self.workers, 0)
        at_least("prefetch", self.prefetch, 1)
        if not 0 <= self.seed < _WORD:
            raise ConfigError(f"seed={self.seed} must be from 0 to 2^64 - 1")
        if self.batch_size % self.repeats:
            raise ConfigError(
                f"batch_size={self.batch_size} is not a multiple of repeats={self.repeats}",
                hint="the repeats of an image are in one batch",
            )
        if not 0 <= self.balance <= 1:
            raise ConfigError(f"balance={self.balance} must be from 0 (every image once) to 1 (all classes equally often)")
        if self.class_weights is not None:
            _refuse_bad_weights(self.class_weights)
        choice("corrupt", self.corrupt, CorruptPolicy)
        choice("worker_kind", self.worker_kind, WorkerKind)
        choice("cache", self.cache, CachePolicy)
        fraction("corrupt_budget", self.corrupt_budget)
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ConfigError(f"timeout={self.timeout} must be a positive number of seconds")
        if self.cache_folder == "":
            raise ConfigError("cache_folder is empty", hint="use None for the user's cache folder")

    @property
    def weighted(self) -> bool:
        """Whether images are drawn with replacement, instead of each once per epoch."""
        return self.balance > 0 or self.class_weights is not None


def _refuse_bad_weights(weights: tuple[float, ...]) -> None:
    if not weights or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ConfigError(f"class_weights={weights} must be one finite number of at least 0 for each class")
    if not any(weights):
        raise ConfigError("class_weights are all 0, so no image can be drawn")


SyntheticKind = Literal["contours", "fractals", "strokes", "mixed"]

_LARGEST_SEED = 2**63 - 1
_SMALLEST_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticConfig:
    """A synthetic dataset: labelled images that are drawn from formulas, without download, licence or end.

    `kind`: `contours` are rings bent by two sinusoids (Visual Atoms), `fractals` are iterated function systems (FractalDB),
    `strokes` are pen strokes like those of an unknown script, `mixed` takes the three in turn: its class 3k + j is class k of
    the j-th.
    `classes` is the number of formulas; class k has the same formula for any number of classes.
    `samples_per_class` is the number of images of each class, starting with number `first`. Two datasets of the same seed whose
    ranges do not overlap share classes and no image, which is how a test set is made.
    `image_size` is (height, width) in pixels, each at least 8; `channels` is 1 (grey) or 3 (colour).
    `variety`, from 0 to 1, scales all variation within a class (position, scale, rotation, deformation, pen, sharpness, light,
    noise); with 0 all images of a class are equal.
    `seed` chooses the formulas and the samples.
    """

    kind: SyntheticKind = "mixed"
    classes: int = 300
    samples_per_class: int = 1000
    first: int = 0
    image_size: tuple[int, int] = (32, 32)
    channels: Literal[1, 3] = 1
    variety: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("kind", self.kind, SyntheticKind)
        for field, value, least in (
            ("classes", self.classes, 1),
            ("samples_per_class", self.samples_per_class, 1),
            ("first", self.first, 0),
            ("seed", self.seed, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field}={value!r} must be a whole number")
            at_least(field, value, least)
            if value > _LARGEST_SEED:
                raise ConfigError(f"{field}={value} must be below 2^63")
        if min(self.image_size) < _SMALLEST_SIDE:
            height, width = self.image_size
            raise ConfigError(f"image_size={height}x{width} is too small: each side must be at least {_SMALLEST_SIDE}")
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise ConfigError(f"channels={self.channels!r} must be 1 (grey) or 3 (colour)")
        if not 0 <= self.variety <= 1:
            raise ConfigError(f"variety={self.variety} must be from 0 to 1")


def named_classes(config: ModelConfig) -> int:
    """How many classes have a label: those of the head, or of a detector without "no object"."""
    return config.detection_classes - 1 if isinstance(config, ViTConfig) and config.detection_classes else config.num_classes


def is_detector(config: ModelConfig) -> bool:
    """Whether the model gives boxes."""
    return task_of(config) == "detect"


def why_not_packed(config: ModelConfig) -> str | None:
    """The reason why images of different shapes cannot be packed for this model, or None if they can."""
    if not isinstance(config, ViTConfig):
        return f"{config.title} takes whole images, not a sequence of patches"
    if config.before is not None:
        return "its stem needs whole images"
    if config.attention != "global" or config.position.kind == "relative":
        return "its attention needs a grid of one shape"
    if config.parallel == "branches" or config.detection_classes:
        return "parallel branches and detection tokens are not packed"
    if config.patch_size[0] * config.patch_size[1] * config.channels < _LEAST_NUMBERS:
        return "its patches are smaller than four numbers"
    if config.grid[0] * config.grid[1] > _MOST_PACKED:
        return f"its image size has more than {_MOST_PACKED:,} patches"
    return None


def takes_one_size(config: ModelConfig) -> bool:
    """Whether the model accepts only images of its `image_size`."""
    return isinstance(config, ViTConfig) and not config.dynamic_size


def feeding(preprocess: Preprocess, config: ModelConfig, *, resized: bool = False) -> tuple[Preprocess, tuple[str, ...]]:
    """Preprocessing that fits the model's input, and notes about what was changed.

    `resized` sets the model's image size even if the model accepts others.
    """
    notes: list[str] = []
    if preprocess.image_size != config.image_size and (resized or takes_one_size(config)):
        preprocess = _resized(preprocess, config.image_size)
        size = f"{config.image_size[0]}x{config.image_size[1]}"
        crop = f", cropped from a short side of {preprocess.resize_to}" if preprocess.resize == "short-side" else ""
        notes.append(f"preprocessing makes images of {size} pixels{crop}")
    if preprocess.channels != config.channels:
        preprocess = _rechannelled(preprocess, config.channels)
        notes.append(f"preprocessing normalises {config.channels} channels with mean {preprocess.mean}, std {preprocess.std}")
    return preprocess, tuple(notes)


def with_resize(preprocess: Preprocess, resize: Resize) -> Preprocess:
    """The preprocessing with another way to reach its image size; `short-side` crops as much of the short side as it has to."""
    if resize == "short-side" and preprocess.resize != "short-side":
        return replace(preprocess, resize=resize, resize_to=max(preprocess.resize_to, *preprocess.image_size))
    return replace(preprocess, resize=resize)


def _resized(preprocess: Preprocess, image_size: tuple[int, int]) -> Preprocess:
    """The same fraction of the image cropped, at another size."""
    if preprocess.resize != "short-side":
        return replace(preprocess, image_size=image_size)
    scaled = round(preprocess.resize_to * max(image_size) / max(preprocess.image_size))
    return replace(preprocess, image_size=image_size, resize_to=max(scaled, *image_size))


def _rechannelled(preprocess: Preprocess, channels: int) -> Preprocess:
    """Mean and std for other channels, as `fit` makes the kernels: their average; RGB beside a fourth channel keeps its own."""

    def spread(values: tuple[float, ...]) -> tuple[float, ...]:
        average = sum(values) / len(values)
        return (*values, average) if (len(values), channels) == (3, 4) else (average,) * channels

    return replace(preprocess, mean=spread(preprocess.mean), std=spread(preprocess.std))


OnBroken = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackConfig:
    """Tar shards in the WebDataset layout.

    `name` is the start of the name of every shard, before the split and the number; it may be None.
    `shard_bytes` is the largest size of a shard (one that holds a single image may be larger).
    `max_side`: images with a longer side are scaled down and encoded again, JPEG and WebP with `quality` (1 to 100), others as
    PNG; smaller images, or all images with None, are copied unchanged.
    `shuffle` is the seed of a random order within each split, for readers that cannot shuffle well; None keeps the order.
    `broken`: if an image cannot be read, `fail`, or `skip` it and report it.
    """

    name: str | None = None
    shard_bytes: int = 256 * 2**20
    max_side: int | None = None
    quality: int = 95
    shuffle: int | None = None
    broken: OnBroken = "fail"

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", self.name):
            raise ConfigError(f"name={self.name!r} must be up to 64 letters, digits, - and _, starting with a letter or digit")
        if self.name is not None and re.search(
            r"(^|[-_])(train|training|val|valid|validation|dev|test|testing)([-_]|$)", self.name
        ):
            raise ConfigError(f"name={self.name!r} contains the name of a split, which shards are named after")
        at_least("shard_bytes", self.shard_bytes, 2**16)
        if self.max_side is not None:
            at_least("max_side", self.max_side, 8)
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality={self.quality} must be from 1 to 100")
        if self.shuffle is not None:
            at_least("shuffle", self.shuffle, 0)
        choice("broken", self.broken, OnBroken)
