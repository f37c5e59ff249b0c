"""Few-shot by closed form: the rule scikit-learn finds, whichever way it is computed, and the images it is learned from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge as TheirRidge

from tests.evaluation.clouds import clouds
from vitlab.config.evaluation import FewShotConfig
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.features import Features
from vitlab.evaluation.frozen import draw, drawn_by_any, few_shot, ridge, solve


@pytest.mark.parametrize("width", [20, 400], ids=["more images than features", "more features than images"])
@pytest.mark.parametrize("l2", [1.0, 2.0**10])
def test_the_closed_form_is_the_ridge_of_scikit_learn(width: int, l2: float) -> None:
    train, test = clouds((30,) * 5, width=width, seed=0), clouds((10,) * 5, width=width, seed=1)
    rule = ridge(train.features_ND, train.labels_N, classes=5, l2=l2)
    # The same problem for them: whitened features, the constant 100 among the regularised ones, targets of -1 and 1.
    mean, deviation = train.features_ND.mean(0), train.features_ND.std(0) + 1e-5

    def prepared(x: NDArray[np.floating]) -> NDArray[np.floating]:
        return np.hstack([(x - mean) / deviation, np.full((len(x), 1), 100.0)])

    theirs = TheirRidge(alpha=l2, fit_intercept=False)
    theirs.fit(prepared(train.features_ND), 2.0 * np.eye(5)[train.labels_N] - 1)
    assert np.abs(rule.weights_EK - theirs.coef_.T).max() < 1e-4
    assert np.abs(rule.scores(test.features_ND) - theirs.predict(prepared(test.features_ND))).max() < 1e-4


@pytest.mark.parametrize("shape", [(40, 25), (25, 40), (30, 30)])
def test_both_shapes_of_the_problem_have_one_solution(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=shape), rng.normal(size=(shape[0], 4))
    x[:, -1] = 100
    assert np.allclose(solve(x, y, 2.0**10, wide=True), solve(x, y, 2.0**10, wide=False), rtol=1e-9, atol=1e-12)


def test_features_that_never_change_do_no_harm() -> None:
    train = clouds((6,) * 3, width=8, seed=0, spread=0.1)
    still = train.features_ND.copy()
    still[:, 3] = 5.0
    rule = ridge(still, train.labels_N, classes=3, l2=1024.0)
    assert np.isfinite(rule.weights_EK).all()
    assert rule.correct(replace(train, features_ND=still)) == 18


def test_more_shots_are_the_fewer_and_some_more() -> None:
    labels = clouds((30, 20, 40), width=2, seed=5).labels_N
    orders = draw(labels, classes=3, seed=1)
    assert [sorted(order.tolist()) for order in orders] == [np.flatnonzero(labels == code).tolist() for code in range(3)]
    again = draw(labels, classes=3, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(orders, again, strict=True))
    other = draw(labels, classes=3, seed=2)
    assert not any(np.array_equal(a, b) for a, b in zip(orders, other, strict=True))


def test_what_is_drawn_of_a_class_does_not_depend_on_other_classes() -> None:
    labels = np.array([0] * 9 + [1] * 9 + [2] * 9)
    more = np.array([0] * 9 + [1] * 9 + [2] * 2)
    assert np.array_equal(draw(labels, classes=3, seed=0)[1], draw(more, classes=3, seed=0)[1])


def test_the_images_that_any_seed_draws_are_enough() -> None:
    whole, test = clouds((60,) * 4, width=16, seed=0, spread=3), clouds((50,) * 4, width=16, seed=1, spread=3)
    config = FewShotConfig(shots=(1, 5))
    drawn = drawn_by_any(whole.labels_N, classes=4, config=config)
    assert len(drawn) <= 4 * 5 * 3 < len(whole)
    some = replace(whole, features_ND=whole.features_ND[drawn], labels_N=whole.labels_N[drawn], indices_N=drawn)
    assert list(few_shot(some, test, config, labels=whole.labels_N)) == list(few_shot(whole, test, config))


def test_accuracy_is_that_of_the_rules_it_is_made_of() -> None:
    train, test = clouds((30,) * 6, width=12, seed=0, spread=4), clouds((40,) * 6, width=12, seed=1, spread=4)
    (found,) = few_shot(train, test, FewShotConfig(shots=(5,), seeds=(3, 4)))
    expected = []
    for seed in (3, 4):
        rows = np.concatenate([order[:5] for order in draw(train.labels_N, classes=6, seed=seed)])
        scores = ridge(train.features_ND[rows], train.labels_N[rows], classes=6, l2=1024.0).scores(test.features_ND)
        expected.append(float((scores.argmax(1) == test.labels_N).mean()))
    assert found.accuracies == tuple(expected)
    assert found.mean == pytest.approx(sum(expected) / 2)
    assert found.deviation == pytest.approx(np.std(expected, ddof=1))
    assert 1 / 6 < found.mean < 1


def test_more_shots_learn_more() -> None:
    train, test = clouds((60,) * 8, width=24, seed=0, spread=4), clouds((60,) * 8, width=24, seed=1, spread=4)
    means = [found.mean for found in few_shot(train, test, FewShotConfig(shots=(1, 5, 25)))]
    assert means == sorted(means)
    assert means[0] > 1 / 8


def test_unreadable_test_images_count_as_wrong() -> None:
    train, test = clouds((9,) * 3, width=8, seed=0, spread=0.1), clouds((10,) * 3, width=8, seed=1, spread=0.1, unreadable=10)
    (found,) = few_shot(train, test, FewShotConfig(shots=(5,)))
    assert found.accuracies == (0.75, 0.75, 0.75)


def test_a_class_with_fewer_images_gives_what_it_has_and_is_named() -> None:
    train, test = clouds((30, 3, 30), width=8, seed=0, spread=0.1), clouds((5,) * 3, width=8, seed=1, spread=0.1)
    few, many = few_shot(train, test, FewShotConfig(shots=(3, 10)))
    assert few.short == ()
    assert many.short == ("class 1",)


def test_a_class_without_an_image_is_refused() -> None:
    train, test = clouds((5, 0, 5), width=4, seed=0), clouds((5,) * 3, width=4, seed=1)
    with pytest.raises(DataError, match="class 1"):
        list(few_shot(train, test))


def test_sets_of_other_classes_are_refused() -> None:
    train = clouds((5, 5), width=4, seed=0)
    other: Features = replace(train, names=("cat", "dog"))
    with pytest.raises(DataError, match="different classes"):
        list(few_shot(train, other))


@pytest.mark.parametrize(
    ("field", "value"),
    [("shots", ()), ("shots", (5, 1)), ("shots", (0, 1)), ("seeds", ()), ("seeds", (1, 1)), ("seeds", (-1,)), ("l2", 0.0)],
)
def test_nonsense_is_refused_at_birth(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        FewShotConfig(**{field: value})  # type: ignore[arg-type]
