"""Parts of a ViT's config: stems before its patches, norms, MLP, projections of attention, positions and biases. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.config.cost_counter import MAXIMUM, CostCounter, Size, cells, strided
from vitlab.errors import LARGEST_WIDTH, ConfigError, at_least, choice, pair, stages

# --- stems: what may stand before the patches --------------------------------------------------------------------------------

Standardise = Literal["std", "variance"]
Activation = Literal["gelu", "relu"]
StemNorm = Literal["group", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvStem:
    """Plain convolutions before the patches ("Early convolutions help transformers see better", Xiao et al. 2021).

    Each stage begins with a 3x3 convolution of stride 2. `widths` are the channels of each stage and `units` its number of
    convolutions; those after the first have a shortcut around them. A norm and the `activation` follow each convolution; a CPU
    computes a ReLU several times as fast as a GELU. The first map has half the image's size; in the paper's hybrids it has a
    quarter. `norm` is a GroupNorm over groups of `group_width` channels, or a BatchNorm, as in the paper.

    With BatchNorm an image's loss depends on the others of its micro-batch, and each rank normalises its own part of the batch;
    evaluation uses the running statistics, in which a batch counts a tenth.
    """

    widths: tuple[int, ...] = (64, 128)
    units: tuple[int, ...] = (2, 2)
    group_width: int = 8
    norm_eps: float = 1e-6
    activation: Activation = "gelu"
    norm: StemNorm = "group"

    def __post_init__(self) -> None:
        choice("conv_stem.activation", self.activation, Activation)
        choice("conv_stem.norm", self.norm, StemNorm)
        if not self.widths or len(self.widths) != len(self.units):
            raise ConfigError(f"conv_stem.widths={self.widths} and conv_stem.units={self.units} must have one number a stage")
        stages("conv_stem.units", self.units)
        at_least("conv_stem.group_width", self.group_width, 1)
        for width in self.widths:
            at_least("conv_stem.widths", width, 1)
            if self.norm == "group" and width % self.group_width:
                raise ConfigError(f"conv_stem.widths={self.widths} must be multiples of conv_stem.group_width={self.group_width}")
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"conv_stem.norm_eps={self.norm_eps} must be between 0 and 1")

    @property
    def stride(self) -> int:
        """Pixels of the image per cell of the feature map, in each direction."""
        return 1 << len(self.widths)

    @property
    def out_width(self) -> int:
        """Channels of the feature map."""
        return self.widths[-1]

    def count(self, counter: CostCounter, channels: int, image_size: Size) -> int:
        """Add a forward pass of one image; the numbers of the last map. The image is copied once, channels last."""
        image = channels * image_size[0] * image_size[1]
        size, inputs, x = image_size, channels, image
        for width, units in zip(self.widths, self.units, strict=True):
            before, size = size, strided(size)
            for _ in range(units):
                out = cells(size) * width
                counter.conv(cells(size), inputs, width, 3, bias=False)
                counter.padded(before, size, inputs * width, 3)
                if self.norm == "batch":
                    counter.batch_norm(width)
                else:
                    counter.norms(width)
                    counter.kept += 2 * (width // self.group_width)  # a mean and a deviation for each group
                # The convolution's input, the norm's and the GELU's; a ReLU keeps what it gives, which the next convolution keeps
                # anyway, unless the shortcut was added to it.
                shortcut = self.activation == "relu" and inputs == width and before == size
                counter.kept += x + out + (out if self.activation == "gelu" or shortcut else 0)
                counter.alive(image + x + 2 * out)
                x, inputs, before = out, width, size
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetStem:
    """The post-activation ResNet before a hybrid's patches: root convolution (stride 4 with its pooling), then stages.

    `blocks` is the number of units of each stage, empty for the root alone; each stage after the first halves the resolution.
    `width` is the root's channels (64 in the paper). `standardise` divides the weights by (std + eps), as the authors' Flax code
    does, or by sqrt(variance + eps), as timm does.
    """

    blocks: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    groups: int = 32
    standardise: Standardise = "std"
    standardise_eps: float = 1e-5
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        choice("stem.standardise", self.standardise, Standardise)
        if self.blocks:
            stages("stem.blocks", self.blocks)
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

    def count(self, counter: CostCounter, channels: int, image_size: Size) -> int:
        """Add a forward pass of one image; the numbers of the last map."""
        image = channels * image_size[0] * image_size[1]
        size = strided(image_size)
        root = cells(size) * self.width
        counter.standardised_conv(cells(size), channels, self.width, 7)
        counter.padded(image_size, size, channels * self.width, 7)
        counter.norms(self.width)
        size = strided(size)
        x = cells(size) * self.width
        counter.kept += image + 3 * root + MAXIMUM * x  # the image padded; the root before its norm, after it, and padded
        counter.alive(image + 3 * root + (1 + MAXIMUM) * x)  # the root, padded, and with its channels last to be pooled
        inputs = self.width
        for stage, units in enumerate(self.blocks):
            width, begun = self.width * 2**stage, 0
            for unit in range(units):
                after = strided(size) if unit == 0 and stage else size
                counter.bottleneck((inputs, width, width * 4), size, after, first=unit == 0)
                counter.norms(width, width, width * 4, *([width * 4] if unit == 0 else []))
                wide, narrow, out = cells(size) * width, cells(after) * width, cells(after) * width * 4
                shortcut = out if unit == 0 else 0
                padded = wide if after != size else 0
                # Inputs of the convolutions and of the norms after them.
                counter.kept += x + 2 * wide + padded + 2 * narrow + out + shortcut
                within = max(2 * wide, wide + padded + narrow, wide + 2 * narrow, narrow + 2 * out)
                counter.alive(image + begun + x + shortcut + within)
                begun = begun or x
                x, size, inputs = out, after, width * 4
        counter.kept += x if self.blocks else 0
        return x


# --- what later Vision Transformers change -----------------------------------------------------------------------------------

# Each value's defaults are the paper's model; `ViTConfig` refuses combinations that no public model has.

NormKind = Literal["layer", "rms"]
NormPlace = Literal["pre", "res-post"]
Parallel = Literal["no", "mlp", "branches"]
RotaryKind = Literal["axial", "centred", "mixed"]
BiasKind = Literal["table", "mlp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The norms of the encoder.

    `kind`: LayerNorm, or RMSNorm, which has neither a mean nor a bias. `place`: `pre` before attention and MLP (the paper),
    `res-post` after them, inside the residual branch. `before`: one more before the first layer; the patch embedding then has no
    bias (CLIP). `patches`: one of the patch embeddings alone, before positions are added (AIMv2). `last`: False for an encoder
    without the norm of eq. 4 (InternViT, PE-Spatial).
    """

    kind: NormKind = "layer"
    place: NormPlace = "pre"
    before: bool = False
    patches: bool = False
    last: bool = True

    def __post_init__(self) -> None:
        choice("norm.kind", self.kind, NormKind)
        choice("norm.place", self.place, NormPlace)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """The MLP of each layer.

    `gated`: SwiGLU, silu(W_gate x) * (W_value x), each of width `mlp_width`, instead of a GELU. `norm`: a norm of the hidden
    values before the last dense layer (EVA-02, BEiT-3). `bias`: False for dense layers without biases (AIMv2).
    """

    gated: bool = False
    norm: bool = False
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """The dense layers of attention.

    `key_bias`: False where, of q, k and v, the keys alone have no bias (BEiT, EVA, DINOv3). `out_bias`: of the output's layer.
    `qk_norm`: a norm of each head's queries and keys. `out_norm`: a norm of attention's output before its dense layer.
    `kv_heads`: the number of heads of keys and values in each layer, each shared by as many heads of queries (Sapiens 2);
    empty where every query head has its own.
    """

    key_bias: bool = True
    out_bias: bool = True
    qk_norm: bool = False
    out_norm: bool = False
    kv_heads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """Details of mean and attention pooling.

    `prefix`: they also read the class and register tokens. `heads` and `mlp_width` are those of attention pooling, 0 for the
    encoder's.
    """

    prefix: bool = False
    heads: int = 0
    mlp_width: int = 0

    def __post_init__(self) -> None:
        at_least("pooling.heads", self.heads, 0, LARGEST_WIDTH)
        at_least("pooling.mlp_width", self.mlp_width, 0, LARGEST_WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary positions: queries and keys of patches are turned by angles that depend on the row and the column (Su et al. 2021).

    `axial`: half of the angles follow the row, half the column (EVA-02). Rows and columns are counted in patches from `offset`, and
    scaled to a `reference` grid if there is one, so that another image size keeps the range. `columns_first`: the first half of the
    angles follows the column. `centred`: rows and columns run from -1 to 1 over the image, whatever its size (DINOv3). `mixed`:
    each head of each layer learns its frequencies of both (RoPE-ViT). `temperature` is the base of the periods; for `mixed`, of
    their initial values. Prefix tokens are not turned.
    """

    kind: RotaryKind = "axial"
    temperature: float = 10_000.0
    reference: tuple[int, int] | None = None
    offset: float = 0.0
    columns_first: bool = False

    def __post_init__(self) -> None:
        choice("position.rotary.kind", self.kind, RotaryKind)
        if not 1 < self.temperature < 1e9:
            raise ConfigError(f"position.rotary.temperature={self.temperature} must be above 1 and below 1e9")
        if self.reference is not None:
            object.__setattr__(self, "reference", pair("position.rotary.reference", self.reference))
        if not abs(self.offset) < 1e6:
            raise ConfigError(f"position.rotary.offset={self.offset} must be a number of patches")
        if self.kind != "axial" and (self.reference is not None or self.offset):
            raise ConfigError(f"position.rotary.kind={self.kind!r} has no reference and no offset")
        if self.columns_first != (self.kind == "mixed") and self.kind != "axial":
            raise ConfigError(f"position.rotary.kind={self.kind!r} needs columns_first={not self.columns_first}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBias:
    """A bias that each head adds to its attention logits, by how far two patches are apart down and across.

    `table`: one learned number for each offset, and three for the class token (BEiT). `mlp`: a small MLP of the logarithms of the
    offset, with `hidden` units (timm's relpos models); prefix tokens have none. `shared`: all layers have the same bias.
    """

    kind: BiasKind = "table"
    shared: bool = False
    hidden: int = 128

    def __post_init__(self) -> None:
        choice("position.bias.kind", self.kind, BiasKind)
        at_least("position.bias.hidden", self.hidden, 1, LARGEST_WIDTH)
