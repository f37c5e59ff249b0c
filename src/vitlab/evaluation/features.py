"""What the head sees of every image of a source: extracted once, in batches, and kept for the next time.

Axes: B rows of a batch, N images, D width of the features; H height, W width, C channels.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.data import DecodeLimits
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.serialize import to_text
from vitlab.data.batch import Batch, Failure
from vitlab.data.dataset import Dataset, Label, ListedDataset, Sample
from vitlab.data.loader import Loader
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classify import evaluating
from vitlab.io.cache import cache_folder
from vitlab.io.digests import DIGEST_BYTES, Digests, digest
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.families import Model

# Features that were made once, kept in the user's cache folder by the content of the image and of the model.
#
# Every image is kept by the hash of its own bytes, so another division, another order, other labels or another container of
# the same images find what is there, and work that was interrupted goes on where it stopped.
#
# Axes: N images, D width of the features, 16 bytes of a hash.

Rows = NDArray[np.float32]


class FeatureStore:
    """The features of one model. `key` says which: it must change with whatever changes a feature.

    `trouble` is why something could not be kept (a full disk, a home without permission), or None; the work then goes on.
    """

    def __init__(self, key: str) -> None:
        self.folder = cache_folder() / "features" / key
        self.trouble: str | None = None

    def recall(self, digests_N16: Digests) -> tuple[NDArray[np.bool_], Rows | None]:
        """Which of these images are known, (N,), and the features of those, in order; None where none is."""
        wanted_N = _as_text(digests_N16)
        order_N = np.argsort(wanted_N, kind="stable")
        known_N = np.zeros(len(wanted_N), np.bool_)
        found_ND: Rows | None = None
        for digests_M16, features_MD in self._chunks():
            if found_ND is not None and features_MD.shape[1] != found_ND.shape[1]:
                continue
            low_M = np.searchsorted(wanted_N, _as_text(digests_M16), side="left", sorter=order_N)
            high_M = np.searchsorted(wanted_N, _as_text(digests_M16), side="right", sorter=order_N)
            for row in np.flatnonzero(high_M > low_M):  # more than one where the same image is asked for twice
                if found_ND is None:
                    found_ND = np.zeros((len(wanted_N), features_MD.shape[1]), np.float32)
                places = order_N[low_M[row] : high_M[row]]
                found_ND[places] = features_MD[row]
                known_N[places] = True
        return known_N, None if found_ND is None else found_ND[known_N]

    def keep(self, digests_N16: Digests, features_ND: Rows) -> None:
        """Keep the features of some images, all of them or, where that is not possible, none."""
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


_KEPT_AT_ONCE = 1024  # images: what is lost at most when the work is interrupted
_LAYOUT = 1  # of what is kept; a change of it, or of vitlab, makes everything anew


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Features:
    """The features and the class of each image that could be read, in the source's order.

    `indices_N` are the images' numbers in their source, `names` the names of the classes. `failures` are the images that
    could not be read: they have no row, and in a test set they still count, as wrong. `recalled` of the images were not read
    now but known from an earlier time. `notes` says what else there is to know.
    """

    features_ND: NDArray[np.float32]
    labels_N: NDArray[np.int64]
    indices_N: NDArray[np.int64]
    names: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    recalled: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.features_ND.ndim == 2
        assert self.labels_N.shape == self.indices_N.shape == self.features_ND.shape[:1]

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def asked(self) -> int:
        """Images there are, readable or not: what shares of a test set are shares of."""
        return len(self) + len(self.failures)


def joined(parts: Sequence[Features]) -> Features:
    """Several sets of one model and of the same classes as one; indices stay those of their own sources."""
    assert len({part.names for part in parts}) == 1, "parts of one set have the same classes"
    return Features(
        features_ND=np.concatenate([part.features_ND for part in parts]),
        labels_N=np.concatenate([part.labels_N for part in parts]),
        indices_N=np.concatenate([part.indices_N for part in parts]),
        names=parts[0].names,
        failures=tuple(failure for part in parts for failure in part.failures),
        recalled=sum(part.recalled for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def model_key(checkpoint: Checkpoint) -> str:
    """32 hexadecimal digits that change with the weights, their type, the config, the preprocessing and the version of vitlab."""
    made = sha256(f"{_LAYOUT} {__version__} {_dtype(checkpoint)}".encode())
    made.update(tensors_digest(checkpoint.model.state_dict()).encode())
    made.update(to_text(checkpoint.config).encode() + to_text(checkpoint.preprocess).encode())
    return made.hexdigest()[:32]


def features_of(
    checkpoint: Checkpoint,
    dataset: Dataset,
    *,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    store: FeatureStore | None = None,
    what: str = "features",
    tell: ProgressCallback = silent,
) -> Features:
    """The features of every image of a source with one class each.

    `store` (`FeatureStore(model_key(checkpoint))`) gives those it knows and is given the others; None keeps nothing. Images
    are read in batches; what stays in memory is 4 D bytes an image. `what` is told as the name of the work.
    """
    labels_N = labels_of(dataset)
    digests_N16 = None if store is None else digests_of(dataset)
    known_N, found_MD = np.zeros(len(dataset), np.bool_), None
    if store is not None and digests_N16 is not None:
        known_N, found_MD = store.recall(digests_N16)
    fresh = _to_read(known_N, config)
    tell(what, int(known_N.sum()), len(dataset))
    made, failures = _extracted(checkpoint, dataset, fresh, (config, store, digests_N16, what, tell))
    read_N = known_N.copy()
    read_N[list(made)] = True
    if not read_N.any():
        raise DataError(f"none of {len(dataset):,} images could be read; the first: {failures[0]}")
    width = len(next(iter(made.values()))) if made else _width(found_MD)
    features_ND = np.empty((len(dataset), width), np.float32)
    if found_MD is not None:
        features_ND[known_N] = found_MD
    for index, row in made.items():
        features_ND[index] = row
    return Features(
        features_ND=features_ND if read_N.all() else features_ND[read_N],
        labels_N=labels_N[read_N],
        indices_N=np.flatnonzero(read_N).astype(np.int64),
        names=dataset.labels,
        failures=failures,
        recalled=int(known_N.sum()),
        notes=() if store is None or store.trouble is None else (store.trouble,),
    )


def labels_of(dataset: Dataset) -> NDArray[np.int64]:
    """The class of each image; refuses a source whose images have none, or several."""
    if dataset.multi_label:
        raise DataError("these images may have several classes, and a linear rule for one class each is asked for")
    if isinstance(dataset, ListedDataset):
        labels_N = dataset.table.codes.astype(np.int64)
    else:
        labels_N = np.array([-1 if (label := dataset.label(index)) is None else label for index in range(len(dataset))], np.int64)
    if (unknown := np.count_nonzero(labels_N < 0)) > 0:
        raise DataError(f"{unknown:,} of {len(dataset):,} images have no label", hint="take a part of the data that has labels")
    return labels_N


def digests_of(dataset: Dataset) -> Digests:
    """The hash of each image's content, (N, 16)."""
    if isinstance(dataset, ListedDataset):
        return dataset.digests()
    made = b"".join(digest(dataset[index].content) for index in range(len(dataset)))
    return np.frombuffer(made, np.uint8).reshape(len(dataset), -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Some:
    """Some images of a source, by their numbers in it."""

    dataset: Dataset
    indices: NDArray[np.int64]

    @property
    def labels(self) -> tuple[str, ...]:
        """The source's classes."""
        return self.dataset.labels

    @property
    def multi_label(self) -> bool:
        """As the source."""
        return self.dataset.multi_label

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[int(self.indices[index])]

    def label(self, index: int) -> Label:
        """The image's label, without reading it."""
        return self.dataset.label(int(self.indices[index]))

    def fingerprint(self) -> str:
        """Of the source and of the choice."""
        made = sha256(self.dataset.fingerprint().encode())
        made.update(self.indices.astype("<i8").tobytes())
        return made.hexdigest()[:32]


def _to_read(known_N: NDArray[np.bool_], config: EvaluateConfig) -> NDArray[np.int64]:
    """The images that are not known; where broken ones are skipped, one that is known goes with them.

    What is broken is never known, so it comes again each time; and a loader whose images are all broken refuses them all.
    """
    fresh_N = ~known_N
    if config.corrupt == "skip" and fresh_N.any() and not fresh_N.all():
        fresh_N[known_N.argmax()] = True
    return np.flatnonzero(fresh_N).astype(np.int64)


_Job = tuple[EvaluateConfig, FeatureStore | None, Digests | None, str, ProgressCallback]


def _extracted(
    checkpoint: Checkpoint, dataset: Dataset, fresh: NDArray[np.int64], job: _Job
) -> tuple[dict[int, NDArray[np.float32]], tuple[Failure, ...]]:
    """The features of the images with these indices, by index, and those that could not be read."""
    config, store, digests_N16, what, tell = job
    made: dict[int, NDArray[np.float32]] = {}
    failures: list[Failure] = []
    if not len(fresh):
        return made, ()
    some: Dataset = dataset if len(fresh) == len(dataset) else Some(dataset=dataset, indices=fresh)
    view = EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    waiting: list[int] = []

    def keep() -> None:
        if store is not None and digests_N16 is not None and waiting:
            store.keep(digests_N16[waiting], np.stack([made[index] for index in waiting]))
        waiting.clear()

    done = len(dataset) - len(fresh)
    with Loader(some, view.feed(), config=config.loader(), train=False) as loader, loader.batches() as batches:
        try:
            for batch in batches:
                failures += (_at(failure, int(fresh[failure.index])) for failure in batch.failed)
                if len(batch):
                    indices = fresh[batch.index_B].tolist()
                    made.update(zip(indices, _rows(checkpoint, batch), strict=True))
                    waiting += indices
                if len(waiting) >= _KEPT_AT_ONCE:
                    keep()
                done += batch.n_asked
                tell(what, done, len(dataset))
        finally:
            keep()  # also of work that is interrupted
    return made, tuple(failures)


def _rows(checkpoint: Checkpoint, batch: Batch) -> Iterator[NDArray[np.float32]]:
    model = checkpoint.model
    if not isinstance(model, Model):
        raise ConfigError(f"a {type(model).__name__} is not one of vitlab's models", hint="build or load it with vitlab")
    first = next(model.parameters())
    with torch.inference_mode(), evaluating(model):
        images_BHWC = torch.from_numpy(batch.images_BHWC).to(first.device)
        features_BD = model.features(normalise(images_BHWC, checkpoint.preprocess, first.dtype))
        array_BD: NDArray[np.float32] = features_BD.float().cpu().numpy()
    if not np.isfinite(array_BD).all():
        raise DataError("the model gives features that are no finite numbers", hint="its weights are damaged, or overflow")
    yield from array_BD


def _at(failure: Failure, index: int) -> Failure:
    return Failure(index=index, name=failure.name, reason=failure.reason)


def _dtype(checkpoint: Checkpoint) -> str:
    return str(next(checkpoint.model.parameters()).dtype)


def _width(found_MD: NDArray[np.float32] | None) -> int:
    assert found_MD is not None, "something was read or known"
    return int(found_MD.shape[1])
