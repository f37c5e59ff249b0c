"""Two commands write one output file: the second is refused with the first one's process id, and a killed one blocks nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.inference import small
from vitlab.cli.main import main
from vitlab.errors import DataError
from vitlab.io.atomic import only_writer

_HOLD = """
import sys, time
from pathlib import Path
from vitlab.io.atomic import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_writer_is_refused_with_the_first_ones_process_id_until_it_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small.saved(tmp_path / "model.safetensors")
    for label in small.LABELS:
        small.photos(tmp_path / "images" / label, 1)
    data = str(tmp_path / "images")
    outs = {ending: tmp_path / f"out.{ending}" for ending in ("jsonl", "csv", "parquet", "npz")}
    commands = [
        ["predict", model, data, "--out", outs["jsonl"], "--resume"],
        ["predict", model, data, "--out", outs["csv"], "--overwrite"],
        ["predict", model, data, "--out", outs["parquet"], "--overwrite"],
        ["embed", model, data, outs["npz"]],
        ["evaluate", model, data, "--split", "all", "--subset", "--per-image", outs["csv"]],
    ]
    for out in outs.values():
        with processes.started([sys.executable, "-c", _HOLD, out]) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            for words in commands:
                if out in words:
                    assert main(list(map(str, words))) == 1
                    assert f"is being written by process {holder.pid} on" in capsys.readouterr().err
                    assert not out.exists()
            holder.send_signal(signal.SIGKILL)
            holder.wait(processes.LIMIT)
    for words in commands:
        assert main(list(map(str, words))) == 0
    assert not list(tmp_path.glob(".*"))  # the locks are gone with their holders


def test_two_resumed_predictions_lose_no_line(warm: Path, tmp_path: Path) -> None:
    model = small.saved(tmp_path / "model.safetensors")
    names = {str(path) for path in small.photos(tmp_path / "images", 40)}
    out = tmp_path / "out.jsonl"
    words: list[str | Path] = [
        warm / "vitlab",
        "predict",
        model,
        tmp_path / "images",
        "--out",
        out,
        "--resume",
        "--batch-size",
        "1",
    ]
    with (
        processes.started(words, stdout=subprocess.DEVNULL) as first,
        processes.started(words, stdout=subprocess.DEVNULL) as second,
    ):
        codes = {first.wait(processes.LIMIT), second.wait(processes.LIMIT)}
    assert codes <= {0, 1}
    assert 0 in codes
    assert sorted(json.loads(line)["name"] for line in out.read_text().splitlines()) == sorted(names)


def test_every_name_of_a_file_has_one_lock_and_a_device_has_none(tmp_path: Path) -> None:
    (tmp_path / "out.csv").touch()
    (tmp_path / "link.csv").symlink_to("out.csv")
    with (
        only_writer(tmp_path / "out.csv"),
        pytest.raises(DataError, match=f"process {os.getpid()} on"),
        only_writer(tmp_path / "link.csv"),
    ):
        pass
    with only_writer(Path(os.devnull)), only_writer(Path(os.devnull)):
        pass
