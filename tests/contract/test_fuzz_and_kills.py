"""The programs that look for faults work: broken files are opened, each kind of failure is seen, and killed work is compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer reads /proc")


def test_sixty_broken_files_are_read_or_refused(warm: Path, checkout: Path, tmp_path: Path) -> None:
    words: list[str | Path] = [
        warm / "python",
        checkout / "benchmarks" / "fuzz.py",
        "--inputs",
        "60",
        "--json",
        "--keep",
        tmp_path / "kept",
    ]
    done = processes.run(words, check=False)
    report = json.loads(done.stdout)
    assert report["failures"] == []
    assert done.returncode == 0
    assert sum(sum(counts.values()) for counts in report["counts"].values()) == 60


LURED = """
import json, os, socket, sys, time
sys.path.insert(0, sys.argv[1])
from benchmarks import fuzz
from benchmarks.fuzz_seeds import Input
from vitlab.errors import DataError

def refused(): raise DataError("x")
def traceback(): raise TypeError("x")
def hang():
    began = time.process_time()
    while time.process_time() < began + 0.3: pass
def memory(): bytearray(100 << 20)[::4096]
def executed(): os.system("true")
def socket_(): socket.socket()
def died(): os._exit(3)

lures = {lure.__name__.strip("_"): lure for lure in (refused, traceback, hang, memory, executed, socket_, died)}
fuzz.CPU_SECONDS, fuzz.MEGABYTES = 0.1, 64
fuzz.WaysIn.open = lambda self, given, path, out, *, slow: self._timed(lures[given.opened])
with fuzz.child() as process:
    found = {name: process.open(Input(group="image", files={name: b""}, opened=name), slow=False).outcome for name in lures}
print(json.dumps(found))
"""


def test_each_kind_of_failure_is_seen(warm: Path, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "lured.py").write_text(LURED)
    done = processes.run([warm / "python", tmp_path / "lured.py", checkout])
    found = json.loads(done.stdout)
    assert found == {name: name for name in ("refused", "traceback", "hang", "memory", "executed", "socket", "died")}


def test_work_that_is_killed_ends_with_the_same_bits(warm: Path, checkout: Path) -> None:
    words: list[str | Path] = [warm / "python", checkout / "benchmarks" / "kills.py", "--kills", "3", "--works", "train,predict"]
    outcomes = json.loads(processes.run([*words, "--json"]).stdout)
    assert [(outcome["work"], outcome["faults"]) for outcome in outcomes] == [("train", []), ("predict", [])]
    assert all(outcome["kills"] for outcome in outcomes)
