"""Images of mixed shapes through one ViT: packed at their native aspect ratio, padded, and squashed to a square; images/s.

    OMP_NUM_THREADS=1 python benchmarks/packing.py ../shared/data/deit_tiny_patch16_224.npz ../shared/data/imagenet_val_1000.zip

All ways run the same folded layers on the same images, in turn, round after round, so that a busy moment of the machine affects
all of them; decoding and resizing are done before. On a busy machine read the ratios in CPU time. Each image has as
many patches as a square of the model's size, or a few less.

- packed: images of a batch in one sequence, attention over the slice of each: what `--resize native` runs;
- padded: each image on a canvas of the largest height and the largest width in its batch, as detectors batch images; attention
  leaves the padding out by a mask, so that the results are the packed ones;
- padded sequences: the tokens of each image padded to the longest sequence of its batch, with a mask, as NaFlex does;
- square: every image squashed to the model's square, as `predict` does it by default.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitlab.checkpoints import load
from vitlab.config.data import DecodeLimits
from vitlab.config.vit import ViTConfig
from vitlab.data.opening import open_dataset
from vitlab.data.transforms import EvaluationTransform, NativeTransform, grids_of
from vitlab.inference.backends import FoldedBackend, Outputs, slices
from vitlab.inference.packed import PackedBackend
from vitlab.models.vit import ViT

Rows = NDArray[np.uint8]


class Padded:
    """The packed backend with padding in place of packing: `canvas` pads to the largest height and width, else to the longest."""

    def __init__(self, packed: PackedBackend, *, canvas: bool) -> None:
        self.packed, self.canvas = packed, canvas

    def run(self, rows_BRVC: Rows) -> Outputs:
        parts = slices(len(rows_BRVC), lanes=self.packed._lanes.count, most=self.packed._images)
        grids = grids_of(rows_BRVC)
        longest = max(g * j for g, j in grids)
        if self.canvas:
            longest = max(g for g, _ in grids) * max(j for _, j in grids)
        found = self.packed._lanes.map(lambda part: self._slice(rows_BRVC[part], longest), parts)
        return Outputs(logits_BK=np.concatenate(found))

    @torch.inference_mode()
    def _slice(self, rows_BRVC: Rows, longest: int) -> NDArray[np.float32]:
        packed = self.packed
        z_1TD, lengths = packed.embedded(rows_BRVC)
        length = packed.prefix + longest
        pieces = torch.split(z_1TD[0], lengths)
        z_BND = torch.stack([F.pad(piece, (0, 0, 0, length - len(piece))) for piece in pieces])
        # The padding is embedded too, as an ordinary batch would: the same work as a batch of images of that size.
        F.linear(z_BND.new_zeros(len(rows_BRVC), longest - min(lengths) + packed.prefix, packed.patch_DV.shape[1]), packed.patch_DV)
        seen_B11N = (torch.arange(length) < torch.tensor(lengths)[:, None])[:, None, None]
        for place, layer in enumerate(packed.layers):
            z_BND = _padded_layer(layer, z_BND, seen_B11N, packed.read if place == len(packed.layers) - 1 else None)
        z_BND = z_BND if packed.model.encoder.norm is None else packed.model.encoder.norm(z_BND)
        logits: NDArray[np.float32] = packed.model.logits_from(z_BND).numpy()
        return logits


def _padded_layer(layer: object, z_BND: Tensor, seen_B11N: Tensor, read: int | None) -> Tensor:
    from vitlab.inference.folded import FoldedLayer

    assert isinstance(layer, FoldedLayer)
    x_BND = layer.norm1(z_BND)
    if read is None:
        q_BHNK, k_BHNK, v_BHNK = layer.projected(x_BND)
    else:
        z_BND = z_BND[:, :read]
        q_BHNK, k_BHNK, v_BHNK = layer.projected_apart(x_BND[:, :read], x_BND)
    y_BHNK = F.scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=seen_B11N, scale=1.0)
    z_BND = z_BND + F.linear(y_BHNK.transpose(1, 2).flatten(2), layer.out, layer.out_bias)
    assert layer.norm2 is not None
    return z_BND + layer.transformed(layer.norm2(z_BND))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    checkpoint = load(words.checkpoint)
    assert isinstance(checkpoint.config, ViTConfig)
    assert isinstance(checkpoint.model, ViT)
    dataset = open_dataset(words.data, split="all")
    places = np.random.default_rng(0).permutation(len(dataset))[: words.images].tolist()
    native = replace(checkpoint.preprocess, resize="native")
    transform = NativeTransform(preprocess=native, limits=DecodeLimits(), patch=checkpoint.config.patch_size)
    squash = EvaluationTransform(preprocess=replace(checkpoint.preprocess, resize="squash"), limits=DecodeLimits())
    samples = [dataset.read(place) for place in places]
    rows_NRVC = np.stack([transform.apply(sample.content, name=sample.name) for sample in samples])
    square_NHWC = np.stack([squash.apply(sample.content, name=sample.name) for sample in samples])
    packed = PackedBackend(checkpoint.model, native)
    ways: dict[str, tuple[Callable[[Rows], Outputs], Rows]] = {
        "packed": (packed.run, rows_NRVC),
        "padded": (Padded(packed, canvas=True).run, rows_NRVC),
        "padded sequences": (Padded(packed, canvas=False).run, rows_NRVC),
        "square": (FoldedBackend(checkpoint).run, square_NHWC),
    }
    for name in ("padded", "padded sequences"):
        difference = np.abs(ways[name][0](rows_NRVC[:8]).logits_BK - packed.run(rows_NRVC[:8]).logits_BK).max()
        assert difference < 1e-3, f"{name} gives other logits than packed: {difference}"
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(words.rounds + 1):
        for name, (run, images) in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            for first in range(0, len(images), words.batch):
                run(images[first : first + words.batch])
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
                cpu_seconds[name].append(time.process_time() - cpu_began)
    rates = {name: words.images / min(spent) for name, spent in seconds.items()}
    cpu_rates = {name: words.images / min(spent) for name, spent in cpu_seconds.items()}
    grids = grids_of(rows_NRVC)
    print(
        json.dumps(
            {
                "images": words.images,
                "batch": words.batch,
                "threads": torch.get_num_threads(),
                "shapes": len(set(grids)),
                "mean_patches": round(float(np.mean([g * j for g, j in grids])), 1),
                "images_per_sec": {name: round(rate, 2) for name, rate in rates.items()},
                "packed_over": {name: round(rates["packed"] / rate, 3) for name, rate in rates.items() if name != "packed"},
                "images_per_cpu_sec": {name: round(rate, 2) for name, rate in cpu_rates.items()},
                "packed_over_in_cpu_time": {
                    name: round(cpu_rates["packed"] / rate, 3) for name, rate in cpu_rates.items() if name != "packed"
                },
                "packed_over_in_cpu_time_by_round": {
                    name: [round(other / own, 3) for own, other in zip(cpu_seconds["packed"], spent, strict=True)]
                    for name, spent in cpu_seconds.items()
                    if name != "packed"
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
