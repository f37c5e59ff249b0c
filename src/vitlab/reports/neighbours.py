"""The most similar images of a search index, and its map in two dimensions, for the explorer.

Axes: N images of the map, D width of the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import DataError
from vitlab.inference.backends import evaluating
from vitlab.inference.engine import Engine
from vitlab.inference.images import ImageReader
from vitlab.inference.search_index import Index
from vitlab.interpretation.attention import as_floats
from vitlab.interpretation.paint import Pixels
from vitlab.interpretation.weights import principal_directions
from vitlab.io.display import printable

Nearest = tuple[dict[str, Any], dict[int, Pixels]]
"""The nearest images as plain values, and thumbnails of those that can be read, by their place in the list."""

NO_LABEL = 65_535
_MOST = 2_000  # images on the map
_SHOWN = 8  # nearest images
_SIDE = 96  # pixels of their thumbnails


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbourhood:
    """An index that a model made, ready to be searched.

    `points_N2` are the places of some of its images on the map, from -1 to 1, and `codes_N` the numbers of their labels, 65535
    without one. `images` is the folder of the indexed images, where their names do not lead to them.
    """

    index: Index
    images: Path | None
    points_N2: NDArray[np.float32]
    codes_N: NDArray[np.uint16]
    mean_D: NDArray[np.float32]
    directions_2D: NDArray[np.float32]
    scale_2: NDArray[np.float32]

    @staticmethod
    def of(index: Index, checkpoint: Checkpoint, images: Path | None = None) -> Neighbourhood:
        """The index as a map; DataError if another model made it."""
        digest = Engine(checkpoint, backend="torch", device=next(checkpoint.model.parameters()).device).digest
        if digest != index.digest:
            raise DataError(
                f"the model did not make {printable(str(index.path))}: its features cannot be compared",
                hint=f"the index is of {index.digest[:16]}, the model with its preprocessing is {digest[:16]}",
            )
        features_ND, labels = index.sample(_MOST)
        mean_D = features_ND.mean(0)
        directions_MD, _ = principal_directions(torch.from_numpy(features_ND))
        directions_2D = np.zeros((2, features_ND.shape[1]), np.float32)
        directions_2D[: min(2, len(directions_MD))] = as_floats(directions_MD[:2])
        points_N2 = (features_ND - mean_D) @ directions_2D.T
        scale_2 = np.maximum(np.abs(points_N2).max(0), np.float32(1e-12))
        numbers = {label: number for number, label in enumerate(sorted({label for label in labels if label is not None}))}
        codes = [NO_LABEL if label is None else numbers[label] % NO_LABEL for label in labels]
        return Neighbourhood(
            index=index,
            images=images,
            points_N2=points_N2 / scale_2,
            codes_N=np.array(codes, np.uint16),
            mean_D=mean_D,
            directions_2D=directions_2D,
            scale_2=scale_2,
        )

    def facts(self) -> dict[str, Any]:
        """What the page says about the index."""
        return {"count": len(self.index), "shown": len(self.codes_N)}

    def nearest(self, checkpoint: Checkpoint, pixels_HWC: Pixels) -> Nearest:
        """The nearest images and the place on the map, as plain values; and thumbnails of those that can be read."""
        like = next(checkpoint.model.parameters())
        image_1CHW = normalise(torch.from_numpy(np.ascontiguousarray(pixels_HWC))[None], checkpoint.preprocess)
        with evaluating(checkpoint.model), torch.inference_mode():
            features_D = as_floats(checkpoint.model.features(image_1CHW.to(device=like.device, dtype=like.dtype)))[0]
        found = self.index.nearest(features_D, _SHOWN)
        unit_D = features_D / max(float(np.linalg.norm(features_D)), 1e-12)
        at_2 = ((unit_D - self.mean_D) @ self.directions_2D.T / self.scale_2).clip(-1, 1)
        reader = ImageReader(EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits()))
        thumbnails = {}
        for number, match in enumerate(found):
            thumbnail = self._thumbnail(reader, match.name)
            if thumbnail is not None:
                thumbnails[number] = thumbnail
        images = [
            {"name": printable(match.name), "label": match.label and printable(match.label), "similarity": match.similarity}
            for match in found
        ]
        return {"images": images, "at": [float(value) for value in at_2]}, thumbnails

    def _thumbnail(self, reader: ImageReader, name: str) -> Pixels | None:
        """The image as the model sees it, small; None where its name does not lead to a file."""
        path = name if self.images is None else f"{self.images}/{name}"
        try:
            pixels_HWC = reader(path, name)
        except DataError:  # an index outlives its images
            return None
        step = max(1, min(pixels_HWC.shape[:2]) // _SIDE)
        return pixels_HWC[::step, ::step]
