"""Plant wrong labels in a dataset and count what confident learning finds: `python -m benchmarks.label_errors DATA MODEL`.

A fraction of the training labels is replaced by another class, drawn evenly. The features of the model are extracted once.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

import vitlab
from vitlab.config.evaluation import EvaluateConfig
from vitlab.evaluation.features import extract_features
from vitlab.evaluation.label_errors import confident_errors, out_of_fold


def main() -> None:
    """Print a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    dataset = vitlab.open_dataset(asked.data, split="train")
    features = extract_features(vitlab.load(asked.model), dataset, config=EvaluateConfig(corrupt="skip", batch_size=32))
    truth_N, classes = features.labels_N, len(features.names)
    clean = list(confident_errors(out_of_fold(features), truth_N))
    print(f"{len(truth_N):,} images, {classes} classes; {len(clean):,} suspects without planted labels")
    for seed in range(asked.seeds):
        rng = np.random.default_rng(100 + seed)
        planted = rng.choice(len(truth_N), round(asked.fraction * len(truth_N)), replace=False)
        labels_N = truth_N.copy()
        for row in planted:
            labels_N[row] = (labels_N[row] + rng.integers(1, classes)) % classes
        found = dict(confident_errors(out_of_fold(replace(features, labels_N=labels_N), seed=seed), labels_N))
        hit = [row for row in planted.tolist() if row in found]
        right = sum(found[row] == truth_N[row] for row in hit)
        print(
            f"seed {seed}: planted {len(planted)}, found {len(found)}, precision {len(hit) / len(found):.3f},"
            f" recall {len(hit) / len(planted):.3f}, suggestion right {right / len(hit):.3f}"
        )


if __name__ == "__main__":
    main()
