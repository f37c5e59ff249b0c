"""`vitlab bench NAME|FILE`: how fast a model is here, in each runtime that is installed, beside timm where that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union

import tyro

from vitlab.cli.parse import HeightWidth, count, is_checkpoint, one, parse, positional, unset
from vitlab.cli.table import cell, print_json, print_rows
from vitlab.cli.talk import UsageError, note
from vitlab.config.serialize import Json

if TYPE_CHECKING:
    from vitlab.checkpoints import Checkpoint
    from vitlab.inference.bench import Run, Speed

_NAMES = ("torch", "compile", "onnxruntime", "openvino", "plain", "timm")


def backends(word: str) -> tuple[str, ...]:
    """`torch,openvino`: names with commas between them."""
    names = tuple(word.split(","))
    for name in names:
        if name not in _NAMES:
            raise ValueError(f"{name!r} is not one of {', '.join(_NAMES)}")
    return names


def seconds(word: str) -> float:
    """A time above 0."""
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ValueError(f"{word!r} is no number of seconds above 0")
    return value


def batches(word: str) -> tuple[int, ...]:
    """`1,8,32`: numbers of images with commas between them."""
    found = tuple(count(part) for part in word.split(","))
    if not all(found):
        raise ValueError(f"{word!r}: a batch has at least 1 image")
    return found


Backends = Annotated[Union[None, tuple[str, ...]], one("NAME,...", backends)]  # noqa: UP007, RUF036
Threads = Annotated[Union[None, int], one("N", count)]  # noqa: UP007, RUF036


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Measure a model here: time of one image, images a second in batches, memory, share of the machine's peak."""

    model: Annotated[tyro.conf.Positional[str], positional("NAME|FILE")]
    """a variant's name (random weights), a checkpoint's file or folder, or hub:owner/name"""

    image_size: Annotated[HeightWidth, unset("the model's own")] = None
    """pixels, 384 or 160x224"""

    backend: Annotated[Backends, unset("torch and every other runtime that is installed")] = None
    """which to measure: torch, compile, onnxruntime, openvino, plain (the model as it is built), timm"""

    batch: Annotated[tuple[int, ...], one("N,...", batches)] = (4, 16, 32)
    """batches to try, the best of which is told"""

    merge: Annotated[int, one("N", count)] = 0
    """measure also torch with so many pairs of alike patches joined a layer, on average, in a ViT"""

    seconds: Annotated[float, one("S", seconds)] = 10.0
    """time to measure for, all together"""

    threads: Annotated[Threads, unset("torch's own number")] = None
    """threads to compute with"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Measure, print, and let `auto` know what was found of a checkpoint."""
    arguments = parse(Arguments, words, verb="bench")
    if arguments.threads == 0:
        raise UsageError("--threads: at least 1")
    import torch

    from vitlab.inference.auto import AutoBackend, cpu_name
    from vitlab.inference.bench import bench, sgemm_peak
    from vitlab.inference.predictor import Predictor
    from vitlab.models.cost import cost

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    checkpoint = _opened(arguments)
    speeds = bench(_makers(arguments, checkpoint), checkpoint, seconds=arguments.seconds, batches=arguments.batch)
    spent = cost(checkpoint.config)
    facts: dict[str, Json] = {
        "model": arguments.model,
        "image_size": list(checkpoint.preprocess.image_size),
        "macs": spent.macs,
        "parameters": spent.parameters,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sgemm_gflops": round(sgemm_peak() / 1e9, 1),
    }
    chosen: Json = None
    if is_checkpoint(arguments.model) and arguments.backend is None:
        auto = Predictor(checkpoint).backend
        if isinstance(auto, AutoBackend):
            chosen = auto.measure_now().summary()
    if arguments.json:
        print_json(facts | {"speeds": [_row(speed) for speed in speeds], "auto": chosen})
        return
    for key, value in facts.items():
        note(f"{key.replace('_', ' ')}: {cell(value)}")
    print_rows([_row(speed) for speed in speeds], json=False)
    if isinstance(chosen, str):
        note(f"note: auto now knows: {chosen}")


def _opened(arguments: Arguments) -> Checkpoint:
    if is_checkpoint(arguments.model):
        from vitlab.checkpoints import load

        checkpoint = load(arguments.model, image_size=arguments.image_size)
        for line in checkpoint.notes:
            note(f"note: {line}")
        return checkpoint
    from vitlab.checkpoints import Checkpoint as Made
    from vitlab.config import Preprocess, variant
    from vitlab.models import build

    config = variant(arguments.model, image_size=arguments.image_size)
    height, width = config.image_size
    fed = Preprocess(
        image_size=(height, width),
        resize_to=max(height, width),
        mean=(0.5,) * config.channels,
        std=(0.5,) * config.channels,
    )
    return Made(model=build(config).eval(), config=config, preprocess=fed)


def _makers(arguments: Arguments, checkpoint: Checkpoint) -> dict[str, Callable[[], Run]]:
    from vitlab.config.model import ViTConfig
    from vitlab.errors import ConfigError
    from vitlab.inference.backends import installed
    from vitlab.inference.bench import timm_model

    names = list(arguments.backend or ("torch",))
    if arguments.backend is None:
        names += [name for name in ("onnxruntime", "openvino") if installed(name)]
        if installed("timm") and isinstance(checkpoint.config, ViTConfig):
            try:
                timm_model(checkpoint.config)
                names.append("timm")
            except ConfigError as error:
                note(f"note: timm is left out: {error.message}")
    makers = {name: _maker(name, checkpoint, 0) for name in names}
    if arguments.merge:
        makers[f"torch, merge {arguments.merge}"] = _maker("torch", checkpoint, arguments.merge)
    return makers


def _maker(name: str, checkpoint: Checkpoint, merge: int) -> Callable[[], Run]:
    def make() -> Run:
        from vitlab.errors import ConfigError
        from vitlab.inference.backends import TorchBackend
        from vitlab.inference.bench import timm_run
        from vitlab.inference.predictor import Predictor

        if name == "timm":
            if checkpoint.config.kind != "vit":
                raise ConfigError("timm is measured beside a ViT only", hint="leave timm out of --backend")
            return timm_run(checkpoint)
        if name == "plain":
            return TorchBackend(checkpoint.model, checkpoint.preprocess).run
        return Predictor(checkpoint, backend=name, merge=merge).backend.run  # type: ignore[arg-type]  # checked when parsed

    return make


def _row(speed: Speed) -> dict[str, Json]:
    p50, p90, p99 = speed.latency_ms
    return {
        "backend": speed.name,
        "p50_ms": round(p50, 2),
        "p90_ms": round(p90, 2),
        "p99_ms": round(p99, 2),
        "batch": speed.batch,
        "images_per_s": round(speed.rate, 2),
        "of_sgemm_peak": round(speed.of_peak, 3),
        "memory_mb": None if speed.memory is None else round(speed.memory / 1e6, 1),
    }
