"""Images/s of training from tar shards on an S3 server with latency, against the same shards on disk.

    python benchmarks/storage.py [--latency 20] [--rounds 5] [--images 900] [--workers 1] [--copies 1] [--data FOLDER]

ImageNet images as shards, decoded, cropped to 224 px and flipped, by worker processes. The server is a process of its own that
speaks as much of S3 as reading needs (moto reads a whole shard for each range of it) and waits before each answer; it has no core
of its own, so its CPU time counts against the ratios. Each round
reads the same images in the same random order from disk, from the server with an empty cache, from what that has cached, and from
the server with a cache so small that each image is a request of its own, one after another, so that a busy moment of the machine
falls on all. Workers first read a shard of their own, which starts and connects them; then time is taken, from the first request
to the last image. `--copies` makes the data larger. CPU time is that of each image, of this process and its workers, and of the
server, which in real life has a machine of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, PackConfig
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.pack import pack
from vitlab.data.sampler import Picks, RandomSampler
from vitlab.data.transforms import training_pipeline
from vitlab.data.worker_processes import Processes

BATCH = 50
PREFETCH = 3


REQUEST = re.compile(rb"(GET|HEAD) (\S+) HTTP/1\.1\r\n")
RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d*)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The files of a folder as the objects of a bucket: GET, also of a range, HEAD, and lists. Signatures are not verified.

    Small, because it shares the machine with what is measured: http.server takes three times the CPU time for a range.
    """

    folder: Path
    latency: float
    opened: dict[str, int] = field(default_factory=dict)

    def talk(self, connection: socket.socket) -> None:
        """Answer the requests of one connection until it ends."""
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = b""
            while more := connection.recv(8192):
                head += more
                if head.endswith(b"\r\n\r\n"):
                    time.sleep(self.latency)
                    self.answer(connection, head)
                    head = b""

    def answer(self, connection: socket.socket, head: bytes) -> None:
        """Send what one request asks for."""
        asked = REQUEST.match(head)
        assert asked is not None, "the benchmark reads only"
        place = urlsplit(asked[2].decode())
        _, _, key = unquote(place.path).lstrip("/").partition("/")
        if not key:
            body = self.listing(parse_qs(place.query).get("prefix", [""])[0])
            connection.sendall(_head("200 OK", len(body), "Content-Type: application/xml") + (body if asked[1] == b"GET" else b""))
            return
        if key not in self.opened:
            if not (self.folder / key).is_file():
                body = b"<Error><Code>NoSuchKey</Code></Error>"
                connection.sendall(_head("404 Not Found", len(body)) + (body if asked[1] == b"GET" else b""))
                return
            self.opened[key] = os.open(self.folder / key, os.O_RDONLY)
        status = os.fstat(self.opened[key])
        facts = f'ETag: "{status.st_mtime_ns:x}"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT'
        found, first, last = RANGE.search(head), 0, status.st_size - 1
        if found:
            first, last = int(found[1]), min(int(found[2] or last), last)
            facts += f"\r\nContent-Range: bytes {first}-{last}/{status.st_size}"
        begin = _head("206 Partial Content" if found else "200 OK", last - first + 1, facts)
        if asked[1] == b"HEAD":
            connection.sendall(begin)
            return
        connection.send(begin, socket.MSG_MORE)
        while first <= last:
            first += os.sendfile(connection.fileno(), self.opened[key], first, last - first + 1)

    def listing(self, prefix: str) -> bytes:
        """The objects whose names begin so, as S3 lists them."""
        entries = [
            f"<Contents><Key>{file.name}</Key><Size>{file.stat().st_size}</Size><ETag>{file.stat().st_mtime_ns:x}</ETag>"
            "<LastModified>2025-01-01T00:00:00Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for file in sorted(self.folder.iterdir())
            if file.name.startswith(prefix)
        ]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>".encode()


def _head(status: str, length: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {length}", *lines, "", ""]).encode()


def serve(folder: Path, latency: float) -> None:
    """Serve until the standard input ends; the first line of the output is the address."""
    server = Server(folder=folder, latency=latency)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=server.talk, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterWarmup:
    """`warmup` positions that repeat the first `first` images of a dataset, then the others in the random order of training."""

    warmup: int
    first: int
    rest: RandomSampler

    @property
    def epoch_length(self) -> int:
        """The images after the first ones."""
        return self.rest.epoch_length

    @property
    def total(self) -> int | None:
        """It never ends."""
        return None

    def picks(self, start: int, stop: int) -> Picks:
        """The images of these positions, none of which are on both sides."""
        if start >= self.warmup:
            picks = self.rest.picks(start - self.warmup, stop - self.warmup)
            return replace(picks, index_B=picks.index_B + self.first)
        place_B = np.arange(start, stop)
        return Picks(index_B=place_B % self.first, epoch_B=np.zeros_like(place_B), repeat_B=place_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Images/s, and CPU milliseconds of an image."""

    rate: float
    client: float
    server: float


def cpu_seconds(*processes: int) -> float:
    """CPU time of processes that run."""
    ticks = 0
    for process in processes:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(facts[11]) + int(facts[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family(process: int) -> list[int]:
    """The processes that this one and its children, and theirs, have started."""
    found = [process]
    for parent in found:
        for thread in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (thread / "children").read_text(encoding="utf-8").split())
    return found


def measured(data: str, warm: str, images: int, workers: int, server: int) -> Speed:
    """Read the warm-up, then some images of an epoch."""
    pipeline = training_pipeline(Augment(image_size=(224, 224)), channels=3, limits=DecodeLimits())
    config = LoaderConfig(batch_size=BATCH, workers=workers, worker_kind="process", cache="none", prefetch=PREFETCH)
    dataset, first = open_dataset(f"{warm}::{data}", split="all"), len(open_dataset(warm, split="all"))
    count = images // BATCH * BATCH
    assert count <= len(dataset) - first, "more images than the data has: use --copies"
    with Loader(dataset, pipeline, config=config, train=True) as loader:
        warmup = 2 * PREFETCH * BATCH
        loader.sampler = AfterWarmup(warmup=warmup, first=first, rest=RandomSampler(length=len(dataset) - first, seed=0))
        with loader.batches() as stream:
            next(stream)
            assert isinstance(stream.pool, Processes)
            ours = [process for process in family(os.getpid()) if process != server]
            stream.pool.forget()  # the batches in progress are done
        began_ours, began_server, began = cpu_seconds(*ours), cpu_seconds(server), time.perf_counter()
        with loader.batches(warmup) as stream:
            for _ in range(count // BATCH):
                next(stream)
            seconds = time.perf_counter() - began
            client, served = cpu_seconds(*ours) - began_ours, cpu_seconds(server) - began_server
    return Speed(rate=count / seconds, client=client / count * 1000, server=served / count * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds before each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=900)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--copies", type=int, default=1, help="how often the data lies on the server")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "imagenet_val_1000.zip")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, given.latency / 1000)
        return
    with tempfile.TemporaryDirectory() as made:
        shards = Path(made) / "shards"
        pack(str(given.data), shards, split="all", config=PackConfig(shard_bytes=16 * 2**20))
        packed = sorted(shards.glob("*.tar"))
        shutil.copy(packed[0], shards / "warm.tar")
        for file in packed:
            for copy in range(given.copies):
                os.link(file, shards / f"data-{copy}-{file.name}")
            file.unlink()
        command = [sys.executable, __file__, "--serve", str(shards), "--latency", str(given.latency)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            os.environ |= {
                "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
                "AWS_ACCESS_KEY_ID": "benchmark",
                "AWS_SECRET_ACCESS_KEY": "benchmark",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            report(shards, made, given, server.pid)
        finally:
            server.communicate()


def report(shards: Path, made: str, given: argparse.Namespace, server: int) -> None:
    """Measure all of them in turn, and print the medians and the ratios to disk."""
    found: dict[str, list[Speed]] = {}
    os.environ["XDG_CACHE_HOME"] = f"{made}/first"
    open_dataset("s3://bucket/*.tar", split="all")  # the indices of the shards, which are cached from now on
    for number in range(given.rounds + 1):  # the first warms the disk and the imports, and does not count
        for name in ("disk", "server, empty cache", "server, from the cache", "server, small cache"):
            cache = Path(f"{made}/cache-{number}-{name.endswith('small cache')}")
            if not cache.exists():
                shutil.copytree(f"{made}/first/vitlab/shards", cache / "vitlab" / "shards")
            os.environ["XDG_CACHE_HOME"] = str(cache)
            os.environ["VITLAB_REMOTE_CACHE"] = "0.01" if name.endswith("small cache") else "10"
            place = str(shards) if name == "disk" else "s3://bucket"
            speed = measured(f"{place}/data-*.tar", f"{place}/warm.tar", given.images, given.workers, server)
            if number:
                found.setdefault(name, []).append(speed)
        for old in Path(made).glob(f"cache-{number}-*"):
            shutil.rmtree(old)
    cores = len(os.sched_getaffinity(0))
    print(
        f"{given.latency:g} ms of latency, {given.workers} worker(s), {given.images} images a round, {given.rounds} rounds,"
        f" {cores} core(s), load {os.getloadavg()[0]:.1f}\n"
        f"{'':24} {'images/s':>8}  of disk in the same round: median (least to most)  CPU ms of an image: client  server"
    )
    for name, speeds in found.items():
        rate, client, served = (statistics.median(getattr(one, key) for one in speeds) for key in ("rate", "client", "server"))
        ratios = sorted(one.rate / other.rate for one, other in zip(speeds, found["disk"], strict=True))
        print(
            f"{name:24} {rate:8.1f}  {statistics.median(ratios):26.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            f" {client:39.2f} {served:7.2f}"
        )


if __name__ == "__main__":
    main()
