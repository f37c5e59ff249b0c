"""Classify every image of a folder. Write the predictions to a CSV file, and show what the model is least sure about.

python examples/classify_folder.py model.safetensors photos/ --out predictions.csv
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import tyro

import vitlab


def main(model: str, images: Path, /, out: Path = Path("predictions.csv"), unsure: int = 5) -> None:
    """Classify every image of a folder.

    Args:
        model: a checkpoint of any format, a run's folder, or hub:owner/name
        images: a folder of images, also inside other folders
        out: the CSV file to write
        unsure: how many of the least certain images to show
    """
    predictions = vitlab.predict(model, images)

    with out.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label", "probability"])
        for prediction in predictions:
            label, probability = prediction.top(1)[0]
            rows.writerow([prediction.name, label, f"{probability:.4f}"])

    for label, count in Counter(predictions.labels).most_common():
        print(f"{count:6} {label}")

    print("least certain:")
    for prediction in sorted(predictions, key=lambda prediction: prediction.top(1)[0][1])[:unsure]:
        print(f"  {prediction.name}:", ", ".join(f"{label} {probability:.0%}" for label, probability in prediction.top(3)))


if __name__ == "__main__":
    tyro.cli(main)
