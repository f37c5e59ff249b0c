"""VTAB from local files: what is there is done, what is missing is named, and means say how much they are of."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.containers import as_folder, as_tar
from tests.data.test_tfrecord import record, sample
from tests.data.vtab_miniatures import clevr, norb, sprites
from tests.inference import small
from vitlab.config.evaluation import EvaluateConfig, ProbeConfig, VtabConfig
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.evaluation.features import Features, extract_features
from vitlab.evaluation.vtab import GROUPS, SPLITS_NAME, TASKS, Vtab, vtab, with_vtab_preprocess

CHECKPOINT = with_vtab_preprocess(small.checkpoint())
CONFIG = VtabConfig(train=60, val=20, probe=ProbeConfig(l2_low=1.0, l2_high=100.0, per_decade=1))
READING = EvaluateConfig(workers=0)


def patch(code: int, seed: int) -> bytes:
    """A small image whose colour says its class."""
    rng = np.random.default_rng([code, seed])
    colour = np.array([(code * 53) % 256, (code * 101) % 256, (code * 197) % 256])
    pixels = np.clip(colour + rng.normal(0, 6, (10, 12, 3)), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def pets(root: Path, *, classes: int = 37, train: int = 4, test: int = 2) -> None:
    for part, count, at in (("train", train, 0), ("test", test, 100)):
        as_folder(root / part, {f"breed {code:02}/{n}.png": patch(code, at + n) for code in range(classes) for n in range(count)})


def textures(root: Path) -> None:
    """DTD as VTAB-1k passes it around."""
    for name, count in (("train800", 94), ("val200", 47), ("test", 50)):
        paths = {f"images/{name}/{n}.png": patch(n % 47, hash_free(name) + n) for n in range(count)}
        as_folder(root, paths)
        (root / f"{name}.txt").write_text("".join(f"{path} {n % 47}\n" for n, path in enumerate(paths)))


def hash_free(word: str) -> int:
    return 1000 * len(word)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Pets, DTD by lists, dSprites, and CLEVR whose images are none."""
    pets(tmp_path / "pets")
    textures(tmp_path / "dtd")
    (tmp_path / "dsprites").mkdir()
    sprites(tmp_path / "dsprites" / "dsprites_x.npz", count=200)
    clevr(tmp_path / "clevr")
    return tmp_path


def done(root: Path, config: VtabConfig = CONFIG) -> Vtab:
    return vtab(CHECKPOINT, root, config, reading=READING)


def test_what_is_there_is_done_what_is_missing_is_named_and_what_fails_says_why(root: Path) -> None:
    found = done(root)
    results = {result.task.name: result for result in found.results}
    assert list(results) == ["DTD", "Pets", "dSpr-Loc", "dSpr-Ori"]
    assert [task.name for task, _ in found.failed] == ["Clevr-Count", "Clevr-Dist"]
    assert "images, and VTAB takes 60" in found.failed[0][1]
    assert len(found.results) + len(found.missing) + len(found.failed) == 19
    assert ("SVHN", f"no svhn in {root}") in [(task.name, why) for task, why in found.missing]
    assert results["DTD"].how == "published lists"
    assert results["DTD"].counts == (94, 47, 50)
    assert results["Pets"].how == "by the hash of content"
    assert results["Pets"].counts == (60, 20, 74)
    assert results["dSpr-Loc"].counts == (60, 20, 20)
    assert results["Pets"].accuracy > 0.3  # colours tell most of 37 classes apart
    assert results["DTD"].accuracy > 0.3
    assert all(result.probe.classifier.converged for result in found.results)


def test_means_are_of_what_was_done_and_say_of_how_many(root: Path) -> None:
    found = done(root)
    natural, specialized, structured, everything = found.means()
    results = {result.task.name: result for result in found.results}
    assert (natural.name, natural.found, natural.total, natural.complete) == ("natural", 2, 7, False)
    assert natural.accuracy == pytest.approx((results["DTD"].accuracy + results["Pets"].accuracy) / 2)
    assert natural.paper == pytest.approx(((75.2 + 97.2) / 2, (74.3 + 96.7) / 2, (74.1 + 92.7) / 2))
    assert (specialized.found, specialized.accuracy, specialized.paper) == (0, None, None)
    assert (structured.found, structured.total) == (2, 8)
    assert (everything.found, everything.total, everything.complete) == (4, 19, False)


def test_a_mean_is_complete_where_every_task_is_done(root: Path) -> None:
    one = done(root).results[0]
    every = Vtab(results=tuple(replace(one, task=task) for task in TASKS), missing=(), failed=())
    assert [mean.complete for mean in every.means()] == [True] * 4
    # Table 9's own means
    assert every.means()[-1].paper == pytest.approx((77.6, 76.3, 72.7), abs=0.06)


def test_there_are_nineteen_tasks_in_three_groups() -> None:
    assert [sum(task.group == group for task in TASKS) for group in GROUPS] == [7, 4, 8]
    assert len({task.name for task in TASKS}) == len({task.listed for task in TASKS}) == 19


def test_tasks_on_the_same_images_share_their_features(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recalled: list[int] = []

    def counting(*given: Any, **named: Any) -> Features:
        found = extract_features(*given, **named)
        recalled.append(found.cached)
        return found

    monkeypatch.setattr("vitlab.evaluation.vtab.extract_features", counting)
    done(root)
    assert recalled[-6:] == [0, 0, 0, 60, 20, 20]


def test_norb_is_done_from_its_matrices(tmp_path: Path) -> None:
    (tmp_path / "smallnorb").mkdir()
    norb(tmp_path / "smallnorb", count=120)
    found = done(tmp_path)
    assert [(result.task.name, result.counts) for result in found.results] == [
        ("sNORB-Azim", (60, 20, 60)),
        ("sNORB-Elev", (60, 20, 60)),
    ]


def test_a_split_file_decides(root: Path) -> None:
    (root / SPLITS_NAME).write_text(json.dumps({"oxford_iiit_pet": {"train800": list(range(2, 222, 6)), "val200": [3, 9, 15]}}))
    result = next(result for result in done(root).results if result.task.name == "Pets")
    assert result.how == "split file, official test"
    assert result.counts == (37, 3, 74)


def test_a_split_file_cannot_name_two_tasks_by_their_set(root: Path) -> None:
    (root / "mine.json").write_text(json.dumps({"dsprites": {"train800": [1], "val200": [3]}}))
    with pytest.raises(DataError, match="no such task"):
        vtab(CHECKPOINT, root, CONFIG, splits=root / "mine.json")


def test_fewer_test_images_can_be_asked_for(root: Path) -> None:
    assert {result.counts[2] for result in done(root, replace(CONFIG, test=7)).results} == {7}


def test_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    pets(tmp_path / "pets", classes=5, train=40)
    with pytest.raises(DataError, match="5 classes, and Pets has 37"):
        done(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_camelyon_is_done_from_its_own_files(tmp_path: Path, packed: bool) -> None:
    h5py = pytest.importorskip("h5py", reason="needs vitlab[hdf5]")
    folder = tmp_path / "patch_camelyon"
    folder.mkdir()
    for part, count, seed in (("train", 64, 1), ("valid", 24, 2), ("test", 12, 3)):
        codes = np.arange(count) % 2
        noise = np.random.default_rng(seed).integers(0, 60, (count, 9, 9, 3))
        pixels = (noise + 150 * codes[:, None, None, None]).astype(np.uint8)
        for kind, values in (("x", pixels), ("y", codes.astype(np.uint8).reshape(-1, 1, 1, 1))):
            file = folder / f"camelyonpatch_level_2_split_{part}_{kind}.h5"
            with h5py.File(file, "w") as out:
                out[kind] = values
            if packed:
                (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
                file.unlink()
    (result,) = done(tmp_path).results
    assert (result.task.name, result.counts) == ("Camelyon", (60, 20, 12))
    assert result.accuracy == 1.0


def test_dmlab_is_done_from_its_archive(tmp_path: Path) -> None:
    files = {
        f"dmlab-{part}.tfrecord-00000-of-00001": b"".join(record(sample(patch(n % 6, at + n), n % 6)) for n in range(count))
        for part, count, at in (("train", 66, 0), ("validation", 24, 100), ("test", 18, 200))
    }
    as_tar(tmp_path / "dmlab.tar.gz", files, mode="w:gz")
    (result,) = done(tmp_path).results
    assert (result.task.name, result.counts) == ("DMLab", (60, 20, 18))
    assert result.accuracy > 0.9


def test_retinopathy_is_done_from_kaggles_photographs(tmp_path: Path) -> None:
    folder = tmp_path / "retinopathy"
    train, solution = ["image,level"], ["image,level,Usage"]
    for part, count, usage, lines in (("train", 16, "", train), ("test", 11, "Public", solution), ("test", 6, "Private", solution)):
        for number in range(count):
            name = f"{usage}{number}_left"
            as_folder(folder, {f"{part}/{name}.jpeg": patch(number % 5, number)})
            lines.append(",".join([name, str(number % 5), *([usage] if usage else [])]))
    (folder / "trainLabels.csv").write_text("\n".join(train))
    (folder / "retinopathy_solution.csv").write_text("\n".join(solution))
    (result,) = done(tmp_path, replace(CONFIG, train=15, val=10)).results
    assert (result.task.name, result.counts) == ("Retinopathy", (15, 10, 6))


def test_camelyon_in_an_npz_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 70), ("val", 30), ("test", 12)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 9, 9, 3), np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % 2
    np.savez(tmp_path / "pcam.npz", allow_pickle=False, **arrays)
    (result,) = done(tmp_path).results
    assert (result.task.name, result.counts) == ("Camelyon", (60, 20, 12))


def test_the_whole_image_is_seen() -> None:
    assert CHECKPOINT.preprocess.resize == "squash"
    assert small.checkpoint().preprocess.resize == "short-side"


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_any_set_or_no_folder_is_refused(tmp_path: Path, there: bool) -> None:
    with pytest.raises(DataError, match="none of the 19 VTAB tasks" if there else "no folder"):
        done(tmp_path if there else tmp_path / "nowhere")


def test_a_set_in_the_catalogues_own_form_is_found(tmp_path: Path) -> None:
    pets(tmp_path / "pets" / "images", train=4)
    rows = [f"images/{part}/breed {code:02}/{n}.png,breed {code:02},{part}" for part, count in (("train", 4), ("test", 2))
            for code in range(37) for n in range(count)]  # fmt: skip
    (tmp_path / "pets" / "labels.csv").write_text("path,label,split\n" + "\n".join(rows) + "\n")
    (result,) = done(tmp_path).results
    whole = open_dataset(tmp_path / "pets" / "labels.csv", split="all")
    assert isinstance(whole, ImageDataset)
    assert result.counts == (60, 20, 74)
