"""Memory of one rank under FSDP2: as predicted on the meta device, as rehearsed on fake tensors, and as measured in a run.

    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/fsdp_memory.py \
        [--model ViT-L/16] [--batch-size 8] [--recompute] [--precision float32] [--micro-batch 0]

Measured is the resident set of the process (VmHWM of /proc/self/status, reset before the steps that count), less what it was before
the model was built: everything that the run needs, with the buffers of gloo and what the allocator does not give back. glibc is
told to return every block of more than 1 MiB at once, else its habits are measured too. Three steps of `update` on random images;
the last two count. Then two steps more, in which the tensors alone are counted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from benchmarks.rehearsal import MemoryTracker, rehearse
from vitlab.config.overrides import DataFacts, Overrides
from vitlab.config.run import RunConfig
from vitlab.config.train import Average
from vitlab.models.cost import cost
from vitlab.recipes import recipe
from vitlab.training.distributed import world
from vitlab.training.plan import Absent, Memory, random_batch
from vitlab.training.setup import create_state
from vitlab.training.step import update

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-L/16")
    parser.add_argument("--batch-size", type=int, default=8, help="images per step, over both ranks")
    parser.add_argument("--micro-batch", type=int, default=0)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    return parser.parse_args()


def planned(options: argparse.Namespace) -> RunConfig:
    overrides = Overrides(
        model=options.model,
        batch_size=options.batch_size,
        micro_batch=options.micro_batch,
        precision=options.precision,
        recompute=options.recompute,
        strategy="fsdp",
        steps=1000,
    )
    run = recipe("imagenet-scratch", overrides)
    return replace(run, train=replace(run.train, average=Average(decay=0.0), hang_timeout=600.0))


def resident(name: str) -> int:
    """Bytes: `VmRSS` now, or `VmHWM` at the peak since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    options = asked()
    run = planned(options)
    ranks = int(os.environ["WORLD_SIZE"])
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, 1 << 20)
    library.mallopt(_TRIM_THRESHOLD, 1 << 20)
    own = -(-options.batch_size // ranks)
    rows = min(options.micro_batch or own, own)
    predicted = Memory(run, cost(run.model), ranks, device="cpu").parts(rows).total
    rehearsed = rehearse(run, ranks=ranks).peak if os.environ["RANK"] == "0" else 0  # the same for all
    with world("cpu", timeout=600) as here:
        dist.barrier()
        gc.collect()
        before = resident("VmRSS")
        facts = DataFacts(dataset="random", images=1_000_000, classes=1000)
        state = create_state(run, Absent(facts), here)
        batches = [random_batch(run, Absent(facts), own, seed=number) for number in range(3)]
        update(state, batches[0], epoch_length=1_000_000)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        began, cpu = time.monotonic(), time.process_time()
        for batch in batches[1:]:
            update(state, batch, epoch_length=1_000_000)
        seconds, cpu = (time.monotonic() - began) / 2, (time.process_time() - cpu) / 2
        measured = resident("VmHWM") - before
        with MemoryTracker() as memory:
            for parameter in state.model.parameters():
                memory.add(parameter)
            for optimizer in state.optimizers:
                for slots in optimizer.state.values():
                    for slot in slots.values():
                        memory.add(slot)
            memory.reset()
            for batch in batches[1:]:
                update(state, batch, epoch_length=1_000_000)
        row = {
            "model": options.model,
            "parameters": cost(run.model).parameters,
            "ranks": ranks,
            "images_of_a_rank": own,
            "micro_batch": rows,
            "recompute": options.recompute,
            "precision": options.precision,
            "predicted_mib": round(predicted / 2**20),
            "rehearsed_mib": round(rehearsed / 2**20) or None,
            "tensors_mib": round(memory.peak / 2**20),
            "resident_mib": round(measured / 2**20),
            "predicted_over_resident": round(predicted / measured, 3),
            "step_seconds": round(seconds, 1),
            "cpu_seconds": round(cpu, 1),
            "largest_resident_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        for found in here.gather(row):
            if here.is_main:
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if platform.system() != "Linux":
        sys.exit("error: the resident set is read from /proc, which only Linux has")
    main()
