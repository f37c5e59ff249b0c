"""Take a model elsewhere: the same weights as a file of another library, and as an ONNX file that runs without PyTorch.

python examples/convert_and_export.py model.safetensors exported/
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import tyro

import vitlab


def main(model: str, out: Path, /) -> None:
    """Convert a checkpoint to other libraries' formats and export it to ONNX.

    Args:
        model: a checkpoint of any format
        out: the folder to write to
    """
    out.mkdir(parents=True, exist_ok=True)

    # Other libraries: every weight stays the same, bit for bit. Each line prints what was guessed, if anything.
    print(vitlab.convert(model, out / "official.npz", to="jax-npz"))  # the authors' own code
    print(vitlab.convert(model, out / "huggingface", to="huggingface"))  # AutoModelForImageClassification.from_pretrained
    print(vitlab.convert(model, out / "timm", to="timm"))  # timm.create_model("local-dir:...")

    # ONNX, with preprocessing inside: uint8 images in, probabilities out. vitlab runs the file before it keeps it.
    print(vitlab.export(model, out / "model.onnx", inside=True))

    # What remains to do where the file runs: resize, then call it.
    checkpoint = vitlab.load(model)
    images_BHWC = np.zeros((1, *checkpoint.preprocess.image_size, checkpoint.config.channels), np.uint8)
    session = onnxruntime.InferenceSession(out / "model.onnx")
    (probabilities_BC,) = session.run(None, {session.get_inputs()[0].name: images_BHWC})
    best = int(probabilities_BC[0].argmax())
    label = checkpoint.labels[best] if checkpoint.labels else best
    print(f"ONNX Runtime takes a black image for: {label} ({probabilities_BC[0, best]:.0%})")


if __name__ == "__main__":
    tyro.cli(main)
