"""Kill work with SIGKILL at random moments, again and again, and start it again: it must end with the bits of uninterrupted work.

    python benchmarks/kills.py --kills 1000 [--works train,predict,sweep,study,runs] [--seed N] [--json]

    train      a run with evaluation, averaged weights, mixup, dropout and gradient accumulation, a checkpoint every 5 steps
    predict    `vitlab.predict(..., resume=True)` over a folder of images
    sweep      three learning rates and the final run
    study      Noisy Student: a teacher, its labels, two students and their evaluations
    runs       a study of runs side by side, as `vitlab study scaling` and the others: two at once, in processes of their own

Each attempt is a fork of this process, which has imported torch and started no thread: it starts in milliseconds, not seconds.
What torch decides while it is imported is therefore decided once. After a random time the attempt is killed. The times are drawn
so that the work advances as the kills do, and the last attempt after all kills runs to the end. A kill counts as `inside a write`
if it left a file or folder half written. `lost` is the largest number of reported steps that were not on disk.

The exit code is 1 if an attempt ended by itself with an error, if anything differs from the uninterrupted work, or if more than
one interval of steps was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process that forks must have one thread

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # run as a script, its own folder is all that Python looks in

import numpy as np  # noqa: E402
import torch._dynamo  # noqa: E402 - torch.optim imports it at its first use: here, so that no attempt has to
from PIL import Image  # noqa: E402

import vitlab  # noqa: E402
import vitlab.evaluation  # noqa: E402
import vitlab.inference  # noqa: E402
from benchmarks.fuzz_seeds import small_run, tiny_checkpoint  # noqa: E402
from vitlab.config import RunConfig, ViTConfig  # noqa: E402
from vitlab.io.atomic import REPLACED, UNFINISHED  # noqa: E402
from vitlab.io.display import silent  # noqa: E402
from vitlab.studies.config import NoisyStudent, NoisyStudentConfig  # noqa: E402
from vitlab.studies.noisy_student import noisy_student  # noqa: E402
from vitlab.studies.protocol import evaluate_finetuned  # noqa: E402
from vitlab.studies.study import Job, Study, Verdict, run_study  # noqa: E402
from vitlab.training import train  # noqa: E402
from vitlab.training.checkpointing import read_snapshot  # noqa: E402
from vitlab.training.events import Stepped  # noqa: E402
from vitlab.training.run_folder import RunDirectory  # noqa: E402
from vitlab.training.sweep import sweep  # noqa: E402

INTERVAL = 5  # steps between two checkpoints of the run
_PATIENCE = 600.0  # seconds for an attempt that nobody kills
_UNFINISHED = (UNFINISHED, REPLACED, ".new", ".deleted")  # ends of the names of what is being written, replaced, linked, deleted
_TIMES = ("seconds", "path", "model")  # of an event: what two runs of the same do not share


class Work(Protocol):
    """Work that can be interrupted and resumed in its folder; `total` units of it are done in the end."""

    total: int

    def resume(self, out: Path, report: Callable[[int], None]) -> None:
        """Start it or resume it, and report each finished unit, if units are counted while it runs."""
        ...

    def kept(self, out: Path) -> int:
        """The units that are on disk."""
        ...

    def results(self, out: Path) -> dict[str, Any]:
        """Everything that must be the same, by name, once the work is done."""
        ...


def run_results(folder: Path) -> dict[str, Any]:
    """The weights, the optimizer, the averaged weights, the trained model and the facts of all events of a run."""
    snapshot = read_snapshot(folder / "last")
    found: dict[str, Any] = {"model.safetensors": (folder / "model.safetensors").read_bytes()}
    for name, tensors in (("model", snapshot.model), ("optimizer", snapshot.optimizer), ("average", snapshot.average or {})):
        found |= {f"{name} {key}": tensors[key].reshape(-1).view(torch.uint8).numpy().tobytes() for key in tensors}
    told = ("stepped", "evaluated", "skipped", "micro-batch-reduced")
    events = [event for event in RunDirectory(folder).events() if event["event"] in told]
    found["events"] = [{name: value for name, value in event.items() if name not in _TIMES} for event in events]
    return found


def steps_in(folder: Path) -> int:
    """The step of the newest checkpoint of a run, 0 without one."""
    return max(RunDirectory(folder).steps(), default=0)


def training_run(steps: int) -> RunConfig:
    """A tiny run with everything that a resumed run must restore."""
    run = small_run()
    assert isinstance(run.model, ViTConfig)
    model = replace(run.model, dropout=0.1, drop_path=0.1)
    settings = replace(run.train, steps=steps, save_every=INTERVAL, evaluate_every=5 * INTERVAL, micro_batch=3)
    return replace(run, model=model, train=settings)


class Train:
    """One training run."""

    def __init__(self, kills: int) -> None:
        self.total = max(40, 2 * kills)
        self.run = training_run(self.total)

    def resume(self, out: Path, report: Callable[[int], None]) -> None:
        for event in train(self.run, out=out):
            if isinstance(event, Stepped):
                report(event.step)

    def kept(self, out: Path) -> int:
        return steps_in(out)

    def results(self, out: Path) -> dict[str, Any]:
        return run_results(out)


class Predict:
    """Predictions of a folder of images, continued in one file."""

    def __init__(self, kills: int, folder: Path) -> None:
        self.total = max(200, 30 * kills)
        self.model, self.images = folder / "model.safetensors", folder / "images"
        vitlab.save(tiny_checkpoint(), self.model)
        self.images.mkdir()
        rng = np.random.default_rng(0)
        for number in range(self.total):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(self.images / f"{number:06}.png")

    def resume(self, out: Path, report: Callable[[int], None]) -> None:
        out.mkdir(exist_ok=True)
        vitlab.predict(self.model, self.images, out=out / "out.jsonl", resume=True, batch_size=4, backend="torch")

    def kept(self, out: Path) -> int:
        file = out / "out.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def results(self, out: Path) -> dict[str, Any]:
        return {"out.jsonl": (out / "out.jsonl").read_bytes()}


class Sweep:
    """Three learning rates, and the final run with the best of them."""

    lrs = (1e-4, 1e-3, 1e-2)

    def __init__(self, kills: int) -> None:
        self.run = training_run(max(20, kills // 2))
        self.total = 4 * self.run.train.steps

    def resume(self, out: Path, report: Callable[[int], None]) -> None:
        for _ in sweep(self.run, self.lrs, out=out, evaluate_split="test"):
            pass

    def _runs(self, out: Path) -> list[Path]:
        return [*(out / "trials" / f"lr-{lr:g}" for lr in self.lrs), out / "final"]

    def kept(self, out: Path) -> int:
        return sum(steps_in(folder) for folder in self._runs(out))

    def results(self, out: Path) -> dict[str, Any]:
        found: dict[str, Any] = {"sweep.json": (out / "sweep.json").read_bytes()}
        return found | {f"{folder.name} {name}": value for folder in self._runs(out) for name, value in run_results(folder).items()}


class NoisyStudy:
    """Noisy Student with two students."""

    rounds = 2

    def __init__(self, kills: int, folder: Path) -> None:
        self.data = folder / "data"
        rng = np.random.default_rng(0)
        for split, count in (("train", 20), ("test", 10)):
            for code, kind in enumerate(("blue", "green", "red")):
                (self.data / split / kind).mkdir(parents=True)
                for number in range(count):
                    pixels = rng.normal(110, 45, (12, 12, 3))
                    pixels[:, :, 2 - code] += 60
                    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
                    image.save(self.data / split / kind / f"{number}.png")
        steps = max(20, kills // 2)
        self.total = 3 * steps
        self.study = NoisyStudent(
            data=str(self.data), shots=3, student="ViT-Mini/8", steps=steps, batch_size=12, image_size=(16, 16), lr=3e-3,
            noisy=NoisyStudentConfig(threshold=0.0, rounds=self.rounds),
        )  # fmt: skip

    def resume(self, out: Path, report: Callable[[int], None]) -> None:
        for _ in noisy_student(self.study, out=out, workers=0):
            pass

    def _runs(self, out: Path) -> list[Path]:
        return [out / f"round-{number}" / "run" for number in range(self.rounds + 1)]

    def kept(self, out: Path) -> int:
        return sum(steps_in(folder) for folder in self._runs(out))

    def results(self, out: Path) -> dict[str, Any]:
        found: dict[str, Any] = {
            f"{folder.parent.name} {name}": value for folder in self._runs(out) for name, value in run_results(folder).items()
        }
        return found | {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("round-*/result.json"))}


class Runs:
    """A study of six runs, two at a time; three start from the models of the others."""

    def __init__(self, kills: int) -> None:
        self.steps = max(20, kills)
        self.total = 6 * self.steps

    def resume(self, out: Path, report: Callable[[int], None]) -> None:
        run_study(self._study(out), out, notify=lambda _: None, progress=silent)

    def _study(self, out: Path) -> Study:
        run = training_run(self.steps)
        first = [
            Job(name=f"first-{seed}", title=f"first {seed}", run=replace(run, train=replace(run.train, seed=seed)),
                out=out / f"first-{seed}", evaluate=evaluate_finetuned)
            for seed in range(3)
        ]  # fmt: skip
        second = [
            Job(name=f"second-{seed}", title=f"second {seed}", run=replace(job.run, start=str(job.out / "model.safetensors")),
                out=out / f"second-{seed}", evaluate=evaluate_finetuned, after=(job.name,))
            for seed, job in enumerate(first)
        ]  # fmt: skip
        results = yield (*first, *second)
        return Verdict(rows=[], data={name: results[name] for name in sorted(results)})

    def kept(self, out: Path) -> int:
        return sum(steps_in(folder) for folder in out.glob("*-*"))

    def results(self, out: Path) -> dict[str, Any]:
        found: dict[str, Any] = {"verdict.json": (out / "verdict.json").read_bytes()}
        return found | {
            f"{folder.name} {name}": value for folder in sorted(out.glob("*-*")) for name, value in run_results(folder).items()
        }


# --- killing ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`kills` of one work, of them `inside_a_write`. `lost` is None where steps are not reported. Without `faults` all is well."""

    work: str
    kills: int
    inside_a_write: int
    lost: int | None
    units: int
    seconds: float
    faults: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How an attempt ended: its exit code, -9 if it was killed, and the last unit that it reported."""

    code: int
    reported: int


def attempt(work: Work, out: Path, log: Path, life: float | None) -> Attempt:
    """Resume the work in a fork of this process, and kill it after `life` seconds; None lets it live."""
    units = os.open(out.with_name("units"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for descriptor in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
            work.resume(out, lambda unit: _report(units, unit))
            code = 0
        except BaseException:  # noqa: BLE001 - as the interpreter does at the top
            traceback.print_exc()
        finally:
            os._exit(code)
    status = _waited(child, _PATIENCE if life is None else life)
    if status is None:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    reported = int(os.pread(units, 12, 0) or b"0")
    os.close(units)
    return Attempt(code=os.waitstatus_to_exitcode(status), reported=reported)


def _report(units: int, unit: int) -> None:
    os.pwrite(units, b"%012d" % unit, 0)


def _waited(child: int, seconds: float) -> int | None:
    """The status of a process that ends within so many seconds, else None."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(min(0.005, left))
    return None


def kill_again_and_again(name: str, work: Work, folder: Path, *, kills: int, seed: int) -> Outcome:
    """Do the work uninterrupted, then in the same place with so many kills, and compare."""
    rng = random.Random(f"{seed}/{name}")
    out, log = folder / "out", folder / "log"
    began = time.monotonic()
    if attempt(work, out, log, None).code:
        return Outcome(
            work=name, kills=0, inside_a_write=0, lost=None, units=0, seconds=0.0, faults=[f"uninterrupted: {_end_of(log)}"]
        )
    expected = _results(work, out, folder / "expected")
    out.rename(folder / "whole")
    longest = max(0.2, 2 * (time.monotonic() - began) / kills)
    done, inside, lost, faults = 0, 0, 0, list[str]()
    began = time.monotonic()
    while done < kills:
        before = work.kept(out)
        ended = attempt(work, out, log, rng.uniform(0, longest))
        kept = work.kept(out)
        if ended.code != -signal.SIGKILL:
            if ended.code:
                faults.append(f"after {done} kills: code {ended.code}: {_end_of(log)}")
            break
        done += 1
        inside += _half_written(out)
        if ended.reported:
            lost = max(lost, ended.reported - kept)
        if kept < before:
            faults.append(f"kill {done}: {before - kept} units that were on disk are gone")
        behind = kept / work.total < 0.85 * done / kills
        longest = max(0.05, longest * (1.05 if behind else 0.85))
    if not faults and (last := attempt(work, out, log, None)).code:
        faults.append(f"after the last kill: code {last.code}: {_end_of(log)}")
    if not faults:
        found = _results(work, out, folder / "found")
        faults += [f"{key} differs" for key in sorted(expected.keys() | found.keys()) if expected.get(key) != found.get(key)]
        faults += [f"{path.name} is left over" for path in _hidden(out)]
    reports = isinstance(work, Train)
    if reports and lost > INTERVAL:
        faults.append(f"{lost} steps were lost at once; a checkpoint is written every {INTERVAL}")
    return Outcome(
        work=name,
        kills=done,
        inside_a_write=inside,
        lost=lost if reports else None,
        units=work.total,
        seconds=round(time.monotonic() - began, 1),
        faults=faults,
    )


def _results(work: Work, out: Path, file: Path) -> dict[str, str]:
    """The digest of each result, made by a process of its own: reading tensors may start threads, and this process forks."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            found = {
                name: sha256(value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()).hexdigest()
                for name, value in work.results(out).items()
            }
            file.write_text(json.dumps(found))
            code = 0
        except BaseException:  # noqa: BLE001 - as the interpreter does at the top
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"the results in {out} cannot be read")
    read: dict[str, str] = json.loads(file.read_text())
    return read


def _half_written(out: Path) -> bool:
    """Whether something is there that was being written, replaced or deleted: by its name, or as half a line of results."""
    lines = out / "out.jsonl"
    cut = lines.exists() and lines.read_bytes()[-1:] not in (b"", b"\n")
    return cut or any(path.name.endswith(_UNFINISHED) for path in _hidden(out))


def _hidden(out: Path) -> list[Path]:
    return list(out.rglob(".*"))


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:] if log.exists() else ""


def works(names: list[str], kills: int, folder: Path) -> Iterator[tuple[str, Work, Path]]:
    """The works of these names, each with a folder of its own."""
    for name in names:
        place = folder / name
        place.mkdir()
        match name:
            case "train":
                yield name, Train(kills), place
            case "predict":
                yield name, Predict(kills, place), place
            case "sweep":
                yield name, Sweep(kills), place
            case "study":
                yield name, NoisyStudy(kills, place), place
            case "runs":
                yield name, Runs(kills), place
            case _:
                raise SystemExit(f"there is no work called {name!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of each work")
    parser.add_argument("--works", default="train,predict,sweep,study,runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="new folder to work in, which is kept (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    outcomes = []
    with nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory(prefix="vitlab-kills-") as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        for name, work, place in works(given.works.split(","), given.kills, Path(folder)):
            outcome = kill_again_and_again(name, work, place, kills=given.kills, seed=given.seed)
            outcomes.append(outcome)
            if not given.json:
                lost = "" if outcome.lost is None else f", lost {outcome.lost} steps at most"
                told = "; ".join(outcome.faults) or "the same bits as without a kill"
                counts = f"{outcome.kills:,} kills, {outcome.inside_a_write:,} inside a write{lost}, {outcome.seconds:.0f} s"
                print(f"{name:8} {counts}: {told}", flush=True)
    if given.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes]))
    return int(any(outcome.faults for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
