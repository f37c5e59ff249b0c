"""Evaluation of a checkpoint on a dataset: every image counts once, in any batches, also one that cannot be read."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.inference import small
from vitlab.checkpoints import Checkpoint
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.dataset import Dataset
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classification import Classification, MultiLabel
from vitlab.evaluation.evaluation import Evaluation, evaluate, name_in, open_split, robustness, write_per_image
from vitlab.evaluation.label_mapping import Targets, match_by_name
from vitlab.inference import Predictor

QUICK = EvaluateConfig(batch_size=4, workers=0, resamples=0)


def evaluated(checkpoint: Checkpoint, dataset: Dataset, *, config: EvaluateConfig = QUICK) -> Evaluation:
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    return evaluate(checkpoint, dataset, targets, config=config)


def single(found: Evaluation) -> Classification:
    assert isinstance(found.result, Classification)
    return found.result


def test_the_accuracy_is_that_of_predicting_the_images_one_by_one(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    found = single(evaluated(expert, dataset))
    predictor = Predictor(expert, batch_size=1)
    right = [predictor([name_in(dataset, index)])[0].top(1)[0][0] == dataset.labels[index // 7] for index in range(21)]
    assert (found.top1.correct, found.top1.total) == (sum(right), 21)


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (5, 2), (21, 1), (64, 3)])
def test_batches_and_workers_change_nothing(pets: Path, expert: Checkpoint, batch_size: int, workers: int) -> None:
    dataset = open_dataset(pets, split="all")
    one = evaluated(expert, dataset)
    other = evaluated(expert, dataset, config=replace(QUICK, batch_size=batch_size, workers=workers))
    np.testing.assert_allclose(one.logits.logits_NC, other.logits.logits_NC, atol=1e-5)
    assert np.array_equal(one.logits.indices_N, other.logits.indices_N)
    assert single(one).top1 == single(other).top1


def test_progress_is_reported_up_to_the_last_image(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    heard: list[tuple[str, int, int | None]] = []
    targets = match_by_name(dataset.labels, expert.labels, classes=3)
    evaluate(expert, dataset, targets, config=QUICK, progress=lambda what, done, total: heard.append((what, done, total)))
    assert heard[0] == ("evaluating", 0, 21)
    assert heard[-1] == ("evaluating", 21, 21)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


def test_a_headless_checkpoint_and_images_without_labels_are_refused_before_any_is_read(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    targets = match_by_name(dataset.labels, dataset.labels, classes=3)
    with pytest.raises(DataError, match="no head"):
        evaluate(small.checkpoint(None, classes=0), dataset, targets, config=QUICK)
    unlabelled = open_dataset(f"images:{pets}", split="all")
    with pytest.raises(DataError, match="no labels"):
        match_by_name(unlabelled.labels, expert.labels, classes=3)


def test_images_of_classes_mapped_to_nothing_are_not_counted(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    targets = Targets(labels=dataset.labels, correct=((0, 2), (), (1,)), names=dataset.labels)
    found = evaluate(expert, dataset, targets, config=QUICK)
    assert single(found).images == 14
    assert single(found).per_class[1].total == 0
    assert set(found.logits.labels.tolist()) == {0, 2}


def test_a_precision_that_no_confidence_reaches_is_said(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    targets = match_by_name(dataset.labels, expert.labels, classes=3)
    wrong = replace(targets, correct=tuple(targets.correct[(place + 1) % 3] for place in range(3)))
    for aim in (targets, wrong):
        found = evaluate(expert, dataset, aim, config=replace(QUICK, precision=1.0))
        said = any("no threshold" in note for note in found.notes)
        assert said == (single(found).operating_point is None)
    assert said == (single(found).top1.correct == 0)


def test_real_labels_go_by_the_images_index(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    targets = match_by_name(dataset.labels, expert.labels, classes=3)
    plain = evaluate(expert, dataset, targets, config=QUICK)
    real = [[index // 7] if index % 2 else [] for index in range(21)]
    found = single(evaluate(expert, dataset, targets, real=real, config=QUICK))
    assert found.real is not None
    assert plain.per_image is not None
    assert (found.real.correct, found.real.total) == (int((plain.per_image.rank_N[1::2] == 0).sum()), 10)


@pytest.fixture
def tagged(tmp_path: Path) -> Dataset:
    files = small.photos(tmp_path / "tagged", 9)
    lines = [f"{file.name},{'|'.join(kind for bit, kind in enumerate(('cat', 'dog', 'owl')) if (place + 1) >> bit & 1)}"
             for place, file in enumerate(files)]  # fmt: skip
    (tmp_path / "tagged" / "labels.csv").write_text("file,labels\n" + "\n".join(lines) + "\n")
    return open_dataset(tmp_path / "tagged" / "labels.csv", split="all")


def test_images_of_several_classes_are_evaluated_by_average_precision(tagged: Dataset, expert: Checkpoint) -> None:
    assert tagged.multi_label
    found = evaluated(expert, tagged)
    assert isinstance(found.result, MultiLabel)
    assert found.per_image is None
    assert 0 < found.result.mean_average_precision <= 1
    targets = match_by_name(tagged.labels, expert.labels, classes=3)
    with pytest.raises(DataError, match="ReaL"):
        evaluate(expert, tagged, targets, real=[[]] * 9, config=QUICK)
    with pytest.raises(DataError, match="mapping"):
        evaluate(expert, tagged, replace(targets, correct=((0, 1), (1,), (2,))), config=QUICK)


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_an_unreadable_image_of_several_classes_is_counted(tagged: Dataset, expert: Checkpoint) -> None:
    Path(name_in(tagged, 4)).write_bytes(b"junk")
    found = evaluated(expert, tagged, config=replace(QUICK, corrupt="skip")).result
    assert isinstance(found, MultiLabel)
    assert (found.images, found.unreadable) == (9, 1)
    assert sum(count for _, _, count in found.per_class) == sum(bin((place + 1) & 7).count("1") for place in range(9))


def test_the_file_per_image_adds_up_to_the_result(pets: Path, expert: Checkpoint, tmp_path: Path) -> None:
    (pets / "owl" / "photo-022.jpg").write_bytes(b"junk")
    dataset = open_dataset(pets, split="all")
    targets = match_by_name(dataset.labels, expert.labels, classes=3)
    real = [[0] if index < 5 else [] for index in range(21)]
    found = evaluate(expert, dataset, targets, real=real, config=replace(QUICK, corrupt="skip"))
    write_per_image(tmp_path / "out.csv", found, dataset)
    lines = lines_of(tmp_path / "out.csv")
    assert len(lines) == 21
    assert sum(int(line["correct"]) for line in lines) == single(found).top1.correct
    assert sum(line["predicted"] == line["label"] for line in lines) == single(found).top1.correct
    assert sum(line["real"] != "" for line in lines) == 5
    assert [line["name"] for line in lines if line["error"]] == [str(pets / "owl" / "photo-022.jpg")]
    losses = [float(line["loss"]) for line in lines if line["loss"]]
    assert np.mean(losses) == pytest.approx(single(found).loss, abs=1e-5)
    (line,) = [line for line in lines if line["name"].endswith("cat/photo-000.jpg")]
    assert float(line["confidence"]) == pytest.approx(Predictor(expert)([line["name"]])[0].top(1)[0][1], abs=1e-5)


def test_the_file_per_image_of_several_classes_names_them(tagged: Dataset, expert: Checkpoint, tmp_path: Path) -> None:
    Path(name_in(tagged, 4)).write_bytes(b"junk")
    write_per_image(tmp_path / "out.csv", evaluated(expert, tagged, config=replace(QUICK, corrupt="skip")), tagged)
    lines = lines_of(tmp_path / "out.csv")
    assert lines[2]["labels"] == "cat|dog"
    assert lines[-1]["labels"] == "cat|owl"
    assert "photo-004" in lines[-1]["error"]


def test_robustness_is_the_evaluation_of_corrupted_images(pets: Path, expert: Checkpoint) -> None:
    dataset = open_dataset(pets, split="all")
    clean = evaluated(expert, dataset)
    found = robustness(expert, dataset, clean, corruptions=("brightness", "fog"), severities=(1, 5), config=QUICK)
    assert found.measure == "top1"
    assert found.clean == single(clean).top1.value
    assert [name for name, _ in found.rows] == ["brightness", "fog"]
    assert found.mean == pytest.approx(np.mean([value for _, values in found.rows for value in values]))
    again = robustness(
        expert, dataset, clean, corruptions=("fog",), severities=(5,), config=replace(QUICK, batch_size=3, workers=2)
    )
    assert again.rows[0][1][0] == found.rows[1][1][1]
    with pytest.raises(ConfigError, match="no corruption"):
        robustness(expert, dataset, clean, corruptions=(), severities=(1,), config=QUICK)


def test_the_declared_test_split_is_taken_then_val_then_everything(pets: Path, expert: Checkpoint, tmp_path: Path) -> None:
    dataset, notes = open_split(str(pets), None, expert)
    assert len(dataset) == 21
    assert any("no splits" in note for note in notes)
    parted = tmp_path / "parted"
    for place, part in enumerate(("train", "val", "test")):
        for kind in ("cat", "dog"):
            small.photos(parted / part / kind, 2 + place, start=100 * place + 10 * (kind == "dog"))
    assert len(open_split(str(parted), None, expert)[0]) == 8
    assert len(open_split(str(parted), "train", expert)[0]) == 4
    (parted / "test").rename(tmp_path / "gone")
    assert len(open_split(str(parted), None, expert)[0]) == 6
    (parted / "val").rename(tmp_path / "gone too")
    assert len(open_split(str(parted), None, expert)[0]) == 4


def test_on_its_training_data_a_model_is_evaluated_on_what_training_held_out(pets: Path, expert: Checkpoint) -> None:
    rule = {"val": 0.2, "test": 0.3}
    trained = replace(expert, recipe={"data": {"dataset": str(pets), "rule": {**rule}}})
    dataset, notes = open_split(str(pets), None, trained)
    assert any("trained on this data" in note for note in notes)
    train, _ = open_split(str(pets), "train", trained)
    seen = {name_in(train, index) for index in range(len(train))}
    assert seen.isdisjoint(name_in(dataset, index) for index in range(len(dataset)))
    noted = [any("on new images" in note for note in open_split(str(pets), split, trained)[1]) for split in ("all", "train", "val")]
    assert noted == [True, True, False]
    other = replace(expert, recipe={"data": {"dataset": "elsewhere"}})
    assert not any("trained" in note for note in open_split(str(pets), "all", other)[1])
    assert len(open_split(str(pets), None, other)[0]) == 21


def test_synthetic_images_are_evaluated_on_their_test_split(expert: Checkpoint) -> None:
    dataset, _ = open_split("synthetic:kind=strokes,classes=3,samples_per_class=20,image_size=32", None, expert)
    assert len(dataset) == 6
