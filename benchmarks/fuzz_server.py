"""Broken images through `vitlab serve`: each must be answered below 500, and the server must stay as it was.

    python benchmarks/fuzz_server.py [--inputs 10000] [--seed 0]

The images are those of `fuzz.py`: sound files of every format, broken in every way it knows. The server is a process of its own
with a miniature model; eight clients send. Prints how often each status came, and the server's memory and open files.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from benchmarks.fuzz_mutations import Corpus


def broken_images(count: int, *, seed: int) -> Iterator[bytes]:
    """So many broken image files; the same ones for the same seed."""
    corpus = Corpus(("image",))
    for number in range(count):
        found = corpus.input(seed, number)
        yield found.files[found.opened or next(iter(found.files))]


def send(port: int, content: bytes) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/predict", content, {"content-type": "application/octet-stream"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def main() -> int:
    """Fuzz, and print what came of it; 1 if an answer was 500 or above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from benchmarks.serve import free_port, miniature, resident, started

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        words: list[str | Path] = [
            sys.executable,
            "-m",
            "vitlab",
            "serve",
            miniature(Path(folder)),
            "--port",
            str(port),
            "--backend",
            "torch",
        ]
        with started("vitlab", words, port, "/readyz") as server, ThreadPoolExecutor(8) as clients:
            statuses: Counter[int] = Counter()
            for part in range(10):
                images = broken_images(options.inputs // 10, seed=10 * options.seed + part)
                statuses.update(clients.map(lambda content: send(port, content), images))
                files = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
                told = dict(sorted(statuses.items()))
                print(f"{statuses.total():,} images: {told}, {resident(server.process.pid):.0f} MiB, {files} files", flush=True)
    return int(any(status >= 500 for status in statuses))


if __name__ == "__main__":
    sys.exit(main())
