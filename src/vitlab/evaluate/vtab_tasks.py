"""The 19 tasks of VTAB: their groups, where their pictures are found, how they are divided, and what the paper reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from vitlab.data.catalog import find_set
from vitlab.data.kinds.camelyon import has_camelyon, open_camelyon
from vitlab.data.kinds.clevr import open_clevr
from vitlab.data.kinds.dmlab import open_dmlab
from vitlab.data.kinds.dsprites import open_dsprites
from vitlab.data.kinds.kitti import open_kitti
from vitlab.data.kinds.norb import open_norb
from vitlab.data.kinds.retinopathy import has_retinopathy, open_retinopathy
from vitlab.data.kinds.vtab_lists import has_lists, open_lists
from vitlab.data.listed import ListedSource
from vitlab.data.source import open_source
from vitlab.errors import DataError
from vitlab.evaluate.vtab_division import Division, ThirtyEach, TrainShare, WholeShares

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")

PAPER_COLUMNS = ("H/14 JFT", "L/16 JFT", "L/16 I21k")
"""The models of Table 9, in the order of `Task.paper`."""

_ENDINGS = ("", ".zip", ".npz", ".csv", ".parquet", ".tar", ".tar.gz")


@dataclass(frozen=True, slots=True)
class Task:
    """One of the 19.

    `set` is the name of its data in the catalogue, and `listed` that of its folder in the VTAB-1k that is passed around; both
    are looked for. `paper` is Table 9: accuracy in percent of ViT-H/14 and ViT-L/16 pre-trained on JFT, and of ViT-L/16
    pre-trained on ImageNet-21k, each fine-tuned.
    """

    name: str
    group: Group
    set: str
    listed: str
    classes: int
    division: Division
    paper: tuple[float, float, float]

    def find(self, root: Path) -> Path | None:
        """Where its data is under `root`, or None."""
        if has_lists(root / self.listed):
            return root / self.listed
        places = [root / f"{name}{ending}" for name in (self.set, self.listed) for ending in _ENDINGS]
        return next((place for place in places if place.exists()), None)

    def open(self, place: Path) -> ListedSource:
        """The whole set, from where it was found; DataError where it has other classes than the task."""
        if has_lists(place):
            return open_lists(place, classes=self.classes)
        source = _READERS[self.name](place) if self.name in _READERS else _any_form(self.set, place)
        if len(source.labels) != self.classes:
            raise DataError(f"{place} has {len(source.labels):,} classes, and {self.name} has {self.classes}")
        return source


def _any_form(name: str, place: Path) -> ListedSource:
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
    return open_camelyon(place) if place.is_dir() and has_camelyon(place) else _any_form("pcam", place)


def _retinopathy(place: Path) -> ListedSource:
    return open_retinopathy(place) if place.is_dir() and has_retinopathy(place) else _any_form("retinopathy", place)


# Tasks whose set is read from its own published files; the others come in any form.
_READERS: dict[str, Callable[[Path], ListedSource]] = {
    "Camelyon": _camelyon,
    "Retinopathy": _retinopathy,
    "Clevr-Count": partial(open_clevr, task="count"),
    "Clevr-Dist": partial(open_clevr, task="distance"),
    "DMLab": open_dmlab,
    "dSpr-Loc": partial(open_dsprites, task="x"),
    "dSpr-Ori": partial(open_dsprites, task="orientation"),
    "KITTI-Dist": open_kitti,
    "sNORB-Azim": partial(open_norb, task="azimuth"),
    "sNORB-Elev": partial(open_norb, task="elevation"),
}

_OFFICIAL = TrainShare(percent=100)
_CLEVR = TrainShare(percent=90, test="val")
_NORB = TrainShare(percent=100, halve_test=True)
_SPRITES = WholeShares(train=80, val=10)
_SATELLITE = WholeShares(train=60, val=20)

# In the order of Table 9. Divisions are those of VTAB's own code; only the order of examples is another.
TASKS: tuple[Task, ...] = (
    Task("Caltech101", "natural", "caltech101", "caltech101", 102, ThirtyEach(percent=90), (95.3, 95.4, 90.8)),
    Task("CIFAR-100", "natural", "cifar100", "cifar", 100, TrainShare(percent=90), (85.5, 81.9, 84.1)),
    Task("DTD", "natural", "dtd", "dtd", 47, _OFFICIAL, (75.2, 74.3, 74.1)),
    Task("Flowers102", "natural", "flowers102", "oxford_flowers102", 102, _OFFICIAL, (99.7, 99.7, 99.3)),
    Task("Pets", "natural", "pets", "oxford_iiit_pet", 37, TrainShare(percent=80), (97.2, 96.7, 92.7)),
    Task("Sun397", "natural", "sun397", "sun397", 397, WholeShares(train=70, val=10), (65.0, 63.5, 61.0)),
    Task("SVHN", "natural", "svhn", "svhn", 10, TrainShare(percent=90), (88.9, 87.4, 80.9)),
    Task("Camelyon", "specialized", "pcam", "patch_camelyon", 2, _OFFICIAL, (83.3, 83.6, 82.5)),
    Task("EuroSAT", "specialized", "eurosat", "eurosat", 10, _SATELLITE, (96.7, 96.5, 95.6)),
    Task("Resisc45", "specialized", "resisc45", "resisc45", 45, _SATELLITE, (91.4, 89.7, 85.2)),
    Task("Retinopathy", "specialized", "retinopathy", "diabetic_retinopathy", 5, _OFFICIAL, (76.6, 77.1, 75.3)),
    Task("Clevr-Count", "structured", "clevr", "clevr_count", 8, _CLEVR, (91.7, 86.4, 70.3)),
    Task("Clevr-Dist", "structured", "clevr", "clevr_dist", 6, _CLEVR, (63.8, 63.1, 56.1)),
    Task("DMLab", "structured", "dmlab", "dmlab", 6, _OFFICIAL, (53.1, 49.7, 41.9)),
    Task("dSpr-Loc", "structured", "dsprites", "dsprites_loc", 16, _SPRITES, (79.4, 74.5, 74.7)),
    Task("dSpr-Ori", "structured", "dsprites", "dsprites_ori", 16, _SPRITES, (63.3, 60.5, 64.9)),
    Task("KITTI-Dist", "structured", "kitti", "kitti", 4, WholeShares(train=80, val=10), (84.5, 82.2, 79.9)),
    Task("sNORB-Azim", "structured", "smallnorb", "smallnorb_azi", 18, _NORB, (33.2, 36.2, 30.5)),
    Task("sNORB-Elev", "structured", "smallnorb", "smallnorb_ele", 9, _NORB, (51.2, 51.1, 41.7)),
)
