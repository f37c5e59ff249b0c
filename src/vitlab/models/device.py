"""Which device a model runs on (`auto` takes the GPU if there is one), and whether this CPU can compute in bfloat16."""

from __future__ import annotations

from functools import cache

import torch

from vitlab.errors import ConfigError
from vitlab.io.machine import trouble_with

_HINT = "use auto, cpu, cuda, cuda:1 or mps"
_ELSE = "`device=auto` takes a GPU if there is one, else the CPU"
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


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """The device called `name`; `auto` is CUDA if there is one, else Apple's MPS, else the CPU; `gpu` means `cuda`."""
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device("cuda" if name == "gpu" else name)
    except RuntimeError:
        raise ConfigError(f"no device called {name!r}", hint=_HINT) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"`device={name}`, but PyTorch finds no CUDA GPU on this machine", hint=_ELSE)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"`device={name}`, but this machine has {torch.cuda.device_count()} CUDA GPUs", hint=_HINT)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("`device=mps`, but PyTorch finds no Apple GPU on this machine", hint=_ELSE)
    return device


def announces_amx() -> bool:
    """Whether the CPU announces AMX, which some virtual machines do without having it."""
    return bool(torch.cpu._is_amx_tile_supported())


def has_fast_bfloat16() -> bool:
    """Whether the CPU has instructions for matrix products in bfloat16, so that training with them is about twice as fast."""
    return bool(torch.cpu._is_avx512_bf16_supported()) and not (announces_amx() and bfloat16_trouble())


@cache
def bfloat16_trouble() -> str | None:
    """Why the CPU cannot compute in bfloat16, or None if it can: some CPUs announce instructions that they cannot run.

    Tries it once in a child process, which takes about as long as `import torch`.
    """
    return trouble_with(_TRIAL, patience=_TIMEOUT)
