"""What Ray costs: images/s and CPU time per image of `vitlab predict`, in one process and on a Ray of one node.

    python benchmarks/on_ray.py [ROUNDS] [WORKERS] [IMAGES]

The ways are interleaved. images/s is from the first 256 images to the last: starting workers and loading models is not in it,
and is printed by itself. CPU time is that of all processes, this one, the workers and Ray's own: of a call with all images less
that of one with 128, for each image more. It is what to compare where other programs use the cores. Every model has one thread;
WORKERS are threads that read in one process, and reading processes beside each model on Ray (0: the model reads). Images and
weights are those of the data folder ($VITLAB_DATA, else ../shared/data beside the checkout): DeiT-Ti and
1,000 images of ImageNet.
The files that all ways wrote must have the same bytes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

MARK = ("VITLAB_BENCHMARK", uuid.uuid4().hex)
os.environ[MARK[0]] = MARK[1]
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray listens on 127.0.0.1 alone

TICKS = os.sysconf("SC_CLK_TCK")
SKIPPED = 256  # images before the clock starts
FEW = 128  # images of the call whose CPU time is that of starting
WEIGHTS, IMAGES = "deit_tiny_patch16_224.npz", "imagenet_val_1000.zip"
WAYS: dict[str, dict[str, Any]] = {
    "local": {},
    "ray, 1 worker": {"engine": "ray", "actors": 1},
    "ray, 2 workers": {"engine": "ray", "actors": 2},
}


def cpu_seconds() -> dict[int, float]:
    """CPU time so far of every process of this benchmark."""
    found = {}
    wanted = f"{MARK[0]}={MARK[1]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes() or int(folder.name) == os.getpid():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS
        except (OSError, ValueError):
            continue  # it has ended, or is somebody else's
    return found


class Clock:
    """A progress callback that takes wall time from the first `SKIPPED` images to the last, and the CPU time of the whole call."""

    def __init__(self) -> None:
        self.before = cpu_seconds()
        self.spent = dict(self.before)  # also of processes that have ended since
        self.began = time.perf_counter()
        self.first: tuple[int, float] | None = None
        self.last = (0, self.began)

    def __call__(self, description: str, done: int, total: int | None) -> None:
        self.spent |= cpu_seconds()
        self.last = (done, time.perf_counter())
        if self.first is None and done >= SKIPPED:
            self.first = self.last

    @property
    def cpu(self) -> float:
        """Seconds of all processes."""
        return sum(self.spent.values()) - sum(self.before.values())

    @property
    def rate(self) -> float:
        """images/s."""
        assert self.first is not None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


def main() -> None:
    """Print a line for each way, and its ratio to one process."""
    import vitlab
    from vitlab.io.optional import optional_import

    given = [int(word) for word in sys.argv[1:4]]
    rounds, workers, most = (*given, *(2, 2, 1000)[len(given) :])
    data = Path(os.environ.get("VITLAB_DATA") or Path(__file__).resolve().parent.parent.parent / "shared" / "data")
    ray = optional_import("ray", purpose="this benchmark")
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WAYS}
    written = set()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        few, many = folder / "few.zip", folder / "many.zip"
        for archive, count in ((few, FEW), (many, most)):
            with zipfile.ZipFile(data / IMAGES) as whole, zipfile.ZipFile(archive, "w") as part:
                names = [name for name in whole.namelist() if name.lower().endswith((".jpeg", ".jpg"))]
                for name in names[:count]:
                    part.writestr(name, whole.read(name))
        for number in range(rounds):
            for name, options in WAYS.items():
                clocks = []
                for images in (few, many):
                    out, clock = folder / f"{number}-{name}-{images.stem}.jsonl", Clock()
                    vitlab.predict(data / WEIGHTS, images, out=out, backend="torch", workers=workers, progress=clock, **options)
                    clocks.append(clock)
                written.add(out.read_bytes())
                start, whole_run = clocks
                cpu = 1e3 * (whole_run.cpu - start.cpu) / (whole_run.last[0] - start.last[0])
                assert whole_run.first is not None
                found[name].append((whole_run.rate, cpu, whole_run.first[1] - whole_run.began))
                print(name, found[name][-1], file=sys.stderr)
    ray.shutdown()
    assert len(written) == 1, "the results differ"
    base = [statistics.median(column) for column in zip(*found["local"], strict=True)]
    print(f"{rounds} rounds of {most} images, {workers} readers, load {os.getloadavg()[0]:.1f}; results are the same bytes")
    print(f"{'':16} {'images/s':>9} {'ratio':>6} {'CPU ms/image':>13} {'ratio':>6} {'start s':>8}")
    for name, rows in found.items():
        rate, cpu, began = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:16} {rate:9.1f} {rate / base[0]:6.2f} {cpu:13.1f} {cpu / base[1]:6.2f} {began:8.1f}")


if __name__ == "__main__":
    main()
