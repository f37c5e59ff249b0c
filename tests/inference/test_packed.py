"""`resize="native"` from end to end: images of different shapes through the engine, the verbs and the refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitlab
from tests.data.images import encode, scene
from tests.inference import small
from vitlab.checkpoints import Checkpoint, load, save
from vitlab.checkpoints.checkpoint import of_one_size
from vitlab.cli.main import main
from vitlab.config import ConvNeXtConfig
from vitlab.config.overrides import Overrides
from vitlab.config.vit import ViTConfig
from vitlab.data.transforms import native_grid, normalise, resize
from vitlab.errors import CheckpointError, ConfigError
from vitlab.inference import Predictor
from vitlab.models import build
from vitlab.recipes import recipe

SHAPES = ((40, 60), (90, 30), (32, 32), (20, 100))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    made = small.checkpoint()
    return replace(made, preprocess=replace(made.preprocess, resize="native"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of images of different shapes."""
    root = tmp_path_factory.mktemp("shapes")
    for number, shape in enumerate(SHAPES):
        place = root / ("cat" if number % 2 else "dog") / f"{number}.png"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(encode(scene(*shape), "PNG"))
    return root


def alone(checkpoint: Checkpoint, shape: tuple[int, int]) -> NDArray[np.float32]:
    config, own = checkpoint.config, checkpoint.preprocess
    assert isinstance(config, ViTConfig)
    (g, j), (p, q) = native_grid(*shape, own.image_size, config.patch_size), config.patch_size
    flexible = build(replace(config, dynamic_size=True)).eval()
    flexible.load_state_dict(checkpoint.model.state_dict())
    with torch.no_grad():
        image_HWC = resize(scene(*shape), (g * p, j * q), own.interpolation)
        logits_C: NDArray[np.float32] = flexible(normalise(torch.from_numpy(image_HWC)[None], own))[0].numpy()
    return logits_C


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_prediction_is_the_models_for_the_image_alone_in_its_own_shape(checkpoint: Checkpoint, batch_size: int) -> None:
    found = Predictor(checkpoint, batch_size=batch_size, workers=0)([scene(*shape) for shape in SHAPES])
    for shape, prediction in zip(SHAPES, found, strict=True):
        np.testing.assert_allclose(prediction.logits, alone(checkpoint, shape), atol=1e-5, rtol=1e-5)


def test_a_file_keeps_its_native_aspect_ratio_and_every_verb_reads_it(
    checkpoint: Checkpoint, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.safetensors"
    save(checkpoint, file)
    assert load(file).preprocess.resize == "native"
    stored = vitlab.predict(str(file), str(folder / "dog" / "0.png"))
    asked = vitlab.predict(str(small.saved(tmp_path / "plain.safetensors")), str(folder / "dog" / "0.png"), resize="native")
    np.testing.assert_array_equal(stored[0].logits, asked[0].logits)
    assert main(["embed", str(file), str(folder), str(tmp_path / "index.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == len(SHAPES)
    assert main(["export", str(file), str(tmp_path / "model.pt2")]) == 0
    assert "squashed" in capsys.readouterr().err


def test_where_images_need_one_size_they_are_squashed_with_a_note(checkpoint: Checkpoint) -> None:
    squashed, notes = of_one_size(checkpoint)
    assert squashed.preprocess.resize == "squash"
    assert "native aspect ratio" in notes[0]


def test_models_and_runs_that_cannot_pack_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    model = build(ConvNeXtConfig(depths=(1, 1), widths=(16, 24), image_size=(32, 32), num_classes=len(small.LABELS)))
    with pytest.raises(CheckpointError, match="takes whole images"):
        save(replace(checkpoint, model=model, config=model.config), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="mixup"):
        recipe("augreg-i1k", Overrides(model="ViT-Ti/16", resize="native", preset="medium1"))
    with pytest.raises(ConfigError, match="for detectors"):
        recipe("imagenet-scratch", Overrides(model="ViT-Ti/16", resize="fit"))
