"""A `vitlab` command that starts in milliseconds: each call is a fork of one process that has imported torch already.

    with warm_vitlab() as path:    # path/vitlab, to be put first on PATH

A call is a process of its own, with the caller's files, folder and environment. Only what torch reads from the environment while it
is imported is that of the first process. Signals to the command do not reach the fork: not for tests of signals.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests import processes

_IMPORTED = (
    *("torch", "torch._dynamo"),  # the second is imported by torch's optimisers, and takes as long as the first
    *("vitlab.cli.main", "vitlab.training", "vitlab.inference", "vitlab.evaluation", "matplotlib.figure"),
)
_COMMAND = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps({{"words": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}) + "\\n"
    socket.send_fds(server, [request[:1].encode()], [0, 1, 2])
    server.sendall(request[1:].encode())
    code = server.recv(16)
sys.exit(int(code or 137))
"""


@contextmanager
def warm_vitlab() -> Iterator[Path]:
    """A folder with the command, which works until the block ends."""
    with tempfile.TemporaryDirectory(prefix="vitlab-") as folder:  # a short path: that of a socket has at most some 100 letters
        address, command = Path(folder, "socket"), Path(folder, "bin", "vitlab")
        command.parent.mkdir()
        command.write_text(_COMMAND.format(python=sys.executable, address=str(address)))
        command.chmod(0o755)
        words = [sys.executable, "-m", "tests.warm", address]
        with processes.started(words, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", server.communicate(timeout=processes.LIMIT)[1]
            yield command.parent


def serve(address: str) -> None:
    """Answer calls until standard input ends, which it does when the process that started this one does."""
    for name in _IMPORTED:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            heard, _, _ = select.select([listener, sys.stdin], [], [], 1.0)
            _reap()
            if sys.stdin in heard:
                return
            if listener in heard:
                caller, _ = listener.accept()
                with caller:
                    if os.fork() == 0:
                        _answer(caller)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _answer(caller: socket.socket) -> None:
    """Run one command in this fork, and end it."""
    from vitlab.cli.main import main

    code = 1
    try:
        first, files, _, _ = socket.recv_fds(caller, 1, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        with caller.makefile() as rest:
            request = json.loads(first.decode() + rest.readline())
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["vitlab", *request["words"]]
        code = main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter does at the top
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.sendall(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
