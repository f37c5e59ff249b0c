"""`vitlab quickstart`: build a small Vision Transformer, say what it is, and run it once on a picture made here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from vitlab.cli.facts import model_facts
from vitlab.cli.parse import count, one, parse, positional
from vitlab.cli.table import print_facts, print_json, print_rows
from vitlab.cli.talk import note
from vitlab.config.text import Json
from vitlab.config.variants import name_of, variant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CLASSES = 10
_RUNS = 5
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Build a small Vision Transformer, say what it is, run it once. It is untrained: its answer means nothing yet."""

    variant: Annotated[tyro.conf.Positional[str], positional("NAME")] = "ViT-Ti/16"
    """which model"""

    seed: Annotated[int, one("N", count)] = 0
    """of the initial weights"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Print the model, how long a picture takes, and the classes it gives the most."""
    arguments = parse(Arguments, words, verb="quickstart")
    config = variant(arguments.variant, num_classes=_CLASSES)
    model: dict[str, Json] = {"name": name_of(config), **model_facts(config)}
    if not arguments.json:
        print_facts(model, json=False)

    import torch

    from vitlab.model import build

    network = build(config, seed=arguments.seed).eval()
    images_BCHW = torch.from_numpy(picture(*config.image_size))[None]
    with torch.inference_mode():
        features_BD = network.features(images_BCHW)
        spent = []
        for _ in range(_RUNS):
            start = time.perf_counter()
            logits_BC = network(images_BCHW)
            spent.append((time.perf_counter() - start) * 1e3)
        probabilities_C = logits_BC[0].softmax(0)
    best = logits_BC[0].argsort(descending=True, stable=True)[:_SHOWN].tolist()
    top: list[dict[str, Json]] = [
        {"class": place, "logit": logits_BC[0, place].item(), "probability": probabilities_C[place].item()} for place in best
    ]
    forward: dict[str, Json] = {
        "features": len(features_BD[0]),
        "features_std": features_BD[0].std().item(),
        "milliseconds": statistics.median(spent),
        "threads": torch.get_num_threads(),
    }
    if arguments.json:
        print_json({"model": model, "forward": forward, "top": list(top)})
    else:
        print()
        print_facts(forward, json=False)
        print()
        print_rows(top, json=False)
    note("note: untrained. Its head starts at zero, as in the paper, so all classes are equally likely until it learns.")


def picture(height: int, width: int) -> NDArray[np.float32]:
    """A bright disc before a colour gradient, (3, height, width), normalised to [-1, 1]."""
    import numpy as np

    y_HW, x_HW = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j].astype(np.float32)
    disc_HW = ((y_HW - 0.5) ** 2 + (x_HW - 0.5) ** 2 < 0.09).astype(np.float32)
    image_CHW = np.stack([np.maximum(y_HW, disc_HW), np.maximum(x_HW, disc_HW), 1 - y_HW])
    return 2 * image_CHW - 1
