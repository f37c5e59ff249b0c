"""Packing: shards hold what the dataset holds, and packing again gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import processes
from tests.data.containers import as_csv, as_folder
from tests.data.images import encode, jpeg, scene, with_orientation
from vitlab.config.data import PackConfig
from vitlab.data import pack as repack
from vitlab.data.dataset import Dataset
from vitlab.data.decode import decode
from vitlab.data.opening import open_dataset
from vitlab.data.pack import pack, pack_dataset
from vitlab.errors import ConfigError, DataError

SMALL = PackConfig(shard_bytes=2**16)


def images(*, parts: tuple[str, ...] = ("train/", "test/"), classes: int = 3, each: int = 6, side: int = 64) -> dict[str, bytes]:
    return {
        f"{part}class {label}/{number}.v1.jpg": jpeg(scene(side, side, seed=1000 * place + 100 * label + number))
        for place, part in enumerate(parts)
        for label in range(classes)
        for number in range(each)
    }


def everything(dataset: Dataset) -> list[tuple[bytes, object]]:
    """Content and label of each image, in order."""
    examples = [dataset.read(index) for index in range(len(dataset))]
    return [(bytes(sample.content), sample.label) for sample in examples]


def shards_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tar")}


def left_over(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def test_shards_give_back_every_byte_label_and_part(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images())
    packed = pack(str(folder), tmp_path / "shards", config=SMALL)
    assert packed.images == 36
    assert len(packed.shards) > 2
    for split in ("train", "test", "all"):
        before, after = open_dataset(str(folder), split=split), open_dataset(str(tmp_path / "shards"), split=split)
        assert after.labels == before.labels
        assert sorted(everything(after), key=repr) == sorted(everything(before), key=repr)
    assert open_dataset(tmp_path / "shards", split="train").fingerprint() == open_dataset(folder, split="train").fingerprint()


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images())
    for name in ("one", "two"):
        pack(str(folder), tmp_path / name, config=SMALL)
    assert shards_of(tmp_path / "one") == shards_of(tmp_path / "two")
    assert (tmp_path / "one" / "pack.json").read_bytes() == (tmp_path / "two" / "pack.json").read_bytes()


def test_shards_are_named_and_numbered_and_no_larger_than_asked(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images())
    packed = pack(str(folder), tmp_path / "shards", config=PackConfig(name="pets", shard_bytes=2**16))
    names = [shard.name for shard in packed.shards]
    for part in ("train", "test"):
        of_part = [name for name in names if f"-{part}-" in name]
        assert of_part == [f"pets-{part}-{number:06d}.tar" for number in range(len(of_part))]
    assert all((tmp_path / "shards" / shard.name).stat().st_size == shard.bytes <= 2**16 for shard in packed.shards)


def test_an_image_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    files = {f"{label}/{number}.png": encode(noise + number, "PNG") for label in "ab" for number in range(2)}
    packed = pack(str(as_folder(tmp_path / "images", files)), tmp_path / "shards", config=SMALL)
    assert [shard.images for shard in packed.shards] == [1, 1, 1, 1]


def test_any_tar_reader_reads_the_shards(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images(parts=("",)))
    (shard,) = pack(str(folder), tmp_path / "shards").shards
    with tarfile.open(tmp_path / "shards" / shard.name) as archive:
        members = archive.getmembers()
        assert {(member.mtime, member.uid, member.gid, member.uname, member.mode) for member in members} == {(0, 0, 0, "", 0o644)}
        for image, label in zip(members[::2], members[1::2], strict=True):
            # what webdataset takes for a sample: neighbours that are called the same up to the first dot
            assert image.name.split(".")[0] == label.name.split(".")[0]
            assert (Path(image.name).suffix, Path(label.name).suffix) == (".jpg", ".cls")
            content = archive.extractfile(label)
            assert content is not None
            assert content.read() in (b"0", b"1", b"2")
    assert (tmp_path / "shards" / shard.name).stat().st_size % 10240 == 0


def test_the_index_says_what_is_in_the_folder(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images())
    pack(str(folder), tmp_path / "shards", config=SMALL)
    index = json.loads((tmp_path / "shards" / "pack.json").read_text())
    assert {shard["name"]: shard["sha256"] for shard in index["shards"]} == shards_of(tmp_path / "shards")
    assert index["source"] == open_dataset(folder, split="all").fingerprint()
    assert (tmp_path / "shards" / "classes.txt").read_text() == "class 0\nclass 1\nclass 2\n"
    assert left_over(tmp_path / "shards") == set()


def test_several_labels_come_back(tmp_path: Path) -> None:
    as_folder(tmp_path / "images", {f"{number}.jpg": jpeg(scene(seed=number)) for number in range(4)})
    rows = [("path", "labels"), ("0.jpg", "cat|dog"), ("1.jpg", "dog"), ("2.jpg", ""), ("3.jpg", "ant|cat|dog")]
    as_csv(tmp_path / "images" / "labels.csv", rows)
    pack(str(tmp_path / "images"), tmp_path / "shards")
    after = open_dataset(tmp_path / "shards", split="all")
    assert after.labels == ("ant", "cat", "dog")
    assert [after.label(index) for index in range(4)] == [(1, 2), (2,), (), (0, 1, 2)]


def test_images_without_labels_stay_without(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", {f"{number}.jpg": jpeg(scene(seed=number)) for number in range(4)})
    pack(f"images:{folder}", tmp_path / "shards")
    after = open_dataset(tmp_path / "shards", split="all")
    assert after.labels == ()
    assert everything(after) == everything(open_dataset(f"images:{folder}", split="all"))


def test_a_mixture_of_images_with_and_without_labels_is_refused(tmp_path: Path) -> None:
    files = {**images(parts=("train/",)), "test/1.jpg": jpeg(scene(seed=9)), "test/2.jpg": jpeg(scene(seed=10))}
    folder = as_folder(tmp_path / "images", files)
    with pytest.raises(DataError, match="2 of 20 images have no label"):
        pack(str(folder), tmp_path / "shards")
    pack(str(folder), tmp_path / "train", split="train+val")
    pack(str(folder), tmp_path / "test", split="test")
    assert [path.name for path in (tmp_path / "test").glob("*.tar")] == ["test-000000.tar"]


@pytest.mark.parametrize(
    ("names", "used"), [(["1", "0"], ["1", "0"]), (["cat", "0"], ["cat", "cat"]), (["10", "9", "1"], ["9", "10"])]
)
def test_a_class_called_by_a_number_is_not_taken_for_the_class_of_that_number(
    tmp_path: Path, names: list[str], used: list[str]
) -> None:
    as_folder(tmp_path, {f"{number}.png": encode(scene(8, 8, seed=number), "PNG") for number in range(len(used))})
    (tmp_path / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    as_csv(tmp_path / "labels.csv", [("path", "label"), *((f"{number}.png", name) for number, name in enumerate(used))])
    before = open_dataset(tmp_path, split="all")
    pack_dataset(before, tmp_path / "shards")
    after = open_dataset(f"shards:{tmp_path / 'shards'}", split="all")
    assert [after.labels[int(str(after.label(index)))] for index in range(len(used))] == used


@settings(max_examples=20, deadline=None)
@given(st.lists(st.from_regex(r"\A(-?[0-9]{1,2}|[a-c]{1,2})\Z"), min_size=2, max_size=5, unique=True), st.data())
def test_labels_come_back_whatever_classes_are_called(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], data: st.DataObject
) -> None:
    """Also where a class is called 1 and is not the class number 1."""
    tmp_path = tmp_path_factory.mktemp("named")
    used = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=6))
    as_folder(tmp_path, {f"{number}.png": encode(scene(8, 8, seed=number), "PNG") for number in range(len(used))})
    (tmp_path / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    as_csv(tmp_path / "labels.csv", [("path", "label"), *((f"{number}.png", name) for number, name in enumerate(used))])
    try:
        before = open_dataset(tmp_path, split="all")
    except DataError:
        return  # the list itself is ambiguous
    pack_dataset(before, tmp_path / "shards")
    after = open_dataset(f"shards:{tmp_path / 'shards'}", split="all")
    assert after.labels == before.labels
    assert [after.label(index) for index in range(len(used))] == [before.label(index) for index in range(len(used))]


@pytest.mark.parametrize("spec", ["digits", "synthetic:kind=strokes,classes=3,samples_per_class=3,image_size=16,channels=3"])
def test_pixels_are_packed_without_loss(tmp_path: Path, spec: str) -> None:
    pack(spec, tmp_path / "shards", split="test")
    before, after = open_dataset(spec, split="test"), open_dataset(tmp_path / "shards", split="all")
    assert len(after) == len(before)
    for index in (0, len(before) // 2, len(before) - 1):
        pixels, content = before.read(index).content, after.read(index).content
        assert isinstance(content, bytes)
        assert isinstance(pixels, np.ndarray)
        assert np.array_equal(decode(content, name="x", channels=pixels.shape[2]), pixels)
        assert after.label(index) == before.label(index)


def test_only_images_that_are_too_large_are_encoded_again(tmp_path: Path) -> None:
    turned = jpeg(scene(120, 200, seed=3), exif=with_orientation(6))
    files = {
        "a/small.jpg": jpeg(scene(48, 64)), "a/large.jpg": jpeg(scene(300, 200, seed=1)),
        "a/grey.jpg": jpeg(Image.fromarray(scene(300, 200, seed=2)).convert("L")),
        "b/large.png": encode(scene(100, 400, seed=4), "PNG"), "b/turned.jpg": turned,
        "b/large.webp": encode(scene(128, 256, seed=5), "WEBP"),
    }  # fmt: skip
    folder = as_folder(tmp_path / "images", files)
    pack(str(folder), tmp_path / "shards", config=PackConfig(max_side=100))
    after = open_dataset(tmp_path / "shards", split="all")
    read = {after.read(index).name.rpartition("-")[2]: after.read(index).content for index in range(len(after))}
    assert read["small.jpg"] == files["a/small.jpg"]
    sizes = {name: decode(bytes(content), name=name).shape[:2] for name, content in read.items()}
    assert sizes == {
        "small.jpg": (48, 64), "large.jpg": (100, 67), "grey.jpg": (100, 67), "large.png": (25, 100), "turned.jpg": (100, 60),
        "large.webp": (50, 100),
    }  # fmt: skip
    assert Image.open(io.BytesIO(bytes(read["grey.jpg"]))).mode == "L"
    before = decode(turned, name="turned").astype(float).mean()
    assert abs(decode(bytes(read["turned.jpg"]), name="turned").astype(float).mean() - before) < 1.5


def test_a_shuffled_pack_holds_the_same_images_in_another_order(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images(parts=("",)))
    plain = open_dataset(folder, split="all")
    orders: list[list[tuple[bytes, object]]] = []
    for seed in (0, 1, 0):
        target = tmp_path / f"shards{len(orders)}"
        pack(str(folder), target, config=PackConfig(shuffle=seed))
        orders.append(everything(open_dataset(target, split="all")))
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0], key=repr) == sorted(orders[1], key=repr) == sorted(everything(plain), key=repr)
    assert orders[0] != everything(plain)


def test_a_broken_image_stops_the_pack_or_is_left_out_and_named(tmp_path: Path) -> None:
    files = images(parts=("",))
    files["class 1/broken.jpg"] = b"nonsense"
    folder = as_folder(tmp_path / "images", files)
    with pytest.raises(DataError, match=r"broken\.jpg") as caught:
        pack(str(folder), tmp_path / "shards")
    assert "broken=skip" in str(caught.value.hint)
    assert shards_of(tmp_path / "shards") == {}
    packed = pack(str(folder), tmp_path / "others", config=PackConfig(broken="skip"))
    assert packed.images == 18
    assert [Path(name).name for name in packed.skipped] == ["broken.jpg"]
    assert len(open_dataset(tmp_path / "others", split="all")) == 18


def test_a_pack_that_was_stopped_continues_and_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_folder(tmp_path / "images", images())
    pack(str(folder), tmp_path / "straight", config=SMALL)
    total = len(shards_of(tmp_path / "straight"))
    plain = repack.prepared
    for stop in range(1, 36, 5):
        calls = iter(range(1000))

        def failing(*words: object, stop: int = stop, calls: object = calls) -> object:
            if next(calls) == stop:  # type: ignore[call-overload]
                raise KeyboardInterrupt
            return plain(*words)  # type: ignore[arg-type]

        target = tmp_path / f"stopped{stop}"
        monkeypatch.setattr("vitlab.data.pack.prepared", failing)
        with pytest.raises(KeyboardInterrupt):
            pack(str(folder), target, config=SMALL)
        assert not (target / "pack.json").exists()
        done = len(shards_of(target))
        monkeypatch.setattr("vitlab.data.pack.prepared", plain)
        packed = pack(str(folder), target, config=SMALL)
        assert packed.reused == done
        assert shards_of(target) == shards_of(tmp_path / "straight")
        assert (target / "pack.json").read_bytes() == (tmp_path / "straight" / "pack.json").read_bytes()
        assert left_over(target) == set()
    assert total > 2


def test_a_finished_pack_is_left_alone(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images())
    first = pack(str(folder), tmp_path / "shards", config=SMALL)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    again = pack(str(folder), tmp_path / "shards", config=SMALL)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    assert (again.reused, again.shards) == (len(first.shards), first.shards)


def test_another_pack_is_not_written_over(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "images", images())
    pack(str(folder), tmp_path / "shards", config=SMALL)
    with pytest.raises(DataError, match="or settings"):
        pack(str(folder), tmp_path / "shards", config=PackConfig(max_side=32))
    (folder / "train" / "class 0" / "new.jpg").write_bytes(jpeg(scene(seed=77)))
    with pytest.raises(DataError, match="other images"):
        pack(str(folder), tmp_path / "shards", config=SMALL)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x.tar").write_bytes(b"")
    with pytest.raises(DataError, match="holds shards already"):
        pack(str(folder), tmp_path / "foreign")


@pytest.mark.parametrize("harm", ["gone", "short", "index"])
def test_a_pack_that_was_harmed_is_not_taken_for_whole(tmp_path: Path, harm: str) -> None:
    folder = as_folder(tmp_path / "images", images())
    packed = pack(str(folder), tmp_path / "shards", config=SMALL)
    shard = tmp_path / "shards" / packed.shards[1].name
    if harm == "gone":
        shard.unlink()
    elif harm == "short":
        shard.write_bytes(shard.read_bytes()[:-512])
    else:
        (tmp_path / "shards" / "pack.json").write_text("{}")
    with pytest.raises(DataError):
        pack(str(folder), tmp_path / "shards", config=SMALL)


def test_a_full_disk_leaves_complete_shards_only_and_is_resumed_from(tmp_path: Path) -> None:
    folder = as_folder(
        tmp_path / "images", {f"{label}/{number}.png": encode(_noise(number), "PNG") for label in "ab" for number in range(6)}
    )
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom vitlab.config.data import PackConfig\n"
        "from vitlab.data.pack import pack\nfrom vitlab.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    pack(sys.argv[1], Path(sys.argv[2]), config=PackConfig(shard_bytes=2**20))\n"
        "except DataError as fault:\n    print(fault.message)\n"
    )
    words = [str(folder), str(tmp_path / "shards")]
    done = processes.run([sys.executable, "-c", script, *words])
    assert "shard-000000.tar: File too large" in done.stdout
    assert done.stderr == ""
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {"classes.txt"}
    pack(str(folder), tmp_path / "shards", config=PackConfig(shard_bytes=2**20))
    assert len(open_dataset(tmp_path / "shards", split="all")) == 12


def _noise(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (80, 80, 3), np.uint8)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "a/b"}, "name"), ({"name": ""}, "name"), ({"name": "my-train"}, "name"), ({"shard_bytes": 10}, "shard_bytes"),
        ({"max_side": 0}, "max_side"), ({"quality": 0}, "quality"), ({"quality": 101}, "quality"), ({"shuffle": -1}, "shuffle"),
        ({"broken": "ignore"}, "broken"),
    ],
)  # fmt: skip
def test_a_pack_that_makes_no_sense_is_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        PackConfig(**wrong)  # type: ignore[arg-type]
