"""The numbers of a classifier, against scikit-learn's and against their definitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as sk

from tests.evaluation import fake_logits
from vitlab.config.evaluation import EvaluateConfig
from vitlab.errors import ConfigError
from vitlab.evaluation.classification import Classification, Logits, averaged, classify, classify_multi_label, compare_with_targets
from vitlab.evaluation.label_mapping import Targets
from vitlab.objective import metrics


def classified(found: Logits, targets: Targets, *, failed: list[int] | None = None, **extra: object) -> Classification:
    return classify(found, compare_with_targets(found, targets), targets, failed_labels=failed or [], **extra)  # type: ignore[arg-type]


def test_every_number_is_scikit_learns() -> None:
    answers, targets = fake_logits.made(), fake_logits.same()
    found = classified(answers, targets)
    chosen_N = answers.logits_NC.argmax(-1)
    assert (found.top1.correct, found.top1.total) == (int(sk.accuracy_score(answers.labels, chosen_N, normalize=False)), 200)
    assert found.top5 is not None
    assert found.top5.value == pytest.approx(sk.top_k_accuracy_score(answers.labels, answers.logits_NC, k=5))
    assert found.mean_class_accuracy == pytest.approx(sk.balanced_accuracy_score(answers.labels, chosen_N))
    assert found.loss == pytest.approx(sk.log_loss(answers.labels, np.exp(metrics.log_softmax(answers.logits_NC))))
    recall = sk.recall_score(answers.labels, chosen_N, average=None)
    assert [score.correct / score.total for score in found.per_class] == pytest.approx(recall.tolist())
    confusion = np.zeros((8, 8), int)
    for label, chosen, count in found.confusion:
        confusion[label, chosen] = count
    assert np.array_equal(confusion, sk.confusion_matrix(answers.labels, chosen_N))
    assert found.temperature == metrics.temperature(answers.logits_NC, answers.labels.astype(np.int64))
    assert repr(found.calibration) == repr(
        metrics.calibration(answers.logits_NC, answers.labels.astype(np.int64))
    )  # nan is not nan
    assert dict(found.measures())["top1"] == found.top1.value
    assert next(found.measures())[0] == "top1"


def test_precision_recall_f1_average_precision_and_roc_auc_are_scikit_learns() -> None:
    answers, targets = fake_logits.made(), fake_logits.same()
    found = classified(answers, targets)
    chosen_N, chance_NC = answers.logits_NC.argmax(-1), np.exp(metrics.log_softmax(answers.logits_NC))
    theirs = sk.precision_recall_fscore_support(answers.labels, chosen_N, zero_division=0)
    assert found.scores is not None
    for name, values in zip(("precision", "recall", "f1"), theirs[:3], strict=True):
        assert [getattr(score, name) or 0.0 for score in found.scores] == pytest.approx(values.tolist())
        macro = sk.precision_recall_fscore_support(answers.labels, chosen_N, zero_division=0, average="macro")
        assert averaged(found.scores)[name] == pytest.approx(macro[("precision", "recall", "f1").index(name)])
    one_NC = np.eye(8, dtype=bool)[answers.labels.astype(np.int64)]
    for place, score in enumerate(found.scores):
        assert score.average_precision == pytest.approx(sk.average_precision_score(one_NC[:, place], chance_NC[:, place]))
        assert score.roc_auc == pytest.approx(sk.roc_auc_score(one_NC[:, place], chance_NC[:, place]))
    measured = dict(found.measures())
    assert measured["macro_roc_auc"] == pytest.approx(sk.roc_auc_score(answers.labels, chance_NC, multi_class="ovr"))


def test_roc_auc_counts_equal_scores_half_and_needs_both_kinds() -> None:
    scores, right = np.array([0.2, 0.5, 0.5, 0.9]), np.array([False, True, False, True])
    assert metrics.roc_auc(scores, right) == sk.roc_auc_score(right, scores)
    assert np.isnan(metrics.roc_auc(scores, np.ones(4, bool)))
    assert np.isnan(metrics.roc_auc(scores, np.zeros(4, bool)))


@pytest.mark.parametrize("wanted", [0.3, 0.6, 0.9, 1.0])
def test_the_threshold_for_a_precision_keeps_it_and_no_lower_one_does(wanted: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 40, 300) / 40
    right = rng.random(300) < scores
    point = metrics.threshold_for(scores, right, wanted)
    reached = {value: right[scores >= value].mean() for value in np.unique(scores)}
    good = [value for value, precision in reached.items() if precision >= wanted]
    if not good:
        assert point is None
        return
    assert point is not None
    assert point.threshold == min(good)
    assert point.precision == reached[min(good)]
    assert point.coverage == (scores >= min(good)).mean()
    answers, targets = fake_logits.made(), fake_logits.same()
    asked = classified(answers, targets, config=EvaluateConfig(precision=wanted)).operating_point
    assert asked is None or asked.precision >= wanted


def test_intervals_hold_their_share_and_are_left_out_when_not_asked_for() -> None:
    answers, targets = fake_logits.made(), fake_logits.same()
    found = classified(answers, targets)
    assert found.top1.interval is not None
    low, high = found.top1.interval
    assert low < found.top1.value < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(found.top1.value * (1 - found.top1.value) / 200), rel=0.15)
    again = classified(answers, targets)
    assert (again.top1, again.loss_interval) == (found.top1, found.loss_interval)
    assert classified(answers, targets, config=EvaluateConfig(resamples=0)).top1.interval is None


def test_an_image_that_failed_is_wrong_everywhere() -> None:
    answers, targets = fake_logits.made(failed=40), fake_logits.same()
    found, without = classified(answers, targets, failed=[3] * 40), classified(replace(answers, failures=()), targets)
    assert (found.images, found.unreadable) == (240, 40)
    assert (found.top1.correct, found.top1.total) == (without.top1.correct, 240)
    assert found.per_class[3].total == without.per_class[3].total + 40
    assert found.mean_class_accuracy < without.mean_class_accuracy
    assert found.loss == without.loss


def test_real_leaves_out_images_without_a_label_and_counts_any_of_several() -> None:
    answers = Logits(
        logits_NC=np.eye(4, dtype=np.float32),
        labels=np.array([0, 0, 2, 3]),
        indices_N=np.arange(4),
        failures=fake_logits.failures(2),
    )
    real = [[0], [], [1, 2], [0], [1], []]  # the last two could not be read
    found = classified(answers, fake_logits.same(4), failed=[0, 1], real=real)
    assert found.real is not None
    assert (found.real.correct, found.real.total) == (2, 4)


def test_a_subset_of_the_classes_is_evaluated_among_all_and_among_themselves() -> None:
    answers = fake_logits.made(images=400)
    kept_N = answers.labels < 3
    part = Logits(logits_NC=answers.logits_NC[kept_N], labels=answers.labels[kept_N], indices_N=np.arange(kept_N.sum()))
    names = fake_logits.same().names
    targets = Targets(labels=names[:3], correct=((0,), (1,), (2,)), names=names)
    found = classified(part, targets)
    assert found.within_top1 is not None
    assert found.within_top1.correct == np.count_nonzero(part.logits_NC[:, :3].argmax(-1) == part.labels)
    assert found.top1.correct == np.count_nonzero(part.logits_NC.argmax(-1) == part.labels)
    assert found.within_top1.correct > found.top1.correct
    assert found.within_top5 is None
    assert classified(answers, fake_logits.same()).within_top1 is None


def test_another_order_of_classes_changes_no_number() -> None:
    answers, names = fake_logits.made(), fake_logits.same().names
    order = np.random.default_rng(0).permutation(8)  # class k of the data is class order[k] of the model
    shuffled = replace(answers, logits_NC=answers.logits_NC[:, np.argsort(order)])
    targets = Targets(
        labels=names, correct=tuple((int(place),) for place in order), names=tuple(names[k] for k in np.argsort(order))
    )
    one, other = classified(answers, fake_logits.same()), classified(shuffled, targets)
    assert (one.top1, one.top5, one.per_class, one.mean_class_accuracy) == (
        other.top1, other.top5, other.per_class, other.mean_class_accuracy,
    )  # fmt: skip
    assert other.loss == pytest.approx(one.loss)
    assert other.temperature == pytest.approx(one.temperature)


def test_a_mapping_to_several_classes_counts_each_of_them() -> None:
    answers = fake_logits.made(images=300)
    groups = ((0, 1, 2), (3,), (4, 5), (6, 7))
    group_of = {code: group for group, codes in enumerate(groups) for code in codes}
    labels = np.array([group_of[code] for code in answers.labels.tolist()])
    names = fake_logits.same().names
    targets = Targets(labels=("a", "b", "c", "d"), correct=groups, names=names)
    found = classified(replace(answers, labels=labels), targets)
    chosen = [group_of[code] for code in answers.logits_NC.argmax(-1).tolist()]
    assert found.top1.correct == sum(one == other for one, other in zip(chosen, labels.tolist(), strict=True))
    best5 = metrics.top_classes(answers.logits_NC, 5)
    assert found.top5 is not None
    assert found.top5.correct == sum(
        label in {group_of[code] for code in row} for row, label in zip(best5.tolist(), labels, strict=True)
    )
    chance_NC = np.exp(metrics.log_softmax(answers.logits_NC))
    grouped = np.stack([chance_NC[:, list(codes)].sum(-1) for codes in groups], axis=-1)
    assert found.loss == pytest.approx(float(-np.log(grouped[np.arange(300), labels]).mean()))
    assert found.temperature is None
    assert sum(count for _, _, count in found.confusion) == 300


def test_a_class_without_images_is_left_out_of_the_mean_of_classes() -> None:
    answers = fake_logits.made(classes=8)
    answers = replace(answers, labels=np.minimum(answers.labels, 5))
    found = classified(answers, fake_logits.same())
    counts = Counter(answers.labels.tolist())
    assert [score.total for score in found.per_class] == [counts.get(code, 0) for code in range(8)]
    assert not np.isnan(found.mean_class_accuracy)


def test_few_classes_have_no_top_5() -> None:
    assert classified(fake_logits.made(classes=5), fake_logits.same(5)).top5 is None


def test_a_model_that_has_diverged_is_reported_without_a_crash() -> None:
    answers = replace(fake_logits.made(), logits_NC=np.full((200, 8), np.nan, np.float32))
    found = classified(answers, fake_logits.same())
    assert found.top1.correct == 0
    assert found.temperature is None
    assert np.isnan(found.loss)


def test_several_labels_are_evaluated_by_the_average_precision_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    right_NK = rng.random((80, 4)) < 0.4
    logits_NC = (rng.normal(size=(80, 4)) + right_NK).astype(np.float32)
    answers = Logits(logits_NC=logits_NC, labels=right_NK.astype(np.float32), indices_N=np.arange(80))
    found = classify_multi_label(answers, fake_logits.same(4), failed_AK=np.zeros((0, 4), bool))
    assert found.mean_average_precision == pytest.approx(sk.average_precision_score(right_NK, logits_NC))
    assert [value for _, value, _ in found.per_class] == pytest.approx(
        sk.average_precision_score(right_NK, logits_NC, average=None).tolist()
    )
    assert found.interval is not None
    assert found.interval[0] < found.mean_average_precision < found.interval[1]


def test_an_unreadable_image_of_several_labels_stands_last_in_every_class() -> None:
    rng = np.random.default_rng(0)
    right_NK = rng.random((40, 3)) < 0.5
    logits_NC = rng.normal(size=(40, 3)).astype(np.float32)
    answers = Logits(
        logits_NC=logits_NC, labels=right_NK.astype(np.float32), indices_N=np.arange(40), failures=fake_logits.failures(2, first=40)
    )
    failed_AK = np.ones((2, 3), bool)
    found = classify_multi_label(answers, fake_logits.same(3), failed_AK=failed_AK, config=EvaluateConfig(resamples=0))
    expected = sk.average_precision_score(np.concatenate([right_NK, failed_AK]), np.concatenate([logits_NC, np.full((2, 3), -1e9)]))
    assert found.mean_average_precision == pytest.approx(expected)
    assert (found.images, found.unreadable, found.interval) == (42, 2, None)


def test_a_config_refuses_nonsense() -> None:
    for field in ("batch_size", "bins"):
        with pytest.raises(ConfigError, match=field):
            EvaluateConfig(**{field: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="corrupt"):
        EvaluateConfig(corrupt="ignore")  # type: ignore[arg-type]
