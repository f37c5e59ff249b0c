"""What every session of tests does: a warning of vitlab fails a test, a process left behind fails the session."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests import processes
from tests.conftest import LONGEST

TESTS = """
import signal, subprocess, sys
from pathlib import Path
from tests import processes

def test_that_a_child_hears_ctrl_c():
    code = "import time; print('ready', flush=True); time.sleep(1000)"
    with processes.started([sys.executable, "-c", code]) as child:
        assert child.stdout.readline() == "ready\\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=100)[1].endswith("KeyboardInterrupt\\n")

def test_that_forgets_a_process():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    environment = Path(f"/proc/{child.pid}/environ")  # empty for a moment while the program is loaded
    processes.eventually(lambda: not environment.exists() or environment.read_bytes() != b"")
"""

IMPATIENT = """
import sys, pytest, tests.conftest
tests.conftest._PATIENCE = 0.1
sys.exit(pytest.main(["-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "1", "--rootdir=.", "."]))
"""


def warn_from(module: str, category: type[Warning]) -> None:
    code = f"import warnings; warnings.warn('a word of warning', {category.__name__})"
    exec(code, {"__name__": module})


@pytest.mark.parametrize("module", ["vitlab", "vitlab.data.loader", "tests.data.test_loader"])
@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning, ResourceWarning])
def test_a_warning_of_vitlab_is_an_error(module: str, category: type[Warning]) -> None:
    with pytest.raises(category, match="a word of warning"):
        warn_from(module, category)


def test_a_warning_of_a_dependency_is_not() -> None:
    with warnings.catch_warnings(record=True, action=None) as caught:
        warn_from("torch.nn.functional", DeprecationWarning)
    assert [str(warning.message) for warning in caught] == ["a word of warning"]


def ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> subprocess.CompletedProcess[str]:
    """A session of two tests that starts with Ctrl-C ignored, as under `nohup`."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "test_it.py").write_text(TESTS)
    words = [sys.executable, "-c", IMPATIENT]
    with processes.started(words, cwd=folder, env={"PYTHONPATH": str(checkout)}, before=ignore_ctrl_c) as process:
        out, err = process.communicate(timeout=processes.LIMIT)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def test_ctrl_c_reaches_a_child_though_the_tests_run_where_it_is_ignored(session: subprocess.CompletedProcess[str]) -> None:
    assert "2 passed" in session.stdout, session.stdout + session.stderr


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes in /proc")
def test_a_session_that_leaves_a_process_behind_fails_and_ends_it(session: subprocess.CompletedProcess[str]) -> None:
    assert session.returncode == 1
    [line] = [line for line in session.stdout.splitlines() if "left a process behind" in line]
    pid, *command = line.split(": ")[2].split()
    assert command == ["sleep", "1000"]
    processes.eventually(lambda: not processes.is_running(int(pid)))


def test_the_files_that_start_first_are_there(checkout: Path) -> None:
    assert [name for name in LONGEST if not (checkout / "tests" / name).is_file()] == []
