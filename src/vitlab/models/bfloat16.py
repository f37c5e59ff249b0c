"""Whether products in bfloat16 can be made on this processor, which says so itself and is not always right."""

from __future__ import annotations

from functools import cache

from vitlab.io.trial import trouble_with

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
    return trouble_with(_TRIAL, patience=_PATIENCE)
