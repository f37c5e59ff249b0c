"""A command is not understood, is refused, or its reader leaves: one `error:` line, at most one `hint:` line, and an exit code.

That `--help` imports no heavy library is in tests/contract/test_light_import.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import processes
from vitlab.cli import main as cli
from vitlab.errors import ConfigError, DataError, UsageError
from vitlab.io.display import Facts


def printed(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr; nothing may be on stdout."""
    code = cli.main(words)
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err.splitlines()


def assert_one_error(lines: list[str]) -> None:
    assert [line.split(":")[0] for line in lines] in (["error"], ["error", "hint"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["descibe"], "no verb called 'descibe'"),
        (["--verbose"], "no option called --verbose"),
        (["describe"], "missing MODEL"),
        (["describe", "ViT-B/16", "--imagesize", "3"], "no option called --imagesize"),
        (["describe", "ViT-B/16", "more", "and more"], "unexpected argument 'more'"),
        (["describe", "ViT-B/16", "--num-classes", "ten"], "--num-classes: 'ten' is not a whole number of at least 0"),
        (["describe", "ViT-B/16", "--num-classes=-1"], "--num-classes: '-1' is not a whole number of at least 0"),
        (["describe", "ViT-B/16", "--num-classes"], "--num-classes needs a value"),
        (["describe", "ViT-B/16", "--image-size", "0"], "--image-size: '0' is neither one number"),
        (["describe", "nowhere.safetensors"], "no file or folder called 'nowhere.safetensors'"),
        (["describe", "../nowhere"], "no file or folder called '../nowhere'"),
        (["convert", "nowhere.npz", "out", "--to", "timm"], "SOURCE: no file or folder called 'nowhere.npz'"),
        (["convert", ".", "out", "--to", "tim"], "--to: 'tim' is not one of"),
        (["convert", "nowhere.npz", "out"], "missing --to"),
        (["convert"], "missing SOURCE, DESTINATION, --to"),
    ],
)
def test_a_command_line_not_understood_exits_2_with_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, lines = printed(capsys, words)
    assert code == 2
    assert_one_error(lines)
    assert lines[0].startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["descibe"], "did you mean describe?"),
        (["zzz"], "vitlab --help lists the verbs"),
        (["describe", "ViT-B/16", "--imagesize", "3"], "did you mean --image-size?"),
        (["convert", ".", "b", "--to", "tim"], "did you mean timm?"),
        (["describe", "ViT-X/16"], "did you mean"),
    ],
)
def test_a_near_miss_gets_a_suggestion(capsys: pytest.CaptureFixture[str], words: list[str], hint: str) -> None:
    _, lines = printed(capsys, words)
    assert lines[1].startswith(f"hint: {hint}")


def test_a_refusal_of_the_library_exits_1_with_its_message_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = printed(capsys, ["describe", "ViT-B/16", "--image-size", "225"])
    assert code == 1
    assert_one_error(lines)
    assert "--image-size 225x225" in lines[0]


def test_long_words_are_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300 + ".npz"
    _, lines = printed(capsys, ["convert", name, "out", "--to", "timm"])
    assert lines[0] == f"error: SOURCE: no file or folder called '{name}'"


def test_a_name_with_control_characters_stays_on_one_line_and_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = printed(capsys, ["a\nb\x1b[31m"])
    assert code == 2
    assert len(lines) == 2
    assert "\x1b" not in lines[0]


def failing(fault: BaseException) -> Callable[[], None]:
    """A verb that fails."""

    def probe() -> None:
        """Fail."""
        raise fault

    return probe


def test_ctrl_c_is_one_line_and_exit_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.VERBS, "probe", failing(KeyboardInterrupt()))
    assert printed(capsys, ["probe"]) == (130, ["interrupted"])


@pytest.mark.parametrize("bug", [ZeroDivisionError("bug"), BrokenPipeError("some socket")])
def test_a_bug_is_not_dressed_up_as_an_error_of_the_user(bug: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "probe", failing(bug))
    with pytest.raises(type(bug)):
        cli.main(["probe"])


def test_an_error_without_a_hint_prints_no_hint_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.VERBS, "probe", failing(DataError("a.jpg is cut off")))
    assert printed(capsys, ["probe"]) == (1, ["error: a.jpg is cut off"])


def test_a_setting_that_cannot_be_used_leads_to_the_help_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.VERBS, "probe", failing(ConfigError("width=0 is too small")))
    assert printed(capsys, ["probe"]) == (1, ["error: width=0 is too small", "hint: vitlab probe --help lists what it takes"])


def test_a_parameter_is_named_as_the_command_line_spells_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.VERBS, "probe", failing(UsageError("`image_size` is missing", hint="or leave `start` out")))
    assert printed(capsys, ["probe"]) == (2, ["error: --image-size is missing", "hint: or leave --from out"])


def test_a_strict_verb_shows_what_it_found_and_then_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = DataError("2 problems")
    fault.result = Facts({"problems": 2})
    monkeypatch.setitem(cli.VERBS, "probe", failing(fault))
    assert cli.main(["probe"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "problems  2\n"
    assert captured.err == "error: 2 problems\n"


def vitlab(*words: str, stdout: int, unbuffered: str) -> subprocess.CompletedProcess[str]:
    """The installed command, as a shell would start it."""
    return processes.run(
        [Path(sys.executable).with_name("vitlab"), *words],
        stdout=stdout,
        env={"PYTHONUNBUFFERED": unbuffered},
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("--help",), ("describe", "--help"), ("describe", "ViT-B/16")])
def test_a_reader_that_leaves_ends_the_command_in_silence(words: tuple[str, ...], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = vitlab(*words, stdout=writer, unbuffered=unbuffered)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error_not_a_traceback(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = vitlab("--help", stdout=full.fileno(), unbuffered=unbuffered)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: cannot write the output: no space left on the device"]


def test_ctrl_c_in_a_real_process_leaves_one_line_and_130() -> None:
    start = """
import time
import vitlab.cli.main as cli

def probe() -> None:
    "Wait."
    print("ready", flush=True)
    time.sleep(60)

cli.VERBS["probe"] = probe
raise SystemExit(cli.main(["probe"]))
"""
    with processes.started([sys.executable, "-c", start]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, told_on_stderr = process.communicate(timeout=processes.LIMIT)
    assert process.returncode == 130
    assert told_on_stderr == "interrupted\n"
