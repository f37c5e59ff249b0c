"""A folded ViT run by PyTorch's plain products, each into a buffer that is there already.

Attention is exp(q k) v / sum(exp(q k)) without the usual subtraction of each row's largest logit, which saves two passes over
N x N numbers. It is the same quotient as long as no sum overflows or all but vanishes; sums are watched, and where one does, the
pictures are run again by the kernel that subtracts. Heads stand before pictures in memory, so that one batched product serves
both and nothing is copied.

Axes: B batch, N tokens, H heads, K width of a head, D width, M hidden width of the MLP, Q numbers of a patch, R tokens read,
S = H B. `chunk` of the S maps of attention are computed at a time: they should stay in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.config.data import Preprocess
from vitlab.data.normalise import normalise
from vitlab.model.vit import ViT
from vitlab.predict.fused.folded import Folded, FoldedLayer, fold

SMALLEST_SUM = 1e-30  # of exp(logits): far above what float32 cannot hold, so that no weight that matters was lost
_CACHED_MAPS = 400_000  # numbers of the maps of attention computed at a time: 1.6 MB, a second-level cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Views of the buffers for some of the maps of attention."""

    q_SNK: Tensor
    kt_SKN: Tensor
    v_SNK: Tensor
    y_SNK: Tensor
    sum_S: Tensor
    maps_SNN: Tensor
    rows_SN: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """Views of the buffers for a number of pictures."""

    patches_BQ: Tensor
    embedded_BD: Tensor
    z_TD: Tensor
    z_BND: Tensor
    y_TD: Tensor
    y_BNHK: Tensor
    mixed_BNHK: Tensor
    branch_TD: Tensor
    hidden_TM: Tensor
    qkv_3HTK: Tensor
    q_HTK: Tensor
    k_BHNK: Tensor
    v_BHNK: Tensor
    q_BHNK: Tensor
    sums_BNH1: Tensor
    sums: Tensor
    parts: tuple[Part, ...]


class Workspace:
    """Buffers for up to `pictures` at once; one thread at a time may use it."""

    def __init__(self, folded: Folded, pictures: int) -> None:
        config, tokens = folded.config, folded.tokens
        self.pictures = pictures
        self._folded = folded
        rows, width = pictures * tokens, config.width
        patches = pictures * folded.grid[0] * folded.grid[1]
        numbers = 0 if folded.patch_QD is None else len(folded.patch_QD)
        self._patches = torch.empty(patches * numbers)
        self._z = torch.empty(rows * width)
        self._y = torch.empty(rows * width)
        self._mixed = torch.empty(rows * width)
        self._hidden = torch.empty(rows * max(config.mlp_width, width))
        self._qkv = torch.empty(3 * rows * width)
        self._sums = torch.empty(rows * config.heads)
        self._chunk = max(1, min(config.heads * pictures, _CACHED_MAPS // tokens**2))
        self._maps = torch.empty(self._chunk * tokens**2)
        self.ones_N = torch.ones(tokens)
        self.least = torch.empty(rows * config.heads)
        self._views: dict[int, Views] = {}

    def views(self, b: int) -> Views:
        """The buffers as tensors for b pictures."""
        if b not in self._views:
            self._views[b] = self._made(b)
        return self._views[b]

    def _made(self, b: int) -> Views:
        config, n = self._folded.config, self._folded.tokens
        h, d = config.heads, config.width
        k, rows = d // h, b * n
        cells = b * self._folded.grid[0] * self._folded.grid[1]
        qkv = self._qkv[: 3 * rows * d]
        q_SNK, k_SNK, v_SNK = qkv.view(3, h * b, n, k).unbind(0)
        q_BHNK, k_BHNK, v_BHNK = (tensor.view(h, b, n, k).transpose(0, 1) for tensor in (q_SNK, k_SNK, v_SNK))
        mixed, sums, y = self._mixed[: rows * d], self._sums[: rows * h], self._y[: rows * d]
        mixed_SNK, maps = mixed.view(h * b, n, k), self._maps.view(-1, n, n)
        parts = []
        for first in range(0, h * b, self._chunk):
            these = slice(first, min(first + self._chunk, h * b))
            count = these.stop - first
            parts.append(
                Part(
                    q_SNK=q_SNK[these],
                    kt_SKN=k_SNK[these].transpose(1, 2),
                    v_SNK=v_SNK[these],
                    y_SNK=mixed_SNK[these],
                    sum_S=sums[first * n : these.stop * n],
                    maps_SNN=maps[:count],
                    rows_SN=maps[:count].view(-1, n),
                )
            )
        return Views(
            patches_BQ=self._patches.view(-1, max(1, len(self._patches) // max(1, self.pictures * cells // b)))[:cells],
            embedded_BD=self._hidden[: cells * d].view(cells, d),
            z_TD=self._z[: rows * d].view(rows, d),
            z_BND=self._z[: rows * d].view(b, n, d),
            y_TD=y.view(rows, d),
            y_BNHK=y.view(b, n, h, k),
            mixed_BNHK=mixed.view(h, b, n, k).permute(1, 2, 0, 3),
            branch_TD=mixed.view(rows, d),
            hidden_TM=self._hidden[: rows * config.mlp_width].view(rows, config.mlp_width),
            qkv_3HTK=qkv.view(3 * h, rows, k),
            q_HTK=qkv[: rows * d].view(h, rows, k),
            k_BHNK=k_BHNK,
            v_BHNK=v_BHNK,
            q_BHNK=q_BHNK,
            sums_BNH1=sums.view(h, b, n, 1).permute(1, 2, 0, 3),
            sums=sums,
            parts=tuple(parts),
        )


class FusedViT:
    """A ViT with folded weights. The weights are shared between threads, a workspace belongs to one."""

    def __init__(self, model: ViT, preprocess: Preprocess) -> None:
        self.model = model
        self.preprocess = preprocess
        self.folded = fold(model, preprocess)
        heads, width = model.config.heads, model.config.width
        self._qkv = [
            layer.qkv_D3D.view(width, 3 * heads, width // heads).transpose(0, 1).contiguous() for layer in self.folded.layers
        ]
        tanh = self.folded.gelu == "tanh" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        # PyTorch's own tanh GELU takes five times its erf GELU; oneDNN has it inside the product.
        self._packed = [_packed(layer) for layer in self.folded.layers] if tanh else None

    def workspace(self, pictures: int) -> Workspace:
        """Buffers for up to so many pictures."""
        return Workspace(self.folded, pictures)

    @torch.inference_mode()
    def read(self, images_BHWC: Tensor, work: Workspace) -> Tensor:
        """The tokens that the pool reads, (B, R, D), after the last LayerNorm, of uint8 pictures; `answered` makes logits of it."""
        z_BRD = self._encoded(images_BHWC, work, watch=True)
        if z_BRD is None:
            z_BRD = self._encoded(images_BHWC, work, watch=False)
            assert z_BRD is not None
        norm = self.model.encoder.norm
        return z_BRD if norm is None else norm(z_BRD)

    def _encoded(self, images_BHWC: Tensor, work: Workspace, *, watch: bool) -> Tensor | None:
        """The first R tokens before the last norm; None where a sum of exponentials was too small or too large to trust."""
        views = work.views(len(images_BHWC))
        self._start(images_BHWC, views)
        least = work.least[: len(views.sums)].fill_(1.0)
        last = len(self.folded.layers) - 1
        for place, layer in enumerate(self.folded.layers):
            if layer.added_1ND is not None:
                views.z_BND.add_(layer.added_1ND)
            if place == last and self.folded.read is not None:
                z_BRD = self._last(layer, views, self.folded.read)
                break
            self._attention(place, layer, views, work, watch=watch)
            if watch:
                torch.minimum(least, views.sums, out=least)
            self._mlp(place, layer, views)
        else:
            z_BRD = views.z_BND.clone()
        if watch and not (float(least.min()) > SMALLEST_SUM and bool(z_BRD.isfinite().all())):
            return None
        return z_BRD

    def _start(self, images_BHWC: Tensor, views: Views) -> None:
        """z_0 of equation 1, into its buffer."""
        folded, b = self.folded, len(images_BHWC)
        prefix = folded.config.prefix_tokens
        (g, j), (p, q) = folded.grid, folded.config.patch_size
        if folded.patch_QD is None:
            embedded_BND: Tensor = self.model.embedded(normalise(images_BHWC, self.preprocess))
        else:
            _, h, w, c = images_BHWC.shape
            if (h, w) != (g * p, j * q):
                whole_BHWC = folded.fill_C.expand(b, g * p, j * q, c).contiguous()
                whole_BHWC[:, :h, :w] = images_BHWC
                images_BHWC = whole_BHWC
            cut = images_BHWC.view(b, g, p, j, q * c).transpose(2, 3)
            views.patches_BQ.view(b, g, j, p, q * c).copy_(cut)
            torch.mm(views.patches_BQ, folded.patch_QD, out=views.embedded_BD)
            embedded_BND = views.embedded_BD.view(b, g * j, -1)
        torch.add(embedded_BND, folded.start_1ND[:, prefix:], out=views.z_BND[:, prefix:])
        views.z_BND[:, :prefix] = folded.start_1ND[:, :prefix]

    def _attention(self, place: int, layer: FoldedLayer, views: Views, work: Workspace, *, watch: bool) -> None:
        """z' = MSA(LN(z)) + z, eq. 2."""
        x_TD = F.layer_norm(views.z_TD, layer.norm1[0].shape, *layer.norm1, self.folded.config.numerics.norm_eps)
        weight_3HDK = self._qkv[place]
        torch.bmm(x_TD.expand(len(weight_3HDK), -1, -1), weight_3HDK, out=views.qkv_3HTK)
        self._bias_queries(layer, views.q_HTK)
        if watch:
            for part in views.parts:
                torch.bmm(part.q_SNK, part.kt_SKN, out=part.maps_SNN)
                torch.exp(part.maps_SNN, out=part.maps_SNN)
                torch.mv(part.rows_SN, work.ones_N, out=part.sum_S)
                torch.bmm(part.maps_SNN, part.v_SNK, out=part.y_SNK)
            torch.div(views.mixed_BNHK, views.sums_BNH1, out=views.y_BNHK)
        else:
            y_BHNK = F.scaled_dot_product_attention(views.q_BHNK, views.k_BHNK, views.v_BHNK, scale=1.0)
            views.y_BNHK.copy_(y_BHNK.transpose(1, 2))
        torch.mm(views.y_TD, layer.out_DD, out=views.branch_TD)
        views.z_TD.add_(views.branch_TD).add_(layer.out_bias_D)

    def _mlp(self, place: int, layer: FoldedLayer, views: Views) -> None:
        """MLP(LN(z')) + z', eq. 3."""
        x_TD = F.layer_norm(views.z_TD, layer.norm2[0].shape, *layer.norm2, self.folded.config.numerics.norm_eps)
        if self._packed is not None:
            hidden_TM = torch.ops.mkldnn._linear_pointwise(x_TD, self._packed[place], layer.up_bias_M, "gelu", [], "tanh")
        else:
            hidden_TM = views.hidden_TM
            torch.mm(x_TD, layer.up_DM, out=hidden_TM)
            hidden_TM.add_(layer.up_bias_M)
            torch.ops.aten.gelu_(hidden_TM, approximate="tanh" if self.folded.gelu == "tanh" else "none")
        torch.mm(hidden_TM, layer.down_MD, out=views.branch_TD)
        views.z_TD.add_(views.branch_TD).add_(layer.down_bias_D)

    def _last(self, layer: FoldedLayer, views: Views, read: int) -> Tensor:
        """The last layer for the first `read` tokens: their queries and MLP, and all keys and values; (B, R, D)."""
        config, z_BRD = self.folded.config, views.z_BND[:, :read]
        b, n, d = views.z_BND.shape
        heads, eps = config.heads, config.numerics.norm_eps
        x_TD = F.layer_norm(views.z_TD, (d,), *layer.norm1, eps)
        weight_3HDK = self._qkv[-1]
        torch.bmm(x_TD.expand(2 * heads, -1, -1), weight_3HDK[heads:], out=views.qkv_3HTK[heads:])
        q_BRD = x_TD.view(b, n, d)[:, :read] @ layer.qkv_D3D[:, :d]
        if layer.query_bias_D is not None:
            q_BRD += layer.query_bias_D
        q_BHRK = q_BRD.view(b, read, heads, -1).transpose(1, 2)
        y_BHRK = F.scaled_dot_product_attention(q_BHRK, views.k_BHNK, views.v_BHNK, scale=1.0)
        z_BRD = z_BRD + y_BHRK.transpose(1, 2).flatten(2) @ layer.out_DD + layer.out_bias_D
        x_BRD = F.layer_norm(z_BRD, (d,), *layer.norm2, eps) @ layer.up_DM + layer.up_bias_M
        hidden_BRM = F.gelu(x_BRD, approximate="tanh" if self.folded.gelu == "tanh" else "none")
        return z_BRD + hidden_BRM @ layer.down_MD + layer.down_bias_D

    def _bias_queries(self, layer: FoldedLayer, q_HTK: Tensor) -> None:
        if layer.query_bias_D is not None:
            q_HTK.add_(layer.query_bias_D.view(len(q_HTK), 1, -1))


def _packed(layer: FoldedLayer) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.up_DM.t().contiguous())
    return packed
