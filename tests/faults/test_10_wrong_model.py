"""A file's tensors are missing, unknown, of another shape or of another model: vitlab names them and refuses the file.

Another number of classes or another image size is fitted only where it is asked for, and said.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.checkpoints.small import FILES, HEADS, images, logits_of, small_config, write_every_format
from vitlab.checkpoints import load
from vitlab.checkpoints.containers import read_file, write_npz, write_safetensors
from vitlab.errors import CheckpointError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same small model in every format."""
    return write_every_format(tmp_path_factory.mktemp("formats"))


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "native"])
def test_a_file_without_one_of_its_tensors_or_with_one_more_is_refused_by_name(files: Path, tmp_path: Path, kind: str) -> None:
    raw = read_file(files / FILES[kind])
    last = next(name for name in reversed(raw.tensors) if name.endswith(("bias", "norm/scale")))
    for tensors, word in (
        ({name: tensor for name, tensor in raw.tensors.items() if name != last}, last),
        (raw.tensors | {"something.else": torch.ones(1)}, "something.else"),
        (raw.tensors | {last: torch.ones(7, 7)}, last),
    ):
        path = tmp_path / "model"
        if FILES[kind].endswith(".npz"):
            write_npz(path, tensors)
        else:
            write_safetensors(path, tensors, raw.metadata)
        with pytest.raises(CheckpointError) as refused:
            load(path, heads=HEADS)
        assert word.removeprefix("params/") in str(refused.value)


def test_another_head_size_patch_and_channels_are_fitted_fed_and_said(files: Path) -> None:
    path = files / FILES["native"]
    loaded = load(path, num_classes=3, image_size=(40, 64), channels=1, dynamic_size=True, interpolation="bicubic")
    assert loaded.config == small_config(
        num_classes=3,
        image_size=(40, 64),
        channels=1,
        dynamic_size=True,
        numerics=replace(small_config().numerics, resize="bicubic"),
    )
    assert loaded.preprocess.image_size == (40, 64)
    assert loaded.preprocess.resize_to == round(37 * 64 / 32)
    assert loaded.preprocess.mean == pytest.approx((0.41,))
    assert loaded.labels is None
    assert torch.equal(logits_of(loaded, images(loaded.config)), torch.zeros(2, 3))
    assert "made for a test" in " | ".join(loaded.history)
    text = " | ".join(loaded.notes)
    for word in (
        "head of 3 classes",
        "4x4 to 5x8",
        "1 channels",
        "40x64 pixels",
        "labels of the old head left out",
    ):
        assert word in text, text
    assert load(path, patch_size=4).config == small_config(patch_size=(4, 4))
