"""What a model is: every choice of the paper and of its successors as one frozen value. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.swin import SwinConfig
from vitlab.errors import ConfigError, at_least, choice, fraction, pair

# Convolutions before a ViT's patches: what a model needs to learn from few images or in little time. No torch here.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStem:
    """A plain convolutional stem ("Early convolutions help transformers see better", Xiao et al. 2021).

    `widths` are the channels of each stage, which begins with a 3x3 convolution of stride 2; `units` is how many convolutions a
    stage has, those after the first with a shortcut around them. After each come GroupNorm, over `group_width` channels at a
    time, and GELU. Unlike the paper's hybrids it keeps fine detail: the first map has half the image's size and not a quarter.
    """

    widths: tuple[int, ...] = (64, 128)
    units: tuple[int, ...] = (2, 2)
    group_width: int = 8
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.units):
            raise ConfigError(f"early.widths={self.widths} and early.units={self.units} must have one number a stage")
        for units in self.units:
            at_least("early.units", units, 1)
        at_least("early.group_width", self.group_width, 1)
        for width in self.widths:
            if width < 1 or width % self.group_width:
                raise ConfigError(f"early.widths={self.widths} must be multiples of early.group_width={self.group_width}")
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"early.norm_eps={self.norm_eps} must be between 0 and 1")

    @property
    def stride(self) -> int:
        """Pixels of the image per cell of the feature map, in each direction."""
        return 1 << len(self.widths)

    @property
    def out_width(self) -> int:
        """Channels of the feature map."""
        return self.widths[-1]


Pool = Literal["token", "mean", "map"]
PositionKind = Literal["none", "learned-1d", "learned-2d", "relative", "sincos-2d"]
PositionPlace = Literal["stem", "every", "shared"]
AttentionKind = Literal["global", "local", "axial"]
Gelu = Literal["exact", "tanh"]
PositionResize = Literal["official", "bicubic"]
Standardise = Literal["std", "variance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The details in which implementations of one paper differ, and which their weights depend on.

    `gelu`: the error-function form or its tanh approximation. `norm_eps`: inside LayerNorm. `resize`: how positions are
    interpolated to another grid; `official` is bilinear with aligned corners (scipy's zoom of order 1), `bicubic` is not aligned.
    """

    gelu: Gelu = "tanh"
    norm_eps: float = 1e-6
    resize: PositionResize = "official"

    def __post_init__(self) -> None:
        choice("gelu", self.gelu, Gelu)
        choice("resize", self.resize, PositionResize)
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps} must be between 0 and 1")


PROFILES: dict[str, Numerics] = {
    "official": Numerics(gelu="tanh", norm_eps=1e-6, resize="official"),  # the authors' Flax code
    "timm": Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic"),
    "huggingface": Numerics(gelu="exact", norm_eps=1e-12, resize="bicubic"),
    "torchvision": Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a patch is told its place: what kind of position, and at which layers (Table 8, app. D.4).

    `kind`: `learned-1d` one vector a token; `learned-2d` a row half and a column half; `relative` an embedding of the offset
    between two patches, used as a key beside the content's; `sincos-2d` fixed waves; `none`.
    `place`: `stem` once, before the first layer; `every` a table of its own at each layer; `shared` one table at each layer.
    For `relative`, which acts inside attention, the same words say which layers' attention it enters: the first; every one with
    its own table; every one with the same table.
    `prefix`: whether class, distillation and register tokens have a position too (learned kinds).
    """

    kind: PositionKind = "learned-1d"
    place: PositionPlace = "stem"
    prefix: bool = True

    def __post_init__(self) -> None:
        choice("position.kind", self.kind, PositionKind)
        choice("position.place", self.place, PositionPlace)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetStem:
    """The post-activation ResNet before a hybrid's patches: root convolution (stride 4 with its pooling), then stages.

    `blocks` is the number of units of each stage, empty for the root alone; each stage after the first halves the resolution.
    `width` is the root's channels (64 in the paper). `standardise` says whether the weights are divided by (std + eps) as in
    the authors' Flax code or by sqrt(variance + eps) as in timm.
    """

    blocks: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    groups: int = 32
    standardise: Standardise = "std"
    standardise_eps: float = 1e-5
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        choice("stem.standardise", self.standardise, Standardise)
        for units in self.blocks:
            at_least("stem.blocks", units, 1)
        at_least("stem.groups", self.groups, 1)
        if self.width < self.groups or self.width % self.groups:
            raise ConfigError(f"stem.width={self.width} must be a multiple of stem.groups={self.groups}")

    @property
    def stride(self) -> int:
        """Pixels of the image per cell of the feature map, in each direction."""
        return 4 << max(len(self.blocks) - 1, 0)

    @property
    def out_width(self) -> int:
        """Channels of the feature map."""
        return self.width * 4 << len(self.blocks) - 1 if self.blocks else self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer, or with `stem` a hybrid, or with `early` one of plain convolutions before the patches.

    `patch_size` and `image_size` are (height, width) in pixels; behind either, `patch_size` counts cells of its map.
    An `image_size` that the patch does not divide is refused unless `pad`, which fills the right and lower edge with zeros.
    `representation_width` adds the paper's pre-training head: a tanh layer of that width before the linear one; 0 for none.
    `num_classes` 0 leaves the head out. `head_bias` is its initial value (-10 for sigmoid training on 21k classes).
    `norm_after_pool` moves the last LayerNorm from the tokens to the pooled vector (timm's mean-pooled models).
    `window` is the side of the square of neighbours seen in `local` attention, an odd number of patches.
    `axial` attention replaces each layer by two, along rows and then along columns (app. D.6).
    `dropout` acts where the paper says (B.1): after each dense layer but q, k, v, and after positions are added.
    `drop_path` is the last layer's rate of stochastic depth, rising linearly from 0; `patch_dropout` the share of patches left
    out in training; `layer_scale` the initial value of a per-channel factor on each residual branch, 0 for none.
    `dynamic_size` lets the model take any image size, interpolating its positions as it runs.
    """

    kind: ClassVar[str] = "vit"

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch_size: tuple[int, int] = (16, 16)
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    pad: bool = False
    dynamic_size: bool = False
    stem: ResNetStem | None = None
    early: ConvStem | None = None
    pool: Pool = "token"
    class_token: bool = True
    distill_token: bool = False
    register_tokens: int = 0
    representation_width: int = 0
    head_bias: float = 0.0
    norm_after_pool: bool = False
    position: Position = field(default_factory=Position)
    attention: AttentionKind = "global"
    window: int = 7
    qkv_bias: bool = True
    dropout: float = 0.0
    drop_path: float = 0.0
    patch_dropout: float = 0.0
    layer_scale: float = 0.0
    numerics: Numerics = field(default_factory=Numerics)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", pair("patch_size", self.patch_size))
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("width", "depth", "heads", "mlp_width", "channels", "window"):
            at_least(name, getattr(self, name), 1)
        for name in ("num_classes", "register_tokens", "representation_width", "layer_scale"):
            at_least(name, getattr(self, name), 0)
        for name in ("dropout", "drop_path", "patch_dropout"):
            fraction(name, getattr(self, name))
        choice("pool", self.pool, Pool)
        choice("attention", self.attention, AttentionKind)
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} is not a multiple of heads={self.heads}")
        if self.stem is not None and self.early is not None:
            raise ConfigError("stem and early exclude each other: there is one place before the patches")
        self._check_tokens()
        self._check_positions()
        self._check_image_size()

    def _check_tokens(self) -> None:
        if self.pool == "token" and not self.class_token:
            raise ConfigError("pool='token' needs class_token=True", hint="or choose pool='mean'")
        if self.distill_token and self.pool != "token":
            raise ConfigError(f"distill_token=True needs pool='token', not {self.pool!r}")
        if self.distill_token and self.representation_width:
            raise ConfigError("distill_token=True and representation_width exclude each other")
        if self.norm_after_pool and self.pool == "map":
            raise ConfigError("norm_after_pool=True does not go with pool='map', which has a LayerNorm of its own")

    def _check_positions(self) -> None:
        kind = self.position.kind
        if kind == "learned-2d" and self.width % 2:
            raise ConfigError(f"position.kind='learned-2d' needs an even width, not {self.width}")
        if kind == "sincos-2d" and self.width % 4:
            raise ConfigError(f"position.kind='sincos-2d' needs a width that 4 divides, not {self.width}")
        if self.attention == "local" and self.window % 2 == 0:
            raise ConfigError(f"window={self.window} must be odd: a patch stands in its middle")
        whole_grid = kind == "relative" or self.attention != "global" or self.position.place != "stem"
        if self.patch_dropout and whole_grid:
            raise ConfigError(
                "patch_dropout needs global attention and positions added at the stem: the other kinds rely on the whole grid"
            )
        if kind == "relative" and self.attention == "axial":
            raise ConfigError("position.kind='relative' is defined over all patches; axial attention sees one row or column")

    def _check_image_size(self) -> None:
        step_h, step_w = self.step
        height, width = self.image_size
        if not self.pad and (height % step_h or width % step_w):
            near = f"{_nearest(height, step_h)}x{_nearest(width, step_w)}"
            raise ConfigError(
                f"image_size={height}x{width} is not a multiple of the patch {step_h}x{step_w}",
                hint=f"use image_size={near}, or pad=True to fill the edge",
            )

    @property
    def step(self) -> tuple[int, int]:
        """Pixels from one token to the next, (down, across)."""
        stride = 1 if self.before is None else self.before.stride
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def before(self) -> ResNetStem | ConvStem | None:
        """What stands between the image and the patches."""
        return self.early if self.stem is None else self.stem

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across) at `image_size`."""
        return self.grid_of(self.image_size)

    def grid_of(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Patches (down, across) of an image of that size, a part of a patch counting as one."""
        return -(-image_size[0] // self.step[0]), -(-image_size[1] // self.step[1])

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: class, distillation, registers."""
        return int(self.class_token) + int(self.distill_token) + self.register_tokens

    @property
    def tokens(self) -> int:
        """Length of the sequence the encoder sees."""
        return self.prefix_tokens + self.grid[0] * self.grid[1]

    @property
    def layers(self) -> int:
        """Attention + MLP layers in the encoder: `depth`, or twice that for axial attention."""
        return self.depth * 2 if self.attention == "axial" else self.depth

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.representation_width or self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """A BiT ResNet: pre-activation, GroupNorm, weight standardisation (Kolesnikov et al. 2020).

    `blocks` is the number of units of each stage and `width_factor` multiplies all channels: R152x4 is (3, 8, 36, 3) and 4.
    `root_width` is the root's channels before that factor. `numerics` of the authors' TensorFlow code divide by
    sqrt(variance + 1e-10); timm's by sqrt(variance + 1e-8).
    """

    kind: ClassVar[str] = "resnet"

    blocks: tuple[int, ...]
    width_factor: int = 1
    root_width: int = 64
    stage_widths: tuple[int, ...] = (256, 512, 1024, 2048)
    groups: int = 32
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    head_bias: float = 0.0
    standardise_eps: float = 1e-10
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        at_least("width_factor", self.width_factor, 1)
        at_least("channels", self.channels, 1)
        at_least("groups", self.groups, 1)
        at_least("num_classes", self.num_classes, 0)
        if not self.blocks or len(self.blocks) != len(self.stage_widths):
            raise ConfigError(f"blocks={self.blocks} and stage_widths={self.stage_widths} must have one number a stage")
        for units in self.blocks:
            at_least("blocks", units, 1)
        for width in (self.root_width, *(stage // 4 for stage in self.stage_widths), *self.stage_widths):
            if width < 1 or width * self.width_factor % self.groups:
                raise ConfigError(f"{width} x width_factor={self.width_factor} channels are not a multiple of {self.groups} groups")

    @property
    def feature_width(self) -> int:
        """Length of the vector the head sees."""
        return self.stage_widths[-1] * self.width_factor


ModelConfig = ViTConfig | ResNetConfig | SwinConfig | ConvNeXtConfig | EfficientNetConfig | RecurrentConfig


def with_profile(config: ViTConfig, profile: str) -> ViTConfig:
    """The same model with the numerics of `official`, `timm`, `huggingface` or `torchvision` code."""
    if profile not in PROFILES:
        raise ConfigError(f"no numerics profile called {profile!r}", hint=f"one of {', '.join(PROFILES)}")
    return replace(config, numerics=PROFILES[profile])


def _nearest(size: int, step: int) -> int:
    return max(step, round(size / step) * step)
