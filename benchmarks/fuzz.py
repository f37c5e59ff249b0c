"""Broken and hostile files through vitlab's real ways in: each must be read, or be refused by an error of vitlab.errors.

    python benchmarks/fuzz.py --inputs 20000 [--seed N] [--groups checkpoint,image,...] [--keep FOLDER] [--json]
    python benchmarks/fuzz.py --replay FOLDER/input-17-traceback.json

Groups: checkpoint, image, manifest, archive, run, scientific, masks, boxes (`fuzz_seeds.py` makes sound files,
`fuzz_mutations.py` breaks them; the same seed gives the same inputs).
One child process opens them one after the other; it is a fork of this process, which has imported torch, so that a new one
starts at once after a crash. Outcomes:

    ok         it was read
    refused    an error of vitlab.errors
    traceback  any other exception
    hang       more than 2 s of CPU time for one call, or a minute without an end
    memory     more than 512 MB above what the process had before, or memory was refused to it (its limit is 3 GB of addresses more)
    executed   code ran, a process started, or something was written or deleted outside the input's own folder
    socket     a socket was made or a name looked up
    died       the process ended

The exit code is 1 if there is any of the last six. Ctrl-C or SIGTERM reports what was found so far.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar, get_args

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process that forks must have one thread

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # run as a script, its own folder is all that Python looks in

import numpy as np  # noqa: E402
import pydicom.pixels  # noqa: E402, F401 - here for the same reason as torch's: what it imports tries a socket
import torch._dynamo  # noqa: E402 - torch.optim imports it at its first use: here, so that no child has to

import vitlab.errors  # noqa: E402
from benchmarks.fuzz_mutations import Corpus  # noqa: E402
from benchmarks.fuzz_seeds import GROUPS, Group, Input, small_run, tiny_checkpoint  # noqa: E402
from vitlab.config.data import Augment, DecodeLimits, ImageFormat, SplitRule  # noqa: E402
from vitlab.errors import DataError, VitlabError  # noqa: E402

CPU_SECONDS, CLOCK_SECONDS = 2.0, 60.0
MEGABYTES, LIMIT = 512, 3072
FAILURES = ("traceback", "hang", "memory", "executed", "socket", "died")
T = TypeVar("T")
OUTCOMES = ("ok", "refused", *FAILURES)
_ONE_IN = 8  # inputs that also go through the slower ways in
_READ = 12  # samples of a dataset, events of a resumed run


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one input: `words` is the error's message, or where a failure happened."""

    outcome: str
    words: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0


# --- the ways in --------------------------------------------------------------------------------------------------------------


class WaysIn:
    """What a user calls with each kind of file. `slow` inputs also go through the calls that take long."""

    def __init__(self) -> None:
        from vitlab.inference import Predictor

        self.longest = 0.0  # seconds of CPU time that one call took
        self._limits = DecodeLimits(formats=get_args(ImageFormat))
        self._augment = Augment(image_size=(16, 16))
        self._run = small_run()
        self._predictor = Predictor(tiny_checkpoint(), backend="torch", workers=0, limits=self._limits)

    def open(self, given: Input, path: Path, out: Path, *, slow: bool) -> None:
        """Open an input; what is written goes below `out`."""
        ways: dict[Group, Callable[[], None]] = {
            "checkpoint": lambda: self._checkpoint(path, out, slow),
            "image": lambda: self._image(path, slow),
            "manifest": lambda: self._dataset(given, path, slow),
            "archive": lambda: self._archive(given, path, out, slow),
            "run": lambda: self._resumed(path, out, slow),
            "scientific": lambda: self._scientific(path, slow),
            "masks": lambda: self._dataset(given, path, slow),
            "boxes": lambda: self._dataset(given, path, slow),
        }
        ways[given.group]()

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.process_time()
        try:
            return call()
        finally:
            self.longest = max(self.longest, time.process_time() - began)

    def _refusal(self, call: Callable[[], object]) -> VitlabError | None:
        """The error that a call is refused with; other exceptions pass."""
        try:
            self._timed(call)
        except VitlabError as error:
            return error
        return None

    def _checkpoint(self, path: Path, out: Path, slow: bool) -> None:
        from vitlab.inference import Predictor

        refused = self._refusal(lambda: vitlab.describe(path).to_json())
        checkpoint = self._timed(lambda: vitlab.load(path))
        if slow:
            self._timed(lambda: vitlab.convert(path, out / "native.safetensors", to="native"))
            self._timed(lambda: Predictor(checkpoint, backend="torch", workers=0)(torch.zeros(3, 16, 16)))
        _raise_first([refused])

    def _image(self, path: Path, slow: bool) -> None:
        from vitlab.data.transforms import training_transform
        from vitlab.inference.results import Unreadable

        (result,) = self._timed(lambda: list(self._predictor.stream([path])))
        content, rng = path.read_bytes(), np.random.default_rng(0)
        self._timed(lambda: training_transform(content, self._augment, rng, name=path.name, limits=self._limits, channels=3))
        if slow:
            self._timed(lambda: vitlab.check_data(f"images:{path.parent}").to_json())
        if isinstance(result, Unreadable):
            raise DataError(str(result))

    def _scientific(self, path: Path, slow: bool) -> None:
        """As an image, which the model may refuse for its channels, and as a dataset, which keeps them all."""
        self._refusal(lambda: self._image(path, slow))
        dataset = self._timed(lambda: vitlab.open_dataset(f"images:{path.parent}", split="all"))
        self._timed(lambda: dataset[0])

    def _dataset(self, given: Input, path: Path, slow: bool) -> None:
        spec = f"{given.reader}:{path}" if given.reader else path
        dataset = self._timed(lambda: vitlab.open_dataset(spec, split="all"))
        refused = [self._refusal(partial(dataset.__getitem__, index)) for index in range(min(len(dataset), _READ))]
        self._timed(dataset.fingerprint)
        if slow:
            self._timed(lambda: len(vitlab.open_dataset(spec, split="train", rule=SplitRule(val=0, test=0))))
            self._timed(lambda: vitlab.check_data(str(spec)).to_json())
        _raise_first(refused)

    def _archive(self, given: Input, path: Path, out: Path, slow: bool) -> None:
        from vitlab.inference.images import find_images
        from vitlab.io.archive import extract

        refused = []
        if path.suffix in (".zip", ".tar", ".npz"):
            refused.append(self._refusal(lambda: extract(path, out / "unpacked")))
        if path.suffix == ".zip":
            refused.append(self._refusal(lambda: list(self._predictor.stream(list(find_images([str(path)]))[:_READ]))))
        self._dataset(given, path, slow)
        _raise_first(refused)

    def _resumed(self, path: Path, out: Path, slow: bool) -> None:
        from vitlab.training import train
        from vitlab.training.run import Run

        def read() -> None:
            run = Run.load(path)
            json.dumps(run.to_json(), allow_nan=False)
            str(run)

        def resume() -> None:
            events = train(self._run, out=path)
            for _ in islice(events, _READ):
                pass
            assert isinstance(events, Generator)
            events.close()

        refused = [self._refusal(read), self._refusal(lambda: vitlab.train(path / "run.json", out=out))]
        if slow:
            refused.append(self._refusal(lambda: vitlab.report(path, out=out / "report.html")))
        _raise_first([*refused, self._refusal(resume)])


def _raise_first(errors: Sequence[VitlabError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


# --- the child process --------------------------------------------------------------------------------------------------------

_PROCESSES = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.Popen",
    "pty.spawn",
    "ctypes.dlopen",
)
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
)
_PACKAGE = str(Path(vitlab.errors.__file__).parent)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """An audit hook that records what an input must not cause, and refuses it where it would do harm."""

    def __init__(self, allowed: Path) -> None:
        self._allowed = (str(allowed), "/dev/null", "/dev/shm")
        self.on = False
        self.found: list[tuple[str, str]] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event.startswith("socket.") and event != "socket.gethostname":  # which asks the kernel
            self._refuse("socket", event, arguments)
        elif self._is_execution(event, arguments):
            self._refuse("executed", event, arguments)

    def _is_execution(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "exec":  # the code of vitlab's own templates is allowed
            return not arguments[0].co_filename.startswith(_PACKAGE) and not _is_import()
        if event in _CHANGES or (event == "open" and arguments[2] & _WRITING):
            return not self._is_allowed(arguments[0])
        return event in _PROCESSES or event == "pickle.find_class"

    def _is_allowed(self, path: Any) -> bool:
        return isinstance(path, int) or os.path.abspath(os.fsdecode(path)).startswith(self._allowed)  # noqa: PTH100

    def _refuse(self, outcome: str, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("ctypes.dlopen", "open") and _is_import():
            return
        self.on = False
        callers = " <- ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_stack()[-3:-9:-1])
        self.found.append((outcome, f"{event} {str(arguments)[:200]} by {callers}"))
        self.on = True
        raise PermissionError(f"an input caused {event}")


def _is_import() -> bool:
    """Whether Python is importing a module or reading an annotation, which runs code of a module and not of an input."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_filename == typing.__file__:
            return True
        frame = frame.f_back
    return False


def serve(requests: IO[str], answers: IO[str], scratch: Path) -> None:
    """The child process: open what is at `scratch/input` for each line of `requests`."""
    warnings.simplefilter("ignore")
    os.chdir(scratch / "work")
    ways = WaysIn()
    watch = Watch(scratch)
    _limit_memory()
    answers.write("ready\n")
    answers.flush()
    for line in requests:
        request = json.loads(line)
        given = Input(group=request["group"], files={}, opened=request["opened"], reader=request["reader"])
        folder = scratch / "input"
        path = folder / given.opened if given.opened else folder
        before, ways.longest = _reset_peak(), 0.0
        watch.found.clear()
        watch.on = True
        outcome, words = _outcome(lambda: ways.open(given, path, scratch / "out", slow=request["slow"]))  # noqa: B023
        watch.on = False
        seconds, megabytes = ways.longest, _peak() - before
        if seconds > CPU_SECONDS:
            outcome, words = "hang", f"{seconds:.1f} s; {words}"
        if megabytes > MEGABYTES:
            outcome, words = "memory", f"{megabytes:.0f} MB; {words}"
        if watch.found:
            outcome, words = watch.found[0]
        verdict = Verdict(outcome=outcome, words=words, seconds=seconds, megabytes=megabytes)
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


def _outcome(act: Callable[[], None]) -> tuple[str, str]:
    try:
        act()
    except VitlabError as error:
        return ("memory" if _lacked_memory(error) else "refused"), str(error)
    except BaseException as error:  # noqa: BLE001 - the outcome that is looked for
        if _lacked_memory(error):
            return "memory", _place(error)
        return "traceback", _place(error)
    return "ok", ""


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether memory was refused to what failed, however it was reported."""
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, MemoryError) or "allocate memory" in str(error) or "not enough memory" in str(error):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _place(error: BaseException) -> str:
    """The exception, and the innermost line of vitlab that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "vitlab" in Path(frame.filename).parts]
    where = f" at {'/'.join(Path(frames[-1].filename).parts[-3:])}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {str(error)[:200]}"


def _status(name: str) -> float:
    """Megabytes, from the kernel's table about this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def _reset_peak() -> float:
    """Forget the highest memory so far; megabytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _limit_memory() -> None:
    size = int(_status("VmSize") + LIMIT) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


# --- the parent ---------------------------------------------------------------------------------------------------------------


class Child:
    """A process that opens inputs; it is started again when it dies or is killed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._pid = 0
        for name in ("input", "out", "work"):
            (scratch / name).mkdir()

    def _start(self) -> None:
        requests, ours = os.pipe()
        theirs, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(ours)
                os.close(theirs)
                os.dup2(os.open(self._scratch / "errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                serve(os.fdopen(requests), os.fdopen(answers, "w"), self._scratch)
                code = 0
            except BaseException:  # noqa: BLE001 - as the interpreter does at the top
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(requests)
        os.close(answers)
        self._requests, self._answers = os.fdopen(ours, "w"), os.fdopen(theirs)
        if not select.select([self._answers], [], [], CLOCK_SECONDS)[0] or self._answers.readline() != "ready\n":
            raise RuntimeError(f"the process that opens inputs did not start: {self._errors()}")

    def end(self) -> None:
        """Kill the process."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
            self._answers.close()
            with suppress(BrokenPipeError):
                self._requests.close()

    def open(self, given: Input, *, slow: bool) -> Verdict:
        """What becomes of an input."""
        if not self._pid:
            self._start()
        for name in ("input", "out", "work"):
            _clear(self._scratch / name)
        given.write(self._scratch / "input")
        try:
            self._requests.write(
                json.dumps({"group": given.group, "opened": given.opened, "reader": given.reader, "slow": slow}) + "\n"
            )
            self._requests.flush()
        except BrokenPipeError:
            return self._dead()
        verdict = self._answer()
        left = [path.name for path in (self._scratch / "work").iterdir()]
        return Verdict(outcome="executed", words=f"made {left}") if left and verdict.outcome in ("ok", "refused") else verdict

    def _answer(self) -> Verdict:
        began, spent = time.monotonic(), _cpu_seconds(self._pid)
        while not select.select([self._answers], [], [], 0.25)[0]:
            clock, cpu = time.monotonic() - began, _cpu_seconds(self._pid) - spent
            if cpu > 5 * CPU_SECONDS or clock > CLOCK_SECONDS:
                self.end()
                return Verdict(outcome="hang", words=f"killed after {cpu:.0f} s of CPU time", seconds=cpu)
        line = self._answers.readline()
        return Verdict(**json.loads(line)) if line else self._dead()

    def _dead(self) -> Verdict:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        self._answers.close()
        with suppress(BrokenPipeError):
            self._requests.close()
        return Verdict(outcome="died", words=f"code {code} {self._errors()}")

    def _errors(self) -> str:
        """The last line that the process wrote to stderr."""
        errors = self._scratch / "errors"
        return "".join(errors.read_text(errors="replace").strip().splitlines()[-1:])[:200] if errors.exists() else ""


def _clear(folder: Path) -> None:
    """Remove what is in a folder; the folder itself stays, since a process may be in it."""
    for entry in list(folder.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def child() -> Iterator[Child]:
    """A child process and its scratch folder, both gone at the end."""
    with tempfile.TemporaryDirectory(prefix="vitlab-fuzz-") as folder:
        scratch = Path(folder).resolve()
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        started = Child(scratch)
        try:
            yield started
        finally:
            started.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An input that failed."""

    number: int
    group: Group
    outcome: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Counts of outcomes by group, the failures, and the most that any input that did not fail took."""

    counts: dict[Group, dict[str, int]]
    failures: list[Failure]
    seconds: float
    megabytes: float


def fuzz(numbers: Iterable[int], *, seed: int, groups: tuple[Group, ...] = GROUPS, keep: Path | None = None) -> Report:
    """Open these inputs of a seed; each that fails is written to `keep`. ValueError if a sound input is not read."""
    corpus = Corpus(groups)
    counts: dict[Group, Counter[str]] = {group: Counter() for group in groups}
    failures, seconds, megabytes = [], 0.0, 0.0
    with child() as process:
        for sound in corpus.sound():
            verdict = process.open(sound, slow=True)
            if verdict.outcome != "ok":
                raise ValueError(
                    f"a sound {sound.group} ({sound.opened or list(sound.files)}) is not read: {verdict.outcome}: {verdict.words}"
                )
        with suppress(KeyboardInterrupt):  # what was found so far is reported
            for number in numbers:
                given = corpus.input(seed, number)
                verdict = process.open(given, slow=number // len(groups) % _ONE_IN == 0)
                counts[given.group][verdict.outcome] += 1
                if verdict.outcome in FAILURES:
                    failures.append(Failure(number=number, group=given.group, outcome=verdict.outcome, words=verdict.words))
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"input-{number}-{verdict.outcome}.json").write_text(given.to_text())
                else:
                    seconds, megabytes = max(seconds, verdict.seconds), max(megabytes, verdict.megabytes)
    return Report(
        counts={group: dict(found) for group, found in counts.items()}, failures=failures, seconds=seconds, megabytes=megabytes
    )


def replay(path: Path) -> Verdict:
    """Open one kept input."""
    with child() as process:
        return process.open(Input.from_text(path.read_text()), slow=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    parser.add_argument("--replay", type=Path, help="open this kept input")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.replay is not None:
        verdict = replay(given.replay)
        print(json.dumps(asdict(verdict)))
        return int(verdict.outcome in FAILURES)
    groups = tuple(group for group in GROUPS if group in given.groups.split(","))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = fuzz(range(given.first, given.first + given.inputs), seed=given.seed, groups=groups, keep=given.keep)
    if given.json:
        print(json.dumps(asdict(report)))
    else:
        _print(report)
    return int(bool(report.failures))


def _print(report: Report) -> None:
    print(f"{'':10}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for group, counts in report.counts.items():
        print(f"{group:10}" + "".join(f"{counts.get(outcome, 0):>10,}" for outcome in OUTCOMES))
    print(f"at most {report.seconds:.2f} s and {report.megabytes:.0f} MB for an input that did not fail")
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in report.failures:
        alike.setdefault((failure.outcome, failure.words.split(": ")[0]), []).append(failure)
    for (outcome, _), found in sorted(alike.items(), key=lambda item: -len(item[1])):
        print(f"{len(found):5} x {outcome} {found[0].group} (input {found[0].number}): {found[0].words}")


if __name__ == "__main__":
    sys.exit(main())
