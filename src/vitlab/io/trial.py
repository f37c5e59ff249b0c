"""Try code that may crash in a child process first.

A virtual machine may announce CPU instructions (AMX) that its host does not support. Libraries use them, and the process dies of
SIGILL in the first matrix product, without a message.
"""

from __future__ import annotations

import signal
import subprocess
import sys

REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before the program starts"
"""The remedy if the CPU announces AMX without supporting it; oneDNN reads the variable once, so it must be set before."""


def trouble_with(code: str, *words: str, patience: float) -> str | None:
    """Run `code` with the arguments `words` in a child process: None if it succeeds within `patience` seconds, else the problem."""
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
