"""Images/s of training from tar shards on an S3 server with latency, against the same shards on disk.

    python benchmarks/storage.py [--latency 20] [--rounds 3] [--images 900] [--workers 1] [--copies 1] [--data FOLDER]

ImageNet images as shards, decoded, cropped to 224 px and flipped, by worker processes. The server is a process of its own that
speaks as much of S3 as reading needs (moto reads a whole shard for each range of it) and waits before each answer. Each round
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
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, PackConfig
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.pack import pack
from vitlab.data.sampler import Picks, RandomSampler
from vitlab.data.transforms import training_pipeline
from vitlab.data.workers.processes import Processes

BATCH = 50
PREFETCH = 3


class Server(BaseHTTPRequestHandler):
    """The files of a folder as the objects of a bucket: GET with a range, HEAD, and lists."""

    protocol_version = "HTTP/1.1"
    folder: Path
    latency: float

    def do_GET(self) -> None:
        time.sleep(self.latency)
        place = urlsplit(self.path)
        _, _, key = unquote(place.path).lstrip("/").partition("/")
        if not key:
            self._list(parse_qs(place.query).get("prefix", [""])[0])
            return
        path = self.folder / key
        if not path.is_file():
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        size = path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(found[1]), min(int(found[2] or size - 1), size - 1)) if found else (0, size - 1)
        length = last - first + 1
        headers = {"ETag": f'"{path.stat().st_mtime_ns:x}"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        if found:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self._send(206 if found else 200, b"", headers, length=length)
        if self.command == "GET":
            with path.open("rb") as file:
                self.connection.sendfile(file, first, length)

    do_HEAD = do_GET

    def _list(self, prefix: str) -> None:
        entries = [
            f"<Contents><Key>{file.name}</Key><Size>{file.stat().st_size}</Size><ETag>{file.stat().st_mtime_ns:x}</ETag>"
            "<LastModified>2025-01-01T00:00:00Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for file in sorted(self.folder.iterdir())
            if file.name.startswith(prefix)
        ]
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        self._send(200, text.encode(), {"Content-Type": "application/xml"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name is the library's)
        pass


def serve(folder: Path, latency: float) -> None:
    """Serve until the standard input ends; the first line of the output is the address."""
    handler = type("Handler", (Server,), {"folder": folder, "latency": latency})

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a worker that ends closes its connections

    server = Quiet(("127.0.0.1", 0), handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)

    threading.Thread(target=server.serve_forever, daemon=True).start()
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
            ours = os.getpid(), *stream.pool.pids
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
    parser.add_argument("--rounds", type=int, default=3)
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
    print(
        f"{given.latency:g} ms of latency, {given.workers} worker(s), {given.images} images a round, {given.rounds} rounds,"
        f" load {os.getloadavg()[0]:.1f}; medians\n"
        f"{'':24} images/s  of disk in the same round (least to most)  CPU ms of an image: client  server"
    )
    for name, speeds in found.items():
        rate, client, served = (statistics.median(getattr(one, key) for one in speeds) for key in ("rate", "client", "server"))
        ratios = sorted(one.rate / other.rate for one, other in zip(speeds, found["disk"], strict=True))
        print(
            f"{name:24} {rate:8.1f}  {statistics.median(ratios):7.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            f" {client:50.2f} {served:7.2f}"
        )


if __name__ == "__main__":
    main()
