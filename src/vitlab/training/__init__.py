"""Training as a stream of events: `for event in train(run, out="runs/a"): ...`."""

from vitlab.training.trainer import train

__all__ = ["train"]
