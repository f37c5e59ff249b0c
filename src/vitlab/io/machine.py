"""What work asks of the machine: memory, threads that work ahead, and a child process that tries what may crash."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

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


Item = TypeVar("Item")
Result = TypeVar("Result")


def chunks(count: int, size: int) -> Iterator[range]:
    """The numbers from 0 to `count` - 1 in ranges of `size`."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def prefetched(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None, depth: int | None = None
) -> Generator[Result, None, None]:
    """`work(item)` for each item, in order, computed by `threads` (None: one per CPU) with at most `depth` results ahead.

    `depth` None is twice the number of threads. Use it within `contextlib.closing`, which ends the threads when the consumer
    stops early. Otherwise the garbage collector would wait for them in whichever thread it runs, possibly one of them.
    """
    threads = threads or os.cpu_count() or 1
    waiting = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="prefetch") as pool:
        running = deque(pool.submit(work, item) for item in islice(waiting, depth or 2 * threads))
        try:
            while running:
                yield running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
        finally:
            for future in running:
                future.cancel()


REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before the program starts"
"""The remedy if the CPU announces AMX without supporting it; oneDNN reads the variable once, so it must be set before."""


def trouble_with(code: str, *words: str, patience: float) -> str | None:
    """Run `code` with the arguments `words` in a child process: None if it succeeds within `patience` seconds, else the problem.

    A virtual machine may announce CPU instructions (AMX) that its host does not support. Libraries use them, and the process dies
    of SIGILL in the first matrix product, without a message.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return f"a trial of it did not end within {patience:.0f} seconds"
    if ended.returncode == 0:
        return None
    if ended.returncode < 0:
        died = signal.Signals(-ended.returncode)
        why = ": the CPU announces instructions that it does not support" if died == signal.SIGILL else ""
        return f"a trial of it died of {died.name}{why}"
    last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"a trial of it failed: {last[:200]}"
