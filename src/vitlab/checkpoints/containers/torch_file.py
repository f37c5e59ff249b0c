"""Tensors out of a torch file (.pt, .pth, .bin), which is a pickle: a program that makes Python objects when it is run.

Nobody runs it here. Its opcodes are read with pickletools and interpreted on plain values; a function that the pickle names is
never called. What `torch.save` writes for a tensor becomes a description (storage, offset, size, strides), which is checked
against the bytes of the file before any memory is taken. Everything that a state dict does not need is refused by name.
"""

from __future__ import annotations

import math
import pickletools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from itertools import count
from pathlib import Path
from typing import TypeGuard

import torch

from vitlab.errors import CheckpointError, DataError
from vitlab.io.atomic import replacing
from vitlab.io.display import printable
from vitlab.io.files import size_of
from vitlab.io.zip import STORED, ZipContents, ZipIndex

MAX_PICKLE = 1 << 19  # bytes; the largest model with its optimiser has a third of that
MAX_OPCODES = 200_000  # the largest model with its optimiser has a quarter of that
MAX_TENSORS = 10_000  # the largest model has a fifth of that
MAX_AXES = 16
MAX_COPIES = 4  # bytes of tensors over bytes of the file: tied weights reach 2
ALLOWANCE = 16 << 20  # bytes of tensors that any file may hold
MAX_RATIO = 20  # bytes unpacked over bytes packed, of any zip of weights
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of a file from before torch 1.6
_SAFE_WAY = (
    "where it came from, run safetensors.torch.save_file(model.state_dict(), 'model.safetensors'); "
    "then load that, or `vitlab convert` it"
)
# What training code calls the weights, in a file that holds more than them: timm, MAE, BEiT; DINO's authors evaluate the teacher;
# DeepSpeed (EVA) says module.
_CHOSEN = ("model", "state_dict", "teacher", "module")
_CHUNK = 1 << 22
_MOST_ARGUMENTS = 8  # of a function that rebuilds a tensor

_STORAGES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "UntypedStorage": torch.uint8,
}
_DTYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_PLAIN = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_SUBCLASS = "torch._tensor._rebuild_from_type_v2"  # a tensor with attributes
_ODD_TENSORS = (
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_wrapper_subclass",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
)
_ORDERED, _COUNTER = "collections.OrderedDict", "collections.Counter"
# Values beside the weights: the options of a training script, its paths and its metrics. They are named here, and never made.
_VALUES = (
    *("torch.Size", "torch.device", "torch.serialization._get_layout", "_codecs.encode", "builtins.set", "builtins.complex"),
    *("argparse.Namespace", "pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib._local.PosixPath"),
    *("numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
)
_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_KNOWN = {*_DTYPES, *_PLAIN, *_PARAMETERS, _SUBCLASS, *_ODD_TENSORS, _ORDERED, _COUNTER, *_VALUES, *_CLASSES}

Tensors = dict[str, torch.Tensor]


def check_torch_zip(index: ZipIndex) -> None:
    """Refuse a zip that `torch.save` did not write as a state dict: TorchScript, an exported program, packed members."""
    names = list(index.names)
    if any(name.endswith("/constants.pkl") for name in names):
        raise CheckpointError(f"{index.path} is a TorchScript program, not weights: it is not opened", hint=_SAFE_WAY)
    for name, method in zip(names, index.methods.tolist(), strict=True):
        if method != STORED:
            raise damaged(index.disk_path, f"member {name[:60]!r} is compressed, which torch never does")


def is_torch_zip(index: ZipIndex) -> bool:
    """Whether the archive is laid out as `torch.save` does: one folder with a data.pkl."""
    return sum(name.count("/") == 1 and name.endswith("/data.pkl") for name in index.names) == 1


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for an archive of weights that is damaged or hostile."""
    return CheckpointError(f"{path} is a damaged or hostile archive: {why}", hint="download the file again")


# What a pickle describes. Only dicts, lists, tuples and plain values beside these are ever made.


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that the pickle names, for example `torch._utils._rebuild_tensor_v2`."""

    path: str


@dataclass(frozen=True, slots=True)
class _Unmade:
    """A value that the pickle would make by calling something, and that no state dict needs."""

    maker: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """`count` numbers of `dtype` from number `first` on of the storage `key`, which has `whole` numbers."""

    key: str
    dtype: torch.dtype
    whole: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as a part of a storage; offset and strides count numbers of `dtype`."""

    storage: _Storage
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.size) * self.dtype.itemsize


class _RefusedError(Exception):
    """Why a pickle is not read."""


class _NotWeightsError(_RefusedError):
    """A pickle that names something that no state dict needs."""


def _interpreted(pickled: BytesIO, storages: dict[str, _Storage], numbers: Iterator[int]) -> object:
    """What the next pickle of the stream describes; the storages that it names are added to `storages`.

    `numbers` counts the opcodes. No opcode copies more than it has put on the stack itself, so that time and memory are bounded by
    the length of the pickle.
    """
    stack: list[object] = []
    marks: list[int] = []
    memo: dict[int, object] = {}

    def popped() -> list[object]:
        """The values above the last mark."""
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, argument, _ in pickletools.genops(pickled):
        if next(numbers) > MAX_OPCODES:
            raise _RefusedError(f"its pickle has more than {MAX_OPCODES:,} opcodes")
        match opcode.name:
            case "BINPUT" | "LONG_BINPUT":
                assert isinstance(argument, int)
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                assert isinstance(argument, int)
                stack.append(memo[argument])
            case "BINUNICODE" | "SHORT_BINSTRING" | "BININT" | "BININT1" | "BININT2" | "BINFLOAT" | "LONG1":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(popped()))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                length = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}[opcode.name]
                stack.append(tuple(stack.pop() for _ in range(length))[::-1])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_SET":
                stack.append(_Unmade("builtins.set"))
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, value])
            case "SETITEMS":
                items = popped()
                _set_items(stack[-1], items)
            case "APPEND":
                item = stack.pop()
                _extend(stack[-1], [item])
            case "APPENDS":
                items = popped()
                _extend(stack[-1], items)
            case "GLOBAL":
                stack.append(_named(str(argument)))
            case "REDUCE" | "NEWOBJ":
                arguments, maker = stack.pop(), stack.pop()
                stack.append(_made(maker, arguments))
            case "BUILD":
                stack.pop()  # attributes: a state dict's _metadata
                if not isinstance(stack[-1], dict | _Unmade):
                    raise _RefusedError("it sets attributes of a tensor")
            case "BINPERSID":
                storage = _stored(stack.pop())
                known = storages.setdefault(storage.key, storage)
                if (known.dtype, known.whole) != (storage.dtype, storage.whole):
                    raise _RefusedError(f"the storage {storage.key[:20]!r} is described twice, and not alike")
                stack.append(storage)
            case "STOP":
                return stack.pop()
            case "PROTO":
                pass
            case _:
                raise _RefusedError(f"it uses the opcode {opcode.name}, which torch.save does not write")
    raise _RefusedError("its pickle has no end")


def _set_items(target: object, items: list[object]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise _RefusedError("it sets items of what is no dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not (key is None or isinstance(key, str | int | float)):  # to hash a nested tuple may take forever
            raise _RefusedError(f"a key of a dict is a {_kind(key)}")
        target[key] = value


def _extend(target: object, items: list[object]) -> None:
    if isinstance(target, _Unmade):
        return
    if not isinstance(target, list):
        raise _RefusedError("it appends to what is no list")
    target.extend(items)


def _named(argument: str) -> _Name:
    module, _, name = argument.partition(" ")
    path = f"{'builtins' if module == '__builtin__' else module}.{name}"
    storage = module in ("torch", "torch.cuda", "torch.storage") and name in _STORAGES
    if path not in _KNOWN and not storage:
        raise _NotWeightsError(printable(path[:80]))
    return _Name(path)


def _made(maker: object, arguments: object) -> object:
    """What a call stands for, without calling."""
    if not isinstance(maker, _Name) or not isinstance(arguments, tuple):
        raise _RefusedError("it calls what is no function")
    path = maker.path
    if path in _PLAIN and len(arguments) <= _MOST_ARGUMENTS:
        return _tensor(arguments, arguments[6] if path.endswith("v3") else None, arguments[7 if path.endswith("v3") else 6 :])
    if path in _PARAMETERS:
        return arguments[0]
    if path == _SUBCLASS:
        function, kind, inner, _ = arguments
        whole = isinstance(kind, _Name) and kind.path in _CLASSES
        if not whole or not isinstance(function, _Name) or function.path not in (*_PLAIN, *_PARAMETERS):
            return _Unmade(path)
        return _made(function, inner)
    if path == _ORDERED:
        return _ordered(*arguments)
    if path == _COUNTER and arguments and isinstance(arguments[0], dict):
        return arguments[0]
    if path in _ODD_TENSORS or path in _VALUES:
        return _Unmade(path)
    raise _RefusedError(f"it calls {path}")


def _ordered(pairs: object = ()) -> dict[object, object]:
    """The dict of an OrderedDict, which Python 2 makes of a list of pairs."""
    found: dict[object, object] = {}
    if pairs == ():
        return found
    if not isinstance(pairs, list):
        raise _RefusedError("it makes a dict of what is no list")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _RefusedError("it makes a dict of what are no pairs")
        _set_items(found, [*pair])
    pairs.clear()  # one list cannot become many dicts
    return found


def _tensor(arguments: tuple[object, ...], dtype: object, metadata: tuple[object, ...]) -> _Tensor | _Unmade:
    storage, offset, size, stride = arguments[:4]
    if not isinstance(storage, _Storage):
        raise _RefusedError("a tensor has no storage")
    if any(metadata):  # conjugated or negated on access
        return _Unmade("torch._utils._rebuild_tensor_v2")
    if dtype is not None and not (isinstance(dtype, _Name) and dtype.path in _DTYPES):
        raise _RefusedError("a tensor has an unknown type")
    kind, width = storage.dtype if dtype is None else _DTYPES[dtype.path], storage.dtype.itemsize
    if not _is_count(offset) or not _are_counts(size) or not _are_counts(stride) or len(size) != len(stride):
        raise _RefusedError("a tensor has an impossible size or place")
    if any(number * width % kind.itemsize for number in (storage.whole, storage.first)):
        raise _RefusedError("a tensor's type does not fit its storage")
    count, numbers = storage.count * width // kind.itemsize, math.prod(size)
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    if numbers and (last >= count or numbers > count):
        raise _RefusedError(f"a tensor of size {list(size)} claims more than the {count:,} numbers of its storage")
    return _Tensor(storage, kind, offset, size, stride)


def _stored(given: object) -> _Storage:
    """The storage of a persistent id: ('storage', type, key, device, count), in an old file with a view of it."""
    match given:
        case ("storage", _Name(path), str(key), str(), int(count), *rest) if (name := path.rpartition(".")[2]) in _STORAGES:
            if not _is_count(count) or len(rest) > 1:
                raise _RefusedError("a storage has an impossible size")
            match rest:
                case [] | [None]:
                    return _Storage(key, _STORAGES[name], count, 0, count)
                case [(str(), int(first), int(part))] if _is_count(first) and _is_count(part) and first + part <= count:
                    return _Storage(key, _STORAGES[name], count, first, part)
    raise _RefusedError("a storage is not described as torch.save does")


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 48


def _are_counts(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and len(value) <= MAX_AXES and all(map(_is_count, value))


def _kind(value: object) -> str:
    """What a value is called in messages."""
    return value.maker if isinstance(value, _Unmade) else type(value).__name__.removeprefix("_")


# From a description to tensors.


def read_torch_zip(index: ZipIndex, *, values: bool = True) -> tuple[Tensors, tuple[str, ...]]:
    """The state dict in a checked archive of `torch.save`, and notes of what was chosen.

    The checksums of the pickle and of the tensors that are taken are verified: 0.11 s of the 0.36 s of CPU time in which the
    346 MB of ViT-B are read. Without `values`, the tensors come on the meta device and only the pickle is read.
    """
    path, checksums = index.disk_path, bool(index.checksums.any())
    contents = ZipContents(index, verify=checksums)
    rows = {name: row for row, name in enumerate(index.names)}
    (pickled,) = (name for name in rows if name.count("/") == 1 and name.endswith("/data.pkl"))
    folder = pickled.removesuffix("data.pkl")
    if (size := int(index.sizes[rows[pickled]])) > MAX_PICKLE:
        raise damaged(path, f"its pickle has {size:,} bytes, more than the {MAX_PICKLE:,} allowed")
    storages: dict[str, _Storage] = {}
    try:
        (content,) = _understood(BytesIO(contents.read(rows[pickled])), path, storages, pickles=1)
        tensors, notes = _state(content, path)
        notes += () if checksums else ("the file was saved without checksums: damage to it is not noticed",)
        _check_extent(tensors, path.stat().st_size, path)
        for storage in {tensor.storage.key: tensor.storage for tensor in tensors.values()}.values():
            row, needed = rows.get(f"{folder}data/{storage.key}"), storage.whole * storage.dtype.itemsize
            if row is None or int(index.sizes[row]) != needed:
                raise damaged(path, f"the storage {storage.key[:20]!r} of {needed:,} bytes is missing or has another size")
        if not values:
            return _shapes(tensors), notes
        swapped = f"{folder}byteorder" in rows and contents.read(rows[f"{folder}byteorder"]) != sys.byteorder.encode()

        def read(storage: _Storage) -> torch.Tensor:
            flat = _memory(storage, path)
            filled = 0
            for chunk in contents.stream(rows[f"{folder}data/{storage.key}"], chunk=_CHUNK):
                flat.numpy()[filled : filled + len(chunk)] = memoryview(chunk)
                filled += len(chunk)
            if swapped:
                width = storage.dtype.itemsize // (2 if storage.dtype.is_complex else 1)
                flat.numpy().view(f"u{width}").byteswap(inplace=True)
            return flat

        return _loaded(tensors, read), notes
    except DataError as error:
        raise CheckpointError(error.message, hint=error.hint or "download the file again") from error


def read_torch_legacy(file: BufferedReader, path: Path, *, values: bool = True) -> tuple[Tensors, tuple[str, ...]]:
    """The same of an open file from before torch 1.6: five pickles, then the storages one after another. It has no checksums."""
    file.seek(0)
    stream, storages = BytesIO(file.read(2 * MAX_PICKLE)), dict[str, _Storage]()
    magic, protocol, _, content, keys = _understood(stream, path, storages, pickles=5)
    if magic != _MAGIC or protocol != _PROTOCOL or not isinstance(keys, list):
        raise damaged(path, "it does not begin as the files of torch do")
    places, place, size = dict[str, int](), stream.tell(), size_of(file)
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        file.seek(place)
        if storage is None or int.from_bytes(file.read(8), "little", signed=True) != storage.whole:
            shown = (
                repr(key[:20]) if isinstance(key, str) else f"called by a {type(key).__name__}"
            )  # a nested one has no short repr
            raise damaged(path, f"the storage {shown} is unknown or has another size")
        places[storage.key] = place + 8
        place += 8 + storage.whole * storage.dtype.itemsize
        if place > size:
            raise damaged(path, f"it was cut short: its tensors need {place:,} bytes and {size:,} are there")
    tensors, notes = _state(content, path)
    _check_extent(tensors, size, path)
    if any(tensor.storage.key not in places for tensor in tensors.values()):
        raise damaged(path, "a storage is missing")
    if not values:
        return _shapes(tensors), notes

    def read(storage: _Storage) -> torch.Tensor:
        flat = _memory(storage, path)
        file.seek(places[storage.key])
        if file.readinto(flat.numpy().data) != flat.numel():
            raise damaged(path, "it was cut short while it was read")
        return flat

    return _loaded(tensors, read), notes


def _understood(stream: BytesIO, path: Path, storages: dict[str, _Storage], *, pickles: int) -> tuple[object, ...]:
    """What the next pickles describe."""
    numbers = count()
    try:
        return tuple(_interpreted(stream, storages, numbers) for _ in range(pickles))
    except _NotWeightsError as error:
        raise CheckpointError(
            f"{path} is a pickle that asks for {error}, which is not weights: it is not opened", hint=_SAFE_WAY
        ) from error
    except (_RefusedError, ValueError, TypeError, LookupError) as error:  # the last three: opcodes that do not fit together
        words = str(error) if isinstance(error, _RefusedError) else f"its opcodes do not fit together ({str(error)[:100]})"
        raise CheckpointError(f"{path} is a torch file that vitlab refuses: {words}", hint=_SAFE_WAY) from error


Described = dict[str, _Tensor]


def _state(content: object, path: Path) -> tuple[Described, tuple[str, ...]]:
    """The one state dict in what was saved; two that could both be meant are refused."""
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {_kind(content)}, not named tensors", hint=_SAFE_WAY)
    dicts = {id(value): value for value in content.values() if isinstance(value, dict)}  # the same one may be there many times
    states = {place for place, value in dicts.items() if _is_state(value)}
    inner = {str(key): value for key, value in content.items() if id(value) in states}
    if not inner:
        tensors = {key: value for key, value in content.items() if isinstance(key, str) and _is_tensor(value)}
        if not tensors:
            raise CheckpointError(f"{path} holds no named tensors", hint=_SAFE_WAY)
        return _all_plain(tensors, path), _left_aside(content, set(tensors))
    wanted = [key for key in _CHOSEN if key in inner] or list(inner)
    if len(wanted) > 1:
        raise CheckpointError(
            f"{path} holds several sets of weights ({', '.join(key[:40] for key in wanted[:8])}): which one is meant?",
            hint="save the one you want alone, with safetensors.torch.save_file(weights, 'model.safetensors')",
        )
    (key,) = wanted
    return _all_plain(inner[key], path), (f"took the weights under {key[:40]!r}", *_left_aside(content, {key}))


def _is_tensor(value: object) -> bool:
    return isinstance(value, _Tensor) or (isinstance(value, _Unmade) and value.maker in (*_PLAIN, *_ODD_TENSORS, _SUBCLASS))


def _is_state(value: dict[object, object]) -> bool:
    """Whether the dict is a state dict: named tensors and nothing else."""
    return bool(value) and all(isinstance(key, str) and _is_tensor(item) for key, item in value.items())


def _all_plain(tensors: dict[str, object], path: Path) -> Described:
    odd = next((name for name, tensor in tensors.items() if not isinstance(tensor, _Tensor)), None)
    if odd is not None:
        raise CheckpointError(f"{path}: {odd[:60]!r} is not a plain tensor", hint=_SAFE_WAY)
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, _Tensor)}


def _left_aside(content: dict[object, object], taken: set[str]) -> tuple[str, ...]:
    rest = [str(key)[:40] for key in content if key not in taken]
    return (f"ignored in the file: {', '.join(rest[:8])}{', ...' if len(rest) > 8 else ''}",) if rest else ()


def _check_extent(tensors: Described, size: int, path: Path) -> None:
    """Refuse too many tensors, and those that share few bytes, before they get memory of their own."""
    if len(tensors) > MAX_TENSORS:
        raise damaged(path, f"it holds {len(tensors):,} tensors, more than the {MAX_TENSORS:,} allowed")
    if sum(tensor.nbytes for tensor in tensors.values()) > MAX_COPIES * size + ALLOWANCE:
        raise damaged(path, f"its tensors claim far more than the {size:,} bytes of the file")


def _shapes(tensors: Described) -> Tensors:
    return {name: torch.empty(tensor.size, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()}


def _memory(storage: _Storage, path: Path) -> torch.Tensor:
    needed = storage.whole * storage.dtype.itemsize
    try:
        return torch.empty(needed, dtype=torch.uint8)
    except RuntimeError as error:  # torch's word for out of memory
        raise CheckpointError(f"{path}: no memory for a tensor of {needed:,} bytes") from error


def _loaded(tensors: Described, read: Callable[[_Storage], torch.Tensor]) -> Tensors:
    """Contiguous tensors with memory of their own; each storage is read once."""
    memory: dict[str, torch.Tensor] = {}
    loaded: Tensors = {}
    for name, tensor in tensors.items():
        storage = tensor.storage
        first = storage.key not in memory
        flat = memory.setdefault(storage.key, read(storage)) if first else memory[storage.key]
        start = storage.first * storage.dtype.itemsize // tensor.dtype.itemsize
        view = flat.view(tensor.dtype).as_strided(tensor.size, tensor.stride, start + tensor.offset)
        whole = first and view.is_contiguous() and view.nbytes == flat.nbytes
        loaded[name] = view if whole else view.clone(memory_format=torch.contiguous_format)
    return loaded


# The other direction: `torch.save` calls nothing that comes from a file.


def write_torch(
    path: Path, tensors: Mapping[str, torch.Tensor], *, under: str = "", check: Callable[[Path], None] | None = None
) -> None:
    """Write the tensors as `torch.save` does, atomically: as the whole content, or as a dict under that key of another one."""
    state = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    with replacing(path, needed=sum(tensor.nbytes + 512 for tensor in state.values())) as file:
        try:
            torch.save({under: state} if under else state, file)
        except RuntimeError as fault:  # torch's writer, where the file cannot grow
            raise CheckpointError(f"cannot write {path}: {fault}", hint="is the disk full?") from fault
        if check is not None:
            file.flush()
            check(Path(file.name))
