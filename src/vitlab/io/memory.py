"""Memory: anonymous shared memory that leaves nothing behind, and how much memory is available."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import IO


def nameless_file() -> IO[bytes]:
    """An open, empty file without a name: in memory on Linux, else on the temporary disk.

    It is not in /dev/shm, which containers limit to 64 MB. It is gone when the last process that holds it ends.
    """
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("vitlab"), "w+b")
    else:  # noqa: RET505 (so that a type checker sees the branch for other systems)
        return tempfile.TemporaryFile()


def memory_available() -> int:
    """Bytes that a program can use: the system's own estimate, within the limit of a container."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if os.name == "posix" else []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    container, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if container.exists() and used.exists() and (most := container.read_text(encoding="ascii").strip()).isdigit():
        limits.append(max(0, int(most) - int(used.read_text(encoding="ascii"))))
    return min(limits, default=0)
