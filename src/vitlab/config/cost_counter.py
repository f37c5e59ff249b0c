"""The running sums behind `vitlab.models.cost.cost`: what each layer adds to them.

A model's config has a method `count(counter)` that walks through one forward pass of one image. Each call adds what a layer costs.
`kept` and `alive` are worked out from what torch saves and holds. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

MAXIMUM = 2  # max pooling also keeps the index of each maximum, in 8 bytes: two numbers

Size = tuple[int, int]


@dataclass(slots=True)
class CostCounter:
    """Parameters, multiply-adds, numbers that layers output (`activations`), numbers kept for the backward pass (`kept`).

    `padding` are the multiply-adds with the zeros around a map, which `macs` includes. `peak` is the largest number of numbers
    alive at once. `copies` are numbers made from the weights whatever the batch size, `largest_copy` those of one layer.
    """

    parameters: int = 0
    macs: int = 0
    padding: int = 0
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

    def standardised_conv(self, cells: int, inputs: int, outputs: int, kernel: int) -> None:
        """A standardised convolution that outputs `cells` cells; its kernel is centred, then scaled: two copies."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights
        self.macs += cells * weights
        self.activations += cells * outputs
        self.copies += 2 * weights
        self.largest_copy = max(self.largest_copy, 2 * weights)

    def conv(self, cells: int, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        """A convolution that outputs `cells` cells; `inputs` are those that one output sees, 1 for a depthwise one."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights + (outputs if bias else 0)
        self.macs += cells * weights
        self.activations += cells * outputs

    def bottleneck(self, channels: tuple[int, int, int], before: Size, after: Size, *, first: bool) -> None:
        """Standardised convolutions 1x1, 3x3 with the stride, 1x1, and the projected shortcut of a stage's first unit."""
        inputs, width, outputs = channels
        self.standardised_conv(cells(before), inputs, width, 1)
        self.standardised_conv(cells(after), width, width, 3)
        self.padded(before, after, width * width, 3)
        self.standardised_conv(cells(after), width, outputs, 1)
        if first:
            self.standardised_conv(cells(after), inputs, outputs, 1)

    def padded(self, before: Size, after: Size, pairs: int, kernel: int) -> None:
        """The zeros that a convolution of a padded map multiplies; `pairs` are its pairs of an input and an output channel."""
        inside = _taps_inside(before[0], after[0], kernel) * _taps_inside(before[1], after[1], kernel)
        self.padding += pairs * (cells(after) * kernel**2 - inside)

    def fixed(self, numbers: int) -> None:
        """Numbers alive within one layer whatever the batch size."""
        self.largest_copy = max(self.largest_copy, numbers)

    def norms(self, *channels: int) -> None:
        """Norms with a scale and a bias, one for each width given."""
        self.parameters += 2 * sum(channels)

    def batch_norm(self, channels: int) -> None:
        """A BatchNorm; training keeps the batch's mean and deviation, whatever the batch size."""
        self.norms(channels)
        self.copies += 2 * channels

    def alive(self, numbers: int) -> None:
        """A moment at which so many numbers are alive."""
        self.peak = max(self.peak, numbers)

    def head(self, features: int, classes: int) -> None:
        """The linear head, if there is one."""
        if classes:
            self.dense(1, features, classes)
            self.kept += features


def _taps_inside(before: int, after: int, kernel: int) -> int:
    """Along one side of a map: pairs of an output and a place of the kernel that lies inside the map of `before` cells."""
    stride = -(-before // after)
    starts = (stride * place - (kernel - 1) // 2 for place in range(after))
    return sum(min(before, start + kernel) - max(0, start) for start in starts)


def cells(size: Size) -> int:
    """Cells of a map (down, across)."""
    return size[0] * size[1]


def strided(size: Size, stride: int = 2) -> Size:
    """The size of a map after a stride: every padding used here rounds up."""
    return -(-size[0] // stride), -(-size[1] // stride)
