"""Any model as one module of plain operators, for torch.compile and for export: pixels or normalised pictures in, answers out.

Axes: B batch, H height, W width, C channels of a picture or classes; N tokens, D width, K width of a head, Q numbers of a patch.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.check import choice
from vitlab.config.data import Preprocess
from vitlab.errors import ConfigError
from vitlab.model.assemble import Model
from vitlab.model.vit import ViT
from vitlab.predict.fused.finished import finished
from vitlab.predict.fused.folded import Folded, FoldedLayer, fold, why_not_folded
from vitlab.predict.fused.merging import merge, merged_count, schedule, weighed, why_not_merged
from vitlab.predict.prediction import Chance

Input = Literal["pixels", "normalised"]
Output = Literal["logits", "probabilities", "features", "both"]


def exportable(
    checkpoint: Checkpoint, *, takes: Input = "pixels", gives: Output = "logits", chance: Chance = "softmax", merge: int = 0
) -> nn.Module:
    """A checkpoint's model as a module in evaluation mode for one tensor in, ready for torch.export, torch.compile and OpenVINO.

    `takes` `pixels`: uint8 (B, H, W, C) of the preprocessing's size, as pictures are in memory; `normalised`: float32
    (B, C, H, W), as the model itself takes them. `gives` `logits` or `probabilities` (B, C), the latter by `chance`; `features`
    (B, D); `both`: logits and features. The batch is of any size. A ViT is folded where it can be (`why_not_folded`), any other
    model is wrapped as it is; standardised kernels are finished in both. `merge` pairs of patches become one in every layer, on
    average, of a ViT that allows it.
    """
    choice("takes", takes, Input)
    choice("gives", gives, Output)
    model = checkpoint.model
    if not isinstance(model, Model):
        raise ConfigError(f"a {type(model).__name__} is not one of vitlab's models", hint="build or load it with vitlab")
    if gives in ("logits", "probabilities", "both") and model.head is None:
        raise ConfigError(f"this model has no head, and {gives} are asked for", hint="gives='features'")
    if isinstance(model, ViT) and why_not_folded(model) is None:
        inner: nn.Module = FoldedGraph(model, checkpoint.preprocess, pixels=takes == "pixels", merge=merge)
    elif merge:
        raise ConfigError(f"tokens of this model cannot be merged: {why_not_folded(model)}", hint="leave merge out")
    else:
        inner = PlainGraph(model, checkpoint.preprocess, pixels=takes == "pixels")
    return Answer(inner, gives=gives, chance=chance).eval()


class Answer(nn.Module):
    """The encoder's part, then the pool and the head."""

    def __init__(self, inner: nn.Module, *, gives: Output, chance: Chance) -> None:
        super().__init__()
        self.inner = inner
        self.gives = gives
        self.chance = chance

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features_BD, logits_BC = self.inner(images)
        if self.gives == "features":
            answer: Tensor | tuple[Tensor, Tensor] = features_BD
        elif self.gives == "both":
            answer = (logits_BC, features_BD)
        elif self.gives == "logits":
            answer = logits_BC
        else:
            answer = logits_BC.softmax(-1) if self.chance == "softmax" else logits_BC.sigmoid()
        return answer


class Normalise(nn.Module):
    """uint8 (B, H, W, C) to normalised float32 (B, C, H, W), with the same roundings as vitlab.data.normalise."""

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        for name, values in (("mean_C11", preprocess.mean), ("std_C11", preprocess.std)):
            scaled = 255 * torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
            self.register_buffer(name, scaled.float(), persistent=False)

    def forward(self, images_BHWC: Tensor) -> Tensor:
        images_BCHW = images_BHWC.permute(0, 3, 1, 2).float()
        return (images_BCHW - self.mean_C11) / self.std_C11


class PlainGraph(nn.Module):
    """A model as it is."""

    def __init__(self, model: Model, preprocess: Preprocess, *, pixels: bool) -> None:
        super().__init__()
        self.model = finished(model.eval())
        self.normalise = Normalise(preprocess) if pixels else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        images_BCHW = images if self.normalise is None else self.normalise(images)
        if isinstance(self.model, ViT):
            z_BND = self.model.read(images_BCHW)
            features_BD: Tensor = self.model.represented(self.model.pooled(z_BND))
            return features_BD, self.model.answered(z_BND)
        features_BD = self.model.features(images_BCHW)
        return features_BD, features_BD if self.model.head is None else self.model.head(features_BD)


class FoldedGraph(nn.Module):
    """A ViT with folded weights; the last layer computes only the tokens that are read."""

    start_1ND: Tensor

    def __init__(self, model: ViT, preprocess: Preprocess, *, pixels: bool, merge: int = 0) -> None:
        super().__init__()
        if merge and (why := why_not_merged(model.config)) is not None:
            raise ConfigError(f"tokens of this model cannot be merged: {why}", hint="leave merge out")
        folded = fold(model, preprocess)
        self.model = finished(model.eval())
        self.folded = folded
        self.pixels = pixels
        own = pixels and folded.patch_QD is not None
        self.normalise = Normalise(preprocess) if pixels and not own else None
        self.patch = nn.Buffer(folded.patch_QD.t().contiguous(), persistent=False) if own and folded.patch_QD is not None else None
        self.register_buffer("start_1ND", folded.start_1ND if own else folded.bare_1ND, persistent=False)
        last = len(folded.layers) - 1
        counts = (*schedule(len(folded.layers), merge), 0)
        self.layers = nn.ModuleList(
            GraphLayer(layer, folded, last=place == last, merge=counts[place]) for place, layer in enumerate(folded.layers)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        embedded_BND = self.embedded(images)
        prefix = self.folded.config.prefix_tokens
        z_BND = embedded_BND + self.start_1ND[:, prefix:]
        if prefix:
            z_BND = torch.cat([self.start_1ND[:, :prefix].expand(z_BND.shape[0], -1, -1), z_BND], dim=1)
        size_BN: Tensor | None = None
        for layer in self.layers:
            z_BND, size_BN = layer(z_BND, size_BN)
        if self.model.encoder.norm is not None:
            z_BND = self.model.encoder.norm(z_BND)
        if size_BN is not None and self.folded.config.pool == "mean":
            z_BND = weighed(z_BND, size_BN, prefix)
        return self.model.represented(self.model.pooled(z_BND)), self.model.answered(z_BND)

    def embedded(self, images: Tensor) -> Tensor:
        """Patches as vectors, (B, N, D), without what start_1ND adds."""
        if self.patch is None:
            embedded_BND: Tensor = self.model.embedded(images if self.normalise is None else self.normalise(images))
            return embedded_BND
        (g, j), (p, q) = self.folded.grid, self.folded.config.patch_size
        _, h, w, c = images.shape
        images_BHWC = images.float()
        if (h, w) != (g * p, j * q):
            edge_BHWC = F.pad(images_BHWC - self.folded.fill_C, (0, 0, 0, j * q - w, 0, g * p - h))
            images_BHWC = edge_BHWC + self.folded.fill_C
        patches_BNQ = images_BHWC.reshape(-1, g, p, j, q * c).permute(0, 1, 3, 2, 4).reshape(-1, g * j, p * q * c)
        return F.linear(patches_BNQ, self.patch)


class GraphLayer(nn.Module):
    """Equations 2 and 3 with folded weights, in operators that every runtime knows."""

    def __init__(self, layer: FoldedLayer, folded: Folded, *, last: bool, merge: int) -> None:
        super().__init__()
        config = folded.config
        self.merge, self.prefix = merge, config.prefix_tokens
        self.heads, self.width, self.eps = config.heads, config.width, config.numerics.norm_eps
        self.approximate = "tanh" if folded.gelu == "tanh" else "none"
        self.read = folded.read if last else None
        tensors = {
            "norm1_weight": layer.norm1[0],
            "norm1_bias": layer.norm1[1],
            "qkv": layer.qkv_D3D.t().contiguous(),
            "query_bias": layer.query_bias_D,
            "out": layer.out_DD.t().contiguous(),
            "out_bias": layer.out_bias_D,
            "norm2_weight": layer.norm2[0],
            "norm2_bias": layer.norm2[1],
            "up": layer.up_DM.t().contiguous(),
            "up_bias": layer.up_bias_M,
            "down": layer.down_MD.t().contiguous(),
            "down_bias": layer.down_bias_D,
            "added": layer.added_1ND,
        }
        if layer.query_bias_D is not None and self.read is None:  # one product: zeros for keys and values
            tensors["query_bias"] = F.pad(layer.query_bias_D, (0, 2 * config.width))
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    norm1_weight: Tensor
    norm1_bias: Tensor
    qkv: Tensor
    query_bias: Tensor | None
    out: Tensor
    out_bias: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    added: Tensor | None

    def forward(self, z_BND: Tensor, size_BN: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.added is not None:
            z_BND = z_BND + self.added
        x_BND = F.layer_norm(z_BND, (self.width,), self.norm1_weight, self.norm1_bias, self.eps)
        q_BHNK, k_BHNK, v_BHNK = self.projected(x_BND)
        seen = None if size_BN is None else size_BN.log()[:, None, None]
        y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=seen, scale=1.0)
        y_BND = F.linear(y_BHNK.transpose(1, 2).flatten(2), self.out, self.out_bias)
        z_BND = (z_BND if self.read is None else z_BND[:, : self.read]) + y_BND
        if self.merge and (count := merged_count(z_BND.shape[1], self.prefix, self.merge)):
            size_BN = z_BND.new_ones(z_BND.shape[:2]) if size_BN is None else size_BN
            z_BND, size_BN = merge(z_BND, k_BHNK.transpose(0, 1), size_BN, count=count, prefix=self.prefix)
        x_BND = F.layer_norm(z_BND, (self.width,), self.norm2_weight, self.norm2_bias, self.eps)
        hidden_BNM = F.gelu(F.linear(x_BND, self.up, self.up_bias), approximate=self.approximate)
        return z_BND + F.linear(hidden_BNM, self.down, self.down_bias), size_BN

    def projected(self, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; queries of the tokens that are read alone, where not all are."""
        if self.read is None:
            qkv_BND = F.linear(x_BND, self.qkv, self.query_bias)
            qkv_BN3HK = qkv_BND.view(x_BND.shape[0], -1, 3, self.heads, self.width // self.heads)
            q_BHNK, k_BHNK, v_BHNK = qkv_BN3HK.permute(2, 0, 3, 1, 4).unbind(0)
            return q_BHNK, k_BHNK, v_BHNK
        q_BRD = F.linear(x_BND[:, : self.read], self.qkv[: self.width], self.query_bias)
        kv_BND = F.linear(x_BND, self.qkv[self.width :])
        kv_BN2HK = kv_BND.view(x_BND.shape[0], -1, 2, self.heads, self.width // self.heads)
        k_BHNK, v_BHNK = kv_BN2HK.permute(2, 0, 3, 1, 4).unbind(0)
        q_BRHK = q_BRD.view(x_BND.shape[0], -1, self.heads, self.width // self.heads)
        return q_BRHK.transpose(1, 2), k_BHNK, v_BHNK
