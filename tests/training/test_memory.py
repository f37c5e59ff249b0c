"""A process that keeps the memory it frees computes the same numbers."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from tests import processes

_UPDATE = """
import resource, torch
from vitlab.training.events import keep_memory
asked = keep_memory() if {keep} else False
def work():
    parts = [torch.full((12_000_000,), float(number)) for number in range(4)]
    return float(sum(parts).mean())
least = None
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    value = work()
    count = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    least = count if least is None else min(least, count)
print(asked, value, least)
"""


def faults(warm: Path, *, keep: bool) -> tuple[str, str, int]:
    """In its own process: whether memory is kept, a sum, and the fewest page faults that a pass took."""
    text = processes.run([warm / "python", "-c", _UPDATE.format(keep=keep)]).stdout
    asked, value, count = text.split()
    return asked, value, int(count)


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_kept_memory_causes_fewer_page_faults(warm: Path) -> None:
    asked, value, kept = faults(warm, keep=True)
    _, same, given_back = faults(warm, keep=False)
    assert asked == "True"
    assert value == same
    assert kept < given_back / 2  # in the best pass: the first one has all faults, and a machine short of memory takes pages away
