"""A library would report its use: vitlab opens no socket, resolves no name and leaves no identifier of the machine."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.inference import small

# The system call socket() ends the process with SIGSYS, also in a thread or a library: a filter of the kernel (seccomp). Sockets of
# this machine alone pass: the C library asks such a one for the user's name. Resolving a name begins with another kind.
_WITHOUT_SOCKETS = """
import ctypes, faulthandler, platform, signal, socket, struct, sys

faulthandler.register(signal.SIGSYS, chain=True)  # shows who it was

audit, call = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}[platform.machine()]
LOAD, EQUAL, RETURN, TRAP, ALLOW = 0x20, 0x15, 0x06, 0x30000, 0x7FFF0000
program = [
    (LOAD, 0, 0, 4), (EQUAL, 0, 5, audit), (LOAD, 0, 0, 0), (EQUAL, 0, 3, call),
    (LOAD, 0, 0, 16), (EQUAL, 1, 0, socket.AF_UNIX), (RETURN, 0, 0, TRAP), (RETURN, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
filter = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, ctypes.get_errno()
assert libc.prctl(22, 2, filter, 0, 0) == 0, ctypes.get_errno()
print("filtered", flush=True)
"""
_USE = """
from vitlab.cli.main import main
from vitlab.exporters.exporter import _nncf

model, images = sys.argv[1:]
for backend in ("torch", "onnxruntime", "openvino"):
    assert main(["predict", model, images, "--backend", backend, "--json"]) == 0
with _nncf() as nncf:
    assert nncf.quantize
"""
_OPEN = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="the filter is for Linux on x86-64 and Arm"
)


def test_no_backend_opens_a_socket_or_writes_an_identifier_with_a_cold_cache(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("onnxruntime", "openvino", "nncf"):
        pytest.importorskip(library)
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)  # which this process has set, if it ran an export
    model = small.saved(tmp_path / "model.safetensors")
    (image,) = small.photos(tmp_path / "images", 1)
    ended = processes.run([warm / "python", "-c", _WITHOUT_SOCKETS + _USE, model, image], check=False, env=environment)
    assert "filtered" in ended.stdout
    assert ended.returncode == 0, ended.stderr
    assert "most recent call first" not in ended.stderr, ended.stderr  # nor was it a child process of a library
    assert {path.name for path in home.iterdir()} <= {".cache", ".config"}
    assert {path.name for path in (home / ".cache").iterdir()} <= {"vitlab", "matplotlib"}


def test_the_filter_of_this_test_ends_whoever_opens_a_socket(warm: Path) -> None:
    ended = processes.run([warm / "python", "-c", _WITHOUT_SOCKETS + _OPEN], check=False)
    assert "filtered" in ended.stdout
    assert ended.returncode == -31  # SIGSYS
