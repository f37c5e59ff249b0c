"""Images/s of training from tar shards on an S3 server with latency, against the same shards on disk.

    python benchmarks/storage.py [--latency 20] [--rounds 5] [--images 600] [--workers 1] [--data FOLDER]

ImageNet images as shards, decoded, cropped to 224 px and flipped, by worker processes. The server is a process of its own that
speaks as much of S3 as reading needs (moto reads a whole shard for each range of it) and waits before each answer. Each round
reads the same images in the same random order from disk, from the server with an empty cache, and from the server with what that
has cached, one after another, so that a busy moment of the machine falls on all; the first also without reading in advance.
`cpu ms` is the CPU time of this process and its workers for each image, without the server's.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, PackConfig, WorkerKind
from vitlab.data.batch import Filler
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.pack import pack
from vitlab.data.sampler import Picks
from vitlab.data.transforms import training_pipeline

BATCH = 50


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
        headers = {"ETag": f'"{path.stat().st_mtime_ns:x}"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        if found:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        with path.open("rb") as file:
            body = os.pread(file.fileno(), last - first + 1, first) if self.command == "GET" else b""
        self._send(206 if found else 200, body, headers, length=last - first + 1)

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


def cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def measured(data: str, images: int, workers: int, kind: WorkerKind) -> tuple[float, float]:
    """Images/s once the workers run, and CPU milliseconds of each image."""
    pipeline = training_pipeline(Augment(image_size=(224, 224)), channels=3, limits=DecodeLimits())
    config = LoaderConfig(batch_size=BATCH, workers=workers, worker_kind=kind, cache="none", prefetch=3)
    dataset = open_dataset(data, split="all")
    began_cpu = cpu_seconds()
    with Loader(dataset, pipeline, config=config, train=True) as loader, loader.batches() as stream:
        next(stream)
        began = time.perf_counter()
        for _ in range(images // BATCH):
            next(stream)
        seconds = time.perf_counter() - began
    done = images // BATCH * BATCH
    return done / seconds, (cpu_seconds() - began_cpu) / (done + BATCH) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds before each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "imagenet_val_1000.zip")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, given.latency / 1000)
        return
    with tempfile.TemporaryDirectory() as made:
        shards = Path(made) / "shards"
        pack(str(given.data), shards, split="all", config=PackConfig(shard_bytes=16 * 2**20))
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
            report(shards, made, given.rounds, given.images, given.workers, given.latency)
        finally:
            server.communicate()


def report(shards: Path, made: str, rounds: int, images: int, workers: int, latency: float) -> None:
    """Measure all of them in turn, and print the medians and the ratios to disk."""
    found: dict[str, list[tuple[float, float]]] = {}
    plain = Filler.expect  # in threads, where it can be replaced

    def unprepared(self: Filler, picks: Picks) -> None:
        """Read nothing in advance."""

    os.environ["XDG_CACHE_HOME"] = f"{made}/first"
    open_dataset("s3://bucket/", split="all")  # the indices of the shards, which are cached from now on
    for number in range(rounds + 1):  # the first warms the disk and the imports, and does not count
        for name in ("disk", "server", "server, again", "server, nothing in advance"):
            prepared = not name.endswith("advance")
            if not prepared and number != 1:
                continue  # it is slow: once
            cache = Path(f"{made}/cache-{number}-{prepared}")
            if not cache.exists():
                shutil.copytree(f"{made}/first/vitlab/shards", cache / "vitlab" / "shards")
            os.environ["XDG_CACHE_HOME"] = str(cache)
            Filler.expect = plain if prepared else unprepared  # type: ignore[method-assign]
            data = str(shards) if name == "disk" else "s3://bucket/"
            rate = measured(data, images if prepared else BATCH, workers, "process" if prepared else "thread")
            if number:
                found.setdefault(name, []).append(rate)
    disk = statistics.median(rate for rate, _ in found["disk"])
    print(
        f"{latency:g} ms of latency, {workers} worker(s), {images} images a round, {rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    for name, rates in found.items():
        rate, cpu = (statistics.median(values) for values in zip(*rates, strict=True))
        ratios = sorted(one / other for (one, _), (other, _) in zip(rates, found["disk"], strict=False))
        print(
            f"{name:28} {rate:7.1f} images/s  {cpu:6.2f} cpu ms   {rate / disk:5.2f} of disk ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
