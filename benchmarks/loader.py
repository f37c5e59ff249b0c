"""Images/s of the loader by who does the work: the caller, threads, processes, and torch's DataLoader with the same view.

    python benchmarks/loader.py [--workers 2] [--rounds 7] [--data FOLDER]

Two loads: ImageNet images cropped to 224 px, where decoding is the work, and CIFAR-10 at 32 px, decoded once, where handing
over is. Every contender stays open and they are measured in turn, so a busy moment of the machine falls on all of them; what
was made ahead is thrown away before each measurement. `cpu us` is the CPU time of this process and all its workers for
each image, which a busy machine hardly changes; `first s` the time from asking for a stream to its first batch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from vitlab.config.data import Augment, CachePolicy, DecodeLimits, LoaderConfig, WorkerKind
from vitlab.data.batch import Pipeline
from vitlab.data.dataset import Dataset
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.sampler import rng_of
from vitlab.data.transforms import training_pipeline

Open = Callable[[], Iterator[object]]


class Views(TorchDataset[tuple[torch.Tensor, int]]):
    """The same images and views for torch's loader."""

    def __init__(self, dataset: Dataset, pipeline: Pipeline) -> None:
        self.dataset, self.pipeline = dataset, pipeline

    def __len__(self) -> int:
        return len(self.dataset) * 1000  # many epochs, so that a measurement never falls on a restart

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        epoch, index = divmod(index, len(self.dataset))
        example = self.dataset.read(index)
        view: NDArray[np.uint8] = np.ascontiguousarray(self.pipeline.transform(example, rng_of(0, epoch, index)))
        return torch.from_numpy(view.copy() if not view.flags.writeable else view), int(self.dataset.label(index) or 0)  # type: ignore[arg-type]


def contenders(dataset: Dataset, pipeline: Pipeline, *, batch: int, workers: int, cache: CachePolicy) -> dict[str, Open]:
    """How to open each of them."""

    def ours(count: int, kind: WorkerKind) -> Open:
        config = LoaderConfig(batch_size=batch, workers=count, worker_kind=kind, cache=cache)
        loader = Loader(dataset, pipeline, config=config, train=True)
        print("   ", f"{count} {kind}:", *loader.notes) if loader.notes else None
        return loader.batches

    inline = Loader(dataset, pipeline, config=LoaderConfig(batch_size=batch, workers=0, cache=cache), train=True)
    views = Views(inline.dataset, pipeline)  # decoded once for torch's loader too

    def torchs() -> Iterator[object]:
        return iter(DataLoader(views, batch_size=batch, shuffle=False, num_workers=workers, multiprocessing_context="fork"))

    return {
        "no workers": inline.batches,
        f"{workers} threads": ours(workers, "thread"),
        f"{workers} processes": ours(workers, "process"),
        f"DataLoader, {workers} forks": torchs,
    }


def processor_seconds() -> float:
    """CPU time so far of this process and of all that descend from it (Linux; elsewhere of this one only)."""
    if not Path("/proc/self/stat").exists():
        return time.process_time()
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            after_name = stat.read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(after_name[1]), int(after_name[11]) + int(after_name[12])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def compare(title: str, opened: dict[str, Open], *, batch: int, batches: int, rounds: int) -> None:
    """Print one line a contender: median and best images/s, and the median of the ratios to torch's loader."""
    streams: dict[str, Iterator[object]] = {}
    first: dict[str, float] = {}
    for name, open_stream in opened.items():
        begin = time.perf_counter()
        streams[name] = open_stream()
        next(streams[name])
        first[name] = time.perf_counter() - begin
    speeds: dict[str, list[float]] = {name: [] for name in streams}
    costs: dict[str, list[float]] = {name: [] for name in streams}
    for _ in range(rounds):
        for name, stream in streams.items():
            for _ in range(5):
                next(stream)
            spent, begin = processor_seconds(), time.perf_counter()
            for _ in range(batches):
                next(stream)
            speeds[name].append(batch * batches / (time.perf_counter() - begin))
            costs[name].append((processor_seconds() - spent) / (batch * batches) * 1e6)
    *_, reference = speeds
    print(f"{title:26} {'median/s':>9} {'best/s':>8} {'ratio':>6} {'cpu us':>7} {'first s':>8}")
    for name, speed in speeds.items():
        ratio = statistics.median(own / other for own, other in zip(speed, speeds[reference], strict=True))
        middle, cost = statistics.median(speed), statistics.median(costs[name])
        print(f"  {name:24} {middle:9.0f} {max(speed):8.0f} {ratio:6.2f} {cost:7.0f} {first[name]:8.2f}")


def main() -> None:
    """Measure both loads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("VITLAB_DATA") or beside))
    told = parser.parse_args()
    torch.set_num_threads(1)
    limits = DecodeLimits()

    imagenet = open_dataset(told.data / "imagenet_val_1000.zip", split="all")
    pipeline = training_pipeline(Augment(), channels=3, limits=limits)
    opened = contenders(imagenet, pipeline, batch=64, workers=told.workers, cache="none")
    compare("ImageNet to 224 px", opened, batch=64, batches=16, rounds=told.rounds)

    cifar = open_dataset(told.data / "cifar10_jpeg.npz", split="test")
    pipeline = training_pipeline(Augment(image_size=(32, 32), crop="pad", padding=4), channels=3, limits=limits)
    opened = contenders(cifar, pipeline, batch=512, workers=told.workers, cache="memory")
    compare("CIFAR-10 at 32 px", opened, batch=512, batches=40, rounds=told.rounds)


if __name__ == "__main__":
    main()
