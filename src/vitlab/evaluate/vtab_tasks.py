"""The 19 tasks of VTAB: their groups, where their pictures are found, how they are divided, and what the paper reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from vitlab.data.catalog import find_set
from vitlab.data.clevr import open_clevr
from vitlab.data.dmlab import open_dmlab
from vitlab.data.dsprites import open_dsprites
from vitlab.data.kitti import open_kitti
from vitlab.data.listed import ListedSource
from vitlab.data.norb import open_norb
from vitlab.data.retinopathy import has_retinopathy, open_retinopathy
from vitlab.data.source import open_source
from vitlab.data.vtab_lists import has_lists
from vitlab.errors import DataError
from vitlab.evaluate.vtab_division import Division, ThirtyEach, TrainShare, WholeShares

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")

_ENDINGS = ("", ".zip", ".npz", ".csv", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One of the 19.

    `set` is the name of its data in the catalogue, and `listed` that of its folder in the VTAB-1k that is passed around;
    both are looked for. `open` reads the whole set from where it was found. `paper` is Table 9: accuracy in percent of
    ViT-H/14 and ViT-L/16 pre-trained on JFT, and of ViT-L/16 pre-trained on ImageNet-21k.
    """

    name: str
    group: Group
    set: str
    listed: str
    classes: int
    division: Division
    open: Callable[[Path], ListedSource]
    paper: tuple[float, float, float]

    def find(self, root: Path) -> Path | None:
        """Where its data is under `root`, or None."""
        if has_lists(root / self.listed):
            return root / self.listed
        places = [root / f"{name}{ending}" for name in (self.set, self.listed) for ending in _ENDINGS]
        return next((place for place in places if place.exists()), None)


PAPER_COLUMNS = ("H/14 JFT", "L/16 JFT", "L/16 I21k")


def _set(name: str, place: Path) -> ListedSource:
    """A set as the catalogue brings it, or in any form that is read: class folders, a zip, a list, an .npz, Parquet."""
    spelling = find_set(name).spelling
    spec = str(place)
    if spelling is not None and place.is_dir():
        arranged = spelling.format(folder=place)
        kind, colon, rest = arranged.partition(":")
        if Path(rest if colon and "/" not in kind else arranged).exists():
            spec = arranged
    source = open_source(spec, split="all")
    assert isinstance(source, ListedSource)
    return source


def _camelyon(place: Path) -> ListedSource:
    """PatchCamelyon in a form other than its published one, which is HDF5."""
    if place.is_dir() and any(place.glob("*.h5*")):
        raise DataError(
            f"{place} holds PatchCamelyon in HDF5, which is not read",
            hint="convert it with h5py to one .npz of train_images, train_labels, val_images, ... (docs/guides/transfer.md)",
        )
    return _set("pcam", place)


def _retinopathy(place: Path) -> ListedSource:
    return open_retinopathy(place) if place.is_dir() and has_retinopathy(place) else _set("retinopathy", place)


_DECLARED = TrainShare(percent=100)  # train, val and test are all official


def _task(
    name: str, group: Group, names: tuple[str, str], classes: int, division: Division, paper: tuple[float, float, float]
) -> Task:
    """A task whose set is read in any form."""
    return Task(
        name=name,
        group=group,
        set=names[0],
        listed=names[1],
        classes=classes,
        division=division,
        open=partial(_set, names[0]),
        paper=paper,
    )


def _read(
    task: Task,
    reader: Callable[[Path], ListedSource],
) -> Task:
    """The same task, its set read from its own published form."""
    return Task(
        name=task.name,
        group=task.group,
        set=task.set,
        listed=task.listed,
        classes=task.classes,
        division=task.division,
        open=reader,
        paper=task.paper,
    )


# In the order of Table 9. Divisions are those of VTAB's own code, its order of examples (TensorFlow Datasets') excepted.
TASKS: tuple[Task, ...] = (
    _task("Caltech101", "natural", ("caltech101", "caltech101"), 102, ThirtyEach(percent=90), (95.3, 95.4, 90.8)),
    _task("CIFAR-100", "natural", ("cifar100", "cifar"), 100, TrainShare(percent=90), (85.5, 81.9, 84.1)),
    _task("DTD", "natural", ("dtd", "dtd"), 47, _DECLARED, (75.2, 74.3, 74.1)),
    _task("Flowers102", "natural", ("flowers102", "oxford_flowers102"), 102, _DECLARED, (99.7, 99.7, 99.3)),
    _task("Pets", "natural", ("pets", "oxford_iiit_pet"), 37, TrainShare(percent=80), (97.2, 96.7, 92.7)),
    _task("Sun397", "natural", ("sun397", "sun397"), 397, WholeShares(train=70, val=10), (65.0, 63.5, 61.0)),
    _task("SVHN", "natural", ("svhn", "svhn"), 10, TrainShare(percent=90), (88.9, 87.4, 80.9)),
    _read(_task("Camelyon", "specialized", ("pcam", "patch_camelyon"), 2, _DECLARED, (83.3, 83.6, 82.5)), _camelyon),
    _task("EuroSAT", "specialized", ("eurosat", "eurosat"), 10, WholeShares(train=60, val=20), (96.7, 96.5, 95.6)),
    _task("Resisc45", "specialized", ("resisc45", "resisc45"), 45, WholeShares(train=60, val=20), (91.4, 89.7, 85.2)),
    _read(
        _task("Retinopathy", "specialized", ("retinopathy", "diabetic_retinopathy"), 5, _DECLARED, (76.6, 77.1, 75.3)),
        _retinopathy,
    ),
    _read(
        _task("Clevr-Count", "structured", ("clevr", "clevr_count"), 8, TrainShare(percent=90, test="val"), (91.7, 86.4, 70.3)),
        partial(open_clevr, task="count"),
    ),
    _read(
        _task("Clevr-Dist", "structured", ("clevr", "clevr_dist"), 6, TrainShare(percent=90, test="val"), (63.8, 63.1, 56.1)),
        partial(open_clevr, task="distance"),
    ),
    _read(_task("DMLab", "structured", ("dmlab", "dmlab"), 6, _DECLARED, (53.1, 49.7, 41.9)), open_dmlab),
    _read(
        _task("dSpr-Loc", "structured", ("dsprites", "dsprites_loc"), 16, WholeShares(train=80, val=10), (79.4, 74.5, 74.7)),
        partial(open_dsprites, task="x"),
    ),
    _read(
        _task("dSpr-Ori", "structured", ("dsprites", "dsprites_ori"), 16, WholeShares(train=80, val=10), (63.3, 60.5, 64.9)),
        partial(open_dsprites, task="orientation"),
    ),
    _read(_task("KITTI-Dist", "structured", ("kitti", "kitti"), 4, WholeShares(train=80, val=10), (84.5, 82.2, 79.9)), open_kitti),
    _read(
        _task(
            "sNORB-Azim",
            "structured",
            ("smallnorb", "smallnorb_azi"),
            18,
            TrainShare(percent=100, halve_test=True),
            (33.2, 36.2, 30.5),
        ),
        partial(open_norb, task="azimuth"),
    ),
    _read(
        _task(
            "sNORB-Elev",
            "structured",
            ("smallnorb", "smallnorb_ele"),
            9,
            TrainShare(percent=100, halve_test=True),
            (51.2, 51.1, 41.7),
        ),
        partial(open_norb, task="elevation"),
    ),
)
