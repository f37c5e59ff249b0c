"""COCO's files: what is sound is read as it is, everything else is refused with its place; instances and panoptic files give the
same masks as PNGs of classes.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.coco_files import write_instances, write_panoptic
from tests.data.mask_images import drawn
from vitlab.config.data import DecodeLimits
from vitlab.data.check import check_dataset
from vitlab.data.dataset import IGNORED, Faults, ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.data.readers.coco import ShapesMask, is_coco, read_instances, shape_inside
from vitlab.errors import DataError


def sound() -> dict[str, Any]:
    return {
        "images": [
            {"id": 5, "file_name": "b.jpg", "height": 40, "width": 60},
            {"id": 2, "file_name": "train/a.jpg", "height": 30, "width": 20},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person", "supercategory": "x"}],
        "annotations": [
            {"id": 1, "image_id": 5, "category_id": 18, "bbox": [1, 2, 3.5, 4], "iscrowd": 0, "segmentation": [[1, 2, 3, 4, 5, 6]]},
            {"id": 2, "image_id": 5, "category_id": 1, "bbox": [0, 0, 60, 40], "iscrowd": 1, "segmentation": {"counts": [4]}},
        ],
    }


def read(data: object, faults: Faults | None = None) -> Any:
    return read_instances(json.dumps(data).encode(), "made.json", faults=faults)


def test_a_sound_file_is_read_and_categories_are_ordered_by_id() -> None:
    found = read(sound())
    assert found.categories == ("person", "dog")
    assert [image.file_name for image in found.images.values()] == ["b.jpg", "train/a.jpg"]
    assert [(one.category, one.box, one.crowd) for one in found.annotations] == [
        (1, (1.0, 2.0, 3.5, 4.0), False),
        (0, (0.0, 0.0, 60.0, 40.0), True),
    ]
    assert {id_: len(own) for id_, own in found.by_image().items()} == {5: 2, 2: 0}
    assert is_coco(json.dumps(sound()).encode())
    assert not is_coco(b'[{"images": 1}]')


@pytest.mark.parametrize(
    ("list_of", "change", "words"),
    [
        ("images", {"id": 2}, "twice"),
        ("images", {"id": "5"}, "whole number"),
        ("images", {"id": True}, "whole number"),
        ("images", {"file_name": "../../etc/passwd"}, "inside the folder"),
        ("images", {"file_name": "/etc/passwd"}, "inside the folder"),
        ("images", {"file_name": 7}, "inside the folder"),
        ("images", {"file_name": "train/a.jpg"}, "occurs twice"),
        ("images", {"height": -4}, "whole numbers of pixels"),
        ("images", {"width": 1e9}, "whole numbers of pixels"),
        ("categories", {"name": "person"}, "occurs twice"),
        ("categories", {"name": ""}, "needs a name"),
        ("categories", {"name": None}, "must be text"),
        ("annotations", {"image_id": 99}, "no image has the id 99"),
        ("annotations", {"category_id": 99}, "no category has the id 99"),
        ("annotations", {"bbox": [1, 2, 3]}, "four finite numbers"),
        ("annotations", {"bbox": [1, 2, 3, "4"]}, "four finite numbers"),
        ("annotations", {"bbox": [1, 2, 3, 10**400]}, "four finite numbers"),
        ("annotations", {"iscrowd": 2}, "iscrowd"),
        ("annotations", {"iscrowd": []}, "iscrowd"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(list_of: str, change: dict[str, Any], words: str) -> None:
    data = sound()
    data[list_of][0] |= change
    with pytest.raises(DataError, match=words) as refusal:
        read(data)
    assert f"{list_of}[" in refusal.value.message
    collected = Faults("made.json")
    read(data, collected)  # collected instead of raised, as `data check` does
    assert len(collected) >= 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"images": 3}', '{"images": [], "categories": []}', "[" * 100_000, "nul", "NaN"])
def test_what_is_no_coco_file_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        read_instances(text.encode(), "made.json")


def test_numbers_that_json_does_not_know_are_refused() -> None:
    text = json.dumps(sound()).replace("3.5", "NaN")
    with pytest.raises(DataError, match="NaN"):
        read_instances(text.encode(), "made.json")


LIMITS = DecodeLimits()
Writer = Callable[..., Path]
LAYOUTS = {"instances": write_instances, "panoptic": write_panoptic}
each_layout = pytest.mark.parametrize("kind", LAYOUTS)


def opened(path: Path | str, split: str = "all") -> ImageDataset:
    dataset = open_dataset(str(path), split=split)  # type: ignore[arg-type]
    assert isinstance(dataset, ImageDataset)
    return dataset


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a JSON file."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@each_layout
def test_coco_gives_the_masks_that_were_drawn_and_its_splits(kind: str, tmp_path: Path) -> None:
    root = LAYOUTS[kind](tmp_path, splits={"train": range(3), "val": range(3, 5)})
    assert opened(root).labels == ("background" if kind == "instances" else "ground", "disc", "square")
    assert (len(opened(root, "train")), len(opened(root, "val"))) == (3, 2)
    for split, seeds in (("train", range(3)), ("val", range(3, 5))):
        for index, seed in enumerate(seeds):
            sample, (image, mask) = opened(root, split)[index], drawn(seed)
            assert np.array_equal(sample.image, image)
            assert np.array_equal(sample.label, mask)


@each_layout
def test_a_zip_and_one_file_of_the_list_give_the_same_samples(kind: str, tmp_path: Path) -> None:
    root = LAYOUTS[kind](tmp_path / "coco", splits={"train": range(2), "val": range(2, 3)})
    with zipfile.ZipFile(tmp_path / "coco.zip", "w") as archive:
        for file in sorted(root.rglob("*.*")):
            archive.write(file, f"coco/{file.relative_to(root)}")
    folder, zipped, alone = opened(root), opened(tmp_path / "coco.zip"), opened(root / f"annotations/{kind}_val2017.json")
    assert folder.fingerprint() == zipped.fingerprint()
    assert len(alone) == 1
    assert np.array_equal(alone[0].label, drawn(2)[1])


def test_images_elsewhere_are_named_by_masks_json(tmp_path: Path) -> None:
    root = write_instances(tmp_path / "coco", splits={"train": range(2)})
    with zipfile.ZipFile(tmp_path / "train2017.zip", "w") as archive:
        for file in sorted((root / "train2017").iterdir()):
            archive.write(file, f"train2017/{file.name}")
            file.unlink()
    settings = {"images": "train2017.zip", "masks": "coco/annotations/instances_train2017.json"}
    (tmp_path / "masks.json").write_text(json.dumps(settings))
    assert np.array_equal(opened(tmp_path)[1].label, drawn(1)[1])
    (tmp_path / "masks.json").write_text(json.dumps({**settings, "ignore": 3}))
    with pytest.raises(DataError, match="has its own"):
        opened(tmp_path)


def test_images_beside_their_list_in_folders_of_splits(tmp_path: Path) -> None:
    """As many tools export: train/_annotations.coco.json beside its images."""
    made = write_instances(tmp_path / "made", splits={"train": range(2), "valid": range(2, 4)})
    for split in ("train", "valid"):
        (tmp_path / "data" / split).mkdir(parents=True)
        for file in (made / f"{split}2017").iterdir():
            file.rename(tmp_path / "data" / split / file.name)
        (made / f"annotations/instances_{split}2017.json").rename(tmp_path / "data" / split / "_annotations.coco.json")
    assert (len(opened(tmp_path / "data", "train")), len(opened(tmp_path / "data", "val"))) == (2, 2)
    assert np.array_equal(opened(tmp_path / "data", "val")[0].label, drawn(2)[1])


def test_a_folder_with_both_kinds_takes_the_panoptic_one_and_says_so(tmp_path: Path) -> None:
    write_panoptic(tmp_path, splits={"train": range(2)})
    other = write_instances(tmp_path / "other", splits={"train": range(2)})
    (other / "annotations/instances_train2017.json").rename(tmp_path / "annotations/instances_train2017.json")
    (other / "train2017/0.png").unlink()
    (other / "train2017/1.png").unlink()
    dataset = opened(tmp_path)
    assert dataset.labels[0] == "ground"
    assert any("instances_train2017.json: not used" in note for note in dataset.notes)


def test_a_smaller_object_is_on_top_whatever_their_order() -> None:
    big, small = [[0, 0, 8, 0, 8, 8, 0, 8]], [[2, 2, 5, 2, 5, 5, 2, 5]]
    masks = []
    for shapes in ([(1, False, big), (2, False, small)], [(2, False, small), (1, False, big)]):
        raw = ShapesMask(name="a", shapes=json.dumps(shapes).encode(), declared=(10, 10), background=0)
        masks.append(raw.classes((10, 10), limits=LIMITS))
    assert np.array_equal(masks[0], masks[1])
    assert (masks[0][3, 3], masks[0][1, 1], masks[0][9, 9]) == (2, 1, 0)


def test_polygons_of_one_object_are_joined() -> None:
    left, right = [0, 0, 4, 0, 4, 4, 0, 4], [3, 0, 8, 0, 8, 4, 3, 4]
    assert np.array_equal(shape_inside([left, right], (6, 9)), shape_inside([[0, 0, 8, 0, 8, 4, 0, 4]], (6, 9)))


@each_layout
def test_data_check_finds_missing_misaligned_and_out_of_range_masks(kind: str, tmp_path: Path) -> None:
    root = LAYOUTS[kind](tmp_path, splits={"train": range(6)})
    file = root / f"annotations/{kind}_train2017.json"
    (root / "train2017/0.png").unlink()
    Image.fromarray(drawn(1)[0][:-2]).save(root / "train2017/1.png")
    if kind == "panoptic":
        (root / "annotations/panoptic_train2017/2.png").unlink()
        Image.fromarray(np.full((40, 48, 3), 7, np.uint8)).save(root / "annotations/panoptic_train2017/3.png")
        changed(file, lambda data: data["annotations"][4]["segments_info"][0].update(category_id=99))
        changed(file, lambda data: data["annotations"].pop(5))
    else:
        changed(file, lambda data: data["annotations"][2 * 3 + 1].update(segmentation=[[500, 0, 510, 0, 510, 9]]))
        changed(file, lambda data: data["annotations"][3 * 3].update(segmentation={"size": [40, 48], "counts": [3]}))
        changed(file, lambda data: data["annotations"][4 * 3].update(category_id=99))
    report = check_dataset(str(root))
    faults = {(fault.place, fault.reason) for fault in report.faults}
    wrong = {one.reason for one in report.masks}

    def said(reasons: set[Any], *words: str) -> bool:
        return any(all(word in str(reason) for word in words) for reason in reasons)

    assert said(faults, "0.png", "is in no folder")
    assert said(wrong, "40x48 and its image 38x48")
    assert said(faults, "no category has the id 99")
    if kind == "panoptic":
        assert said(faults, "2.png", "its mask", "no folder")
        assert said(wrong, "segment 460551")
        assert said(faults, "5.png", "has no mask")
    else:
        assert said(wrong, "outside of its image")
        assert said(wrong, "do not fill 40x48")
    with pytest.raises(DataError, match="no folder"):
        opened(root)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["annotations"][0].update(segmentation=[]), "no segmentation"),
        (lambda data: data["annotations"][0].update(segmentation=[[1, 2, 3]]), "three points"),
        (lambda data: data["annotations"][0].update(segmentation=[[1, 2, 3, 4, 5, "6"]]), "three points"),
        (lambda data: data["annotations"][0].update(segmentation=[[1, 2, 3, 4, 5, 1e9]]), "by more than its size"),
        (lambda data: data["annotations"][0].update(segmentation="deadbeef"), "no segmentation"),
        (
            lambda data: data["annotations"][0].update(segmentation={"size": [48, 40], "counts": [1920]}),
            "48x40 and its image 40x48",
        ),
        (lambda data: data["categories"].append({"id": 5, "name": "disc"}), "occurs twice"),
        (lambda data: data["annotations"].append(7), "not a JSON object"),
        (lambda data: data["images"].append({"id": 1, "file_name": "../secret.png"}), "inside the folder"),
        (lambda data: data.pop("images"), "no list of images"),
    ],
)
def test_what_is_wrong_is_said(change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path) -> None:
    root = write_instances(tmp_path, splits={"train": range(2)})
    changed(root / "annotations/instances_train2017.json", change)
    with pytest.raises(DataError, match=words):
        opened(root)[0]


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    root = write_instances(tmp_path, splits={"train": range(2), "val": range(2, 3)})
    file = root / "annotations/instances_train2017.json"
    (root / "annotations/stuff_train2017.json").write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="both describe"):
        opened(root)
    (root / "annotations/stuff_train2017.json").unlink()
    changed(file, lambda data: data["categories"][0].update(name="ring"))
    with pytest.raises(DataError, match="other categories"):
        opened(root)


def test_a_json_file_that_is_not_cocos_is_refused(tmp_path: Path) -> None:
    for content, words in (("{}", "not a COCO file"), ("[1, 2]", "JSON object"), ("no", "not JSON"), ("", "not JSON")):
        (tmp_path / "list.json").write_text(content)
        with pytest.raises(DataError, match=words):
            opened(tmp_path / "list.json")
    (tmp_path / "list.json").write_text(json.dumps({"images": [], "categories": [], "annotations": []}))
    with pytest.raises(DataError, match="no COCO file with masks"):
        opened(tmp_path / "list.json")


def test_a_panoptic_mask_that_is_no_png_or_huge_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    root = write_panoptic(tmp_path, splits={"train": range(2)})
    folder = root / "annotations/panoptic_train2017"
    Image.new("RGB", (900, 1_000)).save(folder / "0.png")
    (folder / "0.png").write_bytes((folder / "0.png").read_bytes()[:60])  # the header alone: decoding would fail
    Image.fromarray(drawn(1)[0]).save(folder / "1.jpg")
    (folder / "1.jpg").rename(folder / "1.png")
    for index, words in enumerate(("1000x900 and its image 40x48", "jpeg file")):
        with pytest.raises(DataError, match=words):
            opened(root)[index]


def test_a_crowd_of_a_panoptic_file_and_no_segment_are_ignored(tmp_path: Path) -> None:
    root = write_panoptic(tmp_path, splits={"train": range(1)})
    file = root / "annotations/panoptic_train2017.json"
    changed(file, lambda data: data["annotations"][0]["segments_info"][1].update(iscrowd=1))
    label, mask = opened(root)[0].label, drawn(0)[1]
    assert np.array_equal(label, np.where(mask == 1, IGNORED, mask))
