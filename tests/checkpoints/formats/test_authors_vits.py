"""The checkpoints of the training code of DINO, MAE, MoCo v3, BEiT and EVA: read, written back under the same keys, read again."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoints.formats.samples import OPTIONS, mini, random_state, same, written
from vitlab.checkpoints import convert, load, save
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.checkpoints.formats import LAYOUTS, TORCH_KEYS
from vitlab.checkpoints.formats.authors import AUTHORS
from vitlab.config import Numerics, Preprocess, ViTConfig
from vitlab.errors import CheckpointError
from vitlab.models import build

State = dict[str, Tensor]
WILD = Path(__file__).parents[2] / "golden" / "wild"
EXACT = Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic")
ENCODER = replace(mini(), num_classes=0, numerics=EXACT)
TUNED = replace(mini(), pool="mean", norm_after_pool=True, numerics=EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """A file as its authors' code saves it: timm's tensors under `key`, called by `name`, with `extra` ones beside them."""

    to: str
    timms: Callable[[], State]
    key: str
    name: Callable[[str], str] = lambda key: key
    extra: tuple[str, ...] = ()
    notes: str = ""
    heads: int | None = None

    def saved(self) -> tuple[State, State]:
        """The tensors of the encoder, and all of the file."""
        kept = {self.name(key): tensor for key, tensor in self.timms().items()}
        return kept, kept | {key: torch.zeros(1, 1, 8) for key in self.extra}


def of(config: ViTConfig) -> Callable[[], State]:
    return lambda: written("timm", config, random_state(config)).tensors


def recorded(name: str) -> Callable[[], State]:
    return lambda: load_file(WILD / name / "model.safetensors")


def eva02(key: str) -> str:
    """The names in EVA-02's own code: SwiGLU and Attention with subln."""
    renamed = {"fc1_g": "w1", "fc1_x": "w2", "fc2": "w3", "fc1": "w12", "norm": "ffn_ln"}
    key = re.sub(r"\.mlp\.(\w+)\.", lambda found: f".mlp.{renamed[found[1]]}.", key)
    return re.sub(r"\.([qv])_proj\.bias", r".\1_bias", key.replace(".attn.norm.", ".attn.inner_attn_ln."))


ROPE = ("rope.freqs_cos", "rope.freqs_sin", "blocks.0.attn.rope.freqs_cos")
FILES: dict[str, Theirs] = {
    "DINO": Theirs(
        to="dino",
        timms=of(ENCODER),
        key="teacher",
        name=lambda key: f"backbone.{key}",
        extra=("head.mlp.0.weight", "head.last_layer.weight_g"),
        notes="left out head",
        heads=4,
    ),
    "MAE": Theirs(
        to="mae",
        timms=of(ENCODER),
        key="model",
        extra=("mask_token", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder_pos_embed"),
        notes="left out: decoder_blocks, decoder_embed, decoder_pos_embed, mask_token",
        heads=4,
    ),
    "MAE, fine-tuned": Theirs(to="mae", timms=of(TUNED), key="model", heads=4),
    "MoCo v3": Theirs(
        to="moco-v3",
        timms=of(ENCODER),
        key="state_dict",
        name=lambda key: f"module.base_encoder.{key}",
        extra=("module.base_encoder.head.0.weight", "module.momentum_encoder.cls_token", "module.predictor.0.weight"),
        notes="left out momentum_encoder, predictor, its projector",
        heads=4,
    ),
    "BEiT": Theirs(
        to="beit",
        timms=recorded("timm_beit"),
        key="model",
        extra=("blocks.0.attn.relative_position_index", "mask_token", "lm_head.weight"),
        notes="relative_position_index",
        heads=2,
    ),
    "BEiT v2": Theirs(to="beit", timms=recorded("timm_beitv2"), key="model", heads=2),
    "EVA": Theirs(to="eva", timms=recorded("timm_eva"), key="model", heads=2),
    "EVA-02, norms inside": Theirs(to="eva", timms=recorded("timm_eva02_clip"), key="module", name=eva02, heads=2),
    "EVA-02": Theirs(to="eva", timms=recorded("timm_eva02"), key="model", name=eva02, extra=ROPE, notes="rope.freqs_cos", heads=2),
}


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize("file", FILES)
def test_an_authors_file_is_written_back_with_the_same_keys_and_bits_less_what_its_notes_name(
    file: str, ending: str, tmp_path: Path
) -> None:
    theirs = FILES[file]
    kept, whole = theirs.saved()
    start, end = tmp_path / "start.pth", tmp_path / f"end{ending}"
    torch.save({theirs.key: whole, "epoch": 3, "args": argparse.Namespace(lr=0.1)}, start)
    notes = convert(start, end, to=theirs.to, heads=theirs.heads)
    assert theirs.notes in " | ".join(notes)
    content: dict[str, Any] = load_file(end) if ending == ".safetensors" else torch.load(end, weights_only=True)
    back = content if ending == ".safetensors" else content.pop(TORCH_KEYS[theirs.to])
    assert same(back, kept)
    assert ending == ".safetensors" or content == {}
    first, second = load(start, heads=theirs.heads), load(end, heads=theirs.heads)
    assert second.config == first.config
    assert same(dict(second.model.state_dict()), dict(first.model.state_dict()))
    assert any("torch file" in note for note in notes)


def test_a_safetensors_file_for_authors_code_keeps_what_the_tensors_do_not_say(tmp_path: Path) -> None:
    preprocess = Preprocess(image_size=(32, 32), resize_to=36)
    tuned = Checkpoint(model=build(TUNED), config=TUNED, preprocess=preprocess, labels=tuple("abcde"))
    save(tuned, tmp_path / "native.safetensors")
    notes = convert(tmp_path / "native.safetensors", tmp_path / "mae.safetensors", to="mae")
    assert any("4 heads" in note and "num_heads=4" in note for note in notes)
    back = load(tmp_path / "mae.safetensors")
    assert (back.config, back.labels, back.preprocess) == (TUNED, tuned.labels, preprocess)
    lost = convert(tmp_path / "native.safetensors", tmp_path / "mae.pt", to="mae")
    assert any("labels and preprocessing" in note for note in lost)


@pytest.mark.parametrize(
    ("to", "option", "why"),
    [
        ("dino", "plain", "a head"),
        ("dino", "mean", "pool='mean'"),
        ("moco-v3", "plain", "a head"),
        ("moco-v3", "layer scale", "layer scale"),
        ("mae", "mean", "a model without a class token"),
        ("mae", "mean, class token", "mean pooling without a norm after it"),
        ("mae", "map, class token", "pool='map'"),
        ("mae", "sine positions", "'sincos-2d'"),
        ("mae", "four registers", "register tokens"),
        ("beit", "plain", "keys with a bias.*without a table of relative positions"),
        ("eva", "plain", "keys with a bias"),
        ("eva", "resnet", "holds ViTs"),
        ("beit", "swin", "holds ViTs"),
    ],
)
def test_a_model_that_the_authors_code_does_not_have_is_refused_with_the_reason(to: str, option: str, why: str) -> None:
    config = OPTIONS[option]
    with pytest.raises(CheckpointError, match=why):
        written(to, config, random_state(config))


@pytest.mark.parametrize("name", ["timm_dinov3", "timm_pe_core", "timm_beit"])
def test_rotary_positions_and_biases_that_are_not_evas_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="eva cannot express"):
        convert(WILD / name, tmp_path / "x.pth", to="eva")
    assert list(tmp_path.iterdir()) == []


def test_every_layout_of_authors_is_written_as_a_torch_file_too_and_no_other_is(tmp_path: Path) -> None:
    assert set(AUTHORS) < set(TORCH_KEYS) < set(LAYOUTS)
    for name in ("dinov2", "clip"):
        config, to = OPTIONS[name], {"clip": "openai-clip"}.get(name, name)
        save(Checkpoint(model=build(config), config=config, preprocess=Preprocess(image_size=(32, 32))), tmp_path / "x.safetensors")
        convert(tmp_path / "x.safetensors", tmp_path / "x.pth", to=to, overwrite=True)
        assert load(tmp_path / "x.pth").format == to
        with pytest.raises(CheckpointError, match="has another ending"):
            convert(tmp_path / "x.safetensors", tmp_path / "y.pth", to="torchvision")


def test_a_dinov2_with_heads_of_another_width_is_written_and_its_header_says_them(tmp_path: Path) -> None:
    config = replace(OPTIONS["dinov2"], heads=4)  # type: ignore[arg-type]
    save(Checkpoint(model=build(config), config=config, preprocess=Preprocess(image_size=(32, 32))), tmp_path / "x.safetensors")
    notes = convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors", to="dinov2")
    assert any("num_heads=4" in note for note in notes)
    assert load(tmp_path / "y.safetensors").config == config


def test_a_torch_file_that_would_not_say_which_model_it_is_is_not_written(tmp_path: Path) -> None:
    """No published model has a norm of attention's output and none inside its SwiGLU; only a safetensors header says it."""
    eva = load(WILD / "timm_eva02").config
    assert isinstance(eva, ViTConfig)
    config = replace(eva, projections=replace(eva.projections, out_norm=True))
    preprocess = Preprocess(image_size=config.image_size)
    save(Checkpoint(model=build(config), config=config, preprocess=preprocess), tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="would not say enough to be read again") as refused:
        convert(tmp_path / "x.safetensors", tmp_path / "y.pth", to="eva")
    assert "y.safetensors" in (refused.value.hint or "")
    assert not (tmp_path / "y.pth").exists()
    convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors", to="eva")
    assert load(tmp_path / "y.safetensors").config == config
