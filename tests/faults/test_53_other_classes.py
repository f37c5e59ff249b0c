"""Between two starts of a run a class folder is renamed, added or removed: the run is refused, with `--override` too, and the
error names the old and the new classes; the model keeps the classes it began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.runs import image_folder, run_on
from tests.training.small import last, run_to, same, small_run
from vitlab.checkpoints import load
from vitlab.cli.main import main
from vitlab.config.serialize import to_text
from vitlab.config.train import Masked
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.training import train


@pytest.mark.parametrize("override", [False, True])
def test_a_renamed_class_folder_is_refused_with_both_names(override: bool, tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(run_on(data), out, stop=2)
    before = last(out)
    (data / "eel").rename(data / "ape")
    with pytest.raises(DataError, match=r"classes bee, cat, eel, .* ape, bee, cat \(no longer there: eel; new: ape\)"):
        run_to(run_on(data), out, override=override)
    assert same(last(out), before)
    (data / "ape").rename(data / "eel")
    run_to(run_on(data), out)
    assert load(out / "model.safetensors").labels == ("bee", "cat", "eel")


def test_an_added_and_a_removed_class_are_reported_rather_than_the_number_of_outputs(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(run_on(data), out, stop=2)
    image_folder(data, ("dog",))
    with pytest.raises(DataError, match=r"\(new: dog\)"):
        run_to(run_on(data, classes=4), out)
    for name in ("dog", "bee"):
        (data / name).rename(tmp_path / name)
    with pytest.raises(DataError, match=r"\(no longer there: bee\)"):
        run_to(run_on(data, classes=2), out)


def test_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    run = small_run(steps=5)
    run = replace(run, model=replace(run.model, num_classes=10), data=replace(run.data, dataset="digits"))
    digits = open_dataset("digits", split="all")
    assert isinstance(digits, ImageDataset)
    list(train(run, out=tmp_path / "run", dataset=digits))
    with pytest.raises(DataError, match=r"\(0 is now 9, 1 is now 8"):
        list(train(run, out=tmp_path / "run", dataset=replace(digits, labels=digits.labels[::-1])))


def test_a_run_folder_of_an_earlier_version_has_the_classes_in_its_checkpoint(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(run_on(data), out, stop=2)
    (out / "data.npz").unlink()
    (data / "eel").rename(data / "ape")
    with pytest.raises(DataError, match="no longer there: eel; new: ape"):
        run_to(run_on(data), out)


def test_masked_prediction_has_no_classes_to_compare(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run = run_on(data)
    run = replace(run, data=replace(run.data, augment=replace(run.data.augment, mixup=0.0)))
    run = replace(run, train=replace(run.train, masked=Masked(target="pixels")))
    run_to(run, out, stop=2)
    (data / "eel").rename(data / "ape")
    with pytest.raises(DataError, match=r"training samples: \d added \(ape/"):
        run_to(run, out)
    run_to(run, out, override=True)


def test_the_command_line_prints_it_in_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(run_on(data), out, stop=2)
    (data / "eel").rename(data / "ape")
    (tmp_path / "run.json").write_text(to_text(run_on(data)))
    assert main(["train", str(tmp_path / "run.json"), "--out", str(out)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert "eel" in error
    assert hint.startswith("hint: ")
    assert "--out" in hint
