"""A whole run as one value: the model, what it starts from, its data and its training. Written to `run.json`, and read back."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, Preprocess, Split, SplitRule
from vitlab.config.model import ModelConfig, ViTConfig
from vitlab.config.train import TrainConfig, scaled
from vitlab.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Which images a run learns from and is judged by.

    `source` is spelled as on the command line: a path, `digits`, `generated`, `cifar10:/path`. `train_split` is learned from;
    `evaluate_split` is looked at while training (None for nothing); `rule` makes the parts where the data declares none.
    """

    dataset: str
    train_split: Split = "train"
    evaluate_split: Split | None = "val"
    rule: SplitRule = field(default_factory=SplitRule)
    augment: Augment = field(default_factory=Augment)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    limits: DecodeLimits = field(default_factory=DecodeLimits)

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("data.source is empty", hint="a folder, digits, generated, or cifar10:/path")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A run. `start` is the checkpoint whose weights it begins with, fitted to `model`, or None for random values.

    `preprocess` is how images are fed in evaluation; its `image_size` and channels, the augmentation's and the model's agree.
    """

    name: str
    model: ModelConfig
    data: RunData
    train: TrainConfig
    preprocess: Preprocess = field(default_factory=Preprocess)
    start: str | None = None

    def __post_init__(self) -> None:
        sizes = {
            "model": self.model.image_size,
            "data.augment": self.data.augment.image_size,
            "preprocess": self.preprocess.image_size,
        }
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{part} {height}x{width}" for part, (height, width) in sizes.items())
            raise ConfigError(f"image_size differs: {said}", hint="set all three to what the model sees")
        if self.preprocess.channels != self.model.channels:
            raise ConfigError(f"the model takes {self.model.channels} channels and preprocess gives {self.preprocess.channels}")
        self._check_growth()

    def _check_growth(self) -> None:
        """Smaller images must be whole patches too, and leave attention and positions their meaning."""
        model = self.model
        if not self.train.growth or not isinstance(model, ViTConfig):
            return
        if model.position.kind == "relative":
            raise ConfigError("train.growth needs positions that can be interpolated, and relative ones cannot")
        for _, scale in self.train.growth:
            height, width = scaled(model.image_size, scale)
            if not model.pad and (height % model.step[0] or width % model.step[1]):
                raise ConfigError(
                    f"train.growth: at scale {scale:g} images are {height}x{width},"
                    f" not a multiple of the patch {model.step[0]}x{model.step[1]}"
                )
