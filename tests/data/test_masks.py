"""Images with masks: the readers, the transforms that move both together, and what `data check` finds."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.mask_images import CLASSES, drawn, write_folder
from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, Preprocess
from vitlab.data.check import check_dataset
from vitlab.data.dataset import IGNORED, ImageDataset, IndexMask
from vitlab.data.dense import (
    evaluation_pipeline_with_masks,
    image_and_mask,
    nearest,
    preprocess_mask,
    training_pipeline_with_masks,
)
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError

LIMITS = DecodeLimits()


def opened(path: Path | str, split: str = "all") -> ImageDataset:
    dataset = open_dataset(str(path), split=split)  # type: ignore[arg-type]
    assert isinstance(dataset, ImageDataset)
    return dataset


def both(dataset: ImageDataset, index: int) -> np.ndarray:
    return image_and_mask(dataset.read(index), channels=3, limits=LIMITS)


def test_a_folder_of_images_beside_a_folder_of_masks_gives_pairs_and_splits(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "shapes", counts={"train": 3, "val": 2})
    dataset = opened(root)
    assert dataset.labels == CLASSES
    assert (len(opened(root, "train")), len(opened(root, "val"))) == (3, 2)
    image, mask = drawn(0)
    found = both(opened(root, "train"), 0)
    assert np.array_equal(found[:, :, :3], image)
    assert np.array_equal(found[:, :, 3], mask)


def test_a_sample_has_its_mask_as_label(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 1})
    sample = opened(root)[0]
    assert np.array_equal(sample.label, drawn(0)[1])
    with pytest.raises(DataError, match="image_size"):
        open_dataset(str(root), split="all", image_size=32)


def test_too_few_images_for_splits_are_counted_together(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"": 1})
    with pytest.raises(DataError, match="all: has 1 different image"):
        opened(root, "train")


def test_a_palette_holds_the_same_classes_as_grey_levels(tmp_path: Path) -> None:
    grey = opened(write_folder(tmp_path / "grey", counts={"train": 2}))
    palette = opened(write_folder(tmp_path / "palette", counts={"train": 2}, palette=True))
    assert all(np.array_equal(both(grey, index), both(palette, index)) for index in range(2))


def test_a_zip_gives_the_same_samples_as_its_folder(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "shapes", counts={"train": 2, "test": 1})
    with zipfile.ZipFile(tmp_path / "shapes.zip", "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, f"shapes/{file.relative_to(root)}")
    folder, zipped = opened(root), opened(tmp_path / "shapes.zip")
    assert folder.labels == zipped.labels
    assert folder.fingerprint() == zipped.fingerprint()
    assert all(np.array_equal(both(folder, index), both(zipped, index)) for index in range(3))


def test_masks_json_names_images_and_masks_anywhere_and_values_in_any_order(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "shapes", counts={"train": 2})
    plain = opened(root)
    settings = {
        "images": "shapes/images",
        "masks": "shapes/masks",
        "classes": {"square": 2, "disc": 1},
        "ignore": 0,
    }
    (tmp_path / "masks.json").write_text(json.dumps(settings))
    dataset = opened(tmp_path / "masks.json")
    assert dataset.labels == ("square", "disc")
    before, after = both(plain, 0)[:, :, 3], both(dataset, 0)[:, :, 3]
    assert np.array_equal(after, np.select([before == 2, before == 1], [0, 1], IGNORED))
    assert np.array_equal(both(opened(tmp_path), 0), both(dataset, 0))  # the folder of masks.json is the same data


def write_voc(root: Path, *, lists: dict[str, str], images: int, masks: int) -> Path:
    """VOC's layout: JPEGs, of which the first ones have masks, and lists of numbers."""
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    for number in range(images):
        image, mask = drawn(number)
        Image.fromarray(image).save(root / "JPEGImages" / f"{number}.jpg", quality=95)
        if number < masks:
            Image.fromarray(mask).save(root / "SegmentationClass" / f"{number}.png")
    for split, numbers in lists.items():
        (root / f"ImageSets/Segmentation/{split}.txt").write_text("\n".join([*numbers.split(), ""]))
    return root


def test_vocs_layout_takes_its_lists_and_its_classes(tmp_path: Path) -> None:
    write_voc(tmp_path, lists={"train": "0 2", "val": "1"}, images=5, masks=4)
    dataset = opened(tmp_path)
    assert dataset.labels[:3] == ("background", "aeroplane", "bicycle")
    assert len(dataset.labels) == 21
    assert [Path(opened(tmp_path, "train").name(index)).stem for index in range(2)] == ["0", "2"]
    assert [Path(opened(tmp_path, "val").name(0)).stem] == ["1"]
    assert dataset.notes == ("1 masks left out that no list of ImageSets/Segmentation names",)
    assert check_dataset(str(tmp_path)).masks == ()


def test_data_check_finds_missing_misaligned_and_out_of_range_masks_of_voc(tmp_path: Path) -> None:
    write_voc(tmp_path, lists={"train": "0 1 2 3 9", "val": "4 0 6"}, images=6, masks=6)
    (tmp_path / "SegmentationClass/1.png").unlink()
    (tmp_path / "JPEGImages/2.jpg").unlink()
    Image.fromarray(drawn(3)[1][:, :-4]).save(tmp_path / "SegmentationClass/3.png")
    Image.fromarray(np.full((40, 48), 21, np.uint8)).save(tmp_path / "SegmentationClass/4.png")  # VOC has the classes 0 to 20
    report = check_dataset(str(tmp_path))
    assert {(fault.place, fault.reason) for fault in report.faults} == {
        ("JPEGImages/1.jpg", "has no mask"),
        ("SegmentationClass/2.png", "is a mask without an image"),
        ("9", "has no mask"),
        ("6", "has no mask"),
        ("0", "is in ImageSets/Segmentation/train.txt and in ImageSets/Segmentation/val.txt"),
    }
    assert [words in one.reason for words, one in zip(("40x44", "value 21"), report.masks, strict=True)] == [True, True]
    assert {problem.kind for problem in report.problems()} >= {"layout", "mask"}


def test_without_names_the_values_of_the_masks_are_the_classes(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 2})
    (root / "classes.txt").unlink()
    dataset = opened(root)
    assert dataset.labels == ("value 0", "value 1", "value 2")
    assert any("no names" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"image": "a"}, "no setting image"),
        ({"images": "images"}, "both images and masks"),
        ({"classes": {"a": 1}}, "from 2 to"),
        ({"classes": {"a": 1, "b": 300}}, "whole number from 0 to 255"),
        ({"classes": {"a": 1, "b": 1}}, "one value to several"),
        ({"classes": {"a": 1, "b": 2}, "ignore": [2]}, "is ignored too"),
        ({"classes": ["a", "a"]}, "different names"),
        ({"classes": ["a", {}, "b"]}, "different names"),
        ({"ignore": "border"}, "ignore must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    write_folder(tmp_path, counts={"train": 1})
    (tmp_path / "masks.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=words):
        opened(tmp_path)


def test_an_image_without_a_mask_and_a_mask_without_an_image_are_named(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 3})
    (root / "masks/train/1.png").unlink()
    (root / "images/train/2.png").unlink()
    with pytest.raises(DataError, match=r"2 faults.*images/train/1.png: has no mask.*without an image"):
        opened(root)


def test_masks_of_another_size_or_with_unknown_values_or_colours_are_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 3})
    Image.fromarray(drawn(0)[1][:, :-4]).save(root / "masks/train/0.png")
    Image.fromarray(np.full((40, 48), 7, np.uint8)).save(root / "masks/train/1.png")
    Image.fromarray(drawn(0)[0]).save(root / "masks/train/2.png")
    dataset = opened(root)
    for index, words in enumerate(("40x44 and its image 40x48", "value 7", "not class numbers")):
        with pytest.raises(DataError, match=words):
            both(dataset, index)


def test_data_check_finds_missing_misaligned_and_out_of_range_masks(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 5})
    (root / "masks/train/0.png").unlink()
    Image.fromarray(drawn(0)[1][:, :-4]).save(root / "masks/train/1.png")
    Image.fromarray(np.full((40, 48), 7, np.uint8)).save(root / "masks/train/2.png")
    report = check_dataset(str(root))
    assert [(fault.place, fault.reason) for fault in report.faults] == [("images/train/0.png", "has no mask")]
    assert ["40x44" in report.masks[0].reason, "value 7" in report.masks[1].reason] == [True, True]
    assert {problem.kind for problem in report.problems()} >= {"layout", "mask"}
    assert [(entry.label, entry.total) for entry in report.classes] == [(name, 2) for name in CLASSES]


def test_sound_masks_leave_nothing_to_repair(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 3, "val": 2})
    assert check_dataset(str(root)).problems() == []


def test_a_file_that_is_used_is_not_among_those_left_out(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 3})
    assert opened(root).notes == ()
    (root / "notes.txt").write_text("x")
    assert opened(root).notes == ("1 file left out that are not images: 1 .txt",)


def position_images(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """An image whose class is written into its colour: 40 times the class."""
    classes = drawn(3, size)[1]
    classes[classes == IGNORED] = 0
    return np.repeat((classes * 40)[:, :, None], 3, axis=2), classes


@pytest.mark.parametrize(
    "augment",
    [
        Augment(image_size=(32, 32), area=(0.3, 1.0), flip=0.5),
        Augment(image_size=(32, 24), crop="random", resize_to=40, flip=1.0),
        Augment(image_size=(32, 32), crop="squash", flip=1.0),
    ],
)
def test_a_training_transform_moves_image_and_mask_together(tmp_path: Path, augment: Augment) -> None:
    image, classes = position_images((64, 80))
    for kind, pixels in (("images", image), ("masks", classes)):
        (tmp_path / kind).mkdir()
        Image.fromarray(pixels).save(tmp_path / kind / "a.png")
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    pipeline = training_pipeline_with_masks(augment, channels=3, limits=LIMITS)
    dataset = opened(tmp_path)
    for seed in range(8):
        made = pipeline.transform(dataset.read(0), np.random.default_rng(seed))
        assert isinstance(made, np.ndarray)
        assert made.shape == pipeline.shape == (*augment.image_size, 4)
        inside = np.abs(made[:, :, 0].astype(int) - 40 * made[:, :, 3].astype(int)) < 20  # edges are interpolated
        assert inside.mean() > 0.85


def test_a_crop_with_a_border_ignores_the_border(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 1})
    augment = Augment(image_size=(32, 32), crop="pad", padding=8, flip=0.0)
    made = training_pipeline_with_masks(augment, channels=3, limits=LIMITS).transform(
        opened(root).read(0), np.random.default_rng(5)
    )
    assert isinstance(made, np.ndarray)
    border = (made[:, :, :3] == augment.fill).all(2)
    assert border.any()
    assert (made[:, :, 3][border] == IGNORED).all()


def test_nearest_at_the_same_size_changes_nothing_and_at_twice_the_size_repeats() -> None:
    classes = drawn(1)[1]
    assert np.array_equal(nearest(classes, (40, 48)), classes)
    assert np.array_equal(nearest(classes, (80, 96)), classes.repeat(2, 0).repeat(2, 1))
    whole = nearest(classes, (60, 72))
    assert np.array_equal(nearest(classes, (60, 72), box=(10, 4, 20, 30)), whole[10:30, 4:34])


def test_padding_for_evaluation_counts_for_nothing() -> None:
    classes = drawn(1)[1]
    padded = preprocess_mask(classes, Preprocess(image_size=(48, 48), resize="pad"))
    assert (padded[:4] == IGNORED).all()
    assert (padded[-4:] == IGNORED).all()
    assert np.array_equal(padded[4:-4], classes)
    cropped = preprocess_mask(classes, Preprocess(image_size=(40, 40), resize="short-side", resize_to=40))
    assert np.array_equal(cropped, classes[:, 4:44])


@pytest.mark.parametrize("cache", ["none", "memory"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_holds_masks_apart_from_images_with_and_without_a_cache(tmp_path: Path, cache: str, workers: int) -> None:
    root = write_folder(tmp_path, counts={"train": 5})
    pipeline = evaluation_pipeline_with_masks(Preprocess(image_size=(40, 48), resize="squash"), limits=LIMITS)
    config = LoaderConfig(batch_size=2, workers=workers, worker_kind="thread", cache=cache)  # type: ignore[arg-type]
    with Loader(opened(root), pipeline, config=config, train=False) as loader, loader.batches() as batches:
        found = list(batches)
    assert [len(batch) for batch in found] == [2, 2, 1]
    for number, batch in enumerate(found):
        assert batch.images_BHWC.shape[1:] == (40, 48, 3)
        assert batch.masks_BHW is not None
        for row in range(len(batch)):
            image, mask = drawn(2 * number + row)
            assert np.array_equal(batch.images_BHWC[row], image)
            assert np.array_equal(batch.masks_BHW[row], mask)
            assert np.array_equal(batch.targets[row], mask)


def test_a_broken_mask_is_a_broken_sample(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 2})
    (root / "masks/train/1.png").write_bytes((root / "masks/train/1.png").read_bytes()[:60])
    with pytest.raises(DataError, match="broken"):
        both(opened(root), 1)


def test_sixteen_bits_are_read_and_values_above_255_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path, counts={"train": 1})
    mask = opened(root).read(0).mask
    assert isinstance(mask, IndexMask)
    for largest, fits in ((2, True), (300, False)):
        deep = np.zeros((40, 48), np.uint16)
        deep[0, 0] = largest
        file = io.BytesIO()
        Image.fromarray(deep).save(file, "PNG")
        raw = replace(mask, name="deep.png", content=file.getvalue())
        if fits:
            assert raw.classes((40, 48), limits=LIMITS)[0, 0] == largest
        else:
            with pytest.raises(DataError, match="300"):
                raw.classes((40, 48), limits=LIMITS)
