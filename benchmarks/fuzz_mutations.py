"""The inputs of `fuzz.py`: the sound files of `fuzz_seeds.py`, broken.

Input `number` of a seed is always the same: `Corpus.input(seed, number)`. A mutation keeps what a reader checks first (checksums,
lengths, magic numbers) as often as it breaks it, so that the code behind the first check is reached too.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import random
import struct
import tarfile
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fuzz_seeds import (
    GROUPS,
    Group,
    Input,
    Seed,
    archives,
    boxes,
    checkpoints,
    images,
    manifests,
    masks,
    parquet_bytes,
    runs,
    scientific,
    zipped,
)

Random = random.Random
Mutation = Callable[[bytes, Random], bytes]

_LARGEST = 8 << 20  # bytes of an input
MARK = "executed-by-an-input"  # the file that a payload would create, beside the inputs' own folder


class Corpus:
    """The sound inputs of some groups. `input` breaks one of them."""

    def __init__(self, groups: Sequence[Group] = GROUPS) -> None:
        makers: dict[Group, Callable[[], list[Seed]]] = {
            "checkpoint": checkpoints,
            "image": images,
            "manifest": manifests,
            "archive": archives,
            "run": runs,
            "scientific": scientific,
            "masks": masks,
            "boxes": boxes,
        }
        self.seeds = {group: _made_in_a_fork(makers[group]) for group in groups}
        self._pool = [data for seeds in self.seeds.values() for seed in seeds for data in seed.sound.files.values()]

    def sound(self) -> list[Input]:
        """Every sound input."""
        return [seed.sound for seeds in self.seeds.values() for seed in seeds]

    def input(self, seed: int, number: int) -> Input:
        """Input `number` of this seed; the groups take turns."""
        rng = Random(f"{seed}/{number}")
        groups = list(self.seeds)
        chosen = rng.choice(self.seeds[groups[number % len(groups)]])
        name = rng.choice(chosen.broken)
        data = chosen.sound.files[name]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = self._mutated(name, data, rng)[:_LARGEST]
        return replace(chosen.sound, files={**chosen.sound.files, name: data})

    def _mutated(self, name: str, data: bytes, rng: Random) -> bytes:
        structural = _structural(name, data)
        if structural is not None and rng.random() < 0.65:
            try:
                return structural(data, rng)
            except Exception:  # noqa: BLE001 - an earlier mutation broke the structure: bytes are changed instead
                return rng.choice(_BYTE_MUTATIONS)(data, rng)
        if rng.random() < 0.1:
            other = rng.choice(self._pool)
            cut, at = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
            return data[:cut] + other[at : at + 4096]
        return rng.choice(_BYTE_MUTATIONS)(data, rng)


def _made_in_a_fork(make: Callable[[], list[Seed]]) -> list[Seed]:
    """The seeds, made by a process of their own: training starts threads, and a process with threads must not fork."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "seeds")
        child = os.fork()
        if child == 0:
            try:
                path.write_text(json.dumps([(seed.sound.to_text(), seed.broken) for seed in make()]))
                os._exit(0)
            except BaseException:  # noqa: BLE001 - as the interpreter does at the top
                traceback.print_exc()
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("the sound inputs could not be made")
        return [Seed(sound=Input.from_text(text), broken=tuple(broken)) for text, broken in json.loads(path.read_text())]


# --- bytes --------------------------------------------------------------------------------------------------------------------

# fmt: off
_EDGES = (
    0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1,
)
# fmt: on


def flip_bits(data: bytes, rng: Random) -> bytes:
    made = bytearray(data)
    for _ in range(min(len(made), rng.choice((1, 1, 2, 8, 64)))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def truncate(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def extend(data: bytes, rng: Random) -> bytes:
    return data + rng.choice((b"\0" * 1000, rng.randbytes(rng.randrange(2000)), data, data[-64:] * 50))


def cut_out(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 4, 16, 200)) :]


def repeat(data: bytes, rng: Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 30, 200))
    return data[:at] + data[at : at + length] * rng.choice((2, 3, 100)) + data[at + length :]


def overwrite(data: bytes, rng: Random) -> bytes:
    """A number at any place becomes one at the edge of what fits."""
    size = rng.choice((1, 2, 4, 8))
    value = (rng.choice(_EDGES) & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))
    at = rng.randrange(max(1, len(data) - size + 1)) if rng.random() < 0.6 else rng.randrange(min(64, len(data)) or 1)
    return data[:at] + value + data[at + size :]


def noise(data: bytes, rng: Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 3, 16, 100))
    return data[:at] + rng.randbytes(length) + data[at + length :]


_BYTE_MUTATIONS: tuple[Mutation, ...] = (flip_bits, flip_bits, truncate, extend, cut_out, repeat, overwrite, overwrite, noise)


def _structural(name: str, data: bytes) -> Mutation | None:
    """The mutation that knows this format."""
    ending = name.rsplit(".", 1)[-1].lower()
    if ending == "safetensors":
        return break_safetensors
    if data[:4] == b"PK\3\4":
        return break_zip
    if ending in ("pt", "pth", "bin", "pkl"):
        return break_pickle
    if ending == "json":
        return break_json
    if ending == "jsonl":
        return break_json_lines
    if ending in ("csv", "tsv", "txt"):
        return break_text
    if ending == "tar":
        return break_tar
    if ending == "npy":
        return break_npy
    if ending == "dcm":
        return break_dicom
    if "tfrecord" in name:
        return break_tfrecord
    if ending == "parquet":
        return break_parquet
    starts: dict[bytes, Mutation] = {
        b"\xff\xd8": break_jpeg, b"\x89P": break_png, b"RI": break_webp, b"GI": break_gif, b"BM": break_bmp, b"II": break_tiff,
    }  # fmt: skip
    return starts.get(data[:2])


# --- JSON and text ------------------------------------------------------------------------------------------------------------

_RAW = "@raw-%d@"  # stands for a text that json.dumps cannot write
# fmt: off
_RAW_TEXTS = (
    "[" * 100_000 + "]" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000, "1e999", "9" * 5000, "NaN", "-Infinity", "[1,",
    '{"a":1,"a":2}',
)
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 2**31, 2**53, 2**63, 10**9, 10**30, 0.5, 1e9, 1e308, -1e-300, "", "x", "x" * 10_000, "\0",
    "\ud800", "../../../etc/passwd", "/dev/zero", "=cmd|' /C calc'!A0", "\x1b[2J", "1", "float64", "F32", [], {}, [1, 2], [[]],
    {"a": 1}, [0] * 2000,
)
# fmt: on


def _json_value(rng: Random) -> Any:
    return _RAW % rng.randrange(len(_RAW_TEXTS)) if rng.random() < 0.15 else rng.choice(_VALUES)


def _json_text(value: Any) -> str:
    text = json.dumps(value)
    for number, raw in enumerate(_RAW_TEXTS):
        text = text.replace(f'"{_RAW % number}"', raw)
    return text


def change_json(value: Any, rng: Random) -> Any:
    """One node of a JSON value replaced, removed, renamed, doubled or wrapped."""
    nodes: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            nodes.append((node, key))
            if isinstance(node[key], dict | list):
                visit(node[key])

    value = json.loads(json.dumps(value))
    if not isinstance(value, dict | list):
        return _json_value(rng)
    visit(value)
    if not nodes or rng.random() < 0.05:
        return _json_value(rng)
    node, key = rng.choice(nodes)
    match rng.randrange(6):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[rng.choice(("", "x", "\0", "__class__", "a" * 300))] = node.pop(key)
        case 2:
            node[key] = [node[key]]
        case 3:
            other, place = rng.choice(nodes)
            node[key] = json.loads(json.dumps(other[place])) if not isinstance(other, dict) or place in other else None
        case _:
            node[key] = _json_value(rng)
    return value


def break_json(data: bytes, rng: Random) -> bytes:
    text = _json_text(change_json(json.loads(data), rng))
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1"))
    return text.encode(encoding, "replace")


def break_json_lines(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, rng.choice((b"", b"null", b"[]", b"7", b'"x"', b"{", b"\xff\xfe", b"{}")))
        case 2:
            lines[at] = flip_bits(lines[at], rng)
        case _:
            lines[at] = break_json(lines[at], rng)
    return rng.choice((b"\n", b"\n", b"\r\n", b"\r")).join(lines) + b"\n"


# fmt: off
_CELLS = (
    "", " ", "a,b", '"', '"x', "0", "-1", "1e9", "99999999999", "nan", "../../../etc/passwd", "/etc/passwd", "/dev/zero",
    "/dev/stdin", ".", "\0", "\x1b[31m", "\u202e", "caf\u00e9", "cafe\u0301", "=1+1", "http://127.0.0.1:9/x.jpg",
    "pipe:touch " + MARK, "x" * 200_000, "\r",
)
# fmt: on


def break_text(data: bytes, rng: Random) -> bytes:
    rows = [line.split(",") for line in data.decode("utf-8", "replace").splitlines()]
    row = rng.randrange(len(rows))
    match rng.randrange(7):
        case 0:
            del rows[row]
        case 1:
            rows.insert(row, rows[rng.randrange(len(rows))])
        case 2:
            rows[row] = rows[row][::-1]
        case 3:
            rows[row] *= rng.choice((2, 500)) if len(data) < 10_000 else 2
        case _:
            rows[row][rng.randrange(len(rows[row]))] = rng.choice(_CELLS)
    text = rng.choice(("\n", "\n", "\r\n", "\r")).join(",".join(cells) for cells in rows) + "\n"
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1")), "replace")


# --- weights ------------------------------------------------------------------------------------------------------------------


def break_safetensors(data: bytes, rng: Random) -> bytes:
    """A value of the header is changed, also inside the JSON texts of its metadata; its length is right most of the time."""
    (length,) = struct.unpack_from("<Q", data)
    header, tensors = json.loads(data[8 : 8 + length]), data[8 + length :]
    texts = [key for key, value in header.get("__metadata__", {}).items() if value[:1] in ("{", "[")]
    match rng.randrange(5):
        case 0 | 1 if texts:
            key = rng.choice(texts)
            header["__metadata__"][key] = _json_text(change_json(json.loads(header["__metadata__"][key]), rng))
        case 2:
            name = rng.choice([key for key in header if key != "__metadata__"])
            header[name] = change_json(header[name], rng)
        case 3:
            tensors = rng.choice(_BYTE_MUTATIONS)(tensors, rng)
        case _:
            header = change_json(header, rng)
    text = _json_text(header).encode("utf-8", "replace")
    claimed = len(text) if rng.random() < 0.85 else rng.choice(_EDGES) & 2**64 - 1
    return struct.pack("<Q", claimed) + text + tensors


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _number(value: int) -> bytes:
    raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def _word(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _call(function: bytes, *arguments: bytes) -> bytes:
    return function + _tuple(*arguments) + b"R"


def _storage(count: int, *, key: str = "0", kind: str = "FloatStorage") -> bytes:
    return _tuple(_word("storage"), _global("torch", kind), _word(key), _word("cpu"), _number(count)) + b"Q"


def _tensor(count: int, sizes: Sequence[int], strides: Sequence[int], *, offset: int = 0, kind: str = "FloatStorage") -> bytes:
    rebuild, empty = _global("torch._utils", "_rebuild_tensor_v2"), _call(_global("collections", "OrderedDict"))
    shape, steps = _tuple(*map(_number, sizes)), _tuple(*map(_number, strides))
    return _call(rebuild, _storage(count, kind=kind), _number(offset), shape, steps, b"\x89", empty)


def _snippets(rng: Random) -> list[bytes]:
    """What a hostile pickle may hold: calls, huge numbers, nesting, opcodes out of place."""
    large = rng.choice((1 << 20, 1 << 27, 1 << 30, 1 << 33, 1 << 40))
    touch = _word(f"touch {MARK}")
    code = _word(f"open({MARK!r}, 'w')")
    called = [_global(module, name) for module in ("builtins", "__builtin__") for name in ("eval", "exec", "compile", "__import__")]
    rebuild, places = partial(_global, "torch._utils"), _tensor(4, [1, 4], [4, 1])
    # fmt: off
    calls = [
        *(_call(_global(module, "system"), touch) for module in ("os", "posix", "nt")),
        *(_call(function, code) for function in called),
        _call(_global("subprocess", "Popen"), touch, _number(-1), b"N", b"N", b"N", b"N", b"N", b"\x88", b"\x88"),
        _call(_global("socket", "create_connection"), _tuple(_word("127.0.0.1"), _number(9))),
        _call(_global("torch.hub", "load_state_dict_from_url"), _word("http://127.0.0.1:9/x")),
        _call(_global("torch", "load"), _word("other.pt")),
        _call(_global("builtins", "open"), _word(MARK), _word("w")),
        _call(_global("builtins", "getattr"), _global("torch", "serialization"), _word("os")),
        _call(_global("operator", "attrgetter"), _word("system")),
        *(_call(_global("builtins", kind), _number(large)) for kind in ("bytearray", "list", "set", "range", "complex")),
        _call(_global("collections", "Counter"), _tuple(*[_number(1)] * 50)),
        _call(_global("torch", "Size"), _tuple(_number(large), _number(large))),
        _call(_global("torch", "Tensor"), _number(large)),
        _call(_global("torch", "device"), _word("cuda:99")),
        _call(_global("_codecs", "encode"), _word("x" * 1000), _word(rng.choice(("rot13", "zlib", "utf-32", "unicode_escape")))),
        _call(_global("numpy._core.multiarray", "_reconstruct"), _global("numpy", "ndarray"), _tuple(_number(large)), _word("b")),
        _call(rebuild("_rebuild_sparse_tensor"), _number(0), _tuple(places, _tensor(4, [4], [1]), _tuple(_number(large)))),
        _call(rebuild("_rebuild_meta_tensor_no_storage"), _number(0), _tuple(_number(large)), _tuple(_number(1)), b"\x89"),
        _call(rebuild("_rebuild_parameter"), _tensor(4, [2, 2], [2, 1]), b"\x88", b"N"),
        _call(_global("torch._tensor", "_rebuild_from_type_v2"), rebuild("_rebuild_tensor_v2"), _global("torch", "Tensor"), b")}"),
    ]
    opcodes = [
        b"(" * 20_000, b"]" * 20_000 + b"a" * 19_999, b"}" * 1000, b"2" * 1000, b"N0" * 50_000,
        b"N\x94" * 100_000,  # memo entries
        *(b"r" + struct.pack("<I", value) for value in (2**31, 2**32 - 1)),
        *(b"j" + struct.pack("<I", value) for value in (0, 5, 2**32 - 1)),
        *(b"\x8b" + struct.pack("<i", value) for value in (2**31 - 1, -1)),
        *(opcode + struct.pack("<Q", value) for opcode in (b"\x8d", b"\x8e", b"\x95", b"\x96") for value in (2**40, 2**63)),
        b"X" + struct.pack("<I", 2**31), b"B" + struct.pack("<I", 2**31), b"Pabc\n", b"Q", b"b", b"R", b"\x81", b"\x92",
        b"\x93", b"o", b"\x82\x01", b"\x84" + struct.pack("<i", 7), b"ios\nsystem\n", b"0", b"1", b"a", b"e", b"s", b"u", b"t",
        b"\x97", b"\x98",
        b"L" + b"9" * 10_000 + b"L\n", b"I" + b"9" * 10_000 + b"\n", b"F1e999\n", b"S'" + b"\\x41" * 100 + b"'\n", b"Vx\\ud800\n",
    ]
    # fmt: on
    return calls + opcodes


def _whole_pickles(rng: Random) -> list[bytes]:
    """State dicts that claim far more than the file holds."""
    side = rng.choice((1000, 10_000, 30_000, 10**6, 2**31, 2**62))
    kind = rng.choice(("FloatStorage", "HalfStorage", "BoolStorage", "ByteStorage", "BFloat16Storage", "DoubleStorage"))
    claims = [
        _tensor(64, [side, side], [0, 0], kind=kind),
        _tensor(side, [side], [1], kind=kind),
        _tensor(side * side, [8, 8], [8, 1], kind=kind),
        _tensor(64, [8, 8], [8, 1], offset=side, kind=kind),
        _tensor(64, [8, 8], [-8, -1], kind=kind),
        _tensor(64, [-1, 8], [8, 1], kind=kind),
        _tensor(64, [1] * 5000, [1] * 5000, kind=kind),
        _tensor(64, [0, side], [side, 1], kind=kind),
    ]
    body = rng.choice(claims + _snippets(rng))
    many = rng.choice((1, 1, 1, 30, 2000)) if len(body) < 2000 else 1
    named = b"".join(_word(f"{rng.choice(('head.weight', 'x', 'encoder'))}{number}") + body for number in range(many))
    return [b"\x80\x02}(" + named + b"u.", b"\x80\x02" + body + b".", b"\x80\x04" + body + b"0}."]


def change_pickle(data: bytes, rng: Random) -> bytes:
    """One opcode removed, doubled or replaced; a hostile piece put in; a number changed; or another pickle altogether."""
    if rng.random() < 0.25:
        return rng.choice(_whole_pickles(rng))
    found = [(opcode, argument, at) for opcode, argument, at in pickletools.genops(data) if at is not None]
    number = rng.randrange(len(found) - 1)
    start, end = found[number][2], found[number + 1][2]
    match rng.randrange(5):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:start] + data[start:end] * rng.choice((2, 50)) + data[end:]
        case 2:
            numbers = [
                index
                for index, (opcode, argument, _) in enumerate(found[:-1])
                if isinstance(argument, int) and "INT" in opcode.name
            ]
            if not numbers:
                return data[:start] + data[end:]
            at = rng.choice(numbers)
            return data[: found[at][2]] + _number(rng.choice((*_EDGES, -1, -5))) + data[found[at + 1][2] :]
        case 3:
            words = [index for index, (_, argument, _) in enumerate(found[:-1]) if isinstance(argument, str)]
            at = rng.choice(words or [number])
            word = rng.choice(("", "cpu", "meta", "cuda", "0", "../0", "torch FloatStorage", "os system", "x" * 5000))
            piece = _global("torch", "Tensor") if found[at][0].name == "GLOBAL" else _word(word)
            return data[: found[at][2]] + piece + data[found[at + 1][2] :]
        case _:
            return data[:start] + rng.choice(_snippets(rng)) + data[start:]


def break_pickle(data: bytes, rng: Random) -> bytes:
    """A torch file of before 1.6: five pickles one after the other, then the values."""
    starts, stream = [0], io.BytesIO(data)
    for _ in range(5):
        for opcode, _, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                starts.append(stream.tell())
    at = rng.randrange(len(starts) - 1)
    return data[: starts[at]] + change_pickle(data[starts[at] : starts[at + 1]], rng) + data[starts[at + 1] :]


def break_npy(data: bytes, rng: Random) -> bytes:
    """The header of a NumPy array says something else."""
    (length,) = struct.unpack_from("<H", data, 8)
    header = data[10 : 10 + length].decode("latin-1")
    descr = rng.choice(("|O", "<f4", "<f8", ">i8", "|S1000000", "<U9", "|V8", "<M8[ns]", "[('a', '<f4')]", "<f2", "|b1", "|u1"))
    big = rng.choice((0, 1, 10**6, 10**12, 2**62, 2**64))
    shape = rng.choice((f"({big},)", f"({big}, {big})", "()", "(-1,)", "(" + "1, " * 100 + ")", "7", "(1.5,)", "(True,)", "('a',)"))
    order = rng.choice(("False", "True", "1", "None"))
    made = rng.choice((
        f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}",
        header.replace("'shape': (", "'shape': (1, "),
        header.replace("False", "True"),
        "__import__('os').system('touch " + MARK + "')",
        "(" * 3000 + ")" * 3000,
        header[: rng.randrange(len(header))],
    ))  # fmt: skip
    raw = made.encode("latin-1", "replace") + b" " * 5 + b"\n"
    claimed = len(raw) if rng.random() < 0.9 else rng.choice((0, 1, 0xFFFF))
    return (
        data[:6]
        + rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x09"))
        + struct.pack("<H", claimed & 0xFFFF)
        + raw
        + data[10 + length :]
    )


# --- archives -----------------------------------------------------------------------------------------------------------------

# (offset, size) of the fields of a zip's records, by the record's signature
_ZIP_FIELDS: dict[bytes, tuple[tuple[int, int], ...]] = {
    b"PK\x03\x04": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\x01\x02": ((4, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2), (38, 4), (42, 4)),
    b"PK\x05\x06": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}
# fmt: off
_NAMES = (
    "../x.jpg", "/x.jpg", "a/../../x", "", "a\0b", "x" * 60_000, "C:\\x", "a//b", "./x", "data.pkl", "archive/data.pkl", "x/",
    "\ud7ff.npy",
)
# fmt: on


def break_zip(data: bytes, rng: Random) -> bytes:
    """A field of a record, or a member: its content, name, method, number. Checksums of changed members are right."""
    if rng.random() < 0.4:
        kind = rng.choice(list(_ZIP_FIELDS))
        places = [at for at in range(len(data)) if data.startswith(kind, at)]
        offset, size = rng.choice(_ZIP_FIELDS[kind])
        at = rng.choice(places) + offset
        return data[:at] + (rng.choice(_EDGES) & (1 << 8 * size) - 1).to_bytes(size, "little") + data[at + size :]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, info.compress_type, archive.read(info)) for info in archive.infolist()]
    at = rng.randrange(len(members))
    pickles = [index for index, (name, _, _) in enumerate(members) if name.endswith(".pkl")]
    if pickles and rng.random() < 0.6:
        at = pickles[0]
    name, method, content = members[at]
    match rng.randrange(9):
        case 0:
            members[at] = (rng.choice(_NAMES), method, content)
        case 1:
            members.insert(at, (name, method, content))
        case 2:
            del members[at]
        case 3:
            members[at] = (name, zipfile.ZIP_DEFLATED, bytes(rng.choice((10**5, 10**7, 3 * 10**7))))  # a bomb
        case 4:
            members[at] = (name, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)), content)
        case _ if name.endswith(".pkl"):
            members[at] = (name, method, change_pickle(content, rng))
        case _:
            known = _structural(name, content)
            members[at] = (
                name,
                method,
                known(content, rng) if known and rng.random() < 0.7 else rng.choice(_BYTE_MUTATIONS)(content, rng),
            )
    return zipped(members)


def break_tar(data: bytes, rng: Random) -> bytes:
    """A field of a member's header, its checksum made right."""
    blocks = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    at = rng.choice(blocks)
    header = bytearray(data[at : at + 512])
    octal = rng.choice(
        (b"77777777777\0", b"-0000000001\0", b"9999\0", b"\x80" + b"\0" * 3 + b"\xff" * 8, b"\xff" * 12, b"00000000000\0", b"zzz\0")
    )
    match rng.randrange(6):
        case 0:
            header[124 : 124 + len(octal)] = octal
        case 1:
            header[156:157] = rng.choice(
                (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"x", b"g", b"L", b"K", b"S", b"\0", b"Z")
            )
        case 2:
            name = rng.choice((b"../x.jpg", b"/x.jpg", b"x\xff\xfe.jpg", b"a/" * 45 + b"x", b"", b"x.pyd", b"x.pkl"))
            header[0:100] = name[:100].ljust(100, b"\0")
        case 3:
            header[157:257] = rng.choice((b"/etc/passwd", b"../../x", b"")).ljust(100, b"\0")
        case 4:
            text = rng.choice(
                (b"99999999 path=x\n", b"12 size=9\n", b"30 mtime=nan\n", b"-5 x=y\n", b"20 path=../../x\n" * 30, b"1e9 a=b\n")
            )
            pax = tarfile.TarInfo("pax")
            pax.type, pax.size = rng.choice((tarfile.XHDTYPE, tarfile.XGLTYPE)), len(text)
            return data[:at] + pax.tobuf(tarfile.USTAR_FORMAT) + text.ljust(512, b"\0") + data[at:]
        case _:
            place = rng.randrange(500)
            header[place : place + 4] = rng.randbytes(4)
    header[148:156] = b" " * 8
    if rng.random() < 0.9:
        header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + 512 :]


def break_tfrecord(data: bytes, rng: Random) -> bytes:
    """The content of a record, its length and checksums made right; or the length alone."""
    from vitlab.data.readers.tfrecord import masked_crc32c

    records, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > len(data):
            raise ValueError("not a record")
        records.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    chosen = rng.randrange(len(records))
    claimed: int | None = None
    if rng.random() < 0.8:
        records[chosen] = rng.choice(_BYTE_MUTATIONS)(records[chosen], rng)
    else:
        claimed = rng.choice(_EDGES) & 2**64 - 1
    made = b""
    for number, content in enumerate(records):
        head = struct.pack("<Q", claimed if claimed is not None and number == chosen else len(content))
        made += head + struct.pack("<I", masked_crc32c(head)) + content + struct.pack("<I", masked_crc32c(content))
    return made


def break_parquet(data: bytes, rng: Random) -> bytes:
    """Another table in the same layout, or other words about its columns."""
    import pyarrow as pa

    # fmt: off
    odd: list[Any] = [
        pa.array([None, None, None]), pa.array([[1], [2, 2], []]), pa.array([{"bytes": None, "path": "/etc/passwd"}] * 3),
        pa.array([1.5, float("nan"), 2.0]), pa.array(["a", None, "x" * 100_000]), pa.array([b"\xff\xd8\xff", b"", b"\x89PNG"]),
        pa.array([2**62, -1, 0]), pa.array([True, False, None]), pa.array([{"bytes": b"x", "path": None}] * 3),
        pa.array(["a", "b", "a"]).dictionary_encode(), pa.array([], pa.int64()),
    ]
    # fmt: on
    names = rng.sample(("image", "label", "img", "fine_label", "labels", "bytes", "path", "split", "x"), rng.randrange(1, 4))
    length = rng.choice((3, 3, 0))
    columns = {name: rng.choice([array for array in odd if len(array) == length]) for name in names}
    features = change_json({"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}, rng)
    table = pa.table(columns).replace_schema_metadata(
        {"huggingface": _json_text({"info": {"features": features}}).encode("utf-8", "replace")}
    )
    return parquet_bytes(table)


# --- images -------------------------------------------------------------------------------------------------------------------

_SIDES = (0, 1, 2, 100, 2000, 9000, 16_383, 20_000, 65_535, 2**24 - 1, 2**31 - 1, 2**32 - 1)


def _segments(data: bytes) -> list[bytes]:
    """A JPEG's segments, each scan with its coded bits."""
    found, at = [data[:2]], 2
    while at < len(data) - 1:
        end = at + 2 if data[at + 1] == 0xD9 else at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == 0xDA:
            while end < len(data) - 1 and not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
                end += 1
        if end <= at or data[at] != 0xFF:
            raise ValueError("not a segment")
        found.append(data[at:end])
        at = end
    return found


def break_jpeg(data: bytes, rng: Random) -> bytes:
    segments = _segments(data)
    at = rng.randrange(1, len(segments))
    scans = [index for index, segment in enumerate(segments) if segment[1] == 0xDA]
    frames = [index for index, segment in enumerate(segments) if segment[1] in (0xC0, 0xC1, 0xC2)]
    match rng.randrange(8):
        case 0 if scans:
            scan = rng.choice(scans)
            segments[scan:scan] = [segments[scan]] * rng.choice((1, 20, 1000, 4000))
        case 1 if frames:
            frame = segments[frames[0]]
            sides = struct.pack(">HH", min(rng.choice(_SIDES), 65_535), min(rng.choice(_SIDES), 65_535))
            segments[frames[0]] = frame[:5] + sides + frame[9:]
        case 2 if frames:
            changed = bytearray(segments[frames[0]])
            changed[rng.choice((1, 4, 9, 11, 12, 14))] = rng.choice(
                (0, 1, 3, 4, 8, 12, 0x11, 0x22, 0x44, 0xC1, 0xC2, 0xC3, 0xC9, 0xFF)
            )
            segments[frames[0]] = bytes(changed)
        case 3:
            segments[at:at] = [
                b"\xff" + bytes([rng.choice((0xE0, 0xE1, 0xE2, 0xED, 0xFE))]) + b"\xff\xff" + b"Exif\0\0II*\0" + bytes(65_523)
            ] * rng.choice((1, 40))
        case 4:
            del segments[at]
        case 5:
            rng.shuffle(segments)
        case 6:
            segments[at] = segments[at][:4] + rng.choice(_BYTE_MUTATIONS)(segments[at][4:], rng)
        case _:
            segments.insert(at, b"\xff\xdd\x00\x04" + rng.randbytes(2))  # a restart interval
    return b"".join(segments)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if length > len(data):
            raise ValueError("not a chunk")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


_BANDS = {0: 1, 2: 3, 6: 4}


@cache
def _zeros(count: int) -> bytes:
    """So many zeros, compressed, without holding them."""
    packer, made = zlib.compressobj(1), b""
    for _ in range(count >> 20):
        made += packer.compress(bytes(1 << 20))
    return made + packer.compress(bytes(count % (1 << 20))) + packer.flush()


def break_png(data: bytes, rng: Random) -> bytes:
    chunks = _chunks(data)
    at = rng.randrange(len(chunks))
    header = chunks[0][1]
    match rng.randrange(7):
        case 0:
            sides = struct.pack(">II", rng.choice(_SIDES) & 2**32 - 1, rng.choice(_SIDES) & 2**32 - 1)
            chunks[0] = (b"IHDR", sides + header[8:])
        case 1:
            kinds = bytes([rng.choice((0, 1, 2, 4, 8, 16, 32)), rng.choice((0, 1, 2, 3, 4, 6, 7)), 0, 0, rng.choice((0, 1, 2))])
            chunks[0] = (b"IHDR", header[:8] + kinds)
        case 2:
            text = zlib.compress(bytes(rng.choice((10**5, 5 * 10**7))), 9)
            chunks.insert(1, (rng.choice((b"zTXt", b"iCCP", b"iTXt")), rng.choice((b"x\0\0", b"x\0\1\0\0\0")) + text))
        case 3:
            side = rng.choice((1000, 9000))  # 81 million pixels: below the limit
            colours = rng.choice((0, 2, 6))
            chunks = [
                (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, colours, 0, 0, 0)),
                (b"IDAT", _zeros(side * (side * _BANDS[colours] + 1))),
            ]
            chunks.append((b"IEND", b""))
        case 4:
            chunks[at] = (rng.choice((b"tRNS", b"PLTE", b"acTL", b"fcTL", b"fdAT", b"eXIf", b"gAMA", b"xxxx")), chunks[at][1])
        case 5:
            chunks[at:at] = [chunks[at]] * min(rng.choice((1, 3000)), _LARGEST // (12 + len(chunks[at][1])), 10_000 // len(chunks))
        case _:
            chunks[at] = (chunks[at][0], rng.choice(_BYTE_MUTATIONS)(chunks[at][1], rng))
    made = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)) for kind, content in chunks
    ]
    return data[:8] + b"".join(made)


def break_webp(data: bytes, rng: Random) -> bytes:
    chunks, at = list[tuple[bytes, bytes]](), 12
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 4)
        if length > len(data):
            raise ValueError("not a chunk")
        chunks.append((data[at : at + 4], data[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    chosen = rng.randrange(len(chunks))
    kind, content = chunks[chosen]
    side = rng.choice(_SIDES)
    match rng.randrange(6):
        case 0 if kind == b"VP8 ":
            content = content[:6] + struct.pack("<HH", min(side, 16_383), min(rng.choice(_SIDES), 16_383)) + content[10:]
        case 0 if kind == b"VP8L":
            bits = (side - 1 & 0x3FFF) | (rng.choice(_SIDES) - 1 & 0x3FFF) << 14
            content = content[:1] + struct.pack("<I", bits) + content[5:]
        case 1:
            wide = (side & 0xFFFFFF).to_bytes(3, "little")
            chunks.insert(0, (b"VP8X", bytes([rng.choice((0, 2, 16, 18, 255)), 0, 0, 0]) + wide * 2))
            chosen += 1
        case 2:
            chunks[chosen:chosen] = [(kind, content)] * rng.choice((1, 2000))
        case 3:
            kind = rng.choice((b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"EXIF", b"ICCP", b"xxxx"))
        case _:
            content = rng.choice(_BYTE_MUTATIONS)(content, rng)
    chunks[chosen] = (kind, content)
    body = b"WEBP" + b"".join(name + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2) for name, part in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _change_number(data: bytes, rng: Random, places: Sequence[tuple[int, int]], values: Sequence[int]) -> bytes:
    at, size = rng.choice(places)
    return data[:at] + (rng.choice(values) & (1 << 8 * size) - 1).to_bytes(size, "little") + data[at + size :]


def break_gif(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.3:
        frame = data.index(b"\x2c", 13)
        return data[:-1] + data[frame:-1] * rng.choice((2, 1000)) + data[-1:]
    frame = data.index(b"\x2c", 13)
    places = [
        (6, 2),
        (8, 2),
        (10, 1),
        (frame + 1, 2),
        (frame + 3, 2),
        (frame + 5, 2),
        (frame + 7, 2),
        (frame + 9, 1),
        (frame + 10, 1),
    ]
    return _change_number(data, rng, places, _SIDES)


def break_bmp(data: bytes, rng: Random) -> bytes:
    places = [(2, 4), (10, 4), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (30, 4), (34, 4), (46, 4), (50, 4)]
    return _change_number(data, rng, places, (*_SIDES, 3, 4, 8, 16, 24, 32, 40, 124))


# fmt: off
_DICOM_FIELDS = (
    "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated", "BitsStored", "HighBit",
    "PixelRepresentation", "PlanarConfiguration", "NumberOfFrames", "WindowCenter", "WindowWidth", "RescaleSlope",
    "RescaleIntercept",
)
_DICOM_VALUES: tuple[Any, ...] = (0, 1, 2, 3, 7, 8, 9, 12, 16, 24, 32, 33, 64, 255, 65_535, 2**31 - 1, -1, 0.0, 1e38, 1e-38)
_DICOM_WORDS = ("MONOCHROME1", "RGB", "YBR_FULL", "YBR_FULL_422", "PALETTE COLOR", "", "\0")
_DICOM_ENCODINGS = (  # big-endian, deflated, JPEG, JPEG 2000, RLE
    b"1.2.840.10008.1.2.2", b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.4.50", b"1.2.840.10008.1.2.4.90", b"1.2.840.10008.1.2.5",
)
# fmt: on


def break_dicom(data: bytes, rng: Random) -> bytes:
    """A field has another value or is gone, the pixels are broken, or the header names another encoding."""
    import pydicom

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values that the standard does not allow
        made = pydicom.dcmread(io.BytesIO(data))
        field = rng.choice([name for name in _DICOM_FIELDS if name in made])
        match rng.randrange(6):
            case 0:
                made.file_meta.TransferSyntaxUID = pydicom.uid.UID(rng.choice(_DICOM_ENCODINGS).decode())
            case 1:
                delattr(made, field)
            case 2:
                made.PixelData = rng.choice(_BYTE_MUTATIONS)(made.PixelData, rng)
            case _:
                field = rng.choice((field, *_DICOM_FIELDS))
                setattr(made, field, rng.choice(_DICOM_WORDS if field == "PhotometricInterpretation" else _DICOM_VALUES))
        stream = io.BytesIO()
        made.save_as(stream)
    return stream.getvalue()


def break_tiff(data: bytes, rng: Random) -> bytes:
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    entry = first + 2 + 12 * rng.randrange(count)
    return _change_number(
        data, rng, [(4, 4), (first, 2), (entry, 2), (entry + 2, 2), (entry + 4, 4), (entry + 8, 4)], (*_SIDES, 256, 257, 322, 323)
    )
