"""Logits: every image has a row or is reported, and the first metrics are those of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from tests.evaluation import fake_logits
from vitlab.config import Preprocess
from vitlab.data.batch import Batch
from vitlab.errors import DataError
from vitlab.evaluation.classification import Logits, collect_logits, headline
from vitlab.inference.backends import TorchBackend, evaluating
from vitlab.inference.engine import run_batches

FED = Preprocess(image_size=(1, 6), resize="squash", mean=(0.0,) * 3, std=(1.0,) * 3)


def collected(model: torch.nn.Module, batches: Iterable[Batch], preprocess: Preprocess = FED) -> Logits:
    """As validation during training collects them."""
    with evaluating(model):
        return collect_logits(run_batches(TorchBackend(model, preprocess), batches))


@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_every_image_has_logits_whatever_the_batch_size(size: int) -> None:
    rng = np.random.default_rng(0)
    pixels_NC = rng.integers(0, 256, (23, 6), np.uint8)
    labels_N = rng.integers(0, 6, 23)
    model = fake_logits.Echo(6)
    found = collected(model, fake_logits.batches(pixels_NC, labels_N, size=size))
    np.testing.assert_allclose(found.logits_NC, pixels_NC / 255, rtol=1e-6)
    assert found.logits_NC.dtype == np.float32
    assert np.array_equal(found.labels, labels_N)
    assert found.indices_N.tolist() == list(range(23))
    assert (len(found), found.total) == (23, 23)
    assert sum(model.batches) == 23


def test_dropout_is_off_in_evaluation_and_each_module_is_put_back_as_it_was() -> None:
    model = torch.nn.Sequential(fake_logits.Echo(6), torch.nn.BatchNorm1d(6))
    model.train()
    model[1].eval()
    found = collected(model, fake_logits.batches(np.full((2, 6), 255, np.uint8), np.zeros(2, np.int64), size=2))
    assert (found.logits_NC > 0).all()
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert model[0].scale.grad is None


def test_the_model_is_put_back_also_when_it_fails() -> None:
    model = fake_logits.Echo(6).train()
    batches = fake_logits.batches(np.zeros((2, 6), np.uint8), np.zeros(2, np.int64), size=2)
    with pytest.raises(DataError):
        collected(model, batches, replace(FED, mean=(0.0,), std=(1.0,)))
    assert model.training


def test_images_that_failed_are_kept_and_count_as_wrong() -> None:
    right = fake_logits.made(failed=0)
    some = fake_logits.made(failed=50)
    assert some.total == 250
    assert headline(some)["top1"] == pytest.approx(headline(right)["top1"] * 200 / 250)
    assert headline(some)["top5"] == pytest.approx(headline(right)["top5"] * 200 / 250)
    assert headline(some)["loss"] == headline(right)["loss"]


def test_failures_of_batches_are_gathered_and_a_batch_may_be_empty() -> None:
    first, second = fake_logits.batches(np.full((4, 6), 9, np.uint8), np.zeros(4, np.int64), size=2)
    failed = fake_logits.failures(3, first=10)
    empty = replace(second, images_BHWC=second.images_BHWC[:0], labels=second.labels[:0], index_B=second.index_B[:0], failed=failed)
    found = collected(fake_logits.Echo(6), [first, empty])
    assert (len(found), found.total, found.failures) == (2, 5, failed)
    with pytest.raises(DataError, match=r"none of 3 images could be read; the first: 10\.jpg"):
        collected(fake_logits.Echo(6), [empty])
    with pytest.raises(DataError, match="no images"):
        collected(fake_logits.Echo(6), [])


def test_the_headline_is_scikit_learns() -> None:
    answers = fake_logits.made()
    found = headline(answers)
    chance_NC = torch.from_numpy(answers.logits_NC).double().softmax(-1).numpy()
    assert found["top1"] == pytest.approx(sk.accuracy_score(answers.labels, answers.logits_NC.argmax(-1)))
    assert found["top5"] == pytest.approx(sk.top_k_accuracy_score(answers.labels, answers.logits_NC, k=5))
    assert found["loss"] == pytest.approx(sk.log_loss(answers.labels, chance_NC))


def test_the_headline_of_several_labels_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    labels_NC = (rng.random((60, 5)) < 0.3).astype(np.float32)
    labels_NC[:, 4] = 0  # a class without an image is left out of the mean
    logits_NC = (rng.normal(size=(60, 5)) + labels_NC).astype(np.float32)
    answers = Logits(logits_NC=logits_NC, labels=labels_NC, indices_N=np.arange(60))
    found = headline(answers)
    assert found["mean_average_precision"] == pytest.approx(sk.average_precision_score(labels_NC[:, :4], logits_NC[:, :4]))
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.from_numpy(logits_NC), torch.from_numpy(labels_NC), reduction="none"
    )
    assert found["loss"] == pytest.approx(float(each.sum(-1).mean()), rel=1e-5)


def test_a_model_that_has_diverged_is_not_right_by_accident() -> None:
    logits_NC = np.full((4, 3), np.nan, np.float32)
    answers = Logits(logits_NC=logits_NC, labels=np.zeros(4, np.int64), indices_N=np.arange(4))
    assert headline(answers)["top1"] == 0
    assert np.isnan(headline(answers)["loss"])


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (np.array([0, -1, 2]), "1 of 3 images have no label"),
        (np.array([0, 1, 9]), "label 9, and the model has classes 0 to 3"),
        (np.zeros((3, 6), np.float32), "6 classes and the model 4"),
    ],
)
def test_labels_the_model_cannot_have_are_refused(labels: np.ndarray, complaint: str) -> None:
    answers = Logits(logits_NC=np.zeros((3, 4), np.float32), labels=labels, indices_N=np.arange(3))
    with pytest.raises(DataError, match=complaint):
        headline(answers)
