"""Traces that are made once for each model, which takes seconds, however many files are written of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from torch.export import ExportedProgram

from vitlab.exporters import exporter, files
from vitlab.exporters.files import ExportConfig, Graph
from vitlab.inference import backends


@contextmanager
def traced_once() -> Iterator[None]:
    """Graphs of the same weights and settings share one trace, and the files of that trace one conversion to ONNX."""
    programs = dict[object, ExportedProgram]()
    protos = dict[int, Any]()
    trace, convert = files.traced, backends.onnx_proto

    def shared_trace(graph: Graph, config: ExportConfig) -> ExportedProgram:
        weights = tuple((name, tensor.double().sum().item()) for name, tensor in graph.state_dict().items())
        key = (graph.config, graph.preprocess, config.inside, config.dynamic_size, weights)
        if key not in programs:
            programs[key] = trace(graph, config)
        return programs[key]

    def shared_proto(program: ExportedProgram, *, outputs: Sequence[str] | None = None) -> Any:
        if id(program) not in protos:
            protos[id(program)] = convert(program, outputs=outputs)
        copied = type(protos[id(program)])()
        copied.CopyFrom(protos[id(program)])  # the caller changes it
        return copied

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "traced", shared_trace)
        patch.setattr(files, "traced", shared_trace)
        patch.setattr(files, "onnx_proto", shared_proto)
        yield
