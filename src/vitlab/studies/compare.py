"""Models side by side: what they cost by formula, what others published of them, how fast they are here.

Axes: B batch.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vitlab.config.model import ModelConfig
from vitlab.config.published import Published, published
from vitlab.config.serialize import from_text, to_text
from vitlab.errors import ConfigError, at_least
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models.cost import Cost, cost
from vitlab.models.families import build
from vitlab.models.vit import ViT

# Memory as the system counts it: what a process that builds a model and runs one image has in its worst moment.

_STATUS = Path("/proc/self/status")
_MOST = "VmHWM:"  # the most memory resident at once since the program began, in kB
_PATIENCE = 600.0  # seconds for one model
_CHILD = "from vitlab.studies.compare import tell_peak; tell_peak()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes that one model took, or None and why they are not known."""

    bytes: int | None
    why: str = ""


def peaks(configs: Sequence[ModelConfig], *, progress: ProgressCallback = silent) -> list[Peak]:
    """For each model the peak of a process that builds it and runs one image, less that of one that only imports what is needed.

    In float32, with random values; what PyTorch keeps for itself besides weights and activations is part of it.
    """
    if not _STATUS.is_file():
        return [Peak(bytes=None, why=f"this system has no {_STATUS}") for _ in configs]
    progress("memory", 0, len(configs))
    empty, found = _asked(""), list[Peak]()
    for place, config in enumerate(configs):
        whole = empty if empty.bytes is None else _asked(to_text(config))
        known = whole.bytes is not None and empty.bytes is not None
        found.append(Peak(bytes=max(0, whole.bytes - empty.bytes)) if known else whole)  # type: ignore[operator]
        progress("memory", place + 1, len(configs))
    return found


def tell_peak() -> None:
    """The child: build the model of stdin, if there is one, run an image, and print how many kB the process had at most."""
    text = sys.stdin.read()
    import torch

    from vitlab.models.families import build
    from vitlab.models.vit import ViT

    if text:
        config: ModelConfig = from_text(ModelConfig, text)  # type: ignore[arg-type]
        model = build(config).eval()
        if isinstance(model, ViT):
            model.lean = True  # as when it predicts
        with torch.inference_mode():
            model(torch.zeros(1, config.channels, *config.image_size))
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(_MOST))
    print(line.split()[1])


def _asked(text: str) -> Peak:
    """What a child process says for this config."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _CHILD], input=text, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return Peak(bytes=None, why=f"the process took more than {_PATIENCE:.0f} seconds")
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2][:200]
        died = f"died of signal {-ended.returncode}: too little memory?" if ended.returncode < 0 else f"failed: {last}"
        return Peak(bytes=None, why=f"the process {died}")
    return Peak(bytes=1024 * int(ended.stdout))


_ALIKE = 1.1  # ratios of speeds that differ by less are told as the same: two runs of one model differ as much on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Images a second: the middle of all rounds, the slowest and the fastest."""

    middle: float
    low: float
    high: float
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One model at one image size. `rate` and `peak` are None where they were not measured, `measured` where accuracy was not."""

    name: str
    config: ModelConfig
    cost: Cost
    published: tuple[Published, ...] = ()
    rate: Rate | None = None
    peak: Peak | None = None
    measured: float | None = None

    @property
    def image_size(self) -> tuple[int, int]:
        """Pixels, height and width."""
        return self.config.image_size

    @property
    def gmacs(self) -> float:
        """Multiply-adds of one image, in thousands of millions."""
        return self.cost.macs / 1e9

    @property
    def published_rate(self) -> float | None:
        """Images/s on the GPU of the publication."""
        return next((quoted.images_per_sec for quoted in self.published if quoted.images_per_sec is not None), None)

    @property
    def memory(self) -> int:
        """Bytes alive in the worst moment of running one image in float32, weights among them, by account."""
        return self.cost.inference_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """How two models' speeds relate here and on the GPU of the publication: each is the first's rate over the second's."""

    first: str
    second: str
    here: float
    there: float

    @property
    def told(self) -> str:
        """What the two ratios say, in a sentence."""
        by = self.here / self.there
        said = f"on this machine {self.first} is {self.here:.2f} times as fast as {self.second}, on a V100 {self.there:.2f} times"
        if abs(math.log(by)) < math.log(_ALIKE):
            return f"{said}: nearly the same"
        return f"{said}: this machine favours {self.first if by > 1 else self.second}, by a factor of {max(by, 1 / by):.2f}"


def compared(configs: Sequence[ModelConfig]) -> list[Compared]:
    """What can be said without building anything."""
    if not configs:
        raise ConfigError("no models to compare", hint="name some: Swin-T ConvNeXt-T ViT-S/16")
    return [
        Compared(name=config.name or config.family, config=config, cost=cost(config), published=published(config))
        for config in configs
    ]


def rates(configs: Sequence[ModelConfig], *, batch: int, rounds: int, progress: ProgressCallback = silent) -> list[Rate]:
    """Each model's speed in PyTorch here, all of them in turn, round after round, after one round that is not counted.

    The models have random values and are held at the same time. A ViT leaves out of its last layer what no one reads, as it does
    when it predicts.
    """
    at_least("batch", batch, 1)
    at_least("rounds", rounds, 1)
    models, spent = list[torch.nn.Module](), [list[float]() for _ in configs]
    for place, config in enumerate(configs):
        progress("building", place, len(configs))
        model = build(config)
        model.eval()
        if isinstance(model, ViT):
            model.lean = True
        models.append(model)
    images = [torch.randn(batch, config.channels, *config.image_size) for config in configs]
    total = (rounds + 1) * len(configs)
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for place, (runner, images_BCHW) in enumerate(zip(models, images, strict=True)):
                progress("measuring", turn * len(configs) + place, total)
                began = time.perf_counter()
                runner(images_BCHW)
                if turn:
                    spent[place].append(time.perf_counter() - began)
    progress("measuring", total, total)
    return [
        Rate(middle=batch / statistics.median(times), low=batch / max(times), high=batch / min(times), batch=batch)
        for times in spent
    ]


def against(rows: Sequence[Compared]) -> list[Against]:
    """The ratio of speeds for each pair of a Swin and the ConvNeXt of its size and images, here and as published."""
    found = []
    for row in rows:
        for other in rows:
            pair = row.name.startswith("ConvNeXt-") and other.name == row.name.replace("ConvNeXt-", "Swin-")
            if not pair or other.image_size != row.image_size or row.rate is None or other.rate is None:
                continue
            if row.published_rate is None or other.published_rate is None:
                continue
            found.append(
                Against(
                    first=f"{row.name} {row.image_size[0]}",
                    second=f"{other.name} {other.image_size[0]}",
                    here=row.rate.middle / other.rate.middle,
                    there=row.published_rate / other.published_rate,
                )
            )
    return found
