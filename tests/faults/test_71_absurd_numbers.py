"""A header or an option has 10^9 layers, 10^6 pixels, 10^9 classes or 10^5 levels: vitlab refuses it with one line, at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.small import config_text, resealed, small_checkpoint
from tests.inference import small
from vitlab.checkpoints import describe, load, save
from vitlab.cli.main import main
from vitlab.config import Preprocess, variant
from vitlab.config.serialize import parsed
from vitlab.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save(small_checkpoint(), path)
    return path


ABSURD: dict[str, tuple[dict[str, Any], str]] = {
    "depth": ({"depth": 10**9}, "depth=1000000000 must be at most 4,096"),
    "width": ({"width": 4 * 10**9}, "width=4000000000 must be at most"),
    "classes": ({"num_classes": 10**9}, "num_classes=1000000000 must be at most"),
    "image size": ({"image_size": [10**6, 10**6]}, "image_size"),
    "patches": ({"image_size": [8192, 8192]}, "makes 1,048,576 patches; the limit is 262,144"),
    "a number of 5,000 digits": ({"image_size": "digits"}, "cannot be understood"),
    "a number that is infinite": ({"layer_scale": 1e999}, "Infinity is not JSON"),
}


@pytest.mark.parametrize("case", ABSURD)
def test_a_header_with_an_absurd_number_is_one_line(
    model: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, word = ABSURD[case]
    text = config_text(model, **changes).replace('"digits"', "9" * 5000)
    resealed(model, tmp_path / "model.safetensors", {"config": text})
    for act in (load, describe):
        with pytest.raises(CheckpointError) as refused:
            act(tmp_path / "model.safetensors")
        assert word in str(refused.value)
        assert len(str(refused.value)) < 500
    assert main(["describe", str(tmp_path / "model.safetensors")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("levels", [100, 900, 100_000])
def test_a_header_nested_deep_is_one_line(model: Path, tmp_path: Path, levels: int, capsys: pytest.CaptureFixture[str]) -> None:
    nested = '{"a":' + "[" * levels + "]" * levels + "}"
    resealed(model, tmp_path / "model.safetensors", {"recipe": nested})
    assert main(["describe", str(tmp_path / "model.safetensors"), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nested more than 64 levels deep" in captured.err
    resealed(model, tmp_path / "model.safetensors", {"recipe": '{"steps":NaN}'})
    assert main(["describe", str(tmp_path / "model.safetensors")]) == 1
    assert "NaN is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[" * 5000 + "]" * 5000, '{"a": NaN}'])
def test_a_deep_config_of_a_run_is_one_line(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(text)
    assert main(["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "out")]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.err.startswith("error:")
    assert len(captured.err.splitlines()) <= 2
    assert "not JSON" in captured.err
    assert not (tmp_path / "out").exists()


def test_63_levels_are_read() -> None:
    text = "[" * 63 + "]" * 63
    assert parsed(text) == parsed(text.encode())
    with pytest.raises(ValueError, match="64 levels"):
        parsed("[" * 65 + "]" * 65)


@pytest.mark.parametrize(
    "words",
    [
        ("--image-size", "1000000"),
        ("--image-size", "30000"),
        ("--image-size", "32x1000000"),
        ("--num-classes", "1000000000"),
        ("--num-classes", "9" * 4000),
        ("--channels", "1000000000"),
    ],
)
def test_an_absurd_option_of_a_name_is_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "ViT-B/16", *words]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error:")
    assert len(captured.err.splitlines()) <= 2


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_an_absurd_image_size_of_a_file_is_one_line(
    model: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (photo,) = small.photos(tmp_path / "pets" / "cat", 1)
    for size in ("1000000", "32000"):
        assert main([verb, str(model), str(tmp_path / "pets"), "--image-size", size]) in (1, 2)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error:")
        assert len(captured.err.splitlines()) <= 2
    assert photo.exists()


@pytest.mark.parametrize("absurd", [{"image_size": (30_000, 30_000)}, {"image_size": (10**6, 1)}, {"resize_to": 10**9}])
def test_preprocessing_to_an_absurd_size_is_refused(absurd: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"the limit is|must be at most"):
        Preprocess(**absurd)


@pytest.mark.parametrize(
    ("name", "field", "absurd"),
    [
        ("Swin-T", "depths", (2, 2, 10**9, 2)),
        ("Swin-T", "depths", (1,) * 10**5),
        ("Swin-T", "window", (32_000, 32_000)),
        ("ConvNeXt-T", "depths", (3, 3, 10**9, 3)),
        ("BiT-R50x1", "blocks", (3, 4, 10**9, 3)),
        ("EfficientNet-B0", "stages", ((10**9, 3, 1, 1, 1),) * 3),
        ("EfficientNet-B0", "stages", ((1, 3, 1, 1, 1),) * 10**5),
        ("LSTM-S/16", "depth", 10**9),
    ],
)
def test_every_family_refuses_absurd_layers(name: str, field: str, absurd: Any) -> None:
    config: Any = variant(name)
    others = {"heads": (1,) * 10**5} if (name, field) == ("Swin-T", "depths") and len(absurd) > 4 else {}
    with pytest.raises(ConfigError, match="must be at most"):
        replace(config, **{field: absurd}, **others)
