"""Code that may end the process it runs in is tried in a child first.

A virtual machine may announce instructions (AMX) that its host does not carry out. Libraries believe it, and the process dies of
SIGILL in the first product, without a word.
"""

from __future__ import annotations

import signal
import subprocess
import sys

REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before the program starts"
"""What helps where the processor announces AMX and has none; oneDNN reads it once, so it cannot be set later."""


def trouble_with(code: str, *words: str, patience: float) -> str | None:
    """How a child process ends that runs `code` with `words` as its arguments, or None where it ends well in `patience` seconds."""
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
        why = ": the processor announces instructions that it does not carry out" if died == signal.SIGILL else ""
        return f"a trial of it died of {died.name}{why}"
    last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"a trial of it failed: {last[:200]}"
