"""What runs the model: the small door behind which PyTorch stands, and other runtimes can.

Axes: B batch, H height, W width, C channels of a image, K classes, D width of the features.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import Dim, ExportedProgram

from vitlab import __version__
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError, ExportError, at_least
from vitlab.inference.eager import FusedViT, Workspace
from vitlab.inference.folded import exportable, finished, why_not_folded
from vitlab.io.atomic import replacing
from vitlab.io.cache import cache_folder
from vitlab.models.families import Model
from vitlab.models.vit import ViT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """Logits (B, K), K being 0 for a model without a head, and features (B, D) where asked for; float32."""

    logits_BK: NDArray[np.float32]
    features_BD: NDArray[np.float32] | None = None


class Backend(Protocol):
    """Runs one model on batches of any size from 1 on."""

    @property
    def name(self) -> str:
        """What it is called: `torch`."""
        ...

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """The model's answer to images of the size it is fed with, as uint8; normalisation is the backend's part."""
        ...


# PyTorch as it is, the backend everything else is compared with.
#
# Axes: B batch, H height, W width, C channels of a image, K classes, D width of the features.


class TorchBackend:
    """A checkpoint's model on a device, in evaluation mode, without gradients.

    `finish`: standardised kernels are computed once, now, and not at every call: the same bits, for one more copy of them.
    """

    name = "torch"

    def __init__(self, checkpoint: Checkpoint, *, device: str | torch.device = "cpu", finish: bool = False) -> None:
        model = checkpoint.model
        if not isinstance(model, Model):
            raise ConfigError(f"a {type(model).__name__} is not one of vitlab's models", hint="build or load it with vitlab")
        model = model.to(device).eval()
        self._model: Model = finished(model) if finish else model
        self._preprocess = checkpoint.preprocess
        self._device = torch.device(device)
        self._dtype = next(model.parameters()).dtype

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        with torch.inference_mode():
            batch_BHWC = torch.from_numpy(images_BHWC).to(self._device)
            images_BCHW = normalise(batch_BHWC, self._preprocess, self._dtype)
            if self._model.head is None:
                features_BD: Tensor | None = self._model.features(images_BCHW) if features else None
                logits_BK = images_BCHW.new_empty(len(images_BCHW), 0)
            elif not features:
                features_BD, logits_BK = None, self._model(images_BCHW)
            else:
                features_BD = self._model.features(images_BCHW)
                logits_BK = self._logits(images_BCHW, features_BD)
            return Outputs(logits_BK=_array(logits_BK), features_BD=None if features_BD is None else _array(features_BD))

    def _logits(self, images_BCHW: Tensor, features_BD: Tensor) -> Tensor:
        model = self._model
        if model.head is None or (isinstance(model, ViT) and model.distill_head is not None):
            logits_BK: Tensor = model(images_BCHW)  # two heads see two tokens, and features are the mean of both
        else:
            logits_BK = model.head(features_BD)
        return logits_BK


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.float().cpu().numpy()
    return array


# A checkpoint's graph for another runtime: made once, kept in the cache folder by the digest of what it was made from.
#
# Axes: B batch, H height, W width, C channels of a image.

_LAYOUT = 2  # of the graphs: a change of how they are made makes them anew
_MOST = 65_536  # images in a batch
INPUT = "images"
EXTRAS = {"onnx": "export", "onnxscript": "export", "onnxruntime": "export", "openvino": "openvino"}


def needed(name: str) -> Any:
    """An optional library, or a refusal that says which extra brings it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed", hint=f"pip install 'vitlab[{EXTRAS[name]}]'") from error


def installed(name: str) -> str | None:
    """The version of an optional library, or None; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def as_onnx(checkpoint: Checkpoint, digest: str, *, merge: int = 0) -> Path:
    """The graph as an ONNX file in the cache: `images` uint8 (B, H, W, C) to logits and features.

    `digest` stands for everything the answers depend on, `merge` too.
    """
    for library in ("onnx", "onnxscript"):
        needed(library)
    path = _place(digest, "onnx").with_suffix(".onnx")
    if path.is_file():
        return path
    content = bytes(onnx_proto(traced(checkpoint, merge=merge)).SerializeToString())
    with replacing(path, needed=len(content)) as file:
        file.write(content)
    return path


def onnx_proto(program: ExportedProgram, *, outputs: Sequence[str] | None = None) -> Any:
    """A traced graph as ONNX's message, its input called `images`."""
    with quiet(), torch.no_grad():  # as it was traced: with gradients torch would choose other kernels, of other strides
        try:
            made = torch.onnx.export(program, dynamo=True, input_names=[INPUT], output_names=outputs, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error.__cause__ or error).splitlines()[0]  # what it says itself is advice to torch's authors
            raise ExportError(f"torch cannot say this model in ONNX: {reason}") from error
    assert made is not None
    return made.model_proto


def as_openvino(checkpoint: Checkpoint, digest: str, *, merge: int = 0) -> Path:
    """The graph as OpenVINO's .xml in the cache, its .bin beside it, with float32 weights."""
    openvino = needed("openvino")
    path = _place(digest, "openvino").with_suffix(".xml")
    if path.is_file() and path.with_suffix(".bin").is_file():
        return path
    with quiet():
        made = openvino.convert_model(traced(checkpoint, merge=merge))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        openvino.save_model(made, f"{folder}/model.xml", compress_to_fp16=False)
        os.replace(f"{folder}/model.bin", path.with_suffix(".bin"))  # noqa: PTH105
        os.replace(f"{folder}/model.xml", path)  # noqa: PTH105  (last: it is what is looked for)
    return path


def traced(checkpoint: Checkpoint, *, merge: int = 0) -> ExportedProgram:
    """The graph as torch.export sees it: pixels of any number of images to logits and features, or to features alone."""
    height, width = checkpoint.preprocess.image_size
    sample = torch.zeros(2, height, width, checkpoint.preprocess.channels, dtype=torch.uint8)
    assert isinstance(checkpoint.model, Model)
    graph = exportable(checkpoint, gives="features" if checkpoint.model.head is None else "both", merge=merge)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(graph, (sample,), dynamic_shapes=({0: Dim("batch", min=1, max=_MOST)},))
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"torch.export cannot trace this model: {str(error).splitlines()[0]}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's and OpenVINO's remarks on themselves, which a user can do nothing about."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _place(digest: str, runtime: str) -> Path:
    libraries = ("onnx", "onnxscript", "onnxruntime") if runtime == "onnx" else ("openvino",)
    parts = (str(_LAYOUT), __version__, torch.__version__, runtime, *(str(installed(name)) for name in libraries), digest)
    folder = cache_folder() / "graphs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            f"cannot make {folder}: {error.strerror}", hint="set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder / sha256(" ".join(parts).encode()).hexdigest()[:32]


# Several threads that compute with one each: a batch in slices side by side, without the waits of threads that share a product.

T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """`count` threads with one thread of torch each; with one lane, the caller's own thread as it is."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """work(item) for each, in order; a single item is worked on by the caller, with all of torch's threads."""
        if self.count == 1 or len(items) == 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = started(self.count)
        return list(self._pool.map(work, items))


def slices(count: int, *, lanes: int, most: int) -> list[slice]:
    """`count` rows in slices of at most `most`, as many for each lane as for the others where that can be."""
    if lanes == 1 or count == 1:
        size = most
    else:
        rounds = -(-count // (most * lanes))
        size = -(-count // (rounds * lanes))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def started(count: int, *, threads: int = 1) -> ThreadPoolExecutor:
    """Threads that are all there and set to so many threads of torch each.

    `torch.set_num_threads` also sets what threads that come later begin with, the caller's among them: it is put back.
    """
    before = torch.get_num_threads()
    together = threading.Barrier(count + 1)
    pool = ThreadPoolExecutor(count, thread_name_prefix="lane", initializer=_own_number, initargs=(threads,))
    waiting = [pool.submit(together.wait) for _ in range(count)]
    together.wait()
    for one in waiting:
        one.result()
    torch.set_num_threads(before)
    return pool


def _own_number(threads: int) -> None:
    """A thread begins with the common number at its first question or product, and would forget one that was set before that."""
    torch.get_num_threads()
    torch.set_num_threads(threads)


# PyTorch with a folded ViT: the backend `torch` where the model can be folded.
#
# Axes: B batch, H height, W width, C channels of a image, R tokens read, D width.

_CACHED = 2_500_000  # bytes of the MLP's hidden numbers of a slice: more fall out of the second-level cache


class FusedBackend:
    """A checkpoint's ViT, folded; a batch goes through in slices of `images` (None: as many as the cache holds), side by side in
    as many lanes as torch has threads.

    One image alone is run in the caller's thread with all of torch's threads.
    """

    name = "torch"

    def __init__(self, checkpoint: Checkpoint, *, images: int | None = None, merge: int = 0) -> None:
        if not isinstance(checkpoint.model, ViT):
            raise ConfigError(f"a {type(checkpoint.model).__name__} cannot be folded")
        images = _fitting(checkpoint.model) if images is None else images
        at_least("images", images, 1)
        self._model: ViT = checkpoint.model.eval()
        self._fused = FusedViT(self._model, checkpoint.preprocess, merge=merge)
        self.images = images
        self._lanes = Lanes(torch.get_num_threads())
        self._free: list[Workspace] = []  # popping and appending are atomic

    def sliced(self, images: int) -> FusedBackend:
        """The same weights in slices of another size."""
        other = copy(self)
        other.images, other._free = images, []
        return other

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        batch_BHWC = torch.from_numpy(images_BHWC)
        parts = slices(len(batch_BHWC), lanes=self._lanes.count, most=self.images)
        found = self._lanes.map(lambda part: self._answer(batch_BHWC[part], features), parts)
        return Outputs(
            logits_BK=np.concatenate([logits for logits, _ in found]),
            features_BD=np.concatenate([seen for _, seen in found if seen is not None]) if features else None,
        )

    def _answer(self, images_BHWC: Tensor, features: bool) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        try:
            work = self._free.pop()
        except IndexError:
            work = self._fused.workspace(self.images)
        z_BRD = self._fused.read(images_BHWC, work)
        self._free.append(work)
        with torch.inference_mode():
            logits_BK = z_BRD.new_empty(len(z_BRD), 0) if self._model.head is None else self._model.answered(z_BRD)
            seen_BD = self._model.represented(self._model.pooled(z_BRD)) if features else None
        return logits_BK.numpy(), None if seen_BD is None else seen_BD.numpy()


def _fitting(model: ViT) -> int:
    """Images in a slice: as many as the cache holds, but at least 3 rows for each row of the weights, or 4 images.

    Fewer starve the products. At 577 tokens slices of 1, 2 and 4 take 76.2, 77.5 and 80.9 ms a image in Ti/16 (1 is enough),
    120, 110 and 112 in 6 layers of S/16 (2), 155, 151 and 150 in 3 layers of B/16 (4).
    """
    config = model.config
    enough = min(4, -(-3 * config.width // config.tokens))
    return max(enough, min(64, _CACHED // (4 * config.tokens * config.mlp_width)))


def torch_backend(
    checkpoint: Checkpoint, *, device: str | torch.device = "cpu", merge: int = 0
) -> tuple[FusedBackend | TorchBackend, str | None]:
    """PyTorch by the shortest way this model has, and why that is not the folded one where it is not."""
    TorchBackend(checkpoint, device=device)  # moves the model, and refuses what is none of ours
    why = why_not_folded(checkpoint.model)
    if why is None:
        return FusedBackend(checkpoint, merge=merge), None
    if merge:
        raise ConfigError(f"tokens of this model cannot be merged: {why}", hint="leave merge out")
    return TorchBackend(checkpoint, device=device, finish=True), why


# The model in other runtimes, from the same folded graph: torch.compile, ONNX Runtime, OpenVINO.
#
# Each takes its threads from torch's number, so that `torch.set_num_threads` and OMP_NUM_THREADS hold for all. A compiled graph is
# for one number of images; a batch is cut into slices of it, and what is left goes through one by one, or filled up.
#
# Axes: B batch, H height, W width, C channels of a image, K classes, D width of the features.

PICTURES = 4
Pixels = NDArray[np.uint8]
Answers = tuple[NDArray[np.float32], NDArray[np.float32]]  # logits (B, K) and features (B, D)
_CLOSE, _CLOSE_MERGED = 1e-4, 0.1  # relative to the largest number


class OpenVINOBackend:
    """OpenVINO in float32: batches in as many streams as torch has threads, one image alone with all threads.

    `pinned`: each thread stays on one core, which is OpenVINO's own way, and good where nothing else wants that core.
    """

    name = "openvino"

    def __init__(self, checkpoint: Checkpoint, digest: str, *, images: int = PICTURES, merge: int = 0, pinned: bool = True) -> None:
        self._openvino = needed("openvino")
        self._headless = _headless(checkpoint)
        self._shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
        self._path = as_openvino(checkpoint, digest, merge=merge)
        self._images = images
        self._threads = self._threads_alone = torch.get_num_threads()
        self._pinned = pinned
        verify(self, checkpoint, merge=merge)

    def narrowed(self, threads: int) -> OpenVINOBackend:
        """The same with so many threads for one image alone."""
        other = copy(self)
        other._threads_alone = threads
        other.__dict__.pop("_alone", None)  # compiled for another number
        return other

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        parts = fixed_slices(len(images_BHWC), self._images)
        found: list[Answers | None] = [None] * len(parts)
        queue: Any = self._queue
        queue.set_callback(lambda request, place: found.__setitem__(place, self._answers(request)))
        for place, part in enumerate(parts):
            content = images_BHWC[part]
            if len(content) == 1 and self._images != 1:
                found[place] = self._single(content)
            else:
                queue.start_async([_filled(content, self._images)], place)
        queue.wait_all()
        return _joined([answers for answers in found if answers is not None], parts, self._headless, features=features)

    @cached_property
    def _queue(self) -> Any:
        settings = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": str(self._threads)}
        compiled = self._compiled(self._images, settings, self._threads)
        return self._openvino.AsyncInferQueue(compiled, self._threads)

    @cached_property
    def _alone(self) -> Any:
        settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        return self._compiled(1, settings, self._threads_alone).create_infer_request()

    def _single(self, images_BHWC: Pixels) -> Answers:
        self._alone.infer([images_BHWC])
        return self._answers(self._alone)

    def _answers(self, request: Any) -> Answers:
        first = np.array(request.get_output_tensor(0).data, np.float32)
        return (first, first) if self._headless else (first, np.array(request.get_output_tensor(1).data, np.float32))

    def _compiled(self, images: int, settings: dict[str, str], threads: int) -> Any:
        core = self._openvino.Core()
        model = core.read_model(self._path)
        model.reshape([images, *self._shape])
        settings = settings | {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
        settings["ENABLE_CPU_PINNING"] = "YES" if self._pinned else "NO"
        with quiet():
            return core.compile_model(model, "CPU", settings)


class OnnxRuntimeBackend:
    """ONNX Runtime: slices of a batch side by side with one thread each, one image alone with all threads."""

    name = "onnxruntime"

    def __init__(self, checkpoint: Checkpoint, digest: str, *, images: int = PICTURES, merge: int = 0) -> None:
        self._runtime = needed("onnxruntime")
        self._headless = _headless(checkpoint)
        self._path = as_onnx(checkpoint, digest, merge=merge)
        self._images = images
        self._lanes = Lanes(torch.get_num_threads())
        self._threads_alone = self._lanes.count
        verify(self, checkpoint, merge=merge)

    def narrowed(self, threads: int) -> OnnxRuntimeBackend:
        """The same with so many threads for one image alone."""
        other = copy(self)
        other._threads_alone = threads
        other.__dict__.pop("_whole", None)  # made for another number
        return other

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        parts = slices(len(images_BHWC), lanes=self._lanes.count, most=self._images)
        session = self._whole if len(parts) == 1 else self._narrow
        found = self._lanes.map(lambda part: self._answers(session, images_BHWC[part]), parts)
        return _joined(found, parts, self._headless, features=features)

    @cached_property
    def _whole(self) -> Any:
        return self._session(self._threads_alone)

    @cached_property
    def _narrow(self) -> Any:
        return self._whole if self._lanes.count == 1 else self._session(1)

    def _session(self, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        return self._runtime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])

    def _answers(self, session: Any, images_BHWC: Pixels) -> Answers:
        out = session.run(None, {session.get_inputs()[0].name: images_BHWC})
        return (out[0], out[0]) if self._headless else (out[0], out[1])


class CompiledBackend:
    """torch.compile with frozen weights; needs a C++ compiler, and a minute at the first batch."""

    name = "compile"

    def __init__(self, checkpoint: Checkpoint, *, images: int = PICTURES, merge: int = 0) -> None:
        self._headless = _headless(checkpoint)
        graph = exportable(checkpoint, gives="features" if self._headless else "both", merge=merge)
        with quiet():  # what it imports warns of itself
            self._graph: Callable[[torch.Tensor], Any] = torch.compile(graph, dynamic=False, options={"freezing": True})
        self._images = images
        verify(self, checkpoint, merge=merge)

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        parts = fixed_slices(len(images_BHWC), self._images)
        return _joined([self._answers(images_BHWC[part]) for part in parts], parts, self._headless, features=features)

    def _answers(self, images_BHWC: Pixels) -> Answers:
        fixed = images_BHWC if len(images_BHWC) == 1 else _filled(images_BHWC, self._images)
        with torch.no_grad(), quiet():  # freezing is for no_grad; inference tensors are refused by it
            try:
                out = self._graph(torch.from_numpy(np.ascontiguousarray(fixed)))
            except torch._dynamo.exc.BackendCompilerFailed as error:
                raise ConfigError(
                    f"torch.compile failed: {str(error).splitlines()[0]}",
                    hint="it needs a C++ compiler; backend='torch' needs none",
                ) from error
        return (out.numpy(), out.numpy()) if self._headless else (out[0].numpy(), out[1].numpy())


def fixed_slices(count: int, images: int) -> list[slice]:
    """`count` rows in slices of exactly `images`; what is left one by one, or as a slice to fill up where that is less work."""
    whole = count // images * images
    parts = [slice(first, first + images) for first in range(0, whole, images)]
    left = count - whole
    if left * 2 > images:
        return [*parts, slice(whole, count)]
    return [*parts, *(slice(place, place + 1) for place in range(whole, count))]


def verify(backend: OpenVINOBackend | OnnxRuntimeBackend | CompiledBackend, checkpoint: Checkpoint, *, merge: int = 0) -> None:
    """ExportError where a runtime does not give the model's own numbers for a few images of noise.

    With `merge`, of two pairs that are alike to rounding another one may go first, and numbers are compared less closely.
    """
    height, width = checkpoint.preprocess.image_size
    rng = np.random.default_rng(0)
    images_BHWC = rng.integers(0, 256, (3, height, width, checkpoint.preprocess.channels), np.uint8)
    torch_itself = FusedBackend(checkpoint, merge=merge) if merge else TorchBackend(checkpoint)
    expected, close = torch_itself.run(images_BHWC, features=True), _CLOSE_MERGED if merge else _CLOSE
    found = backend.run(images_BHWC, features=True)
    assert found.features_BD is not None
    assert expected.features_BD is not None
    for what, ours, theirs in (
        ("logits", found.logits_BK, expected.logits_BK),
        ("features", found.features_BD, expected.features_BD),
    ):
        largest = float(np.abs(theirs).max(initial=0))
        apart = float(np.abs(ours - theirs).max(initial=0))
        if not apart <= close * max(largest, 1e-6):
            raise ExportError(
                f"{backend.name} gives other {what} than torch: {apart:.2g} apart where the largest is {largest:.2g}",
                hint="use backend='torch'",
            )


def _headless(checkpoint: Checkpoint) -> bool:
    if not isinstance(checkpoint.model, Model):
        raise ConfigError(f"a {type(checkpoint.model).__name__} is not one of vitlab's models", hint="build or load it with vitlab")
    return checkpoint.model.head is None


def _filled(images_BHWC: Pixels, images: int) -> Pixels:
    missing = images - len(images_BHWC)
    if not missing:
        return images_BHWC
    return np.concatenate([images_BHWC, np.zeros((missing, *images_BHWC.shape[1:]), np.uint8)])


def _joined(found: Sequence[Answers], parts: Sequence[slice], headless: bool, *, features: bool) -> Outputs:
    """Answers of slices one after another, without those of rows that filled up."""
    logits = np.concatenate([logits[: part.stop - part.start] for (logits, _), part in zip(found, parts, strict=True)])
    seen = np.concatenate([seen[: part.stop - part.start] for (_, seen), part in zip(found, parts, strict=True)])
    return Outputs(logits_BK=logits[:, :0] if headless else logits, features_BD=seen if features else None)


# Backends with fewer threads than torch has, for one image alone: small products wait longer for each other than they take.
#
# Axes: B batch, H height, W width, C channels of a image.


class NarrowBackend:
    """A backend of torch run by a thread of its own, which has `threads` of torch's; the caller's number stays what it is."""

    def __init__(self, inner: Backend, threads: int) -> None:
        self._inner = inner
        self._own = started(1, threads=threads)

    @property
    def name(self) -> str:
        """The name of what is run."""
        return self._inner.name

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        return self._own.submit(partial(self._inner.run, images_BHWC, features=features)).result()


def narrowed(backend: Backend, threads: int) -> Backend:
    """The same model, which runs one image alone with so many threads."""
    if isinstance(backend, OpenVINOBackend | OnnxRuntimeBackend):
        return backend.narrowed(threads)
    return NarrowBackend(backend, threads)


def fewer(threads: int) -> list[int]:
    """Numbers below `threads` that are worth a trial: half of it, half of that, down to 1."""
    found = []
    while threads > 1:
        threads //= 2
        found.append(threads)
    return found
