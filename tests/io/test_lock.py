"""A lock has one holder at a time, and none after the holder's death."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import processes
from vitlab.errors import DataError
from vitlab.io.lock import locked, try_lock

_HOLD = """
import sys, time
from pathlib import Path
from vitlab.io.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def _refused(holder: str) -> DataError:
    return DataError(f"held by {holder}")


def test_a_second_holder_is_refused_with_the_name_of_the_first_or_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with processes.started([sys.executable, "-c", _HOLD, path]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataError, match=f"held by process {holder.pid} on"), locked(path, refuse=_refused):
            pass
        holder.kill()
        with locked(path):  # waits for the end of the killed process, and gets the lock
            assert path.read_text().startswith(f"process {os.getpid()} on")


def test_a_lock_is_free_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "lock", refuse=_refused):
            pass


def test_an_open_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    with path.open("rb") as first, path.open("rb") as second:
        assert try_lock(first.fileno())
        assert not try_lock(second.fileno())
    with path.open("rb") as third:
        assert try_lock(third.fileno())


_HELD_BY_A_CHILD = """
import os, sys, time
from pathlib import Path
from vitlab.io.lock import locked
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        print("held", flush=True)
        time.sleep(1)
    os._exit(0)
"""


@pytest.mark.parametrize("noticed", [True, False], ids=["its parent noticed", "a zombie"])
def test_the_last_moments_of_a_dead_holders_workers_are_waited_for(tmp_path: Path, noticed: bool) -> None:
    path = tmp_path / "lock"
    with processes.started([sys.executable, "-c", _HELD_BY_A_CHILD, path]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        if noticed:
            holder.wait(processes.LIMIT)
        with path.open("rb") as file:
            assert not try_lock(file.fileno())
        with locked(path, refuse=_refused):
            pass
