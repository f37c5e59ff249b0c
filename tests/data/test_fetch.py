"""Fetching a dataset: its files are verified, unpacked and listed, and the catalog's spelling opens it."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.containers import as_tar, as_zip
from tests.web_server import Served, plain_set, serving
from vitlab.data.catalog.download import Patience
from vitlab.data.catalog.fetch import FLOWERS, fetch
from vitlab.data.catalog.sets import PublicSet, find_set
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError


def scaled_down(name: str, folder: Path) -> PublicSet:
    """A set of the catalogue whose files are the small ones in `folder`, sizes and sums theirs."""
    entry = find_set(name)
    files = []
    for file in entry.files:
        content = (folder / file.name).read_bytes()
        files.append(replace(file, size=len(content), checksum=f"sha256:{hashlib.sha256(content).hexdigest()}"))
    return replace(entry, files=tuple(files))


def parts_of(data: str) -> dict[str, Counter[str]]:
    """How many images of each class each part has."""
    found = {}
    for split in ("train", "val", "test"):
        try:
            dataset = open_dataset(data, split=split)
        except DataError:
            continue
        found[split] = Counter(dataset.labels[dataset.label(index)] for index in range(len(dataset)))  # type: ignore[index]
    return found


def test_pets_are_read_in_the_official_splits_and_order_of_classes(tmp_path: Path) -> None:
    cats = {f"images/Abyssinian_{number}.jpg": b"cat %d" % number for number in range(1, 41)}
    dogs = {f"images/beagle_{number}.jpg": b"dog %d" % number for number in range(1, 41)}
    bombays = {f"images/Bombay_{number}.jpg": b"bombay %d" % number for number in range(1, 41)}
    lists = {"trainval.txt": "", "test.txt": "# a comment\n"}
    for breed, number in (("Abyssinian", 1), ("beagle", 2), ("Bombay", 3)):
        for image in range(1, 41):
            lists["test.txt" if image > 30 else "trainval.txt"] += f"{breed}_{image} {number} 1 1\n"
    given = tmp_path / "given"
    given.mkdir()
    as_tar(given / "images.tar.gz", {**cats, **dogs, **bombays, "images/Abyssinian_1.mat": b"not an image"}, mode="w:gz")
    as_tar(given / "annotations.tar.gz", {f"annotations/{name}": text.encode() for name, text in lists.items()}, mode="w:gz")
    fetched = fetch(scaled_down("pets", given), tmp_path / "pets", given=[given])
    assert fetched.data == f"{tmp_path / 'pets'}/labels.csv"
    assert [file.origin for file in fetched.files] == ["given", "given"]
    whole = open_dataset(fetched.data, split="train+val")
    assert whole.labels == ("Abyssinian", "beagle", "Bombay")
    assert whole.read(0).content == b"cat 1"
    assert parts_of(fetched.data)["test"] == {"Abyssinian": 10, "beagle": 10, "Bombay": 10}
    assert len(whole) == 90


def mat_file(arrays: Mapping[str, Sequence[int]]) -> bytes:
    """A MATLAB file of version 5 with rows of whole numbers, uncompressed."""
    out = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    for name, values in arrays.items():
        data = struct.pack(f"<{len(values)}H", *values)
        parts = [
            (6, struct.pack("<2I", 11, 0)),
            (5, struct.pack("<2i", 1, len(values))),
            (1, name.encode()),
            (4, data),
        ]
        body = b"".join(struct.pack("<2I", kind, len(part)) + part + b"\0" * (-len(part) % 8) for kind, part in parts)
        out += struct.pack("<2I", 14, len(body)) + body
    return out


def test_flowers_are_read_in_the_official_splits_with_their_names(tmp_path: Path) -> None:
    labels = [1 + number % 102 for number in range(408)]
    given = tmp_path / "given"
    given.mkdir()
    images = {f"jpg/image_{number + 1:05d}.jpg": b"flower %d" % number for number in range(408)}
    as_tar(given / "102flowers.tgz", images, mode="w:gz")
    (given / "imagelabels.mat").write_bytes(mat_file({"labels": labels}))
    ids = {"tstid": range(1, 205), "valid": range(205, 307), "trnid": range(307, 409)}
    (given / "setid.mat").write_bytes(mat_file(ids))
    fetched = fetch(scaled_down("flowers102", given), tmp_path / "flowers", given=[given])
    assert fetched.data is not None
    train = open_dataset(fetched.data, split="train")
    assert train.labels == FLOWERS
    assert len(set(FLOWERS)) == 102
    first = train.read(0)
    assert first.content == b"flower 306"
    assert first.label == labels[306] - 1
    assert {split: sum(counts.values()) for split, counts in parts_of(fetched.data).items()} == {
        "train": 102,
        "val": 102,
        "test": 204,
    }


def test_textures_are_read_in_their_first_official_division(tmp_path: Path) -> None:
    names = [f"{kind}/{kind}_{number:04d}.jpg" for kind in ("banded", "zigzagged") for number in range(6)]
    lists = {f"labels/{part}1.txt": "\n".join(names[start::3]).encode() for start, part in enumerate(("train", "val", "test"))}
    given = tmp_path / "given"
    given.mkdir()
    images = {f"dtd/images/{name}": name.encode() for name in names}
    as_tar(given / "dtd-r1.0.1.tar.gz", {**images, **{f"dtd/{name}": text for name, text in lists.items()}}, mode="w:gz")
    fetched = fetch(scaled_down("dtd", given), tmp_path / "dtd", given=[given / "dtd-r1.0.1.tar.gz"])
    assert parts_of(str(fetched.data)) == {part: {"banded": 2, "zigzagged": 2} for part in ("train", "val", "test")}
    assert open_dataset(str(fetched.data), split="val").read(0).content == names[1].encode()


def test_caltech_is_unpacked_twice(tmp_path: Path) -> None:
    inner = as_tar(
        tmp_path / "inner.tar.gz",
        {f"101_ObjectCategories/{kind}/image_{number:04d}.jpg": b"%s %d" % (kind.encode(), number)
         for kind in ("BACKGROUND_Google", "ant") for number in range(30)},
        mode="w:gz",
    )  # fmt: skip
    given = tmp_path / "given"
    given.mkdir()
    outer = {"caltech-101/101_ObjectCategories.tar.gz": inner.read_bytes(), "__MACOSX/caltech-101/._x": b"debris"}
    as_zip(given / "caltech-101.zip", outer)
    fetched = fetch(scaled_down("caltech101", given), tmp_path / "caltech", given=[given / "caltech-101.zip"])
    assert open_dataset(str(fetched.data), split="all").labels == ("BACKGROUND_Google", "ant")


def test_scenes_within_folders_of_letters_keep_their_names(tmp_path: Path) -> None:
    images = {f"SUN397/{path}/sun_{number}.jpg": f"{path} {number}".encode()
                for path in ("a/abbey", "b/bow_window/indoor") for number in range(30)}  # fmt: skip
    given = tmp_path / "given"
    given.mkdir()
    as_tar(given / "SUN397.tar.gz", {**images, "SUN397/ClassName.txt": b"/a/abbey\n/b/bow_window/indoor\n"}, mode="w:gz")
    as_zip(given / "Partitions.zip", {"Training_01.txt": b"/a/abbey/sun_1.jpg\n"})
    fetched = fetch(scaled_down("sun397", given), tmp_path / "sun", given=[given])
    dataset = open_dataset(str(fetched.data), split="all")
    assert dataset.labels == ("abbey", "bow_window/indoor")
    assert len(dataset) == 60


def kitti_line(kind: str, ahead: float) -> str:
    return f"{kind} 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 {ahead} -1.59"


def test_the_class_of_a_drive_is_the_distance_of_its_closest_vehicle(tmp_path: Path) -> None:
    drives: dict[str, tuple[list[tuple[str, float]], str]] = {
        "000000": ([("Car", 46.7), ("Van", 7.9), ("Pedestrian", 2.0)], "up to 8 m"),
        "000001": ([("Truck", 8.0)], "up to 8 m"),
        "000002": ([("Car", 8.1), ("Car", 30)], "8 to 20 m"),
        "000003": ([("Van", 20.5)], "over 20 m"),
        "000004": ([("Cyclist", 3.0), ("DontCare", -1000.0)], "no vehicle"),
    }
    given = tmp_path / "given"
    given.mkdir()
    as_zip(given / "data_object_image_2.zip", {f"training/image_2/{name}.png": name.encode() for name in drives})
    texts = {name: "\n".join(kitti_line(*thing) for thing in things) for name, (things, _) in drives.items()}
    as_zip(given / "data_object_label_2.zip", {f"training/label_2/{name}.txt": text.encode() for name, text in texts.items()})
    mapping = "\n".join(f"2011_09_26 2011_09_26_drive_{number:04d}_sync 0000000000" for number in range(5))
    order = ",".join(str(number) for number in range(1, 6))
    as_zip(given / "devkit_object.zip", {"mapping/train_mapping.txt": mapping.encode(), "mapping/train_rand.txt": order.encode()})
    fetched = fetch(scaled_down("kitti", given), tmp_path / "kitti", given=[given])
    dataset = open_dataset(str(fetched.data), split="all")
    assert dataset.labels == ("up to 8 m", "8 to 20 m", "over 20 m", "no vehicle")
    examples = [dataset.read(index) for index in range(len(dataset))]
    read = {bytes(sample.content).decode(): dataset.labels[int(str(sample.label))] for sample in examples}
    assert read == {name: label for name, (_, label) in drives.items()}
    lines = (tmp_path / "kitti" / "labels.csv").read_text().splitlines()[1:]
    assert Counter(line.rpartition(",")[2] for line in lines) == {"train": 3, "val": 1, "test": 1}


def test_clevr_is_counted_and_measured(tmp_path: Path) -> None:
    scenes = {
        part: [
            {"image_filename": f"CLEVR_{part}_{number:06d}.png",
             "objects": [{"pixel_coords": [1, 2, depth + extra]} for extra in range(count)]}
            for number, (depth, count) in enumerate([(7.0, 3), (8.2, 4), (9.7, 10), (11.0, 3)])
        ]
        for part in ("train", "val")
    }  # fmt: skip
    files = {f"CLEVR_v1.0/scenes/CLEVR_{part}_scenes.json": json.dumps({"scenes": made}).encode() for part, made in scenes.items()}
    images = {f"CLEVR_v1.0/images/{part}/{scene['image_filename']}": f"{part} {number}".encode()
                for part, made in scenes.items() for number, scene in enumerate(made)}  # fmt: skip
    given = tmp_path / "given"
    given.mkdir()
    as_zip(given / "CLEVR_v1.0.zip", {**files, **images})
    fetched = fetch(scaled_down("clevr", given), tmp_path / "clevr", given=[given])
    counts = open_dataset(str(fetched.data), split="train+val")
    assert [counts.labels[counts.label(index)] for index in range(4)] == ["3 objects", "4 objects", "10 objects", "3 objects"]  # type: ignore[index]
    distances = open_dataset(str(fetched.folder / "distance.csv"), split="train+val")
    assert [distances.labels[distances.label(index)] for index in range(4)] == ["up to 8", "8 to 8.5", "9.5 to 10", "over 10"]  # type: ignore[index]


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def test_a_set_of_plain_files_comes_from_the_network_and_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    rng = np.random.default_rng(0)
    contents = [
        idx(rng.integers(0, 256, (40, 28, 28), np.uint8)), idx(np.arange(40, dtype=np.uint8) % 10),
        idx(rng.integers(0, 256, (10, 28, 28), np.uint8)), idx(np.arange(10, dtype=np.uint8)),
    ]  # fmt: skip
    for file, content in zip(find_set("fashion-mnist").files, contents, strict=True):
        (tmp_path / file.name).write_bytes(content)
    entry = scaled_down("fashion-mnist", tmp_path)
    servers = [serving(Served(content)) for content in contents]
    with servers[0] as one, servers[1] as two, servers[2] as three, servers[3] as four:
        addresses = [server.address for server in (one, two, three, four)]
        files = tuple(replace(file, addresses=(where,)) for file, where in zip(entry.files, addresses, strict=True))
        fetched = fetch(replace(entry, files=files), tmp_path / "fashion", patience=Patience(attempts=1))
        assert {file.origin for file in fetched.files} == {"downloaded"}
        again = fetch(replace(entry, files=files), tmp_path / "fashion", patience=Patience(attempts=1))
        assert {file.origin for file in again.files} == {"already there"}
        assert [len(server.asked) for server in (one, two, three, four)] == [1, 1, 1, 1]
    assert fetched.data == f"fashion-mnist:{tmp_path / 'fashion'}"
    assert len(open_dataset(fetched.data, split="test")) == 10


def test_fetching_twice_is_fetching_once(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    files = {
        f"cifar-10-batches-bin/{name}.bin": bytes(3073 * 2) for name in ("test_batch", *(f"data_batch_{n}" for n in range(1, 6)))
    }
    as_tar(given / "cifar-10-binary.tar.gz", files, mode="w:gz")
    entry = scaled_down("cifar10", given)
    first = fetch(entry, tmp_path / "cifar10", given=[given])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cifar10").rglob("*")}
    second = fetch(entry, tmp_path / "cifar10")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "cifar10").rglob("*")}
    assert (first.data, second.data) == (f"cifar10:{tmp_path / 'cifar10'}/unpacked",) * 2
    assert [len(open_dataset(first.data, split=split)) for split in ("train+val", "test")] == [10, 2]  # type: ignore[arg-type]


def test_a_file_in_place_that_is_another_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"kontent")
    with pytest.raises(DataError, match="exists, but is not the expected file") as caught:
        fetch(plain_set(), tmp_path)
    assert "remove it" in str(caught.value.hint)
    assert (tmp_path / "file.bin").read_bytes() == b"kontent"


def test_an_only_file_may_be_given_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "file (1).bin.download").write_bytes(b"content")
    fetched = fetch(plain_set(), tmp_path / "out", given=[tmp_path / "file (1).bin.download"])
    assert [file.name for file in fetched.files] == ["file.bin"]


def test_of_several_files_one_must_be_given_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "pets.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match="by its name") as caught:
        fetch(find_set("pets"), tmp_path / "out", given=[tmp_path / "pets.tar.gz"])
    assert "images.tar.gz, annotations.tar.gz" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["nothing.tar.gz", "empty"])
def test_what_is_given_must_be_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file"):
        fetch(find_set("pets"), tmp_path / "out", given=[tmp_path / name])


@pytest.mark.parametrize("name", ["imagenet", "resisc45", "retinopathy"])
def test_a_set_behind_a_registration_says_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="download it yourself") as caught:
        fetch(find_set(name), tmp_path / "out")
    assert find_set(name).page.split("/")[2] in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


def test_an_archive_that_is_not_what_it_should_be_leaves_no_list(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    as_tar(given / "images.tar.gz", {"images/Abyssinian_1.jpg": b"cat"}, mode="w:gz")
    as_tar(given / "annotations.tar.gz", {"annotations/readme.txt": b"nothing"}, mode="w:gz")
    with pytest.raises(DataError, match="does not hold the expected"):
        fetch(scaled_down("pets", given), tmp_path / "pets", given=[given])
    assert not (tmp_path / "pets" / "labels.csv").exists()


def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    as_zip(given / "caltech-101.zip", {"../../evil.txt": b"evil"})
    with pytest.raises(DataError, match="leads out"):
        fetch(scaled_down("caltech101", given), tmp_path / "deep" / "caltech", given=[given])
    assert not list(tmp_path.rglob("evil.txt"))
