"""An old checkpoint cannot be deleted: a warning when it should be deleted and at each start, and the run goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.runs import in_a_child
from tests.training.small import last, run_to, same, small_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")

CHILD = """
import sys
from pathlib import Path
from tests.faults.runs import become_nobody, warnings_of
from tests.training.small import run_to, small_run
folder = Path(sys.argv[1])
for stop in (1, 3):  # resumed once, so that nothing has to be imported later
    run_to(small_run(), folder / "run", stop=stop)
become_nobody(folder)
Path("run/checkpoints/step-3").chmod(0o555)
for stop in (5, 7):
    for warning in warnings_of(run_to(small_run(), Path("run"), stop=stop)):
        print(stop, warning)
"""


def test_a_checkpoint_that_cannot_be_deleted_is_a_warning_and_the_run_continues(warm: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    said = in_a_child(warm, CHILD, tmp_path)
    assert [line.split(":")[0] for line in said] == [
        "5 cannot delete the old checkpoint run/checkpoints/step-3",
        "7 cannot delete run/checkpoints/.step-3.deleted, which an earlier process left",
    ]
    assert all(line.endswith("Permission denied") for line in said)
    (tmp_path / "run" / "checkpoints" / ".step-3.deleted").chmod(0o755)
    run_to(small_run(), tmp_path / "run")
    run_to(small_run(), tmp_path / "whole")
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))
    assert not list((tmp_path / "run").rglob(".*"))
