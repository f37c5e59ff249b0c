"""Reads files in a process of its own and says how each ended and how far the memory rose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import processes

_CHILD = """
import json, sys
from pathlib import Path
from vitlab.checkpoints.containers import read_file
from vitlab.errors import VitlabError

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

def reset():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

for path in sys.argv[1:]:
    reset()
    memory = peak()
    try:
        read_file(Path(path))
        kind, message = "read", ""
    except VitlabError as error:
        kind, message = type(error).__name__, str(error)
    except BaseException as error:
        kind, message = type(error).__name__, repr(error)
    print(json.dumps([kind, message, (peak() - memory) / 1024]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """`kind` is "read" or the exception's class; `megabytes` of rise in resident memory."""

    path: Path
    kind: str
    message: str
    megabytes: float


def endings(paths: Sequence[Path], warm: Path) -> list[Ending]:
    """How reading each of the files ended, one after another in one child process."""
    done = processes.run([warm / "python", "-c", _CHILD, *paths], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(paths), done.stderr[-2000:]
    return [
        Ending(path=path, kind=kind, message=message, megabytes=megabytes)
        for path, (kind, message, megabytes) in zip(paths, lines, strict=True)
    ]


def assert_refused_flat(paths: Sequence[Path], warm: Path) -> None:
    """Each file gives one CheckpointError with less than 50 MB of memory."""
    bad = [ending for ending in endings(paths, warm) if ending.kind != "CheckpointError" or ending.megabytes >= 50]
    assert not bad, "\n".join(map(str, bad))
