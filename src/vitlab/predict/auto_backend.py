"""`auto`: the fastest of the runtimes that are installed, found by measuring them on this machine, once for each model and size.

A measurement costs a minute or so, as graphs are made for the other runtimes. It is made when the model has already worked for
longer than that in this process (or when `measured` is called, as `vitlab bench` does), and kept in the cache folder. Until then,
and wherever nothing was faster, the model runs in torch.

Axes: B batch, H height, W width, C channels of a picture.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.checkpoint.contents import Checkpoint
from vitlab.checkpoint.files.atomic import replacing
from vitlab.data.files.cache import cache_folder
from vitlab.errors import ConfigError, ExportError, VitlabError
from vitlab.predict.backend import Backend, Outputs
from vitlab.predict.converted import installed
from vitlab.predict.fused_backend import FusedBackend
from vitlab.predict.runtime_backends import OnnxRuntimeBackend, OpenVINOBackend

WORTH_IT = 60.0  # seconds of the model's work after which measuring pays
_BETTER = 1.03  # times torch's pictures a second, so that noise alone moves nobody away from it
_BATCH = 16
_ROUNDS = 5
_LIBRARIES = ("torch", "onnxruntime", "openvino", "onnx", "onnxscript")

Say = Callable[[str], None]
Make = Callable[[], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which backend for one picture alone, and which, with how many pictures in a slice, for batches; and what was measured.

    `one` and `many` are names of candidates such as `torch/4`: backend and pictures in a slice. `seconds_one` and `seconds_many`
    are seconds a picture, alone and in batches of 16, of each candidate. `absent` says why others were not measured.
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
        return f"the backend is {self.many} (for one picture {self.one}), measured in pictures/s: {rates}"


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
        if len(images_BHWC) > 1 and not self._settled:
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
            for name in {choice.one, choice.many} - made.keys():
                made[name] = makers[name]()
        except (KeyError, ConfigError, ExportError) as error:
            self._say(f"the backend is torch: {choice.many} was faster here before, and cannot be had now ({error})")
            return
        self._one, self._many = made[choice.one], made[choice.many]
        self._say(choice.told())


def candidates(checkpoint: Checkpoint, first: Backend, digest: str, *, merge: int = 0) -> dict[str, Make]:
    """What can be measured, by name. torch.compile is left out: it takes minutes to make, and was never the fastest."""
    found: dict[str, Make] = {"torch": lambda: first}
    if isinstance(first, FusedBackend):
        for pictures in (2, 8):
            found[f"torch/{pictures}"] = partial(first.sliced, pictures)
    if installed("onnxruntime") and installed("onnx") and installed("onnxscript"):
        found["onnxruntime/4"] = partial(OnnxRuntimeBackend, checkpoint, digest, pictures=4, merge=merge)
    if installed("openvino"):
        for pictures in (2, 4, 8):
            found[f"openvino/{pictures}"] = partial(OpenVINOBackend, checkpoint, digest, pictures=pictures, merge=merge)
    return found


def measure(makers: dict[str, Make], checkpoint: Checkpoint) -> tuple[Choice, dict[str, Backend]]:
    """Time every candidate, in turn and several times over, on noise; the least time of each counts."""
    made: dict[str, Backend] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except (ConfigError, ExportError) as error:
            absent[name] = str(error)
    shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
    images_BHWC = np.random.default_rng(0).integers(0, 256, (_BATCH, *shape), np.uint8)
    seconds = {count: dict.fromkeys(made, float("inf")) for count in (1, _BATCH)}
    for turn in range(_ROUNDS):
        for count, least in seconds.items():
            for name, backend in made.items():
                began = time.perf_counter()
                backend.run(images_BHWC[:count])
                if turn:  # the first fills caches and compiles
                    least[name] = min(least[name], (time.perf_counter() - began) / count)
    choice = Choice(
        one=_fastest(seconds[1]),
        many=_fastest(seconds[_BATCH]),
        seconds_one=seconds[1],
        seconds_many=seconds[_BATCH],
        absent=absent,
    )
    return choice, made


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
    parts = [digest, __version__, *(f"{name}={installed(name)}" for name in _LIBRARIES), processor(), str(torch.get_num_threads())]
    return cache_folder() / "backends" / f"{sha256(' '.join(parts).encode()).hexdigest()[:32]}.json"


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
