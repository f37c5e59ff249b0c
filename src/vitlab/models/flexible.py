"""FlexiViT (Beyer et al. 2023): one ViT whose patches may have any size, so that one model serves many budgets.

The weights belong to one patch size, the model's own. For another size the patch embedding is resized by pseudo-inverse and the
positions are interpolated to the new grid: once when a checkpoint is loaded (`checkpoints/reading.py`), and in each forward pass of
`FlexibleViT` and `FlexibleSegmenter`, which train with a patch size drawn for each step.

Axes: B batch, C channels or classes, H W pixels, P x Q pixels of a patch, N tokens, D width, O outputs of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import ViT, patchify, tokens_read

PatchSize = tuple[int, int]


def resize_patch(weight_OCPQ: Tensor, size: PatchSize) -> Tensor:
    """Patch kernels for another patch size: they give for a resized patch what the old ones gave for the patch.

    Exact where patches grow, the least-squares answer where they shrink; computed in float64.
    """
    p, q = weight_OCPQ.shape[-2:]
    inverse = inverse_resize((p, q), size).to(weight_OCPQ.device)
    return resized(weight_OCPQ.double(), inverse, size).to(weight_OCPQ.dtype)


def inverse_resize(size: PatchSize, other: PatchSize) -> Tensor:
    """The pseudo-inverse of R's transpose, (pixels of `other`, pixels of `size`), where R resizes a patch of `size` bilinearly."""
    p, q = size
    basis = torch.eye(p * q, dtype=torch.float64, device="cpu").view(p * q, 1, p, q)
    resize_old_new = F.interpolate(basis, other, mode="bilinear", align_corners=False).flatten(1)  # rows: one old pixel each
    inverse_new_old: Tensor = torch.linalg.pinv(resize_old_new)
    return inverse_new_old


def resized(weight_OCPQ: Tensor, inverse_new_old: Tensor, size: PatchSize) -> Tensor:
    """Kernels of another size by a matrix of `inverse_resize`."""
    weight: Tensor = weight_OCPQ.flatten(2) @ inverse_new_old.T
    return weight.view(*weight_OCPQ.shape[:2], *size)


class FlexibleViT(nn.Module):
    """A ViT that is trained at the patch `sizes`: `forward` takes one of them. Without one it is the ViT itself, as in evaluation.

    After a stem, sizes count cells of its map, as `config.patch_size` does. `both` gives the logits of both heads of a distilled
    ViT in training.
    """

    def __init__(self, vit: ViT, sizes: Sequence[PatchSize], *, both: bool = False) -> None:
        super().__init__()
        self.vit = vit
        self.both = both
        self.inverses = Inverses(vit.config.patch_size, sizes)

    def forward(self, images_BCHW: Tensor, patch_size: PatchSize | None = None) -> Tensor | tuple[Tensor, Tensor]:
        vit = self.vit
        if patch_size is None:
            z_BND = vit.encode_for_pool(images_BCHW)
        else:
            vit.check_images(images_BCHW, None)
            patches_BND, grid = embed_at(vit, images_BCHW, patch_size, self.inverses)
            z_BND = vit.encode(patches_BND, grid, read=tokens_read(vit.config) if vit.skip_unused_tokens else None)
        return vit.both_logits_from(z_BND) if self.both and self.training else vit.logits_from(z_BND)


class FlexibleSegmenter(nn.Module):
    """A segmenter on a ViT that is trained at the patch `sizes`, as a FlexibleViT is. Its decoder takes a grid of any size."""

    def __init__(self, segmenter: Segmenter, sizes: Sequence[PatchSize]) -> None:
        super().__init__()
        self.segmenter = segmenter
        self.inverses = Inverses(_vit_of(segmenter).config.patch_size, sizes)

    def forward(self, images_BCHW: Tensor, patch_size: PatchSize | None = None) -> Tensor:
        if patch_size is None:
            whole_BCHW: Tensor = self.segmenter(images_BCHW)
            return whole_BCHW
        vit, size = _vit_of(self.segmenter), (images_BCHW.shape[2], images_BCHW.shape[3])
        vit.check_images(images_BCHW, None)
        patches_BND, grid = embed_at(vit, images_BCHW, patch_size, self.inverses)
        features_BDGJ = self.segmenter.features_of_patches(patches_BND, grid)
        return self.segmenter.pixel_logits(features_BDGJ, size, step=(size[0] // grid[0], size[1] // grid[1]))


def _vit_of(segmenter: Segmenter) -> ViT:
    assert isinstance(segmenter.backbone, ViT), "the run's config refuses others"
    return segmenter.backbone


class Inverses(nn.Module):
    """The matrix of `inverse_resize` from a patch size to each of several others; buffers that no file holds."""

    def __init__(self, own: PatchSize, sizes: Sequence[PatchSize]) -> None:
        super().__init__()
        for size in sizes:
            self.register_buffer(_name(size), inverse_resize(own, size).float(), persistent=False)

    def to_size(self, size: PatchSize) -> Tensor:
        """The matrix for one of the sizes."""
        return self.get_buffer(_name(size))


def embed_at(vit: ViT, images_BCHW: Tensor, patch_size: PatchSize, inverses: Inverses) -> tuple[Tensor, tuple[int, int]]:
    """Patches of that size as vectors, (B, patches, D), and their grid."""
    before = vit.early if vit.stem is None else vit.stem
    maps_BCHW = images_BCHW if before is None else before(images_BCHW)
    weight_DCPQ: Tensor = vit.patches.weight
    if patch_size != vit.config.patch_size:
        weight_DCPQ = resized(weight_DCPQ, inverses.to_size(patch_size).to(weight_DCPQ.dtype), patch_size)
    patches_BND = F.linear(patchify(maps_BCHW, patch_size), weight_DCPQ.flatten(1), vit.patches.bias)
    grid = (maps_BCHW.shape[2] // patch_size[0], maps_BCHW.shape[3] // patch_size[1])
    return patches_BND if vit.patch_norm is None else vit.patch_norm(patches_BND), grid


def _name(size: PatchSize) -> str:
    return f"inverse_{size[0]}x{size[1]}"
