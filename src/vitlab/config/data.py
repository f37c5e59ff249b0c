"""How images are fed: the one value that evaluation, prediction, export and serving share, saved in every checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vitlab.config.model import ModelConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, at_least, choice, did_you_mean, fraction, pair

Resize = Literal["short-side", "squash", "pad"]
Interpolation = Literal["bilinear", "bicubic", "tf-bilinear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """From a decoded image to the model's input, in evaluation.

    `image_size` is (height, width) in pixels of what the model sees.
    `resize`: `short-side` scales the shorter side to `resize_to` pixels (keeping the aspect ratio, the longer side rounded)
    and crops the centre; `squash` scales to `image_size` whatever the aspect; `pad` scales to fit inside and fills with `fill`.
    `interpolation`: `bilinear` and `bicubic` are Pillow's, with antialiasing; `tf-bilinear` is the official code's
    `tf.image.resize`, without.
    `mean` and `std` are per channel on the scale where white is 1; (0.5, 0.5) gives the official [-1, 1].
    """

    image_size: tuple[int, int] = (224, 224)
    resize: Resize = "short-side"
    resize_to: int = 256
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    fill: int = 127

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        choice("resize", self.resize, Resize)
        choice("interpolation", self.interpolation, Interpolation)
        if self.resize == "short-side":
            at_least("resize_to", self.resize_to, 1)
            if self.resize_to < max(self.image_size):
                raise ConfigError(
                    f"resize_to={self.resize_to} is smaller than the crop {self.image_size[0]}x{self.image_size[1]}",
                    hint="make resize_to at least the longer side of image_size",
                )
        if len(self.mean) != len(self.std) or not self.mean:
            raise ConfigError(f"mean has {len(self.mean)} channels and std has {len(self.std)}: they must agree")
        if min(self.std) <= 0:
            raise ConfigError(f"std={self.std} must be positive")
        if not 0 <= self.fill <= 255:
            raise ConfigError(f"fill={self.fill} must be a grey value from 0 to 255")

    @property
    def channels(self) -> int:
        """Channels the model sees; 1 means grey."""
        return len(self.mean)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


# What the image gate lets through: which formats, how large, and which library reads JPEG.

ImageFormat = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff"]
JpegDecoder = Literal["auto", "pillow", "simplejpeg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """The limits an image must keep before a single pixel of it is decoded.

    `formats` are the ones accepted, told by the file's content and never by its name; `tiff` is known and off by default.
    `max_pixels` is height x width as the header states it.
    `jpeg_decoder`: `auto` takes simplejpeg where it is installed and Pillow where not. Both are libjpeg-turbo with the same
    settings and give the same bits (a test holds it on the installed pair), so this changes speed only. Name one of the two
    to be sure which library runs: `pillow` where Pillow was built on another JPEG library and must be matched.
    """

    formats: tuple[ImageFormat, ...] = ("jpeg", "png", "webp", "bmp", "gif")
    max_pixels: int = 89_478_485  # a quarter of a GiB in three channels: Pillow's own line, past which it would warn
    jpeg_decoder: JpegDecoder = "auto"

    def __post_init__(self) -> None:
        for word in self.formats:
            choice("formats", word, ImageFormat)
        if not self.formats:
            raise ConfigError("formats is empty: no image could pass")
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int):
            raise ConfigError(f"max_pixels={self.max_pixels!r} must be a whole number")
        at_least("max_pixels", self.max_pixels, 1)
        choice("jpeg_decoder", self.jpeg_decoder, JpegDecoder)


# Where images come from: which part of them is asked for, how parts are made, and what an archive may hold.

Split = Literal["train", "val", "train+val", "test", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How parts are made of data that does not declare them.

    `val` is the share of the training images held out as `val` where the data has no such part of its own; `test` is the
    share held out as `test` where the data declares no part at all. Both are at least 0 and below 1 and leave something to
    train on; at 0 the part does not exist, so `val=0` trains on every training image.

    An image's part depends on the hash of its own content: the hash as a number in [0, 1) is below `test`, below
    `test + val`, or above. Adding images moves no other, and copies of an image stay together. Every class has at least one
    image in each part: where chance gave it none, the image with the next lowest hash is taken, so that in such a
    small class one image a part may move when images are added.
    """

    val: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        fraction("val", self.val)
        fraction("test", self.test)
        if self.val + self.test >= 1:
            raise ConfigError(f"val={self.val} and test={self.test} leave nothing to train on: together they must be below 1")


# What training does to an image: crop, flip, distortions, the mixing of two; and AugReg's presets by name.

Crop = Literal["inception", "random", "pad", "squash"]
EraseFill = Literal["grey", "noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """From an image to one training view of it; every random choice comes from the sample's own generator.

    `image_size` is (height, width) in pixels of the view.
    `crop`: `inception` cuts a box of `area` (share of the image) and `aspect` (width / height) and scales it to `image_size`;
    `random` scales the whole image to `resize_to` x `resize_to` and cuts `image_size` out of it; `pad` scales the whole
    image to `image_size`, adds `padding` pixels of `fill` on each side and cuts `image_size` out of that (CIFAR's crop);
    `squash` only scales.
    `interpolation`: `bilinear` and `bicubic` with antialiasing, or `tf-bilinear`, the official code's, without.
    `flip` is the probability of mirroring left and right.
    `randaugment` is (layers, magnitude): that many operations drawn from sixteen, one after the other, magnitude on the scale
    where 10 is the end of the range that AutoAugment searched; past it, as in AugReg's 15 and 20, it goes on in a straight line
    as far as the operation allows. None is no RandAugment.
    `brightness`, `contrast`, `saturation` (each >= 0) and `hue` (0 to 0.5 of a turn) are the widths of the colour jitter.
    `erase` is the probability of erasing one box of `erase_area` (share of the view) and `erase_aspect` (height / width),
    filled with `grey` (`fill`) or with `noise`.
    `mixup` and `cutmix` are the alphas of the Beta distribution of the mixing weight, 0 for none; when both are given, each
    batch takes one or the other with equal chance.
    `fill` is the grey value, 0 to 255, of pixels that a shift or a turn leaves empty.
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
        """Whether batches are mixed, and so need soft targets."""
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
    """The AugReg preset of that name (`none`, `light1` ... `strong2`) for views of `image_size`."""
    if name not in AUGREG:
        hint = did_you_mean(name, list(AUGREG))
        raise ConfigError(f"no augmentation called {name!r}: there are {', '.join(AUGREG)}", hint=hint)
    return replace(AUGREG[name], image_size=pair("image_size", image_size))


# How images become batches: how many at once, in which order, by whom, and what happens when one cannot be read.

WorkerKind = Literal["process", "thread"]
CorruptPolicy = Literal["skip", "fail"]
CachePolicy = Literal["auto", "none", "memory", "disk"]

_WORD = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """The loader. Nothing below the line "how" changes a single bit of what comes out.

    What:
    `batch_size` counts the images of one step over all ranks together, so results do not depend on how many there are.
    `seed`, from 0 to 2^64 - 1, decides the order of every epoch and the randomness of every image.
    `repeats` shows each image that many times within a batch, each time with another augmentation (Hoffer et al. 2020);
    an epoch is then `repeats` times as long.
    `balance` in [0, 1] evens out rare classes by drawing with replacement: 0 takes every image once an epoch, 1 draws every
    class equally often, 0.5 by the square root of its size. `class_weights` multiplies that by a number of your own for each
    class; given at all, it also means drawing with replacement.
    `corrupt` is for images that cannot be read: `fail` stops at the first; `skip` names and counts it, and in training puts
    another in its place. `corrupt_budget` is the share of the images that may be skipped before `skip` stops too.

    How:
    `workers` read and augment ahead; 0 does it in the caller. `worker_kind`: a `process` each (faster, shares nothing), or a
    `thread` each (starts at once, takes views and sources that cannot be pickled).
    `prefetch` batches are at most ready ahead. `timeout` is how many seconds one image may take a worker.
    `cache` keeps decoded images: in `memory`, on `disk` under `cache_folder` (None: the user's cache folder), `none`, or
    `auto`: by size, and only where it changes no pixel.
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
                hint="the repeats of an image stand in one batch",
            )
        if not 0 <= self.balance <= 1:
            raise ConfigError(f"balance={self.balance} must be from 0 (every image once) to 1 (every class equally often)")
        if self.class_weights is not None:
            _refuse_bad_weights(self.class_weights)
        choice("corrupt", self.corrupt, CorruptPolicy)
        choice("worker_kind", self.worker_kind, WorkerKind)
        choice("cache", self.cache, CachePolicy)
        fraction("corrupt_budget", self.corrupt_budget)
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ConfigError(f"timeout={self.timeout} must be a positive number of seconds")
        if self.cache_folder == "":
            raise ConfigError("cache_folder is empty", hint="leave it out for the user's cache folder")

    @property
    def weighted(self) -> bool:
        """Whether images are drawn with replacement, rather than each once an epoch."""
        return self.balance > 0 or self.class_weights is not None


def _refuse_bad_weights(weights: tuple[float, ...]) -> None:
    if not weights or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ConfigError(f"class_weights={weights} must be one finite number of at least 0 for each class")
    if not any(weights):
        raise ConfigError("class_weights are all 0: no image could be drawn")


# The generated pre-training set: which formulas, how many classes, how large the images.

SyntheticKind = Literal["contours", "fractals", "strokes", "mixed"]

_LARGEST_SEED = 2**63 - 1
_SMALLEST_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticConfig:
    """A labelled set of images drawn from formulas: no download, no licence, no end.

    `kind`: `contours` are rings bent by two sinusoids (Visual Atoms), `fractals` are iterated function systems
    (FractalDB), `strokes` are pen strokes like those of an unknown script, `mixed` takes the three in turn:
    its class 3k + j is class k of the j-th.
    `classes` is how many formulas; class k is the same formula whatever the number of classes.
    `samples_per_class` is the number of images of each class, the first of them number `first`: two sets of the same seed whose
    ranges do not meet share classes and no image, which is how a test set is made.
    `image_size` is (height, width) in pixels, each at least 8; `channels` is 1 (grey) or 3 (colour).
    `variety`, from 0 to 1, scales everything a sample does to its class (position, scale, rotation, deformation, pen,
    sharpness, light, noise): at 0 all the images of a class are the same.
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
            raise ConfigError(f"image_size={height}x{width} is too small for a shape: each side must be at least {_SMALLEST_SIDE}")
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise ConfigError(f"channels={self.channels!r} must be 1 (grey) or 3 (colour)")
        if not 0 <= self.variety <= 1:
            raise ConfigError(f"variety={self.variety} must be from 0 to 1")


# Preprocessing made for a model: of the size and channels it takes, and else as its file says.


def takes_one_size(config: ModelConfig) -> bool:
    """Whether the model refuses images of another size than its `image_size`."""
    return isinstance(config, ViTConfig) and not config.dynamic_size


def feeding(preprocess: Preprocess, config: ModelConfig, *, resized: bool = False) -> tuple[Preprocess, tuple[str, ...]]:
    """Preprocessing that gives what the model takes, and notes of what had to be changed in it.

    `resized` asks for the model's image size also where the model would take others.
    """
    notes: list[str] = []
    if preprocess.image_size != config.image_size and (resized or takes_one_size(config)):
        preprocess = _resized(preprocess, config.image_size)
        size = f"{config.image_size[0]}x{config.image_size[1]}"
        crop = f", cut from a short side of {preprocess.resize_to}" if preprocess.resize == "short-side" else ""
        notes.append(f"preprocessing makes images of {size} pixels{crop}")
    if preprocess.channels != config.channels:
        preprocess = _rechannelled(preprocess, config.channels)
        notes.append(f"preprocessing normalises {config.channels} channels with mean {preprocess.mean}, std {preprocess.std}")
    return preprocess, tuple(notes)


def _resized(preprocess: Preprocess, image_size: tuple[int, int]) -> Preprocess:
    """The same share of the image cut out, at another size."""
    if preprocess.resize != "short-side":
        return replace(preprocess, image_size=image_size)
    scaled = round(preprocess.resize_to * max(image_size) / max(preprocess.image_size))
    return replace(preprocess, image_size=image_size, resize_to=max(scaled, *image_size))


def _rechannelled(preprocess: Preprocess, channels: int) -> Preprocess:
    """Mean and std for the channels as `fit` makes them: fewer share the average of the old, more repeat the old in turn."""

    def spread(values: tuple[float, ...]) -> tuple[float, ...]:
        if channels < len(values):
            return (sum(values) / len(values),) * channels
        return tuple(values[channel % len(values)] for channel in range(channels))

    return replace(preprocess, mean=spread(preprocess.mean), std=spread(preprocess.std))


# How images are packed into tar shards.

OnBroken = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackConfig:
    """Shards of images in the WebDataset layout.

    `name` begins the name of every shard, before the part and the number; None leaves it out.
    `shard_bytes` is how large a shard may become (one that holds a single image may be larger).
    `max_side`: images whose longer side has more pixels are made smaller and encoded again, JPEG and WebP at `quality` (1 to
    100), others as PNG; None, and every smaller image, keeps the bytes it has.
    `shuffle` is the seed of the order within each part, for readers that cannot shuffle well; None keeps the order.
    `broken`: at an image that cannot be read, `fail`, or `skip` it and say so.
    """

    name: str | None = None
    shard_bytes: int = 256 * 2**20
    max_side: int | None = None
    quality: int = 95
    shuffle: int | None = None
    broken: OnBroken = "fail"

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", self.name):
            raise ConfigError(f"name={self.name!r} must be up to 64 letters, digits, - and _, beginning with a letter or digit")
        if self.name is not None and re.search(
            r"(^|[-_])(train|training|val|valid|validation|dev|test|testing)([-_]|$)", self.name
        ):
            raise ConfigError(f"name={self.name!r} holds the name of a part, by which shards are told apart")
        at_least("shard_bytes", self.shard_bytes, 2**16)
        if self.max_side is not None:
            at_least("max_side", self.max_side, 8)
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality={self.quality} must be from 1 to 100")
        if self.shuffle is not None:
            at_least("shuffle", self.shuffle, 0)
        choice("broken", self.broken, OnBroken)
