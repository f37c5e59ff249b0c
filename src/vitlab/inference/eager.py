"""A folded ViT run by PyTorch's plain products, each into a buffer that is there already.

Attention is exp(q k) v / sum(exp(q k)) without the usual subtraction of each row's largest logit, which saves two passes over
N x N numbers. It is the same quotient as long as no sum overflows or all but vanishes; sums are watched, and where one does, the
images are run again by the kernel that subtracts, which also serves long sequences that threads share. Heads stand before
images in memory, so that one batched product serves both and nothing is copied.

Axes: B batch, N tokens, P patches, T = B N rows, H heads, K width of a head, D width, M hidden width of the MLP, R tokens read,
S = H B maps of attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Preprocess
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError
from vitlab.inference.folded import Folded, FoldedLayer, finished, fold, merge, merged_count, schedule, weighed, why_not_merged
from vitlab.models.vit import ViT

# The buffers of a folded ViT at work: every product goes into memory that is there already.
#
# Axes: B batch, N tokens, T = B N rows, H heads, K width of a head, D width, M hidden width of the MLP, Q numbers of a patch,
# S = H B maps of attention, of which as many are computed at a time as stay in the second-level cache.

_CACHED_MAPS = 400_000  # numbers of the maps of attention computed at a time: 1.6 MB, a second-level cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Views of the buffers for some of the maps of attention."""

    q_SNK: Tensor
    kt_SKN: Tensor
    v_SNK: Tensor
    y_SNK: Tensor
    sum_S: Tensor
    sum_SN1: Tensor
    heads: slice
    maps_SNN: Tensor
    rows_SN: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """Views of the buffers for a number of images."""

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
    v_HBNK: Tensor
    q_HTK: Tensor
    k_BHNK: Tensor
    v_BHNK: Tensor
    q_BHNK: Tensor
    sums_BNH1: Tensor
    sums: Tensor
    parts: tuple[Part, ...]


class Workspace:
    """Buffers for up to `images` at once; one thread at a time may use it."""

    def __init__(self, folded: Folded, images: int) -> None:
        config, tokens = folded.config, folded.tokens
        self.images = images
        self._folded = folded
        rows, width = images * tokens, config.width
        patches = images * folded.grid[0] * folded.grid[1]
        numbers = 0 if folded.patch_QD is None else len(folded.patch_QD)
        self._patches = torch.empty(patches * numbers)
        self._z = torch.empty(rows * width)
        self._y = torch.empty(rows * width)
        self._mixed = torch.empty(rows * width)
        self._hidden = torch.empty(rows * max(config.mlp_width, width))
        self._qkv = torch.empty(3 * rows * width)
        self._sums = torch.empty(rows * config.heads)
        self._maps = torch.empty(max(tokens, min(_CACHED_MAPS, config.heads * rows * tokens)))
        self.ones_N = torch.ones(tokens)
        self._views: dict[tuple[int, int], Views] = {}

    def views(self, b: int, n: int) -> Views:
        """The buffers as tensors for b images of n tokens each."""
        if (b, n) not in self._views:
            self._views[b, n] = self._made(b, n)
        return self._views[b, n]

    def _made(self, b: int, n: int) -> Views:
        config = self._folded.config
        h, d = config.heads, config.width
        k, rows = d // h, b * n
        cells = b * self._folded.grid[0] * self._folded.grid[1]
        qkv = self._qkv[: 3 * rows * d]
        q_SNK, k_SNK, v_SNK = qkv.view(3, h * b, n, k).unbind(0)
        q_BHNK, k_BHNK, v_BHNK = (tensor.view(h, b, n, k).transpose(0, 1) for tensor in (q_SNK, k_SNK, v_SNK))
        mixed, sums, y = self._mixed[: rows * d], self._sums[: rows * h], self._y[: rows * d]
        mixed_SNK, maps = mixed.view(h * b, n, k), self._maps
        heads, lines = blocks(n, h * b)
        parts = []
        for first in range(0, h * b, heads):
            these = slice(first, min(first + heads, h * b))
            count = these.stop - first
            for top in range(0, n, lines):
                rows_of = slice(top, min(top + lines, n))
                high = rows_of.stop - top
                held = maps[: count * high * n]
                at = slice(first * n + top, (these.stop - 1) * n + rows_of.stop)  # one piece: rows are cut of one map alone
                parts.append(
                    Part(
                        q_SNK=q_SNK[these, rows_of],
                        kt_SKN=k_SNK[these].transpose(1, 2),
                        v_SNK=v_SNK[these],
                        y_SNK=mixed_SNK[these, rows_of],
                        sum_S=sums[at],
                        sum_SN1=sums[at].view(count, high, 1),
                        heads=these,
                        maps_SNN=held.view(count, high, n),
                        rows_SN=held.view(-1, n),
                    )
                )
        return Views(
            patches_BQ=self._patches.view(-1, max(1, len(self._patches) // max(1, self.images * cells // b)))[:cells],
            embedded_BD=self._hidden[: cells * d].view(cells, d),
            z_TD=self._z[: rows * d].view(rows, d),
            z_BND=self._z[: rows * d].view(b, n, d),
            y_TD=y.view(rows, d),
            y_BNHK=y.view(b, n, h, k),
            mixed_BNHK=mixed.view(h, b, n, k).permute(1, 2, 0, 3),
            branch_TD=mixed.view(rows, d),
            hidden_TM=self._hidden[: rows * config.mlp_width].view(rows, config.mlp_width),
            qkv_3HTK=qkv.view(3 * h, rows, k),
            v_HBNK=v_SNK.view(h, b, n, k),
            q_HTK=qkv[: rows * d].view(h, rows, k),
            k_BHNK=k_BHNK,
            v_BHNK=v_BHNK,
            q_BHNK=q_BHNK,
            sums_BNH1=sums.view(h, b, n, 1).permute(1, 2, 0, 3),
            sums=sums,
            parts=tuple(parts),
        )


def blocks(tokens: int, maps: int) -> tuple[int, int]:
    """How much of attention is computed at a time: so many whole maps, or of one map so many rows. What it takes grows linearly."""
    if tokens**2 <= _CACHED_MAPS:
        return min(maps, _CACHED_MAPS // tokens**2), tokens
    return 1, max(1, _CACHED_MAPS // tokens)


SMALLEST_SUM = 1e-30  # of exp(logits): far above what float32 cannot hold, so that no weight that matters was lost
# Tokens up to which plain products are the faster attention where threads share one image: each product waits for all of them,
# PyTorch's own kernel waits once. A layer of Ti/16, two threads: 0.47 against 0.51 ms at 197 tokens, 1.28 against 1.33 at 401, 2.56
# against 2.32 at 577. With one thread they stay at every length: from 197 to 1,025 tokens, widths 192 and 768, batches of 1, 4, 8,
# the kernel takes 0.95 to 1.10 of their time, 1.02 in the middle; in the whole Ti/16 at 577 tokens 83.6 against 78.6 ms.
SHARED_TOKENS = 480


class FusedViT:
    """A ViT with folded weights; `merge` pairs of patches a layer, on average, become one token each.

    The weights are shared between threads, a workspace belongs to one.
    """

    def __init__(self, model: ViT, preprocess: Preprocess, *, merge: int = 0) -> None:
        if merge and (why := why_not_merged(model.config)) is not None:
            raise ConfigError(f"tokens of this model cannot be merged: {why}", hint="leave merge out")
        self.model = finished(model)
        self.preprocess = preprocess
        self.counts = schedule(model.config.layers, merge)
        self.folded = fold(model, preprocess)
        heads, width = model.config.heads, model.config.width
        self._qkv = [
            layer.qkv_D3D.view(width, 3 * heads, width // heads).transpose(0, 1).contiguous() for layer in self.folded.layers
        ]
        tanh = self.folded.gelu == "tanh" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        # PyTorch's own tanh GELU takes five times its erf GELU; oneDNN has it inside the product.
        self._packed = [_packed(layer) for layer in self.folded.layers] if tanh else None

    def workspace(self, images: int) -> Workspace:
        """Buffers for up to so many images."""
        return Workspace(self.folded, images)

    @torch.inference_mode()
    def read(self, images: Tensor, work: Workspace) -> Tensor:
        """The tokens that the pool reads, (B, R, D), after the last LayerNorm; `answered` makes logits of it.

        `images` are uint8 (B, H, W, C), or floating point and normalised (B, C, H, W).
        """
        found = self._encoded(images, work, watch=True) if self._plain() else None
        if found is None:
            found = self._encoded(images, work, watch=False)
            assert found is not None
        z_BRD, size_BN = found
        if (norm := self.model.encoder.norm) is not None:
            z_BRD = norm(z_BRD)
        if size_BN is not None and self.folded.config.pool == "mean":
            z_BRD = weighed(z_BRD, size_BN, self.folded.config.prefix_tokens)
        return z_BRD

    def _plain(self) -> bool:
        """Whether attention is plain products; merged tokens are fewer in each layer, and always go that way."""
        return any(self.counts) or self.folded.tokens <= SHARED_TOKENS or torch.get_num_threads() == 1

    def _encoded(self, images: Tensor, work: Workspace, *, watch: bool) -> tuple[Tensor, Tensor | None] | None:
        """The first R tokens before the last norm, and how many patches each token stands for where some were merged.

        None where a sum of exponentials was too small or too large to trust.
        """
        b, prefix = len(images), self.folded.config.prefix_tokens
        views = work.views(b, self.folded.tokens)
        self._start(images, views)
        size_BN: Tensor | None = None
        least, last = 1.0, len(self.folded.layers) - 1
        for place, layer in enumerate(self.folded.layers):
            if layer.added_1ND is not None:
                views.z_BND.add_(layer.added_1ND)
            if place == last and self.folded.read is not None:
                z_BRD = self._last(layer, views, self.folded.read, size_BN)
                break
            self._attention(place, layer, views, work, size_BN, watch=watch)
            if watch:
                least = min(least, float(views.sums.min()))
            if place < last and (count := merged_count(views.z_BND.shape[1], prefix, self.counts[place])):
                size_BN = views.z_BND.new_ones(views.z_BND.shape[:2]) if size_BN is None else size_BN
                z_BND, size_BN = merge(views.z_BND, views.k_BHNK.transpose(0, 1), size_BN, count=count, prefix=prefix)
                views = work.views(b, z_BND.shape[1])
                views.z_BND.copy_(z_BND)
            self._mlp(place, layer, views)
        else:
            z_BRD = views.z_BND.clone()
        if watch and not (least > SMALLEST_SUM and bool(z_BRD.isfinite().all())):
            return None
        return z_BRD, size_BN

    def _start(self, images: Tensor, views: Views) -> None:
        """z_0 of equation 1, into its buffer."""
        folded = self.folded
        prefix = folded.config.prefix_tokens
        if images.dtype == torch.uint8 and folded.patch_QD is not None:
            embedded_BND, start_1ND = self._embedded(images, views, folded.patch_QD), folded.start_1ND
        else:
            images_BCHW = normalise(images, self.preprocess) if images.dtype == torch.uint8 else images
            embedded_BND, start_1ND = self.model.embedded(images_BCHW), folded.bare_1ND
        torch.add(embedded_BND, start_1ND[:, prefix:], out=views.z_BND[:, prefix:])
        views.z_BND[:, :prefix] = start_1ND[:, :prefix]

    def _embedded(self, images_BHWC: Tensor, views: Views, patch_QD: Tensor) -> Tensor:
        """Raw pixels as patches in rows, and these as vectors, (B, P, D)."""
        (g, j), (p, q) = self.folded.grid, self.folded.config.patch_size
        b, h, w, c = images_BHWC.shape
        if (h, w) != (g * p, j * q):
            whole_BHWC = self.folded.fill_C.expand(b, g * p, j * q, c).contiguous()
            whole_BHWC[:, :h, :w] = images_BHWC
            images_BHWC = whole_BHWC
        cut = images_BHWC.view(b, g, p, j, q * c).transpose(2, 3)
        views.patches_BQ.view(b, g, j, p, q * c).copy_(cut)
        torch.mm(views.patches_BQ, patch_QD, out=views.embedded_BD)
        return views.embedded_BD.view(b, g * j, -1)

    def _attention(
        self, place: int, layer: FoldedLayer, views: Views, work: Workspace, size_BN: Tensor | None, *, watch: bool
    ) -> None:
        """z' = MSA(LN(z)) + z, eq. 2; a token that stands for several patches is seen as often."""
        x_TD = F.layer_norm(views.z_TD, layer.norm1[0].shape, *layer.norm1, self.folded.config.numerics.norm_eps)
        weight_3HDK = self._qkv[place]
        torch.bmm(x_TD.expand(len(weight_3HDK), -1, -1), weight_3HDK, out=views.qkv_3HTK)
        self._bias_queries(layer, views.q_HTK)
        if watch:
            ones_N, seen_SN1 = work.ones_N[: views.z_BND.shape[1]], None
            if size_BN is not None:  # s exp(q k) in place of exp(q k + log s): in the values and in the sum
                seen_SN1 = size_BN.repeat(len(views.v_HBNK), 1)[:, :, None]
                views.v_HBNK.mul_(size_BN[:, :, None])
            for part in views.parts:
                torch.bmm(part.q_SNK, part.kt_SKN, out=part.maps_SNN)
                torch.exp(part.maps_SNN, out=part.maps_SNN)
                if seen_SN1 is None:
                    torch.mv(part.rows_SN, ones_N, out=part.sum_S)
                else:
                    torch.bmm(part.maps_SNN, seen_SN1[part.heads], out=part.sum_SN1)
                torch.bmm(part.maps_SNN, part.v_SNK, out=part.y_SNK)
            torch.div(views.mixed_BNHK, views.sums_BNH1, out=views.y_BNHK)
        else:
            seen = _seen(size_BN)
            y_BHNK = F.scaled_dot_product_attention(views.q_BHNK, views.k_BHNK, views.v_BHNK, attn_mask=seen, scale=1.0)
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

    def _last(self, layer: FoldedLayer, views: Views, read: int, size_BN: Tensor | None) -> Tensor:
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
        seen = _seen(size_BN)
        y_BHRK = F.scaled_dot_product_attention(q_BHRK, views.k_BHNK, views.v_BHNK, attn_mask=seen, scale=1.0)
        z_BRD = z_BRD + y_BHRK.transpose(1, 2).flatten(2) @ layer.out_DD + layer.out_bias_D
        x_BRD = F.layer_norm(z_BRD, (d,), *layer.norm2, eps) @ layer.up_DM + layer.up_bias_M
        hidden_BRM = F.gelu(x_BRD, approximate="tanh" if self.folded.gelu == "tanh" else "none")
        return z_BRD + hidden_BRM @ layer.down_MD + layer.down_bias_D

    def _bias_queries(self, layer: FoldedLayer, q_HTK: Tensor) -> None:
        if layer.query_bias_D is not None:
            q_HTK.add_(layer.query_bias_D.view(len(q_HTK), 1, -1))


def _seen(size_BN: Tensor | None) -> Tensor | None:
    """What sizes add to the logits, (B, 1, 1, N)."""
    return None if size_BN is None else size_BN.log()[:, None, None]


def _packed(layer: FoldedLayer) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.up_DM.t().contiguous())
    return packed


# A ViT whose tokens are merged, as a model for what takes models: normalised images in, logits out.
#
# Axes: B batch, C channels or classes, H height, W width.

_PICTURES = 4


class MergedViT(nn.Module):
    """`merge` pairs of patches a layer, on average, become one token each. For inference alone, with the weights of now."""

    def __init__(self, checkpoint: Checkpoint, merge: int) -> None:
        super().__init__()
        if not isinstance(checkpoint.model, ViT):
            raise ConfigError(f"tokens of a {type(checkpoint.model).__name__} cannot be merged", hint="leave merge out")
        self.model = checkpoint.model
        self._fused = FusedViT(checkpoint.model, checkpoint.preprocess, merge=merge)
        self._work = self._fused.workspace(_PICTURES)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        firsts = range(0, len(images_BCHW), _PICTURES)
        read = (self._fused.read(images_BCHW[first : first + _PICTURES], self._work) for first in firsts)
        return torch.cat([self.model.answered(z_BRD) for z_BRD in read])
