"""The layouts of checkpoints of other libraries: each module reads one into vitlab's names and writes it."""

from vitlab.checkpoints.formats import (
    big_vision,
    bit_npz,
    convnext,
    dinov2,
    huggingface,
    jax_npz,
    openai_clip,
    swin,
    timm,
    torchvision,
)
from vitlab.checkpoints.formats.contract import Format, Hints, Reading, Written

# Name -> module with `matches(raw)`, `read(raw, hints)` and `write(state, config, preprocess, labels)`. At most one matches a file.
FORMATS: dict[str, Format] = {
    "jax-npz": jax_npz,
    "big-vision": big_vision,
    "timm": timm,
    "huggingface": huggingface,
    "torchvision": torchvision,
    "bit-npz": bit_npz,
    "swin": swin,
    "convnext": convnext,
    "dinov2": dinov2,
    "openai-clip": openai_clip,
}

__all__ = ["FORMATS", "Format", "Hints", "Reading", "Written"]
