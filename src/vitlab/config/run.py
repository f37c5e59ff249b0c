"""A complete run as one value: the model, its initial weights, its data and its training. Stored as `run.json`."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, Preprocess, Split, SplitRule, why_not_packed
from vitlab.config.model import ModelConfig, Task, flexible_vit, task_of
from vitlab.config.renamed import current_dataset
from vitlab.config.swin import SwinConfig
from vitlab.config.train import TrainConfig, common_size, scaled
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The images of a run.

    `dataset` is spelled as on the command line: a path, `digits`, `synthetic`, `cifar10:/path`. The run trains on `train_split` and
    evaluates on `evaluate_split` (None for no evaluation), or on `evaluate_images` of its images, drawn by the seed (0 for all).
    `rule` makes the splits if the dataset has none.
    """

    dataset: str
    train_split: Split = "train"
    evaluate_split: Split | None = "val"
    evaluate_images: int = 0
    rule: SplitRule = field(default_factory=SplitRule)
    augment: Augment = field(default_factory=Augment)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    limits: DecodeLimits = field(default_factory=DecodeLimits)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", current_dataset(self.dataset))
        if not self.dataset:
            raise ConfigError("data.dataset is empty", hint="a folder, digits, synthetic, or cifar10:/path")


def can_keep_classes(model: ModelConfig) -> bool:
    """Whether a model that starts from a checkpoint can learn without forgetting (`TrainConfig.lwf`): a ViT with one head can."""
    return isinstance(model, ViTConfig) and not model.distill_token and not model.detection_classes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A run. `start` is the checkpoint whose weights it starts from, fitted to `model`; None trains from scratch.

    `preprocess` prepares images for evaluation. Its `image_size` and channels must be those of the augmentation and the model.
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
            raise ConfigError(f"image_size differs: {said}", hint="give all three the same image size")
        if self.preprocess.channels != self.model.channels:
            raise ConfigError(f"the model takes {self.model.channels} channels and preprocess gives {self.preprocess.channels}")
        if self.train.head == "fitted" and self.start is None:
            raise ConfigError(
                "train.head='fitted' needs features, and the run starts from scratch", hint="give a checkpoint with `start`"
            )
        if self.task != "classify":
            self._check_dense("segmentation" if self.task == "segment" else "detection")
        if self.train.dice and self.task != "segment":
            raise ConfigError("train.dice is the loss of segmentation, and this model has another task", hint="task='segment'")
        if self.train.lwf and (self.start is None or not can_keep_classes(self.model)):
            raise ConfigError(
                "train.lwf keeps the classes of a start checkpoint: it needs one, and a ViT with one head", hint="train.lwf=0"
            )
        self._check_lora()
        self._check_resizing()
        self._check_patch_sizes()
        if self.preprocess.resize == "native":
            self._check_native()

    @property
    def task(self) -> Task:
        """What the run is for, which its model decides: classify, segment or detect."""
        return task_of(self.model)

    def _check_dense(self, task: str) -> None:
        """Refuse what has no meaning for a class of each pixel or object."""
        train, augment, loader = self.train, self.data.augment, self.data.loader
        refused = {
            "data.augment.mixup and cutmix": augment.mixes,
            "data.augment.randaugment": augment.randaugment is not None,
            "data.augment.erase": augment.erase > 0,
            "data.loader.balance and class_weights": loader.weighted,
            "train.loss='sigmoid'": train.loss == "sigmoid",
            "train.head='fitted'": train.head == "fitted",
            "train.balanced_loss": train.balanced_loss,
            "train.distill": train.distill is not None,
            "train.lwf": train.lwf > 0,
            "train.masked": train.masked is not None,
            "train.lora": train.lora is not None,
            "train.progressive_resizing": bool(train.progressive_resizing),
            "train.patch_sizes": bool(train.patch_sizes) and self.task == "detect",
            "train.smoothing": train.smoothing > 0 and self.task == "detect",
            "preprocess.resize='native'": self.preprocess.resize == "native",
        }
        if found := [name for name, has in refused.items() if has]:
            raise ConfigError(f"{task} does not support {', '.join(found)}", hint="leave it out, or classify images")

    def _check_lora(self) -> None:
        """Updates of low rank need attention layers, and a rank that the layers can have."""
        lora, model = self.train.lora, self.model
        if lora is None:
            return
        if not isinstance(model, ViTConfig | SwinConfig):
            raise ConfigError(
                f"train.lora is for attention layers, and {model.title} has none",
                hint="leave lora out, or start from a ViT or Swin",
            )
        if lora.rank > model.width:
            raise ConfigError(
                f"train.lora.rank={lora.rank} must be at most the model's width, {model.width}", hint="4 to 16 is usual"
            )

    def _check_resizing(self) -> None:
        """Smaller images must have whole patches too, and positions that can be interpolated."""
        model = self.model
        if not self.train.progressive_resizing or not isinstance(model, ViTConfig):
            return
        if model.position.kind == "relative":
            raise ConfigError("train.progressive_resizing cannot interpolate relative positions")
        for _, scale in self.train.progressive_resizing:
            height, width = scaled(model.image_size, scale)
            if not model.pad and (height % model.step[0] or width % model.step[1]):
                raise ConfigError(
                    f"train.progressive_resizing: at scale {scale:g} images are {height}x{width},"
                    f" not a multiple of the patch {model.step[0]}x{model.step[1]}"
                )

    def _check_native(self) -> None:
        """Images of different shapes: refuse models that cannot pack them, and what needs images of one shape."""
        if (why := why_not_packed(self.model)) is not None:
            raise ConfigError(f"preprocess.resize='native' packs images of different shapes: {why}", hint="resize='squash'")
        train, augment = self.train, self.data.augment
        refused = {
            "data.augment.mixup and cutmix": augment.mixes,
            f"data.augment.crop={augment.crop!r}": augment.crop not in ("inception", "squash"),
            "train.distill": train.distill is not None,
            "train.lwf": train.lwf > 0,
            "train.masked": train.masked is not None,
            "train.progressive_resizing": bool(train.progressive_resizing),
            "train.patch_sizes": bool(train.patch_sizes),
            "train.compile": train.compile,
            "train.strategy='fsdp'": train.strategy == "fsdp",
        }
        if found := [name for name, has in refused.items() if has]:
            raise ConfigError(
                f"preprocess.resize='native' does not support {', '.join(found)}", hint="leave it out, or resize='squash'"
            )

    def _check_patch_sizes(self) -> None:
        """Patches of each size must divide the image, and their positions must be ones that can be interpolated."""
        model = flexible_vit(self.model)
        if not self.train.patch_sizes:
            return
        if model is None:
            has = f"{self.model.title} has patches of one size"
            raise ConfigError(f"train.patch_sizes is for ViTs and segmenters on them, and {has}", hint="leave it out")
        if model.position.kind == "relative":
            raise ConfigError("train.patch_sizes cannot interpolate relative positions")
        stride = 1 if model.before is None else model.before.stride
        height, width = model.image_size
        odd = [size for size in self.train.patch_sizes if height % (size[0] * stride) or width % (size[1] * stride)]
        if odd:
            near = common_size(model.image_size, (model.patch_size, *self.train.patch_sizes), stride=stride)
            raise ConfigError(
                f"train.patch_sizes: patches of {odd[0][0]}x{odd[0][1]} do not divide images of {height}x{width}",
                hint=f"image_size={near[0]}x{near[1]} has whole patches of every size",
            )
