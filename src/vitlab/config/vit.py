"""Vision Transformers, also hybrids: the config, the sizes by name, the cost. No torch here.

Letters in the cost: n patches, p prefix tokens, N = p + n tokens, D width, M mlp_width, H heads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from vitlab.config.cost_counter import CostCounter, cells
from vitlab.config.serialize import Json, to_json
from vitlab.config.vit_parts import ConvStem, FeedForward, Norm, Parallel, Pooling, Projections, RelativeBias, ResNetStem, Rotary
from vitlab.errors import LARGEST_WIDTH, MOST_LAYERS, ConfigError, at_least, choice, fraction, pair

Pool = Literal["token", "mean", "map", "token+mean"]
PositionKind = Literal["none", "learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d"]
PositionPlace = Literal["stem", "every", "shared"]
AttentionKind = Literal["global", "local", "axial"]
Gelu = Literal["exact", "tanh", "quick"]
ScaleOn = Literal["both", "attention"]
PositionResize = Literal["official", "bicubic", "bicubic-plain", "bilinear"]

_MOST_PATCHES = 1 << 18  # 8192 x 8192 pixels in patches of 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Details in which implementations of the paper differ; weights need those they were trained with.

    `gelu`: exact, its tanh approximation, or `quick`, x * sigmoid(1.702 x), of OpenAI's CLIP. `norm_eps`: the epsilon of the norms.
    `resize`: how positions are interpolated to another grid; `official` is bilinear with aligned corners (scipy's zoom of order 1);
    the others do not align corners: `bicubic` and `bilinear` with antialiasing (timm, SigLIP 2), `bicubic-plain` without
    (transformers).
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
    "huggingface": Numerics(gelu="exact", norm_eps=1e-12, resize="bicubic-plain"),
    "torchvision": Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position embeddings: their kind, and the layers that get them (Table 8, app. D.4).

    `kind`: `learned-1d` one vector a token; `learned-2d` a row half and a column half; `relative` an embedding of the offset
    between two patches, used as a key beside the content's; `sincos-1d` and `sincos-2d` fixed waves, of the place in reading
    order or of row and column; `none`.
    `place`: `stem` once, before the first layer; `every` a table of its own at each layer; `shared` one table at each layer.
    For `relative`, which acts inside attention, the same words say which layers' attention it enters: the first; every one with
    its own table; every one with the same table.
    `prefix`: whether class, distillation and register tokens have a position too (learned kinds); `registers`: whether the
    registers among them do. `grid` is that of the table if it is not the images': the model interpolates as it runs (NaFlex).
    `rotary` and `bias` act inside the attention of every layer, beside `kind`, which may be `none`.
    """

    kind: PositionKind = "learned-1d"
    place: PositionPlace = "stem"
    prefix: bool = True
    registers: bool = True
    grid: tuple[int, int] | None = None
    rotary: Rotary | None = None
    bias: RelativeBias | None = None

    def __post_init__(self) -> None:
        choice("position.kind", self.kind, PositionKind)
        choice("position.place", self.place, PositionPlace)
        if self.grid is not None:
            object.__setattr__(self, "grid", pair("position.grid", self.grid))
            if self.kind != "learned-1d":
                raise ConfigError(f"position.grid is for position.kind='learned-1d', not {self.kind!r}")
        if not self.registers and (self.kind != "learned-1d" or not self.prefix):
            raise ConfigError("position.registers=False needs position.kind='learned-1d' and position.prefix=True")


_PAPERS_ONLY = (  # what is only published with the attention, positions and stems of the paper
    "the quick GELU",
    "RMSNorm",
    "norms after the residual branches",
    "a norm before the encoder",
    "a norm of the patch embeddings",
    "an encoder without a last norm",
    "a gated MLP",
    "a norm inside the MLP",
    "keys without a bias",
    "an attention output without a bias",
    "norms of queries and keys",
    "a norm of attention's output",
    "attention and MLP in parallel",
    "parallel branches",
    "rotary positions",
    "a relative position bias",
    "positions of another grid",
    "images cropped to whole patches",
)
_EXCLUDED: dict[str, tuple[str, ...]] = {  # trait of a ViT -> traits that no public model has beside it
    "local or axial attention": _PAPERS_ONLY,
    "relative positions as keys": _PAPERS_ONLY,
    "a stem": _PAPERS_ONLY,
    "norms after the residual branches": (
        *("RMSNorm", "a gated MLP", "a norm inside the MLP", "norms of queries and keys", "a norm of attention's output"),
        *("rotary positions", "layer scale", "attention and MLP in parallel", "parallel branches", "a norm before the encoder"),
    ),
    "attention and MLP in parallel": (
        *("a gated MLP", "a norm inside the MLP", "an MLP without biases", "a norm of attention's output", "rotary positions"),
        *("a relative position bias", "parallel branches", "keys without a bias", "an attention output without a bias"),
        *("shared heads of keys and values", "layer scale on attention alone"),
    ),
    "parallel branches": (
        *("a gated MLP", "a norm inside the MLP", "an MLP without biases", "a norm of attention's output", "rotary positions"),
        *("a relative position bias", "norms of queries and keys", "keys without a bias", "an attention output without a bias"),
        *("shared heads of keys and values", "layer scale on attention alone", "RMSNorm", "a norm before the encoder"),
    ),
    "a relative position bias": (
        *("rotary positions", "a gated MLP", "a norm inside the MLP", "norms of queries and keys", "a norm of attention's output"),
        *("RMSNorm", "a norm before the encoder", "shared heads of keys and values"),
    ),
    "layer scale on attention alone": ("a norm before the encoder", "the quick GELU"),
    "shared heads of keys and values": ("keys without a bias", "a norm of attention's output", "a norm inside the MLP"),
    "the quick GELU": ("a gated MLP", "RMSNorm"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer; with `stem` a hybrid, with `conv_stem` plain convolutions before the patches.

    `patch_size` and `image_size` are (height, width) in pixels; after a stem, `patch_size` counts cells of its map.
    An `image_size` that the patch does not divide is refused unless `pad`, which fills the right and lower edge with zeros, or
    `crop`, which leaves out what is over at these edges (SigLIP-So400m/14 at 384).
    `representation_width` adds the paper's pre-training head: a tanh layer of that width before the linear one; 0 for none.
    `num_classes` 0 leaves the head out. `head_bias` is its initial value (-10 for sigmoid training on 21k classes).
    `projection_width` adds a dense layer without bias after the pool, whose output the features are (CLIP); 0 for none.
    `detection_classes` adds heads by which each register token detects an object: so many logits, the last for "no object", and a
    box (YOLOS); 0 for none.
    `pool`: the class token (eq. 4), the mean of the patches, attention pooling (`map`), or class token and mean side by side.
    `norm_after_pool` moves the last LayerNorm from the tokens to the pooled vector (timm's mean-pooled models).
    `window` is the side of the square of neighbours seen in `local` attention, an odd number of patches.
    `axial` attention replaces each layer by two, along rows and then along columns (app. D.6).
    `dropout` acts where the paper says (B.1): after each dense layer but q, k, v, and after positions are added.
    `drop_path` is the last layer's rate of stochastic depth, rising linearly from 0; `patch_dropout` the fraction of patches left
    out in training; `layer_scale` the initial value of a per-channel factor on each residual branch, 0 for none, and
    `layer_scale_on` says whether MLPs have it too. `parallel`: `mlp` computes attention and MLP side by side from one norm,
    `branches` two attentions side by side and then two MLPs. `norm`, `mlp`, `projections` and `pooling` hold what else later models
    changed; their defaults are the paper's.
    `dynamic_size` lets the model take any image size, interpolating its positions as it runs.
    """

    family: ClassVar[str] = "vit"
    title: ClassVar[str] = "a ViT"
    names: ClassVar[tuple[str, ...]] = (  # what is published; `from_name` also takes any other patch size
        *("ViT-Mini/8", "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/8", "ViT-B/16", "ViT-B/32", "ViT-b/32", "ViT-L/16", "ViT-L/32"),
        *("ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
        *("R+ViT-Ti/16", "R26+ViT-S/32", "R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"),
    )

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch_size: tuple[int, int] = (16, 16)
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000
    pad: bool = False
    crop: bool = False
    dynamic_size: bool = False
    stem: ResNetStem | None = None
    conv_stem: ConvStem | None = None
    pool: Pool = "token"
    class_token: bool = True
    distill_token: bool = False
    register_tokens: int = 0
    representation_width: int = 0
    projection_width: int = 0
    detection_classes: int = 0
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
    layer_scale_on: ScaleOn = "both"
    parallel: Parallel = "no"
    norm: Norm = field(default_factory=Norm)
    mlp: FeedForward = field(default_factory=FeedForward)
    projections: Projections = field(default_factory=Projections)
    pooling: Pooling = field(default_factory=Pooling)
    numerics: Numerics = field(default_factory=Numerics)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", pair("patch_size", self.patch_size))
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        at_least("depth", self.depth, 1, MOST_LAYERS)
        for name in ("width", "heads", "mlp_width", "channels", "window"):
            at_least(name, getattr(self, name), 1, LARGEST_WIDTH)
        for name in (
            "num_classes",
            "register_tokens",
            "representation_width",
            "projection_width",
            "detection_classes",
            "layer_scale",
        ):
            at_least(name, getattr(self, name), 0, LARGEST_WIDTH)
        for name in ("dropout", "drop_path", "patch_dropout"):
            fraction(name, getattr(self, name))
        choice("pool", self.pool, Pool)
        choice("attention", self.attention, AttentionKind)
        choice("layer_scale_on", self.layer_scale_on, ScaleOn)
        choice("parallel", self.parallel, Parallel)
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} is not a multiple of heads={self.heads}")
        if self.stem is not None and self.conv_stem is not None:
            raise ConfigError("stem and conv_stem exclude each other")
        self._check_tokens()
        self._check_positions()
        self._check_traits()
        self._check_image_size()

    def _check_tokens(self) -> None:
        if self.pool in ("token", "token+mean") and not self.class_token:
            raise ConfigError(f"pool={self.pool!r} needs class_token=True", hint="or choose pool='mean'")
        if self.distill_token and self.pool != "token":
            raise ConfigError(f"distill_token=True needs pool='token', not {self.pool!r}")
        if self.distill_token and self.representation_width:
            raise ConfigError("distill_token=True and representation_width exclude each other")
        if self.norm_after_pool and self.pool in ("map", "token+mean"):
            raise ConfigError(f"norm_after_pool=True excludes pool={self.pool!r}")
        if self.norm_after_pool and not self.norm.last:
            raise ConfigError("norm_after_pool=True is the last norm, and norm.last=False leaves it out")
        if self.pooling.prefix and self.pool not in ("mean", "map"):
            raise ConfigError(f"pooling.prefix=True is for pool='mean' and 'map', not {self.pool!r}")
        if self.pool != "map" and (self.pooling.heads or self.pooling.mlp_width):
            raise ConfigError(f"pooling.heads and pooling.mlp_width are for pool='map', not {self.pool!r}")
        if self.pooling.heads and self.width % self.pooling.heads:
            raise ConfigError(f"width={self.width} is not a multiple of pooling.heads={self.pooling.heads}")
        if self.projection_width and (self.representation_width or self.distill_token):
            raise ConfigError("projection_width excludes representation_width and distill_token")
        if self.detection_classes and (not self.register_tokens or self.norm_after_pool):
            raise ConfigError("detection_classes needs register_tokens above 0 and norm_after_pool=False")
        if self.layer_scale_on == "attention" and not self.layer_scale:
            raise ConfigError("layer_scale_on='attention' needs layer_scale above 0")

    def _check_positions(self) -> None:
        kind = self.position.kind
        if kind == "learned-2d" and self.width % 2:
            raise ConfigError(f"position.kind='learned-2d' needs an even width, not {self.width}")
        if kind == "sincos-1d" and self.width % 2:
            raise ConfigError(f"position.kind='sincos-1d' needs an even width, not {self.width}")
        if kind == "sincos-2d" and self.width % 4:
            raise ConfigError(f"position.kind='sincos-2d' needs a width that 4 divides, not {self.width}")
        if self.attention == "local" and self.window % 2 == 0:
            raise ConfigError(f"window={self.window} must be odd")
        inside = self.position.rotary is not None or self.position.bias is not None
        whole_grid = kind == "relative" or inside or self.attention != "global" or self.position.place != "stem"
        if self.patch_dropout and whole_grid:
            raise ConfigError(
                "patch_dropout needs global attention and positions added at the stem: other kinds need the whole grid"
            )
        if kind == "relative" and self.attention == "axial":
            raise ConfigError("position.kind='relative' is defined over all patches; axial attention sees one row or column")

        self._check_rotary_and_bias()

    def _check_rotary_and_bias(self) -> None:
        rotary, bias = self.position.rotary, self.position.bias
        if rotary is not None and (self.width // self.heads) % 4:
            raise ConfigError(f"position.rotary needs heads whose width 4 divides, not {self.width // self.heads}")
        if bias is not None and bias.kind == "table" and (self.prefix_tokens != 1 or not self.class_token):
            raise ConfigError("position.bias.kind='table' needs a class token and no other prefix token")
        kv_heads = self.projections.kv_heads
        if kv_heads and (len(kv_heads) != self.depth or any(heads < 1 or self.heads % heads for heads in kv_heads)):
            raise ConfigError(f"projections.kv_heads must be {self.depth} numbers, one a layer, that divide heads={self.heads}")
        if not self.projections.key_bias and not self.qkv_bias:
            raise ConfigError("projections.key_bias=False needs qkv_bias=True: without it no projection has a bias")

    @property
    def traits(self) -> tuple[str, ...]:
        """What this model has that the paper's ViT has not, in words; empty for the paper's."""
        position, norm, mlp, attention = self.position, self.norm, self.mlp, self.projections
        found = {
            "the quick GELU": self.numerics.gelu == "quick",
            "RMSNorm": norm.kind == "rms",
            "norms after the residual branches": norm.place == "res-post",
            "a norm before the encoder": norm.before,
            "a norm of the patch embeddings": norm.patches,
            "an encoder without a last norm": not norm.last,
            "a gated MLP": mlp.gated,
            "a norm inside the MLP": mlp.norm,
            "an MLP without biases": not mlp.bias,
            "keys without a bias": not attention.key_bias,
            "an attention output without a bias": not attention.out_bias,
            "norms of queries and keys": attention.qk_norm,
            "a norm of attention's output": attention.out_norm,
            "shared heads of keys and values": bool(attention.kv_heads),
            "attention and MLP in parallel": self.parallel == "mlp",
            "parallel branches": self.parallel == "branches",
            "rotary positions": position.rotary is not None,
            "a relative position bias": position.bias is not None,
            "positions of another grid": position.grid is not None,
            "registers without a position": not position.registers,
            "pooling over prefix tokens": self.pooling.prefix,
            "an attention pool of its own size": bool(self.pooling.heads or self.pooling.mlp_width),
            "pooling of class token and mean": self.pool == "token+mean",
            "a projection of the pooled vector": self.projection_width > 0,
            "detection heads": self.detection_classes > 0,
            "layer scale on attention alone": self.layer_scale_on == "attention",
            "images cropped to whole patches": self.crop,
        }
        return tuple(name for name, has in found.items() if has)

    def _check_traits(self) -> None:
        """Refuse combinations that no public model has."""
        found = list(self.traits)
        if self.attention != "global":
            found.append("local or axial attention")
        if self.position.kind == "relative":
            found.append("relative positions as keys")
        if self.before is not None:
            found.append("a stem")
        if self.layer_scale:
            found.append("layer scale")
        for trait, others in _EXCLUDED.items():
            for other in others:
                if trait in found and other in found:
                    raise ConfigError(f"{trait} and {other} exclude each other: no public model has both")

    def _check_image_size(self) -> None:
        step_h, step_w = self.step
        height, width = self.image_size
        if self.pad and self.crop:
            raise ConfigError("pad and crop exclude each other")
        if self.crop and (height < step_h or width < step_w):
            raise ConfigError(f"image_size={height}x{width} is smaller than the patch {step_h}x{step_w}")
        if not self.pad and not self.crop and (height % step_h or width % step_w):
            near = f"{_nearest(height, step_h)}x{_nearest(width, step_w)}"
            raise ConfigError(
                f"image_size={height}x{width} is not a multiple of the patch {step_h}x{step_w}",
                hint=f"use image_size={near}; or set pad=True (fill the edge) or crop=True (leave it out) in a ViTConfig",
            )
        if (patches := self.grid[0] * self.grid[1]) > _MOST_PATCHES:
            raise ConfigError(f"image_size={height}x{width} makes {patches:,} patches; the limit is {_MOST_PATCHES:,}")

    @property
    def step(self) -> tuple[int, int]:
        """Pixels from one token to the next, (down, across)."""
        stride = 1 if self.before is None else self.before.stride
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def before(self) -> ResNetStem | ConvStem | None:
        """The stem between the image and the patches, if there is one."""
        return self.conv_stem if self.stem is None else self.stem

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across) at `image_size`."""
        return self.grid_of(self.image_size)

    def grid_of(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Patches (down, across) of an image of that size; a fraction of a patch counts as one, or with `crop` as none."""
        if self.crop:
            return max(1, image_size[0] // self.step[0]), max(1, image_size[1] // self.step[1])
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
        return self.representation_width or self.projection_width or self.pooled_width

    @property
    def pooled_width(self) -> int:
        """Length of the pooled vector: `width`, or twice that for class token and mean."""
        return self.width * 2 if self.pool == "token+mean" else self.width

    @property
    def block_count(self) -> int:
        """Layers of the encoder, and units and convolutions of the stem."""
        stem = 0 if self.stem is None else sum(self.stem.blocks)
        return self.layers + stem + (0 if self.conv_stem is None else sum(self.conv_stem.units))

    @property
    def computed_numbers(self) -> int:
        """Numbers that the model computes when it is built and no file holds: sines and cosines, and the offsets of a bias."""
        waves = self.tokens * self.width if self.position.kind in ("sincos-1d", "sincos-2d") else 0
        angles = 2 * self.tokens * (self.width // self.heads) if self.position.rotary is not None else 0
        return waves + angles + (self.tokens**2 if self.position.bias is not None else 0)

    @property
    def first_kernel(self) -> str:
        """The state-dict key of the kernel that sees the image."""
        if self.conv_stem is not None:
            return "early.stages.0.0.weight"
        return "patches.weight" if self.stem is None else "stem.root.weight"

    @property
    def fit_options(self) -> dict[str, Any]:
        """What `load` needs besides image size, channels and classes to fit a checkpoint to this model."""
        return {"patch_size": self.patch_size, "interpolation": self.numerics.resize, "dynamic_size": self.dynamic_size}

    @classmethod
    def from_name(cls, name: str, image_size: tuple[int, int] | None) -> ViTConfig | None:
        """The ViT or hybrid of that name, of any patch size, or None; ConfigError if the name could mean two models."""
        match = _NAME.fullmatch(name)
        size = None if match is None else _size_named(name, match)
        if match is None or size is None:
            return None
        stem, patch = None, (int(match["p"]), int(match["q"] or match["p"]))
        if match["stem"] is not None:
            key = (match["stem"].upper(), patch[0])
            if patch[0] != patch[1] or key not in STEMS:
                return None
            stem, cell = STEMS[key]
            patch = (cell, cell)
        return ViTConfig(
            width=size.width,
            depth=size.depth,
            heads=size.heads,
            mlp_width=size.mlp_width,
            patch_size=patch,
            image_size=image_size or (size.image_size, size.image_size),
            pad=True,  # any image size; `variant` sets what the caller asked for
            stem=stem,
        )

    @property
    def name(self) -> str | None:
        """The name that `from_name` takes, or None for a size without one; image size, head and numerics are not part of it."""
        shape = (self.width, self.depth, self.heads, self.mlp_width)
        sizes = (name for name, size in SIZES.items() if shape == (size.width, size.depth, size.heads, size.mlp_width))
        size = next(sizes, None)
        if size is None or self.conv_stem is not None:
            return None
        height, width = self.patch_size
        if self.stem is None:
            return f"ViT-{size}/{height}" if height == width else f"ViT-{size}/{height}x{width}"
        for (resnet, patch), (stem, cell) in STEMS.items():
            if stem.blocks == self.stem.blocks and stem.width == self.stem.width and (cell, cell) == self.patch_size:
                return f"{resnet}+ViT-{size}/{patch}"
        return None

    def facts(self) -> dict[str, Json]:
        """What `vitlab describe` shows first."""
        profiles = [name for name, numerics in PROFILES.items() if numerics == self.numerics]
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "patch_size": list(self.patch_size),
            "grid": list(self.grid),
            "tokens": self.tokens,
            "width": self.width,
            "depth": self.depth,
            "heads": self.heads,
            "mlp_width": self.mlp_width,
            "pool": self.pool,
            "position": to_json(self.position),
            "attention": self.attention,
            "traits": list(self.traits),
            "num_classes": self.num_classes,
            "profile": profiles[0] if profiles else "custom",
            "numerics": to_json(self.numerics),
        }

    def count(self, counter: CostCounter) -> None:
        """Add a forward pass of one image."""
        width, tokens = self.width, self.tokens
        patches = cells(self.grid)
        inputs, held, conv_stem = self.channels, self.channels * cells(self.image_size), 0
        if self.stem is not None:
            inputs = self.stem.out_width
            held += self.stem.count(counter, self.channels, self.image_size)
        elif self.conv_stem is not None:
            inputs = self.conv_stem.out_width
            conv_stem = self.conv_stem.count(counter, self.channels, self.image_size)
        pixels = patches * inputs * cells(self.patch_size)
        counter.dense(patches, pixels // patches, width, bias=not self.norm.before)
        self._count_norms(counter, *([width] if self.norm.patches else []), *([width] if self.norm.before else []))
        counter.kept += pixels
        counter.alive(held + conv_stem + pixels + patches * width)
        counter.parameters += self.prefix_tokens * width
        counter.parameters += self._position_parameters()
        held += tokens * width  # z_0 stays with the caller of the encoder
        if self.dropout:
            counter.kept += tokens * width

        for layer in range(self.layers):
            self._count_layer(counter, layer, held)
        if self.norm.last:
            self._count_norms(counter, width)  # after the encoder, or after the pool
        counter.kept += 2 * self.trained_tokens * width

        if self.pool == "map":
            read, hidden = tokens if self.pooling.prefix else patches, self.pooling.mlp_width or self.mlp_width
            counter.parameters += width  # the probe
            counter.dense(1, width, width)
            counter.dense(read, width, 2 * width)
            counter.macs += 2 * read * width
            counter.dense(1, width, width)
            self._count_norms(counter, width)
            counter.dense(1, width, hidden)
            counter.dense(1, hidden, width)
            counter.kept += 2 * self.trained_tokens * width
        if self.representation_width:
            counter.dense(1, width, self.representation_width)
        if self.projection_width:
            counter.dense(1, self.pooled_width, self.projection_width, bias=False)
        if self.detection_classes:
            for outputs in (self.detection_classes, 4):
                for after in (width, width, outputs):
                    counter.dense(self.register_tokens, width, after)
        if self.num_classes:
            for _ in range(2 if self.distill_token else 1):
                counter.dense(1, self.feature_width, self.num_classes)

    @property
    def trained_tokens(self) -> int:
        """Tokens of a training pass: patch dropout removes some."""
        patches = cells(self.grid)
        return self.prefix_tokens + max(1, round(patches * (1 - self.patch_dropout)))

    def _position_parameters(self) -> int:
        tables = self.layers if self.position.place == "every" else 1
        down, across = self.position.grid or self.grid
        inside = self._rotary_parameters() + self._bias_parameters()
        match self.position.kind:
            case "learned-1d":
                return inside + tables * (self.placed_tokens + down * across) * self.width
            case "learned-2d":
                return inside + tables * ((down + across) * (self.width // 2) + self.placed_tokens * self.width)
            case "relative":
                return inside + tables * (2 * down * across - 1) * self.width
            case "none" | "sincos-1d" | "sincos-2d":
                return inside

    @property
    def placed_tokens(self) -> int:
        """Prefix tokens that have a position of their own in a learned table."""
        if not self.position.prefix:
            return 0
        return self.prefix_tokens - (0 if self.position.registers else self.register_tokens)

    def _rotary_parameters(self) -> int:
        rotary = self.position.rotary
        return self.depth * self.width if rotary is not None and rotary.kind == "mixed" else 0  # two for each pair of a head

    def _bias_parameters(self) -> int:
        bias = self.position.bias
        if bias is None:
            return 0
        rows = (2 * self.grid[0] - 1) * (2 * self.grid[1] - 1) + 3
        one = rows * self.heads if bias.kind == "table" else 3 * bias.hidden + (bias.hidden + 1) * self.heads
        return one if bias.shared else self.depth * one

    def _count_norms(self, counter: CostCounter, *widths: int) -> None:
        """Norms with a scale, and LayerNorms with a bias too."""
        counter.parameters += (2 if self.norm.kind == "layer" else 1) * sum(widths)

    def _count_layer(self, counter: CostCounter, layer: int, held: int) -> None:
        """Attention and MLP, with `held` numbers alive around them.

        Kept: the input of each norm and dense layer and of the GELU, q, k, v, attention's output; about 8 N D + 2 N M.
        """
        width, hidden, tokens, trained = self.width, self.mlp_width, self.tokens, self.trained_tokens
        rows, attention, mlp = tokens * width, self.projections, self.mlp
        branches = 2 if self.parallel == "branches" else 1
        for _ in range(branches):
            self._count_norms(counter, width, *([] if self.parallel == "mlp" else [width]))
            grouped = width // self.heads * attention.kv_heads[layer] if attention.kv_heads else width
            counter.dense(tokens, width, width + 2 * grouped, bias=self.qkv_bias)
            counter.parameters -= 0 if attention.key_bias else width
            if attention.qk_norm:
                self._count_norms(counter, width // self.heads, width // self.heads)
            if attention.out_norm:
                self._count_norms(counter, width)
            if self.attention == "axial":
                inside = self._count_axial(counter, layer)
            elif self.position.kind == "relative" and (layer == 0 or self.position.place != "stem"):
                inside = self._count_relative(counter)
            elif self.position.bias is not None:
                inside = self._count_biased(counter, self.position.bias, layer)
            else:
                counter.macs += 2 * tokens * rows  # q k and the weighted sum of v
                counter.kept += trained * (width + self.heads)  # the output, and one logsumexp a row of attention
                inside = rows
            counter.alive(held + 6 * rows + inside)  # z, its norm, q, k, v, and the output
            counter.dense(tokens, width, width, bias=attention.out_bias)
            counter.dense(tokens, width, hidden * (2 if mlp.gated else 1), bias=mlp.bias)
            if mlp.norm:
                self._count_norms(counter, hidden)
                counter.kept += trained * hidden
            counter.dense(tokens, hidden, width, bias=mlp.bias)
            wide = 4 * hidden if mlp.gated else 2 * hidden
            rotated = 4 * width if self.position.rotary is not None else 0
            counter.kept += trained * (7 * width + wide + rotated + 4)
            counter.alive(held + 3 * rows + tokens * wide)
            if self.layer_scale:
                scales = 1 if self.parallel == "mlp" or self.layer_scale_on == "attention" else 2
                counter.parameters += scales * width
                counter.kept += scales * trained * width
            if self.dropout:
                counter.kept += trained * (2 * width + hidden)  # the masks

    def _count_biased(self, counter: CostCounter, bias: RelativeBias, layer: int) -> int:
        """Attention with a bias of its own for each pair of tokens, and the MLP that computes it. Numbers alive within."""
        rows, maps = self.tokens * self.width, self.heads * self.tokens**2
        counter.macs += 2 * self.tokens * rows
        if bias.kind == "mlp" and (layer == 0 or not bias.shared):
            offsets = (2 * self.grid[0] - 1) * (2 * self.grid[1] - 1)
            counter.macs += offsets * bias.hidden * (2 + self.heads)
            counter.activations += offsets * (bias.hidden + self.heads)
        counter.kept += 4 * rows + maps
        return rows + 3 * maps

    def _count_relative(self, counter: CostCounter) -> int:
        """Attention with relative positions, which no fused kernel has: attention matrices are real. Numbers alive within."""
        patches = cells(self.grid)
        rows, maps, offsets = self.tokens * self.width, self.heads * self.tokens**2, 2 * patches - 1
        counter.macs += 2 * self.tokens * rows
        counter.macs += patches * self.width * offsets  # each patch's query with every offset
        counter.kept += 4 * rows + maps + offsets * self.width
        return rows + 4 * maps

    def _count_axial(self, counter: CostCounter, layer: int) -> int:
        """Attention along rows, then columns: a patch sees its line and the prefix, the prefix sees all. Numbers alive within."""
        prefix, (down, across) = self.prefix_tokens, self.grid
        lines, length = (down, across) if layer % 2 == 0 else (across, down)
        patches, seen = down * across, lines * (prefix + length)
        counter.macs += 2 * self.width * (patches * (prefix + length) + prefix * self.tokens)
        # Queries in lines, keys and values in lines with the prefix before each, and the output in lines and in order.
        counter.kept += (patches + 2 * seen + self.tokens) * self.width
        return (2 * seen + 2 * self.tokens) * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an encoder: Table 1 of the paper and its successors."""

    width: int
    depth: int
    heads: int
    mlp_width: int
    image_size: int = 224


SIZES: dict[str, Size] = {
    "Mini": Size(width=64, depth=2, heads=4, mlp_width=128, image_size=32),  # for tests and first steps
    "Ti": Size(width=192, depth=12, heads=3, mlp_width=768),
    "S": Size(width=384, depth=12, heads=6, mlp_width=1536),
    "B": Size(width=768, depth=12, heads=12, mlp_width=3072),  # Table 1
    "b": Size(width=384, depth=12, heads=12, mlp_width=1536),  # Fig. 4: B with all hidden dimensions halved, the heads' too
    "L": Size(width=1024, depth=24, heads=16, mlp_width=4096),  # Table 1
    "So400m": Size(width=1152, depth=27, heads=16, mlp_width=4304),  # Alabdulmohsin et al. 2023
    "H": Size(width=1280, depth=32, heads=16, mlp_width=5120),  # Table 1
    "g": Size(width=1408, depth=40, heads=16, mlp_width=6144),  # Zhai et al. 2021
    "G": Size(width=1664, depth=48, heads=16, mlp_width=8192),  # Zhai et al. 2021
}

# (ResNet, the name's "patch") -> stages and the patch on the feature map. At /16 the units of stage 4 are in stage 3 (section 4.1).
# R+Ti/16 is called /16 by its authors, but a stride-4 root and 8x8 patches step 32 pixels.
STEMS: dict[tuple[str, int], tuple[ResNetStem, int]] = {
    ("R", 16): (ResNetStem(blocks=()), 8),
    ("R26", 32): (ResNetStem(blocks=(2, 2, 2, 2)), 1),
    ("R50", 16): (ResNetStem(blocks=(3, 4, 9)), 1),
    ("R50", 32): (ResNetStem(blocks=(3, 4, 6, 3)), 1),
}
_NAME = re.compile(
    r"(?:(?P<stem>R\d*)\+)?(?P<prefix>ViT[-_ ])?(?P<size>[A-Za-z][A-Za-z0-9]*?)(?P<mark>[/_-])(?P<p>\d+)(?:x(?P<q>\d+))?",
    re.IGNORECASE,
)


def _size_named(name: str, match: re.Match[str]) -> Size | None:
    """The size: by exact letters in the paper's spelling (g is not G), else in any case of letters if only one size fits.

    Only the exact spelling ViT-b means the paper's ViT-b: vit_b_16 is torchvision's name of ViT-B/16.
    """
    written, prefix = match["size"], match["prefix"]
    exact = match["mark"] == "/" and (prefix or "ViT-") == "ViT-"
    if exact and written in SIZES and (written != "b" or prefix):
        return SIZES[written]
    fitting = [size for size in SIZES if size.casefold() == written.casefold() and (size != "b" or (exact and not prefix))]
    if len(fitting) > 1:
        spelled = " or ".join(f"ViT-{size}/{match['p']}" for size in fitting)
        raise ConfigError(f"{name!r} could be {spelled}", hint="write it as the paper does: upper and lower case differ")
    return SIZES[fitting[0]] if fitting else None


def with_profile(config: ViTConfig, profile: str) -> ViTConfig:
    """The same model with the numerics of `official`, `timm`, `huggingface` or `torchvision` code."""
    if profile not in PROFILES:
        raise ConfigError(f"no numerics profile called {profile!r}", hint=f"one of {', '.join(PROFILES)}")
    return replace(config, numerics=PROFILES[profile])


def _nearest(size: int, step: int) -> int:
    return max(step, round(size / step) * step)
