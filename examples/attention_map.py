"""Show which parts of an image a Vision Transformer attends to: attention rollout, and the raw attention of the last layer.

python examples/attention_map.py model.safetensors cat.jpg --out rollout.png
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import tyro
from PIL import Image

import vitlab


def main(model: str, image: Path, /, out: Path = Path("rollout.png")) -> None:
    """Show which parts of an image a Vision Transformer attends to.

    Args:
        model: a checkpoint of a ViT with a class token
        image: an image
        out: the PNG file to write
    """
    checkpoint = vitlab.load(model)
    preprocess = checkpoint.preprocess

    # The figure. `figures.array` holds its numbers: the weight of each patch.
    figures = vitlab.inspect(checkpoint, image, figure="rollout").save(out)
    rows, columns = figures.array.shape[-2:]
    print(f"attention rollout of {rows} x {columns} patches: {out}")

    # The same from the model itself: a Record collects what happens inside, and does not change the output.
    height, width = preprocess.image_size
    image_HWC = np.asarray(Image.open(image).convert("RGB").resize((width, height)))
    image_1CHW = torch.tensor((image_HWC / 255 - preprocess.mean) / preprocess.std, dtype=torch.float32).permute(2, 0, 1)[None]
    record = vitlab.Record()
    with torch.inference_mode():
        checkpoint.model.eval()(image_1CHW, record)
    attention_HN = record.attention_BHNN[-1][0, :, 0, -rows * columns :]  # last layer, from the class token to the patches
    for head, attention_N in enumerate(attention_HN):
        row, column = divmod(int(attention_N.argmax()), columns)
        print(f"head {head} attends most to the patch in row {row + 1}, column {column + 1}")


if __name__ == "__main__":
    tyro.cli(main)
