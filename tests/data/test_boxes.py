"""Images with boxes: three layouts with one content, transforms that boxes follow, and what `data check` finds."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from tests.data.box_images import CLASSES, boxes_of, write_boxes
from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, Preprocess
from vitlab.data.batch import Framed, batch_boxes, move_boxes, whole_frame
from vitlab.data.check import check_dataset
from vitlab.data.dataset import ImageBoxes, ImageDataset
from vitlab.data.dense import evaluation_pipeline_with_boxes, preprocess_frame, training_pipeline_with_boxes
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.readers.boxes import read_voc
from vitlab.data.readers.recognise import for_task
from vitlab.errors import DataError

LIMITS = DecodeLimits()
COUNTS = {"train": 4, "val": 2}


def opened(root: Path | str, split: Any = "all") -> ImageDataset:
    dataset = open_dataset(root if isinstance(root, str) else str(root), split=split)
    assert isinstance(dataset, ImageDataset)
    assert dataset.boxes is not None
    return dataset


def content(dataset: ImageDataset) -> dict[str, list[list[float]]]:
    assert dataset.boxes is not None
    return {Path(dataset.name(index)).name: dataset.boxes[index].rows().tolist() for index in range(len(dataset))}


@pytest.mark.parametrize("kind", ["csv", "coco", "voc"])
def test_every_layout_gives_the_boxes_that_were_drawn(tmp_path: Path, kind: Literal["csv", "coco", "voc"]) -> None:
    root = write_boxes(tmp_path, counts=COUNTS, kind=kind)
    place = for_task(str(root), "detect")
    for split, count, first in (("train", 4, 0), ("val", 2, 4)):
        dataset = opened(place, split)
        assert dataset.labels == CLASSES
        wanted = {
            f"{split}{number}.png": [[CLASSES.index(name), *edges, 0] for name, *edges in boxes_of(first + number)]
            for number in range(count)
        }
        assert content(dataset) == wanted


def test_a_zip_and_boxes_json_give_what_the_folder_gives(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    root = write_boxes(tmp_path / "a", counts=COUNTS)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in sorted(root.rglob("*.*")):
            archive.write(file, file.relative_to(root))
    (tmp_path / "named").mkdir()
    settings = {"images": "../a.zip", "boxes": "../a.zip/boxes.csv", "classes": ["square", "disc"]}
    (tmp_path / "named/boxes.json").write_text(json.dumps(settings))
    folder, zipped, named = opened(root), opened(tmp_path / "a.zip"), opened(tmp_path / "named")
    assert content(folder) == content(zipped)
    assert folder.fingerprint() == zipped.fingerprint()
    assert named.labels == ("square", "disc")
    assert {name: sorted(row[1:] for row in rows) for name, rows in content(named).items()} == {
        name: sorted(row[1:] for row in rows) for name, rows in content(folder).items()
    }


def test_an_image_without_objects_and_other_spellings_of_a_list(tmp_path: Path) -> None:
    write_boxes(tmp_path, counts={"train": 2})
    (tmp_path / "boxes.csv").write_text(
        "file;label;xmin;ymin;xmax;ymax;split\ntrain/train0.png;disc;1;2;5.5;6;train\ntrain/train1.png;;;;;;val\n"
    )
    dataset = opened(tmp_path)
    assert content(dataset) == {"train0.png": [[0, 1, 2, 5.5, 6, 0]], "train1.png": []}
    assert [len(opened(tmp_path, split)) for split in ("train", "val")] == [1, 1]
    assert any("1 of 2 images have no box" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train/none.png,disc,1,2,3,4", "no image called"),
        ("train/train0.png,disc,1,2,three,4", "numbers of pixels"),
        ("train/train0.png,disc,1,2,nan,4", "numbers of pixels"),
        ("train/train0.png,,1,2,3,4", "no class"),
        (",disc,1,2,3,4", "no path"),
        ("train/train0.png,disc,1,2,3", "columns"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line_and_listed_by_data_check(tmp_path: Path, line: str, words: str) -> None:
    root = write_boxes(tmp_path, counts={"train": 3})
    with (root / "boxes.csv").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=words) as refusal:
        opened(root)
    assert "line 8" in refusal.value.message
    report = check_dataset(str(root))
    assert any(words.split()[0] in fault.reason for fault in report.faults)


def test_an_unknown_class_is_refused(tmp_path: Path) -> None:
    root = write_boxes(tmp_path, counts={"train": 3})
    (root / "classes.txt").write_text("disc\n")
    with pytest.raises(DataError, match="no class is called 'square'"):
        opened(root)


@pytest.mark.parametrize(
    ("edges", "words"),
    [("5,5,5,9", "no area"), ("60,5,70,9", "outside"), ("30,30,60,45", "reaches over the edge"), ("0,0,48.5,40", None)],
)
def test_data_check_finds_boxes_that_are_empty_or_outside(tmp_path: Path, edges: str, words: str | None) -> None:
    root = write_boxes(tmp_path, counts={"train": 2})
    with (root / "boxes.csv").open("a") as file:
        file.write(f"train/train0.png,disc,{edges}\n")
    found = [broken.reason for broken in check_dataset(str(root)).boxes]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_data_check_finds_boxes_for_another_size(tmp_path: Path) -> None:
    root = write_boxes(tmp_path, counts={"train": 2}, kind="voc")
    Image.new("RGB", (96, 80)).save(root / "JPEGImages/train1.png")
    (broken,) = check_dataset(for_task(str(root), "detect")).boxes
    assert "for an image of 40x48" in broken.reason


def painted(box: tuple[int, int, int, int], size: tuple[int, int] = (60, 90)) -> tuple[Any, ImageBoxes]:
    """A black image with a white box, and the box."""
    left, top, right, bottom = box
    image = np.zeros((*size, 3), np.uint8)
    image[top:bottom, left:right] = 255
    return image, ImageBoxes(
        corners_M4=np.array([box], np.float64),
        codes_M=np.zeros(1, np.int32),
        ignored_M=np.zeros(1, np.bool_),
        areas_M=np.array([float((right - left) * (bottom - top))]),
    )


def covers(pixels_HWC: Any, moved_M6: Any) -> bool:
    """Whether the white pixels are where the box says, to one pixel."""
    height, width = pixels_HWC.shape[:2]
    rows, columns = np.nonzero(pixels_HWC[:, :, 0] > 127)
    seen = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return bool(np.abs(seen - moved_M6[0, 1:5] * [width, height, width, height]).max() <= 1.0)


@pytest.mark.parametrize(
    "augment",
    [
        Augment(image_size=(48, 64), area=(0.5, 1.0)),
        Augment(image_size=(48, 64), crop="random", resize_to=80),
        Augment(image_size=(48, 64), crop="pad", padding=12, fill=0),
        Augment(image_size=(48, 64), crop="squash", flip=1.0),
    ],
)
def test_a_painted_box_stays_under_its_box_in_training(augment: Augment) -> None:
    image, boxes = painted((30, 20, 55, 41))
    transform = training_pipeline_with_boxes(augment, channels=3, limits=LIMITS).transform
    seen = 0
    for seed in range(20):
        from vitlab.data.dataset import RawSample

        made = transform(RawSample(name="a", content=image, label=None), np.random.default_rng(seed))
        assert isinstance(made, Framed)
        assert made.image_HWC.shape == (48, 64, 3)
        moved = move_boxes(boxes, made.frame)
        if len(moved) and (made.image_HWC > 127).any():
            seen += 1
            assert covers(made.image_HWC, moved)
    assert seen > 10


@pytest.mark.parametrize("resize", ["squash", "pad", "short-side"])
@pytest.mark.parametrize("size", [(60, 90), (90, 60)])
def test_a_painted_box_stays_under_its_box_in_evaluation_and_comes_back(resize: Any, size: tuple[int, int]) -> None:
    from vitlab.data.dataset import RawSample

    image, boxes = painted((20, 22, 40, 45), size)
    config = Preprocess(image_size=(48, 48), resize=resize, resize_to=50, fill=0)
    made = evaluation_pipeline_with_boxes(config, limits=LIMITS).transform(
        RawSample(name="a", content=image, label=None), np.random.default_rng(0)
    )
    assert isinstance(made, Framed)
    moved = move_boxes(boxes, made.frame)
    assert covers(made.image_HWC, moved)
    frame = preprocess_frame(*size, config)
    np.testing.assert_allclose(frame.back(frame.forward(boxes.corners_M4)), boxes.corners_M4, atol=1e-9)


def test_a_box_flipped_twice_is_itself() -> None:
    _, boxes = painted((10, 5, 30, 25))
    frame = whole_frame(60, 90)
    once = move_boxes(boxes, frame.mirrored())
    assert once[0, 1] == pytest.approx(1 - 30 / 90)
    assert np.array_equal(move_boxes(boxes, frame.mirrored().mirrored()), move_boxes(boxes, frame))


def test_what_a_crop_leaves_too_little_of_counts_for_nothing_and_what_it_hides_is_gone() -> None:
    _, boxes = painted((40, 10, 60, 30))
    left = whole_frame(60, 90)._replace(across=1 / 44)  # shows the first 44 columns: a fifth of the box
    assert move_boxes(boxes, left, visible=0.25)[0, 5] == 1
    assert move_boxes(boxes, left, visible=0.1)[0, 5] == 0
    assert len(move_boxes(boxes, left._replace(across=1 / 40))) == 0
    empty = replace(boxes, corners_M4=np.array([[40.0, 10, 40, 30]]))
    assert len(move_boxes(empty, whole_frame(60, 90))) == 0
    assert batch_boxes([move_boxes(boxes, left), np.zeros((0, 6), np.float32)])[1, 0, 0] == -1


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_boxes_of_a_batch_do_not_depend_on_workers_and_cache(tmp_path: Path, cache: Any) -> None:
    dataset = opened(write_boxes(tmp_path, counts={"train": 7}))
    augment = Augment(image_size=(32, 32), area=(0.4, 1.0))
    pipeline = training_pipeline_with_boxes(augment, channels=3, limits=LIMITS)
    found = []
    for workers, kind in ((0, "process"), (2, "thread"), (1, "process")):
        config = LoaderConfig(batch_size=4, workers=workers, worker_kind=kind, cache=cache)  # type: ignore[arg-type]
        with Loader(dataset, pipeline, config=config, train=True) as loader, loader.batches() as stream:
            found.append([next(stream) for _ in range(3)])
    for batch, *others in zip(*found, strict=True):
        assert batch.boxes_BM6 is not None
        assert batch.targets is batch.boxes_BM6
        for other in others:
            assert np.array_equal(batch.images_BHWC, other.images_BHWC)
            assert np.array_equal(batch.boxes_BM6, other.boxes_BM6)


def test_a_sample_gives_its_boxes_and_image_size_is_refused(tmp_path: Path) -> None:
    root = write_boxes(tmp_path, counts={"train": 2})
    sample = opened(root)[0]
    assert isinstance(sample.label, np.ndarray)
    assert sample.label.shape == (2, 6)
    with pytest.raises(DataError, match="boxes"):
        open_dataset(str(root), image_size=32)


OBJECT = "<object><name>dog</name>{}<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object>"


def test_voc_counts_pixels_from_one_and_knows_difficult_objects_and_parts() -> None:
    part = "<part><name>head</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></part>"
    text = f"<annotation>{OBJECT.format('<difficult>1</difficult>' + part)}</annotation>"
    (found,) = read_voc(text.encode(), "a.xml").objects
    assert (found.name, found.corners, found.difficult) == ("dog", (0, 1, 3, 4), True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<annotation>",
        "<other/>",
        '<!DOCTYPE a [<!ENTITY b "c">]><annotation/>',
        '<!DOCTYPE annotation SYSTEM "file:///etc/passwd"><annotation/>',
        "<annotation>" + "<a>" * 50 + "</a>" * 50 + "</annotation>",
        "<annotation>" + "<a/>" * 200_001 + "</annotation>",
        f"<annotation>{OBJECT.format('').replace('3', 'inf')}</annotation>",
        f"<annotation>{OBJECT.format('').replace('dog', '')}</annotation>",
        f"<annotation>{OBJECT.format('<difficult>maybe</difficult>')}</annotation>",
        "<annotation><size><width>-3</width></size></annotation>",
        '<?xml version="1.0" encoding="none"?><annotation/>',
        "<annotation>" + " " * 2**22 + "</annotation>",
    ],
)
def test_xml_that_is_no_annotation_is_refused_and_nothing_is_expanded(text: str) -> None:
    with pytest.raises(DataError, match=r"a\.xml"):
        read_voc(text.encode(), "a.xml")
