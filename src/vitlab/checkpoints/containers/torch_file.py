"""Tensors out of a torch file (.pt, .pth, .bin), which is a pickle: opened by torch's weights-only reader, never by Python's.

There is no other way in: what the weights-only reader refuses stays closed, and the message says what to do instead.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

import torch

from vitlab.errors import CheckpointError
from vitlab.io.files import size_of
from vitlab.io.zip import STORED, ZipIndex

MAX_PICKLE = 1 << 19  # bytes; the largest model with its optimiser has a third of that
MAX_READS = 1 << 19  # calls of the old format's reader, one or two for each word of the pickle
MAX_RATIO = 20  # bytes of tensors over bytes of the file: trained weights reach 1.1
ALLOWANCE = 16 << 20  # bytes of tensors that any file may hold, for small files of zeros
_SAFE_WAY = (
    "where it came from, run safetensors.torch.save_file(model.state_dict(), 'model.safetensors'); "
    "then load that, or `vitlab convert` it"
)
_CHOSEN = ("model", "state_dict")  # what training code calls the weights, in a file that holds more than them

# A hostile pickle can make the reader stumble in any of these ways; each means the same: not opened.
_STUMBLES = (
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    OSError,
    struct.error,
)

Tensors = dict[str, torch.Tensor]


def check_torch_zip(index: ZipIndex) -> None:
    """Refuse a zip that `torch.save` did not write as a state dict: TorchScript, an exported program, packed members."""
    names = list(index.names)
    if any(name.endswith("/constants.pkl") for name in names):
        raise CheckpointError(f"{index.path} is a TorchScript program, not weights: it is not opened", hint=_SAFE_WAY)
    for name, method, size in zip(names, index.methods.tolist(), index.sizes.tolist(), strict=True):
        if method != STORED:
            raise damaged(index.path, f"member {name[:60]!r} is compressed, which torch never does")
        if name.endswith("/data.pkl") and size > MAX_PICKLE:
            raise damaged(index.path, f"its pickle has {size:,} bytes, more than the {MAX_PICKLE:,} allowed")


def is_torch_zip(index: ZipIndex) -> bool:
    """Whether the archive is laid out as `torch.save` does: one folder with a data.pkl."""
    return sum(name.count("/") == 1 and name.endswith("/data.pkl") for name in index.names) == 1


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for an archive of weights that is damaged or hostile."""
    return CheckpointError(f"{path} is a damaged or hostile archive: {why}", hint="download the file again")


class _Counted:
    """An open file that gives up after so many reads: in the old format nothing says beforehand how long the pickle is."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._left = MAX_READS

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"its pickle goes on for more than {MAX_READS:,} words")

    def read(self, size: int = -1) -> bytes:
        self._count()
        return self._file.read(size)

    def readline(self, size: int = -1) -> bytes:
        self._count()
        return self._file.readline(size)

    def readinto(self, target: memoryview) -> int:
        self._count()
        return self._file.readinto(target)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()


def read_torch(file: BufferedReader, path: Path, *, values: bool = True) -> tuple[Tensors, tuple[str, ...]]:
    """The state dict in an open file, zip or from before torch 1.6, and notes of what was chosen.

    Without `values`, the tensors come on the meta device.
    """
    file.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's words about old protocols; what matters is raised
            # The open file and not its path: torch would choose another reader for a path that ends in .safetensors.
            content = torch.load(cast(IO[bytes], _Counted(file)), map_location="cpu", weights_only=True)
    except _STUMBLES as error:
        raise _refused(path, error) from error
    tensors, notes = _state(content, path)
    return _own_memory(tensors, size_of(file), path, values), notes


def _state(content: object, path: Path) -> tuple[Tensors, tuple[str, ...]]:
    """The one state dict in what was saved; two that could both be meant are refused."""
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not named tensors", hint=_SAFE_WAY)
    inner = {str(key): found for key, value in content.items() if (found := _named_tensors(value))}
    if not inner:
        tensors = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, torch.Tensor)}
        if not tensors:
            raise CheckpointError(f"{path} holds no named tensors", hint=_SAFE_WAY)
        return tensors, _left_aside(content, set(tensors))
    wanted = [key for key in _CHOSEN if key in inner] or list(inner)
    if len(wanted) > 1:
        raise CheckpointError(
            f"{path} holds several sets of weights ({', '.join(wanted[:8])}): which one is meant?",
            hint="save the one you want alone, with safetensors.torch.save_file(weights, 'model.safetensors')",
        )
    (key,) = wanted
    return inner[key], (f"took the weights under {key!r}", *_left_aside(content, {key}))


def _named_tensors(value: object) -> Tensors:
    """The mapping as a state dict, or an empty one if it is something else."""
    if not isinstance(value, Mapping) or not value:
        return {}
    tensors = {key: item for key, item in value.items() if isinstance(key, str) and isinstance(item, torch.Tensor)}
    return tensors if len(tensors) == len(value) else {}


def _left_aside(content: Mapping[object, object], taken: set[str]) -> tuple[str, ...]:
    rest = [str(key)[:40] for key in content if key not in taken]
    return (f"left aside in the file: {', '.join(rest[:8])}{', ...' if len(rest) > 8 else ''}",) if rest else ()


def _own_memory(tensors: Tensors, size: int, path: Path, values: bool) -> Tensors:
    """Contiguous copies on the CPU, or shapes; a view that repeats few bytes to look like many is refused first."""
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise CheckpointError(f"{path}: {name[:60]!r} is not a plain tensor", hint=_SAFE_WAY)
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > MAX_RATIO * size + ALLOWANCE:
        raise damaged(path, f"its tensors claim far more than the {size:,} bytes of the file")
    if not values:
        return {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()}
    owned: set[int] = set()
    return {name: _alone(tensor.detach(), owned) for name, tensor in tensors.items()}


def _alone(tensor: torch.Tensor, owned: set[int]) -> torch.Tensor:
    """The tensor itself if it is all of its memory and the first to have it, else a copy."""
    memory = tensor.untyped_storage()
    if tensor.is_contiguous() and memory.nbytes() == tensor.nbytes and memory.data_ptr() not in owned:
        owned.add(memory.data_ptr())
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _refused(path: Path, error: BaseException) -> CheckpointError:
    """What torch said, in one sentence; a pickle that wanted to call something is named by what it wanted to call."""
    wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
    if wanted is not None:
        return CheckpointError(
            f"{path} is a pickle that asks for {wanted[1]}, which is not weights: it is not opened", hint=_SAFE_WAY
        )
    # Only the reader's own words: around them torch advises to switch its protection off.
    found = re.search(r"WeightsUnpickler error: *(.+)", str(error))
    words = found[1] if found else (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointError(f"{path} is a torch file that the weights-only reader refuses: {words[:160]}", hint=_SAFE_WAY)
