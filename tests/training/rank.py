"""A rank of a test under torchrun: makes the runs of a list, one after the other, and prints a line for each.

    rank.py LIST.json     [{"run": RunConfig, "out": FOLDER, "stop": STEP or null, "fault": NAME or null}, ...]

A line is `PID RANK KIND ...`, written by one system call: two ranks share the pipe.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed

from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json
from vitlab.data.batch import Batch
from vitlab.data.loader import Stream
from vitlab.errors import VitlabError
from vitlab.training import pulse, train
from vitlab.training.distributed import world
from vitlab.training.events import Control


def say(*words: object) -> None:
    """Print one line with a single system call."""
    os.write(1, (" ".join(map(str, (os.getpid(), os.environ["RANK"], *words))) + "\n").encode())


def break_down(fault: str | None) -> None:
    """Make rank 1 fail in a given way; `repair` ends `full-disk`."""
    if fault is None or os.environ["RANK"] != "1":
        return
    if fault == "full-disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
    elif fault == "dies-before-telling":  # its part is on disk, but the other ranks do not know

        def die(*_: object, **__: object) -> None:
            os._exit(137)

        setattr(torch.distributed, "all_gather_object", die)  # noqa: B010 (its type is another)
    elif fault in ("hangs", "is-slow"):
        read = Stream.__next__

        def read_later(stream: Stream) -> Batch:
            time.sleep(1000 if fault == "hangs" else 0.5)
            return read(stream)

        setattr(Stream, "__next__", read_later)  # noqa: B010


def repair() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        if job["fault"] == "is-slow":
            setattr(pulse, "_COMPARED_EVERY", 4)  # noqa: B010
        control = Control()
        broken = False
        try:
            for event in train(from_json(RunConfig, job["run"]), out=job["out"], control=control):
                if event.event == "stepped":
                    say("stepped", event.step)
                    if event.step == job["stop"]:
                        control.request_stop("terminated")
                if job["fault"] is not None and event.event == "stepped" and event.step == job["at"] and not broken:
                    broken = True
                    break_down(job["fault"])
            say("done", Path(job["out"]).name)
        except VitlabError as error:
            repair()
            say("failed", Path(job["out"]).name, error.message.replace("\n", " "))
            if job["fault"] == "hangs":
                sys.exit(1)  # as the command line does: torchrun ends the rank that hangs


if __name__ == "__main__":
    listed = json.loads(Path(sys.argv[1]).read_text())
    with world(
        timeout=listed[0]["run"]["train"]["hang_timeout"]
    ):  # one for all runs: process groups that are made twice get in each other's way
        main(listed)
