"""Inference backends: what runs a model on a batch of uint8 images.

`Backend` is the interface. `TorchBackend` runs any model as it is; `FoldedBackend` runs a ViT's folded graph in PyTorch;
`CompiledBackend`, `OnnxRuntimeBackend` and `OpenVINOBackend` run the same graph in other runtimes. All give the model's own numbers
to rounding; the other runtimes are checked against the model when they are made (`verify`).

Each backend takes its number of threads from PyTorch, so that `torch.set_num_threads` and OMP_NUM_THREADS hold for all. On the
CPU a batch is cut into slices of a few images, which stay in the cache and run side by side with one thread each: faster than one
large batch whose products all threads share.

Axes: B batch, H height, W width, C channels of an image, K classes, D width of the features.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitlab import __version__
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Preprocess
from vitlab.data.transforms import normalise
from vitlab.errors import CheckpointError, ConfigError, DataError, ExportError, at_least
from vitlab.inference.folded import exportable, finished, why_not_folded
from vitlab.io.atomic import replacing_folder
from vitlab.io.cache import cache_folder
from vitlab.io.files import open_handle, read_bytes
from vitlab.io.machine import is_out_of_memory
from vitlab.io.optional import optional_import
from vitlab.models.model import Model
from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import ViT

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
LogitsAndFeatures = tuple[Floats, Floats]  # (B, K) and (B, D)

SLICE = 4
"""Images in a slice: a slice of 4 fits the second-level cache; `auto` measures other sizes for OpenVINO."""

_log = logging.getLogger("vitlab")
INPUT = "images"
_DIGEST = "sha256"  # the file of a cached graph's digest
_LAYOUT = 4  # of the cached graphs; change it when graphs are made differently
_MAX_BATCH = 65_536
_COMPILATIONS = 4
_NO_LINES = "do_not_emit_stack_traces"  # a setting of torch.fx.config
_TOLERANCE, _TOLERANCE_MERGED = 1e-4, 0.1  # relative to the largest number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """Logits (B, K), with K = 0 for a model without a head, and features (B, D) if they were asked for; float32.

    A segmenter's logits are those of each pixel, (B, K, H, W).
    """

    logits_BK: Floats
    features_BD: Floats | None = None


class Backend(Protocol):
    """Runs one model on batches of any size from 1."""

    @property
    def name(self) -> str:
        """Its name, such as `torch`."""
        ...

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Run the model on uint8 images of its input size; the backend normalises them."""
        ...


class TorchBackend:
    """A model in PyTorch, unchanged, in evaluation mode and without gradients. The reference for all other backends.

    A module that is not one of vitlab's gives logits only.
    """

    name = "torch"

    def __init__(self, model: nn.Module, preprocess: Preprocess, *, device: str | torch.device = "cpu") -> None:
        self._model = model.to(device).eval()
        self._preprocess = preprocess
        self._device = torch.device(device)
        self._dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        with torch.inference_mode():
            images_BCHW = normalise(torch.from_numpy(images_BHWC).to(self._device), self._preprocess, self._dtype)
            features_BD: Tensor | None = None
            if features or _headless(self._model):
                assert isinstance(self._model, Model), "only vitlab's models give features"
                features_BD = self._model.features(images_BCHW)
            logits_BK = self._logits(images_BCHW, features_BD)
            return Outputs(
                logits_BK=_array(logits_BK), features_BD=_array(features_BD) if features and features_BD is not None else None
            )

    def _logits(self, images_BCHW: Tensor, features_BD: Tensor | None) -> Tensor:
        model = self._model
        if features_BD is None or not isinstance(model, Model):
            logits_BK: Tensor = model(images_BCHW)
        elif model.head is None:
            logits_BK = images_BCHW.new_empty(len(images_BCHW), 0)
        elif isinstance(model, Segmenter) or (isinstance(model, ViT) and model.distill_head is not None):
            logits_BK = model(images_BCHW)  # a segmenter's are of each pixel; the two heads of a distilled ViT read two tokens
        else:
            logits_BK = model.head(features_BD)
        return logits_BK


class FoldedBackend:
    """A ViT's folded graph in PyTorch on the CPU, a slice of the batch in each of as many threads as PyTorch has.

    One image alone runs in the caller's thread with all of PyTorch's threads. `merge` pairs of patches are merged per layer.
    """

    name = "torch"

    def __init__(self, checkpoint: Checkpoint, *, images: int = SLICE, merge: int = 0) -> None:
        at_least("images", images, 1)
        if (why := why_not_folded(checkpoint.model)) is not None:
            what = "tokens of this model cannot be merged" if merge else "this model cannot be folded"
            raise ConfigError(f"{what}: {why}", hint="leave merge out" if merge else None)
        self._headless = _headless(checkpoint.model)
        self._graph = exportable(checkpoint, gives="features" if self._headless else "both", merge=merge)
        self._images = images
        self._lanes = Lanes(torch.get_num_threads())

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        parts = slices(len(images_BHWC), lanes=self._lanes.count, most=self._images)
        found = self._lanes.map(lambda part: self._run_slice(images_BHWC[part]), parts)
        return _joined(found, parts, self._headless, features=features)

    def _run_slice(self, images_BHWC: Pixels) -> LogitsAndFeatures:
        with torch.inference_mode():
            return _both(self._graph(torch.from_numpy(images_BHWC)), self._headless)


def torch_backend(
    checkpoint: Checkpoint, *, device: str | torch.device = "cpu", merge: int = 0
) -> tuple[FoldedBackend | TorchBackend, str | None]:
    """PyTorch on the folded graph where the model can be folded; else on the model itself, and the reason why."""
    model = _check_model(checkpoint).to(device).eval()
    why = why_not_folded(model)
    if why is None or merge:
        return FoldedBackend(checkpoint, merge=merge), None
    return TorchBackend(finished(model), checkpoint.preprocess, device=device), why


class CompiledBackend:
    """torch.compile with frozen weights; needs a C++ compiler, and a minute at the first batch."""

    name = "compile"

    def __init__(self, checkpoint: Checkpoint, *, images: int = SLICE, merge: int = 0) -> None:
        self._headless = _headless(_check_model(checkpoint))
        graph = exportable(checkpoint, gives="features" if self._headless else "both", merge=merge)
        with quiet():  # its imports warn
            self._graph: Callable[[Tensor], Any] = torch.compile(graph, dynamic=False, options={"freezing": True})
        self._images = images
        verify(self, checkpoint, merge=merge)

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        parts = fixed_slices(len(images_BHWC), self._images)
        return _joined([self._run_slice(images_BHWC[part]) for part in parts], parts, self._headless, features=features)

    def _run_slice(self, images_BHWC: Pixels) -> LogitsAndFeatures:
        fixed = images_BHWC if len(images_BHWC) == 1 else _padded(images_BHWC, self._images)
        with torch.no_grad(), quiet():  # freezing needs no_grad and refuses inference tensors
            try:
                return _both(self._graph(torch.from_numpy(np.ascontiguousarray(fixed))), self._headless)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                raise ConfigError(
                    f"torch.compile failed: {str(error).splitlines()[0]}",
                    hint="it needs a C++ compiler; backend='torch' needs none",
                ) from error


class OnnxRuntimeBackend:
    """ONNX Runtime: slices of a batch side by side with one thread each, one image alone with all threads."""

    name = "onnxruntime"

    def __init__(self, checkpoint: Checkpoint, graph: GraphFiles, *, images: int = SLICE) -> None:
        self._runtime = optional_import("onnxruntime", purpose="ONNX Runtime backends")
        self._headless = _headless(_check_model(checkpoint))
        self._graph = graph
        self._images = images
        self._lanes = Lanes(torch.get_num_threads())
        self._threads_for_one = self._lanes.count
        verify(self, checkpoint, merge=graph.merge)

    def with_threads(self, threads: int) -> OnnxRuntimeBackend:
        """The same backend, with this many threads for one image alone."""
        other = copy(self)
        other._threads_for_one = threads
        other.__dict__.pop("_session_for_one", None)  # made for another number of threads
        return other

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        parts = slices(len(images_BHWC), lanes=self._lanes.count, most=self._images)
        session = self._session_for_one if len(parts) == 1 else self._session_per_lane
        found = self._lanes.map(lambda part: self._run_slice(session, images_BHWC[part]), parts)
        return _joined(found, parts, self._headless, features=features)

    @cached_property
    def _session_for_one(self) -> Any:
        return self._session(self._threads_for_one)

    @cached_property
    def _session_per_lane(self) -> Any:
        return self._session_for_one if self._lanes.count == 1 else self._session(1)

    def _session(self, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        path = self._graph.path()
        with _loading(path):
            return self._runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def _run_slice(self, session: Any, images_BHWC: Pixels) -> LogitsAndFeatures:
        out = session.run(None, {session.get_inputs()[0].name: images_BHWC})
        return (out[0], out[0]) if self._headless else (out[0], out[1])


class OpenVINOBackend:
    """OpenVINO in float32: batches in as many streams as PyTorch has threads, one image alone with all threads.

    `pinned`: each thread stays on one core. That is OpenVINO's default, and good where nothing else needs that core.
    """

    name = "openvino"

    def __init__(self, checkpoint: Checkpoint, graph: GraphFiles, *, images: int = SLICE, pinned: bool = True) -> None:
        self._openvino = optional_import("openvino", purpose="OpenVINO backends")
        self._headless = _headless(_check_model(checkpoint))
        self._shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
        self._graph = graph
        self._images = images
        self._threads = self._threads_for_one = torch.get_num_threads()
        self._pinned = pinned
        self._compile_and_verify(checkpoint)

    def _compile_and_verify(self, checkpoint: Checkpoint) -> None:
        """Compile, run every stream once, and compile again if one of them is wrong.

        OpenVINO 2026.4.1 now and then compiles one of two streams of a ViT-B/16 wrongly, for the life of the compiled model: one
        compilation in about six was seen to give every second slice other logits.
        """
        for left in reversed(range(_COMPILATIONS)):
            try:
                verify(self, checkpoint, merge=self._graph.merge, images=self._threads * self._images)
            except ExportError:
                if not left:
                    raise
                for compiled in ("_queue", "_request_for_one"):
                    self.__dict__.pop(compiled, None)
            else:
                return

    def with_threads(self, threads: int) -> OpenVINOBackend:
        """The same backend, with this many threads for one image alone."""
        other = copy(self)
        other._threads_for_one = threads
        other.__dict__.pop("_request_for_one", None)  # compiled for another number of threads
        return other

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        parts = fixed_slices(len(images_BHWC), self._images)
        found: list[LogitsAndFeatures | None] = [None] * len(parts)
        queue: Any = self._queue
        queue.set_callback(lambda request, place: found.__setitem__(place, self._read(request)))
        for place, part in enumerate(parts):
            content = images_BHWC[part]
            if len(content) == 1 and self._images != 1:
                self._request_for_one.infer([content])
                found[place] = self._read(self._request_for_one)
            else:
                queue.start_async([_padded(content, self._images)], place)
        queue.wait_all()
        return _joined([both for both in found if both is not None], parts, self._headless, features=features)

    @cached_property
    def _queue(self) -> Any:
        settings = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": str(self._threads)}
        return self._openvino.AsyncInferQueue(self._compiled(self._images, settings, self._threads), self._threads)

    @cached_property
    def _request_for_one(self) -> Any:
        settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        return self._compiled(1, settings, self._threads_for_one).create_infer_request()

    def _read(self, request: Any) -> LogitsAndFeatures:
        first = np.array(request.get_output_tensor(0).data, np.float32)
        return (first, first) if self._headless else (first, np.array(request.get_output_tensor(1).data, np.float32))

    def _compiled(self, images: int, settings: dict[str, str], threads: int) -> Any:
        core, path = self._openvino.Core(), self._graph.path()
        settings = settings | {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
        settings["ENABLE_CPU_PINNING"] = "YES" if self._pinned else "NO"
        with quiet(), _loading(path):
            model = core.read_model(path)
            model.reshape([images, *self._shape])
            return core.compile_model(model, "CPU", settings)


class FewerThreadsBackend:
    """A PyTorch backend that runs in a thread of its own with fewer of PyTorch's threads: small products spend more time on
    waiting for each other than on computing. The caller's number of threads stays as it is."""

    def __init__(self, inner: Backend, threads: int) -> None:
        self._inner = inner
        self._pool = started(1, threads=threads)

    @property
    def name(self) -> str:
        """The name of the backend inside."""
        return self._inner.name

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, if asked for, features."""
        return self._pool.submit(partial(self._inner.run, images_BHWC, features=features)).result()


def with_threads(backend: Backend, threads: int) -> Backend:
    """The same model, with this many threads for one image alone."""
    if isinstance(backend, OpenVINOBackend | OnnxRuntimeBackend):
        return backend.with_threads(threads)
    return FewerThreadsBackend(backend, threads)


def verify(
    backend: OpenVINOBackend | OnnxRuntimeBackend | CompiledBackend, checkpoint: Checkpoint, *, merge: int = 0, images: int = 3
) -> None:
    """Raise ExportError if a runtime does not give the model's own numbers for `images` images: three of noise, repeated.

    With `merge` the tolerance is larger: of two pairs that are equally similar up to rounding, either may be merged.
    """
    shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
    noise_BHWC = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    reference = FoldedBackend(checkpoint, merge=merge) if merge else TorchBackend(checkpoint.model, checkpoint.preprocess)
    tolerance = _TOLERANCE_MERGED if merge else _TOLERANCE
    repeated = np.arange(images) % len(noise_BHWC)
    expected, found = reference.run(noise_BHWC, features=True), backend.run(noise_BHWC[repeated], features=True)
    assert found.features_BD is not None
    assert expected.features_BD is not None
    for what, ours, theirs in (
        ("logits", found.logits_BK, expected.logits_BK[repeated]),
        ("features", found.features_BD, expected.features_BD[repeated]),
    ):
        largest = float(np.abs(theirs).max(initial=0))
        difference = float(np.abs(ours - theirs).max(initial=0))
        if not difference <= tolerance * max(largest, 1e-6):
            raise ExportError(
                f"{backend.name} gives other {what} than torch: they differ by {difference:.2g}, and the largest is {largest:.2g}",
                hint="use backend='torch'",
            )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in the mode it was in before."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """`count` threads with one PyTorch thread each; with one lane, the caller's own thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """work(item) for each item, in order; a single item runs in the caller's thread, with all of PyTorch's threads."""
        if self.count == 1 or len(items) == 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = started(self.count)
        return list(self._pool.map(work, items))


def started(count: int, *, threads: int = 1) -> ThreadPoolExecutor:
    """A pool whose threads have started and use `threads` PyTorch threads each.

    `torch.set_num_threads` also changes what later threads, and the caller, start with: the caller's number is restored.
    """
    before = torch.get_num_threads()
    together = threading.Barrier(count + 1)
    pool = ThreadPoolExecutor(count, thread_name_prefix="lane", initializer=_set_threads, initargs=(threads,))
    waiting = [pool.submit(together.wait) for _ in range(count)]
    together.wait()
    for one in waiting:
        one.result()
    torch.set_num_threads(before)
    return pool


def _set_threads(threads: int) -> None:
    torch.get_num_threads()  # a thread takes over the common number at its first call, which would undo an earlier setting
    torch.set_num_threads(threads)


def slices(count: int, *, lanes: int, most: int) -> list[slice]:
    """`count` rows in slices of at most `most`, shared evenly by the lanes where possible."""
    if lanes == 1 or count == 1:
        size = most
    else:
        rounds = -(-count // (most * lanes))
        size = -(-count // (rounds * lanes))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def fixed_slices(count: int, images: int) -> list[slice]:
    """`count` rows in slices of exactly `images`; the rest one by one, or as one slice to be padded where that is less work."""
    whole = count // images * images
    parts = [slice(first, first + images) for first in range(0, whole, images)]
    left = count - whole
    if left * 2 > images:
        return [*parts, slice(whole, count)]
    return [*parts, *(slice(place, place + 1) for place in range(whole, count))]


def installed(name: str) -> str | None:
    """The version of an optional library, or None; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


class GraphFiles:
    """A checkpoint's graph in the files of another runtime: `images` uint8 (B, H, W, C) to logits and features, in float32.

    They are in a folder of the cache, together with a digest of their content. Files that are missing, damaged or another model's
    are made again. If the cache cannot be written, they are in a temporary folder as long as this object exists. `notify` is called
    in both cases. `digest` stands for everything the numbers depend on, including `merge`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        digest: str,
        runtime: Literal["onnx", "openvino"],
        *,
        merge: int = 0,
        notify: Callable[[str], None] = _log.info,
    ) -> None:
        self.merge = merge
        self._checkpoint = checkpoint
        self._runtime = runtime
        self._notify = notify
        libraries = ("onnx", "onnxscript", "onnxruntime") if runtime == "onnx" else ("openvino",)
        parts = (str(_LAYOUT), __version__, torch.__version__, runtime, *(str(installed(name)) for name in libraries), digest)
        self._key = sha256(" ".join(parts).encode()).hexdigest()[:32]
        self._names = ("model.onnx",) if runtime == "onnx" else ("model.xml", "model.bin")
        self._own: Path | None = None

    def path(self) -> Path:
        """The file that the runtime loads, verified or made anew."""
        folder = cache_folder() / "graphs" / self._key if self._own is None else self._own
        if self._is_sound(folder):
            return folder / self._names[0]
        if self._own is None:
            if folder.exists():
                self._notify(f"note: the cached graph {folder} is damaged or not this model's: it is made again")
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with replacing_folder(folder, needed=0, names=(*self._names, _DIGEST)) as new:
                    self._write(new)
                return folder / self._names[0]
            except (OSError, CheckpointError) as error:
                self._notify(f"note: the graph is not kept for the next start: {error}")
        try:
            self._own = Path(tempfile.mkdtemp(prefix="vitlab-graph-"))
            weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
            self._write(self._own)
        except OSError as error:
            raise ExportError(
                f"the model's graph cannot be written to {tempfile.gettempdir()}: {error.strerror or error}",
                hint="free some space, set TMPDIR to a larger disk, or use backend='torch'",
            ) from error
        return self._own / self._names[0]

    def _is_sound(self, folder: Path) -> bool:
        try:
            return read_bytes(folder / _DIGEST) == self._digest(folder).encode()
        except (OSError, DataError):
            return False

    def _digest(self, folder: Path) -> str:
        """Of the key and of all files: a whole file of another model or version does not fit either."""
        parts = [self._key]
        for name in self._names:
            with os.fdopen(open_handle(folder / name), "rb") as file:
                parts.append(file_digest(file, "sha256").hexdigest())
        return sha256(" ".join(parts).encode()).hexdigest()

    def _write(self, folder: Path) -> None:
        """Write the files and their digest; OSError if the disk has no room."""
        if self._runtime == "onnx":
            for library in ("onnx", "onnxscript"):
                optional_import(library, purpose="ONNX graphs")
            (folder / self._names[0]).write_bytes(onnx_proto(traced(self._checkpoint, merge=self.merge)).SerializeToString())
        else:
            openvino = optional_import("openvino", purpose="OpenVINO backends")
            path = folder / self._names[0]
            with quiet():
                made = openvino.convert_model(traced(self._checkpoint, merge=self.merge))
            try:
                openvino.save_model(made, path, compress_to_fp16=False)
                openvino.Core().read_model(path)  # writing to a full disk is not reported, but a file that is cut off is
            except RuntimeError as error:
                raise OSError(f"OpenVINO cannot write it: {str(error).strip().splitlines()[-1]}") from error
        (folder / _DIGEST).write_text(self._digest(folder), encoding="ascii")


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    """A runtime's own exceptions as an ExportError: they have no common class."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f"the graph {path} cannot be loaded: {reason[0]}", hint="use backend='torch'") from error


def onnx_proto(program: ExportedProgram, *, outputs: Sequence[str] | None = None) -> Any:
    """A traced graph as an ONNX message whose input is called `images`."""
    with quiet(), torch.no_grad():  # as in the trace: with gradients PyTorch chooses kernels with other strides
        try:
            made = torch.onnx.export(program, dynamo=True, input_names=[INPUT], output_names=outputs, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error.__cause__ or error).splitlines()[0]  # the error itself is advice to PyTorch's developers
            raise ExportError(f"torch cannot express this model in ONNX: {reason}") from error
    assert made is not None
    return made.model_proto


def traced(checkpoint: Checkpoint, *, merge: int = 0) -> ExportedProgram:
    """The graph by torch.export: uint8 images, any number of them, to logits and features, or to features alone."""
    height, width = checkpoint.preprocess.image_size
    sample = torch.zeros(2, height, width, checkpoint.preprocess.channels, dtype=torch.uint8)
    graph = exportable(checkpoint, gives="features" if _headless(checkpoint.model) else "both", merge=merge)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(graph, (sample,), dynamic_shapes=({0: Dim("batch", min=1, max=_MAX_BATCH)},))
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"torch.export cannot trace this model: {str(error).splitlines()[0]}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of PyTorch's exporter and of OpenVINO about themselves, on which a user cannot act.

    And without the source lines that PyTorch notes for each operation: they take up to half of the time, and would be in the files,
    with paths of this machine.
    """
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    before, lines = log.level, getattr(torch.fx.config, _NO_LINES, None)
    log.setLevel(logging.ERROR)
    if lines is not None:  # an older PyTorch has no such setting
        setattr(torch.fx.config, _NO_LINES, True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
        if lines is not None:
            setattr(torch.fx.config, _NO_LINES, lines)


def _check_model(checkpoint: Checkpoint) -> Model:
    if not isinstance(checkpoint.model, Model):
        raise ConfigError(
            f"a {type(checkpoint.model).__name__} is not a vitlab model", hint="create it with vitlab.create_model or vitlab.load"
        )
    return checkpoint.model


def _headless(model: nn.Module) -> bool:
    return isinstance(model, Model) and model.head is None


def _both(out: Any, headless: bool) -> LogitsAndFeatures:
    """What a graph gives as arrays; a headless model's features stand for both."""
    return (out.numpy(), out.numpy()) if headless else (out[0].numpy(), out[1].numpy())


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.float().cpu().numpy()
    return array


def _padded(images_BHWC: Pixels, images: int) -> Pixels:
    missing = images - len(images_BHWC)
    if not missing:
        return images_BHWC
    return np.concatenate([images_BHWC, np.zeros((missing, *images_BHWC.shape[1:]), np.uint8)])


def _joined(found: Sequence[LogitsAndFeatures], parts: Sequence[slice], headless: bool, *, features: bool) -> Outputs:
    """The outputs of all slices, one after another, without the padding."""
    logits_BK = np.concatenate([logits[: part.stop - part.start] for (logits, _), part in zip(found, parts, strict=True)])
    features_BD = np.concatenate([seen[: part.stop - part.start] for (_, seen), part in zip(found, parts, strict=True)])
    return Outputs(logits_BK=logits_BK[:, :0] if headless else logits_BK, features_BD=features_BD if features else None)
