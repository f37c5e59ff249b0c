"""PyTorch as it is, the backend everything else is compared with.

Axes: B batch, H height, W width, C channels of a picture, K classes, D width of the features.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.checkpoint.contents import Checkpoint
from vitlab.data.normalise import normalise
from vitlab.errors import ConfigError
from vitlab.model.assemble import Model
from vitlab.model.vit import ViT
from vitlab.predict.backend import Outputs
from vitlab.predict.fused.finished import finished


class TorchBackend:
    """A checkpoint's model on a device, in evaluation mode, without gradients.

    `finish`: standardised kernels are computed once, now, and not at every call: the same bits, for one more copy of them.
    """

    name = "torch"

    def __init__(self, checkpoint: Checkpoint, *, device: str | torch.device = "cpu", finish: bool = False) -> None:
        model = checkpoint.model
        if not isinstance(model, Model):
            raise ConfigError(f"a {type(model).__name__} is not one of vitlab's models", hint="build or load it with vitlab")
        model = model.to(device).eval()
        self._model: Model = finished(model) if finish else model
        self._preprocess = checkpoint.preprocess
        self._device = torch.device(device)
        self._dtype = next(model.parameters()).dtype

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        with torch.inference_mode():
            batch_BHWC = torch.from_numpy(images_BHWC).to(self._device)
            images_BCHW = normalise(batch_BHWC, self._preprocess, self._dtype)
            if self._model.head is None:
                features_BD: Tensor | None = self._model.features(images_BCHW) if features else None
                logits_BK = images_BCHW.new_empty(len(images_BCHW), 0)
            elif not features:
                features_BD, logits_BK = None, self._model(images_BCHW)
            else:
                features_BD = self._model.features(images_BCHW)
                logits_BK = self._logits(images_BCHW, features_BD)
            return Outputs(logits_BK=_array(logits_BK), features_BD=None if features_BD is None else _array(features_BD))

    def _logits(self, images_BCHW: Tensor, features_BD: Tensor) -> Tensor:
        model = self._model
        if model.head is None or (isinstance(model, ViT) and model.distill_head is not None):
            logits_BK: Tensor = model(images_BCHW)  # two heads see two tokens, and features are the mean of both
        else:
            logits_BK = model.head(features_BD)
        return logits_BK


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.float().cpu().numpy()
    return array
