"""The three kinds of file a graph is written as, and what runs each of them again.

Axes: B batch, K classes.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from vitlab.errors import ConfigError, ExportError
from vitlab.model.trial import trouble_with
from vitlab.predict.converted import INPUT, onnx_proto, quiet

Kind = Literal["onnx", "openvino", "pt2"]
ENDINGS: dict[str, Kind] = {".onnx": "onnx", ".xml": "openvino", ".pt2": "pt2"}
OUTPUT = "scores"
Run = Callable[[NDArray[Any]], NDArray[np.float32]]

_EXTRAS = {"onnx": "export", "onnxscript": "export", "onnxruntime": "export", "openvino": "openvino", "nncf": "int8"}
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_PATIENCE = 300.0  # seconds for a trial, of which a large model takes many to be compiled
_TRIAL = """
import json, sys, numpy, openvino
core = openvino.Core()
core.compile_model(core.read_model(sys.argv[1]), "CPU", json.loads(sys.argv[3]))([numpy.load(sys.argv[2])])
"""
_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes in one ONNX file, with room for the graph itself


def needed(name: str) -> ModuleType:
    """An optional library, or the sentence that says which extra brings it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        top = name.split(".")[0]
        raise ConfigError(f"{top} is not installed", hint=f"pip install 'vitlab[{_EXTRAS[top]}]'") from error


def onnx_bytes(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    """A traced graph as an ONNX file, `facts` in its metadata."""
    for library in ("onnx", "onnxscript"):
        needed(library)
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    if weights > _PROTOBUF_LIMIT:
        raise ExportError(
            f"{weights / 1e9:.1f} GB of weights do not fit into one ONNX file, which ends at 2 GB", hint="write a .pt2 file instead"
        )
    proto = onnx_proto(program, outputs=[OUTPUT])
    del proto.metadata_props[:]
    for key, value in facts.items():
        proto.metadata_props.add(key=key, value=value)
    return bytes(proto.SerializeToString())


def onnx_facts(content: bytes) -> dict[str, str]:
    """What is written in an ONNX file's metadata."""
    proto = needed("onnx").load_from_string(content)
    return {entry.key: entry.value for entry in proto.metadata_props}


def onnx_runner(content: bytes, *, threads: int = 0) -> Run:
    """ONNX Runtime on the bytes of a file."""
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = session.run([OUTPUT], {INPUT: images})[0]
        return scores

    return run


def openvino_model(onnx: bytes, facts: Mapping[str, str]) -> Any:
    """An ONNX file as OpenVINO's model, `facts` in its metadata."""
    openvino = needed("openvino")
    model = openvino.Core().read_model(model=onnx, weights=b"")
    model.inputs[0].tensor.set_names({INPUT})
    model.outputs[0].tensor.set_names({OUTPUT})
    for key, value in facts.items():
        model.set_rt_info(value, ["vitlab", key])
    return model


def openvino_pair(model: Any) -> tuple[bytes, bytes]:
    """The files of an OpenVINO model, .xml and .bin, with its weights as they are."""
    with tempfile.TemporaryDirectory() as folder:
        text, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        needed("openvino").save_model(model, text, compress_to_fp16=False)
        return text.read_bytes(), weights.read_bytes()


def openvino_runner(text: bytes, weights: bytes) -> Run:
    """OpenVINO on the bytes of a pair of files, in float32."""
    openvino = needed("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model=text, weights=weights), "CPU", _EXACT)

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        return np.array(compiled([images])[0], np.float32)

    return run


def openvino_trouble(text: bytes, weights: bytes, images: NDArray[Any]) -> str | None:
    """What befalls a process in which OpenVINO runs this pair of files, or None: it may be the instructions of 8 bits."""
    with tempfile.TemporaryDirectory() as folder:
        xml, pictures = Path(folder, "model.xml"), Path(folder, "images.npy")
        xml.write_bytes(text)
        xml.with_suffix(".bin").write_bytes(weights)
        np.save(pictures, images)
        return trouble_with(_TRIAL, str(xml), str(pictures), json.dumps(_EXACT), patience=_PATIENCE)


def program_bytes(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    """A traced graph as torch.export saves it; `facts` are its extra file `facts.json`."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={"facts.json": json.dumps(facts)})
    return file.getvalue()


def program_runner(content: bytes) -> Run:
    """PyTorch on the bytes of a .pt2 file."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            scores: torch.Tensor = module(torch.from_numpy(images))
            return scores.numpy()

    return run
