"""Download a dataset of the catalog and prepare it for reading: unpack it, and write labels.csv if labels are in other files.

Each step is skipped if its result exists; a result is complete or does not exist.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.data.catalog.download import Patience, by_hand, download, fault_of, recorded, sum_of, take
from vitlab.data.catalog.sets import Arrangement, PublicSet, RemoteFile
from vitlab.data.dataset import SPLITS, UNDECLARED
from vitlab.data.readers.manifest import CLASSES_NAME
from vitlab.data.readers.vtab import CLEVR_DISTANCES, KITTI_CLASSES, clevr_distance, open_kitti, read_scenes
from vitlab.errors import DataError
from vitlab.io.archive import extract
from vitlab.io.arrays import mat_arrays, read_mat_array
from vitlab.io.atomic import write_text
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.files import LIST_FILE, read_text

Origin = Literal["downloaded", "given", "already there"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """One file of a dataset; `trusted` says whether its SHA-256 was compared with a published one."""

    name: str
    bytes: int
    sha256: str
    origin: Origin
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A dataset in its folder. `data` is the spelling that `open_dataset` takes, or None if its format is not supported."""

    folder: Path
    files: tuple[FetchedFile, ...]
    data: str | None


def fetch(
    entry: PublicSet,
    folder: Path,
    *,
    given: Sequence[Path] = (),
    patience: Patience | None = None,
    progress: ProgressCallback = silent,
) -> Fetched:
    """Download the files of a dataset to `folder`, verify them, and prepare them for reading.

    `given` are files, or folders of files, that the user downloaded; they are used instead of a download, by their names.
    Files that are already in the folder are only verified.
    """
    if not entry.public:
        raise DataError(f"{entry.title} is not public", hint=entry.by_hand)
    if entry.by_hand is not None:
        raise DataError(f"{entry.title} has no direct address: you must download it yourself", hint=entry.by_hand)
    found = _named(given, entry)
    fetched = []
    for file in entry.files:
        target = folder / file.name
        origin: Origin
        if target.exists():
            origin, digest = "already there", _verified(file, target, progress)
        elif file.name in found:
            origin, digest = "given", take(found[file.name], file, target, progress=progress)
        else:
            origin, digest = "downloaded", download(file, target, patience=patience, progress=progress)
        size = target.stat().st_size
        fetched.append(FetchedFile(name=file.name, bytes=size, sha256=digest, origin=origin, trusted=file.checksum is not None))

    arrange(entry, folder, progress=progress)
    data = None if entry.spelling is None else entry.spelling.format(folder=folder)
    return Fetched(folder=folder, files=tuple(fetched), data=data)


def _named(given: Sequence[Path], entry: PublicSet) -> dict[str, Path]:
    """The given files by the names of the dataset's files; DataError for any other file."""
    wanted = [file.name for file in entry.files]
    found: dict[str, Path] = {}
    for path in given:
        if path.is_dir():
            here = {name: path / name for name in wanted if (path / name).is_file()}
            if not here:
                raise DataError(f"{path} holds no file of {entry.title}", hint=f"they are called {', '.join(wanted)}")
            found |= here
        elif not path.is_file():
            raise DataError(f"there is no file {path}")
        elif path.name in wanted:
            found[path.name] = path
        elif len(wanted) == 1:
            found[wanted[0]] = path  # a browser may have renamed it; the checksum verifies it
        else:
            raise DataError(f"{path} is not a file of {entry.title} by its name", hint=f"they are called {', '.join(wanted)}")
    return found


def _verified(file: RemoteFile, target: Path, progress: ProgressCallback) -> str:
    expected = file.checksum or recorded(target)
    try:
        fault = fault_of(target, expected, size=file.size, progress=progress)
        digest = (expected or "").partition("sha256:")[2]
        seen = digest or sum_of(target, "sha256", progress=progress)
    except OSError as error:
        raise DataError(f"{target} cannot be read: {error.strerror}") from error
    if fault is not None:
        raise DataError(f"{target} exists, but is not the expected file: {fault}", hint=f"remove it; or {by_hand(file)}")
    return seen


_UNPACKED = "unpacked"

Row = tuple[str, str, str]
"""path, label, split (may be empty)"""


def arrange(entry: PublicSet, folder: Path, *, progress: ProgressCallback = silent) -> None:
    """Prepare the files of a dataset in `folder` for its reader."""
    archives = [folder / file.name for file in entry.files]
    _STEPS[entry.arrangement](folder, archives, progress)


def _nothing(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    """The files are read as they are."""


def _unpacked(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / _UNPACKED, progress)


def _pets(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / "images", progress)
    _unpack(archives[1], folder / "annotations", progress)
    rows, classes = [], {}
    for split, name in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in _lines(folder / "annotations" / "annotations" / name):
            stem, number = line.split()[:2]  # Abyssinian_100 1 1 1: image, class from 1, species, breed
            breed = stem.rpartition("_")[0]
            classes[int(number)] = breed
            rows.append((f"images/images/{stem}.jpg", breed, split))
    _write(folder / "labels.csv", rows, [classes[number] for number in sorted(classes)])


def _flowers102(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / _UNPACKED, progress)
    labels = _whole_numbers(archives[1], "labels")
    rows = [
        (f"{_UNPACKED}/jpg/image_{image:05d}.jpg", FLOWERS[labels[image - 1] - 1], split)
        for split, name in (("train", "trnid"), ("val", "valid"), ("test", "tstid"))
        for image in _whole_numbers(archives[2], name)
    ]
    _write(folder / "labels.csv", rows, FLOWERS)


def _dtd(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / _UNPACKED, progress)
    rows = [
        (f"{_UNPACKED}/dtd/images/{line}", line.partition("/")[0], split)
        for split in ("train", "val", "test")
        for line in _lines(folder / _UNPACKED / "dtd" / "labels" / f"{split}1.txt")
    ]
    _write(folder / "labels.csv", rows)


def _caltech101(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / _UNPACKED, progress)
    _unpack(folder / _UNPACKED / "caltech-101" / "101_ObjectCategories.tar.gz", folder / "images", progress)


def _sun397(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / _UNPACKED, progress)
    _unpack(archives[1], folder / "partitions", progress)
    root = folder / _UNPACKED / "SUN397"
    # ClassName.txt has /a/abbey, /a/access_road, ... and /b/bow_window/indoor: the letter is an index, the rest the name.
    classes = [line.strip("/") for line in _lines(root / "ClassName.txt")]
    rows = [
        (f"{_UNPACKED}/SUN397/{path}/{image.name}", path.partition("/")[2], "")
        for path in classes
        for image in sorted((root / path).glob("*.jpg"))
    ]
    _write(folder / "labels.csv", rows, [path.partition("/")[2] for path in classes])


def _kitti(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    for archive, name in zip(archives, ("images", "annotations", "devkit"), strict=True):
        _unpack(archive, folder / name, progress)
    dataset = open_kitti(folder)
    splits = ["" if code == UNDECLARED else SPLITS[code] for code in dataset.splits.tolist()]
    rows = [
        (Path(dataset.name(index)).relative_to(folder).as_posix(), KITTI_CLASSES[code], split)
        for index, (code, split) in enumerate(zip(dataset.table.codes.tolist(), splits, strict=True))
    ]
    _write(folder / "labels.csv", rows, KITTI_CLASSES)


def _clevr(folder: Path, archives: Sequence[Path], progress: ProgressCallback) -> None:
    _unpack(archives[0], folder / _UNPACKED, progress)
    if (folder / "count.csv").is_file() and (folder / "distance.csv").is_file():
        return
    counts, distances = [], []
    for split in ("train", "val"):
        for name, depths in read_scenes(folder / _UNPACKED / "CLEVR_v1.0" / "scenes" / f"CLEVR_{split}_scenes.json"):
            path = f"{_UNPACKED}/CLEVR_v1.0/images/{split}/{name}"
            counts.append((path, f"{len(depths)} objects", split))
            distances.append((path, CLEVR_DISTANCES[clevr_distance(depths)], split))
    _write(folder / "count.csv", counts)
    _write(folder / "distance.csv", distances)


_STEPS: dict[Arrangement, Callable[[Path, Sequence[Path], ProgressCallback], None]] = {
    "as fetched": _nothing,
    "unpacked": _unpacked,
    "pets": _pets,
    "flowers102": _flowers102,
    "dtd": _dtd,
    "caltech101": _caltech101,
    "sun397": _sun397,
    "clevr": _clevr,
    "kitti": _kitti,
}


def _unpack(archive: Path, target: Path, progress: ProgressCallback) -> None:
    if target.is_dir():
        return  # `extract` creates it complete or not at all
    progress(f"unpacking {archive.name}", 0, None)
    extract(archive, target)


def _write(path: Path, rows: Iterable[Row], classes: Sequence[str] | None = None) -> None:
    """Write a list of images, and the class names if their order matters."""
    if classes is not None:
        write_text(path.with_name(CLASSES_NAME), "".join(f"{name}\n" for name in classes))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "label", "split"))
    writer.writerows(rows)
    write_text(path, text.getvalue())


def _lines(path: Path) -> list[str]:
    """The lines of an annotation file, without comments and empty lines."""
    try:
        text = read_text(path, most=LIST_FILE)
    except DataError as error:
        raise DataError(f"the archive does not hold the expected files: cannot read {path}") from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _whole_numbers(path: Path, name: str) -> list[int]:
    array = next((array for array in mat_arrays(path) if array.name == name), None)
    if array is None:
        raise DataError(f"{path} holds no array called {name}")
    return [int(number) for number in read_mat_array(array).tolist()]


# The names of the 102 flowers, in the order of their numbers, as the authors' page has them.
FLOWERS = (
    "pink primrose", "hard-leaved pocket orchid", "canterbury bells", "sweet pea", "english marigold", "tiger lily",
    "moon orchid", "bird of paradise", "monkshood", "globe thistle", "snapdragon", "colt's foot", "king protea",
    "spear thistle", "yellow iris", "globe-flower", "purple coneflower", "peruvian lily", "balloon flower",
    "giant white arum lily", "fire lily", "pincushion flower", "fritillary", "red ginger", "grape hyacinth", "corn poppy",
    "prince of wales feathers", "stemless gentian", "artichoke", "sweet william", "carnation", "garden phlox",
    "love in the mist", "mexican aster", "alpine sea holly", "ruby-lipped cattleya", "cape flower", "great masterwort",
    "siam tulip", "lenten rose", "barbeton daisy", "daffodil", "sword lily", "poinsettia", "bolero deep blue", "wallflower",
    "marigold", "buttercup", "oxeye daisy", "common dandelion", "petunia", "wild pansy", "primula", "sunflower",
    "pelargonium", "bishop of llandaff", "gaura", "geranium", "orange dahlia", "pink-yellow dahlia?", "cautleya spicata",
    "japanese anemone", "black-eyed susan", "silverbush", "californian poppy", "osteospermum", "spring crocus",
    "bearded iris", "windflower", "tree poppy", "gazania", "azalea", "water lily", "rose", "thorn apple", "morning glory",
    "passion flower", "lotus", "toad lily", "anthurium", "frangipani", "clematis", "hibiscus", "columbine", "desert-rose",
    "tree mallow", "magnolia", "cyclamen", "watercress", "canna lily", "hippeastrum", "bee balm", "ball moss", "foxglove",
    "bougainvillea", "camellia", "mallow", "mexican petunia", "bromelia", "blanket flower", "trumpet creeper",
    "blackberry lily",
)  # fmt: skip
