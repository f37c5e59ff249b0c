"""Memory: anonymous shared memory that leaves nothing behind, how much memory is available, and errors that say it ran out."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import IO

from vitlab.errors import VitlabError

# How libraries say that memory ran out, in lower case. oneDNN gives no reason when it cannot create something; it is memory.
_WORDS = (
    "out of memory",  # torch: CUDA, MPS
    "can't allocate memory",  # torch: CPU
    "not enough memory",  # torch: CPU of Windows
    "cannot allocate memory",  # the system's word for ENOMEM, which many pass on
    "alloc_failed",  # cuBLAS, cuDNN
    "could not create a primitive",  # oneDNN, in torch and OpenVINO
    "could not create a memory",
    "could not execute a primitive",
    "failed to allocate",  # onnxruntime, OpenVINO
    "unable to allocate",  # numpy
    "failed to map segment",  # the loader of libraries
    "can't start new thread",  # Python; a thread needs memory for its stack
    "bad_alloc",  # the C++ library
    "bad allocation",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch, oneDNN, OpenVINO, onnxruntime, numpy or Python says that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    foreign = isinstance(error, Exception) and not isinstance(error, VitlabError | OSError)  # onnxruntime has classes of its own
    return foreign and any(words in str(error).lower() for words in _WORDS)


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
