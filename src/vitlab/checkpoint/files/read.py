"""One way in for every container: from a path to named tensors."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path

from vitlab.checkpoint.files.folder import parse_json, read_shards, weights_in, with_sidecars
from vitlab.checkpoint.files.npz import is_npz, read_npz
from vitlab.checkpoint.files.raw import RawFile
from vitlab.checkpoint.files.safetensors_file import OpenFile
from vitlab.checkpoint.files.safetensors_header import read_header
from vitlab.checkpoint.files.sniff import READABLE, is_folder, kind_of, open_regular
from vitlab.checkpoint.files.torch_file import check_torch_zip, is_torch_zip, read_torch
from vitlab.checkpoint.files.zip_guard import open_zip
from vitlab.errors import CheckpointError


def read_file(path: Path, *, values: bool = True) -> RawFile:
    """The tensors of a file or folder: .npz, .safetensors (also in shards), torch's .pt/.pth/.bin.

    The container is told from the content, not from the name. Without `values` only the headers are read and the tensors come
    on the meta device. Damaged, hostile and unknown files are refused with a CheckpointError; nothing in a file is ever executed.
    """
    if is_folder(path):
        weights, notes = weights_in(path)
        raw = _read(weights, values, notes)
        return with_sidecars(raw, path, asked=True)
    return with_sidecars(_read(path, values, ()), path.parent, asked=False)


def _read(path: Path, values: bool, notes: tuple[str, ...]) -> RawFile:
    with open_regular(path) as file:
        match kind_of(file, path):
            case "safetensors":
                opened = OpenFile(path=path, header=read_header(file, path), file=file)
                tensors = opened.tensors() if values else opened.shapes()
                raw = RawFile(path=path, tensors=tensors, metadata=opened.header.metadata, notes=notes)
            case "zip":
                raw = _read_zip(file, path, values, notes)
            case "torch-legacy":
                tensors, chosen = read_torch(file, path, values=values)
                raw = RawFile(path=path, tensors=tensors, metadata={}, notes=(*notes, *chosen))
            case "json":
                tensors = read_shards(path, parse_json(file, path), values=values)
                raw = RawFile(path=path, tensors=tensors, metadata={}, notes=notes)
    if not raw.tensors:
        raise CheckpointError(f"{path} holds no tensors")
    return raw


def _read_zip(file: BufferedReader, path: Path, values: bool, notes: tuple[str, ...]) -> RawFile:
    with open_zip(file, path) as archive:
        if is_npz(archive):
            return RawFile(path=path, tensors=read_npz(archive, path, values=values), metadata={}, notes=notes)
        if is_torch_zip(archive):
            check_torch_zip(archive, path)
            tensors, chosen = read_torch(file, path, values=values)
            return RawFile(path=path, tensors=tensors, metadata={}, notes=(*notes, *chosen))
        first = ", ".join(repr(name[:40]) for name in archive.namelist()[:3]) or "nothing"
    raise CheckpointError(f"{path} is a zip archive of {first}, not weights", hint=READABLE)
