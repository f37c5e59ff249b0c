"""The running account behind `vitlab.model.cost`: what each kind of layer adds to it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

MAXIMUM = 2  # a pooled cell also says where its maximum was, in 8 bytes: two numbers


@dataclass(slots=True)
class Tally:
    """Sums of parameters, of multiply-adds, of numbers put out and kept; and the largest of what was alive at once.

    `copies` are numbers made from the weights whatever the batch, `largest_copy` those of one layer.
    """

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    peak: int = 0
    kept: int = 0
    copies: int = 0
    largest_copy: int = 0

    def dense(self, rows: int, inputs: int, outputs: int, *, bias: bool = True) -> None:
        """A dense layer on `rows` vectors."""
        self.parameters += inputs * outputs + (outputs if bias else 0)
        self.macs += rows * inputs * outputs
        self.activations += rows * outputs

    def conv(self, cells: int, inputs: int, outputs: int, kernel: int) -> None:
        """A standardised convolution that puts out `cells` places; its kernel is centred, then scaled: two copies."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights
        self.macs += cells * weights
        self.activations += cells * outputs
        self.copies += 2 * weights
        self.largest_copy = max(self.largest_copy, 2 * weights)

    def plain_conv(self, cells: int, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        """A convolution that puts out `cells` places; `inputs` are those that one output sees, 1 for a depthwise one."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights + (outputs if bias else 0)
        self.macs += cells * weights
        self.activations += cells * outputs

    def fixed(self, numbers: int) -> None:
        """Numbers alive within one layer whatever the batch."""
        self.largest_copy = max(self.largest_copy, numbers)

    def norms(self, *channels: int) -> None:
        """Norms with a scale and a bias, one for each width given."""
        self.parameters += 2 * sum(channels)

    def alive(self, numbers: int) -> None:
        """A moment at which so many numbers are alive."""
        self.peak = max(self.peak, numbers)
