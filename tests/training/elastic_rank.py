"""A rank of an elastic test: trains as the command line does, at a pace that the test sets, and writes down each step.

    elastic_rank.py RUN.json OUT PACE LOG

PACE is a file with the seconds to wait after each step. A line of LOG is `RANKS STEP HOST`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import vitlab
from vitlab.cli import console
from vitlab.errors import VitlabError
from vitlab.training.events import TERMINATED, Finished, Stepped, signals


def main(run: str, out: str, pace: str, log: str) -> int:
    stream = vitlab.train(run, out=out)
    ranks, host = os.environ["WORLD_SIZE"], socket.gethostname()
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    reason = None
    with signals(stream.control):
        for event in stream:
            if isinstance(event, Stepped):
                os.write(written, f"{ranks} {event.step} {host}\n".encode())
                time.sleep(float(Path(pace).read_text()))
            if isinstance(event, Finished):
                reason = event.reason
    return 0 if reason == "finished" else TERMINATED


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except VitlabError as error:
        console.error(error)
        sys.exit(1)
