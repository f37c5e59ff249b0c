"""`vitlab quickstart` tells on a terminal and in a log how its runs do."""

from __future__ import annotations

import io

import pytest

from vitlab.cli.side_by_side import bars
from vitlab.studies.runner import Done, Went

WENT = Went(job="a", title="run [bold]a", step=3, steps=9, said="33% of the batch right")
DONE = Done(job="a", title="run [bold]a", steps=9, result={"test": {"right": 97, "of": 100}})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_has_a_line_for_the_begin_and_one_for_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(io.StringIO()) as hear:
        for event in (WENT, WENT, WENT, DONE):
            hear(event)
    assert capsys.readouterr().err.splitlines() == [
        "run [bold]a: 9 updates",
        "run [bold]a: done, 97.0 % of 100 test images right",
    ]


def test_a_terminal_has_a_bar_for_each_run_and_titles_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    with bars(terminal) as hear:
        hear(WENT)
        hear(DONE)
    shown = terminal.getvalue()
    assert "run [bold]a" in shown
    assert "9/9" in shown
    assert "97.0 % of 100 test images right" in shown
