"""The speed of a model in each backend: latency of one image, images/s in batches, memory, fraction of the machine's peak.

All backends are measured in turn, round after round, so that a busy moment of the machine affects all of them.

Axes: B batch, H height, W width, C channels of an image.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, UsageError, at_least, did_you_mean
from vitlab.inference.auto import AutoBackend, cpu_name
from vitlab.inference.backends import TorchBackend, installed
from vitlab.inference.engine import Predictor
from vitlab.io.display import Facts
from vitlab.models.cost import cost

Run = Callable[[NDArray[np.uint8]], object]
BATCHES = (4, 16, 32)
_LATENCIES = 5  # of one image, in each round


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpeed:
    """The measurements of one backend.

    `latency_ms` are the quantiles 0.5, 0.9 and 0.99 of one image's time. `rate` is images/s at `batch`, the best of the batch
    sizes, and `rates` has all of them. `of_peak` is the fraction of the machine's matrix-product speed, from 0 to about 1,
    counting the multiply-adds of the model itself (a backend that leaves some out can pass 1). `memory` is by how many bytes the
    process grew when the backend was made and first run, None if the system does not say.
    """

    name: str
    latency_ms: tuple[float, float, float]
    batch: int
    rate: float
    rates: dict[int, float]
    of_peak: float
    memory: int | None


def bench(
    factories: Mapping[str, Callable[[], Run]], checkpoint: Checkpoint, *, seconds: float, batches: tuple[int, ...] = BATCHES
) -> list[BackendSpeed]:
    """Measure every backend, in turn, for about `seconds` after all are made and warm; results are in the order given."""
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds} must be above 0")
    for batch in batches:
        at_least("batches", batch, 1)
    shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
    images_BHWC = np.random.default_rng(0).integers(0, 256, (max(batches), *shape), np.uint8)
    runs: dict[str, Run] = {}
    memory: dict[str, int | None] = {}
    for name, factory in factories.items():
        before = resident()
        runs[name] = factory()
        for count in (1, *batches):
            runs[name](images_BHWC[:count])
        after = resident()
        memory[name] = None if before is None or after is None else max(0, after - before)
    alone: dict[str, list[float]] = {name: [] for name in runs}
    many = {name: dict.fromkeys(batches, float("inf")) for name in runs}
    began, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - began < seconds:
        rounds += 1
        for name, run in runs.items():
            alone[name] += [_timed(run, images_BHWC[:1]) for _ in range(_LATENCIES)]
            for batch in batches:
                many[name][batch] = min(many[name][batch], _timed(run, images_BHWC[:batch]))
    flops, peak = 2 * cost(checkpoint.config).macs, sgemm_peak()
    found = []
    for name in runs:
        rates = {batch: batch / spent for batch, spent in many[name].items()}
        best = max(rates, key=rates.__getitem__)
        p50, p90, p99 = (1e3 * float(value) for value in np.quantile(alone[name], (0.5, 0.9, 0.99)))
        found.append(
            BackendSpeed(
                name=name,
                latency_ms=(p50, p90, p99),
                batch=best,
                rate=rates[best],
                rates=rates,
                of_peak=rates[best] * flops / peak,
                memory=memory[name],
            )
        )
    return found


def sgemm_peak() -> float:
    """Floating-point operations per second of one large float32 matrix product in PyTorch: the best of several, measured once."""
    return _sgemm_peak(torch.get_num_threads())


@cache
def _sgemm_peak(threads: int) -> float:
    a, b = torch.ones(1576, 768), torch.ones(768, 3072)
    out = torch.empty(1576, 3072)
    spent = min(_timed(lambda _: torch.mm(a, b, out=out), np.empty(0, np.uint8)) for _ in range(20))
    return 2 * 1576 * 768 * 3072 / spent


def resident() -> int | None:
    """Resident bytes of this process, None if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * 4096


def timm_model(config: ViTConfig) -> torch.nn.Module:
    """timm's ViT of the same size, randomly initialised; ConfigError if timm or such a model is not available."""
    try:
        from timm.models.vision_transformer import VisionTransformer
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision does not fit the installed torch
        raise ConfigError(f"timm cannot be imported: {error}", hint="pip install timm, in an environment of its own") from error
    if (
        config.before is not None
        or config.pool == "map"
        or config.attention != "global"
        or config.position.kind != "learned-1d"
        or config.traits
    ):
        raise ConfigError("timm's plain ViT has no such model")
    model: torch.nn.Module = VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.channels,
        num_classes=config.num_classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_width / config.width,
        reg_tokens=config.register_tokens,
        class_token=config.class_token,
        global_pool="avg" if config.pool == "mean" else "token",
    )
    return model.eval()


def timm_run(checkpoint: Checkpoint) -> Run:
    """timm's model of the same size, used as a user of timm does: normalise the images, then run the model."""
    from vitlab.data.transforms import normalise

    assert isinstance(checkpoint.config, ViTConfig)
    model = timm_model(checkpoint.config)

    def run(images_BHWC: NDArray[np.uint8]) -> object:
        with torch.inference_mode():
            return model(normalise(torch.from_numpy(images_BHWC), checkpoint.preprocess))

    return run


def _timed(run: Run, images_BHWC: NDArray[np.uint8]) -> float:
    began = time.perf_counter()
    run(images_BHWC)
    return time.perf_counter() - began


NAMES = ("torch", "compile", "onnxruntime", "openvino", "plain", "timm")
"""What can be measured: the backends, `plain` (the model without folded weights) and timm's model of the same architecture."""


def bench_checkpoint(
    checkpoint: Checkpoint,
    *,
    name: str,
    stored: bool,
    backends: tuple[str, ...] | None,
    batches: tuple[int, ...],
    merge: int,
    seconds: float,
    notify: Callable[[str], None],
) -> Facts:
    """Measure a checkpoint in these backends, or in all that are installed; for a `stored` one, `auto` keeps which is fastest."""
    for backend in backends or ():
        if backend not in NAMES:
            raise UsageError(f"`backend`: {backend!r} is not one of {', '.join(NAMES)}", hint=did_you_mean(backend, NAMES))
    makers = {each: _maker(each, checkpoint, 0) for each in backends or _installed(checkpoint, notify)}
    if merge:
        makers[f"torch, merge {merge}"] = _maker("torch", checkpoint, merge)
    rows = [_row(speed) for speed in bench(makers, checkpoint, seconds=seconds, batches=batches)]
    spent = cost(checkpoint.config)
    facts: dict[str, Any] = {
        "model": name,
        "image_size": list(checkpoint.preprocess.image_size),
        "macs": spent.macs,
        "parameters": spent.parameters,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sgemm_gflops": round(sgemm_peak() / 1e9, 1),
    }
    chosen = None
    if stored and backends is None:
        auto = Predictor(checkpoint, device="cpu").backend
        if isinstance(auto, AutoBackend):
            chosen = auto.measure_now().summary()
            notify(f"auto now knows: {chosen}")
    return Facts({**facts, "speeds": rows, "auto": chosen}, shown=[facts, rows])


def _installed(checkpoint: Checkpoint, notify: Callable[[str], None]) -> list[str]:
    found = ["torch", *(name for name in ("onnxruntime", "openvino") if installed(name))]
    if installed("timm") and isinstance(checkpoint.config, ViTConfig):
        try:
            timm_model(checkpoint.config)
            found.append("timm")
        except ConfigError as error:
            notify(f"timm is left out: {error.message}")
    return found


def _maker(name: str, checkpoint: Checkpoint, merge: int) -> Callable[[], Run]:
    def make() -> Run:
        if name == "timm":
            if not isinstance(checkpoint.config, ViTConfig):
                raise ConfigError("timm is measured beside a ViT only", hint="leave timm out of backend")
            return timm_run(checkpoint)
        if name == "plain":
            return TorchBackend(checkpoint.model, checkpoint.preprocess).run
        return Predictor(checkpoint, backend=name, merge=merge, device="cpu").backend.run  # type: ignore[arg-type]  # checked above

    return make


def _row(speed: BackendSpeed) -> dict[str, Any]:
    p50, p90, p99 = speed.latency_ms
    return {
        "backend": speed.name,
        "p50_ms": round(p50, 2),
        "p90_ms": round(p90, 2),
        "p99_ms": round(p99, 2),
        "batch": speed.batch,
        "images_per_sec": round(speed.rate, 2),
        "of_sgemm_peak": round(speed.of_peak, 3),
        "memory_mb": None if speed.memory is None else round(speed.memory / 1e6, 1),
    }
