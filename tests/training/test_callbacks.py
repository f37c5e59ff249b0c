"""Callbacks show what happened, on a terminal and in a log file."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from vitlab.errors import ConfigError
from vitlab.training.callbacks import (
    Display,
    Lines,
    Pace,
    console_callback,
    duration,
    event_lines,
    format_metrics,
    peak_memory,
    run_callbacks,
)
from vitlab.training.events import Evaluated, Finished, MicroBatchReduced, Saved, Skipped, Started, Stepped, Warned
from vitlab.training.sweep import SweepEvent, SweepFinished, Trial, TrialFinished, TrialStarted


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def started(*, step: int = 0, steps: int = 100, notes: tuple[str, ...] = ()) -> Started:
    return Started(
        step=step, steps=steps, parameters=1000, trainable=1000, images=640, out=Path("runs/x"), resumed=step > 0, notes=notes
    )


def stepped(step: int, *, steps: int = 100, loss: float = 1.0, accuracy: float | None = 0.5) -> Stepped:
    return Stepped(
        step=step,
        steps=steps,
        epoch=step / 10,
        loss=loss,
        accuracy=accuracy,
        lr=1e-3,
        gradient_norm=2.0,
        images=64,
        seconds=0.5,
        micro_batch=64,
    )


EVENTS: list[SweepEvent] = [
    started(notes=("starts from a.npz",)),
    stepped(1),
    MicroBatchReduced(step=2, micro_batch=32),
    Skipped(step=2, reason="the loss is nan", in_a_row=1),
    Warned(step=2, message="cats/3.jpg: cannot be read"),
    Evaluated(step=2, metrics={"loss": 0.5, "top1": 0.8125}, best=True),
    Saved(step=2, path=Path("runs/x/checkpoints/step-2"), seconds=0.1),
    Finished(step=2, reason="finished", model=Path("m"), metrics={"top1": 0.8125}, seconds=3.0),
]


def test_every_event_but_a_step_or_a_checkpoint_is_a_line() -> None:
    said = [line for event in EVENTS for line in event_lines(event)]
    for words in (
        "starts",
        "note: starts from a.npz",
        "32 images at a time",
        "loss is nan",
        "warning: cats/3.jpg",
        "top1 81.25%",
    ):
        assert any(words in line for line in said), words
    assert said[-1] == "finished at step 2 after 3.0 s"
    assert not list(event_lines(stepped(1)))


@pytest.mark.parametrize("reason", ["finished", "terminated", "interrupted", "max-time", "patience"])
def test_every_end_is_one_line_and_a_stopped_run_says_how_to_resume(reason: str) -> None:
    (line,) = event_lines(Finished(step=5, reason=reason, model=None))  # type: ignore[arg-type]
    assert ("run the same command to resume" in line) == (reason in ("terminated", "interrupted", "max-time"))


def test_a_sweep_is_reported_trial_by_trial() -> None:
    ended = Finished(step=1, reason="finished", model=None)
    events: list[SweepEvent] = [
        TrialStarted(number=1, runs=3, lr=0.01, final=False, out=Path("a")),
        TrialFinished(trial=Trial(lr=0.01, metrics={"top1": 0.5}), cached=True),
        TrialFinished(trial=Trial(lr=0.1, error="the loss is nan"), cached=False),
        TrialStarted(number=3, runs=3, lr=0.01, final=True, out=Path("b")),
        SweepFinished(trials=(), lr=0.01, finished=ended),
    ]
    assert [line for event in events for line in event_lines(event)] == [
        "run 1 of 3: lr 0.01",
        "lr 0.01: top1 50.00%, from an earlier call",
        "lr 0.1: the loss is nan",
        "run 3 of 3: lr 0.01, on all training images",
        "the best lr is 0.01",
    ]


def test_progress_is_printed_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(stream, clock=clock)
    lines.on_event(started())
    for step in range(1, 41):
        clock.now += 1
        lines.on_event(stepped(step))
    stated = [line for line in stream.getvalue().splitlines() if line.startswith("step")]
    assert [line.split("  ")[0] for line in stated] == [f"step {step} of 100" for step in (1, 11, 21, 31)]


def test_a_line_has_step_epoch_loss_accuracy_lr_speed_memory_checkpoint_and_time_left() -> None:
    clock = Clock()
    pace = Pace(started(), clock=clock)
    for step in range(1, 51):
        clock.now += 0.5
        pace.on_event(stepped(step))
    pace.on_event(Saved(step=40, path=Path("p"), seconds=0.0))
    parts = pace.line().split("  ")
    assert parts[:5] == ["step 50 of 100", "epoch 5.00", "loss 1", "accuracy 50.0%", "lr 1.00e-03"]
    assert parts[5] == "128 images/s"
    assert parts[6].endswith("MiB")
    assert parts[7:] == ["checkpoint 40", "25 s left"]


def test_the_pace_follows_the_last_steps_and_ignores_the_time_before_the_first() -> None:
    clock = Clock()
    pace = Pace(started(steps=1000), clock=clock)
    clock.now += 100  # workers start
    pace.on_event(stepped(1, steps=1000))
    assert pace.seconds == 0.5
    for step in range(2, 300):
        clock.now += 2.0
        pace.on_event(stepped(step, steps=1000, loss=step / 100))
    assert pace.seconds == pytest.approx(2.0, rel=0.01)
    assert pace.left == pytest.approx((1000 - 299) * 2.0, rel=0.01)
    assert 2.5 < pace.loss < 2.99
    assert pace.done == 0.299


def test_a_resumed_run_counts_from_its_step() -> None:
    pace = Pace(started(step=60), clock=Clock())
    assert pace.done == 0.6
    assert pace.saved == 60
    assert math.isnan(pace.left)


def test_a_task_without_accuracy_shows_none() -> None:
    pace = Pace(started(), clock=Clock())
    pace.on_event(stepped(1, accuracy=None))
    assert "accuracy" not in pace.line()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.0, "59 s"), (60.0, "1 min 00 s"), (3599.6, "1 h 00 min"), (7800.0, "2 h 10 min"),
     (200_000.0, "2 d 07 h"), (math.nan, "unknown")],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_ratios_are_percentages_and_other_numbers_are_not() -> None:
    assert format_metrics({"loss": 0.41234, "top1": 0.5, "mean_average_precision": 0.25}) == (
        "loss 0.4123, top1 50.00%, mean_average_precision 25.00%"
    )


def test_the_peak_of_memory_never_falls() -> None:
    before = peak_memory()
    held = bytearray(1 << 20)
    assert peak_memory() >= before > len(held)


def test_control_characters_in_file_names_do_not_reach_the_terminal() -> None:
    event = Warned(step=1, message="cats/\x1b[31m\nred.jpg: cannot be read")
    stream = io.StringIO()
    Lines(stream).on_event(event)
    assert stream.getvalue() == "warning: cats/\\x1b[31m\\nred.jpg: cannot be read\n"
    shown = io.StringIO()
    Display(shown, console=Console(file=shown, width=200)).on_event(event)
    assert "\x1b[31m" not in shown.getvalue()


def test_the_display_shows_the_run_and_treats_no_name_as_markup() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None, highlight=False)
    display = Display(stream, clock=clock, console=console)
    display.on_event(started(notes=("data [bold]odd[/bold]/x",)))
    for step in range(1, 101):
        clock.now += 1
        display.on_event(stepped(step))
    display.on_event(Finished(step=100, reason="finished", model=None))
    display.close()
    text = stream.getvalue()
    assert "data [bold]odd[/bold]/x" in text  # no markup
    assert "step 100 of 100" in text
    assert "accuracy 50.0%" in text
    assert "50 s left" in text
    assert text.rstrip().endswith("finished at step 100 after 0.0 s")  # below the bar


def test_the_display_refreshes_at_most_five_times_a_second() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    display = Display(stream, clock=clock, console=console)
    display.on_event(started())
    before = stream.getvalue().count("step ")
    for step in range(1, 101):
        clock.now += 0.01
        display.on_event(stepped(step))
    assert stream.getvalue().count("step ") - before <= 6
    display.close()


def test_a_stream_that_is_not_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(console_callback(io.StringIO()), Lines)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(console_callback(Terminal()), Display)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(console_callback(Terminal()), Lines)


class Recorder:
    def __init__(self) -> None:
        self.events: list[SweepEvent] = []
        self.closed = False

    def on_event(self, event: SweepEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed = True


def test_every_callback_receives_every_event_and_is_closed_also_after_an_error() -> None:
    one, other = Recorder(), Recorder()
    assert run_callbacks(EVENTS, [one, other]) == EVENTS[-1]
    assert one.events == other.events == EVENTS
    assert one.closed

    def broken() -> Iterator[SweepEvent]:
        yield EVENTS[0]
        raise ConfigError("no")

    third = Recorder()
    with pytest.raises(ConfigError):
        run_callbacks(broken(), [third])
    assert third.closed


@pytest.mark.parametrize("callback", [Lines, Display])
def test_later_runs_of_a_sweep_say_only_what_is_new(callback: type[Lines | Display]) -> None:
    stream = io.StringIO()
    shown = callback(stream)
    for number, notes in enumerate((("head of zeros", "a guess"), ("head of zeros", "another guess")), 1):
        shown.on_event(TrialStarted(number=number, runs=2, lr=0.1, final=False, out=Path("a")))
        shown.on_event(started(notes=notes))
    shown.close()
    text = stream.getvalue()
    assert [text.count(words) for words in ("head of zeros", "a guess", "another guess", "starts:")] == [1, 1, 1, 2]


def test_a_sweep_shows_the_time_that_is_left_of_all_its_runs() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(stream, seconds=0.0, clock=clock)
    lines.on_event(TrialStarted(number=1, runs=4, lr=0.1, final=False, out=Path("a")))
    lines.on_event(started(steps=100))
    for step in range(1, 11):
        clock.now += 0.5
        lines.on_event(stepped(step))
    assert "45 s left, 3 min 15 s of the sweep" in stream.getvalue()
    lines.on_event(TrialStarted(number=4, runs=4, lr=0.1, final=True, out=Path("a")))
    lines.on_event(started(steps=100))
    lines.on_event(stepped(1))
    assert stream.getvalue().splitlines()[-1].endswith("50 s left")
