"""The catalog: every dataset is described completely, and every spelling is one that a reader takes."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from vitlab.data.catalog.sets import SETS, PublicSet, find_set
from vitlab.data.readers.recognise import READERS
from vitlab.errors import DataError

each_set = pytest.mark.parametrize("entry", SETS, ids=lambda entry: entry.name)


def test_the_paper_and_vtab_are_all_there() -> None:
    paper = {"cifar10", "cifar100", "flowers102", "pets", "imagenet", "imagenet21k", "jft", "imagenet-real"}
    vtab = {
        "caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn", "pcam", "eurosat", "resisc45", "retinopathy",
        "clevr", "dmlab", "dsprites", "kitti", "smallnorb",
    }  # fmt: skip
    assert paper | vtab | {"mnist", "fashion-mnist"} == {entry.name for entry in SETS}


def test_names_are_given_once() -> None:
    assert len({entry.name for entry in SETS}) == len(SETS)


@each_set
def test_a_set_is_found_by_its_name(entry: PublicSet) -> None:
    assert find_set(entry.name) is entry


@pytest.mark.parametrize(("name", "meant"), [("cifar", "cifar10"), ("flowers", "flowers102"), ("fashion_mnist", "fashion-mnist")])
def test_a_near_miss_is_reported_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(DataError, match="no dataset called") as caught:
        find_set(name)
    assert meant in str(caught.value.hint)


@each_set
def test_a_dataset_is_described_completely(entry: PublicSet) -> None:
    for text in (entry.title, entry.pixels, entry.licence, entry.citation, entry.split):
        assert text.strip()
    assert urlsplit(entry.page).scheme in ("http", "https")
    assert entry.classes > 1
    assert sum(entry.counts.values()) > 0
    assert set(entry.counts) <= {"train", "val", "test", "all"}


@each_set
def test_a_set_is_fetched_or_says_how_it_is_had_by_hand(entry: PublicSet) -> None:
    direct = bool(entry.files) and all(file.addresses for file in entry.files)
    assert direct == (entry.by_hand is None)


@each_set
def test_every_file_has_a_published_checksum_or_a_reason_for_having_none(entry: PublicSet) -> None:
    for file in entry.files:
        assert file.said_by
        if file.checksum is not None:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.checksum)
        else:
            assert "known" in file.said_by
        assert file.size is None or file.size > 0
        assert re.fullmatch(r"[\w.-]+", file.name), "a name that needs no quoting and stays in its folder"
        for address in file.addresses:
            assert urlsplit(address).scheme in ("http", "https")
            assert file.name in address


def test_no_two_files_share_a_checksum_or_a_name_within_a_set() -> None:
    sums = [file.checksum for entry in SETS for file in entry.files if file.checksum]
    assert len(set(sums)) == len(sums)
    for entry in SETS:
        assert len({file.name for file in entry.files}) == len(entry.files)


@each_set
def test_a_spelling_is_a_path_or_a_kind_that_is_read(entry: PublicSet) -> None:
    if entry.spelling is None:
        assert entry.remarks, "what is fetched and not read says why"
        return
    kind, colon, _ = entry.spelling.partition(":")
    assert "{folder}" in entry.spelling
    assert not colon or kind in READERS


def test_the_size_of_a_set_is_that_of_its_files() -> None:
    assert find_set("pets").size == 791_918_971 + 19_173_078
    assert find_set("dsprites").size is None
    assert find_set("retinopathy").size is None
