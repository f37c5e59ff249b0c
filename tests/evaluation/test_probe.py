"""The linear probe: scikit-learn's probabilities, a gradient that is really flat, and a strength chosen by held-out images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tests.evaluation.clouds import clouds
from vitlab.config.evaluation import ProbeConfig
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.features import joined
from vitlab.evaluation.frozen import fit, probe


@pytest.mark.parametrize("l2", [1e-2, 1.0, 100.0])
def test_probabilities_are_those_of_scikit_learn(l2: float) -> None:
    train, test = clouds((40, 20, 30), width=10, seed=0, spread=3), clouds((20,) * 3, width=10, seed=1, spread=3)
    rule = fit(train, classes=3, l2=l2, config=ProbeConfig(tolerance=1e-8))
    mean, deviation = train.features_ND.mean(0), train.features_ND.std(0) + 1e-5
    theirs = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10_000)
    theirs.fit(((train.features_ND - mean) / deviation).astype(np.float64), train.labels_N)
    ours = torch.from_numpy(rule.logits(test.features_ND)).softmax(1).numpy()
    assert np.abs(ours - theirs.predict_proba((test.features_ND - mean) / deviation)).max() < 1e-4


def test_it_ends_where_the_gradient_is_flat_and_says_so() -> None:
    train = clouds((40,) * 4, width=12, seed=0, spread=3)
    config = ProbeConfig(tolerance=1e-6)
    rule = fit(train, classes=4, l2=1.0, config=config)
    assert rule.converged
    x = torch.from_numpy((train.features_ND - rule.mean_D) / rule.deviation_D)
    weights = torch.from_numpy(rule.weights_DK).requires_grad_()
    bias = torch.from_numpy(rule.bias_K).requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ weights + bias, torch.from_numpy(train.labels_N))
    (loss + 0.5 * weights.square().sum() / len(train)).backward()  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    assert bias.grad is not None
    steepest = max(float(weights.grad.abs().max()), float(bias.grad.abs().max()))
    assert steepest <= 1e-6
    assert steepest == pytest.approx(rule.gradient, rel=1e-3)


def test_a_fit_that_is_stopped_says_that_it_has_not_converged() -> None:
    rule = fit(clouds((40,) * 4, width=12, seed=0, spread=3), classes=4, l2=1e-3, config=ProbeConfig(most_steps=2))
    assert not rule.converged
    assert rule.steps <= 2
    assert rule.gradient > 1e-5


def test_where_it_starts_does_not_change_where_it_ends() -> None:
    train = clouds((30,) * 3, width=8, seed=0, spread=3)
    config = ProbeConfig(tolerance=1e-8)
    cold = fit(train, classes=3, l2=1.0, config=config)
    warm = fit(train, classes=3, l2=1.0, config=config, start=fit(train, classes=3, l2=100.0, config=config))
    assert np.abs(cold.weights_DK - warm.weights_DK).max() < 1e-5


def test_the_strength_is_the_best_of_the_grid_on_held_out_images() -> None:
    train, val = clouds((12,) * 4, width=30, seed=0, spread=4), clouds((25,) * 4, width=30, seed=1, spread=4)
    test = clouds((25,) * 4, width=30, seed=2, spread=4)
    found = probe(train, val, test, ProbeConfig(l2_low=1e-2, l2_high=1e4, per_decade=2))
    strengths = [l2 for l2, _ in found.tried]
    assert strengths == sorted(strengths)
    assert dict(found.tried)[found.classifier.l2] == max(accuracy for _, accuracy in found.tried)
    for l2, accuracy in found.tried:
        rule = fit(train, classes=4, l2=l2, config=ProbeConfig())
        assert accuracy == pytest.approx(float((rule.logits(val.features_ND).argmax(1) == val.labels_N).mean()), abs=0.011)
    final = fit(joined([train, val]), classes=4, l2=found.classifier.l2, config=ProbeConfig())
    assert found.correct == pytest.approx(int((final.logits(test.features_ND).argmax(1) == test.labels_N).sum()), abs=1)
    assert found.total == 100


def test_the_grid_has_both_ends_and_eight_points_a_decade() -> None:
    grid = ProbeConfig().grid()
    assert len(grid) == 97
    assert grid[0] == pytest.approx(1e-6)
    assert grid[-1] == pytest.approx(1e6)
    assert grid[8] / grid[0] == pytest.approx(10)
    assert list(ProbeConfig(l2_low=3.0, l2_high=3.0).grid()) == pytest.approx([3.0])


def test_few_of_the_grid_are_fitted() -> None:
    train, val, test = (clouds((12,) * 3, width=6, seed=seed, spread=3) for seed in range(3))
    heard: list[tuple[int, float]] = []
    found = probe(train, val, test, progress=lambda fits, l2: heard.append((fits, l2)))
    assert 8 <= len(found.tried) <= 15
    assert [fits for fits, _ in heard] == list(range(1, len(found.tried) + 1))


def test_unreadable_test_images_count_as_wrong() -> None:
    train, val = clouds((9,) * 2, width=8, seed=0, spread=0.1), clouds((9,) * 2, width=8, seed=2, spread=0.1)
    test = clouds((10,) * 2, width=8, seed=1, spread=0.1, unreadable=5)
    found = probe(train, val, test, ProbeConfig(l2_low=1.0, l2_high=1.0))
    assert (found.correct, found.total, found.accuracy) == (20, 25, 0.8)


def test_sets_of_other_classes_are_refused() -> None:
    train = clouds((5, 5), width=4, seed=0)
    with pytest.raises(DataError, match="different classes"):
        probe(train, train, replace(train, names=("a", "b")))


@pytest.mark.parametrize(
    ("field", "value"), [("l2_low", 0.0), ("l2_low", 1e9), ("per_decade", 0), ("tolerance", 0.0), ("most_steps", 0)]
)
def test_nonsense_is_refused_at_birth(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        ProbeConfig(**{field: value})  # type: ignore[arg-type]
