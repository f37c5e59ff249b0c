"""Training as an iterator of events: `for event in train(run, out="runs/a"): ...`."""

from vitlab.train.loop import train

__all__ = ["train"]
