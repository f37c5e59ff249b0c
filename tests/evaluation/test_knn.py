"""Nearest neighbours: scikit-learn's answers, whatever the size of the pieces they are found in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from tests.evaluation.clouds import clouds
from vitlab.config.evaluation import KnnConfig
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation import frozen as module
from vitlab.evaluation.frozen import knn


def test_votes_are_those_of_scikit_learn() -> None:
    train, test = clouds((40, 20, 30, 30), width=10, seed=0, spread=3), clouds((30,) * 4, width=10, seed=1, spread=3)
    for found in knn(train, test, KnnConfig(k=(1, 3, 10, 120), temperature=0.07)):
        theirs = KNeighborsClassifier(
            n_neighbors=found.k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
        )
        theirs.fit(train.features_ND.astype(np.float64), train.labels_N)
        expected = int((theirs.predict(test.features_ND.astype(np.float64)) == test.labels_N).sum())
        assert (found.correct, found.total) == (expected, 120)
        assert 30 < found.correct < 120


def test_the_length_of_a_feature_means_nothing() -> None:
    train, test = clouds((20,) * 3, width=6, seed=0, spread=2), clouds((20,) * 3, width=6, seed=1, spread=2)
    longer = replace(train, features_ND=train.features_ND * np.linspace(0.1, 9, 60, dtype=np.float32)[:, None])
    config = KnnConfig(k=(1, 5))
    assert knn(longer, test, config) == knn(train, test, config)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = clouds((20,) * 3, width=6, seed=0, spread=2), clouds((21,) * 3, width=6, seed=1, spread=2)
    config = KnnConfig(k=(1, 7))
    whole = knn(train, test, config)
    monkeypatch.setattr(module, "_COSINES_AT_ONCE", 61 * 4)
    assert knn(train, test, config) == whole


def test_unreadable_test_images_count_as_wrong() -> None:
    train, test = clouds((9,) * 2, width=8, seed=0, spread=0.1), clouds((10,) * 2, width=8, seed=1, spread=0.1, unreadable=5)
    (found,) = knn(train, test, KnnConfig(k=(3,)))
    assert (found.correct, found.total, found.accuracy) == (20, 25, 0.8)


def test_a_feature_of_zeros_is_not_a_division_by_zero() -> None:
    train = clouds((9,) * 2, width=8, seed=0)
    dark = train.features_ND.copy()
    dark[0] = 0
    (found,) = knn(replace(train, features_ND=dark), train, KnnConfig(k=(1,)))
    assert found.correct >= 16


def test_more_neighbours_than_images_are_refused() -> None:
    train = clouds((3, 3), width=4, seed=0)
    with pytest.raises(DataError, match="k=7 neighbours of 6"):
        knn(train, train, KnnConfig(k=(1, 7)))


@pytest.mark.parametrize(("field", "value"), [("k", (0,)), ("k", ()), ("k", (5, 5)), ("temperature", 0.0)])
def test_nonsense_is_refused_at_birth(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        KnnConfig(**{field: value})  # type: ignore[arg-type]
