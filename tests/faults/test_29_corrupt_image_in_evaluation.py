"""An image cannot be read in an evaluation: it fails and names the image, or counts it as wrong; the total never shrinks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.stamps import Stamps, numbers
from tests.data.test_loader import loader, skipping
from tests.evaluation.test_evaluation import QUICK, evaluated, single
from tests.inference import small
from vitlab.checkpoints import Checkpoint
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError

KINDS = ("cat", "dog", "owl")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Seven photographs of each kind, in class folders."""
    for place, kind in enumerate(KINDS):
        small.photos(tmp_path / "pets" / kind, 7, start=10 * place)
    return tmp_path / "pets"


@pytest.fixture(scope="module")
def expert() -> Checkpoint:
    return small.checkpoint(KINDS, classes=3)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_leaves_corrupt_images_out_and_says_so(workers: int) -> None:
    broken = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 12})  # the whole first batch
    with loader(Stamps(count=20, broken=broken), skipping(workers=workers), train=False).batches() as stream:
        batches = list(stream)
    assert [len(batch) for batch in batches] == [0, 7, 4]
    assert sum(batch.n_asked for batch in batches) == 20
    assert sum(batch.n_failed for batch in batches) == len(stream.failures) == 9
    assert all(failure.replaced_by is None for failure in stream.failures)
    assert [number for batch in batches for number in numbers(batch.images_BHWC)] == sorted(set(range(20)) - broken)


def test_evaluation_too_stops_above_the_budget() -> None:
    with pytest.raises(DataError, match=r"1 of 20 images cannot be read, above corrupt_budget=0.01"):
        list(loader(Stamps(count=20, broken=frozenset({5})), skipping(0.01), train=False))


def test_an_image_that_cannot_be_read_fails_by_name_or_is_counted_as_wrong(pets: Path, expert: Checkpoint) -> None:
    bad = pets / "dog" / "photo-013.jpg"
    whole = evaluated(expert, open_dataset(pets, split="all"))
    bad.write_bytes(bad.read_bytes()[:200])
    dataset = open_dataset(pets, split="all")
    with pytest.raises(DataError, match=r"dog/photo-013\.jpg"):
        evaluated(expert, dataset)
    found = evaluated(expert, dataset, config=replace(QUICK, corrupt="skip"))
    result = single(found)
    assert (result.images, result.unreadable, result.top1.total) == (21, 1, 21)
    assert result.per_class[1].total == 7
    assert [failure.name for failure in found.logits.failures] == [str(bad)]
    lost = int(whole.per_image is not None and whole.per_image.rank_N[10] == 0)
    assert result.top1.correct == single(whole).top1.correct - lost


def test_all_images_unreadable_is_an_error_not_a_nought(pets: Path, expert: Checkpoint) -> None:
    for file in pets.rglob("*.jpg"):
        file.write_bytes(b"junk")
    with pytest.raises(DataError, match=r"cannot be read|could be read"):
        evaluated(expert, open_dataset(pets, split="all"), config=replace(QUICK, corrupt="skip"))
