"""Inference at the native aspect ratio: images of different shapes, as rows of patches (`data/transforms.py`), in one sequence.

`PackedBackend` runs a ViT on the CPU with folded weights where it can be folded, a few images packed together in each thread; any
other ViT and device runs `models/packing.py` itself. Both give each image what the model gives for the image alone.

Axes: B images, R rows, V pixels of a patch, C channels; T tokens of all images, N of one, D width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Preprocess, why_not_packed
from vitlab.data.transforms import grids_of, normalise
from vitlab.errors import ConfigError
from vitlab.inference.backends import SLICE, Backend, Lanes, Outputs, Pixels, TorchBackend, slices
from vitlab.inference.folded import FoldedLayer, folded_patches, start_table, why_not_folded
from vitlab.models.packing import PackedViT
from vitlab.models.position import Grid
from vitlab.models.vit import Block, ViT, tokens_read

_TABLES = 64  # of different shapes that are kept


def packed_backend(checkpoint: Checkpoint, backend: str, device: torch.device, *, merge: int) -> Backend:
    """The backend for images of different shapes; what cannot run them is refused with the reason."""
    if (why := why_not_packed(checkpoint.config)) is not None:
        raise ConfigError(f"images of different shapes cannot be packed for this model: {why}", hint="resize='squash' or 'pad'")
    if backend not in ("auto", "torch"):
        raise ConfigError(
            f"backend={backend!r} runs images of one shape, and resize='native' gives each its own", hint="backend='torch'"
        )
    if merge:
        raise ConfigError("tokens of packed images are not merged", hint="leave merge out, or resize='squash'")
    model = checkpoint.model.to(device).eval()
    assert isinstance(model, ViT)
    if why_not_folded(model) is None and _places_once(model):
        return PackedBackend(model, checkpoint.preprocess)
    return PackedTorchBackend(model, checkpoint.preprocess, device=device)


def plain_backend(model: nn.Module, preprocess: Preprocess, *, device: torch.device) -> Backend:
    """A model in PyTorch, unchanged: for images of one shape, or packed at the native aspect ratio."""
    if preprocess.resize != "native":
        return TorchBackend(model, preprocess, device=device)
    vit = model.vit if isinstance(model, PackedViT) else model
    assert isinstance(vit, ViT), "the run's config refuses others"
    return PackedTorchBackend(vit, preprocess, device=device)


def _places_once(model: ViT) -> bool:
    """Whether positions are only added before the first layer: then the layers are the same for all shapes."""
    position = model.config.position
    return (position.place == "stem" or position.kind == "none") and position.rotary is None and position.bias is None


class PackedTorchBackend:
    """A ViT's own modules over packed images, in evaluation mode and without gradients."""

    name = "torch"

    def __init__(self, model: ViT, preprocess: Preprocess, *, device: str | torch.device = "cpu") -> None:
        self._model = PackedViT(model.to(device).eval())
        self._preprocess = preprocess
        self._device = torch.device(device)
        self._dtype = next(model.parameters()).dtype

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features, of images as rows of patches."""
        with torch.inference_mode():
            images_BCRV = normalise(torch.from_numpy(images_BHWC).to(self._device), self._preprocess, self._dtype)
            logits_BK, features_BD = self._model.both(images_BCRV, grids_of(images_BHWC))
        return _outputs(self._model.vit, logits_BK, features_BD, features=features)


class PackedBackend:
    """A ViT's folded layers over packed images: a few images in each of as many threads as PyTorch has."""

    name = "torch"

    @torch.no_grad()
    def __init__(self, model: ViT, preprocess: Preprocess, *, images: int = SLICE) -> None:
        self.model, config = model, model.config
        self.prefix, self.read = config.prefix_tokens, tokens_read(config)
        self.patch_DV, self.bias_D = folded_patches(model, preprocess)
        blocks = [block for block in model.encoder.blocks if isinstance(block, Block)]
        self.layers = [FoldedLayer(block, config, added_1ND=None, read=None, merge=0) for block in blocks]
        self._tables: dict[Grid, Tensor] = {}
        self._images = images
        self._lanes = Lanes(torch.get_num_threads())

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features, of images as rows of patches."""
        parts = slices(len(images_BHWC), lanes=self._lanes.count, most=self._images)
        found = self._lanes.map(lambda part: self._run_slice(images_BHWC[part]), parts)
        logits_BK, features_BD = (torch.cat([pair[place] for pair in found]) for place in (0, 1))
        return _outputs(self.model, logits_BK, features_BD, features=features)

    def _run_slice(self, rows_BRVC: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            z_1TD, lengths = self.embedded(rows_BRVC)
            encoder, last = self.model.encoder, len(self.layers) - 1
            z_1TD = z_1TD if encoder.pre_norm is None else encoder.pre_norm(z_1TD)
            for place, layer in enumerate(self.layers):
                z_1TD = packed_layer(layer, z_1TD, lengths, read=self.read if place == last else None)
            z_1TD = z_1TD if encoder.norm is None else encoder.norm(z_1TD)
            model = self.model
            if self.read is not None:  # the same number of tokens of each image
                z_BND = z_1TD.view(len(lengths), self.read, -1)
                return model.logits_from(z_BND), model.represent(model.pool_tokens(z_BND))
            pieces = torch.split(z_1TD, lengths, dim=1)
            features = [model.represent(model.pool_tokens(z_1ND)) for z_1ND in pieces]
            return torch.cat([model.logits_from(z_1ND) for z_1ND in pieces]), torch.cat(features)

    def embedded(self, rows_BRVC: NDArray[np.uint8]) -> tuple[Tensor, list[int]]:
        """The tokens of all images before the encoder, (1, T, D), and how many each has."""
        grids = grids_of(rows_BRVC)
        counts = [g * j for g, j in grids]
        used_TV = np.concatenate([rows_RVC[:count].reshape(count, -1) for rows_RVC, count in zip(rows_BRVC, counts, strict=True)])
        patches_TD = F.linear(torch.from_numpy(used_TV).float(), self.patch_DV)
        parts = list[Tensor]()
        for grid, part_ND in zip(grids, torch.split(patches_TD, counts), strict=True):
            table_1ND = self._table(grid)
            parts += [table_1ND[:, : self.prefix], part_ND[None] + table_1ND[:, self.prefix :]]
        return torch.cat(parts, dim=1), [self.prefix + count for count in counts]

    def _table(self, grid: Grid) -> Tensor:
        """Positions, prefix tokens and the embedding's bias of images of this grid, kept for the next ones."""
        if (known := self._tables.get(grid)) is not None:
            return known
        table_1ND = start_table(self.model, grid)
        table_1ND[:, self.prefix :] += self.bias_D
        if len(self._tables) >= _TABLES:
            self._tables.clear()
        self._tables[grid] = table_1ND
        return table_1ND


def packed_layer(layer: FoldedLayer, z_1TD: Tensor, lengths: Sequence[int], *, read: int | None) -> Tensor:
    """Equations 2 and 3 with folded weights, each image attending to itself; with `read`, of each image's first tokens only."""
    x_1TD = z_1TD if layer.post else layer.norm1(z_1TD)
    if read is None:
        q_1HTK, k_1HTK, v_1HTK = layer.projected(x_1TD)
        few_1TD, queries = x_1TD, torch.split(q_1HTK, list(lengths), dim=2)
    else:
        first = torch.tensor([sum(lengths[:image]) + token for image in range(len(lengths)) for token in range(read)])
        few_1TD, z_1TD = x_1TD[:, first], z_1TD[:, first]
        q_1HTK, k_1HTK, v_1HTK = layer.projected_apart(few_1TD, x_1TD)
        if layer.query_norm is not None and layer.key_norm is not None:
            q_1HTK, k_1HTK = layer.query_norm(q_1HTK), layer.key_norm(k_1HTK)
        queries = torch.split(q_1HTK, read, dim=2)
    keys, values = torch.split(k_1HTK, list(lengths), dim=2), torch.split(v_1HTK, list(lengths), dim=2)
    mixed = [F.scaled_dot_product_attention(q, k, v, scale=1.0) for q, k, v in zip(queries, keys, values, strict=True)]
    y_1TD = torch.cat(mixed, dim=2).transpose(1, 2).flatten(2)
    y_1TD = F.linear(y_1TD if layer.out_norm is None else layer.out_norm(y_1TD), layer.out, layer.out_bias)
    if layer.parallel:
        y_1TD = y_1TD + layer.transformed(few_1TD)
    z_1TD = z_1TD + (layer.norm1(y_1TD) if layer.post else y_1TD)
    if layer.norm2 is None:
        return z_1TD
    y_1TD = layer.norm2(layer.transformed(z_1TD)) if layer.post else layer.transformed(layer.norm2(z_1TD))
    return z_1TD + y_1TD


def _outputs(model: ViT, logits_BK: Tensor, features_BD: Tensor, *, features: bool) -> Outputs:
    logits = logits_BK[:, :0] if model.head is None else logits_BK
    return Outputs(logits_BK=logits.float().cpu().numpy(), features_BD=features_BD.float().cpu().numpy() if features else None)
