"""A run folder on a server: a new machine resumes bit-exactly, a checkpoint is complete or not there, and one process writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.training.small import last, run_to, same, small_run
from vitlab.checkpoints import load
from vitlab.config.run import RunConfig
from vitlab.errors import CheckpointError, StorageError, TrainingError
from vitlab.io import remote
from vitlab.io.address import Address
from vitlab.training import remote_run
from vitlab.training.checkpointing import read_progress
from vitlab.training.events import Event, Started, Warned
from vitlab.training.remote_run import Lease, RemoteRunDirectory, stage_of
from vitlab.training.run import Run

RUN = Address("memory://runs/a")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """fsspec's memory, empty, and a machine of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/runs"):
        system.rm("/runs", recursive=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on disk, without a break."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(config(), out)
    return out


def config() -> RunConfig:
    run = small_run(steps=6)
    return replace(run, train=replace(run.train, evaluate_every=3, save_every=2))


def train(*, stop: int | None = None) -> list[Event]:
    return run_to(config(), RUN, stop=stop)  # type: ignore[arg-type]


def another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "another") -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


def steps_there(memory: Any) -> set[str]:
    return {path.split("/")[4] for path in memory.find("/runs/a/checkpoints")}


def test_a_run_on_a_server_is_the_run_on_disk(memory: Any, whole: Path) -> None:
    train()
    assert same(last(stage_of(RUN)), last(whole))
    assert memory.cat_file("/runs/a/model.safetensors") == (stage_of(RUN) / "model.safetensors").read_bytes()
    assert memory.cat_file("/runs/a/last") == b"checkpoints/step-6\n"
    assert b'"finished"' in memory.cat_file("/runs/a/events.jsonl").splitlines()[-1]


@pytest.mark.parametrize("stop", [1, 4])
def test_a_new_machine_resumes_bit_exactly(
    memory: Any, whole: Path, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(stop=stop)
    another_machine(monkeypatch, tmp_path)
    assert not stage_of(RUN).exists()
    [started] = [event for event in train() if isinstance(event, Started)]
    assert started.resumed
    assert started.step == stop
    assert same(last(stage_of(RUN)), last(whole))
    mine, its = (
        [line for line in (place / "events.jsonl").read_text().splitlines() if '"stepped"' in line]
        for place in (stage_of(RUN), whole)
    )
    assert len(mine) == len(its) == 6


def test_the_pointer_is_written_after_everything_that_it_points_to(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[str] = []
    plain_upload, plain_write = remote.upload, remote.write

    def upload(path: Path, address: Address) -> None:
        plain_upload(path, address)
        wrote.append(address.text.removeprefix("memory://runs/a/"))

    def write(address: Address, data: bytes) -> None:
        name = address.text.removeprefix("memory://runs/a/")
        if name in ("last", "best"):
            folder = data.decode().strip()
            there = {path.rpartition("/")[2] for path in memory.find(f"/runs/a/{folder}")}
            assert {"model.safetensors", "average.safetensors", "optimizer.safetensors", "progress.json"} <= there
            ours = [name for name in wrote if name.startswith(f"{folder}/")]
            assert ours[-1] == f"{folder}/progress.json"
        plain_write(address, data)
        wrote.append(name)

    monkeypatch.setattr(remote_run, "upload", upload)
    monkeypatch.setattr(remote_run, "write", write)
    train()
    assert wrote.count("last") == 4  # steps 2, 3 (the best), 4, 6
    assert wrote.count("best") >= 1


@pytest.mark.parametrize("number", [0, 3])
def test_an_upload_that_breaks_leaves_the_checkpoint_before_it(
    number: int, memory: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine dies for good while it sends file `number` of step 4: another one resumes from step 3, or 2."""
    train(stop=3)
    sent = 0
    plain = remote.upload

    def upload(path: Path, address: Address) -> None:
        nonlocal sent
        if "/step-4/" in address.text:
            sent += 1
            if sent > number:
                raise StorageError("the machine is gone")
        elif sent > number:
            raise StorageError("the machine is gone")
        plain(path, address)

    monkeypatch.setattr(remote_run, "upload", upload)
    with pytest.raises(TrainingError, match="the machine is gone") as caught:
        train(stop=4)
    assert "run the same command again" in str(caught.value.hint)
    monkeypatch.setattr(remote_run, "upload", plain)
    another_machine(monkeypatch, tmp_path)
    assert memory.cat_file("/runs/a/last") == b"checkpoints/step-3\n"
    [started] = [event for event in train() if isinstance(event, Started)]
    assert started.step == 3
    assert same(last(stage_of(RUN)), last(whole))
    assert steps_there(memory) == {path.name for path in (stage_of(RUN) / "checkpoints").iterdir() if not path.name.startswith(".")}


def test_a_server_that_is_gone_for_a_while_costs_a_warning(memory: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = remote.upload

    def upload(path: Path, address: Address) -> None:
        if "/step-2/" in address.text:
            raise StorageError("no answer")
        plain(path, address)

    monkeypatch.setattr(remote_run, "upload", upload)
    warned = [event.message for event in train() if isinstance(event, Warned)]
    assert [message for message in warned if "not on the server yet" in message and "no answer" in message]
    assert memory.cat_file("/runs/a/last") == b"checkpoints/step-6\n"
    assert same(last(stage_of(RUN)), last(whole))


def test_a_stage_that_is_further_than_the_server_goes_on(memory: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(stop=2)
    plain = remote.upload

    def upload(path: Path, address: Address) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(remote_run, "upload", upload)
    with pytest.raises(TrainingError, match="no answer"):
        train(stop=5)
    monkeypatch.setattr(remote_run, "upload", plain)
    assert memory.cat_file("/runs/a/last") == b"checkpoints/step-2\n"
    [started] = [event for event in train() if isinstance(event, Started)]
    assert started.step == 5
    assert same(last(stage_of(RUN)), last(whole))
    assert memory.cat_file("/runs/a/last") == b"checkpoints/step-6\n"


def test_a_run_that_was_deleted_on_the_server_begins_anew(memory: Any) -> None:
    train(stop=2)
    memory.rm("/runs/a", recursive=True)
    [started] = [event for event in train(stop=1) if isinstance(event, Started)]
    assert not started.resumed


def test_a_damaged_checkpoint_on_the_server_is_not_resumed_from(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(stop=2)
    path = "/runs/a/checkpoints/step-2/model.safetensors"
    content = memory.cat_file(path)
    memory.pipe_file(path, content[:-1] + bytes([content[-1] ^ 1]))
    another_machine(monkeypatch, tmp_path)
    with pytest.raises(TrainingError, match=r"model\.safetensors missing or changed"):
        train()


def test_every_checkpoint_on_the_server_is_whole(memory: Any, tmp_path: Path) -> None:
    train()
    for step in steps_there(memory):
        folder = tmp_path / step
        folder.mkdir()
        for path in memory.find(f"/runs/a/checkpoints/{step}"):
            (folder / path.rpartition("/")[2]).write_bytes(memory.cat_file(path))
        assert f"step-{read_progress(folder).step}" == step
    kept = {path.name for path in (stage_of(RUN) / "checkpoints").iterdir()}
    assert steps_there(memory) == kept


def test_a_model_is_loaded_from_the_address_of_a_run_of_a_checkpoint_and_of_a_file(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load("memory://runs/a")
    train(stop=4)
    another_machine(monkeypatch, tmp_path)
    running = load("memory://runs/a")
    assert any("is not finished: the averaged weights of its last checkpoint" in note for note in running.notes)
    train()
    shutil.rmtree(tmp_path / "another")
    finished = load("memory://runs/a")
    assert not any("is not finished" in note for note in finished.notes)
    of_file = load("memory://runs/a/model.safetensors")
    assert all((a == b).all() for a, b in zip(finished.model.parameters(), of_file.model.parameters(), strict=True))
    assert set(Run.load("memory://runs/a").metrics) >= {"loss", "top1"}
    assert str(Run.load("memory://runs/a").to_json()["model"]) == "memory://runs/a/model.safetensors"


def test_a_second_writer_is_refused_while_the_first_lives(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Lease(RUN, seconds=0.8), Lease(RUN, seconds=4.0)
    with first.held():
        with pytest.raises(TrainingError, match=r"memory://runs/a is in use by process"), second.held():
            pass
        first.check()
    with Lease(RUN, seconds=4.0).held():  # it was released, so nobody waits
        pass


def test_a_second_writer_takes_over_from_one_that_is_silent_which_then_writes_no_pointer(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, second = Lease(RUN, seconds=1000.0), Lease(RUN, seconds=0.2)  # the first renews its lease after 250 s
    with silent.held():
        with second.held():
            second.check()
            with pytest.raises(TrainingError, match="another process has taken over"):
                silent.check()
        assert second.number == silent.number + 1


def test_of_many_writers_at_once_one_gets_the_folder(memory: Any) -> None:
    leases = [Lease(RUN, seconds=1000.0) for _ in range(5)]
    with leases[0].held():
        place = leases[0]._place(leases[0].number + 1)
        won = [remote.create(place, lease._text(0)) for lease in leases]
        assert won.count(True) == 1


def test_a_run_that_lost_its_folder_stops_without_touching_it(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = RemoteRunDirectory.publish

    def publish(self: RemoteRunDirectory, step: int) -> list[str]:
        if step == 4:
            remote.create(self._lease._place(self._lease.number + 1), b"{}")  # another machine
        return plain(self, step)

    monkeypatch.setattr(RemoteRunDirectory, "publish", publish)
    with pytest.raises(TrainingError, match="another process has taken over"):
        train()
    assert memory.cat_file("/runs/a/last") == b"checkpoints/step-3\n"
