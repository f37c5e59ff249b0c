"""A parent ignores or blocks signals, as `nohup`, background jobs and supervisors do: what is ignored stays ignored, and the
run can still be stopped."""

from __future__ import annotations

import os
import signal

import pytest

from vitlab.training.control import Control, signals

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
