"""Fine-tune a checkpoint on your own images, measure its accuracy on images it has not seen, and write a report.

python examples/finetune.py pets/ deit_tiny.npz --out runs/pets

`pets/` has a folder of images for each class. Stop the script at any time: the same command resumes.
"""

from __future__ import annotations

from pathlib import Path

import tyro

import vitlab


def main(data: str, start: str, /, out: Path, epochs: float = 5, image_size: int = 224, device: str = "auto") -> None:
    """Fine-tune a checkpoint on your own images.

    Args:
        data: a folder of class folders, a zip, a CSV list, ...
        start: the checkpoint to start from
        out: the run's folder
        epochs: passes over the training images
        image_size: pixels the model sees
        device: auto (a GPU if there is one), cpu, cuda or mps
    """
    run = vitlab.finetune(data, start, out=out, epochs=epochs, image_size=image_size, device=device)
    print("\n".join(run.notes))

    evaluation = vitlab.evaluate(run, data, split="test", device=device)
    print(evaluation)
    print(vitlab.report(run))
    print(f"the model: {run.file}")


if __name__ == "__main__":
    tyro.cli(main)
