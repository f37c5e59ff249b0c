"""The last step before the model, done in float on the model's own device: uint8 pixels to normalised channels.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import torch

from vitlab.config.data import Preprocess
from vitlab.errors import DataError


def normalise(images_BHWC: torch.Tensor, config: Preprocess, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 [B, H, W, C] to `dtype` [B, C, H, W], (pixel / 255 - mean) / std, on the device the batch is on.

    Computed in float32 whatever `dtype`, so that half precision loses only its last rounding. With mean and std of 0.5 this is
    the official (pixel - 127.5) / 127.5 to the bit.
    """
    if images_BHWC.dtype != torch.uint8 or images_BHWC.ndim != 4:
        raise DataError(
            f"a batch must be uint8 [batch, height, width, channels], not {images_BHWC.dtype} {list(images_BHWC.shape)}"
        )
    if images_BHWC.shape[3] != config.channels:
        raise DataError(f"the batch has {images_BHWC.shape[3]} channels and mean has {config.channels}")
    mean_C11 = 255 * torch.tensor(config.mean, dtype=torch.float64).view(-1, 1, 1)
    std_C11 = 255 * torch.tensor(config.std, dtype=torch.float64).view(-1, 1, 1)
    images_BCHW = images_BHWC.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    images_BCHW -= mean_C11.to(images_BCHW)
    images_BCHW /= std_C11.to(images_BCHW)
    return images_BCHW.to(dtype)
