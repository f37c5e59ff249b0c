"""PyTorch with a folded ViT: the backend `torch` where the model can be folded.

Axes: B batch, H height, W width, C channels of a picture, R tokens read, D width.
"""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.check import at_least
from vitlab.errors import ConfigError
from vitlab.model.vit import ViT
from vitlab.predict.backend import Outputs
from vitlab.predict.fused.eager import FusedViT
from vitlab.predict.fused.folded import why_not_folded
from vitlab.predict.fused.workspace import Workspace
from vitlab.predict.lanes import Lanes, slices
from vitlab.predict.torch_backend import TorchBackend

_CACHED = 2_500_000  # bytes of the MLP's hidden numbers of a slice: more fall out of the second-level cache


class FusedBackend:
    """A checkpoint's ViT, folded; a batch goes through in slices of `pictures` (None: as many as the cache holds), side by side in
    as many lanes as torch has threads.

    One picture alone is run in the caller's thread with all of torch's threads.
    """

    name = "torch"

    def __init__(self, checkpoint: Checkpoint, *, pictures: int | None = None, merge: int = 0) -> None:
        if not isinstance(checkpoint.model, ViT):
            raise ConfigError(f"a {type(checkpoint.model).__name__} cannot be folded")
        pictures = _fitting(checkpoint.model) if pictures is None else pictures
        at_least("pictures", pictures, 1)
        self._model: ViT = checkpoint.model.eval()
        self._fused = FusedViT(self._model, checkpoint.preprocess, merge=merge)
        self.pictures = pictures
        self._lanes = Lanes(torch.get_num_threads())
        self._free: list[Workspace] = []  # popping and appending are atomic

    def sliced(self, pictures: int) -> FusedBackend:
        """The same weights in slices of another size."""
        other = copy(self)
        other.pictures, other._free = pictures, []
        return other

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        batch_BHWC = torch.from_numpy(images_BHWC)
        parts = slices(len(batch_BHWC), lanes=self._lanes.count, most=self.pictures)
        found = self._lanes.map(lambda part: self._answer(batch_BHWC[part], features), parts)
        return Outputs(
            logits_BK=np.concatenate([logits for logits, _ in found]),
            features_BD=np.concatenate([seen for _, seen in found if seen is not None]) if features else None,
        )

    def _answer(self, images_BHWC: Tensor, features: bool) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        try:
            work = self._free.pop()
        except IndexError:
            work = self._fused.workspace(self.pictures)
        z_BRD = self._fused.read(images_BHWC, work)
        self._free.append(work)
        with torch.inference_mode():
            logits_BK = z_BRD.new_empty(len(z_BRD), 0) if self._model.head is None else self._model.answered(z_BRD)
            seen_BD = self._model.represented(self._model.pooled(z_BRD)) if features else None
        return logits_BK.numpy(), None if seen_BD is None else seen_BD.numpy()


def _fitting(model: ViT) -> int:
    """Pictures in a slice: as many as the cache holds, but at least 3 rows for each row of the weights, or 4 pictures.

    Fewer starve the products. At 577 tokens slices of 1, 2 and 4 take 76.2, 77.5 and 80.9 ms a picture in Ti/16 (1 is enough),
    120, 110 and 112 in 6 layers of S/16 (2), 155, 151 and 150 in 3 layers of B/16 (4).
    """
    config = model.config
    enough = min(4, -(-3 * config.width // config.tokens))
    return max(enough, min(64, _CACHED // (4 * config.tokens * config.mlp_width)))


def torch_backend(
    checkpoint: Checkpoint, *, device: str | torch.device = "cpu", merge: int = 0
) -> tuple[FusedBackend | TorchBackend, str | None]:
    """PyTorch by the shortest way this model has, and why that is not the folded one where it is not."""
    TorchBackend(checkpoint, device=device)  # moves the model, and refuses what is none of ours
    why = why_not_folded(checkpoint.model)
    if why is None:
        return FusedBackend(checkpoint, merge=merge), None
    if merge:
        raise ConfigError(f"tokens of this model cannot be merged: {why}", hint="leave merge out")
    return TorchBackend(checkpoint, device=device, finish=True), why
