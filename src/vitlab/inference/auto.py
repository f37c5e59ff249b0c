"""The choice of a backend: by name, or `auto`, the fastest of those installed, measured on this machine.

`auto` measures once for each model and image size: which runtime is fastest for batches, which for one image alone and with how
many threads, how many images OpenVINO takes per slice, and whether its threads stay on their cores. A measurement takes about a
minute, since the other runtimes must build their graphs. It starts when the model has already worked longer than that in this
process (or when `measure_now` is called, as `vitlab bench` does), and its result is kept in the cache folder. Until then, and
wherever nothing is faster, the model runs in PyTorch.

Axes: B batch, H height, W width, C channels of an image.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.evaluation import BackendName
from vitlab.errors import ConfigError, ExportError, VitlabError, choice
from vitlab.inference.backends import (
    Backend,
    CompiledBackend,
    GraphFiles,
    OnnxRuntimeBackend,
    OpenVINOBackend,
    Outputs,
    installed,
    torch_backend,
    with_threads,
)
from vitlab.io.atomic import replacing
from vitlab.io.cache import cache_folder

MEASURE_AFTER = 60.0  # seconds of the model's work after which measuring pays
LOOK_UP_AFTER = 20.0  # seconds of work after which a kept result is used: another runtime takes seconds to start and to check
_FORMAT = 3  # of a kept result; change it to measure again
_BETTER = 1.03  # times the images/s of PyTorch, so that noise alone changes nothing
_BATCH = 16
_UNPINNED = " unpinned"
_ROUNDS = 4
_SINGLE_RUNS = 3  # runs of one image in each round
_LIBRARIES = ("torch", "onnxruntime", "openvino", "onnx", "onnxscript")

Notify = Callable[[str], None]
Factory = Callable[[], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen backends, for one image alone (`one`) and for batches (`many`), and what was measured.

    `many` is the name of a candidate such as `openvino/4`, a backend and the images per slice; `one` is a name of `for_one_image`,
    such as `torch with 1 thread`. `seconds_one` and `seconds_many` are seconds per image, alone and in batches of 16, of every
    candidate that was measured. `absent` says why others were not.
    """

    one: str
    many: str
    seconds_one: dict[str, float]
    seconds_many: dict[str, float]
    absent: dict[str, str]

    def summary(self) -> str:
        """One sentence: what was chosen, and every measurement."""
        rates = ", ".join(f"{name} {1 / seconds:.1f}" for name, seconds in _sorted(self.seconds_many))
        latencies = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in _sorted(self.seconds_one))
        chosen = f"the backend is {self.many} (for one image {self.one})"
        return f"{chosen}, measured in images/s: {rates}; one image in ms: {latencies}"


def create_backend(
    checkpoint: Checkpoint, name: BackendName, device: torch.device, digest: Callable[[], str], *, merge: int, notify: Notify
) -> tuple[Backend, tuple[str, ...]]:
    """The backend called `name` for a checkpoint, and notes on it. `digest` is that of the weights, computed only when needed."""
    choice("backend", name, BackendName)
    if name not in ("auto", "torch"):
        if device.type != "cpu":
            raise ConfigError(f"backend={name!r} runs on the CPU, not on {device.type}", hint="backend='torch'")
        checkpoint.model.eval()
    notes: tuple[str, ...] = ()
    if merge:
        notes = (f"{merge} pairs of patches are merged per layer: the results are not exactly the model's own",)
    match name:
        case "compile":
            return CompiledBackend(checkpoint, merge=merge), notes
        case "onnxruntime":
            return OnnxRuntimeBackend(checkpoint, GraphFiles(checkpoint, digest(), "onnx", merge=merge, notify=notify)), notes
        case "openvino":
            return OpenVINOBackend(checkpoint, GraphFiles(checkpoint, digest(), "openvino", merge=merge, notify=notify)), notes
    first, why = torch_backend(checkpoint, device=device, merge=merge)
    if why is not None and device.type == "cpu":
        notes = (f"the model runs without folded weights: {why}", *notes)
    if name == "torch" or device.type != "cpu":
        return first, notes
    return AutoBackend(checkpoint, first, digest, notify=notify, merge=merge), notes


class AutoBackend:
    """PyTorch (`first`) until another backend is known to be faster; `notify` is called with a sentence when one is chosen."""

    def __init__(
        self, checkpoint: Checkpoint, first: Backend, digest: Callable[[], str], *, notify: Notify, merge: int = 0
    ) -> None:
        self._checkpoint = checkpoint
        self._first = first
        self._digest = digest
        self._notify = notify
        self._merge = merge
        self._one: Backend = first
        self._many: Backend = first
        self.chosen: Choice | None = None
        self._looked_up = self._settled = False
        self._seconds = 0.0

    @property
    def name(self) -> str:
        """The name of the backend that runs batches now."""
        return self._many.name

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        if not self._settled and self._seconds > LOOK_UP_AFTER:
            self._reconsider()
        began = time.perf_counter()
        backend = self._one if len(images_BHWC) == 1 else self._many
        try:
            out = backend.run(images_BHWC, features=features)
        except ExportError as error:
            if backend is self._first:
                raise
            self._notify(f"the backend is torch from now on: {backend.name} does not run any more ({error})")
            self._one = self._many = self._first
            out = self._first.run(images_BHWC, features=features)
        self._seconds += time.perf_counter() - began
        return out

    def settle(self, like: AutoBackend | None = None) -> None:
        """Use a kept result, or that of `like`, or measure: afterwards the backend does not change any more."""
        file = _file(self._digest())
        known = saved_choice(file)
        if known is None and like is not None and like.chosen is not None:
            known = like.chosen
            _save(file, known)
        if not self._settled and known is not None:
            self._use(known, self._candidates(), {})
        if not self._settled:
            self._notify("measuring once which backend is fastest for this model")
            self.measure_now()

    def measure_now(self) -> Choice:
        """Measure all candidates, keep the result, and use it from now on."""
        factories = self._candidates()
        chosen, made = measure(factories, self._checkpoint)
        _save(_file(self._digest()), chosen)
        self._use(chosen, factories, made)
        return chosen

    def _candidates(self) -> dict[str, Factory]:
        return candidates(self._checkpoint, self._first, self._digest(), merge=self._merge, notify=self._notify)

    def _reconsider(self) -> None:
        if not self._looked_up:
            self._looked_up = True
            if (known := saved_choice(_file(self._digest()))) is not None:
                self._use(known, self._candidates(), {})
        elif self._seconds > MEASURE_AFTER and not self._settled:
            self._notify("measuring once which backend is fastest for this model")
            self.measure_now()

    def _use(self, chosen: Choice, factories: dict[str, Factory], made: dict[str, Backend]) -> None:
        self._settled = True
        try:
            if chosen.many not in made:
                made[chosen.many] = factories[chosen.many]()
            if chosen.one not in made:
                base, threads = for_one_image([chosen.many, *factories], torch.get_num_threads())[chosen.one]
                made[base] = made[base] if base in made else factories[base]()
                made[chosen.one] = _limited(made[base], threads)
        except (KeyError, ConfigError, ExportError) as error:
            self._notify(f"the backend is torch: {chosen.many} was faster before, but cannot be made now ({error})")
            return
        self._one, self._many, self.chosen = made[chosen.one], made[chosen.many], chosen
        self._notify(chosen.summary())


def candidates(checkpoint: Checkpoint, first: Backend, digest: str, *, notify: Notify, merge: int = 0) -> dict[str, Factory]:
    """What can be measured, by name. torch.compile is left out: it takes minutes to build, and was never the fastest."""
    found: dict[str, Factory] = {"torch": lambda: first}
    if installed("onnxruntime") and installed("onnx") and installed("onnxscript"):
        graph = GraphFiles(checkpoint, digest, "onnx", merge=merge, notify=notify)
        found["onnxruntime/4"] = partial(OnnxRuntimeBackend, checkpoint, graph, images=4)
    if installed("openvino"):
        graph = GraphFiles(checkpoint, digest, "openvino", merge=merge, notify=notify)
        for images in (2, 4, 8):
            found[f"openvino/{images}"] = partial(OpenVINOBackend, checkpoint, graph, images=images)
        found[f"openvino/4{_UNPINNED}"] = partial(OpenVINOBackend, checkpoint, graph, images=4, pinned=False)
    return found


def for_one_image(names: Iterable[str], threads: int) -> dict[str, tuple[str, int]]:
    """Ways to run one image alone with up to `threads` threads: a name -> (its candidate, number of threads).

    The slice makes no difference there, so each backend appears once with all threads, under its plain name, and with fewer.
    """
    found: dict[str, tuple[str, int]] = {}
    for name in names:
        backend = re.sub(r"/\d+", "", name)
        if backend in found:
            continue
        found[backend] = (name, threads)
        for count in () if backend.endswith(_UNPINNED) else fewer_threads(threads):  # each has to be compiled: one is enough
            found[f"{backend} with {count} {'thread' if count == 1 else 'threads'}"] = (name, count)
    return found


def fewer_threads(threads: int) -> list[int]:
    """Smaller numbers of threads worth trying: half, half of that, down to 1."""
    found = []
    while threads > 1:
        threads //= 2
        found.append(threads)
    return found


def measure(factories: dict[str, Factory], checkpoint: Checkpoint) -> tuple[Choice, dict[str, Backend]]:
    """Time every candidate on noise; the winner is compared with PyTorch a second time."""
    made: dict[str, Backend] = {}
    absent: dict[str, str] = {}
    for name, factory in factories.items():
        try:
            made[name] = factory()
        except (ConfigError, ExportError) as error:
            absent[name] = str(error)
    single = {name: _limited(made[base], count) for name, (base, count) in for_one_image(made, torch.get_num_threads()).items()}
    shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
    images_BHWC = np.random.default_rng(0).integers(0, 256, (_BATCH, *shape), np.uint8)
    least_one, least_many = _least(single, images_BHWC[:1]), _least(made, images_BHWC)
    chosen = Choice(
        one=_confirmed(single, least_one, images_BHWC[:1]),
        many=_confirmed(made, least_many, images_BHWC),
        seconds_one=least_one,
        seconds_many=least_many,
        absent=absent,
    )
    return chosen, single | made


def _least(backends: Mapping[str, Backend], images_BHWC: NDArray[np.uint8]) -> dict[str, float]:
    """The least seconds per image of each backend, over several interleaved rounds, after one run to warm up."""
    least = dict.fromkeys(backends, float("inf"))
    for backend in backends.values():
        backend.run(images_BHWC)
    for _ in range(_ROUNDS):
        for name, backend in backends.items():
            for _ in range(_SINGLE_RUNS if len(images_BHWC) == 1 else 1):
                began = time.perf_counter()
                backend.run(images_BHWC)
                least[name] = min(least[name], (time.perf_counter() - began) / len(images_BHWC))
    return least


def _confirmed(backends: Mapping[str, Backend], least: dict[str, float], images_BHWC: NDArray[np.uint8]) -> str:
    """The fastest, if it beats PyTorch a second time: of many equal ones, one looks faster by luck."""
    best = _fastest(least)
    return best if best == "torch" else _fastest(_least({name: backends[name] for name in ("torch", best)}, images_BHWC))


def _limited(backend: Backend, threads: int) -> Backend:
    return backend if threads == torch.get_num_threads() else with_threads(backend, threads)


def saved_choice(file: Path) -> Choice | None:
    """The kept result of an earlier measurement, or None if there is none or it cannot be read."""
    try:
        return Choice(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _fastest(seconds: dict[str, float]) -> str:
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] * _BETTER < seconds["torch"] else "torch"


def _sorted(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: item[1])


def _save(file: Path, chosen: Choice) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, needed=0) as out:
            out.write(json.dumps(asdict(chosen), indent=2).encode())
    except (OSError, VitlabError):
        return  # a cache that cannot be written: the next process measures again


def _file(digest: str) -> Path:
    """Named by everything the choice depends on: model and image size, versions, CPU, threads."""
    parts = [
        str(_FORMAT),
        digest,
        __version__,
        *(f"{name}={installed(name)}" for name in _LIBRARIES),
        cpu_name(),
        str(torch.get_num_threads()),
    ]
    return cache_folder() / "backends" / f"{sha256(' '.join(parts).encode()).hexdigest()[:32]}.json"


def cpu_name() -> str:
    """The CPU's name as the operating system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
