"""The same run is made twice: the same bits; with another seed, others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.small import last, run_to, same, small_run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(small_run(), out)
    return out


def test_runs_of_one_seed_are_equal_and_of_two_seeds_differ(uninterrupted: Path, tmp_path: Path) -> None:
    run_to(small_run(), tmp_path / "again")
    assert same(last(tmp_path / "again"), last(uninterrupted))
    run = small_run()
    run_to(replace(run, train=replace(run.train, seed=5)), tmp_path / "other")
    assert not same(last(tmp_path / "other"), last(uninterrupted))
