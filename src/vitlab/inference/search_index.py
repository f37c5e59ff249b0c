"""Search index: the features of many images in one file, for search and clustering, and the images most similar to another.

    .npz      features (N, D) float32, names (N,), labels (N,) class numbers or -1 (or (N, K) zeros and ones if an image may have
              several classes), classes (K,), checkpoint and made_by: the digest and the path of the model
    .parquet  columns name, label (text; several joined by |), feature; checkpoint and made_by in the schema's metadata

Axes: N images, D width of the features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.dataset import Dataset, ImageDataset, Label
from vitlab.errors import DataError
from vitlab.inference.engine import Engine
from vitlab.inference.results import Unreadable, load_pyarrow
from vitlab.io.arrays import open_npz
from vitlab.io.atomic import only_writer, replacing
from vitlab.io.display import ProgressCallback, printable, silent

Features = NDArray[np.float32]
ENDINGS = (".npz", ".parquet")
BLOCK = 8192
"""Images that are compared or written at a time."""


class IndexWriter(Protocol):
    """An index that is being written."""

    def add(self, name: str, label: Label, features_D: Features) -> None:
        """Add one image."""
        ...


@contextmanager
def new_index(path: Path, *, classes: tuple[str, ...], multi_label: bool, digest: str, made_by: str) -> Iterator[IndexWriter]:
    """A new index; the file appears complete when the block ends, or not at all."""
    if path.suffix not in ENDINGS:
        raise DataError(f"{printable(str(path))} ends in neither .npz nor .parquet", hint="the extension chooses the format")
    if path.suffix == ".parquet":
        load_pyarrow()
    with only_writer(path), replacing(path, needed=0) as file:
        if path.suffix == ".npz":
            rows = _NpzRows()
            yield rows
            rows.save(file, classes=classes, multi_label=multi_label, digest=digest, made_by=made_by)
        else:
            table = _ParquetRows(file, classes=classes, digest=digest, made_by=made_by)
            try:
                yield table
                table.finish()
            finally:
                table.close()


class _NpzRows:
    def __init__(self) -> None:
        self._names: list[str] = []
        self._labels: list[Label] = []
        self._features: list[Features] = []

    def add(self, name: str, label: Label, features_D: Features) -> None:
        self._names.append(printable(name))
        self._labels.append(label)
        self._features.append(features_D)

    def save(self, file: Any, *, classes: tuple[str, ...], multi_label: bool, digest: str, made_by: str) -> None:
        if not self._features:
            raise DataError("no image could be read, so there is no index to write")
        if multi_label:
            labels: NDArray[np.generic] = np.zeros((len(self._labels), len(classes)), np.uint8)
            for row, several in enumerate(self._labels):
                labels[row, list(several) if isinstance(several, tuple) else []] = 1
        else:
            labels = np.array([label if isinstance(label, int) else -1 for label in self._labels], np.int64)
        np.savez(
            file,
            features=np.stack(self._features),
            names=np.array(self._names, np.str_),
            labels=labels,
            classes=np.array(classes, np.str_),
            checkpoint=np.array(digest),
            made_by=np.array(made_by),
        )


class _ParquetRows:
    def __init__(self, file: Any, *, classes: tuple[str, ...], digest: str, made_by: str) -> None:
        self._parquet = load_pyarrow()[1]
        self._file = file
        self._classes = classes
        self._digest, self._made_by = digest, made_by
        self._writer: Any = None
        self._rows: list[tuple[str, str | None, Features]] = []

    def add(self, name: str, label: Label, features_D: Features) -> None:
        self._rows.append((printable(name), label_text(label, self._classes), features_D))
        if len(self._rows) >= BLOCK:
            self._group()

    def finish(self) -> None:
        self._group()
        if self._writer is None:
            raise DataError("no image could be read, so there is no index to write")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _group(self) -> None:
        if not self._rows:
            return
        table = index_table(self._rows, width=len(self._rows[0][2]), digest=self._digest, made_by=self._made_by)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._rows.clear()


def label_text(label: Label, classes: Sequence[str]) -> str | None:
    """The label of an image as the column `label` has it."""
    codes = label if isinstance(label, tuple) else () if label is None else (label,)
    return None if label is None else "|".join(printable(classes[code]) for code in codes)


def index_table(rows: Sequence[tuple[str, str | None, Features]], *, width: int, digest: str, made_by: str) -> Any:
    """Rows of (name, label, features) as the Arrow table of a Parquet index."""
    arrow = load_pyarrow()[0]
    schema = arrow.schema(
        [("name", arrow.string()), ("label", arrow.string()), ("feature", arrow.list_(arrow.float32(), width))],
        metadata={"vitlab_checkpoint": digest, "vitlab_made_by": made_by},
    )
    flat_M = np.concatenate([features_D for _, _, features_D in rows]) if rows else np.zeros(0, np.float32)
    flat = arrow.FixedSizeListArray.from_arrays(arrow.array(flat_M, arrow.float32()), width)
    names, labels = [name for name, _, _ in rows], [label for _, label, _ in rows]
    return arrow.Table.from_arrays([arrow.array(names, arrow.string()), arrow.array(labels, arrow.string()), flat], schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An image of an index, its label if known, and the cosine similarity of its features, from -1 to 1."""

    name: str
    label: str | None
    similarity: float


class Index:
    """An index on disk. `digest` and `made_by` say which model made its features; `width` is the length of a feature vector."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parquet: Any = None
        if path.suffix == ".parquet":
            self._open_parquet()
        else:
            self._open_npz()

    def __len__(self) -> int:
        return self._length

    def nearest(self, features_D: Features, k: int) -> list[Match]:
        """The k images most similar to these features, best first; of equal ones the first in the index."""
        if features_D.shape != (self.width,):
            raise DataError(f"{printable(str(self.path))} holds features of width {self.width}, not {len(features_D)}")
        own_D = _unit(features_D[None].astype(np.float32))[0]
        best = np.zeros(0, np.float32), np.zeros(0, np.int64)
        start = 0
        for block_ND in self._blocks():
            close_N = _unit(block_ND) @ own_D
            close = np.concatenate([best[0], close_N])
            rows = np.concatenate([best[1], np.arange(start, start + len(close_N))])
            kept = np.argsort(-close, kind="stable")[:k]
            best, start = (close[kept], rows[kept]), start + len(close_N)
        entries = self._entries(best[1])
        return [
            Match(name=name, label=label, similarity=float(close)) for (name, label), close in zip(entries, best[0], strict=True)
        ]

    def _open_npz(self) -> None:
        try:
            arrays = open_npz(self.path)
        except DataError as error:
            raise _not_an_index(self.path, error.message) from error
        kinds = {"features": "f", "names": "U", "labels": "iu", "classes": "U", "checkpoint": "U", "made_by": "U"}
        for name, kind in kinds.items():
            if name not in arrays or np.dtype(arrays[name].dtype).kind not in kind:
                raise _not_an_index(self.path, f"it has no array {name} of the right type")
        loaded = {name: arrays[name].load() for name in kinds}
        features, names, labels = loaded["features"], loaded["names"], loaded["labels"]
        if features.ndim != 2 or names.shape != (len(features),) or len(labels) != len(features):
            raise _not_an_index(self.path, "its arrays differ in length")
        self._features = features
        self._names, self._labels, self._classes = names, labels, loaded["classes"]
        self.digest, self.made_by = str(loaded["checkpoint"]), str(loaded["made_by"])
        self._length, self.width = len(features), int(features.shape[1])

    def _open_parquet(self) -> None:
        _, parquet = load_pyarrow()
        try:
            self._parquet = parquet.ParquetFile(self.path)
        except (OSError, ValueError) as error:  # pyarrow's errors derive from these
            raise _not_an_index(self.path, str(error).splitlines()[0]) from error
        schema = self._parquet.schema_arrow
        metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items() if key.startswith(b"vitlab_")}
        if schema.names != ["name", "label", "feature"] or "vitlab_checkpoint" not in metadata:
            raise _not_an_index(self.path, f"its columns are {', '.join(map(printable, schema.names[:8]))}")
        self.digest, self.made_by = metadata["vitlab_checkpoint"], metadata.get("vitlab_made_by", "")
        self._length, self.width = int(self._parquet.metadata.num_rows), int(schema.field("feature").type.list_size)

    def sample(self, most: int) -> tuple[Features, list[str | None]]:
        """Unit features and labels of at most that many images, evenly spread over the index."""
        rows = np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).round().astype(np.int64))
        parts, start = list[Features](), 0
        for block_ND in self._blocks():
            parts.append(_unit(block_ND[rows[(rows >= start) & (rows < start + len(block_ND))] - start]))
            start += len(block_ND)
        return np.concatenate(parts), [label for _, label in self._entries(rows)]

    def _blocks(self) -> Iterator[Features]:
        if self._parquet is None:
            for start in range(0, self._length, BLOCK):
                yield np.asarray(self._features[start : start + BLOCK], np.float32)
            return
        for batch in self._parquet.iter_batches(batch_size=BLOCK, columns=["feature"]):
            yield batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, self.width)

    def _entries(self, rows: NDArray[np.int64]) -> list[tuple[str, str | None]]:
        """Name and label of these images."""
        if self._parquet is None:
            return [(str(self._names[row]), self._label(row)) for row in rows.tolist()]
        wanted: dict[int, tuple[str, str | None]] = {}
        start = 0
        for batch in self._parquet.iter_batches(batch_size=BLOCK, columns=["name", "label"]):
            for row in rows[(rows >= start) & (rows < start + batch.num_rows)].tolist():
                wanted[row] = (batch.column(0)[row - start].as_py(), batch.column(1)[row - start].as_py())
            start += batch.num_rows
        return [wanted[row] for row in rows.tolist()]

    def _label(self, row: int) -> str | None:
        label = self._labels[row]
        if self._labels.ndim == 2:
            return "|".join(str(self._classes[code]) for code in np.flatnonzero(label))
        return str(self._classes[int(label)]) if 0 <= int(label) < len(self._classes) else None


def _unit(features_ND: Features) -> Features:
    length_N1 = np.maximum(np.linalg.norm(features_ND, axis=1, keepdims=True), np.float32(1e-12))
    return np.asarray(features_ND / length_N1, np.float32)


def _not_an_index(path: Path, why: str) -> DataError:
    hint = "vitlab embed writes one; give the image first, then the index"
    return DataError(f"{printable(str(path))} is not a search index: {printable(why)}", hint=hint)


def embed(
    engine: Engine,
    dataset: Dataset,
    path: Path,
    *,
    made_by: str,
    config: EvaluateConfig = EvaluateConfig(batch_size=32, corrupt="skip"),  # noqa: B008 (a frozen value)
    progress: ProgressCallback = silent,
) -> tuple[Unreadable, ...]:
    """Write the features of a dataset's images to an .npz or .parquet index; returns the images that could not be read.

    `made_by` is the checkpoint's path, kept in the index so that a search can load the model again.
    """
    unreadable: list[Unreadable] = []
    with new_index(path, classes=dataset.labels, multi_label=dataset.multi_label, digest=engine.digest, made_by=made_by) as index:
        batches = engine.run_dataset(dataset, loader=config.loader(), features=True, description="embedding", progress=progress)
        for batch, outputs in batches:
            unreadable += (Unreadable(name=failure.name, reason=failure.reason) for failure in batch.failed)
            if outputs is None:
                continue
            assert outputs.features_BD is not None, "features were asked for"
            for place, features_D in zip(batch.index_B.tolist(), outputs.features_BD, strict=True):
                index.add(_name(dataset, place), dataset.label(place), features_D)
    return tuple(unreadable)


def _name(dataset: Dataset, index: int) -> str:
    return dataset.name(index) if isinstance(dataset, ImageDataset) else f"image {index}"
