"""The digits shipped with the package: what they are, and which of them are held out."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vitlab.config.data import SplitRule
from vitlab.data import digits
from vitlab.data.dataset import SPLITS
from vitlab.data.digits import HoldOut, open_digits
from vitlab.data.split import take_split
from vitlab.errors import ConfigError

RULES: tuple[HoldOut, HoldOut] = ("content", "writers")


def test_pixels_and_labels_are_scikit_learns_own() -> None:
    bunch = load_digits()
    dataset = open_digits()
    assert len(dataset) == 1797
    assert dataset.labels == tuple("0123456789")
    assert not dataset.multi_label
    pixels = np.stack([np.asarray(dataset.read(place).content) for place in range(1797)])
    assert pixels.shape == (1797, 8, 8, 1)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.rint(bunch.images * (255 / 16))[..., None])
    np.testing.assert_array_equal([dataset.read(place).label for place in range(1797)], bunch.target)
    np.testing.assert_array_equal([dataset.label(place) for place in range(1797)], bunch.target)


@pytest.mark.parametrize("rule", RULES)
def test_the_splits_share_no_image_and_hold_every_class_alike(rule: HoldOut) -> None:
    whole = open_digits(hold_out=rule)
    parts = {name: take_split(whole, name, SplitRule(), where="digits") for name in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == 1797
    hashes = {name: {row.tobytes() for row in part.digests()} for name, part in parts.items()}
    assert sum(map(len, hashes.values())) == len(set.union(*hashes.values())) == 1797
    assert 0.24 < len(parts["test"]) / 1797 < 0.29
    assert 0.07 < len(parts["val"]) / 1797 < 0.13
    of_all = np.bincount(whole.table.codes, minlength=10) / 1797
    of_test = np.bincount(parts["test"].table.codes, minlength=10) / len(parts["test"])
    assert np.abs(of_all - of_test).max() < 0.01


def test_held_out_writers_are_those_of_the_last_forms() -> None:
    whole = open_digits(hold_out="writers")
    test = np.flatnonzero(whole.splits == SPLITS.index("test"))
    np.testing.assert_array_equal(test, np.arange(1287, 1797))
    # a form begins with the ten digits in order, three times: the cut is at such a beginning
    np.testing.assert_array_equal(whole.table.codes[test[:30]], np.tile(np.arange(10), 3))


def test_the_splits_are_the_same_every_time_and_whichever_order_the_images_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = open_digits(), pickle.loads(pickle.dumps(open_digits()))
    np.testing.assert_array_equal(first.splits, second.splits)
    assert first.fingerprint() == second.fingerprint()
    pixels, codes = digits._read()
    order = np.random.default_rng(0).permutation(1797)
    monkeypatch.setattr(digits, "_read", lambda: (pixels[order], codes[order]))
    np.testing.assert_array_equal(open_digits().splits, first.splits[order])


def test_an_unknown_rule_is_refused() -> None:
    rule: Any = "writer"
    with pytest.raises(ConfigError, match="hold_out='writer'") as refusal:
        open_digits(hold_out=rule)
    assert refusal.value.hint == "did you mean writers?"
