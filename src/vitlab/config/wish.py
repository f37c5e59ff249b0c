"""What a recipe is told: the pictures, the checkpoint to begin with, the machine, and what the user wants otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitlab.config.check import at_least, pair
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.source import SplitRule
from vitlab.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """A set of pictures as far as a recipe cares.

    `source` is spelled as on the command line. `pictures` counts those that are learned from, `classes` is 0 where there are no
    labels. `channels` is 1 for grey and 3 for colour; `side` the usual shorter side in pixels. `imbalance` is the size of the
    largest class over that of the smallest. `parts` are those that exist, declared or made: some of train, val, test.
    """

    source: str
    pictures: int
    classes: int
    channels: int = 3
    side: int = 256
    multi_label: bool = False
    imbalance: float = 1.0
    parts: tuple[str, ...] = ("train", "val", "test")

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError("data.source is empty", hint="a folder, digits, generated, or cifar10:/path")
        for name in ("pictures", "channels", "side"):
            at_least(f"data.{name}", getattr(self, name), 1)
        at_least("data.classes", self.classes, 0)
        at_least("data.imbalance", self.imbalance, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The checkpoint that a run begins with: where it is, what model it holds and how that is fed."""

    path: str
    model: ModelConfig
    preprocess: Preprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the run has at hand: processor cores, and whether there is an accelerator beside them."""

    cores: int = 2
    accelerator: bool = False

    def __post_init__(self) -> None:
        at_least("machine.cores", self.cores, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a recipe shall be made for. None leaves a thing to the recipe, whose rules then scale what depends on it.

    `model` is a variant's name or a whole config. `image_size` is (height, width) in pixels. `batch_size` scales the learning rate
    by the rule of `scale.py`, unless `lr`, the peak, is given too. A run's length is `steps` or `epochs`, not both.
    `preset` names AugReg's augmentation (`none`, `light1` ... `strong2`). `rule` makes the parts that the data does not declare.
    """

    data: DataFacts | None = None
    start: StartFacts | None = None
    machine: Machine = field(default_factory=Machine)
    model: str | ModelConfig | None = None
    image_size: tuple[int, int] | None = None
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    lr: float | None = None
    preset: str | None = None
    rule: SplitRule | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.image_size is not None:
            object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("batch_size", "steps"):
            if (value := getattr(self, name)) is not None:
                at_least(name, value, 1)
        for name in ("epochs", "lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} must be a positive number")
        at_least("seed", self.seed, 0)
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(f"steps={self.steps} and epochs={self.epochs} both say how long the run is", hint="give one of them")
