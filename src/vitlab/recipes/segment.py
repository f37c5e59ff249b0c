"""The recipe of segmentation: any images with masks, from a checkpoint or from scratch."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.overrides import DataFacts, Overrides, RunFacts
from vitlab.config.run import RunConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.recipes.dense import Beginning, Length, backbone_in, beginning, dense_run


def segment_folder(facts: RunFacts, overrides: Overrides) -> RunConfig:
    """Give each pixel a class: a linear decoder (or the mask transformer) on the features of a checkpoint, all of it fine-tuned.

    AdamW, layer-wise learning-rate decay, averaged weights, cosine; random crops and flips of image and mask together. A decoder on
    frozen features (trainable head) has a learning rate of its own. An image is squashed to the model's square, so that the whole
    image is seen; masks come back at its own size.
    On a CPU: at most 160 px and no more than the images have, 30,000 images in total, 3 to 30 epochs, batches of at most 32. With
    an accelerator: the checkpoint's own image size, 300,000 images, 5 to 60 epochs, batches of at most 128. From scratch, three
    times as many images.
    Command: vitlab finetune pets-seg/ --task segment --from deit_tiny.npz
    Time: DeiT-Ti on 3,327 pets, minutes on a CPU; docs/guides/segment.md.
    Score: in docs/results.md, beside a linear decoder on frozen features.
    """
    data = facts.data
    if data is None or not data.masks:
        raise ConfigError("segment-folder needs images with masks", hint="images/ beside masks/, or masks.json")
    if overrides.head == "fitted":
        raise ConfigError("segmentation has a decoder, no head that is fitted", hint="leave `head` out")
    begun = beginning("segment-folder", data, facts, overrides)
    more, lr = (3, 1e-3) if begun.path is None else (1, 2e-2 if overrides.trainable == "head" else 5e-4)
    gpu, cpu = Length(images=more * 3e5, epochs=(5, 60), batch=128), Length(images=more * 3e4, epochs=(3, 30), batch=32)
    length = gpu if facts.machine.accelerator else cpu
    model = _segmenter(begun, data, overrides)
    return dense_run("segment-folder", model, begun, data, facts, overrides, lr=lr, length=length, area=0.25)


def _segmenter(begun: Beginning, data: DataFacts, overrides: Overrides) -> SegmenterConfig:
    """The model of the checkpoint as a backbone; of a segmenter, its own backbone and decoder."""
    model, size = begun.model, begun.image_size
    before = model if isinstance(model, SegmenterConfig) else None
    backbone = backbone_in(model, taker="decoder")
    kept = before is not None and overrides.decoder in (None, before.decoder) and overrides.layers in (None, before.layers)
    if before is not None and kept:
        return replace(before, image_size=size, num_classes=data.classes, channels=overrides.channels or before.channels)
    width = backbone.width if isinstance(backbone, ViTConfig) else backbone.widths[-1]
    return SegmenterConfig(
        backbone=backbone,
        num_classes=data.classes,
        image_size=size,
        channels=overrides.channels or backbone.channels,
        decoder=overrides.decoder or (before.decoder if before is not None else "linear"),
        layers=overrides.layers or (),
        decoder_heads=next(heads for heads in range(max(1, width // 64), 0, -1) if width % heads == 0),
    )
