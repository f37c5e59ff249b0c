"""A real memory limit (`ulimit -v`) in training, prediction, evaluation and conversion: fewer images at a time, down to one, with
the same results; then one error. The wordings of torch, oneDNN, OpenVINO and onnxruntime are all recognised."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.runs import in_a_child
from vitlab.errors import DataError, OutOfMemoryError
from vitlab.inference.backends import Outputs, Pixels
from vitlab.inference.engine import ImageBatch, run_batches
from vitlab.io.machine import is_out_of_memory

LIMITED = """
import contextlib, io, os, resource, sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tests.faults.runs import image_folder
from tests.training.small import last, run_to, small_run, without_noise
from vitlab.checkpoints import save
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.cli.main import main
from vitlab.config.train import Schedule
from vitlab.errors import TrainingError
from vitlab.models import build

@contextmanager
def limited(extra):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra * 2**20, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def large(side, batch_size):
    run = without_noise(small_run(steps=5))
    size = (side, side)
    augment = replace(run.data.augment, image_size=size, mixup=0.0)
    loader = replace(run.data.loader, batch_size=batch_size)
    return replace(
        run,
        model=replace(run.model, image_size=size, patch_size=(side // 8, side // 8)),
        preprocess=replace(run.preprocess, image_size=size),
        data=replace(run.data, augment=augment, loader=loader),
        train=replace(run.train, steps=2, schedule=Schedule(warmup=0), micro_batch=0, evaluate_every=0, save_every=0),
    )

def said(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), [line for line in err.getvalue().splitlines() if line.startswith("error: ")]

os.chdir(sys.argv[1])
run_to(large(512, 2), Path("warm"))
run_to(large(512, 48), Path("whole"))
with limited(30):
    events = run_to(large(512, 48), Path("limited"))
assert any(event.event == "micro-batch-reduced" for event in events)
whole, other = last(Path("whole")).model, last(Path("limited")).model
assert all(tensor.allclose(other[name], atol=1e-5) for name, tensor in whole.items())
print("training goes on with smaller micro-batches")

try:
    with limited(12):
        run_to(large(6144, 1), Path("single"))
except TrainingError as error:
    print("training with one image:", error.message)

data = image_folder(Path("data"), ("a", "b"), images=24)
run = large(512, 48)
config = replace(run.model, num_classes=2)
save(Checkpoint(model=build(config, seed=0), config=config, preprocess=run.preprocess, labels=("a", "b")), "model.safetensors")
wide = replace(small_run().model, width=1024, mlp_width=4096, heads=8)
save(Checkpoint(model=build(wide, seed=0), config=wide, preprocess=small_run().preprocess), "wide.safetensors")
for verb, words in {
    "predict": ("predict", "model.safetensors", data, "--workers", 0, "--backend", "torch", "--format", "csv", "--batch-size"),
    "evaluate": ("evaluate", "model.safetensors", data, "--split", "all", "--workers", 0, "--backend", "torch", "--batch-size"),
}.items():
    said(*words, 2)
    free = said(*words, 48)
    with limited(25):
        assert said(*words, 48) == free, verb
    assert free[0] == 0
    print(verb, "gives the same results")
    with limited(0):
        code, _, errors = said(*words, 1024)
    if code:  # what was freed before may be enough
        assert "memory" in errors[0], errors
with limited(20):
    code, _, errors = said("convert", "wide.safetensors", "wide.npz", "--to", "jax-npz")
print("convert:", code, errors[0])
print("left:", *(path.name for path in Path().iterdir() if path.name.startswith((".", "wide.npz"))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_under_a_memory_limit_fewer_images_run_at_a_time_and_then_there_is_one_error(warm: Path, tmp_path: Path) -> None:
    lines = in_a_child(warm, LIMITED, tmp_path)
    assert lines[0] == "training goes on with smaller micro-batches"
    assert lines[1].startswith("training with one image: out of memory")
    assert lines[2:4] == ["predict gives the same results", "evaluate gives the same results"]
    assert lines[4].startswith("convert: 1 error: ")
    assert "memory" in lines[4]
    assert lines[5].split() == ["left:"]


class Narrow:
    """A backend without memory for more than `most` images."""

    name = "narrow"

    def __init__(self, most: int, error: Exception) -> None:
        self.most = most
        self.error = error
        self.sizes = list[int]()

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        self.sizes.append(len(images_BHWC))
        if len(images_BHWC) > self.most:
            raise self.error
        first_B1 = images_BHWC[:, 0, 0].astype(np.float32)
        return Outputs(logits_BK=first_B1, features_BD=first_B1 if features else None)


def batches(*sizes: int) -> Iterator[ImageBatch]:
    for size in sizes:
        images_BHWC = np.arange(size, dtype=np.uint8).reshape(size, 1, 1, 1)
        yield ImageBatch(names=("x",) * size, images_BHWC=images_BHWC, failed=())


def test_a_batch_is_halved_until_it_fits_and_later_batches_start_there() -> None:
    backend = Narrow(3, RuntimeError("could not create a primitive"))
    found = [outputs for _, outputs in run_batches(backend, batches(10, 2, 10), features=True)]
    for outputs, size in zip(found, (10, 2, 10), strict=True):
        assert outputs is not None
        assert outputs.features_BD is not None
        assert outputs.logits_BK[:, 0].tolist() == outputs.features_BD[:, 0].tolist() == list(range(size))
    assert backend.sizes == [10, 5, 3, 3, 3, 1, 2, 3, 3, 3, 1]
    with pytest.raises(OutOfMemoryError, match="single image at a time: could not create a primitive"):
        list(run_batches(Narrow(0, RuntimeError("could not create a primitive")), batches(3)))
    with pytest.raises(RuntimeError, match="shapes"):
        list(run_batches(Narrow(0, RuntimeError("shapes cannot be multiplied")), batches(3)))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),
        RuntimeError("could not create a memory object"),
        RuntimeError("Exception from src/inference/src/cpp/infer_request.cpp:223:\nstd::bad_alloc\n"),
        RuntimeError("Failed to allocate 1073741824 bytes of memory"),
        RuntimeError("unable to mmap 1048576 bytes from file <model.pt>: Cannot allocate memory (12)"),
        type("Fail", (Exception,), {})("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer of size 9"),
        type("RuntimeException", (Exception,), {})("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"),
    ],
)
def test_every_library_s_wording_is_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("shapes cannot be multiplied"), OSError(errno.ENOSPC, "No space"), DataError("a memory of it"), ValueError()],
)
def test_other_errors_are_not_taken_for_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)
