"""Whether products in bfloat16 can be made on this processor, which says so itself and is not always right.

A virtual machine may announce instructions (AMX) that its host does not carry out. torch believes it, and the process dies of
SIGILL in the first product, without a word. So a child process tries first.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import cache

REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before the program starts"
"""What helps where the processor announces AMX and has none; oneDNN reads it once, so it cannot be set later."""

_PATIENCE = 120.0  # seconds, of which nearly all is the import of torch on a busy machine
# A forward and a backward pass through what a model is made of: products of matrices, attention, a kernel.
_TRIAL = """
import torch
torch.set_num_threads(1)
x = torch.ones(2, 2, 32, 32, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    y = torch.nn.functional.linear(x, torch.ones(32, 32))
    y = torch.nn.functional.scaled_dot_product_attention(y, y, y)
    y = torch.nn.functional.conv2d(y, torch.ones(4, 2, 2, 2))
y.float().sum().backward()
assert bool(torch.isfinite(x.grad).all())
"""


@cache
def bfloat16_trouble() -> str | None:
    """Why products in bfloat16 cannot be made on this machine's processor, or None if they can.

    Tried in a child process, once in the life of this one: about as long as `import torch` takes.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _TRIAL], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"a trial of it did not end within {_PATIENCE:.0f} seconds"
    if ended.returncode == 0:
        return None
    if ended.returncode < 0:
        died = signal.Signals(-ended.returncode)
        why = ": the processor announces instructions that it does not carry out" if died == signal.SIGILL else ""
        return f"a trial of it died of {died.name}{why}"
    last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"a trial of it failed: {last[:200]}"
