"""A progress bar is drawn on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from vitlab.cli.progress import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_what_is_done_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with bar() as tell:
        tell("counting", 5, None)
        tell("predicting [bold]\x1b", 0, 40)
        tell("predicting [bold]\x1b", 30, 40)
    drawn = screen.getvalue()
    assert "predicting [bold]\\x1b" in drawn  # neither markup nor what a terminal would act on
    assert "30/40" in drawn
    assert "counting" in drawn


def test_a_log_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with bar() as tell:
        tell("predicting", 30, 40)
    assert log.getvalue() == ""
