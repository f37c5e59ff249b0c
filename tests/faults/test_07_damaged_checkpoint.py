"""A native checkpoint is cut short or one byte of it changes: vitlab refuses it by size or SHA-256.

A run that resumes warns of it and takes the newest checkpoint that is whole.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoints.small import small_checkpoint
from tests.training.small import last, run_to, same, small_run
from vitlab.checkpoints import describe, load, save
from vitlab.errors import CheckpointError, TrainingError
from vitlab.training.events import Started, Warned
from vitlab.training.run_folder import RunDirectory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("native") / "model.safetensors"
    save(small_checkpoint(), path)
    return path.read_bytes()


def _header_end(whole: bytes) -> int:
    return 8 + int.from_bytes(whole[:8], "little")


def test_thirty_truncations_are_refused(tmp_path: Path, whole: bytes) -> None:
    path, end = tmp_path / "model", _header_end(whole)
    cuts = [0, 1, 7, 8, 9, end - 1, end, end + 1, len(whole) - 1, len(whole) - 4]
    cuts += random.Random(0).sample(range(len(whole)), 20)
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            load(path)


def test_two_hundred_flipped_bytes_are_refused_wherever_they_are(tmp_path: Path, whole: bytes) -> None:
    path, end = tmp_path / "model", _header_end(whole)
    chance = random.Random(1)
    places = [*range(9), end - 1, end, len(whole) - 1, *chance.sample(range(end), 98), *chance.sample(range(end, len(whole)), 90)]
    for place in places:
        value = chance.choice([other for other in range(256) if other != whole[place]])
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        with pytest.raises(CheckpointError):
            load(path)


def test_every_bit_of_every_byte_of_the_header_matters(tmp_path: Path, whole: bytes) -> None:
    """All bytes, one bit each in turn, through `describe`, which reads nothing but the header."""
    path, end = tmp_path / "model", _header_end(whole)
    path.write_bytes(whole)
    with path.open("r+b", buffering=0) as file:
        for place in range(end):
            for value in (whole[place] ^ (1 << place % 8), whole[place]):
                file.seek(place)
                file.write(bytes([value]))
                if value != whole[place]:
                    with pytest.raises(CheckpointError):
                        describe(path)
    assert path.read_bytes() == whole


def test_spaces_tabs_and_case_that_mean_the_same_to_json_are_still_a_change(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model"
    end = _header_end(whole)
    header = whole[8:end]
    for old, new in ((b"\\\\ud800", b"\\\\uD800"), (b'"shape":[', b'"sh\\u0061pe":['), (b'"dtype":"F32",', b'"dtype": "F32",')):
        changed = header.replace(old, new, 1)
        assert changed != header
        path.write_bytes(len(changed).to_bytes(8, "little") + changed + whole[end:])
        with pytest.raises(CheckpointError):
            load(path)


def test_bytes_added_at_the_end_or_two_files_in_one_are_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model"
    for content in (whole + b"\0", whole + whole, b"\0" + whole, whole[:8] + whole):
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            load(path)


def test_weights_of_one_file_under_the_header_of_another_are_refused(tmp_path: Path, whole: bytes) -> None:
    save(small_checkpoint(seed=5), tmp_path / "other")
    other = (tmp_path / "other").read_bytes()
    (tmp_path / "model").write_bytes(whole[: _header_end(whole)] + other[_header_end(other) :])
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(tmp_path / "model")


def test_resume_ignores_a_damaged_checkpoint_with_a_warning_and_takes_the_one_before(tmp_path: Path) -> None:
    run_to(small_run(), tmp_path / "run", stop=7)
    directory = RunDirectory(tmp_path / "run")
    run = replace(small_run(), train=replace(small_run().train, keep=3))
    assert directory.steps() == [7]
    path = directory.step_path(7) / "optimizer.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(TrainingError, match="no checkpoint"):
        run_to(small_run(), tmp_path / "run")
    kept = tmp_path / "kept"
    run_to(run, kept, stop=7)
    assert RunDirectory(kept).steps() == [5, 6, 7]
    (RunDirectory(kept).step_path(7) / "model.safetensors").write_bytes(b"")
    events = run_to(run, kept)
    assert any(isinstance(event, Warned) and "step 7" in event.message for event in events)
    assert isinstance(events[0], Started)
    assert events[0].step == 6
    run_to(run, tmp_path / "whole")
    assert same(last(kept), last(tmp_path / "whole"))
