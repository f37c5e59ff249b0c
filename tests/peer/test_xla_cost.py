"""XLA's cost analysis, by which Table 6 seems to be counted: products with padding do not count."""

from __future__ import annotations

import pytest

from tests.peer.conftest import installed
from vitlab.config.cost_counter import CostCounter, cells, strided


@pytest.mark.parametrize(("side", "kernel", "stride"), [(7, 3, 1), (14, 3, 1), (56, 3, 2), (224, 7, 2)])
def test_xla_counts_a_convolution_without_its_products_with_padding(side: int, kernel: int, stride: int) -> None:
    jax = installed("jax")
    size, after = (side, side), strided((side, side), stride)
    pad = [(kernel // 2, kernel // 2)] * 2

    def convolve(images: object, taps: object) -> object:
        return jax.lax.conv_general_dilated(images, taps, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    shapes = [jax.ShapeDtypeStruct(shape, jax.numpy.float32) for shape in ((1, side, side, 4), (kernel, kernel, 4, 8))]
    counter = CostCounter()
    counter.conv(cells(after), 4, 8, kernel, bias=False)
    counter.padded(size, after, 4 * 8, kernel)
    assert jax.jit(convolve).lower(*shapes).cost_analysis()["flops"] == 2 * (counter.macs - counter.padding)
