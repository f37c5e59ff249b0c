"""Inference against the peers: one interleaved run, the same weights, the same images, equal outputs.

    PYTHON_WITH_PEERS benchmarks/inference.py [--models Ti/16 B/16 Ti/16@384 vit_small_patch14_dinov2@224] [--threads 2] [--quick]

Each runtime runs one image alone and batches of several sizes, of which its best counts; rounds go through all of them in turn,
and the least time of each counts. Peers get images that are normalised already; vitlab gets uint8 pixels and normalises them
itself, within its time. A model is the paper's, or timm's by timm's name, after an @ its image size. `--clock cpu` measures CPU
time instead of wall time, for one thread on a machine that is used by others too. It needs timm; transformers, vit_pytorch,
onnxruntime and openvino are measured if they are installed.

`--int8` measures 8 bits separately: vitlab's exported files in OpenVINO and ONNX Runtime, beside the same graph in float and timm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.checkpoints import Checkpoint, convert, save
from vitlab.config import Preprocess, variant
from vitlab.config.vit import ViTConfig
from vitlab.data.opening import open_dataset
from vitlab.data.transforms import normalise
from vitlab.exporters import ExportConfig, export
from vitlab.inference import Predictor
from vitlab.inference.auto import AutoBackend
from vitlab.inference.backends import TorchBackend, quiet
from vitlab.models import build
from vitlab.models.cost import cost

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from benchmarks.peers import peer

MODELS = ("Ti/16", "S/16", "B/16", "Ti/16@384")
BATCHES = (1, 4, 8, 16, 32)
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
Run = Callable[[int], Any]


@dataclass
class Line:
    """A runtime and its seconds per image by batch size. `ours`: vitlab's. `same`: it has the same weights as the others."""

    name: str
    run: Run
    ours: bool = False
    same: bool = True
    difference: float = float("nan")

    def __post_init__(self) -> None:
        self.seconds: dict[int, float] = {}


class Case:
    """One model: weights, images, and the runtimes."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path) -> None:
        size_name, _, side = name.partition("@")
        self.architecture = size_name if "_" in size_name else None
        if self.architecture is None:
            config = variant(f"ViT-{size_name}", profile="timm", image_size=int(side or 224))
        else:
            config = variant(size_name, num_classes=1000, image_size=int(side) if side else None)
        assert isinstance(config, ViTConfig)
        self.config, self.folder, self.options = config, folder, options
        self.batches = [batch for batch in BATCHES if batch <= options.most]
        generator = torch.Generator().manual_seed(0)
        model = build(config).eval()
        with torch.no_grad():  # a zero head would make equal outputs mean nothing
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
        fed = Preprocess(image_size=config.image_size, resize_to=config.image_size[0])
        self.checkpoint = Checkpoint(model=model, config=config, preprocess=fed)
        shape = (max(self.batches), *config.image_size, 3)
        self.pixels_BHWC: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        self.images_BCHW = normalise(torch.from_numpy(self.pixels_BHWC), fed)
        self.arrays_BCHW = self.images_BCHW.numpy()
        save(self.checkpoint, folder / "model.safetensors")
        self.lines = [*self._in_eight_bits(), *self._peers()] if options.int8 else [*self._ours(), *self._peers()]

    def _ours(self) -> list[Line]:
        names = ["torch", "onnxruntime", "openvino"] + ([] if self.options.quick else ["compile"])
        lines = [Line("vitlab plain", self._of_backend(TorchBackend(self.checkpoint.model, self.checkpoint.preprocess)), ours=True)]
        for name in names:
            predictor = Predictor(self.checkpoint, backend=name)  # type: ignore[arg-type]
            lines.append(Line(f"vitlab {name}", self._of_backend(predictor.backend), ours=True))
        if self.options.merge:
            for name in ("torch", "openvino"):
                merging = Predictor(self.checkpoint, backend=name, merge=self.options.merge)  # type: ignore[arg-type]
                line = f"vitlab {name}, merge {self.options.merge}"
                lines.append(Line(line, self._of_backend(merging.backend), ours=True, same=False))
        auto = Predictor(self.checkpoint).backend
        assert isinstance(auto, AutoBackend)
        print(f"  auto: {auto.measure_now().summary()}", flush=True)
        return [*lines, Line("vitlab auto", self._of_backend(auto), ours=True)]

    def _in_eight_bits(self) -> list[Line]:
        lines = []
        for name in ("openvino", "onnxruntime"):
            floats = Predictor(self.checkpoint, backend=name)
            lines.append(Line(f"vitlab {name}, float", self._of_backend(floats.backend), ours=True))
        side = self.config.image_size[0]
        dataset = open_dataset(f"synthetic:kind=contours,classes=4,samples_per_class=8,image_size={side},channels=3", split="all")
        settings = ExportConfig(int8=True, inside=True, calibration=16, max_drop=100)  # random weights: nothing is lost or won
        for ending in (".xml", ".onnx"):
            path = export(self.checkpoint, self.folder / f"int8{ending}", settings, dataset=dataset).paths[0]
            print(f"  {path.name}: written", flush=True)
        shape = (4, *self.config.image_size, 3)
        lines.append(
            Line("vitlab openvino, int8", _streams(self.folder / "int8.xml", shape, self.pixels_BHWC), ours=True, same=False)
        )
        session = _session(self.folder / "int8.onnx", self.pixels_BHWC)
        return [*lines, Line("vitlab onnxruntime, int8", session, ours=True, same=False)]

    def _of_backend(self, backend: Any) -> Run:
        return lambda batch: backend.run(self.pixels_BHWC[:batch]).logits_BK

    def _of_module(self, module: Callable[[Tensor], Any], *, grad: bool = False) -> Run:
        def run(batch: int) -> Any:
            with torch.no_grad() if grad else torch.inference_mode():
                out = module(self.images_BCHW[:batch])
                return getattr(out, "logits", out).numpy()

        return run

    def _peers(self) -> list[Line]:
        model = self._timm()
        lines = [Line("timm eager", self._of_module(model))]
        if not self.options.quick:
            with quiet():
                compiled = torch.compile(model, dynamic=False, options={"freezing": True})
            lines.append(Line("timm torch.compile", self._of_module(compiled, grad=True)))
        lines += self._huggingface() + self._vit_pytorch()
        path = self.folder / "timm.onnx"
        with quiet(), torch.no_grad():
            batch = torch.export.Dim("batch", min=1, max=512)
            torch.onnx.export(model, (self.images_BCHW[:2],), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
        return lines + self._onnxruntime(path) + self._openvino(path)

    def _timm(self) -> nn.Module:
        from safetensors.torch import load_file

        from vitlab.inference.bench import timm_model

        timm = peer("timm")
        convert(self.folder / "model.safetensors", self.folder / "timm.safetensors", to="timm")
        if self.architecture is None:
            model = timm_model(self.config)
        else:
            model = timm.create_model(self.architecture, img_size=self.config.image_size, num_classes=1000).eval()
        model.load_state_dict(load_file(self.folder / "timm.safetensors"))
        return model

    def _huggingface(self) -> list[Line]:
        if self.architecture is not None:  # ViTForImageClassification is the paper's model
            return []
        try:
            transformers = peer("transformers")
        except ImportError:
            return []
        convert(self.folder / "model.safetensors", self.folder / "hf", to="huggingface")
        return [
            Line("Hugging Face", self._of_module(transformers.ViTForImageClassification.from_pretrained(self.folder / "hf").eval()))
        ]

    def _vit_pytorch(self) -> list[Line]:
        if self.architecture is not None:
            return []
        try:
            made = peer("vit_pytorch").ViT(
                image_size=self.config.image_size[0],
                patch_size=self.config.patch_size[0],
                num_classes=self.config.num_classes,
                dim=self.config.width,
                depth=self.config.depth,
                heads=self.config.heads,
                mlp_dim=self.config.mlp_width,
                dim_head=self.config.width // self.config.heads,
            )
        except ImportError:
            return []
        return [Line("vit-pytorch (own weights)", self._of_module(made.eval()), same=False)]

    def _onnxruntime(self, path: Path) -> list[Line]:
        try:
            peer("onnxruntime")
        except ImportError:
            return []
        return [Line("timm ONNX Runtime", _session(path, self.arrays_BCHW))]

    def _openvino(self, path: Path) -> list[Line]:
        try:
            compiled = peer("openvino").Core().compile_model(path, "CPU", _openvino_settings())
        except ImportError:
            return []
        return [
            Line("timm OpenVINO", lambda batch: compiled(self.arrays_BCHW[:batch])[0]),
            Line("timm OpenVINO, vitlab's settings", _streams(path, (4, 3, *self.config.image_size), self.arrays_BCHW)),
        ]

    def measure(self) -> None:
        """Round after round through all runtimes, at all batches."""
        clock, expected = (
            CLOCKS[self.options.clock],
            TorchBackend(self.checkpoint.model, self.checkpoint.preprocess).run(self.pixels_BHWC).logits_BK,
        )
        for line in self.lines:
            for batch in self.batches:
                found = line.run(batch)
                if line.same:
                    line.difference = np.fmax(
                        line.difference, float(np.abs(found - expected[:batch]).max() / np.abs(expected).max())
                    )
            assert not line.same or line.difference < 1e-4, f"{line.name} differs from the model: {line.difference}"
        for _ in range(self.options.rounds):
            for batch in self.batches:
                for line in self.lines:
                    began = clock()
                    for _ in range(4 if batch == 1 else 1):
                        line.run(batch)
                    spent = (clock() - began) / (4 * batch if batch == 1 else batch)
                    line.seconds[batch] = min(line.seconds.get(batch, float("inf")), spent)


def _session(path: Path, arrays: NDArray[Any]) -> Run:
    """ONNX Runtime on a file."""
    runtime = peer("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda batch: session.run(None, {name: arrays[:batch]})[0]


def _openvino_settings() -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }


def _streams(path: Path, shape: tuple[int, ...], arrays: NDArray[Any]) -> Run:
    """OpenVINO with the same settings as vitlab's: slices of 4 of a fixed shape, side by side."""
    openvino = peer("openvino")
    core, plain, threads = openvino.Core(), _openvino_settings(), torch.get_num_threads()
    compiled = core.compile_model(path, "CPU", plain)
    model = core.read_model(path)
    model.reshape(list(shape))
    settings = plain | {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": threads}
    queue = openvino.AsyncInferQueue(core.compile_model(model, "CPU", settings), threads)

    def run(batch: int) -> Any:
        found: dict[int, Any] = {}
        queue.set_callback(lambda request, first: found.__setitem__(first, request.get_output_tensor(0).data.copy()))
        if batch % 4:
            return compiled(arrays[:batch])[0]
        for first in range(0, batch, 4):
            queue.start_async([arrays[first : first + 4]], first)
        queue.wait_all()
        return np.concatenate([found[first] for first in sorted(found)])

    return run


def peak(clock: Callable[[], float]) -> float:
    """Floating-point operations per second of one large matrix product."""
    a, b, out = torch.ones(1576, 768), torch.ones(768, 3072), torch.empty(1576, 3072)
    least = float("inf")
    for _ in range(20):
        began = clock()
        torch.mm(a, b, out=out)
        least = min(least, clock() - began)
    return 2 * 1576 * 768 * 3072 / least


def report(name: str, case: Case, flops_per_second: float) -> dict[str, Any]:
    """Print a table; the same as plain values."""
    rows = []
    peers = [line for line in case.lines if not line.ours]
    best_one = min(line.seconds[1] for line in peers)
    best_many = min(min(line.seconds.values()) for line in peers)
    eager = next(line for line in case.lines if line.name == "timm eager")
    flops = 2 * cost(case.config).macs
    title = name if case.architecture else f"ViT-{name}"
    print(f"\n{title}: {'':24} one image                     best batch")
    one_heads, many_heads = ("ms", "x timm", "x best"), ("batch", "img/s", "x timm", "x best", "of peak", "diff")
    print(f"{'':34}{''.join(f'{word:>8}' for word in one_heads)}  {''.join(f'{word:>8}' for word in many_heads)}")
    for line in case.lines:
        batch = min(line.seconds, key=line.seconds.__getitem__)
        one, many = line.seconds[1], line.seconds[batch]
        row = {
            "runtime": line.name,
            "one_ms": 1e3 * one,
            "one_over_timm": eager.seconds[1] / one,
            "one_over_best": best_one / one,
            "batch": batch,
            "rate": 1 / many,
            "over_timm": min(eager.seconds.values()) / many,
            "over_best": best_many / many,
            "of_peak": flops / many / flops_per_second,
            "difference": line.difference,
        }
        rows.append(row)
        alone = f"{row['one_ms']:8.2f}{row['one_over_timm']:8.2f}{row['one_over_best']:8.2f}"
        together = (
            f"{batch:8}{row['rate']:8.1f}{row['over_timm']:8.2f}{row['over_best']:8.2f}{row['of_peak']:8.2f}{line.difference:8.1g}"
        )
        print(f"{line.name:34}{alone}  {together}", flush=True)
    return {"model": name, "rows": rows}


def main() -> None:
    """Measure every model asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--most", type=int, default=32, help="largest batch")
    parser.add_argument(
        "--quick", action="store_true", help="4 rounds, batches to 8, without torch.compile, which takes minutes to make"
    )
    parser.add_argument("--merge", type=int, default=0, help="also with this many pairs of patches merged per layer: other numbers")
    parser.add_argument("--int8", action="store_true", help="8 bits, instead of vitlab's other backends")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.most = min(options.rounds, 4), min(options.most, 8)
    torch.set_num_threads(options.threads)
    found = []
    for name in options.models:
        torch._dynamo.reset()  # it compiles a function a few times in a process, and then runs it as it is
        with tempfile.TemporaryDirectory() as folder:
            case = Case(name, options, Path(folder))
            before = peak(CLOCKS[options.clock])
            case.measure()
            found.append(report(name, case, max(before, peak(CLOCKS[options.clock]))))
            del case
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
