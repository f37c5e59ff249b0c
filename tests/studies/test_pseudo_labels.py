"""Pseudo-labels: what a teacher predicts, and which of its predictions are used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inference import small
from vitlab.checkpoints import Checkpoint
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.dataset import ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError
from vitlab.inference import Predictor
from vitlab.studies import noisy_student
from vitlab.studies.config import NoisyStudentConfig
from vitlab.studies.noisy_student import KEPT, TeacherPredictions, choose, label_images

CONFIG = EvaluateConfig(workers=0, batch_size=3, corrupt="skip")
CLASSES = tuple(f"kind {number}" for number in range(20))


@pytest.fixture
def teacher() -> Checkpoint:
    return small.checkpoint(CLASSES, classes=20)


@pytest.fixture
def pool(tmp_path: Path) -> ImageDataset:
    small.photos(tmp_path / "photos", 10)
    dataset = open_dataset(f"images:{tmp_path / 'photos'}", split="all")
    assert isinstance(dataset, ImageDataset)
    return dataset


def predicted(teacher: Checkpoint, pool: ImageDataset, folder: Path, classes: tuple[str, ...] = CLASSES) -> TeacherPredictions:
    *steps, (done, found) = label_images(teacher, pool, classes, folder, config=CONFIG)
    assert found is not None
    assert done == len(pool)
    assert all(part is None for _, part in steps)
    return found


def test_a_teacher_labels_an_image_with_what_it_predicts(teacher: Checkpoint, pool: ImageDataset, tmp_path: Path) -> None:
    found = predicted(teacher, pool, tmp_path / "labels")
    assert found.codes_NK.shape == (10, KEPT)
    for index, prediction in enumerate(Predictor(teacher)([pool.name(index) for index in range(10)])):
        best = prediction.top(KEPT)
        assert [CLASSES[code] for code in found.codes_NK[index]] == [label for label, _ in best]
        assert found.probabilities_NK[index] == pytest.approx([probability for _, probability in best], abs=1e-6)


def test_classes_are_the_datas_whatever_their_order_in_the_teacher(teacher: Checkpoint, pool: ImageDataset, tmp_path: Path) -> None:
    found = predicted(teacher, pool, tmp_path / "a")
    turned = predicted(teacher, pool, tmp_path / "b", CLASSES[::-1])
    assert np.array_equal(19 - turned.codes_NK, found.codes_NK)
    with pytest.raises(DataError, match="does not know"):
        predicted(teacher, pool, tmp_path / "c", ("kind 1", "other"))
    with pytest.raises(DataError, match="20 classes and the data 2"):
        predicted(replace(teacher, labels=None), pool, tmp_path / "d", ("a", "b"))


def test_saved_predictions_are_not_computed_again(
    teacher: Checkpoint, pool: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noisy_student, "_SHARD", 4)
    whole = predicted(teacher, pool, tmp_path)
    assert len(list(tmp_path.glob("part-*.npz"))) == 3
    (tmp_path / "part-00001.npz").unlink()
    (tmp_path / "part-00002.npz").write_bytes((tmp_path / "part-00002.npz").read_bytes()[:-40])
    calls: list[int] = []
    plain = noisy_student._predict_into

    def counted(*arguments: object) -> object:
        calls.append(len(arguments[2]))  # type: ignore[arg-type]
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(noisy_student, "_predict_into", counted)
    again = predicted(teacher, pool, tmp_path)
    assert calls == [4, 2]
    assert np.array_equal(again.probabilities_NK, whole.probabilities_NK)


def test_an_unreadable_image_has_no_label(teacher: Checkpoint, tmp_path: Path) -> None:
    small.photos(tmp_path / "photos", 5)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"junk")
    pool = open_dataset(f"images:{tmp_path / 'photos'}", split="all")
    assert isinstance(pool, ImageDataset)
    found = predicted(teacher, pool, tmp_path / "labels")
    assert found.unreadable == 1
    rows = choose(found, NoisyStudentConfig(threshold=0.0))
    assert len(rows) == 5
    assert not any("broken" in pool.name(int(row)) for row in rows)


def made(codes: list[int], confidences: list[float]) -> TeacherPredictions:
    shares = np.array([[sure, (1 - sure) * 0.9] for sure in confidences], np.float32)
    return TeacherPredictions(codes_NK=np.array([[code, (code + 1) % 5] for code in codes], np.int32), probabilities_NK=shares)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0.4, 0.95)), min_size=1, max_size=40),
    st.floats(0, 1),
    st.none() | st.integers(1, 5),
)
def test_the_most_confident_of_each_class_are_used_and_none_below_the_threshold(
    rows: list[tuple[int, float]], threshold: float, most: int | None
) -> None:
    found = made([code for code, _ in rows], [sure for _, sure in rows])
    chosen = choose(found, NoisyStudentConfig(threshold=threshold, per_class=most))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    sure = found.confidence_N >= threshold
    assert sure[chosen].all()
    left = np.setdiff1d(np.flatnonzero(sure), chosen)
    for code in range(5):
        mine = chosen[found.codes_NK[chosen, 0] == code]
        others = left[found.codes_NK[left, 0] == code]
        if most is None:
            assert not len(others)
        elif len(others):
            assert len(mine) == most
            assert found.confidence_N[others].max() <= found.confidence_N[mine].min()


def test_soft_labels_add_up_to_one_and_hard_ones_are_the_most_probable_class() -> None:
    found = made([3, 1], [0.5, 0.9])
    soft, hard = (found.labels(np.array([1, 0]), hard=hard) for hard in (False, True))
    assert soft.probabilities_NK.sum(1) == pytest.approx(1)
    assert soft.probabilities_NK[0, 0] / soft.probabilities_NK[0, 1] == pytest.approx(0.9 / 0.09)
    assert hard.codes_NK.tolist() == [[1], [3]]
    assert hard.probabilities_NK.tolist() == [[1], [1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"labels": "firm"},
        {"threshold": 1.1},
        {"per_class": 0},
        {"labelled_fraction": 1.0},
        {"randaugment": (0, 9)},
        {"dropout": -0.1},
    ],
    ids=str,
)
def test_an_impossible_config_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        NoisyStudentConfig(**wrong)  # type: ignore[arg-type]
