"""`vitlab serve` against FastAPI with timm and LitServe with timm: images/s and latency from JPEG bytes, over loopback.

    python benchmarks/serve.py WEIGHTS IMAGES [--servers vitlab,fastapi,litserve] [--clients 1,8,64] [--seconds 6] [--rounds 3]

WEIGHTS is a DeiT-Ti/16 under timm's names (.npz), IMAGES a folder of JPEG files. Every server is a process of its own; all are
started first, rounds take turns, and a server that is not measured is stopped (SIGSTOP). A form with one file goes to vitlab and
FastAPI, JSON with base64 to LitServe. `vitlab serve` measures at its first start which backend is fastest, which takes a minute.
CPU time per image is that of all processes of a server: on a busy machine it says more than images/s.

Then the overload of vitlab: requests at four times the images/s that it reached with 64 clients. `--soak N` sends N requests to a
server of a miniature model and prints its memory along the way. A round of the defaults takes about a minute.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
_PATIENCE = 300.0  # seconds for a server to start


@dataclass
class Server:
    """A running server, and what was seen of it, by the number of clients: seconds of requests, images/s, CPU ms an image."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    seconds: dict[int, list[float]] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    cpu: dict[int, list[float]] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Its endpoint."""
        return "/v1/predict" if self.name.startswith("vitlab") else "/predict"

    def send(self, number: signal.Signals) -> None:
        """A signal to all its processes."""
        os.killpg(self.process.pid, number)

    def load(self, images: Sequence[Path], *, clients: int = 0, seconds: float = 3600, rate: float = 0, most: int = 10**9) -> Any:
        """What `load.py` saw."""
        form = "json" if self.name == "litserve" else "form"
        settings = {"port": self.port, "place": self.place, "form": form, "images": list(map(str, images))}
        settings |= {"clients": clients, "seconds": seconds, "rate": rate, "most": most}
        done = subprocess.run(
            [sys.executable, HERE / "load.py"], input=json.dumps(settings).encode(), stdout=subprocess.PIPE, check=True
        )
        return json.loads(done.stdout)


@contextmanager
def started(name: str, command: Sequence[str | Path], port: int, ready: str) -> Iterator[Server]:
    """A server, from when it answers `ready` until the block ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the servers too
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not answers(port, ready):
            assert process.poll() is None, f"{name} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{name} does not start"
            time.sleep(0.2)
        yield Server(name, port, process)
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):  # LitServe leaves workers behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def answers(port: int, path: str) -> bool:
    """Whether the server answers this path with success."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def command_of(name: str, weights: Path, port: int, options: argparse.Namespace) -> tuple[list[str | Path], str]:
    """How to start a server, and the path that answers when it is ready."""
    if name.startswith("vitlab"):
        backend = name.partition("-")[2] or options.backend
        words = [sys.executable, "-m", "vitlab", "serve", weights, "--port", str(port), "--backend", backend]
        return [*words, *options.serve.split()], "/readyz"
    return [sys.executable, HERE / f"plain_{name}.py", weights, "--port", str(port)], "/docs"


def resident(pid: int) -> float:
    """The memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def cpu_seconds(group: int) -> float:
    """CPU time of all processes of a group so far."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[2]) == group:
            total += int(words[11]) + int(words[12])
    return total / os.sysconf("SC_CLK_TCK")


def p(seconds: Sequence[float], percent: float) -> float:
    """A percentile, in milliseconds."""
    return 1000 * float(np.percentile(seconds, percent)) if seconds else float("nan")


def measure(options: argparse.Namespace, images: list[Path]) -> dict[str, Any]:
    """Rounds of all servers, one after another, then the overload of vitlab."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        servers = []
        for name in options.servers.split(","):
            port = free_port()
            command, ready = command_of(name, options.weights, port, options)
            servers.append(stack.enter_context(started(name, command, port, ready)))
            servers[-1].load(images[:32], clients=4, most=64)  # warm
            servers[-1].send(signal.SIGSTOP)
        counts = [int(word) for word in options.clients.split(",")]
        for _ in range(options.rounds):
            for clients in counts:
                for server in servers:
                    server.send(signal.SIGCONT)
                    before = cpu_seconds(server.process.pid)
                    seen = server.load(images, clients=clients, seconds=options.seconds)
                    spent = cpu_seconds(server.process.pid) - before
                    server.send(signal.SIGSTOP)
                    assert set(seen["statuses"]) == {"200"}, (server.name, seen["statuses"], seen["lost"])
                    server.seconds.setdefault(clients, []).extend(seen["seconds"])
                    server.rates.setdefault(clients, []).append(len(seen["seconds"]) / seen["took"])
                    server.cpu.setdefault(clients, []).append(1000 * spent / len(seen["seconds"]))
                    server.best |= seen["best"]
        for clients in counts:
            print(f"\n{clients} clients   images/s: median (all rounds)   p50 ms   p99 ms   CPU ms an image")
            for server in servers:
                rates = server.rates[clients]
                row = {
                    "images_per_sec": float(np.median(rates)),
                    "p50": p(server.seconds[clients], 50),
                    "p99": p(server.seconds[clients], 99),
                    "cpu": float(np.median(server.cpu[clients])),
                }
                found[f"{server.name}/{clients}"] = row | {"rounds": rates}
                shown = ", ".join(f"{rate:.1f}" for rate in rates)
                times = f"{row['p50']:8.1f} {row['p99']:8.1f} {row['cpu']:8.1f}"
                print(f"  {server.name:10} {row['images_per_sec']:7.1f} ({shown})   {times}", flush=True)
        for server in servers[1:]:
            both = servers[0].best.keys() & server.best.keys()
            same = sum(abs(servers[0].best[key] - server.best[key]) < 1e-3 for key in both)
            print(f"the same probability (to 0.001) as {servers[0].name}: {server.name} {same} of {len(both)} images")
        if servers[0].name == "vitlab" and not options.no_overload:
            found["overload"] = overload(servers[0], images, options, counts[-1])
    return found


def overload(server: Server, images: list[Path], options: argparse.Namespace, clients: int) -> dict[str, Any]:
    """Four times the requests that the server can answer."""
    full = float(np.median(server.rates[clients]))
    server.send(signal.SIGCONT)
    seen = server.load(images, rate=4 * full, seconds=2 * options.seconds)
    after = server.load(images, clients=clients, seconds=options.seconds)
    ratio = p(seen["seconds"], 99) / p(server.seconds[clients], 99)
    print(
        f"\noverload: {4 * full:.0f} requests/s for {2 * options.seconds:g} s: statuses {seen['statuses']}, lost {seen['lost']};"
        f" accepted {len(seen['seconds']) / seen['took']:.1f} images/s, p50 {p(seen['seconds'], 50):.1f} ms,"
        f" p99 {p(seen['seconds'], 99):.1f} ms, {ratio:.2f} times that with {clients} clients;"
        f" afterwards {len(after['seconds']) / after['took']:.1f} images/s"
    )
    return {"statuses": seen["statuses"], "lost": seen["lost"], "p99": p(seen["seconds"], 99), "p99_ratio": ratio}


def miniature(folder: Path) -> Path:
    """A model that takes no time."""
    from vitlab.checkpoints import Checkpoint, save
    from vitlab.config import Preprocess, variant
    from vitlab.models import build

    weights = folder / "miniature.safetensors"
    config = variant("ViT-Mini/8", num_classes=10, image_size=(32, 32))
    save(Checkpoint(model=build(config), config=config, preprocess=Preprocess(image_size=(32, 32), resize_to=36)), weights)
    return weights


def soak(options: argparse.Namespace, images: list[Path]) -> list[float]:
    """Memory of a server of a miniature model, in MiB, after every tenth of the requests."""
    with tempfile.TemporaryDirectory() as folder:
        port, found = free_port(), list[float]()
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
        with started("vitlab", words, port, "/readyz") as server:
            for part in range(1, 11):
                seen = server.load(images, clients=32, most=options.soak // 10)
                assert set(seen["statuses"]) == {"200"}, seen["statuses"]
                assert not seen["lost"]
                found.append(resident(server.process.pid))
                rate = len(seen["seconds"]) / seen["took"]
                print(f"{part * options.soak // 10:,} requests, {rate:.0f} a second: {found[-1]:.1f} MiB", flush=True)
    return found


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--servers", default="vitlab,fastapi,litserve")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--serve", default="", help="more options of vitlab serve")
    parser.add_argument("--no-overload", action="store_true")
    parser.add_argument("--soak", type=int, default=0, help="requests")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    images = sorted(options.images.glob("*.[jJ][pP]*"))[:256]
    assert images, f"no JPEG files in {options.images}"
    found: Any = {"soak": soak(options, images)} if options.soak else measure(options, images)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
