"""Metrics against scikit-learn's, and against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from vitlab.errors import DataError
from vitlab.objective import metrics


def answers(seed: int = 0, images: int = 300, classes: int = 7) -> tuple[metrics.Floats, metrics.Ints]:
    rng = np.random.default_rng(seed)
    labels_N = rng.integers(0, classes, images)
    logits_NC = rng.normal(size=(images, classes))
    logits_NC[np.arange(images), labels_N] += 1.5
    return logits_NC, labels_N


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_equals_scikit_learns(k: int) -> None:
    logits_NC, labels_N = answers()
    assert metrics.hits(logits_NC, labels_N, k).mean() == pytest.approx(sk.top_k_accuracy_score(labels_N, logits_NC, k=k))


def test_confusion_and_per_class_accuracy_equal_scikit_learns() -> None:
    logits_NC, labels_N = answers()
    chosen_N = logits_NC.argmax(-1)
    counts = metrics.confusion(labels_N, chosen_N, 7)
    assert np.array_equal(counts, sk.confusion_matrix(labels_N, chosen_N))
    np.testing.assert_allclose(metrics.per_class_accuracy(counts), sk.recall_score(labels_N, chosen_N, average=None))
    assert np.isnan(metrics.per_class_accuracy(metrics.confusion(labels_N, chosen_N, 8))[7])


def test_likelihood_equals_scikit_learns_log_loss() -> None:
    logits_NC, labels_N = answers()
    expected = sk.log_loss(labels_N, np.exp(metrics.log_softmax(logits_NC)))
    assert metrics.negative_log_likelihood(logits_NC, labels_N) == pytest.approx(expected)


def test_average_precision_equals_scikit_learns_with_and_without_ties() -> None:
    rng = np.random.default_rng(1)
    for decimals in (8, 1):
        scores = rng.normal(size=200).round(decimals)
        right = rng.random(200) < 0.3
        assert metrics.average_precision(scores, right) == pytest.approx(sk.average_precision_score(right, scores))
    assert np.isnan(metrics.average_precision(scores, np.zeros(200, bool)))


def test_images_without_a_real_label_are_left_out_and_any_of_several_counts() -> None:
    logits_NC = np.eye(4)
    right = metrics.real_hits(logits_NC, [[0], [], [1, 2], [0]])
    assert right.tolist() == [True, True, False]


def test_a_calibrated_classifier_has_a_small_error_and_temperature_one() -> None:
    rng = np.random.default_rng(2)
    logits_NC = rng.normal(size=(20_000, 5)) * 2
    chance_NC = np.exp(metrics.log_softmax(logits_NC))
    labels_N = np.array([rng.choice(5, p=chance_C) for chance_C in chance_NC])
    assert metrics.calibration(logits_NC, labels_N).error < 0.01
    assert metrics.temperature(logits_NC, labels_N) == pytest.approx(1, abs=0.03)
    assert metrics.temperature(logits_NC * 3, labels_N) == pytest.approx(3, rel=0.03)
    assert metrics.calibration(logits_NC * 3, labels_N).error > 0.1
    assert sum(metrics.calibration(logits_NC, labels_N).count) == 20_000


def test_the_bootstrap_interval_of_a_mean_is_the_normal_one_for_many_images() -> None:
    values = np.random.default_rng(3).random(4000) < 0.7
    low, high = metrics.bootstrap(values, seed=1)
    half = 1.96 * np.sqrt(0.7 * 0.3 / 4000)
    assert low == pytest.approx(values.mean() - half, abs=0.002)
    assert high == pytest.approx(values.mean() + half, abs=0.002)
    assert metrics.bootstrap(values, seed=1) == (low, high)
    with pytest.raises(DataError):
        metrics.bootstrap(np.array([]))


@pytest.mark.parametrize(("correct", "total", "low", "high"), [(8, 8, 0.6756, 1.0), (0, 8, 0.0, 0.3244), (15, 148, 0.0624, 0.1605)])
def test_the_interval_of_a_proportion_is_wilsons(correct: int, total: int, low: float, high: float) -> None:
    assert metrics.proportion_interval(correct, total) == pytest.approx((low, high), abs=1e-4)


def test_of_equal_logits_the_lower_class_comes_first() -> None:
    assert metrics.top_classes(np.zeros((1, 4)), 2).tolist() == [[0, 1]]


@pytest.mark.parametrize("levels", [2, 1000])
def test_ranks_follow_the_order_of_the_top_classes_also_among_equals(levels: int) -> None:
    rng = np.random.default_rng(4)
    logits_NC = rng.integers(0, levels, (50, 9)).astype(np.float32)
    labels_N = rng.integers(0, 9, 50)
    order_NC = metrics.top_classes(logits_NC, 9)
    assert metrics.ranks(logits_NC, labels_N).tolist() == [
        row.index(label) for row, label in zip(order_NC.tolist(), labels_N, strict=True)
    ]
    logits_NC[3, 2] = np.nan
    assert metrics.ranks(logits_NC, labels_N)[3] == 9  # nobody is right among things that are not numbers


def test_parts_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits_NC, labels_N = answers()
    rank_N, loss_N, chance_N = (
        metrics.ranks(logits_NC, labels_N),
        metrics.losses(logits_NC, labels_N),
        metrics.confidences(logits_NC),
    )
    best = metrics.temperature(logits_NC, labels_N)
    monkeypatch.setattr(metrics, "_AT_ONCE", 50)
    np.testing.assert_array_equal(metrics.ranks(logits_NC, labels_N), rank_N)
    np.testing.assert_array_equal(metrics.losses(logits_NC, labels_N), loss_N)
    np.testing.assert_array_equal(metrics.confidences(logits_NC), chance_N)
    assert metrics.temperature(logits_NC, labels_N) == pytest.approx(best)


def test_the_temperature_is_where_the_likelihood_is_best_and_stays_within_its_bounds() -> None:
    logits_NC, labels_N = answers()
    best = metrics.temperature(logits_NC, labels_N)
    for other in (best * 0.99, best * 1.01):
        assert metrics.negative_log_likelihood(logits_NC / best, labels_N) < metrics.negative_log_likelihood(
            logits_NC / other, labels_N
        )
    assert metrics.temperature(np.eye(4), np.arange(4)) == pytest.approx(0.01, rel=0.01)  # always right: be surer
    assert metrics.temperature(np.eye(4), (np.arange(4) + 1) % 4) == pytest.approx(100, rel=0.01)  # always wrong: be less sure


def test_sigmoid_losses_are_sums_of_scikit_learns_log_losses() -> None:
    rng = np.random.default_rng(5)
    logits_NC, right_NC = rng.normal(size=(20, 3)) * 3, rng.random((20, 3)) < 0.4
    each = sum(sk.log_loss(right_NC[:, k], 1 / (1 + np.exp(-logits_NC[:, k]))) for k in range(3))
    assert metrics.sigmoid_losses(logits_NC, right_NC).mean() == pytest.approx(each)
    assert metrics.sigmoid_losses(np.array([[-800.0, 800.0]]), np.array([[0, 1]])) == pytest.approx([0])


def test_mean_average_precision_leaves_out_classes_without_a_yes() -> None:
    rng = np.random.default_rng(6)
    scores_NC, right_NC = rng.normal(size=(50, 4)), rng.random((50, 4)) < 0.4
    right_NC[:, 2] = False
    there = [0, 1, 3]
    expected = sk.average_precision_score(right_NC[:, there], scores_NC[:, there])
    assert metrics.mean_average_precision(scores_NC, right_NC) == pytest.approx(expected)
    assert np.isnan(metrics.mean_average_precision(scores_NC, np.zeros((50, 4), bool)))
