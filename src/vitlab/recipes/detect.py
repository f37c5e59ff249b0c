"""The recipe of detection: any images with boxes, from a checkpoint or from scratch."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.recipes.dense import Beginning, Length, backbone_in, beginning, dense_run

_TOKENS = 100  # as the authors of YOLOS
_NAME = "detect-folder"


def detect_folder(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Find objects: a light head on the grid of a checkpoint's features (or YOLOS's detection tokens), all of it fine-tuned.

    AdamW, layer-wise learning-rate decay, averaged weights, cosine; random crops and flips, which boxes follow. An image is
    squashed to the model's square, so that the whole image is seen; boxes come back in its own pixels. A YOLOS is fine-tuned as
    what it is; any other model gets the grid, which needs far fewer images than tokens.
    On a CPU: at most 160 px and no more than the images have, 15,000 images in total, 3 to 60 epochs, batches of at most 32. With
    an accelerator: the checkpoint's own image size, 300,000 images, 5 to 100 epochs, batches of at most 128. From scratch, and
    with tokens, three times as many images.
    Command: vitlab finetune pets-heads/ --task detect --from deit_tiny.npz
    Time: DeiT-Ti on 2,919 pets' heads, 9 minutes of one core; docs/guides/detect.md.
    Score: AP50 94 % of held-out heads; docs/results.md.
    """
    data = facts.data
    if data is None or not data.boxes:
        raise ConfigError("detect-folder needs images with boxes", hint="boxes.csv, COCO's JSON or VOC's XML beside the images")
    if overrides.head == "fitted":
        raise ConfigError("detection has no head that is fitted", hint="leave `head` out")
    begun = beginning(_NAME, data, facts, overrides)
    begun = replace(begun, preprocess=replace(begun.preprocess, resize="squash"))  # a YOLOS may have been fed at any shape
    model = _detector(begun, data, overrides)
    more = 3 if begun.path is None or isinstance(model, ViTConfig) else 1
    gpu, cpu = Length(images=more * 3e5, epochs=(5, 100), batch=128), Length(images=more * 1.5e4, epochs=(3, 60), batch=32)
    length = gpu if facts.machine.accelerator else cpu
    lr = 1e-3 if begun.path is None else 1.5e-3
    return dense_run(_NAME, model, begun, data, facts, overrides, lr=lr, length=length, area=0.4)


def _detector(begun: Beginning, data: DataFacts, overrides: Overrides) -> GridDetectorConfig | ViTConfig:
    """A detector on the checkpoint's model; of a detector, its own kind unless another is asked for."""
    model, size = begun.model, begun.image_size
    before = "tokens" if isinstance(model, ViTConfig) and model.detection_classes else "grid"
    channels = overrides.channels or model.channels
    if (overrides.detector or before) == "tokens":
        return _with_tokens(model, size, data, channels)
    if isinstance(model, GridDetectorConfig):
        return replace(model, image_size=size, num_classes=data.classes, channels=channels)
    if isinstance(model, ViTConfig) and model.detection_classes:
        raise ConfigError("a YOLOS detects with its tokens", hint="detector='tokens', or start from a ViT")
    backbone = backbone_in(model, taker="head")
    return GridDetectorConfig(backbone=backbone, num_classes=data.classes, image_size=size, channels=channels)


def _with_tokens(model: ModelConfig, size: tuple[int, int], data: DataFacts, channels: int) -> ViTConfig:
    """A YOLOS: the checkpoint's, or its ViT with detection tokens."""
    if not isinstance(model, ViTConfig):
        raise ConfigError(f"{model.title} has no tokens to detect with", hint="detector='grid', or start from a ViT")
    position = model.position
    if not model.detection_classes and (
        model.register_tokens
        or model.pool == "map"
        or position.kind != "learned-1d"
        or not (position.prefix and position.registers)
    ):
        raise ConfigError(
            "detection tokens are added to a ViT with learned positions of its class token and patches, without registers",
            hint="detector='grid'",
        )
    return replace(
        model,
        image_size=size,
        channels=channels,
        num_classes=0,
        head_bias=0.0,
        representation_width=0,
        projection_width=0,
        norm_after_pool=False,
        register_tokens=model.register_tokens or _TOKENS,
        detection_classes=data.classes + 1,
    )
