"""What kind of data a path is, by what it holds; and what each kind's word on the command line opens."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from vitlab.config.renamed import current_dataset
from vitlab.data.dataset import ListedDataset, Offenders
from vitlab.data.readers.blocks import find_file
from vitlab.data.readers.folder import LeftOut, class_folders, open_folder, open_unlabelled
from vitlab.data.readers.manifest import MANIFEST_NAMES, open_manifest, open_zip_manifest
from vitlab.data.readers.shards import open_shards
from vitlab.data.split import part_called
from vitlab.errors import DataError, did_you_mean
from vitlab.io.names import printable
from vitlab.io.zip import ZipContents, read_zip_index

PathKind = Literal[
    "folder", "images", "zip", "manifest", "shards", "parquet", "npz",
    "mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100", "cifar100-coarse", "svhn", "pcam", "dmlab", "retinopathy", "joined",
]  # fmt: skip
KINDS: tuple[str, ...] = get_args(PathKind)

_MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
_PATTERN = "*?[{"


def parse_spec(spec: str) -> tuple[str, str]:
    """(kind, path) of `kind:path`, or of a path alone, whose kind is found by what is there."""
    spec = current_dataset(spec)
    kind, colon, rest = spec.partition(":")
    if colon and kind in KINDS and rest:
        return kind, rest
    joined = rest.startswith(":")  # a.tar::b.tar
    if colon and not joined and not Path(spec).exists() and "/" not in kind:
        if rest.startswith("//") or kind == "pipe":
            raise DataError(
                f"{printable(spec)} is an address; data is read from disk, and no program is run for it",
                hint="fetch it first, then give its path",
            )
        if not rest or not any(mark in spec for mark in _PATTERN):
            if kind in KINDS:
                raise DataError(f"{printable(spec)} lacks a path", hint=f"say {kind}:PATH")
            near = did_you_mean(kind, KINDS)
            hint = f"{near + ' ' if near else ''}a kind is one of {', '.join(KINDS)}"
            raise DataError(f"no kind of data is called '{printable(kind)}'", hint=hint)
    return recognise(spec), spec


def recognise(spec: str) -> str:
    """The kind of data at a path or pattern; DataError where there is nothing, or nothing that is known."""
    path = Path(spec).expanduser()
    if path.is_dir():
        return _kind_of_folder(path)
    if path.is_file():
        return _kind_of_file(path)
    if "::" in spec or any(mark in spec for mark in _PATTERN):
        return "parquet" if spec.endswith(".parquet") else "shards"
    near = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    words = ["digits", "generated"] if len(path.parts) == 1 else []
    hint = did_you_mean(path.name, [*words, *near]) or "data is a path, kind:path, digits or generated"
    raise DataError(f"{printable(spec)} does not exist", hint=hint)


def _kind_of_file(path: Path) -> str:
    if path.suffix.lower() in _MANIFEST_ENDINGS:
        return "manifest"
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise DataError(f"{printable(str(path))} cannot be read: {error.strerror}") from error
    if head[:4] in (b"PK\3\4", b"PK\5\6"):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]  # the name of its first member
        return "npz" if path.suffix == ".npz" or first.endswith(b".npy") else "zip"
    if head[:4] == b"PAR1":
        return "parquet"
    if head[257:262] == b"ustar" or path.suffix == ".tar" or path.name.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
        return "shards"
    raise DataError(
        f"{printable(str(path))} is no data that is known by its content",
        hint="data is a folder, a zip, tar shards, a CSV or JSON lines, an .npz or Parquet; or say what it is, as mnist:PATH",
    )


def _kind_of_folder(path: Path) -> str:
    for kind, name in (
        ("cifar10", "data_batch_1.bin"),
        ("cifar100", "fine_label_names.txt"),
        ("svhn", "train_32x32.mat"),
        ("svhn", "test_32x32.mat"),
        ("pcam", "camelyonpatch_level_2_split_*_x.h5*"),
        ("dmlab", "dmlab-train.tfrecord*"),
        ("dmlab", "dmlab.tar.gz"),
        ("retinopathy", "trainLabels.csv"),
    ):
        if find_file(path, [name]) is not None:
            return kind
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        if find_file(path, [name, f"{name}.gz"]) is not None:
            raise DataError(
                f"{printable(str(path))} may be MNIST, Fashion-MNIST or KMNIST: their files have the same names",
                hint=f"say mnist:{path}, fashion-mnist:{path} or kmnist:{path}",
            )
    if any((path / name).is_file() for name in MANIFEST_NAMES):
        return "manifest"
    # Not in every folder: a class may hold a million files.
    places = [path, *(entry for entry in path.iterdir() if entry.name == "data" or part_called(entry.name) is not None)]
    for kind, ending in (("shards", "tar"), ("parquet", "parquet")):
        if any(next(place.glob(f"*.{ending}"), None) for place in places):
            return kind
    return "folder"


def open_kind(kind: str, place: str, *, label_column: str | None) -> ListedDataset:
    """Everything at `place`, opened as this kind, parts not yet taken."""
    if kind in ("shards", "parquet"):
        if kind == "shards":
            return open_shards(place, label_column=label_column)
        from vitlab.data.readers.parquet import open_parquet

        return open_parquet(place, label_column=label_column)
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"{printable(place)} does not exist")
    if kind == "manifest":
        return open_manifest(_manifest_in(path), label_column=label_column)
    if kind == "zip":
        return open_zip(path, label_column=label_column)
    if label_column is not None:
        raise DataError(f"label_column={label_column!r} means nothing for {kind}", hint="it chooses a column of a list of images")
    if kind == "npz":
        from vitlab.data.readers.npz_pack import open_npz_pack

        return open_npz_pack(path)
    if kind == "joined":
        from vitlab.data.readers.joined import open_joined

        return open_joined(path)
    if kind == "dmlab":
        from vitlab.data.readers.tfrecord import open_dmlab

        return open_dmlab(path)
    if not path.is_dir():
        raise DataError(f"{printable(place)} is no folder, which {kind} needs")
    match kind:
        case "folder":
            return open_folder(path)
        case "images":
            return open_unlabelled(path)
        case "mnist" | "fashion-mnist" | "kmnist":
            from vitlab.data.readers.classic import open_idx

            return open_idx(path, kind)
        case "cifar10" | "cifar100" | "cifar100-coarse":
            from vitlab.data.readers.classic import open_cifar

            return open_cifar(path, kind)
        case "svhn":
            from vitlab.data.readers.classic import open_svhn

            return open_svhn(path)
        case "pcam":
            from vitlab.data.readers.hdf5 import open_camelyon

            return open_camelyon(path)
        case "retinopathy":
            from vitlab.data.readers.retinopathy import open_retinopathy

            return open_retinopathy(path)
    raise AssertionError(kind)


def open_zip(path: Path, *, label_column: str | None = None) -> ListedDataset:
    """The images of a zip archive: by the list in it (labels.csv and its like), where there is one, else by class folders."""
    contents = ZipContents(read_zip_index(path))
    names = contents.index.names
    tops = {name.split("/")[0] for name in names if "/" in name}
    starts = ["", *(f"{top}/" for top in tops if len(tops) == 1)]
    wanted = {start + name for start in starts for name in MANIFEST_NAMES}
    lists = sorted((name for name in names if name in wanted), key=len)
    if lists:
        return open_zip_manifest(contents, lists[0], label_column=label_column)
    if label_column is not None:
        raise DataError(f"{printable(str(path))} holds no list of images, so it has no column {label_column!r}")
    left_out = LeftOut()
    for kind, count in contents.index.ignored.items():
        left_out.add(kind, f"{kind}s, which are not followed", count=count)
    return class_folders(contents, names, where=str(path), offenders=Offenders(str(path)), left_out=left_out)


def _manifest_in(path: Path) -> Path:
    if path.is_file():
        return path
    found = [path / name for name in MANIFEST_NAMES if (path / name).is_file()]
    if not found:
        raise DataError(f"{printable(str(path))} holds no list of images ({', '.join(MANIFEST_NAMES[:3])} or the like)")
    if len(found) > 1:
        raise DataError(
            f"{printable(str(path))} holds several lists: {', '.join(file.name for file in found)}", hint="give one of them"
        )
    return found[0]
