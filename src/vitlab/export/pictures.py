"""Pictures to try a file with: the user's own, or generated ones.

Axes: N pictures, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoint import Checkpoint
from vitlab.config.decode import DecodeLimits
from vitlab.config.generated import GeneratedConfig
from vitlab.data.generated import pictures
from vitlab.data.source import Source
from vitlab.data.view import EvaluationView
from vitlab.errors import DataError
from vitlab.evaluate.mapping import match_by_name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pictures:
    """uint8 pictures as the model is fed with, and for each the model's classes that are right, where that is known."""

    images_NHWC: NDArray[np.uint8]
    right: tuple[tuple[int, ...], ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images_NHWC)


def own_pictures(checkpoint: Checkpoint, source: Source, *, most: int) -> Pictures:
    """At most `most` pictures of a source, spread evenly over it; unreadable ones are left out and said."""
    view = EvaluationView(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    places = np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(int)).tolist()
    images, kept, bad = [], list[int](), list[str]()
    for place in places:
        try:
            example = source[place]
            images.append(view.see(example.content, name=example.name))
            kept.append(place)
        except DataError as error:
            bad.append(error.message)
    if not images:
        raise DataError(f"none of the {len(places)} pictures could be read, the first because {bad[0]}" if bad else "no pictures")
    notes = (f"{len(bad)} pictures could not be read and were left out, the first: {bad[0]}",) if bad else ()
    right, why = _right(checkpoint, source, kept)
    return Pictures(images_NHWC=np.stack(images), right=right, notes=(*notes, *why))


def generated_pictures(checkpoint: Checkpoint, *, count: int, image_size: tuple[int, int] | None = None) -> Pictures:
    """Pictures of the built-in generated set, drawn at the size the model is fed with, or at another."""
    channels = checkpoint.preprocess.channels
    config = GeneratedConfig(
        kind="contours",
        classes=count,
        examples=1,
        image_size=checkpoint.preprocess.image_size if image_size is None else image_size,
        channels=3 if channels == 3 else 1,
    )
    images_NHWC = pictures(config, range(count), [0] * count)
    if images_NHWC.shape[3] != channels:
        images_NHWC = np.repeat(images_NHWC, channels, axis=3)
    return Pictures(images_NHWC=np.ascontiguousarray(images_NHWC))


def _right(
    checkpoint: Checkpoint, source: Source, places: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...] | None, tuple[str, ...]]:
    if source.multi_label or not source.labels:
        return None, ("the pictures have no single class: what is compared is agreement with the original",)
    found = [source.label(place) for place in places]
    try:
        targets = match_by_name(source.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=True)
    except DataError as error:
        return None, (f"the pictures' classes are not the model's ({error.message}): what is compared is agreement",)
    if not all(isinstance(label, int) for label in found):
        return None, ("not every picture has a label: what is compared is agreement with the original",)
    return tuple(tuple(targets.right[label]) for label in found if isinstance(label, int)), ()
