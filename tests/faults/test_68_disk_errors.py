"""A disk reports an error, a quota or a limit of file sizes: one error with the path; a checkpoint that cannot be read is passed
over for the one before it."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from tests.faults.limits import no_file_above
from tests.faults.runs import ten, three, warnings_of, words
from tests.training.small import last, run_to, same
from vitlab.cli.main import main
from vitlab.errors import TrainingError
from vitlab.training.run_folder import RunDirectory


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that gives EIO, /proc/self/mem")
def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """The first bytes of /proc/self/mem cannot be read: a real EIO."""
    run_to(three(), tmp_path / "run", stop=5)
    broken = tmp_path / "run" / "checkpoints" / "step-5" / "optimizer.safetensors"
    broken.unlink()
    broken.symlink_to("/proc/self/mem")
    (warning,) = warnings_of(run_to(three(), tmp_path / "run"))
    assert warning.startswith("ignored the checkpoint of step 5: ")
    assert str(broken) in warning
    assert "Input/output error" in warning
    run_to(three(), tmp_path / "whole")
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.ESTALE])
def test_an_error_of_the_disk_while_a_checkpoint_is_written_is_typed(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_to(three(), tmp_path / "run", stop=2)

    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    seen = run_to(three(), tmp_path / "run", stop=3)
    assert seen
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(TrainingError, match=rf"cannot write {tmp_path}/run/.*: {os.strerror(number)}"):
        run_to(three(), tmp_path / "run")
    monkeypatch.undo()
    assert last(tmp_path / "run").progress.step == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_limit_of_file_sizes_is_an_error_with_path_and_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = words(ten(), tmp_path)[2:]
    with no_file_above(20_000):
        assert main(command) == 1
    error, hint = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert f"cannot write {tmp_path}/out/checkpoints/.step-4" in error
    assert "File too large" in error
    assert "bytes are needed" in error
    assert "free some space" in hint
    assert not list(tmp_path.rglob("*.vitlab-tmp"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file on a full disk, /dev/full")
def test_a_full_disk_for_events_alone_is_a_warning(tmp_path: Path) -> None:
    def append(self: RunDirectory, line: dict[str, object]) -> None:
        with Path("/dev/full").open("a") as file:
            file.write(json.dumps(line) + "\n")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunDirectory, "append_event", append)
        (warning,) = warnings_of(run_to(ten(), tmp_path / "run"))
    assert warning.endswith("events.jsonl: No space left on device; the run continues without its events")
    run_to(ten(), tmp_path / "whole")
    assert same(last(tmp_path / "run"), last(tmp_path / "whole"))
