"""Memory that processes share and no folder lists: when the last of them ends, however it ends, nothing is left behind."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import IO


def nameless_file() -> IO[bytes]:
    """An open, empty file without a name: in memory where the system has such a thing, else on the temporary disk.

    It is not /dev/shm, which containers keep at 64 MB.
    """
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("vitlab"), "w+b")
    else:  # noqa: RET505 (so that a type checker sees the branch of the other systems)
        return tempfile.TemporaryFile()


def memory_available() -> int:
    """Bytes a program may take without pushing others out, by the system's own estimate, and within a container's limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if os.name == "posix" else []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    container, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if container.exists() and used.exists() and (most := container.read_text(encoding="ascii").strip()).isdigit():
        limits.append(max(0, int(most) - int(used.read_text(encoding="ascii"))))
    return min(limits, default=0)
