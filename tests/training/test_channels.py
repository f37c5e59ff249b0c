"""Images of five channels and 16 bits, end to end: trained, saved, predicted, exported and drawn as they were trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from vitlab.checkpoints import Checkpoint, load, save
from vitlab.config import Preprocess, variant
from vitlab.config.data import DecodeLimits
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.data.decode import decode
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, DataError
from vitlab.models import build
from vitlab.recipes import recipe
from vitlab.recipes.reasons import reasons
from vitlab.training.plan import survey

MODEL = variant("ViT-Mini/8", num_classes=2, image_size=32)
FACTS = DataFacts(dataset="cells", images=500, classes=2, channels=5, mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(0.2,) * 5)


def start() -> StartFacts:
    """A checkpoint of RGB images."""
    return StartFacts(path="rgb.safetensors", model=MODEL, preprocess=Preprocess(image_size=(32, 32), resize_to=32))


def cells(root: Path, *, channels: int = 5) -> Path:
    """Two classes of dark 16-bit arrays."""
    rng = np.random.default_rng(0)
    for number in range(24):
        folder = root / ("flat", "round")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        cell_HWC = rng.integers(0, 300, (24, 24, channels)).astype(np.uint16)
        cell_HWC[4:12, 4:12, number % 2] += 900
        np.save(folder / f"{number}.npy", cell_HWC)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A model of RGB images that was fine-tuned on five channels for two steps."""
    folder = tmp_path_factory.mktemp("channels")
    fed = Preprocess(image_size=(32, 32), resize_to=32)
    save(Checkpoint(model=build(MODEL, seed=0), config=MODEL, preprocess=fed, labels=("a", "b")), folder / "rgb.safetensors")
    return vitlab.finetune(
        cells(folder / "cells"),
        folder / "rgb.safetensors",
        pixel_scale="percentile",
        steps=2,
        batch_size=8,
        workers=0,
        out=folder / "run",
        device="cpu",
        quiet=True,
    )


def test_what_was_trained_is_what_predicts(run: vitlab.Run, tmp_path: Path) -> None:
    checkpoint = load(run.path / "model.safetensors")
    assert (checkpoint.config.channels, checkpoint.preprocess.channels) == (5, 5)
    assert checkpoint.preprocess.pixel_scale == "percentile"
    assert len(set(checkpoint.preprocess.mean)) > 1  # measured, each channel its own
    assert any("the mean kernel times 3/5, so that the response" in note for note in checkpoint.history)
    file = run.path.parent / "cells" / "flat" / "0.npy"
    levels_HWC = decode(file.read_bytes(), name="0.npy", channels=5, scale="percentile")
    by_file, by_pixels = vitlab.predict(checkpoint, [file, levels_HWC], device="cpu")
    np.testing.assert_array_equal(by_file.logits, by_pixels.logits)


def test_evaluate_inspect_and_export_take_five_channels(run: vitlab.Run, tmp_path: Path) -> None:
    data = run.path.parent / "cells"
    assert 0 <= vitlab.evaluate(run, data, split="all", device="cpu").top1 <= 1
    figures = vitlab.inspect(run, data / "flat" / "0.npy", figure="rollout", device="cpu")
    assert any("first three" in note for note in figures.notes)
    assert vitlab.inspect(run, figure="filters", device="cpu").figures[0].file
    exported = tmp_path / "model.pt2"
    vitlab.export(run, exported)
    assert exported.exists()


def test_a_folder_with_another_number_of_channels_among_it_is_named(tmp_path: Path) -> None:
    root = cells(tmp_path / "cells")
    np.save(root / "flat" / "00.npy", np.zeros((24, 24, 7), np.uint16))
    with pytest.raises(DataError, match=r"different numbers of channels: .*00\.npy has 7|.* has 5.*00\.npy has 7"):
        survey(str(root))
    with pytest.raises(DataError, match=r"is an image of 5 channels; the model takes 9"):
        survey(str(cells(tmp_path / "other")), channels=9)


def test_a_recipe_leaves_out_what_needs_colours_and_says_so() -> None:
    overrides = Overrides(preset="medium1")
    made = recipe("finetune-folder", overrides, data=FACTS, start=start())
    assert (made.model.channels, made.preprocess.mean, made.preprocess.std) == (5, FACTS.mean, FACTS.std)
    assert made.data.augment.randaugment is None
    assert made.data.augment.mixup > 0
    from vitlab.config.overrides import RunFacts

    text = "\n".join(reasons(made, RunFacts(data=FACTS, start=start()), overrides))
    assert "each gets the mean kernel times 3/5" in text
    assert "RandAugment and colour jitter are left out" in text


def test_grey_and_colour_images_keep_the_checkpoints_channels_unless_asked() -> None:
    grey = DataFacts(dataset="scans", images=500, classes=2, channels=1)
    assert recipe("finetune-folder", data=grey, start=start()).model.channels == 3
    asked = recipe("finetune-folder", Overrides(channels=1, pixel_scale="file"), data=grey, start=start())
    assert (asked.model.channels, asked.preprocess.channels, asked.preprocess.pixel_scale) == (1, 1, "file")
    assert recipe("small-data", Overrides(channels=4), data=grey).model.channels == 4
    with pytest.raises(ConfigError, match="3 channels"):
        recipe("masked", Overrides(channels=5), data=grey)
    with pytest.raises(ConfigError, match="5 channels and not 3"):
        recipe("finetune-folder", Overrides(channels=3), data=FACTS, start=start())


def test_the_channels_of_training_and_evaluation_are_the_same_pixels(run: vitlab.Run) -> None:
    view = EvaluationTransform(preprocess=run.config.preprocess, limits=DecodeLimits())
    content = (run.path.parent / "cells" / "round" / "1.npy").read_bytes()
    pixels_HWC = view.apply(content, name="1.npy")
    assert pixels_HWC.shape == (32, 32, 5)
    assert pixels_HWC.max() == 255  # by percentile; of the full range this image has less than 2 %
    assert torch.from_numpy(pixels_HWC).dtype == torch.uint8
