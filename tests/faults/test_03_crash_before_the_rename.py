"""A run dies when a checkpoint is complete and does not have its name yet: the previous checkpoint is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.runs import ends_like, killed, long_run, nothing_is_lost

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")


def test_a_crash_between_writing_and_rename_leaves_the_previous_checkpoint(warm: Path, tmp_path: Path) -> None:
    run = long_run(steps=6)
    names = ("run.json", "step-3", "step-3", "last", "progress.json", "events.jsonl", "step-5")
    attempts = killed(run, tmp_path, warm, [{"rename_to": name} for name in names])
    assert {attempt["code"] for attempt in attempts} == {137}
    assert [attempt["kept"] for attempt in attempts] == [0, 2, 2, 3, 3, 3, 4]  # a folder counts also while no link leads to it
    nothing_is_lost(attempts, every=1)
    ends_like(run, tmp_path / "run", tmp_path / "whole")
