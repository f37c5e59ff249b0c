"""Grad-CAM (Selvaraju et al. 2017): which places of a feature map are evidence for a class, for models without attention.

Axes: B batch, C channels or classes, G x J places down and across.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitlab.errors import ConfigError
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import Floats, a_class_each, as_floats, batches, chosen_classes, needs_head
from vitlab.models.families import Model
from vitlab.models.record import Record
from vitlab.models.recurrent import Recurrent
from vitlab.models.vit import ViT


def class_activation(model: nn.Module, images_BCHW: Tensor, classes: int | Sequence[int] | None = None) -> Floats:
    """The evidence of each place of the last feature maps for a class, (B, G, J), at least 0.

    Each map is weighted by the mean gradient of the class's logit over its places; negative sums count as zero. `classes` is one
    for all images or one for each; None takes the predicted class.
    """
    needs_head(model, "Grad-CAM")
    if not isinstance(model, Model) or isinstance(model, ViT | Recurrent):
        raise ConfigError(f"Grad-CAM needs feature maps, and a {type(model).__name__} has tokens", hint="use relevance")
    wanted = a_class_each(classes, len(images_BCHW))
    maps, done = [], 0
    with evaluating(model):
        for part_BCHW in batches(model, images_BCHW, bytes_each=int(images_BCHW.shape[-1] * images_BCHW.shape[-2]) * 512):
            own = None if wanted is None else wanted[done : done + len(part_BCHW)]
            done += len(part_BCHW)
            maps.append(_evidence(model, part_BCHW, own).float().cpu())
    return as_floats(torch.cat(maps))


def _evidence(model: Model, images_BCHW: Tensor, classes: Sequence[int] | None) -> Tensor:
    record = Record(layers=[-1], attention=False, maps=True)
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        logits_BC: Tensor = model(images_BCHW.clone().detach().requires_grad_(), record)
        chosen = logits_BC.gather(1, chosen_classes(logits_BC, classes)[:, None]).sum()
        (gradient_BCGJ,) = torch.autograd.grad(chosen, [record.maps_BCHW[0]])
    maps_BCGJ = record.maps_BCHW[0].detach()
    return (gradient_BCGJ.mean((2, 3), keepdim=True) * maps_BCGJ).sum(1).relu()
