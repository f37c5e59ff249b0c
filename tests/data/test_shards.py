"""Tar shards: the same bytes as Python's own reader, in any order; nothing in them is executed."""

from __future__ import annotations

import json
import pickle
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.containers import as_folder, as_tar, as_tar_of_members, member, pile
from vitlab.config.data import SplitRule
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.data.readers.shards import ShardContents, shard_index, shard_paths
from vitlab.errors import DataError
from vitlab.io.tar import TarStream

words = st.text(alphabet="abcé码 -_", min_size=1, max_size=60).filter(lambda word: word.strip() == word)
piles = st.dictionaries(st.lists(words, min_size=1, max_size=4).map("/".join), st.binary(max_size=1500), min_size=1, max_size=8)
ALL = SplitRule(val=0, test=0)


def samples(count: int = 12, *, classes: int = 3, first: int = 0) -> dict[str, bytes]:
    """Sample i has the image `i` and the label i modulo `classes`."""
    files = {}
    for number in range(first, first + count):
        files[f"{number:06d}.cls"] = str(number % classes).encode()
        files[f"{number:06d}.jpg"] = f"image {number}".encode()
    return files


def labels_of(dataset: ImageDataset) -> list[object]:
    return [dataset.label(index) for index in range(len(dataset))]


def opened(spec: str | Path, *, label_column: str | None = None) -> ImageDataset:
    dataset = open_dataset(spec, split="all", label_column=label_column)
    assert isinstance(dataset, ImageDataset)
    return dataset


@settings(deadline=None, max_examples=60)
@given(piles, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_every_member_is_read_as_python_reads_it(files: dict[str, bytes], form: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = as_tar(Path(folder) / "it.tar", files, form=form)
        contents = ShardContents([shard_index(path)])
        names = [name for _, name in contents.names()]
        assert {name: contents.read(row) for row, name in enumerate(names)} == files


def test_ustar_names_in_two_pieces_and_folders_and_dots_are_understood(tmp_path: Path) -> None:
    long = "/".join(["folder" * 5] * 6) + "/1.jpg"
    path = tmp_path / "it.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(member("./", tarfile.DIRTYPE))
        archive.addfile(member("./a/", tarfile.DIRTYPE))
        archive.addfile(member("./a/1.jpg"))
        archive.addfile(member(long))
    assert [name for _, name in ShardContents([shard_index(path)]).names()] == ["a/1.jpg", long]


def test_several_shards_are_one_dataset_in_their_order(tmp_path: Path) -> None:
    for shard in range(3):
        as_tar(tmp_path / f"part-{shard}.tar", samples(first=12 * shard))
    for spec in (tmp_path, f"{tmp_path}/part-{{0..2}}.tar", f"{tmp_path}/*.tar", f"shards:{tmp_path}/part-{{0,1,2}}.tar"):
        dataset = opened(spec)
        assert [dataset.read(index).content for index in range(36)] == [f"image {number}".encode() for number in range(36)]
        assert labels_of(dataset) == [number % 3 for number in range(36)]
        assert dataset.labels == ("0", "1", "2")
    joined = "::".join(f"{tmp_path}/part-{number}.tar" for number in (2, 0))
    assert opened(joined).read(0).content == b"image 24"


def test_reading_in_any_order_from_another_process_gives_the_same(tmp_path: Path) -> None:
    as_tar(tmp_path / "a.tar", samples())
    as_tar(tmp_path / "b.tar", samples(first=12))
    dataset = opened(tmp_path)
    dataset.read(3)
    again = pickle.loads(pickle.dumps(dataset))
    for index in (20, 3, 17, 0, 23):
        assert again.read(index).content == dataset.read(index).content == f"image {index}".encode()
    assert len(pickle.dumps(dataset)) < 20_000


def test_labels_come_from_cls_before_json_before_txt(tmp_path: Path) -> None:
    files = {}
    for number in range(6):
        files[f"{number}.txt"] = b"text %d" % (number % 2)
        files[f"{number}.json"] = json.dumps({"label": f"json {number % 2}", "other": {"deep": [1]}}).encode()
        files[f"{number}.jpg"] = b"%d" % number
    assert opened(as_tar(tmp_path / "json.tar", files)).labels == ("json 0", "json 1")
    text = {name: content for name, content in files.items() if not name.endswith("json")}
    assert opened(as_tar(tmp_path / "text.tar", text)).labels == ("text 0", "text 1")
    stated = files | {f"{number}.cls": b"%d\n" % (number % 3) for number in range(6)}
    ordered = dict(sorted(stated.items()))
    assert opened(as_tar(tmp_path / "cls.tar", ordered)).labels == ("0", "1", "2")
    assert opened(as_tar(tmp_path / "column.tar", ordered), label_column="label").labels == ("json 0", "json 1")
    with pytest.raises(DataError, match=r"no member .json has a field 'absent'"):
        opened(tmp_path / "column.tar", label_column="absent")
    with pytest.raises(DataError, match=r"no member .json has a field 'label'"):
        opened(as_tar(tmp_path / "none.tar", samples()), label_column="label")


def test_several_labels_in_json_make_a_multi_label_dataset(tmp_path: Path) -> None:
    cells = [["cat", "dog"], [], ["dog"], "cat"]
    files = {}
    for number, cell in enumerate(cells):
        files[f"{number}.jpg"] = b"%d" % number
        files[f"{number}.json"] = json.dumps({"labels": cell}).encode()
    dataset = opened(as_tar(tmp_path / "it.tar", files))
    assert (dataset.labels, dataset.multi_label) == (("cat", "dog"), True)
    assert labels_of(dataset) == [(0, 1), (), (1,), (0,)]


def test_a_list_of_classes_beside_the_shards_names_them(tmp_path: Path) -> None:
    as_tar(tmp_path / "it.tar", samples())
    (tmp_path / "classes.txt").write_text("cat\ndog\ncow\nhen\n")
    dataset = opened(tmp_path / "it.tar")
    assert dataset.labels == ("cat", "dog", "cow", "hen")
    assert "1 of 4 classes have no image: hen" in dataset.notes[0]
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match=r"4 faults: .*000002.jpg: label 2 is outside 0 to 1"):
        opened(tmp_path / "it.tar")


def test_images_without_labels_have_none(tmp_path: Path) -> None:
    files = {name: content for name, content in samples().items() if name.endswith("jpg")}
    dataset = opened(as_tar(tmp_path / "it.tar", files))
    assert (dataset.labels, labels_of(dataset)) == ((), [None] * 12)


def test_splits_are_those_the_shards_are_named_after(tmp_path: Path) -> None:
    as_tar(tmp_path / "set-train-000.tar", samples(300))
    as_tar(tmp_path / "set-train-001.tar", samples(300, first=300))
    as_tar(tmp_path / "set-val-000.tar", samples(30, first=600))
    assert [len(open_dataset(tmp_path, split=split)) for split in ("train", "val")] == [600, 30]
    as_tar(tmp_path / "more.tar", samples(3, first=900))
    with pytest.raises(DataError, match=r"1 fault: .*more.tar: is named after no split"):
        open_dataset(tmp_path)


def test_shards_of_class_folders_keep_the_splits_of_their_names(tmp_path: Path) -> None:
    as_tar(tmp_path / "train.tar", pile())
    as_tar(tmp_path / "test.tar", pile(images=4, start="") | {"class-0/new.jpg": b"new"})
    assert len(open_dataset(tmp_path, split="train", rule=SplitRule(val=0))) == 60
    assert len(open_dataset(tmp_path, split="test")) == 13


# the index


def test_the_index_is_made_once_and_again_when_the_shard_changes(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.io.files.time.time_ns", lambda: 2**63 - 1)  # long after the shard was written
    made: list[Path] = []
    import vitlab.data.readers.shards as shards

    original = shards._made

    def counted(path: Path, stamp: tuple[int, int, int], stream: TarStream, head: bytes) -> shards.ShardIndex:
        made.append(path)
        return original(path, stamp, stream, head)

    monkeypatch.setattr(shards, "_made", counted)
    path = as_tar(tmp_path / "it.tar", samples())
    first, second = opened(path), opened(path)
    assert len(made) == 1
    assert first.fingerprint() == second.fingerprint()
    [kept] = own_cache.rglob("*.npz")
    kept.write_bytes(kept.read_bytes()[:-10])
    assert opened(path).fingerprint() == first.fingerprint()
    assert len(made) == 2
    as_tar(path, samples(15))
    assert len(opened(path)) == 15
    assert len(made) == 3


def test_a_shard_written_a_moment_ago_is_not_remembered(tmp_path: Path, own_cache: Path) -> None:
    opened(as_tar(tmp_path / "it.tar", samples()))
    assert not list(own_cache.rglob("*.npz"))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.io.files.time.time_ns", lambda: 2**63 - 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert len(opened(as_tar(tmp_path / "it.tar", samples()))) == 12


def test_many_shards_are_not_all_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.data.readers.shards._MOST_OPEN", 3)
    for shard in range(5):
        as_tar(tmp_path / f"{shard}.tar", samples(2, classes=2, first=2 * shard))
    dataset = opened(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [dataset.read(index).content for index in range(10)] == [b"image %d" % number for number in range(10)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# faults


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (member("../x.jpg"), "leads out"),
        (member("/x.jpg"), "is an absolute path"),
        (member("x.jpg", tarfile.GNUTYPE_SPARSE), "unknown type"),
        (member("x" * 5000 + ".jpg"), "more than 4,096 bytes"),
    ],
)
def test_hostile_members_are_refused(tmp_path: Path, bad: tarfile.TarInfo, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        opened(as_tar_of_members(tmp_path / "it.tar", [member("a/1.jpg"), bad, member("b/1.jpg")]))


def test_links_and_devices_are_left_out_and_counted(tmp_path: Path) -> None:
    odd = [
        member("0.jpg", tarfile.SYMTYPE, link="/etc/passwd"),
        member("1.jpg", tarfile.LNKTYPE, link="../x"),
        member("2.jpg", tarfile.CHRTYPE),
        member("3.jpg", size=3),
        member("4.jpg", size=4),
    ]
    dataset = opened(as_tar_of_members(tmp_path / "it.tar", odd))
    assert len(dataset) == 2
    assert "2 links, which are not followed, 1 devices, which are not followed" in dataset.notes[0]


def test_more_members_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitlab.io.archive_limits import ArchiveLimits

    monkeypatch.setattr("vitlab.data.readers.shards.READ_IN_PLACE", ArchiveLimits(entries=20))
    with pytest.raises(DataError, match=r"more than 20 entries, which is the limit \(entries\)"):
        opened(as_tar(tmp_path / "it.tar", samples()))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_shard_is_refused_with_the_way_out(tmp_path: Path, mode: str) -> None:
    path = as_tar(tmp_path / f"it.tar.{mode[2:]}", samples(), mode=mode)
    with pytest.raises(DataError, match=r"is compressed, so its images") as caught:
        opened(path)
    assert "plain .tar" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"000003.cls": b""}, "000003.jpg: no label"),
        ({"000003.cls": b"-1"}, "label -1 is outside"),
        ({"000003.png": b"again"}, "has 2 images"),
        ({"zzz.cls": b"1"}, None),
    ],
)
def test_a_sample_that_is_not_an_image_and_a_label_is_named(tmp_path: Path, change: dict[str, bytes], reason: str | None) -> None:
    path = as_tar(tmp_path / "it.tar", dict(sorted((samples() | change).items())))
    if reason is None:
        assert "labels without an image" in opened(path).notes[0]
        return
    with pytest.raises(DataError, match=reason):
        opened(path)


def test_a_sample_in_two_places_is_refused(tmp_path: Path) -> None:
    files = [member("a.jpg"), member("b.jpg"), member("a.cls")]
    with pytest.raises(DataError, match=r"is in two places"):
        opened(as_tar_of_members(tmp_path / "it.tar", files))


def test_captions_are_not_taken_for_labels(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(5):
        files |= {f"{number}.jpg": b"%d" % number, f"{number}.txt": b"a caption, number %d" % number}
    with pytest.raises(DataError, match=r"captions, not labels"):
        opened(as_tar(tmp_path / "it.tar", files))


# spellings


def test_braces_count_and_list_and_multiply(tmp_path: Path) -> None:
    names = [f"{kind}-{number:03d}.tar" for kind in ("a", "b") for number in range(8, 12)]
    as_folder(tmp_path, dict.fromkeys(names, b""))
    found = shard_paths(f"{tmp_path}/{{a,b}}-{{008..011}}.tar", ending=".tar")
    assert [path.name for path in found] == names


@pytest.mark.parametrize("spec", ["x-{0..2}.tar", "*.tor", "gone.tar"])
def test_shards_that_are_not_there_are_all_listed(tmp_path: Path, spec: str) -> None:
    with pytest.raises(DataError, match=r"\d faults?: .*no such file"):
        shard_paths(f"{tmp_path}/{spec}", ending=".tar")


@pytest.mark.parametrize("spec", ["{0..999999999}.tar", "{5..2}.tar", "{0..999}{0..999}.tar"])
def test_braces_that_name_too_much_or_nothing_are_refused(spec: str) -> None:
    with pytest.raises(DataError, match=r"counts from|more than 100,000"):
        shard_paths(spec, ending=".tar")


def test_a_shard_named_twice_is_refused(tmp_path: Path) -> None:
    as_tar(tmp_path / "a.tar", samples())
    with pytest.raises(DataError, match=r"named twice"):
        shard_paths(f"{tmp_path}/a.tar::{tmp_path}/*.tar", ending=".tar")
