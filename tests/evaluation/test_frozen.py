"""Few-shot, neighbours and probe in one go: the right images, each read once, and the library's own numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import real_data
from tests.data.containers import as_folder
from tests.data.images import jpeg, scene
from tests.inference import small
from vitlab.checkpoints import load
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig, KnnConfig, ProbeConfig
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.features import extract_features
from vitlab.evaluation.frozen import FrozenConfig, TrainTest, evaluate_frozen, few_shot, held_out, knn, open_train_test

CHECKPOINT = small.checkpoint()
READING = EvaluateConfig(workers=0)
PROBE = ProbeConfig(l2_low=1.0, l2_high=10.0, per_decade=1)


def a_pile(*parts: str, count: int = 12) -> dict[str, bytes]:
    """Three classes of waves of different length, in parts or in none."""
    made = {}
    for place, part in enumerate(parts or ("",)):
        for code in range(3):
            for number in range(count):
                image = scene(36, 40, seed=number + 100 * code + 1000 * place, finest=3 + 4 * code)
                made[f"{part}{'/' if part else ''}class {code}/{number}.jpg"] = jpeg(image)
    return made


@pytest.fixture
def with_splits(tmp_path: Path) -> str:
    return str(as_folder(tmp_path / "with_splits", a_pile("train", "test")))


def sizes(splits: TrainTest) -> tuple[int, int]:
    return len(splits.train), len(splits.test)


def test_results_are_those_of_each_method_alone(with_splits: str) -> None:
    methods = FrozenConfig(few_shot=FewShotConfig(shots=(1, 5)), knn=KnnConfig(k=(1, 3)), probe=PROBE)
    found = evaluate_frozen(CHECKPOINT, open_train_test(with_splits, None, CHECKPOINT), methods, config=READING)
    train = extract_features(CHECKPOINT, open_dataset(with_splits, split="train+val"), config=READING)
    test = extract_features(CHECKPOINT, open_dataset(with_splits, split="test"), config=READING)
    assert found.few_shot == tuple(few_shot(train, test, FewShotConfig(shots=(1, 5))))
    assert found.knn == knn(train, test, KnnConfig(k=(1, 3)))
    assert found.probe is not None
    assert found.probe.total == 36
    assert (found.classes, found.train_images, found.test_images, found.read, found.cached) == (3, 36, 36, 72, 0)
    names = list(found.metrics)
    assert names == ["few_shot_1", "few_shot_5", "knn_1", "knn_3", "probe"]
    assert set(found.seconds) == {"features", "few_shot", "knn", "probe"}


def test_few_shots_alone_read_only_what_is_drawn_and_find_the_same(tmp_path: Path) -> None:
    folder = str(as_folder(tmp_path / "many", a_pile("train", "test", count=30)))
    few = FewShotConfig(shots=(1, 2), seeds=(0, 1))
    splits = open_train_test(folder, None, CHECKPOINT)
    alone = evaluate_frozen(CHECKPOINT, splits, FrozenConfig(few_shot=few), config=READING, cache=False)
    beside = evaluate_frozen(CHECKPOINT, splits, FrozenConfig(few_shot=few, knn=KnnConfig(k=(1,))), config=READING, cache=False)
    assert alone.few_shot == beside.few_shot
    assert alone.read <= 90 + 3 * 2 * 2
    assert beside.read == 180


def test_the_second_time_features_are_known(with_splits: str) -> None:
    splits = open_train_test(with_splits, None, CHECKPOINT)
    first = evaluate_frozen(CHECKPOINT, splits, FrozenConfig(knn=KnnConfig(k=(1,))), config=READING)
    again = evaluate_frozen(CHECKPOINT, splits, FrozenConfig(few_shot=FewShotConfig(shots=(1,))), config=READING)
    assert (first.read, first.cached) == (72, 0)
    assert again.read == 0
    assert evaluate_frozen(CHECKPOINT, splits, FrozenConfig(knn=KnnConfig(k=(1,))), config=READING, cache=False).read == 72


@pytest.mark.parametrize(
    ("parts", "split", "expected", "said"),
    [
        (("train", "test"), None, (36, 36), "trained on train\\+val, evaluated on test"),
        (("train", "val", "test"), None, (72, 36), "trained on train\\+val, evaluated on test"),
        (("train", "val", "test"), "val", (36, 36), "trained on train, evaluated on val"),
        (("train", "val"), None, (36, 36), "trained on train, evaluated on val"),
    ],
)
def test_the_test_set_has_no_image_of_the_training_set(
    tmp_path: Path, parts: tuple[str, ...], split: str | None, expected: tuple[int, int], said: str
) -> None:
    import re

    folder = as_folder(tmp_path / "data", a_pile(*parts))
    splits = open_train_test(str(folder), split, CHECKPOINT)  # type: ignore[arg-type]
    assert sizes(splits) == expected
    assert re.search(said, splits.notes[-1])


def test_data_without_declared_splits_is_split_by_content(tmp_path: Path) -> None:
    splits = open_train_test(str(as_folder(tmp_path / "data", a_pile(count=40))), None, CHECKPOINT)
    train, test = sizes(splits)
    assert train + test == 120
    assert 3 <= test < 40
    assert isinstance(splits.train, ImageDataset)
    assert isinstance(splits.test, ImageDataset)
    assert not {d.tobytes() for d in splits.train.digests()} & {d.tobytes() for d in splits.test.digests()}
    assert "all other images" in splits.notes[-1]


def test_a_synthetic_dataset_is_trained_and_evaluated_on_its_splits() -> None:
    splits = open_train_test("synthetic:kind=strokes,classes=3,samples_per_class=20,image_size=32", None, CHECKPOINT)
    found = evaluate_frozen(CHECKPOINT, splits, FrozenConfig(few_shot=FewShotConfig(shots=(1,)), probe=PROBE), config=READING)
    assert found.test_images == 6
    assert found.probe is not None


@pytest.mark.parametrize("split", ["train", "all", "train+val"])
def test_a_split_that_leaves_nothing_to_train_on_is_refused(with_splits: str, split: str) -> None:
    with pytest.raises(ConfigError, match="no images to train on"):
        open_train_test(with_splits, split, CHECKPOINT)  # type: ignore[arg-type]


def test_a_probe_chooses_by_the_declared_val_split(tmp_path: Path) -> None:
    dataset = open_dataset(as_folder(tmp_path / "data", a_pile("train", "val", "test")), split="train+val")
    assert isinstance(dataset, ImageDataset)
    assert np.array_equal(held_out(dataset), dataset.splits == 1)


def test_without_one_a_tenth_is_held_out_and_every_class_is_in_it(tmp_path: Path) -> None:
    dataset = open_dataset(as_folder(tmp_path / "data", a_pile("train", "test", count=40)), split="train+val")
    assert isinstance(dataset, ImageDataset)
    held = held_out(dataset)
    assert 3 <= held.sum() < 40
    assert set(dataset.table.codes[held]) == {0, 1, 2}


def test_unreadable_images_are_counted_and_named(with_splits: str) -> None:
    for broken in ("train/class 0/1.jpg", "test/class 1/2.jpg"):
        (Path(with_splits) / broken).write_bytes(b"no image")
    splits = open_train_test(with_splits, None, CHECKPOINT)
    methods = FrozenConfig(few_shot=FewShotConfig(shots=(5,)), knn=KnnConfig(k=(1,)), probe=PROBE)
    with pytest.raises(DataError, match=r"1\.jpg"):
        evaluate_frozen(CHECKPOINT, splits, methods, config=READING)
    found = evaluate_frozen(CHECKPOINT, splits, methods, config=EvaluateConfig(workers=0, corrupt="skip"))
    assert [Path(failure.name).name for failure in found.failures] == ["1.jpg", "2.jpg"]
    assert found.test_images == found.knn[0].total == 36


def test_classes_with_too_few_images_are_noted(with_splits: str) -> None:
    methods = FrozenConfig(few_shot=FewShotConfig(shots=(5, 25)))
    found = evaluate_frozen(CHECKPOINT, open_train_test(with_splits, None, CHECKPOINT), methods, config=READING)
    assert any("fewer than 25 images use all they have: class 0, class 1, class 2" in note for note in found.notes)


def test_no_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="no method"):
        FrozenConfig()


@pytest.mark.data
def test_deit_classifies_four_breeds_after_five_images_of_each() -> None:
    folder = real_data()
    checkpoint = load(folder / "deit_tiny_patch16_224.npz")
    whole = open_dataset(folder / "oxford_pets_128.zip", split="all")
    assert isinstance(whole, ImageDataset)
    breeds = [whole.labels.index(name) for name in ("Abyssinian", "beagle", "pug", "samoyed")]

    def some(part: int, count: int) -> ImageDataset:
        rows = [np.flatnonzero((whole.splits == part) & (whole.table.codes == code))[:count] for code in breeds]
        chosen = whole.take(np.concatenate(rows))
        codes = np.array([breeds.index(code) for code in chosen.table.codes], np.int32)
        from dataclasses import replace

        return replace(chosen, table=replace(chosen.table, codes=codes), labels=tuple(whole.labels[code] for code in breeds))

    splits = TrainTest(train=some(0, 5), test=some(2, 6))
    found = evaluate_frozen(checkpoint, splits, FrozenConfig(few_shot=FewShotConfig(shots=(5,))), config=READING, cache=False)
    assert found.few_shot[0].mean > 0.9
