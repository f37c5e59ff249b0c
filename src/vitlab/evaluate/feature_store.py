"""Features that were made once, kept in the user's cache folder by the content of the picture and of the model.

Every picture is kept by the hash of its own bytes, so another division, another order, other labels or another container of
the same pictures find what is there, and work that was interrupted goes on where it stopped.

Axes: N pictures, D width of the features, 16 bytes of a hash.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vitlab.data.files.cache import cache_folder
from vitlab.data.files.digests import DIGEST_BYTES, Digests

Rows = NDArray[np.float32]


class FeatureStore:
    """The features of one model. `key` says which: it must change with whatever changes a feature.

    `trouble` is why something could not be kept (a full disk, a home without permission), or None; the work then goes on.
    """

    def __init__(self, key: str) -> None:
        self.folder = cache_folder() / "features" / key
        self.trouble: str | None = None

    def recall(self, digests_N16: Digests) -> tuple[NDArray[np.bool_], Rows | None]:
        """Which of these pictures are known, (N,), and the features of those, in order; None where none is."""
        wanted_N = _as_text(digests_N16)
        order_N = np.argsort(wanted_N, kind="stable")
        known_N = np.zeros(len(wanted_N), np.bool_)
        found_ND: Rows | None = None
        for digests_M16, features_MD in self._chunks():
            if found_ND is not None and features_MD.shape[1] != found_ND.shape[1]:
                continue
            low_M = np.searchsorted(wanted_N, _as_text(digests_M16), side="left", sorter=order_N)
            high_M = np.searchsorted(wanted_N, _as_text(digests_M16), side="right", sorter=order_N)
            for row in np.flatnonzero(high_M > low_M):  # more than one where the same picture is asked for twice
                if found_ND is None:
                    found_ND = np.zeros((len(wanted_N), features_MD.shape[1]), np.float32)
                places = order_N[low_M[row] : high_M[row]]
                found_ND[places] = features_MD[row]
                known_N[places] = True
        return known_N, None if found_ND is None else found_ND[known_N]

    def keep(self, digests_N16: Digests, features_ND: Rows) -> None:
        """Keep the features of some pictures, all of them or, where that is not possible, none."""
        if self.trouble is not None or not len(digests_N16):
            return
        name = blake2b(np.ascontiguousarray(digests_N16).data, digest_size=DIGEST_BYTES).hexdigest()
        partial = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self.folder, prefix=".partial-")
            with os.fdopen(handle, "wb") as out:
                np.savez(out, allow_pickle=False, digests=digests_N16, features=features_ND)
            os.replace(partial, self.folder / f"{name}.npz")  # noqa: PTH105
        except OSError as error:
            self.trouble = f"features are not kept: {error.strerror or error} ({self.folder})"
            if partial is not None:
                Path(partial).unlink(missing_ok=True)

    def _chunks(self) -> Iterator[tuple[Digests, Rows]]:
        """What is kept, a file at a time; damaged files are as good as absent."""
        for path in sorted(self.folder.glob("*.npz")):
            try:
                with path.open("rb") as file:  # numpy leaves it open where it is damaged
                    stored = np.load(file, allow_pickle=False)
                    if not isinstance(stored, NpzFile):
                        continue
                    digests_M16, features_MD = stored["digests"], stored["features"]
            except (OSError, ValueError, EOFError, KeyError, BadZipFile):
                continue
            whole = digests_M16.dtype == np.uint8 and digests_M16.shape == (len(features_MD), DIGEST_BYTES)
            if whole and features_MD.dtype == np.float32 and features_MD.ndim == 2:
                yield digests_M16, features_MD


def _as_text(digests_N16: Digests) -> NDArray[np.bytes_]:
    """Each hash as one value that can be sorted and compared; all have the same length, so none is cut short."""
    return np.ascontiguousarray(digests_N16).view(f"S{DIGEST_BYTES}").reshape(len(digests_N16))
