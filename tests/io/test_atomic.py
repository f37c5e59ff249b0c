"""A file or folder is written whole or not at all; a lock has one holder at a time, and none after the holder's death."""

from __future__ import annotations

import os
import re
import resource
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import processes
from tests.checkpoints.containers.forked import exit_code_of
from vitlab.checkpoints.containers import write_npz, write_safetensors
from vitlab.errors import CheckpointError, DataError
from vitlab.io.atomic import REPLACED, UNFINISHED, locked, replacing, replacing_folder, try_lock

Write = Callable[[Path, dict[str, torch.Tensor]], None]

OLD = b"what was there before"


def _safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    write_safetensors(path, tensors, {"note": "x"})


WRITERS: dict[str, Write] = {"safetensors": _safetensors, "npz": write_npz}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITERS[request.param]


def _leftovers(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((UNFINISHED, REPLACED)))


def test_the_bytes_reach_the_disk_before_the_name_and_the_name_before_the_folder(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        calls.append(("fsync", kind))
        fsync(descriptor)

    def recorded_replace(source: str, target: str) -> None:
        calls.append(("rename", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write(tmp_path / "model", {"w": torch.ones(3)})
    assert calls == [("fsync", "file"), ("rename", "model"), ("fsync", "folder")]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o000, 0o666)])
def test_the_mode_is_0666_less_the_umask(tmp_path: Path, write: Write, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "model", {"w": torch.ones(3)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == mode


def test_a_full_disk_leaves_the_old_file_and_says_what_is_needed_and_what_is_free(tmp_path: Path, write: Write) -> None:
    path, said = tmp_path / "model", tmp_path / "said"
    path.write_bytes(OLD)

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write(path, {"a": torch.zeros(1000), "b": torch.zeros(1_000_000)})
        except CheckpointError as error:
            said.write_text(str(error))
            os._exit(3)

    assert exit_code_of(fill_the_disk) == 3
    assert str(path) in said.read_text()
    assert re.search(r"4,00\d,\d{3} bytes are needed and [\d,]+ are free", said.read_text()), said.read_text()
    assert path.read_bytes() == OLD
    assert _leftovers(tmp_path) == []


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_crash_before_the_rename_leaves_the_old_file_and_the_next_write_sweeps_up(
    tmp_path: Path, write: Write, step: str
) -> None:
    path = tmp_path / "model"
    path.write_bytes(OLD)

    def crash() -> None:
        setattr(os, step, lambda *_: os._exit(137))
        write(path, {"a": torch.zeros(1000)})

    assert exit_code_of(crash) == 137
    assert path.read_bytes() == OLD
    assert len(_leftovers(tmp_path)) == 1
    write(path, {"w": torch.ones(3)})
    assert path.read_bytes() != OLD
    assert _leftovers(tmp_path) == []


def test_what_another_writer_has_not_finished_is_not_swept_away(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with replacing(path, needed=1) as first:
        first.write(b"first")
        with replacing(path, needed=1) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        assert len(_leftovers(tmp_path)) == 1
    assert path.read_bytes() == b"first"
    assert _leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "model"
    path.write_bytes(OLD)

    def write_and_fail() -> None:
        with replacing(path, needed=1) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_and_fail()
    assert path.read_bytes() == OLD
    assert _leftovers(tmp_path) == []


def test_a_check_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(OLD)
    seen: list[int] = []

    def check(unfinished: Path) -> None:
        seen.append(unfinished.stat().st_size)
        raise CheckpointError("no")

    with pytest.raises(CheckpointError, match="no"):
        write_safetensors(path, {"w": torch.ones(300)}, {}, check=check)
    with pytest.raises(CheckpointError, match="no"):
        write_npz(path, {"w": torch.ones(300)}, check=check)
    assert min(seen) > 1200  # the check saw the whole file
    assert path.read_bytes() == OLD
    assert _leftovers(tmp_path) == []


def test_a_missing_folder_a_folder_and_a_forbidden_place_are_refused_by_name(tmp_path: Path, write: Write) -> None:
    with pytest.raises(CheckpointError, match=r"no folder .*missing"):
        write(tmp_path / "missing" / "model", {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match="it is a folder"):
        write(tmp_path, {"w": torch.ones(1)})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no folder"):
        write(tmp_path / "file" / "model", {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match="cannot write"):
        write(Path("/proc") / "model", {"w": torch.ones(1)})


def test_a_name_of_any_length_and_alphabet_can_be_written(tmp_path: Path, write: Write) -> None:
    for name in ("x" * 250, "\u6a21" * 80, "a b*[c]?.safetensors"):
        write(tmp_path / name, {"w": torch.ones(1)})
        assert (tmp_path / name).stat().st_size > 4


def _fill(folder: Path, text: str) -> None:
    with replacing_folder(folder, needed=1, names=("a.txt", "b.txt")) as unfinished:
        (unfinished / "a.txt").write_text(text)


def test_a_folder_is_replaced_whole_and_only_if_it_holds_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    _fill(folder, "1")
    (folder / "b.txt").write_text("old")
    _fill(folder, "2")
    assert {entry.name: entry.read_text() for entry in folder.iterdir()} == {"a.txt": "2"}
    (folder / "README.md").write_text("mine")
    with pytest.raises(CheckpointError, match=r"it also holds README\.md"):
        _fill(folder, "3")
    assert {entry.name: entry.read_text() for entry in folder.iterdir()} == {"a.txt": "2", "README.md": "mine"}
    assert _leftovers(tmp_path) == []


def test_a_folder_that_fails_half_way_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    _fill(folder, "1")

    def fill_and_fail() -> None:
        with replacing_folder(folder, needed=1, names=("a.txt",)) as unfinished:
            (unfinished / "a.txt").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_and_fail()
    assert (folder / "a.txt").read_text() == "1"
    replace = os.replace

    def refuse_the_new(source: str, target: str) -> None:
        if str(source).endswith(UNFINISHED):
            raise OSError(5, "no")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_the_new)
    with pytest.raises(CheckpointError, match="cannot write"):
        _fill(folder, "2")
    assert (folder / "a.txt").read_text() == "1"
    assert _leftovers(tmp_path) == []


def test_a_crash_between_the_two_renames_of_a_folder_is_mended_by_the_next_write(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    _fill(folder, "1")
    replace = os.replace

    def die_at_the_second(source: str, target: str) -> None:
        if str(source).endswith(UNFINISHED):
            os._exit(137)
        replace(source, target)

    def crash() -> None:
        setattr(os, "replace", die_at_the_second)  # noqa: B010 - in the child alone
        _fill(folder, "2")

    assert exit_code_of(crash) == 137
    assert not folder.exists()

    def fail() -> None:
        with replacing_folder(folder, needed=1, names=("a.txt",)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (folder / "a.txt").read_text() == "1"  # the old one is back
    _fill(folder, "3")
    assert (folder / "a.txt").read_text() == "3"
    assert _leftovers(tmp_path) == []


_HOLD = """
import sys, time
from pathlib import Path
from vitlab.io.atomic import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def _refused(holder: str) -> DataError:
    return DataError(f"held by {holder}")


def test_a_second_holder_is_refused_with_the_name_of_the_first_or_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with processes.started([sys.executable, "-c", _HOLD, path]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataError, match=f"held by process {holder.pid} on"), locked(path, refuse=_refused):
            pass
        holder.kill()
        with locked(path):  # waits for the end of the killed process, and gets the lock
            assert path.read_text().startswith(f"process {os.getpid()} on")


def test_a_lock_is_free_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "lock", refuse=_refused):
            pass


def test_an_open_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    with path.open("rb") as first, path.open("rb") as second:
        assert try_lock(first.fileno())
        assert not try_lock(second.fileno())
    with path.open("rb") as third:
        assert try_lock(third.fileno())


_HELD_BY_A_CHILD = """
import os, sys, time
from pathlib import Path
from vitlab.io.atomic import locked
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        print("held", flush=True)
        time.sleep(1)
    os._exit(0)
"""


@pytest.mark.parametrize("noticed", [True, False], ids=["its parent noticed", "a zombie"])
def test_the_last_moments_of_a_dead_holders_workers_are_waited_for(tmp_path: Path, noticed: bool) -> None:
    path = tmp_path / "lock"
    with processes.started([sys.executable, "-c", _HELD_BY_A_CHILD, path]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        if noticed:
            holder.wait(processes.LIMIT)
        with path.open("rb") as file:
            assert not try_lock(file.fileno())
        with locked(path, refuse=_refused):
            pass
