"""`auto`: the fastest of the runtimes that are installed, found by measuring them on this machine, once for each model and size.

How many threads serve one image alone, how many images are in a slice of a batch, and whether OpenVINO's threads stay on their
cores is measured too. A measurement costs a minute or so, as graphs are made for the other runtimes. It is made when the model has
already worked for longer than that in this process (or when `measured` is called, as `vitlab bench` does), and kept in the cache
folder. Until then, and wherever nothing was faster, the model runs in torch.

Axes: B batch, H height, W width, C channels of a image.
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
from vitlab.errors import ConfigError, ExportError, VitlabError
from vitlab.inference.backends import (
    Backend,
    FusedBackend,
    OnnxRuntimeBackend,
    OpenVINOBackend,
    Outputs,
    fewer,
    installed,
    narrowed,
)
from vitlab.io.atomic import replacing
from vitlab.io.cache import cache_folder

WORTH_IT = 60.0  # seconds of the model's work after which measuring pays
LOOK_AFTER = 20.0  # seconds of work after which what is remembered is used: another runtime takes seconds to start and to check
_FORMAT = 2  # of what is remembered; another one is measured anew
_BETTER = 1.03  # times torch's images a second, so that noise alone moves nobody away from it
_BATCH = 16
_UNPINNED = " unpinned"
_ROUNDS = 4
_ALONE = 3  # single images in each round
_LIBRARIES = ("torch", "onnxruntime", "openvino", "onnx", "onnxscript")

Say = Callable[[str], None]
Make = Callable[[], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which backend for one image alone, and which, with how many images in a slice, for batches; and what was measured.

    `many` is the name of a candidate such as `torch/4`, backend and images in a slice, `one` of `singles`, such as
    `torch with 1 thread`. `seconds_one` and `seconds_many` are seconds a image, alone and in batches of 16, of all that were
    measured. `absent` says why others were not.
    """

    one: str
    many: str
    seconds_one: dict[str, float]
    seconds_many: dict[str, float]
    absent: dict[str, str]

    def told(self) -> str:
        """One sentence."""
        best = sorted(self.seconds_many.items(), key=lambda item: item[1])
        rates = ", ".join(f"{name} {1 / seconds:.1f}" for name, seconds in best)
        alone = ", ".join(
            f"{name} {1e3 * seconds:.1f}" for name, seconds in sorted(self.seconds_one.items(), key=lambda item: item[1])
        )
        chosen = f"the backend is {self.many} (for one image {self.one})"
        return f"{chosen}, measured in images/s: {rates}; one image in ms: {alone}"


class AutoBackend:
    """Torch until something is known to be faster. `first` is torch's backend, `say` is told what is chosen."""

    def __init__(self, checkpoint: Checkpoint, first: Backend, digest: Callable[[], str], *, say: Say, merge: int = 0) -> None:
        self._checkpoint = checkpoint
        self._first = first
        self._digest = digest
        self._say = say
        self._merge = merge
        self._one: Backend = first
        self._many: Backend = first
        self._looked = self._settled = False
        self._worked = 0.0

    @property
    def name(self) -> str:
        """The name of what runs batches now."""
        return self._many.name

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        if not self._settled and self._worked > LOOK_AFTER:
            self._consider()
        began = time.perf_counter()
        out = (self._one if len(images_BHWC) == 1 else self._many).run(images_BHWC, features=features)
        self._worked += time.perf_counter() - began
        return out

    def measured(self) -> Choice:
        """Measure all candidates now, keep the answer, and use it from now on."""
        makers = candidates(self._checkpoint, self._first, self._digest(), merge=self._merge)
        choice, made = measure(makers, self._checkpoint)
        _remember(_file(self._digest()), choice)
        self._use(choice, made)
        return choice

    def _consider(self) -> None:
        if not self._looked:
            self._looked = True
            if (known := recalled(_file(self._digest()))) is not None:
                self._use(known, {})
        elif self._worked > WORTH_IT and not self._settled:
            self._say("measuring which backend is the fastest for this model, once")
            self.measured()

    def _use(self, choice: Choice, made: dict[str, Backend]) -> None:
        makers = candidates(self._checkpoint, self._first, self._digest(), merge=self._merge)
        self._settled = True
        try:
            if choice.many not in made:
                made[choice.many] = makers[choice.many]()
            if choice.one not in made:
                base, threads = singles([choice.many, *makers], torch.get_num_threads())[choice.one]
                made[base] = made[base] if base in made else makers[base]()
                made[choice.one] = _alone(made[base], threads)
        except (KeyError, ConfigError, ExportError) as error:
            self._say(f"the backend is torch: {choice.many} was faster here before, and cannot be had now ({error})")
            return
        self._one, self._many = made[choice.one], made[choice.many]
        self._say(choice.told())


def candidates(checkpoint: Checkpoint, first: Backend, digest: str, *, merge: int = 0) -> dict[str, Make]:
    """What can be measured, by name. torch.compile is left out: it takes minutes to make, and was never the fastest."""
    found: dict[str, Make] = {"torch": lambda: first}
    if isinstance(first, FusedBackend):
        for images in {max(1, first.images // 2), 2 * first.images} - {first.images}:
            found[f"torch/{images}"] = partial(first.sliced, images)
    if installed("onnxruntime") and installed("onnx") and installed("onnxscript"):
        found["onnxruntime/4"] = partial(OnnxRuntimeBackend, checkpoint, digest, images=4, merge=merge)
    if installed("openvino"):
        for images in (2, 4, 8):
            found[f"openvino/{images}"] = partial(OpenVINOBackend, checkpoint, digest, images=images, merge=merge)
        found[f"openvino/4{_UNPINNED}"] = partial(OpenVINOBackend, checkpoint, digest, images=4, merge=merge, pinned=False)
    return found


def singles(names: Iterable[str], threads: int) -> dict[str, tuple[str, int]]:
    """What can run one image alone with up to so many threads: a name, and of which candidate it is and with how many threads.

    Slices make no difference there, so each backend is in it once, with all threads under its plain name and with fewer.
    """
    found: dict[str, tuple[str, int]] = {}
    for name in names:
        kind = re.sub(r"/\d+", "", name)
        if kind in found:
            continue
        found[kind] = (name, threads)
        for count in () if kind.endswith(_UNPINNED) else fewer(threads):  # a trial of it is enough: each has to be compiled
            found[f"{kind} with {count} {'thread' if count == 1 else 'threads'}"] = (name, count)
    return found


def measure(makers: dict[str, Make], checkpoint: Checkpoint) -> tuple[Choice, dict[str, Backend]]:
    """Time every candidate on noise; the winner meets torch a second time."""
    made: dict[str, Backend] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except (ConfigError, ExportError) as error:
            absent[name] = str(error)
    threads = torch.get_num_threads()
    alone: dict[str, Backend] = {}
    for name, (base, count) in singles(made, threads).items():
        alone[name] = _alone(made[base], count)
    shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
    images_BHWC = np.random.default_rng(0).integers(0, 256, (_BATCH, *shape), np.uint8)
    least_one, least_many = _least(alone, images_BHWC[:1]), _least(made, images_BHWC)
    choice = Choice(
        one=_confirmed(alone, least_one, images_BHWC[:1]),
        many=_confirmed(made, least_many, images_BHWC),
        seconds_one=least_one,
        seconds_many=least_many,
        absent=absent,
    )
    return choice, alone | made


def _least(backends: Mapping[str, Backend], images_BHWC: NDArray[np.uint8]) -> dict[str, float]:
    """The least seconds a image of each, in turn and several times over, after one run that fills caches and compiles."""
    least = dict.fromkeys(backends, float("inf"))
    for backend in backends.values():
        backend.run(images_BHWC)
    for _ in range(_ROUNDS):
        for name, backend in backends.items():
            for _ in range(_ALONE if len(images_BHWC) == 1 else 1):
                began = time.perf_counter()
                backend.run(images_BHWC)
                least[name] = min(least[name], (time.perf_counter() - began) / len(images_BHWC))
    return least


def _confirmed(backends: Mapping[str, Backend], least: dict[str, float], images_BHWC: NDArray[np.uint8]) -> str:
    """The fastest, if it wins over torch a second time; of many that are alike, one looks faster by luck alone."""
    best = _fastest(least)
    return best if best == "torch" else _fastest(_least({name: backends[name] for name in ("torch", best)}, images_BHWC))


def _alone(backend: Backend, threads: int) -> Backend:
    return backend if threads == torch.get_num_threads() else narrowed(backend, threads)


def recalled(file: Path) -> Choice | None:
    """What was measured before, or None where nothing was or it cannot be read."""
    try:
        return Choice(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _fastest(seconds: dict[str, float]) -> str:
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] * _BETTER < seconds["torch"] else "torch"


def _remember(file: Path, choice: Choice) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, needed=0) as out:
            out.write(json.dumps(asdict(choice), indent=2).encode())
    except (OSError, VitlabError):
        return  # a cache that cannot be written: measured again the next time


def _file(digest: str) -> Path:
    """Named by everything the answer depends on: model and size, versions, processor, threads."""
    parts = [
        str(_FORMAT),
        digest,
        __version__,
        *(f"{name}={installed(name)}" for name in _LIBRARIES),
        processor(),
        str(torch.get_num_threads()),
    ]
    return cache_folder() / "backends" / f"{sha256(' '.join(parts).encode()).hexdigest()[:32]}.json"


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
