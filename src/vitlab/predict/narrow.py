"""Backends with fewer threads than torch has, for one picture alone: small products wait longer for each other than they take.

Axes: B batch, H height, W width, C channels of a picture.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitlab.predict.backend import Backend, Outputs
from vitlab.predict.lanes import started
from vitlab.predict.runtime_backends import OnnxRuntimeBackend, OpenVINOBackend


class NarrowBackend:
    """A backend of torch run by a thread of its own, which has `threads` of torch's; the caller's number stays what it is."""

    def __init__(self, inner: Backend, threads: int) -> None:
        self._inner = inner
        self._own = started(1, threads=threads)

    @property
    def name(self) -> str:
        """The name of what is run."""
        return self._inner.name

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        return self._own.submit(partial(self._inner.run, images_BHWC, features=features)).result()


def narrowed(backend: Backend, threads: int) -> Backend:
    """The same model, which runs one picture alone with so many threads."""
    if isinstance(backend, OpenVINOBackend | OnnxRuntimeBackend):
        return backend.narrowed(threads)
    return NarrowBackend(backend, threads)


def fewer(threads: int) -> list[int]:
    """Numbers below `threads` that are worth a trial: half of it, half of that, down to 1."""
    found = []
    while threads > 1:
        threads //= 2
        found.append(threads)
    return found
