"""The model in other runtimes, from the same folded graph: torch.compile, ONNX Runtime, OpenVINO.

Each takes its threads from torch's number, so that `torch.set_num_threads` and OMP_NUM_THREADS hold for all. A compiled graph is
for one number of pictures; a batch is cut into slices of it, and what is left goes through one by one, or filled up.

Axes: B batch, H height, W width, C channels of a picture, K classes, D width of the features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoint.contents import Checkpoint
from vitlab.errors import ConfigError, ExportError
from vitlab.model.assemble import Model
from vitlab.predict.backend import Outputs
from vitlab.predict.converted import as_onnx, as_openvino, needed, quiet
from vitlab.predict.fused.graph import exportable
from vitlab.predict.fused_backend import FusedBackend
from vitlab.predict.lanes import Lanes, slices
from vitlab.predict.torch_backend import TorchBackend

PICTURES = 4
Pixels = NDArray[np.uint8]
Answers = tuple[NDArray[np.float32], NDArray[np.float32]]  # logits (B, K) and features (B, D)
_CLOSE, _CLOSE_MERGED = 1e-4, 0.1  # relative to the largest number


class OpenVINOBackend:
    """OpenVINO in float32: batches in as many streams as torch has threads, one picture alone with all threads.

    `pinned`: each thread stays on one core, which is OpenVINO's own way, and good where nothing else wants that core.
    """

    name = "openvino"

    def __init__(
        self, checkpoint: Checkpoint, digest: str, *, pictures: int = PICTURES, merge: int = 0, pinned: bool = True
    ) -> None:
        self._openvino = needed("openvino")
        self._headless = _headless(checkpoint)
        self._shape = (*checkpoint.preprocess.image_size, checkpoint.preprocess.channels)
        self._path = as_openvino(checkpoint, digest, merge=merge)
        self._pictures = pictures
        self._threads = self._threads_alone = torch.get_num_threads()
        self._pinned = pinned
        verify(self, checkpoint, merge=merge)

    def narrowed(self, threads: int) -> OpenVINOBackend:
        """The same with so many threads for one picture alone."""
        other = copy(self)
        other._threads_alone = threads
        other.__dict__.pop("_alone", None)  # compiled for another number
        return other

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        parts = fixed_slices(len(images_BHWC), self._pictures)
        found: list[Answers | None] = [None] * len(parts)
        queue: Any = self._queue
        queue.set_callback(lambda request, place: found.__setitem__(place, self._answers(request)))
        for place, part in enumerate(parts):
            content = images_BHWC[part]
            if len(content) == 1 and self._pictures != 1:
                found[place] = self._single(content)
            else:
                queue.start_async([_filled(content, self._pictures)], place)
        queue.wait_all()
        return _joined([answers for answers in found if answers is not None], parts, self._headless, features=features)

    @cached_property
    def _queue(self) -> Any:
        settings = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": str(self._threads)}
        compiled = self._compiled(self._pictures, settings, self._threads)
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

    def _compiled(self, pictures: int, settings: dict[str, str], threads: int) -> Any:
        core = self._openvino.Core()
        model = core.read_model(self._path)
        model.reshape([pictures, *self._shape])
        settings = settings | {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
        settings["ENABLE_CPU_PINNING"] = "YES" if self._pinned else "NO"
        with quiet():
            return core.compile_model(model, "CPU", settings)


class OnnxRuntimeBackend:
    """ONNX Runtime: slices of a batch side by side with one thread each, one picture alone with all threads."""

    name = "onnxruntime"

    def __init__(self, checkpoint: Checkpoint, digest: str, *, pictures: int = PICTURES, merge: int = 0) -> None:
        self._runtime = needed("onnxruntime")
        self._headless = _headless(checkpoint)
        self._path = as_onnx(checkpoint, digest, merge=merge)
        self._pictures = pictures
        self._lanes = Lanes(torch.get_num_threads())
        self._threads_alone = self._lanes.count
        verify(self, checkpoint, merge=merge)

    def narrowed(self, threads: int) -> OnnxRuntimeBackend:
        """The same with so many threads for one picture alone."""
        other = copy(self)
        other._threads_alone = threads
        other.__dict__.pop("_whole", None)  # made for another number
        return other

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        parts = slices(len(images_BHWC), lanes=self._lanes.count, most=self._pictures)
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

    def __init__(self, checkpoint: Checkpoint, *, pictures: int = PICTURES, merge: int = 0) -> None:
        self._headless = _headless(checkpoint)
        graph = exportable(checkpoint, gives="features" if self._headless else "both", merge=merge)
        with quiet():  # what it imports warns of itself
            self._graph: Callable[[torch.Tensor], Any] = torch.compile(graph, dynamic=False, options={"freezing": True})
        self._pictures = pictures
        verify(self, checkpoint, merge=merge)

    def run(self, images_BHWC: Pixels, *, features: bool = False) -> Outputs:
        """Logits and, where asked for, features."""
        parts = fixed_slices(len(images_BHWC), self._pictures)
        return _joined([self._answers(images_BHWC[part]) for part in parts], parts, self._headless, features=features)

    def _answers(self, images_BHWC: Pixels) -> Answers:
        fixed = images_BHWC if len(images_BHWC) == 1 else _filled(images_BHWC, self._pictures)
        with torch.no_grad(), quiet():  # freezing is for no_grad; inference tensors are refused by it
            try:
                out = self._graph(torch.from_numpy(np.ascontiguousarray(fixed)))
            except torch._dynamo.exc.BackendCompilerFailed as error:
                raise ConfigError(
                    f"torch.compile failed: {str(error).splitlines()[0]}",
                    hint="it needs a C++ compiler; backend='torch' needs none",
                ) from error
        return (out.numpy(), out.numpy()) if self._headless else (out[0].numpy(), out[1].numpy())


def fixed_slices(count: int, pictures: int) -> list[slice]:
    """`count` rows in slices of exactly `pictures`; what is left one by one, or as a slice to fill up where that is less work."""
    whole = count // pictures * pictures
    parts = [slice(first, first + pictures) for first in range(0, whole, pictures)]
    left = count - whole
    if left * 2 > pictures:
        return [*parts, slice(whole, count)]
    return [*parts, *(slice(place, place + 1) for place in range(whole, count))]


def verify(backend: OpenVINOBackend | OnnxRuntimeBackend | CompiledBackend, checkpoint: Checkpoint, *, merge: int = 0) -> None:
    """ExportError where a runtime does not give the model's own numbers for a few pictures of noise.

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


def _filled(images_BHWC: Pixels, pictures: int) -> Pixels:
    missing = pictures - len(images_BHWC)
    if not missing:
        return images_BHWC
    return np.concatenate([images_BHWC, np.zeros((missing, *images_BHWC.shape[1:]), np.uint8)])


def _joined(found: Sequence[Answers], parts: Sequence[slice], headless: bool, *, features: bool) -> Outputs:
    """Answers of slices one after another, without those of rows that filled up."""
    logits = np.concatenate([logits[: part.stop - part.start] for (logits, _), part in zip(found, parts, strict=True)])
    seen = np.concatenate([seen[: part.stop - part.start] for (_, seen), part in zip(found, parts, strict=True)])
    return Outputs(logits_BK=logits[:, :0] if headless else logits, features_BD=seen if features else None)
