"""A parent ignores or blocks signals, as `nohup`, background jobs and supervisors do: what is ignored stays ignored, and the
run can still be stopped."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.faults.runs import child, wait_for
from tests.training.small import last, small_run
from vitlab.training.events import Control, signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """`nohup vitlab finetune ... &`: a Ctrl-C meant for another program does not stop it, SIGTERM does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control = Control()
        asked = []
        with signals(control):
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
                asked.append(control.stop)
        assert asked == [None, "terminated"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_that_the_parent_blocked_are_received_and_blocked_again_afterwards() -> None:
    numbers = {signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        control = Control()
        with signals(control):
            for number in numbers:
                signal.raise_signal(number)
            assert (control.stop, control.save) == ("terminated", True)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= numbers
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


UNHELPFUL = """
import signal
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
"""


def test_a_run_whose_parent_ignores_and_blocks_every_signal_stops_on_sigterm(warm: Path, tmp_path: Path) -> None:
    run = small_run(steps=100_000)
    run = replace(run, train=replace(run.train, save_every=0, evaluate_every=0))
    with child(run, tmp_path, warm, before=UNHELPFUL) as process:
        wait_for(process, 3)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=processes.LIMIT)
    assert process.returncode == 0, said
    assert last(tmp_path / "run").progress.step >= 3
