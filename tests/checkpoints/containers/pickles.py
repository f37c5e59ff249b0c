"""Makes torch files and pickles that are hostile or unusual."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Payload:
    """What an attacker pickles: asks for a call when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def edited(path: Path, edit: Callable[[bytes], bytes], *, legacy: bool = False) -> None:
    """A saved state dict of 1,000 numbers, its pickle changed."""
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, stream, _use_new_zipfile_serialization=not legacy)
    if legacy:
        path.write_bytes(edit(stream.getvalue()))
        return
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, edit(source.read(name)) if name.endswith("data.pkl") else source.read(name))


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return edit


def pickled(opcodes: bytes) -> Callable[[Path], None]:
    """An archive like torch's whose pickle is these opcodes."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", opcodes)
            archive.writestr("archive/version", "3\n")
            archive.writestr("archive/byteorder", "little")

    return make


def compressed(path: Path) -> None:
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, stream)
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))


def program(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("archive/data.pkl", "archive/constants.pkl", "archive/code/__torch__.py"):
            archive.writestr(name, b"\x80\x02}q\x00.")


def exported(path: Path) -> None:
    """The layout of torch.export's .pt2 archives, which hold pickles under other names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "archive_format",
            "models/model.json",
            "data/weights/model_weights_config.json",
            "data/sample_inputs/model.pt",
        ):
            archive.writestr(f"model/{name}", pickle.dumps(Payload(path.parent / "marker")))


def saves(content: Callable[[Path], Any], *, legacy: bool = False) -> Callable[[Path], None]:
    return lambda path: torch.save(content(path), path, _use_new_zipfile_serialization=not legacy)


def endless(path: Path) -> None:
    stream = io.BytesIO()
    torch.save({}, stream, _use_new_zipfile_serialization=False)
    whole = stream.getvalue()
    empty = whole.rindex(b"}q\x00.")
    path.write_bytes(whole[: empty + 1] + b"q\x00" * 10_000_000 + b"." + whole[empty + 4 :])


def bare(content: Callable[[Path], Any], *, protocol: int = 4) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(pickle.dumps(content(path), protocol=protocol))

    return make
