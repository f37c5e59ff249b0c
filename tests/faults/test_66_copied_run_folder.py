"""A run folder was copied without its links, zipped and unzipped, or synchronised by way of an object store: it resumes, and keeps
its best checkpoint."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.runs import three, warnings_of
from tests.training.small import last, run_to, same
from vitlab.config.run import RunConfig
from vitlab.training.run_folder import RunDirectory


def evaluated() -> RunConfig:
    run = three(steps=12)
    return replace(run, train=replace(run.train, keep=1, evaluate_every=2))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 7; its best checkpoint is an older one."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    run_to(evaluated(), out, stop=7)
    assert RunDirectory(out).linked_step("last") == 7
    assert RunDirectory(out).linked_step("best") in (2, 4, 6)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(evaluated(), out)
    return out


def without_links(run: Path, to: Path) -> None:
    shutil.copytree(run, to, symlinks=False)


def zipped(run: Path, to: Path) -> None:
    shutil.make_archive(str(to.with_name("packed")), "zip", run)
    with zipfile.ZipFile(to.with_name("packed.zip")) as file:
        file.extractall(to)


def synchronised(run: Path, to: Path) -> None:
    """An object store has files alone: neither links nor empty folders. Other programs leave files of theirs."""
    for path in run.rglob("*"):
        if path.is_file() and not any(parent.is_symlink() for parent in (path, *path.parents)):
            (to / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to / path.relative_to(run))
    for folder in (to, to / "checkpoints", to / "checkpoints" / "step-7"):
        (folder / ".DS_Store").write_bytes(b"\0")


def as_text(run: Path, to: Path) -> None:
    """As git and some archivers write links where the system has none."""
    shutil.copytree(run, to, symlinks=True)
    for name in ("last", "best"):
        target = (to / name).readlink()
        (to / name).unlink()
        (to / name).write_text(f"{target}\n")


@pytest.mark.parametrize("copy", [without_links, zipped, synchronised, as_text])
def test_a_copied_run_folder_resumes_and_keeps_its_best_checkpoint(
    copy: Callable[[Path, Path], None], stopped: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    copy(stopped, out)
    assert not (out / "last").is_symlink()
    best = RunDirectory(stopped).linked_step("best")
    with RunDirectory(out).locked():
        assert (RunDirectory(out).linked_step("last"), RunDirectory(out).linked_step("best")) == (7, best)
    assert warnings_of(run_to(evaluated(), out)) == []
    assert same(last(out), last(whole))
    assert RunDirectory(out).linked_step("best") == RunDirectory(whole).linked_step("best")
    assert RunDirectory(out).steps() == RunDirectory(whole).steps()


def test_a_folder_called_last_that_is_something_else_is_left_alone(stopped: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(stopped, out, symlinks=True)
    (out / "best").unlink()
    (out / "best").mkdir()
    (out / "best" / "notes.txt").write_text("mine")
    directory = RunDirectory(out)
    with directory.locked():
        assert "is not a link to a checkpoint" in directory.warnings[0]
    assert (out / "best" / "notes.txt").read_text() == "mine"
