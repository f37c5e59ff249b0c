"""A command that is a fork of a warm process behaves as one that was started."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked there")


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv); print('error', file=sys.stderr); sys.exit(3)",
        "import os; print(os.getcwd(), os.environ['COLOUR'], __name__)",
        "import sys; sys.exit('a sentence')",
        "print(1 / 0)",
        "import os; os.kill(os.getpid(), 11)",
        "raise KeyboardInterrupt",
    ],
)
def test_it_prints_and_ends_as_a_new_process_does(code: str, warm: Path, tmp_path: Path) -> None:
    real, forked = (
        processes.run([python, "-c", code, "a", "b"], check=False, cwd=tmp_path, env={"COLOUR": "blue"})
        for python in (sys.executable, warm / "python")
    )
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_it_runs_files_and_modules_and_reads_what_it_is_given(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("import sys; print(__name__, sys.argv[1:], file=open('said', 'a'))\n")
    processes.run([warm / "python", tmp_path / "it.py", "a"], cwd=tmp_path)
    processes.run([warm / "python", "-m", "it", "b"], cwd=tmp_path)
    assert (tmp_path / "said").read_text() == "__main__ ['a']\n__main__ ['b']\n"


WAITING = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_what_stands_for_it(number: signal.Signals, warm: Path) -> None:
    with processes.started([warm / "python", "-c", WAITING]) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert pid != process.pid
        process.send_signal(number)
        assert process.wait(processes.LIMIT) == -number
        processes.eventually(lambda: not processes.is_running(pid))
