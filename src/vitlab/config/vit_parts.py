"""What later Vision Transformers change: norms, MLP, projections of attention, rotary positions, relative biases. No torch here.

Each value's defaults are the paper's model; `ViTConfig` refuses combinations that no public model has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.errors import LARGEST_WIDTH, ConfigError, at_least, choice, pair

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
