"""From the spelling of a dataset to its reader: by its prefix (`cifar10:PATH`), or by what the path holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from vitlab.config.model import Task
from vitlab.config.renamed import current_dataset
from vitlab.data.dataset import Faults, ImageDataset
from vitlab.data.digits import open_digits
from vitlab.data.readers.array_files import find_file, open_camelyon, open_cifar, open_idx, open_npz_pack, open_svhn
from vitlab.data.readers.boxes import BOXES_JSON, has_boxes, holds_boxes, open_boxes
from vitlab.data.readers.folder import LeftOut, RemoteContents, class_folders, open_folder, open_remote_folder, open_unlabelled
from vitlab.data.readers.manifest import MANIFEST_NAMES, open_manifest, open_remote_manifest, open_zip_manifest
from vitlab.data.readers.masks import is_masks_folder, is_masks_zip, open_masks
from vitlab.data.readers.parquet import open_parquet
from vitlab.data.readers.shards import open_shards
from vitlab.data.readers.tfrecord import open_dmlab
from vitlab.data.split import split_named
from vitlab.errors import DataError, did_you_mean
from vitlab.io.address import Address, Place, address_of, is_address
from vitlab.io.display import printable
from vitlab.io.files import open_regular
from vitlab.io.remote import files_below, info, read_range
from vitlab.io.zip import ZipContents, read_zip_index

Reader = Literal[
    "folder", "images", "masks", "boxes", "zip", "manifest", "shards", "parquet", "npz",
    "mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100", "cifar100-coarse", "svhn", "pcam", "dmlab", "retinopathy", "joined",
]  # fmt: skip
READERS: tuple[str, ...] = get_args(Reader)

_MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
_PATTERN = "*?[{"


def open_data(data: str | Path, *, label_column: str | None = None) -> ImageDataset:
    """All images of a dataset, with the splits it declares. A Path is never taken for a prefix or a built-in dataset."""
    spec = str(data)
    if isinstance(data, str) and spec == "digits":
        return open_digits()
    try:
        reader, place = parse_spec(spec) if isinstance(data, str) else (recognise(spec), spec)
        return _open(reader, place, label_column=label_column)
    except OSError as error:
        raise DataError(f"cannot read {printable(str(error.filename or spec))}: {error.strerror}") from error


def parse_spec(spec: str) -> tuple[str, str]:
    """(reader, path) of `READER:PATH`, or of a path alone, whose reader is found by what the path holds."""
    spec = current_dataset(spec)
    prefix, colon, rest = spec.partition(":")
    if colon and prefix in READERS and rest:
        return prefix, rest
    if is_address(spec):
        return recognise(spec), spec
    several = rest.startswith(":")  # a.tar::b.tar
    if colon and not several and not Path(spec).exists() and "/" not in prefix:
        if rest.startswith("//") or prefix == "pipe":
            raise DataError(
                f"{printable(spec)} is not an address that vitlab reads, and no program is run for it",
                hint="give a path, or an address that begins with s3://, gs://, az://, http://, https:// or hf://",
            )
        if not rest or not any(mark in spec for mark in _PATTERN):
            if prefix in READERS:
                raise DataError(f"{printable(spec)} has no path", hint=f"give {prefix}:PATH")
            near = did_you_mean(prefix, READERS)
            hint = f"{near + ' ' if near else ''}readers are {', '.join(READERS)}"
            raise DataError(f"there is no reader called '{printable(prefix)}'", hint=hint)
    return recognise(spec), spec


def for_task(spec: str, task: Task) -> str:
    """The spelling of a dataset for a task: data with boxes and masks, as VOC's, is opened for what the task needs."""
    path = Path(spec).expanduser()
    if task == "detect" and not is_address(spec) and path.exists() and recognise(spec) != "boxes" and holds_boxes(path):
        return f"boxes:{spec}"
    return spec


def recognise(spec: str) -> str:
    """The reader for a path or pattern; DataError if nothing is there, or nothing known."""
    if is_address(spec):
        return _reader_of_address(spec)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _reader_of_folder(path)
    if path.is_file():
        return _reader_of_file(path)
    if "::" in spec or any(mark in spec for mark in _PATTERN):
        return "parquet" if spec.endswith(".parquet") else "shards"
    near = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    words = ["digits", "synthetic"] if len(path.parts) == 1 and not path.suffix else []
    hint = did_you_mean(path.name, [*words, *near]) or "data is a path, READER:PATH, digits or synthetic"
    raise DataError(f"{printable(spec)} does not exist", hint=hint)


def _reader_of_address(spec: str) -> str:
    """The reader for an address: of a file by its content, of a folder by the names in it."""
    marks = "*[{" if spec.startswith("http") else _PATTERN
    if "::" in spec or any(mark in spec for mark in marks):
        return "parquet" if address_of(spec).path.endswith(".parquet") else "shards"
    address = address_of(spec)
    found = None if address.is_folder else info(address)
    if found is not None:
        return _reader_of_head(address, read_range(address, 0, min(512, found.size)))
    names = files_below(address)
    if not names:
        raise DataError(f"{address} does not exist, or holds no file")
    if any(name in names for name in MANIFEST_NAMES):
        return "manifest"
    for reader, ending in (("shards", ".tar"), ("parquet", ".parquet")):
        if any(name.endswith(ending) and name.count("/") <= 1 for name in names):
            return reader
    return "folder"


def _reader_of_file(path: Path) -> str:
    with open_regular(path, error=DataError) as file:
        return _reader_of_head(path, file.read(512))


def _reader_of_head(path: Place, head: bytes) -> str:
    """The reader for a file, by its name and its first 512 bytes."""
    if path.suffix.lower() in _MANIFEST_ENDINGS:
        return "manifest"
    if path.name == BOXES_JSON:
        return "boxes"
    if path.suffix.lower() == ".json":
        return "masks"  # masks.json, or a COCO file; boxes:PATH opens its boxes
    if head[:4] in (b"PK\3\4", b"PK\5\6"):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]  # the name of the first member
        return "npz" if path.suffix == ".npz" or (first.endswith(b".npy") and b"/" not in first) else "zip"
    if head[:4] == b"PAR1":
        return "parquet"
    if head[257:262] == b"ustar" or path.suffix == ".tar" or path.name.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
        return "shards"
    raise DataError(
        f"{printable(str(path))} is not a dataset in a known format",
        hint="give a folder, a zip, tar shards, a CSV or JSON Lines list, an .npz or Parquet; or name the reader, as in mnist:PATH",
    )


def _reader_of_folder(path: Path) -> str:
    for reader, name in (
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
            return reader
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        if find_file(path, [name, f"{name}.gz"]) is not None:
            raise DataError(
                f"{printable(str(path))} may be MNIST, Fashion-MNIST or KMNIST: their files have the same names",
                hint=f"give mnist:{path}, fashion-mnist:{path} or kmnist:{path}",
            )
    if any((path / name).is_file() for name in MANIFEST_NAMES):
        return "manifest"
    if is_masks_folder(path):
        return "masks"
    # Only folders named after a split are searched: a class folder may hold a million files.
    places = [path, *(entry for entry in path.iterdir() if entry.name == "data" or split_named(entry.name) is not None)]
    for reader, ending in (("shards", "tar"), ("parquet", "parquet")):
        if any(next(place.glob(f"*.{ending}"), None) for place in places):
            return reader
    return "boxes" if holds_boxes(path) else "folder"  # after shards, whose pack.json lists images too


def _open(reader: str, place: str, *, label_column: str | None) -> ImageDataset:
    """Everything at `place`, opened by this reader."""
    if reader == "shards":
        return open_shards(place, label_column=label_column)
    if reader == "parquet":
        return open_parquet(place, label_column=label_column)
    if is_address(place):
        return _open_address(reader, address_of(place), label_column)
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"{printable(place)} does not exist")
    if reader == "manifest":
        return open_manifest(_manifest_in(path), label_column=label_column)
    if reader == "zip":
        return open_zip(path, label_column=label_column)
    if label_column is not None:
        raise DataError(f"label_column={label_column!r} has no meaning for {reader}", hint="it names a column of a list of images")
    if reader == "masks":
        return open_masks(path)
    if reader == "boxes":
        return open_boxes(path)
    if reader == "npz":
        return open_npz_pack(path)
    if reader == "dmlab":
        return open_dmlab(path)
    if not path.is_dir():
        raise DataError(f"{printable(place)} is not a folder, which {reader} needs")
    match reader:
        case "folder":
            return open_folder(path)
        case "images":
            return open_unlabelled(path)
        case "mnist" | "fashion-mnist" | "kmnist":
            return open_idx(path, reader)
        case "cifar10" | "cifar100" | "cifar100-coarse":
            return open_cifar(path, reader)
        case "svhn":
            return open_svhn(path)
        case "pcam":
            return open_camelyon(path)
        case "retinopathy":
            from vitlab.data.readers.vtab import open_retinopathy  # opening other datasets needs no Pillow

            return open_retinopathy(path)
    raise AssertionError(reader)


def _open_address(reader: str, address: Address, label_column: str | None) -> ImageDataset:
    """A folder, a list of images or a zip archive on a server."""
    if reader == "zip":
        return open_zip(address, label_column=label_column)
    if reader not in ("folder", "images", "manifest"):
        raise DataError(
            f"{reader} is not read from an address: {address}",
            hint="folders, zip archives, lists, tar shards and Parquet files are; download it, or pack it into shards",
        )
    root = address if reader != "manifest" or info(address) is None else address.parent
    files = files_below(root)
    if reader == "manifest":
        found = [address] if root != address else [address / name for name in MANIFEST_NAMES if name in files]
        if len(found) != 1:
            raise DataError(f"{address} holds {len(found)} lists of images", hint="give the address of one of them")
        return open_remote_manifest(found[0], RemoteContents(root, files), label_column=label_column)
    if label_column is not None:
        raise DataError(f"label_column={label_column!r} has no meaning for {reader}", hint="it names a column of a list of images")
    return open_remote_folder(root, files, labelled=reader == "folder")


def open_zip(path: Place, *, label_column: str | None = None) -> ImageDataset:
    """The images of a zip archive, labelled by the list in it (labels.csv and the like), masks, boxes or class folders."""
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
    if isinstance(path, Address):
        if any("/masks/" in f"/{name}" or "/SegmentationClass/" in f"/{name}" for name in names):
            raise DataError(f"{path} holds masks, which are read from disk only", hint="download it, then give its path")
        if has_boxes(names):
            raise DataError(f"{path} holds boxes, which are read from disk only", hint="download it, then give its path")
    elif is_masks_zip(path, names):
        return open_masks(path)
    elif has_boxes(names):
        return open_boxes(path)
    left_out = LeftOut()
    for member, count in contents.index.ignored.items():
        left_out.add(member, f"{member}s, which are not followed", count=count)
    return class_folders(contents, names, where=str(path), faults=Faults(str(path)), left_out=left_out)


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
