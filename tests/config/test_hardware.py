"""Work is cut so that no batch is, and so that nothing is left out or done twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.config.hardware import Cut, RayConfig
from vitlab.errors import ConfigError


@given(images=st.integers(1, 3000), batch_size=st.integers(1, 300), part_size=st.integers(1, 3000))
def test_chunks_cover_every_image_once_in_order_and_begin_at_whole_batches(images: int, batch_size: int, part_size: int) -> None:
    cut = Cut(images=images, batch_size=batch_size, part_size=part_size)
    chunks = [chunk for part in range(cut.parts) for chunk in cut.chunks(part)]
    assert [first for first, _ in chunks] == [sum(count for _, count in chunks[:place]) for place in range(len(chunks))]
    assert sum(count for _, count in chunks) == images
    assert all(first % batch_size == 0 and count > 0 for first, count in chunks)
    assert all(cut.chunks(part) for part in range(cut.parts))


@pytest.mark.parametrize("settings", [{"actors": -1}, {"actors": 5000}, {"readers": -1}, {"part_size": 0}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RayConfig(**settings)  # type: ignore[arg-type]
