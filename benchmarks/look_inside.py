"""Peak memory and time of attention distance, rollout and relevance at high resolution: each in a process of its own.

    python benchmarks/look_inside.py [--model ViT-B/16] [--image-size 1024]

The whole attention of one layer, one image, is printed beside it: what a record of all layers would hold is that times the depth.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

LOOKS = ("forward", "distance", "rollout", "relevance")


def main() -> None:
    """Start one child for each look, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--image-size", type=int, default=1024)
    parser.add_argument("--look", choices=LOOKS, help="run this one here, and print its peak memory in MB and its seconds")
    given = parser.parse_args()
    if given.look is not None:
        look(given.look, given.model, given.image_size)
        return
    from vitlab.config import variant
    from vitlab.config.vit import ViTConfig

    config = variant(given.model, image_size=given.image_size)
    assert isinstance(config, ViTConfig)
    whole = config.heads * config.tokens**2 * 4 / 1e6
    print(f"{given.model} at {given.image_size} px: {config.tokens:,} tokens; one layer's attention is {whole:,.0f} MB")
    for name in LOOKS:
        command = [sys.executable, __file__, "--look", name, "--model", given.model, "--image-size", str(given.image_size)]
        print(f"{name:10} {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}", flush=True)


def look(name: str, variant_name: str, image_size: int) -> None:
    """Look at one random image through a model of random values."""
    import torch

    from vitlab.config import variant
    from vitlab.interpretation.attention import attention_distance, relevance, rollout
    from vitlab.models import build

    model = build(variant(variant_name, image_size=image_size)).eval()
    images_BCHW = torch.rand(1, 3, image_size, image_size, generator=torch.Generator().manual_seed(0))
    began, spent = time.perf_counter(), time.process_time()
    if name == "forward":
        with torch.inference_mode():
            model(images_BCHW)
    else:
        {"distance": attention_distance, "rollout": rollout, "relevance": relevance}[name](model, images_BCHW)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    print(
        f"peak {peak:6,.0f} MB  {time.process_time() - spent:6.1f} s of a core, {time.perf_counter() - began:6.1f} s by the clock"
    )


if __name__ == "__main__":
    main()
