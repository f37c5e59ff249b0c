"""run.json, progress.json or events.jsonl have another encoding, wrong types or missing lines: one error with the path, and
events are never a reason not to resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.runs import ten, warnings_of
from tests.training.small import last, run_to, same
from vitlab.errors import ConfigError, TrainingError
from vitlab.training.run import Run
from vitlab.training.run_folder import RunDirectory

DAMAGED = (b"", b"\xff\xfe{\0}\0", b"[]", b"17", b'{"name": 3}', b'{"name": "a"}', b"[" * 100_000, b"\0" * 10, b"null")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 4, with one checkpoint."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    run_to(ten(), out, stop=4)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(ten(), out)
    return out


@pytest.fixture
def out(stopped: Path, tmp_path: Path) -> Path:
    """A copy, to damage."""
    return shutil.copytree(stopped, tmp_path / "run", symlinks=True)


def test_a_damaged_run_json_is_named_and_can_be_replaced(out: Path, whole: Path) -> None:
    for damage in DAMAGED:
        (out / "run.json").write_bytes(damage)
        with pytest.raises(ConfigError, match=r"run\.json is not the config of a run") as caught:
            run_to(ten(), out)
        assert "delete it" in str(caught.value.hint)
        with pytest.raises(ConfigError, match=r"run\.json"):
            Run.load(out)
    (warning,) = warnings_of(run_to(ten(), out, stop=5, override=True))
    assert warning.endswith("it is replaced")
    (out / "run.json").unlink()
    run_to(ten(), out)
    assert same(last(out), last(whole))


def test_a_damaged_progress_json_is_named_and_the_checkpoint_is_not_used(out: Path) -> None:
    path = out / "checkpoints" / "step-4" / "progress.json"
    good = json.loads(path.read_bytes())
    for damage in (*DAMAGED, json.dumps(good | {"files": 3}).encode(), json.dumps(good | {"progress": {"step": "4"}}).encode()):
        path.write_bytes(damage)
        with pytest.raises(TrainingError, match=r"no checkpoint in .* can be read.*progress\.json"):
            run_to(ten(), out)
    path.unlink()
    path.mkdir()
    with pytest.raises(TrainingError, match=r"progress\.json"):
        run_to(ten(), out)


@pytest.mark.parametrize("damage", [*DAMAGED, b'3\n"a"\n[1]\n{"event": 5, "step": "x"}\n\xff\n', None])
def test_damaged_events_are_no_reason_not_to_resume(damage: bytes | None, out: Path, whole: Path) -> None:
    path = out / "events.jsonl"
    path.unlink() if damage is None else path.write_bytes(damage)
    run_to(ten(), out)
    assert same(last(out), last(whole))
    found = [event for event in RunDirectory(out).events() if event["event"] == "stepped"]
    assert [event["step"] for event in found] == list(range(5, 11))
    assert Run.load(out).step == 10


def test_events_that_cannot_be_written_are_a_warning(out: Path, whole: Path) -> None:
    (out / "events.jsonl").unlink()
    (out / "events.jsonl").mkdir()
    warnings = warnings_of(run_to(ten(), out))
    assert len(warnings) == 2  # once when old events are dropped, and once when the first is added
    assert all("events.jsonl" in warning for warning in warnings)
    assert same(last(out), last(whole))
    assert Run.load(out).step == 0  # nothing is known of how it went


def test_lines_of_a_sweep_with_wrong_types_count_as_not_complete(tmp_path: Path) -> None:
    from vitlab.training.sweep import sweep, trial_config

    run = ten()
    list(sweep(run, (1e-3,), out=tmp_path))
    place = tmp_path / "trials" / "lr-0.001"
    lines = (place / "events.jsonl").read_text().splitlines()
    ended = json.loads(lines[-1])
    wrongs: tuple[dict[str, object], ...] = (
        {"step": "x"},
        {"metrics": 3},
        {"metrics": {"top1": "x"}},
        {"seconds": []},
        {"model": 5},
    )
    for wrong in wrongs:
        (place / "events.jsonl").write_text("\n".join([*lines[:-1], json.dumps(ended | wrong)]) + "\n")
        names = [event.event for event in sweep(run, (1e-3,), out=tmp_path)]
        assert names[0] == "trial-started"
        assert names[-1] == "sweep-finished"
    assert RunDirectory(place).config() == trial_config(run, 1e-3)


def test_a_damaged_line_about_the_end_of_a_run_is_passed_over(whole: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    sound = Run.load(whole)
    assert sound.reason == "finished"
    changes: list[dict[str, object]] = [
        {"seconds": "x"},
        {"step": None},
        {"metrics": 3},
        {"metrics": {"top1": []}},
        {"reason": {}},
        {"model": 7},
    ]
    for change in changes:
        lines = (whole / "events.jsonl").read_text().splitlines()
        lines[-1] = json.dumps({**json.loads(lines[-1]), **change})
        (damaged / "events.jsonl").write_text("\n".join(lines))
        run = Run.load(damaged)
        assert (run.reason, run.metrics) == (None, {})
        str(run)
