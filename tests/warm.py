"""Commands that start in milliseconds: each is a fork of one process that has imported torch already, which takes seconds.

    with warm_commands() as path:    # path/python and path/vitlab, used as the real ones are

A command is a process of its own with the caller's files, folder and environment. What the caller started stands for it: it passes
signals on, ends as the command ends, and takes it along when it is killed. Two things differ from a real start: what is decided
while torch is imported is decided already, and the command is not a child of its caller. Outside Linux the real commands serve.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests import processes

_IMPORTED = (
    *("torch", "torch._dynamo"),  # the second is imported by torch's optimisers, and takes as long as the first
    *("vitlab.cli.main", "vitlab.training", "vitlab.inference", "vitlab.evaluation", "matplotlib.figure"),
    *(
        "uvicorn.server",
        "prometheus_client",
        "vitlab.interpretation.attention",
    ),  # not starlette: pytest wants to import anyio itself
)
_COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps({{"words": [*{words!r}, *sys.argv[1:]], "folder": os.getcwd(), "environment": dict(os.environ)}}) + "\\n"
socket.send_fds(server, [request[:1].encode()], [0, 1, 2])
server.sendall(request[1:].encode())
heard = server.makefile()
pid = int(heard.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(heard.readline())
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def warm_commands() -> Iterator[Path]:
    """A folder with `python` and `vitlab`, which work until the block ends."""
    if sys.platform != "linux":
        yield Path(sys.executable).parent
        return
    with tempfile.TemporaryDirectory(prefix="vitlab-") as folder:  # a short path: that of a socket has at most some 100 letters
        address, path = Path(folder, "socket"), Path(folder, "bin")
        path.mkdir()
        for name, words in (("python", ()), ("vitlab", ("-m", "vitlab"))):
            (path / name).write_text(_COMMAND.format(python=sys.executable, address=str(address), words=words))
            (path / name).chmod(0o755)
        server = [sys.executable, "-m", "tests.warm", str(address)]
        with processes.started(server, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=processes.LIMIT)[1]
            yield path


def torchrun(warm: Path, *words: str | Path, ranks: int = 2) -> list[str | Path]:
    """The command that runs `python WORDS` as so many ranks, all of them warm."""
    launch = ("-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    return [warm / "python", *launch, "--shutdown-timeout=5", "--no-python", warm / "python", *words]


def serve(address: str) -> None:
    """Start commands until standard input ends, which it does when the process that started this one does."""
    for name in _IMPORTED:
        import_module(name)
    callers: dict[socket.socket, int] = {}  # with the number of the process that was started
    ends: dict[int, socket.socket] = {}  # by the descriptor that tells of the process's end
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            heard, _, _ = select.select([listener, sys.stdin, *callers, *ends], [], [])
            if sys.stdin in heard:
                break
            if listener in heard:
                caller, _ = listener.accept()
                request, files = _request(caller)
                pid = os.fork()
                if pid == 0:
                    _run(request, files)
                caller.sendall(f"{pid}\n".encode())
                for file in files:
                    os.close(file)
                callers[caller] = pid
                ends[os.pidfd_open(pid)] = caller
            for end in [end for end in ends if end in heard]:
                os.close(end)
                _tell_the_end(ends.pop(end), callers)
            for caller in [caller for caller in callers if caller in heard]:
                _kill(callers[caller])  # nobody waits for it any more
    for pid in callers.values():
        _kill(pid)


def _request(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    first, files, _, _ = socket.recv_fds(caller, 1, 3)
    rest = b""
    while not rest.endswith(b"\n"):
        rest += caller.recv(1 << 16)
    return json.loads(first + rest), files


def _tell_the_end(caller: socket.socket, callers: dict[socket.socket, int]) -> None:
    status = os.waitpid(callers.pop(caller), 0)[1]
    with caller, suppress(OSError):
        caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _run(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Be the command, in this fork."""
    code = 1
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        for entry in list(Path("/proc/self/fd").iterdir()):  # the server's own
            if int(entry.name) > 2:
                with suppress(OSError):
                    os.close(int(entry.name))
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _python(request["words"])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does at the top
        sys.excepthook(*sys.exc_info())
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _python(words: list[str]) -> None:
    """What `python WORDS` does: -c CODE, -m MODULE or a file, and their arguments."""
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
