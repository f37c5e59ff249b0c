"""Between two starts of a run samples are added, removed or changed: they are counted and named, and the run is refused; with
`--override` it continues and says from which step on."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.faults.runs import image_folder, run_on, warnings_of
from tests.training.small import run_to, small_run
from vitlab.config.run import RunConfig
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError, TrainingError
from vitlab.training import run_data
from vitlab.training.events import Finished
from vitlab.training.run_data import DataRecord, open_splits
from vitlab.training.run_folder import RunDirectory
from vitlab.training.sweep import sweep


def all_of(data: Path) -> RunConfig:
    """A run that trains on every image, so that each has one split."""
    run = run_on(data)
    return replace(run, data=replace(run.data, train_split="all", evaluate_split=None))


def change(path: Path) -> None:
    """Another image of the same size in bytes: noise cannot be compressed."""
    size = path.stat().st_size
    for seed in range(1, 1000):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16), np.uint8)).save(path)
        if path.stat().st_size == size:
            return
    raise AssertionError("no image of the same size")


def test_other_samples_are_counted_named_and_refused_without_override(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(all_of(data), out, stop=2)
    shutil.copy(data / "bee" / "1.png", data / "bee" / "9.png")
    (data / "cat" / "0.png").unlink()
    (data / "cat" / "1.png").unlink()
    change(data / "eel" / "3.png")
    found = r"training samples: 1 added \(bee/9.png\), 2 removed \(cat/0.png, cat/1.png\), 1 changed \(eel/3.png\)"
    with pytest.raises(DataError, match=found) as caught:
        run_to(all_of(data), out)
    assert "`override=True`" in str(caught.value.hint)
    (warning,) = warnings_of(run_to(all_of(data), out, stop=4, override=True))
    assert warning.startswith("from step 2 on the run uses other data: training samples: 1 added (bee/9.png)")
    assert warnings_of(run_to(all_of(data), out)) == []  # this data is now the run's
    kept = [event for event in RunDirectory(out).events() if event["event"] == "warned"]
    assert [(event["step"], event["message"]) for event in kept] == [(2, warning)]


def test_a_sample_that_moves_to_another_class_or_split_is_another_sample(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(run_on(data), out, stop=2)
    trained = Path(open_dataset(str(data), split="train", rule=run_on(data).data.rule)[0].name)
    trained.rename(data / "eel" / f"moved-{trained.name}")
    with pytest.raises(DataError, match=rf"1 added \(eel/moved-{trained.name}\), 1 removed \(bee/{trained.name}\)"):
        run_to(run_on(data), out)


def test_more_images_are_reported_rather_than_the_longer_schedule_they_make(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(all_of(data), out, stop=2)
    shutil.copy(data / "bee" / "1.png", data / "bee" / "9.png")
    longer = all_of(data)
    with pytest.raises(DataError, match="1 added"):
        run_to(replace(longer, train=replace(longer.train, steps=7)), out)


def test_a_copy_of_the_data_with_other_times_is_the_same_data(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(all_of(data), out, stop=2)
    for path in data.rglob("*.png"):
        os.utime(path, (1, 1))
    assert warnings_of(run_to(all_of(data), out)) == []


def as_zip(folder: Path, to: Path) -> str:
    with zipfile.ZipFile(to / "data.zip", "w") as file:
        for path in sorted(folder.rglob("*.png")):
            file.write(path, path.relative_to(folder))
    return str(to / "data.zip")


def as_shard(folder: Path, to: Path) -> str:
    with tarfile.open(to / "data.tar", "w") as file:
        for path in sorted(folder.rglob("*.png")):
            file.add(path, path.relative_to(folder))
    return str(to / "data.tar")


def as_arrays(folder: Path, to: Path) -> str:
    paths = sorted(folder.rglob("*.png"))
    names = sorted({path.parent.name for path in paths})
    images, labels = [np.array(Image.open(path)) for path in paths], [names.index(path.parent.name) for path in paths]
    np.savez(to / "data.npz", images=np.stack(images), labels=np.array(labels))
    return str(to / "data.npz")


def as_parquet(folder: Path, to: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    paths = sorted(folder.rglob("*.png"))
    rows = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": path.parent.name} for path in paths]
    parquet.write_table(pyarrow.Table.from_pylist(rows), to / "data.parquet")
    return str(to / "data.parquet")


def as_list(folder: Path, to: Path) -> str:
    lines = [f"{path.relative_to(to)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
    (to / "data.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    return str(to / "data.csv")


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (as_zip, "eel/3.png"),
        (as_shard, "eel/3.png"),
        (as_arrays, "images, image 19"),
        (as_parquet, "row 19"),
        (as_list, "data/eel/3.png"),
    ],
)
def test_every_container_names_the_sample_that_changed(
    made: Callable[[Path, Path], str], name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    data = image_folder(tmp_path / "data")
    before = recorded(made(data, tmp_path))
    assert before.changes(recorded(made(data, tmp_path))) == []
    change(data / "eel" / "3.png")
    (found,) = before.changes(recorded(made(data, tmp_path)))
    assert found == f"training samples: 1 changed ({name})"
    copied = shutil.copytree(data, elsewhere / "data")
    assert before.changes(recorded(made(copied, elsewhere))) == [found]  # the same in another place


def recorded(spec: str) -> DataRecord:
    """The record of a dataset, after it was written and read."""
    run = small_run()
    run = replace(run, data=replace(run.data, dataset=spec, train_split="all", evaluate_split=None))
    record = DataRecord.of(run, *open_splits(run))
    path = Path(spec).with_suffix(".record")
    record.write(path)
    return DataRecord.read(path)


def test_data_without_names_is_compared_as_a_whole(tmp_path: Path) -> None:
    def of(number: int, seed: int = 0) -> DataRecord:
        spec = f"synthetic:kind=contours,classes=4,samples_per_class={number},image_size=16,seed={seed}"
        run = small_run()
        run = replace(run, data=replace(run.data, dataset=spec, evaluate_split=None))
        return DataRecord.of(run, *open_splits(run))

    assert of(16).changes(of(16)) == []
    assert of(16).changes(of(17)) == ["training samples: 68 instead of 64"]
    assert of(16).changes(of(16, seed=1)) == ["training samples: others"]


def test_of_many_samples_all_names_and_labels_and_some_contents_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_data, "_MOST_HASHED", 3)
    data = image_folder(tmp_path / "data")
    before = recorded(str(data))
    for name in ("bee/0.png", "bee/1.png"):  # the first, the middle and the last of 24 are hashed
        change(data / name)
    assert before.changes(recorded(str(data))) == ["training samples: 1 changed (bee/0.png)"]
    (data / "bee" / "1.png").rename(data / "cat" / "8.png")
    assert before.changes(recorded(str(data))) == [
        "training samples: 1 added (cat/8.png), 1 removed (bee/1.png), 1 changed (bee/0.png)"
    ]


def test_an_image_that_cannot_be_read_is_left_to_the_loader(tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data")
    run = all_of(data)
    splits = open_splits(run)
    (data / "eel" / "3.png").unlink()  # after the folder was listed
    record = DataRecord.of(run, *splits)
    assert record.splits["train"].count == 24


def test_a_run_folder_of_an_earlier_version_resumes_and_says_once_that_nothing_was_compared(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(all_of(data), out, stop=2)
    (out / "data.npz").unlink()
    (warning,) = warnings_of(run_to(all_of(data), out, stop=4))
    assert "no record of its data" in warning
    assert warnings_of(run_to(all_of(data), out)) == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 and no more", b"half"])
def test_a_damaged_record_is_a_typed_error_that_says_how_to_resume(damage: bytes, tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "run"
    run_to(all_of(data), out, stop=2)
    path = out / "data.npz"
    path.write_bytes(path.read_bytes()[:-20] if damage == b"half" else damage)
    with pytest.raises(TrainingError, match=r"data\.npz") as caught:
        run_to(all_of(data), out)
    assert caught.value.hint == f"delete {path} to resume without comparing the data"
    path.unlink()
    run_to(all_of(data), out)


def test_a_record_of_strange_arrays_is_a_typed_error(tmp_path: Path) -> None:
    for number, arrays in enumerate(({"version": [2]}, {"version": [1]}, {"version": [1], "labels": [91, 93], "train_count": [3]})):
        file = io.BytesIO()
        np.savez(file, **{name: np.array(values, np.uint8) for name, values in arrays.items()})  # type: ignore[arg-type]
        path = tmp_path / f"{number}.npz"
        path.write_bytes(file.getvalue())
        with pytest.raises(TrainingError, match="damaged"):
            DataRecord.read(path)


def test_a_complete_trial_of_a_sweep_counts_only_on_the_same_data(tmp_path: Path) -> None:
    data, out = image_folder(tmp_path / "data"), tmp_path / "sweep"
    run = run_on(data, steps=5)
    list(sweep(run, (1e-3,), out=out))
    assert [event.event for event in sweep(run, (1e-3,), out=out)] == ["trial-finished", "sweep-finished"]
    lines = (out / "trials" / "lr-0.001" / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == Finished.event
    shutil.copy(data / "bee" / "1.png", data / "bee" / "9.png")
    image_folder(tmp_path / "more", ("cat",), images=30)
    for path in (tmp_path / "more" / "cat").iterdir():
        shutil.copy(path, data / "cat" / f"more-{path.name}")
    with pytest.raises(DataError, match=r"trials/lr-0.001 was started with other data"):
        list(sweep(run, (1e-3,), out=out))
