"""Zip archives read in place: the same bytes as Python's own reader, and nothing from a hostile one."""

from __future__ import annotations

import io
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import real_data
from tests.data.containers import as_zip, pile
from vitlab.data.opening import open_dataset
from vitlab.data.readers.recognise import open_zip
from vitlab.errors import DataError
from vitlab.io.archive_limits import ArchiveLimits
from vitlab.io.zip import ZipContents, read_zip_index

words = st.text(alphabet="abcé码 -_", min_size=1, max_size=6).filter(lambda word: word.strip() == word)
names = st.lists(words, min_size=1, max_size=4).map("/".join)
piles = st.dictionaries(names, st.binary(max_size=3000), min_size=1, max_size=12)


def clashing(files: dict[str, bytes]) -> bool:
    return any(other.startswith(f"{name}/") for name in files for other in files)


@settings(deadline=None, max_examples=60)
@given(piles.filter(lambda files: not clashing(files)), st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), st.booleans())
def test_every_member_is_read_as_python_reads_it(files: dict[str, bytes], method: int, large: bool) -> None:
    with io.BytesIO() as memory:
        with zipfile.ZipFile(memory, "w", method) as archive:
            archive.comment = b"PK\5\6 in a comment"
            for name, content in files.items():
                with archive.open(name, "w", force_zip64=large) as file:
                    file.write(content)
        data = memory.getvalue()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        contents = ZipContents(read_zip_index(Path(file.name)))
        assert {name: contents.read(row) for row, name in enumerate(contents.index.names)} == files
        for row, name in enumerate(contents.index.names):
            assert b"".join(contents.stream(row, chunk=7)) == files[name]


def test_more_entries_than_sixteen_bits_count_are_read(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(66_000):
            archive.writestr(zipfile.ZipInfo(f"{number % 2}/{number}.jpg"), b"")
    assert len(read_zip_index(path).names) == 66_000


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_no_changed_byte_gives_other_images_or_another_error(tmp_path: Path, method: int) -> None:
    files = pile(classes=2, images=3)
    path = as_zip(tmp_path / "it.zip", files, method=method)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            dataset = open_zip(path)
            read = {dataset.read(index).content for index in range(len(dataset))}
        except DataError:
            refused += 1
        else:
            assert read <= set(files.values())
    assert refused > len(whole) // 12


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "it.zip", pile(classes=2, images=3))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            open_zip(path)


@pytest.mark.parametrize("name", ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "C:/x.jpg", "a\\..\\x.jpg", "a/..", "//x/y.jpg"])
def test_a_name_that_leads_out_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "it.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/1.jpg", b"")
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        archive.writestr(info, b"")
    with pytest.raises(DataError, match=r"is refused: .* is (an absolute path|a path that leads out|a name with a character)"):
        open_zip(path)


def test_links_are_left_out_and_counted(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "it.zip", pile())
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("class-0/link.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    dataset = open_zip(path)
    assert len(dataset) == 60
    assert "1 links, which are not followed" in dataset.notes[0]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "it.zip", pile())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match=r"Duplicate"):
        archive.writestr("class-0/000.jpg", b"another")
    with pytest.raises(DataError, match=r"same name: class-0/000.jpg"):
        open_zip(path)


def test_more_entries_than_the_limit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "it.zip", pile())
    with pytest.raises(DataError, match=r"60 entries; the limit is 59 \(entries\)"):
        read_zip_index(path, ArchiveLimits(entries=59))


def test_a_directory_that_claims_a_million_entries_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "it.zip", pile())
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\5\6")
    data[end + 8 : end + 12] = struct.pack("<2H", 65_000, 65_000)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot hold 65,000 entries"):
        read_zip_index(path)


def test_a_bomb_is_refused_from_its_directory(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "bomb.zip", {"a/1.jpg": bytes(40 * 2**20)}, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match=r"would unpack to 41,943,040; the limit is 100 times \(ratio\)"):
        read_zip_index(path)
    with pytest.raises(DataError, match=r"has 41,943,040 bytes; the limit is 1,000 \(entry_bytes\)"):
        read_zip_index(path, ArchiveLimits(entry_bytes=1000))


def test_a_bomb_that_hides_its_size_never_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "bomb.zip", {"a/1.jpg": bytes(40 * 2**20)}, method=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\1\2")
    data[entry + 24 : entry + 28] = struct.pack("<L", 1000)
    path.write_bytes(data)
    contents = ZipContents(read_zip_index(path))
    with pytest.raises(DataError, match=r"does not have the 1,000 bytes"):
        contents.read(0)
    given_away: list[bytes] = []
    with pytest.raises(DataError, match=r"does not have"):
        given_away.extend(contents.stream(0, chunk=100))
    assert len(b"".join(given_away)) <= 1000


def test_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    # as the bombs of Fifield (2019) do: many entries, one piece of data
    path = as_zip(tmp_path / "it.zip", pile(classes=2, images=2))
    data = bytearray(path.read_bytes())
    first = data.find(b"PK\1\2")
    second = data.find(b"PK\1\2", first + 1)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"overlaps another"):
        read_zip_index(path)


def changed_entry(data: bytearray, place: int, form: str, value: int) -> None:
    entry = data.find(b"PK\1\2")
    data[entry + place : entry + place + struct.calcsize(form)] = struct.pack(form, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: changed_entry(data, 8, "<H", 1), "is encrypted"),
        (lambda data: changed_entry(data, 10, "<H", 93), "method 93"),
        (lambda data: changed_entry(data, 42, "<L", 1), "no member begins at offset 1,"),
        (lambda data: changed_entry(data, 16, "<L", 1234), "checksum .*does not match"),
        (lambda data: changed_entry(data, 24, "<L", 5), "two different sizes"),
        (lambda data: data.__setitem__(slice(0, 0), b"junk"), "is not at offset"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(tmp_path: Path, change: Callable[[bytearray], None], reason: str) -> None:
    path = as_zip(tmp_path / "it.zip", {"a/1.jpg": b"first one of them", "b/1.jpg": b"second"})
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    with pytest.raises(DataError, match=reason):
        open_zip(path)[0]


def test_an_archive_that_changes_while_it_is_open_is_refused(tmp_path: Path) -> None:
    dataset = open_zip(as_zip(tmp_path / "it.zip", pile()))
    again = pickle.loads(pickle.dumps(dataset))
    as_zip(tmp_path / "it.zip", pile(images=21))
    with pytest.raises(DataError, match=r"has changed since it was opened"):
        again[0]


@pytest.mark.data
def test_the_pets_are_read_in_place_with_their_official_splits() -> None:
    pets = real_data() / "oxford_pets_128.zip"
    assert [len(open_dataset(pets, split=split)) for split in ("train+val", "test", "all")] == [3680, 3669, 7349]
    train, val = open_dataset(pets, split="train"), open_dataset(pets, split="val")
    assert len(train) + len(val) == 3680
    assert len(train.labels) == 37
    assert {val.label(index) for index in range(len(val))} == set(range(37))
    with zipfile.ZipFile(pets) as archive:
        for index in range(0, len(train), 333):
            name = train.read(index).name.removeprefix(f"{pets}/")
            assert train.read(index).content == archive.read(name)
            label = train.label(index)
            assert isinstance(label, int)
            assert train.labels[label] == name.split("/")[1]


@pytest.mark.data
def test_the_imagenet_images_have_the_labels_of_their_list_and_those_of_real() -> None:
    path = real_data() / "imagenet_val_1000.zip"
    dataset = open_dataset(path, split="all")
    assert (len(dataset), len(dataset.labels), dataset.labels[0], dataset.labels[999]) == (1000, 1000, "tench", "toilet_tissue")
    assert sorted(dataset.label(index) for index in range(1000)) == list(range(1000))  # type: ignore[type-var]
    real = open_dataset(path, split="all", label_column="real_labels")
    labels = [real.label(index) for index in range(1000)]
    assert real.multi_label
    assert sum(1 for label in labels if label) == 946
    assert (72, 815) in labels
    assert [real.read(index).name for index in range(5)] == [dataset.read(index).name for index in range(5)]
