"""The run folder cannot be written, or vanishes, fills up or turns read-only half way: one error with the path, and what was
learned is saved elsewhere, from where the run resumes."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.faults.runs import in_a_child, ten, words
from tests.training.small import last, run_to, same
from vitlab.cli.main import main
from vitlab.errors import TrainingError
from vitlab.training import train
from vitlab.training.events import Stepped


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(ten(), out)
    return out


def rescued_in(message: str) -> Path:
    """The folder that an error names."""
    found = re.search(r"step \d+ is saved in (\S+) instead", message)
    assert found is not None, message
    return Path(found[1])


@pytest.mark.parametrize("below", ["", "run", "deep/run"])
def test_a_file_where_a_folder_should_be_is_named(below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / below
    with pytest.raises(TrainingError, match=rf"cannot write {tmp_path}/file.*: (Not a directory|File exists)"):
        next(train(ten(), out=out))
    assert main([*words(ten(), tmp_path)[2:-1], str(out)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: cannot write {tmp_path}/file")
    assert hint == "hint: choose another folder with --out"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_folder_that_is_deleted_half_way_is_saved_beside_it_and_resumes_there(whole: Path, tmp_path: Path) -> None:
    run = replace(ten(), train=replace(ten().train, save_every=2))

    def delete_half_way() -> None:
        for event in train(run, out=tmp_path / "run"):
            if isinstance(event, Stepped) and event.step == 3:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(TrainingError, match=r"there is no folder .*checkpoints; step 4 is saved in") as caught:
        delete_half_way()
    rescued = rescued_in(caught.value.message)
    assert rescued.parent == tmp_path
    assert str(rescued) in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == [rescued.name]
    run_to(run, rescued)
    assert same(last(rescued), last(whole))


MOUNTS = """
import sys, tempfile
from pathlib import Path
from tests.faults.runs import Mounts, ten, warnings_of
from tests.training.small import run_to
from vitlab.errors import VitlabError
from vitlab.training import train
from vitlab.training.events import Stepped
folder = Path(sys.argv[1])
mounts = Mounts()
if not mounts.possible:
    print("impossible: this system does not let a process make mounts of its own")
    sys.exit()
for what in ("read-only", "unmounted", "full", "read-only from the start"):
    place = folder / what.partition(" ")[0]
    place.mkdir(exist_ok=True)
    if what == "read-only from the start":
        place = folder / "never"
        place.mkdir()
        mounts.make_read_only(place)
    else:
        mounts.tmpfs(place, size=2**20)
    try:
        for event in train(ten(save_every=2, evaluate_every=0), out=place / "run"):
            if event.event == "warned":
                print(f"{what}: warning: {event.message}")
            if isinstance(event, Stepped) and event.step == 3:
                if what == "read-only":
                    mounts.make_read_only(place)
                elif what == "unmounted":
                    mounts.unmount(place)
                else:
                    (place / "filler").write_bytes(b"x" * 100_000)
                    with open(place / "rest", "wb", buffering=0) as file:
                        while True:
                            try:
                                file.write(b"x" * 1024)
                            except OSError:
                                break
    except VitlabError as error:
        print(f"{what}: {type(error).__name__}: {error.message}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mounts of Linux")
def test_a_disk_that_fills_turns_read_only_or_is_unmounted_half_way(warm: Path, whole: Path, tmp_path: Path) -> None:
    lines = in_a_child(warm, MOUNTS, tmp_path)
    stated = {line.partition(": ")[0]: line for line in lines if ": warning: " not in line}
    reasons = {
        "read-only": "Read-only file system",
        "unmounted": "there is no folder",
        "full": "No space left on device",
    }
    for what, reason in reasons.items():
        assert stated[what].startswith(f"{what}: TrainingError: cannot write the checkpoint: cannot write {tmp_path}/{what}/run")
        assert reason in stated[what]
        rescued = rescued_in(stated[what])
        run_to(ten(), rescued)
        assert same(last(rescued), last(whole))
        shutil.rmtree(rescued)
    start = stated["read-only from the start"]
    assert start.endswith(f"TrainingError: cannot write {tmp_path}/never/run: Read-only file system")
    assert sum("events.jsonl" in line for line in lines if line.startswith("read-only: warning: ")) == 1


NOBODY = """
import sys
from pathlib import Path
from tests.faults.runs import become_nobody, ten
from tests.training.small import run_to
from vitlab.cli.main import main
folder = Path(sys.argv[1])
run_to(ten(), folder / "run", stop=2)
assert main(["train", str(folder / sys.argv[2]), "--out", str(folder / "first")]) == 0  # nothing has to be imported later
become_nobody(folder)
Path("closed").mkdir(mode=0o555)
Path("run").chmod(0o555)
Path("run/checkpoints").chmod(0o555)
for out in ("closed/run", "run"):
    assert main(["train", sys.argv[2], "--out", out]) == 1, out
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_folder_without_permission_is_named(warm: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    words(ten(), tmp_path)
    ended = processes.run([warm / "python", "-c", NOBODY, tmp_path, "run.json"])
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: cannot write closed/run: Permission denied",
        "error: cannot write run: Permission denied",
    ]
    assert "Traceback" not in ended.stderr
