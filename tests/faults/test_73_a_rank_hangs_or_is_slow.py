"""One of two ranks hangs or is slow: the job ends in time, or goes on, and says which rank it is and on which host."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

from tests import processes
from tests.training.small import last, run_to
from tests.training.test_distributed import Job, even, losses_of, two_ranks
from vitlab.config.run import RunConfig


def impatient(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, hang_timeout=4.0, evaluate_every=0, save_every=0))


def test_a_rank_that_hangs_ends_the_job_and_is_named_and_no_step_is_lost(warm: Path, tmp_path: Path) -> None:
    job = Job(run=impatient(even(steps=9)), out=tmp_path / "run", fault="hangs", at=4)
    with two_ranks([job], tmp_path, warm) as process:
        assert process.stdout is not None
        failed = next(line for line in process.stdout if " failed " in line)
        process.communicate(timeout=processes.LIMIT)
    assert process.returncode != 0
    assert f"lost contact after step 4: rank 1 on {socket.gethostname()} hangs: after step 4 it still reads images" in failed
    assert "in read_later" in failed or "loader.py" in failed or "trainer.py" in failed
    assert last(tmp_path / "run").progress.step == 4  # though nothing was to be saved before the end
    run_to(impatient(even(steps=9)), tmp_path / "run")
    run_to(impatient(even(steps=9)), tmp_path / "alone")
    resumed, alone = losses_of(tmp_path / "run"), losses_of(tmp_path / "alone")
    assert len(resumed) == len(alone) == 9
    assert max(abs(one - other) for one, other in zip(resumed, alone, strict=True)) < 1e-5


def test_a_slow_rank_is_named_and_the_run_goes_on(warm: Path, tmp_path: Path) -> None:
    job = Job(run=even(steps=9), out=tmp_path / "run", fault="is-slow", at=1)
    with two_ranks([job], tmp_path, warm) as process:
        _, said = process.communicate(timeout=processes.LIMIT)
    assert process.returncode == 0, said
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    slow = [event["message"] for event in events if event["event"] == "warned" and "the median" in event["message"]]
    assert slow[0].startswith(f"rank 1 on {socket.gethostname()} takes ")
    assert "to read images" in slow[0]
    assert sum("to read images" in message for message in slow) == 1  # said once, though it stays slow
