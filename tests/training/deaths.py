"""Kill a run again and again, each time at another moment, and start it again. One interpreter imports torch, and each attempt
is a fork of it, made before any thread exists: this takes milliseconds per attempt rather than seconds.

    deaths.py PLAN.json     {"run": RunConfig, "out": FOLDER, "moments": [MOMENT, ...]}

A moment is
    {"call": N}                      before the N-th call that touches a file of the run: open, rename, remove, mkdir, link, fsync
    {"rename_to": "step-3"}          before what is finished gets that name
    {"seconds": S}                   SIGKILL from outside after so long

Prints one JSON list: for each attempt `step` and `saved`, the last ones it reported, 0 if none, and its exit `code`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - torch.optim imports it at its first use: here, so that no fork has to

from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json
from vitlab.training import train

_TOUCHING = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.listdir")
_DEATH = 137


def die_at(moment: dict[str, Any], out: str) -> None:
    """End this process at that moment, as SIGKILL would."""
    count = 0

    def touched() -> None:
        nonlocal count
        count += 1
        if count == moment.get("call"):
            os._exit(_DEATH)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _TOUCHING and arguments and str(arguments[0]).startswith(out):
            if event == "os.rename" and str(arguments[1]).endswith(moment.get("rename_to", "\0")):
                os._exit(_DEATH)
            touched()

    real = os.fsync

    def fsync(descriptor: int) -> None:
        touched()
        real(descriptor)

    setattr(os, "fsync", fsync)  # noqa: B010 (its type is another)
    sys.addaudithook(hear)


def attempt(plan: dict[str, Any], moment: dict[str, Any]) -> dict[str, int]:
    """Start or resume the run, and be killed or finish."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        if "seconds" not in moment:
            die_at(moment, plan["out"])
        for event in train(from_json(RunConfig, plan["run"]), out=plan["out"]):
            if event.event in ("stepped", "saved"):
                os.write(writer, f"{event.event} {event.step}\n".encode())
        os._exit(0)
    os.close(writer)
    if "seconds" in moment:
        time.sleep(moment["seconds"])
        os.kill(child, signal.SIGKILL)
    reported = {"stepped": 0, "saved": 0}
    with os.fdopen(reader) as lines:
        for line in lines:
            what, step = line.split()
            reported[what] = int(step)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"step": reported["stepped"], "saved": reported["saved"], "code": code}


def main(plan: dict[str, Any]) -> None:
    from vitlab.training.checkpointing import read_progress
    from vitlab.training.run_folder import RunDirectory

    directory = RunDirectory(plan["out"])
    found = []
    for moment in plan["moments"]:
        ended = attempt(plan, moment)
        steps = directory.steps()
        found.append({**ended, "kept": read_progress(directory.step_path(steps[-1])).step if steps else 0})
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
