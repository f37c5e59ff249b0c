"""The search for a learning rate: the loss against growing rates, and where it falls fastest."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import vitlab
from tests.training.small import small_run, without_noise
from vitlab.errors import UsageError
from vitlab.training.sweep import find_lr, smoothed, suggestion


def test_the_suggestion_is_where_the_loss_falls_fastest() -> None:
    lrs = [10 ** (-5 + place / 20) for place in range(100)]
    losses = [2 / (1 + math.exp(6 * (math.log10(lr) + 3))) + (max(0, math.log10(lr) + 1.5) * 4) for lr in lrs]
    assert 3e-4 < suggestion(lrs, losses) < 1e-2
    assert suggestion([1e-3, 1e-2, 1e-1], [1.0, 2.0, 3.0]) == 1e-3
    assert smoothed([2.0] * 9) == pytest.approx([2.0] * 9)


def test_learning_rates_grow_by_one_factor_and_the_curve_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = without_noise(small_run())
    found = find_lr(run, out=tmp_path / "lr", steps=12)
    ratios = [after / before for before, after in zip(found.lrs, found.lrs[1:], strict=False)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    assert found.recipe == run.train.optimizer.lr
    assert found.lrs[0] < found.suggested < found.lrs[-1] or found.suggested in found.lrs
    assert (tmp_path / "lr" / "find_lr.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "lr" / "find_lr.json").read_text())["suggested"] == found.suggested
    assert "suggested lr" in str(found)


def test_finetune_finds_a_rate_and_trains_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = vitlab.finetune(
        "digits", model="ViT-Mini/8", image_size=16, batch_size=8, workers=0, find_lr=True, quiet=True, out=tmp_path / "run"
    )
    assert run.found_lr is not None
    assert not (tmp_path / "run").exists()
    assert run.to_json()["suggested"] == run.found_lr.suggested
    with pytest.raises(UsageError, match="only looks for a learning rate"):
        vitlab.finetune("digits", find_lr=True, sweep=True)
