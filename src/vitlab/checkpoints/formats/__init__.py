"""The layouts of checkpoints of other libraries: each module reads one into vitlab's names and writes it."""

from vitlab.checkpoints.formats import big_vision, bit, convnext, dinov2, huggingface, jax_npz, openai_clip, swin, timm, torchvision
from vitlab.checkpoints.formats.authors import AUTHORS
from vitlab.checkpoints.formats.contract import Format, Hints, Layout, Reading, Written

# Name -> module with `matches(raw)`, `read(raw, hints)` and `write(state, config, preprocess, labels)`. At most one matches a file.
FORMATS: dict[str, Format] = {
    "jax-npz": jax_npz,
    "big-vision": big_vision,
    "timm": timm,
    "huggingface": huggingface,
    "torchvision": torchvision,
    "bit-npz": bit,
    "swin": swin,
    "convnext": convnext,
    "dinov2": dinov2,
    "openai-clip": openai_clip,
}

# Every layout that is written: also those whose files are read as timm's.
LAYOUTS: dict[str, Layout] = {**FORMATS, **AUTHORS}

# Layout -> the key under which its authors' code looks for the weights in a torch file; "" if the file holds nothing else.
TORCH_KEYS = {
    "swin": "model",
    "convnext": "model",
    "dinov2": "",
    "openai-clip": "",
    "dino": "teacher",
    "mae": "model",
    "moco-v3": "state_dict",
    "beit": "model",
    "eva": "model",
}

__all__ = ["FORMATS", "LAYOUTS", "TORCH_KEYS", "Format", "Hints", "Layout", "Reading", "Written"]
