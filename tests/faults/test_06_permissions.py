"""The files of a run are for others to read as the umask says, not for the user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.faults.runs import three
from tests.training.small import run_to


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_every_file_has_the_permissions_of_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        run_to(three(), tmp_path / "run", stop=1)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.name for path in files} >= {"model.safetensors", "optimizer.safetensors", "progress.json", "run.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}
