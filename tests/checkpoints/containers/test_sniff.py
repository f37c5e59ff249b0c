"""A container is recognised by its content; an error says what the file is not and what to do."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from vitlab.checkpoints.containers import read_file, write_npz, write_safetensors
from vitlab.errors import CheckpointError

TENSORS = {"w": torch.arange(6.0)}


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("weights"), io.BytesIO())
    return stream.getvalue()


def _npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ones(3))
    return stream.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 + b"\nsize 12345\n"

# what was given -> its bytes, a word of the message, a word of the hint
MISTAKES: dict[str, tuple[bytes, str, str]] = {
    "a Git LFS pointer": (LFS, "is a Git LFS pointer, not the weights", "git lfs pull"),
    "nothing": (b"", "is empty", "get it again"),
    "gzip": (gzip.compress(b"x" * 1000), "gzip", "gunzip"),
    "bzip2": (b"BZh91AY&SY" + b"\x55" * 20, "bzip2", "bunzip2"),
    "xz": (b"\xfd7zXZ\x00" + b"\x55" * 20, "xz", "unxz"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\x55" * 20, "zstd", "unzstd"),
    "tar": (_tar(), "tar archive", "unpack"),
    "a web page": (b"\n  <!DOCTYPE html>\n<html><body>Not found</body></html>", "web page", "download went wrong"),
    "a web page without a doctype": (b"<HTML><body>Not found</body></html>", "web page", "download went wrong"),
    "an XML error": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML", "download went wrong"),
    "Keras weights": (b"\x89HDF\r\n\x1a\n" + b"\x00" * 40, "HDF5", ".safetensors"),
    "one array": (_npy(), "single NumPy array", ".npz"),
    "GGUF": (b"GGUF\x03\x00\x00\x00" + b"\x00" * 40, "GGUF", ".safetensors"),
    "an image": (b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, "image", "weights"),
    "a config": (json.dumps({"hidden_size": 768}).encode(), "without a weight_map", "folder"),
    "a JSON text that is broken": (b'{"weight_map": ', "is not JSON", ""),
    "noise": (bytes(range(7, 207)), "not a weights file", ".safetensors"),
    "words": (b"hello, here are the weights you asked for", "not a weights file", ".safetensors"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_not_weights_is_called_by_its_name_with_what_to_do(tmp_path: Path, mistake: str) -> None:
    content, word, hint = MISTAKES[mistake]
    for name in ("model.safetensors", "model.npz", "model.pt"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError) as refused:
            read_file(tmp_path / name)
        assert word in refused.value.message, refused.value.message
        assert hint in (refused.value.hint or "")
        assert str(tmp_path / name) in refused.value.message


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    for name in ("x.safetensors", "x.npz", "x.pt", "x", "x.jpg"):
        path = tmp_path / name
        write_safetensors(path, TENSORS, {})
        assert torch.equal(read_file(path).tensors["w"], TENSORS["w"])
        write_npz(path, TENSORS)
        assert torch.equal(read_file(path).tensors["w"], TENSORS["w"])
        torch.save(TENSORS, path)
        assert torch.equal(read_file(path).tensors["w"], TENSORS["w"])


def test_a_header_length_that_spells_another_formats_beginning_is_still_a_length(tmp_path: Path) -> None:
    """35,615 bytes of header make a .safetensors file begin as gzip does, and 16,961 as "AB" does."""
    for length in (0x8B1F, 0x5A42, 0x4B50, 0x3C20):
        text = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        path = tmp_path / "x.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + text.ljust(length) + b"\0" * 4)
        assert read_file(path).tensors["w"].tolist() == [0.0]


def test_a_missing_file_is_named_with_the_nearest_one_there(tmp_path: Path) -> None:
    (tmp_path / "deit_tiny.npz").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no file called .*deit_tny\.npz") as refused:
        read_file(tmp_path / "deit_tny.npz")
    assert refused.value.hint == f"did you mean {tmp_path / 'deit_tiny.npz'}?"
    with pytest.raises(CheckpointError) as refused:
        read_file(tmp_path / "nowhere" / "x.npz")
    assert refused.value.hint == f"there is no folder {tmp_path / 'nowhere'}"
    with pytest.raises(CheckpointError, match="cannot read"):
        read_file(tmp_path / "deit_tiny.npz" / "x")
    with pytest.raises(CheckpointError, match="cannot read"):
        read_file(tmp_path / "a\0b")
    with pytest.raises(CheckpointError, match="cannot read"):
        read_file(tmp_path / ("x" * 300))


def test_a_pipe_a_device_and_a_socket_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_file(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_file(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        with pytest.raises(CheckpointError, match="not a regular file"):
            read_file(tmp_path / "socket")


def test_a_link_is_followed_and_a_loop_of_links_is_not(tmp_path: Path) -> None:
    write_npz(tmp_path / "blob", TENSORS)
    (tmp_path / "link.npz").symlink_to("blob")
    assert torch.equal(read_file(tmp_path / "link.npz").tensors["w"], TENSORS["w"])
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match="cannot read"):
        read_file(tmp_path / "loop")
