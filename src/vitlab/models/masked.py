"""Masked patch prediction (app. B.1.2): corrupt half of the patch embeddings and predict what the corrupted patches showed.

Axes: B batch, N patches, D width, C channels, P x Q pixels of a patch, T targets a patch, V values of a target.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.errors import ConfigError
from vitlab.models.vit import ViT, patchify

COLOURS = 512  # 3 bits for each of three channels
CELLS = 4  # a small patch is 4 x 4


class MaskedViT(nn.Module):
    """A ViT with what masked prediction needs beside it: the [mask] embedding and a linear head on each patch's token.

    `target`: `mean-colour` predicts one of 512 colours a patch, `small-patch` one for each of 16 cells, `pixels` all values.
    """

    def __init__(self, vit: ViT, target: str) -> None:
        super().__init__()
        config = vit.config
        step_h, step_w = config.step
        if target != "pixels" and config.channels != 3:
            raise ConfigError(f"target={target!r} is a colour of three channels, and the model takes {config.channels}")
        if target == "small-patch" and (step_h % CELLS or step_w % CELLS):
            raise ConfigError(f"target='small-patch' needs patches that {CELLS} divides, not {step_h}x{step_w}")
        if config.pad or config.patch_dropout:
            raise ConfigError("masked prediction needs every patch, and whole ones: pad=False, patch_dropout=0")
        outputs = {"mean-colour": COLOURS, "small-patch": CELLS**2 * COLOURS, "pixels": config.channels * step_h * step_w}
        self.vit = vit
        self.target = target
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.predict = nn.Linear(config.width, outputs[target])

    def forward(self, images_BCHW: Tensor, corrupted_BN: Tensor, masked_BN: Tensor, source_BN: Tensor) -> Tensor:
        """Predictions (B, N, outputs) for every patch.

        `corrupted_BN` says which embeddings are touched at all; of these `masked_BN` become [mask], and the others are taken from
        patch `source_BN`, which is the patch itself where it is left as it is.
        """
        vit = self.vit
        grid = vit.check_images(images_BCHW, None)
        x_BND = vit.embed(images_BCHW)
        from_BND = x_BND.gather(1, source_BN[:, :, None].expand(-1, -1, x_BND.shape[-1]))
        from_BND = torch.where(masked_BN[:, :, None], self.mask_token.to(x_BND.dtype), from_BND)
        x_BND = torch.where(corrupted_BN[:, :, None], from_BND, x_BND)
        z_BND = vit.encode(x_BND, grid)[:, vit.config.prefix_tokens :]
        y_BNV: Tensor = self.predict(z_BND)
        return y_BNV


def corruption(
    batch: int, patches: int, *, fraction: float, masked: float, swapped: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Which patches are corrupted, which of these masked, and where the others' embeddings come from, each (B, N).

    Exactly a `fraction` of each image's patches are corrupted; each of them is masked with chance `masked`, replaced by another
    patch of its image with chance `swapped`, and kept otherwise.
    """
    order_BN = torch.rand(batch, patches, generator=generator).argsort(1)
    corrupted_BN = order_BN < round(fraction * patches)
    fate_BN = torch.rand(batch, patches, generator=generator)
    masked_BN = corrupted_BN & (fate_BN < masked)
    swapped_BN = corrupted_BN & ~masked_BN & (fate_BN < masked + swapped)
    place_N = torch.arange(patches)
    shift_BN = torch.randint(1, max(patches, 2), (batch, patches), generator=generator)  # never itself
    source_BN = torch.where(swapped_BN, (place_N + shift_BN) % patches, place_N)
    return corrupted_BN, masked_BN, source_BN


def colour_codes(patches_BNCV: Tensor) -> Tensor:
    """Mean colours in [0, 1] over the last axis, as 3 bits a channel in one number from 0 to 511."""
    levels_BNC = (patches_BNCV.mean(-1) * 8).long().clamp(0, 7)
    red, green, blue = levels_BNC.unbind(-1)
    return (red * 8 + green) * 8 + blue


def targets(images_BCHW: Tensor, step: tuple[int, int], target: str) -> Tensor:
    """What is to be predicted of each patch of images with values in [0, 1]: codes (B, N, T), or pixels (B, N, V)."""
    p, q = step
    channels = images_BCHW.shape[1]
    patches_BNCV = patchify(images_BCHW, step).unflatten(-1, (channels, p * q))  # type: ignore[no-untyped-call]
    if target == "pixels":
        pixels: Tensor = patches_BNCV.flatten(2)
        return pixels
    if target == "mean-colour":
        return colour_codes(patches_BNCV)[:, :, None]
    small = patchify(images_BCHW, (p // CELLS, q // CELLS))  # cells in reading order over the whole image
    rows, columns = images_BCHW.shape[2] // p, images_BCHW.shape[3] // q
    codes = colour_codes(small.unflatten(-1, (channels, -1)))  # type: ignore[no-untyped-call]
    return codes.view(-1, rows, CELLS, columns, CELLS).permute(0, 1, 3, 2, 4).reshape(-1, rows * columns, CELLS**2)


def masked_loss(predicted_BNV: Tensor, wanted: Tensor, corrupted_BN: Tensor, target: str) -> Tensor:
    """Mean over each image's corrupted patches of the cross-entropy, or of the squared error, (B,)."""
    if target == "pixels":
        loss_BN = (predicted_BNV.float() - wanted).square().mean(-1)
    else:
        logits = predicted_BNV.float().unflatten(-1, (wanted.shape[-1], COLOURS))  # type: ignore[no-untyped-call]
        loss_BN = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape).mean(-1)
    return (loss_BN * corrupted_BN).sum(-1) / corrupted_BN.sum(-1).clamp(min=1)
