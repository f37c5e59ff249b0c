"""What the command line writes to stderr: a progress bar on a terminal, lines elsewhere, and what vitlab logs."""

from __future__ import annotations

import io
import logging
import os
import sys

import pytest

from vitlab.cli import console
from vitlab.cli.main import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_is_done_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with console.bar() as progress:
        progress("counting", 5, None)
        progress("predicting [bold]\x1b", 0, 40)
        progress("predicting [bold]\x1b", 30, 40)
    drawn = screen.getvalue()
    assert "predicting [bold]\\x1b" in drawn  # neither markup nor what a terminal would act on
    assert "30/40" in drawn
    assert "counting" in drawn


def test_runs_side_by_side_have_a_bar_each(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with console.bar() as progress:
        for step in range(1, 4):
            progress("run a", step, 9)
            progress("run b", 2 * step, 9)
    last = screen.getvalue()
    assert "3/9" in last
    assert "6/9" in last


def test_without_a_terminal_short_work_is_silent_and_long_work_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr("vitlab.cli.console.time.monotonic", lambda: now[0])
    with console.bar() as progress:
        for second in range(0, 25, 5):
            now[0] = float(second)
            progress("predicting", second, 40)
            progress("counting", second, None)
    assert log.getvalue().splitlines() == [
        "predicting: 10 of 40 (25 %)",
        "counting: 10",
        "predicting: 20 of 40 (50 %)",
        "counting: 20",
    ]


def test_a_download_has_a_line_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with console.bar(of_bytes=True) as progress:
        progress("downloading a.zip", 0, 40)
        progress("downloading a.zip", 20, 40)
    assert log.getvalue() == "downloading a.zip\n"


@pytest.mark.parametrize(("rank", "lines"), [(None, ["note: it's 5 % more"]), ("0", ["note: it's 5 % more"]), ("1", [])])
def test_what_vitlab_logs_is_printed_by_the_first_process(
    rank: str | None, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    log = logging.getLogger("vitlab")
    with console.logged():
        log.info("note: %s", "it's 5 % more")
    log.info("afterwards nobody listens")
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(("given", "found"), [({}, "10000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_waiting_threads_give_their_core_away_unless_the_user_decides(
    given: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, given.get(name, ""))  # so that it is restored
        if name not in given:
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["vitlab", "--version"])
    assert main() == 0
    assert os.environ.get("GOMP_SPINCOUNT") == found
