"""Child processes of tests: started in a group of their own, never waited for without a limit, never left behind.

`conftest.py` gives the process that runs the tests the default signal handlers, and children inherit them: Ctrl-C reaches a child
also where the tests run under `nohup` or as a background job, which ignore it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LIMIT = 240.0  # seconds: only a child that hangs takes so long; below the limit of a test, so that the child's words are shown


def run(
    words: Sequence[str | Path],
    *,
    check: bool = True,
    limit: float = LIMIT,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[str] = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """A command from start to end, `env` added to this environment; with `check`, its failure shows what it wrote to stderr."""
    with started(words, cwd=cwd, env=env, stdout=stdout) as process:
        out, err = process.communicate(timeout=limit)
    assert not check or process.returncode == 0, f"exit code {process.returncode}\n{err}"
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def started(
    words: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[str] = subprocess.PIPE,
    stderr: int | IO[str] = subprocess.PIPE,
    before: Callable[[], None] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A running command as the leader of a process group; when the block ends, nothing of the group is left.

    `before` is called in the child before the command.
    """
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
        preexec_fn=before,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait(LIMIT)


def eventually(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None, *, limit: float = LIMIT) -> None:
    """Wait until a condition holds; fail when `process` ends before, or after so many seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            raise AssertionError(f"ended with {process.returncode}: {process.communicate(timeout=LIMIT)[1]}")
        assert time.monotonic() < deadline, f"not within {limit} s"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended: a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """The processes that a process started and that have not been reaped."""
    try:
        return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and theirs."""
    return {below for child in children(pid) for below in (child, *descendants(child))}


def shared_memory() -> set[str]:
    """The names of what is in shared memory."""
    place = Path("/dev/shm")
    return {entry.name for entry in place.iterdir()} if place.is_dir() else set()


def with_environment(name: str, value: str) -> dict[int, str]:
    """The command lines of the running processes that were started with that environment variable.

    But for this process, and the helper processes of multiprocessing, which end when the processes that they serve do.
    """
    wanted = f"{name}={value}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if pid != os.getpid() and wanted in (folder / "environ").read_bytes().split(b"\0") and is_running(pid):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if not re.search(r"from multiprocessing\.(resource_tracker|forkserver) ", command):
                    found[pid] = command
    return found
