"""Facts and arrays in one run of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from vitlab.errors import DataError
from vitlab.io.arrays import TYPES, pack_arrays, unpack_arrays

any_array = st.sampled_from(TYPES).flatmap(
    lambda kind: arrays(
        np.dtype(kind), array_shapes(min_side=0, max_side=5), elements={"allow_nan": False} if kind == "float32" else None
    )
)


@settings(deadline=None, max_examples=20)
@given(
    st.dictionaries(st.text(max_size=5), any_array, max_size=4), st.dictionaries(st.text(), st.text() | st.integers(), max_size=3)
)
def test_what_is_packed_is_unpacked(packed: dict[str, np.ndarray], facts: dict[str, str | int]) -> None:
    found, unpacked = unpack_arrays(pack_arrays(facts, packed))
    assert found == facts
    assert list(unpacked) == list(packed)
    for name, array in packed.items():
        assert unpacked[name].dtype == array.dtype
        np.testing.assert_array_equal(unpacked[name], array)


def test_every_array_starts_at_a_multiple_of_four() -> None:
    content = pack_arrays({"x": "y"}, {"a": np.zeros(3, np.uint8), "b": np.ones(2, np.float32)})
    _, unpacked = unpack_arrays(content)
    assert len(content) % 4 == 0
    assert unpacked["b"].ctypes.data % 4 == unpacked["a"].ctypes.data % 4


@pytest.mark.parametrize("kept", [0, 3, 10, -1])
def test_a_pack_that_is_cut_short_is_refused(kept: int) -> None:
    content = pack_arrays({}, {"a": np.ones(5, np.float32)})
    with pytest.raises(DataError, match="pack of arrays"):
        unpack_arrays(content[:kept])
