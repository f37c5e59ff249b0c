"""Images per second of training, beside timm, Hugging Face and vit-pytorch at equal mathematics, and the memory each takes.

    python benchmarks/train.py [--threads N] [--rounds N] [--steps N] [--only small|Ti/16] [--quick] [--json]

Two models: ViT-Ti/16 at 224 px, and a ViT of 32 px, patch 4, width 192, depth 9. vitlab makes its update as its own training
loop does, from uint8 images on, in a process that keeps the memory it frees, as `vitlab finetune` does (`vitlab, library`: in one
that does not); every peer has the plainest good loop, from images that are normalised already: logits, cross-entropy, backward,
clipping at 1, fused AdamW. vitlab, timm and Hugging Face begin with the same weights, converted by vitlab, and see the same
batch, so that their losses must agree; the table has the largest difference over all steps. vit-pytorch's ViT is another
function (a LayerNorm on each side of the patch embedding, no bias of q, k and v), so only its speed is compared.

Each contender lives in a process of its own, which is where its peak memory is measured, and they take turns, a few steps each,
so that a busy moment of the machine falls on all. With one thread seconds are those of the process's own CPU time, which other
people's load touches least; with more they are those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.checkpoints import Checkpoint, convert, load, save
from vitlab.checkpoints.native import HeaderFacts
from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.data import Augment, LoaderConfig
from vitlab.config.run import RunConfig, RunData
from vitlab.config.train import Optimizer, Schedule, TrainConfig
from vitlab.config.vit import with_profile
from vitlab.data.batch import Batch
from vitlab.data.transforms import normalise
from vitlab.models import build
from vitlab.models.vit import ViT
from vitlab.training.distributed import World
from vitlab.training.events import Stepped, keep_memory
from vitlab.training.optim import create_optimizers
from vitlab.training.step import Progress, RunningStatistics, TrainState, update
from vitlab.training.tasks import Classify

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # run as a script, its own folder is all that Python looks in

from benchmarks.peers import peer  # noqa: E402

RATE, CLIP = 1e-4, 1.0
SMALL = ViTConfig(width=192, depth=9, heads=3, mlp_width=768, patch_size=(4, 4), image_size=(32, 32), num_classes=10)
TI = variant("ViT-Ti/16", num_classes=1000, profile="timm")
assert isinstance(TI, ViTConfig)
MODELS: dict[str, tuple[ViTConfig, int]] = {  # with the images of a batch
    "small": (with_profile(SMALL, "timm"), 64),
    "Ti/16": (TI, 64),
}
CONTENDERS = ("vitlab", "vitlab, library", "timm", "Hugging Face", "vit-pytorch")
Step = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender: images per second at its best and by the median step, peak memory, and how far its losses are from ours."""

    model: str
    contender: str
    best: float
    median: float
    peak_mib: float
    difference: float | None


def batch_of(config: ViTConfig, rows: int) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Random images as uint8 (B, H, W, C), and their labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (rows, *config.image_size, config.channels), np.uint8)
    return images, rng.integers(0, config.num_classes, rows)


def fed(config: ViTConfig) -> Preprocess:
    """How the images are fed: as they are, to [-1, 1]."""
    return Preprocess(image_size=config.image_size, resize="squash")


def ours(folder: Path, config: ViTConfig, rows: int) -> Step:
    """vitlab's own update in a process of `vitlab finetune`, which keeps the memory it frees."""
    keep_memory()
    return library(folder, config, rows)


def library(folder: Path, config: ViTConfig, rows: int) -> Step:
    """vitlab's own update, as its loop makes it, in anybody's process."""
    model = load(folder / "native.safetensors").model
    assert isinstance(model, ViT)
    model.skip_unused_tokens = True
    images, labels = batch_of(config, rows)
    augment = Augment(image_size=config.image_size)
    run = RunConfig(
        name="benchmark",
        model=config,
        preprocess=fed(config),
        data=RunData(dataset="digits", augment=augment, loader=LoaderConfig(batch_size=rows)),
        train=TrainConfig(steps=1_000_000, optimizer=Optimizer(lr=RATE, clip=CLIP), schedule=Schedule(kind="constant")),
    )
    state = TrainState(
        run=run,
        world=World(device=torch.device("cpu")),
        model=model.train(),
        unwrapped=model,
        core=model,
        task=Classify(
            config=run.train, augment=augment, preprocess=run.preprocess, classes=config.num_classes, dtype=torch.float32
        ),
        optimizers=create_optimizers(model, run.train.optimizer),
        average=None,
        statistics=RunningStatistics(model),
        facts=HeaderFacts(config=config, preprocess=run.preprocess),
        progress=Progress(),
    )
    batch = Batch(images_BHWC=images, labels=labels, index_B=np.arange(rows), epoch=0, position=rows, failed=())

    def step() -> float:
        event = update(state, batch, epoch_length=rows)
        assert isinstance(event, Stepped)
        return event.loss

    return step


def plain(model: nn.Module, logits_of: Callable[[Tensor], Tensor], config: ViTConfig, rows: int) -> Step:
    """The plainest good loop around anybody's model."""
    images, labels = batch_of(config, rows)
    images_BCHW = normalise(torch.from_numpy(images), fed(config))
    labels_B = torch.from_numpy(labels)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)

    def step() -> float:
        loss = F.cross_entropy(logits_of(images_BCHW), labels_B)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        optimizer.step()
        return float(loss.detach())

    return step


def timm(folder: Path, config: ViTConfig, rows: int) -> Step:
    """timm's ViT with our weights."""
    vit = peer("timm.models.vision_transformer").VisionTransformer
    model = vit(
        img_size=config.image_size, patch_size=config.patch_size, embed_dim=config.width, depth=config.depth,
        num_heads=config.heads, mlp_ratio=config.mlp_width / config.width, num_classes=config.num_classes,
    )  # fmt: skip
    model.load_state_dict(peer("safetensors.torch").load_file(folder / "timm.safetensors"), strict=True)
    return plain(model, model, config, rows)


def hugging_face(folder: Path, config: ViTConfig, rows: int) -> Step:
    """Hugging Face's ViT with our weights."""
    peer("torchvision")  # transformers imports it where it is installed
    transformers = peer("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.ViTForImageClassification.from_pretrained(folder / "hf", attn_implementation="sdpa")
    return plain(model, lambda images_BCHW: model(images_BCHW).logits, config, rows)


def vit_pytorch(folder: Path, config: ViTConfig, rows: int) -> Step:
    """vit-pytorch's ViT with its own weights."""
    peer("torchvision")
    model = peer("vit_pytorch.vit").ViT(
        image_size=config.image_size, patch_size=config.patch_size, dim=config.width, depth=config.depth, heads=config.heads,
        dim_head=config.width // config.heads, mlp_dim=config.mlp_width, num_classes=config.num_classes,
    )  # fmt: skip
    return plain(model, model, config, rows)


MAKERS = dict(zip(CONTENDERS, (ours, library, timm, hugging_face, vit_pytorch), strict=True))


def live(contender: str, name: str, folder: str, threads: int, line: Connection) -> None:
    """A contender's process: says it is ready, or why not; then makes as many steps as it is told, until told 0."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    clock = time.process_time if threads == 1 else time.perf_counter
    config, rows = MODELS[name]
    try:
        step = MAKERS[contender](Path(folder), config, rows)
    except ImportError as error:
        line.send(str(error))
        return
    line.send(None)
    while steps := line.recv():
        seconds, losses = [], []
        for _ in range(steps):
            began = clock()
            losses.append(step())
            seconds.append(clock() - began)
        line.send((seconds, losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def compare(name: str, *, threads: int, rounds: int, steps: int) -> list[Row]:
    """Every contender that is installed, in turns; ours first."""
    config, rows = MODELS[name]
    context = get_context("spawn")
    lines: dict[str, Connection] = {}
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        _weights(Path(folder), config)
        for contender in CONTENDERS:
            line, far = context.Pipe()
            process = context.Process(target=live, args=(contender, name, folder, threads, far), daemon=True)
            process.start()
            processes.append(process)
            if (trouble := line.recv()) is None:
                lines[contender] = line
            else:
                print(f"{contender} is left out: {trouble}", file=sys.stderr)
        seconds: dict[str, list[float]] = {contender: [] for contender in lines}
        losses: dict[str, list[float]] = {contender: [] for contender in lines}
        peaks: dict[str, float] = {}
        for turn in range(rounds + 1):
            for contender, line in lines.items():
                line.send(steps)
                took, said, peaks[contender] = line.recv()
                losses[contender] += said
                seconds[contender] += took if turn else []  # the first turn warms up
        for line in lines.values():
            line.send(0)
        for process in processes:
            process.join()
    return [
        Row(
            model=name,
            contender=contender,
            best=rows / min(seconds[contender]),
            median=rows / statistics.median(seconds[contender]),
            peak_mib=peaks[contender],
            difference=None if contender == "vit-pytorch" else _apart(losses[contender], losses["vitlab"]),
        )
        for contender in lines
    ]


def _weights(folder: Path, config: ViTConfig) -> None:
    """The same random weights for all who share our mathematics; the head too, which would begin with zeros."""
    model = build(config)
    with torch.no_grad():
        assert isinstance(model, ViT)
        assert model.head is not None
        model.head.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(1))
    save(Checkpoint(model=model, config=config, preprocess=fed(config), labels=None), folder / "native.safetensors")
    convert(folder / "native.safetensors", folder / "timm.safetensors", to="timm")
    convert(folder / "native.safetensors", folder / "hf", to="huggingface")


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def report(rows: list[Row], *, threads: int, steps: int) -> dict[str, Any]:
    """Ours over the best peer, by the best step and by the median."""
    mine, *others = rows
    peers = [row for row in others if not row.contender.startswith("vitlab")]
    found: dict[str, Any] = {"rows": [asdict(row) for row in rows], "threads": threads, "steps": steps}
    if peers:
        found["ratio"] = mine.best / max(row.best for row in peers)
        found["ratio_of_medians"] = mine.median / max(row.median for row in peers)
    return found


def show(name: str, found: dict[str, Any]) -> None:
    """A table for people."""
    config, batch = MODELS[name]
    size = f"{config.image_size[0]} px, {config.width} wide, {config.depth} deep, {config.tokens} tokens"
    print(f"\n{name}: {size}, batches of {batch}, {found['threads']} threads, {found['steps']} steps each")
    print(f"{'':16} {'best/s':>8} {'median/s':>9} {'peak MiB':>9}   loss differs by at most")
    for row in found["rows"]:
        apart = "another function" if row["difference"] is None else f"{row['difference']:.1e}"
        print(f"{row['contender']:16} {row['best']:8.1f} {row['median']:9.1f} {row['peak_mib']:9,.0f}   {apart}")
    if "ratio" in found:
        print(f"vitlab over the best peer: {found['ratio']:.3f} (medians {found['ratio_of_medians']:.3f})")


def main() -> None:
    """Both models."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description="Images per second of training, beside the peers.")
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender that count, after one to warm up")
    parser.add_argument("--steps", type=int, default=2, help="updates of a turn")
    parser.add_argument("--only", choices=tuple(MODELS), help="one of the two models")
    parser.add_argument("--quick", action="store_true", help="two turns of one update: does it run, and do the losses agree?")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rounds, steps = (2, 1) if arguments.quick else (arguments.rounds, arguments.steps)
    found = {}
    for name in [arguments.only] if arguments.only else MODELS:
        rows = compare(name, threads=arguments.threads, rounds=rounds, steps=steps)
        found[name] = report(rows, threads=arguments.threads, steps=rounds * steps)
        if not arguments.json:
            show(name, found[name])
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
