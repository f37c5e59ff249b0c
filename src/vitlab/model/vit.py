"""The Vision Transformer of "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021): equations 1 to 4 in one screen.

Axes: B batch, C channels or classes, H W pixels, N tokens (class, distillation, registers, then patches), D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitlab.config.model import ViTConfig
from vitlab.errors import ConfigError
from vitlab.model.attention import Attention, Axis, Scene
from vitlab.model.early import Early
from vitlab.model.encoder import Encoder
from vitlab.model.hybrid import Stem
from vitlab.model.mlp import Mlp
from vitlab.model.patches import Patches
from vitlab.model.pool import MapPool
from vitlab.model.position import Grid, Positions
from vitlab.model.record import Record
from vitlab.model.residual import branch


class Block(nn.Module):
    """One layer of the encoder: z' = MSA(LN(z)) + z, eq. 2, and MLP(LN(z')) + z', eq. 3."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        axis: Axis | None = None
        if config.attention == "axial":
            axis = "rows" if layer % 2 == 0 else "columns"  # app. D.6
        eps = config.numerics.norm_eps
        self.norm1 = nn.LayerNorm(config.width, eps=eps)
        self.attention = Attention(config, axis)
        self.norm2 = nn.LayerNorm(config.width, eps=eps)
        self.mlp = Mlp(config.width, config.mlp_width, gelu=config.numerics.gelu, dropout=config.dropout)
        self.scale1 = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.scale2 = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.layer_scale = config.layer_scale
        self.drop = config.drop_path * layer / max(config.layers - 1, 1)

    def forward(self, z_BND: Tensor, scene: Scene, record: Record | None = None) -> Tensor:
        drop = self.drop if self.training else 0.0
        z_BND = z_BND[:, : scene.read] + branch(self.attention(self.norm1(z_BND), scene, record), self.scale1, drop)  # eq. 2
        return z_BND + branch(self.mlp(self.norm2(z_BND)), self.scale2, drop)  # eq. 3


class ViT(nn.Module):
    """Normalised pictures (B, C, H, W) to logits (B, classes); a hybrid when `config.stem` puts a ResNet before the patches."""

    def encoded(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """All tokens after the encoder, (B, N, D), patches in reading order."""
        grid = self.checked_grid(images_BCHW, record)
        return self.encode(self.embedded(images_BCHW), grid, record)

    def read(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """The tokens that the pool reads, and maybe more: where `lean`, the last layer computes nothing else."""
        grid = self.checked_grid(images_BCHW, record)
        return self.encode(self.embedded(images_BCHW), grid, record, tokens_read(self.config) if self.lean else None)

    def embedded(self, images_BCHW: Tensor) -> Tensor:
        """Patches as vectors, (B, patches, D): x_p E of equation 1."""
        before = self.early if self.stem is None else self.stem
        patches_BND: Tensor = self.patches(images_BCHW if before is None else before(images_BCHW))
        return patches_BND

    def encode(self, z_BND: Tensor, grid: Grid, record: Record | None = None, read: int | None = None) -> Tensor:
        """All tokens after the encoder, or the first `read`, from embedded patches, whose name is reused to let go of them."""
        z_BND = torch.cat([*self.prefix(z_BND.shape[0]), z_BND], dim=1)  # [x_class; x_p E]
        if (E_pos_1ND := self.position.added(0, grid)) is not None:
            z_BND = z_BND + E_pos_1ND  # eq. 1: z_0 = [x_class; x_p E] + E_pos
        z_BND = self.thinned(self.dropout(z_BND))
        z_BND = self.encoder(z_BND, self.position, grid, record, read)  # eq. 2 and 3 in each Block; then the LN of eq. 4
        return z_BND

    def pooled(self, z_BND: Tensor) -> Tensor:
        """One vector a picture, (B, D)."""
        if self.pool is not None:
            y_BD: Tensor = self.pool(z_BND[:, self.config.prefix_tokens :])
        elif self.config.pool == "mean":
            y_BD = z_BND[:, self.config.prefix_tokens :].mean(1)
        elif self.config.distill_token:
            y_BD = z_BND[:, :2].mean(1)
        else:
            y_BD = z_BND[:, 0]  # eq. 4: y = LN(z_L)[class]
        y_BD = y_BD if self.pool_norm is None else self.pool_norm(y_BD)
        return y_BD

    def represented(self, y_BD: Tensor) -> Tensor:
        """What the head sees of the pooled vector, (B, feature_width)."""
        return y_BD if self.representation is None else torch.tanh(self.representation(y_BD))  # section 3.1: hidden layer

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, feature_width); with a distillation token, the mean of what the two heads see."""
        return self.represented(self.pooled(self.read(images_BCHW, record)))

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        return self.answered(self.read(images_BCHW, record))

    def answered(self, z_BND: Tensor) -> Tensor:
        """Logits (B, classes) from the encoder's tokens; without a head the features."""
        if self.distill_head is not None:
            return torch.stack(self.two_logits(z_BND)).mean(0)
        features_BD = self.represented(self.pooled(z_BND))
        return features_BD if self.head is None else self.head(features_BD)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.lean = False  # True: leave out of the last layer what no one reads; the same numbers to rounding, for less
        self.any_size = config.dynamic_size  # also True while it learns from pictures that grow
        self.stem = None if config.stem is None else Stem(config.stem, config.channels)
        self.early = None if config.early is None else Early(config.early, config.channels, gelu=config.numerics.gelu)
        channels = config.channels if config.before is None else config.before.out_width
        self.patches = Patches(channels, config.width, config.patch_size, pad=config.pad)
        self.class_token = _tokens(config, int(config.class_token))
        self.distill_token = _tokens(config, int(config.distill_token))
        self.register_tokens = _tokens(config, config.register_tokens)
        self.position = Positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config, [Block(config, layer) for layer in range(config.layers)])
        self.pool = MapPool(config) if config.pool == "map" else None
        self.pool_norm = nn.LayerNorm(config.width, eps=config.numerics.norm_eps) if config.norm_after_pool else None
        self.representation = nn.Linear(config.width, config.representation_width) if config.representation_width else None
        self.head = nn.Linear(config.feature_width, config.num_classes) if config.num_classes else None
        self.distill_head = nn.Linear(config.width, config.num_classes) if config.distill_token and config.num_classes else None

    def class_and_distill_logits(self, images_BCHW: Tensor, record: Record | None = None) -> tuple[Tensor, Tensor]:
        """The logits of the class token's head and of the distillation token's (Touvron et al. 2021), for training."""
        return self.two_logits(self.read(images_BCHW, record))

    def two_logits(self, z_BND: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the encoder's tokens."""
        if self.head is None or self.distill_head is None:
            raise ConfigError("this model has no distillation head", hint="distill_token=True and num_classes above 0")
        if self.pool_norm is not None:
            z_BND = self.pool_norm(z_BND[:, :2])
        return self.head(z_BND[:, 0]), self.distill_head(z_BND[:, 1])

    def prefix(self, batch: int) -> list[Tensor]:
        """Class, distillation and register tokens, as many of them as there are, for each picture."""
        tokens = (self.class_token, self.distill_token, self.register_tokens)
        return [tokens_1ND.expand(batch, -1, -1) for tokens_1ND in tokens if tokens_1ND is not None]

    def thinned(self, z_BND: Tensor) -> Tensor:
        """In training, a random choice of the patches without `config.patch_dropout` of them; else all."""
        if not self.training or self.config.patch_dropout == 0:
            return z_BND
        b, n, d = z_BND.shape
        prefix = self.config.prefix_tokens
        kept = max(1, round((n - prefix) * (1 - self.config.patch_dropout)))
        chosen_BN = torch.rand(b, n - prefix, device=z_BND.device).argsort(1)[:, :kept].sort(1).values + prefix
        patches_BND = z_BND.gather(1, chosen_BN[:, :, None].expand(-1, -1, d))
        return torch.cat([z_BND[:, :prefix], patches_BND], dim=1)

    def checked_grid(self, images_BCHW: Tensor, record: Record | None) -> Grid:
        """The grid of patches of these pictures, or a refusal that says what the model takes."""
        config = self.config
        if record is not None:
            record.refuse_maps("a ViT")
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images of shape {tuple(images_BCHW.shape)} are not (batch, {config.channels}, height, width)")
        _, channels, height, width = images_BCHW.shape
        if channels != config.channels:
            raise ConfigError(f"the pictures have {channels} channels and the model takes {config.channels}")
        if not self.any_size and (height, width) != config.image_size:
            raise ConfigError(
                f"the pictures are {height}x{width} and the model takes {config.image_size[0]}x{config.image_size[1]}",
                hint=f"load(..., image_size=({height}, {width})) fits it once, dynamic_size=True lets it take any size",
            )
        step_h, step_w = config.step
        if not config.pad and (height % step_h or width % step_w):
            raise ConfigError(f"the pictures are {height}x{width}, not a multiple of the patch {step_h}x{step_w}", hint="pad=True")
        return config.grid_of((height, width))


def tokens_read(config: ViTConfig) -> int | None:
    """How many of the first tokens the pool reads, or None where it is all of them or attention is not among all."""
    among_all = config.attention == "global" and config.position.kind != "relative"
    return 1 + int(config.distill_token) if config.pool == "token" and among_all else None


def _tokens(config: ViTConfig, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, config.width)) if count else None
