"""Whether this CPU can really compute in bfloat16: some announce instructions that they cannot run."""

from __future__ import annotations

from functools import cache

from vitlab.io.trial import trouble_with

_TIMEOUT = 120.0  # seconds; nearly all of it is the import of torch on a busy machine
# A forward and a backward pass through the operations of a model: matrix product, attention, convolution.
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
    """Why the CPU cannot compute in bfloat16, or None if it can.

    Tries it once in a child process, which takes about as long as `import torch`.
    """
    return trouble_with(_TRIAL, patience=_TIMEOUT)
