"""Labels are out of range, or data and model order their classes differently: vitlab refuses at the start and names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.test_labels import NAMES
from tests.data.test_manifest import opened, rows, written
from tests.inference import small
from vitlab.cli.main import main
from vitlab.data.dataset import align_labels
from vitlab.errors import DataError


def test_another_order_is_refused_with_the_places() -> None:
    with pytest.raises(
        DataError, match=r"order their classes differently: bee instead of the model's ant; ant instead of the model's bee"
    ):
        align_labels(("bee", "ant", *NAMES[2:]), NAMES)
    with pytest.raises(DataError, match=r"and 1 more"):
        align_labels(NAMES[::-1], NAMES)


@pytest.mark.parametrize("reorder", [True, False])
def test_classes_the_model_does_not_know_are_refused_by_name(reorder: bool) -> None:
    with pytest.raises(DataError, match=r"the model does not know yak, the data does not have ant, bee, cat, dog, eel and 2 more"):
        align_labels(("yak",), NAMES, reorder=reorder)
    with pytest.raises(DataError, match=r"8 classes and the model 7; the model does not know yak"):
        align_labels((*NAMES, "yak"), NAMES, reorder=reorder)


@pytest.mark.parametrize(
    ("classes", "cells", "reason"),
    [
        ("cat\nant", ["0", "2"], r"label 2 is outside 0 to 1"),
        ("cat\nant", ["cat", "ann"], "no class is called 'ann'"),
        ("crane\ncrane\nbee", ["crane", "bee"], "is the name of two classes"),
    ],
)
def test_labels_outside_the_list_of_classes_are_refused(tmp_path: Path, classes: str, cells: list[str], reason: str) -> None:
    path = written(tmp_path, rows(*cells))
    (tmp_path / "classes.txt").write_text(classes)
    with pytest.raises(DataError, match=reason):
        opened(path)


def test_an_evaluation_on_classes_in_another_order_ends_before_an_image_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small.saved(tmp_path / "model.safetensors", ("dog", "cat"))
    for label in ("cat", "dog"):
        small.photos(tmp_path / "images" / label, 1)[0].write_bytes(b"junk that would be named")
    assert main(["evaluate", str(model), str(tmp_path / "images")]) == 1
    said = capsys.readouterr().err
    assert "order their classes differently: cat instead of the model's dog" in said
    assert "photo" not in said
