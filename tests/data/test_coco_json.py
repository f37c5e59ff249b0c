"""COCO's JSON: what is sound is read as it is; everything else is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vitlab.data.dataset import Faults
from vitlab.data.readers.coco_json import is_coco, read_instances
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
