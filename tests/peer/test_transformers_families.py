"""transformers' own classes, small and random: vitlab reads the folders that they save and answers alike, at other sizes too, and
they read the folders that vitlab writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.peer.compare import randomised
from vitlab.checkpoints import convert, load
from vitlab.models.vit import ViT

TOLERANCE = 2e-5
# What transformers makes by itself and its models do not use; CLIP's classifier reads its tokens before their last norm.
UNUSED = (
    *("num_batches_tracked", "mask_token", "embeddings.register_tokens"),
    *("vision_model.post_layernorm.weight", "vision_model.post_layernorm.bias"),
)
Answer = Callable[[Any, Tensor], Tensor]

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 48,
    "patch_size": 16,
}
DINOV2 = {key: value for key, value in VIT.items() if key != "intermediate_size"} | {"mlp_ratio": 2}
LABELS = {"num_labels": 5}
BEIT = VIT | LABELS
TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 16}


def logits(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW).logits  # type: ignore[no-any-return]


def pooled(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW).pooler_output  # type: ignore[no-any-return]


def interpolated(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW, interpolate_pos_encoding=True).logits  # type: ignore[no-any-return]


def pooled_interpolated(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW, interpolate_pos_encoding=True).pooler_output  # type: ignore[no-any-return]


def embedded(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW).image_embeds  # type: ignore[no-any-return]


def image_features(model: Any, images_BCHW: Tensor) -> Tensor:
    found = model.get_image_features(images_BCHW)
    return found if isinstance(found, Tensor) else found.pooler_output


def class_token(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW).last_hidden_state[:, 0]  # type: ignore[no-any-return]


def mean_token(model: Any, images_BCHW: Tensor) -> Tensor:
    return model(images_BCHW).last_hidden_state.mean(1)  # type: ignore[no-any-return]


def cut_patches(model: Any, images_BCHW: Tensor) -> Tensor:
    """SigLIP 2 takes patches, channels last."""
    b, c, h, w = images_BCHW.shape
    x_BGPJQC = images_BCHW.permute(0, 2, 3, 1).reshape(b, h // 16, 16, w // 16, 16, c)
    patches = x_BGPJQC.permute(0, 1, 3, 2, 4, 5).reshape(b, (h // 16) * (w // 16), -1)
    shapes = torch.tensor([[h // 16, w // 16]] * b)
    mask = torch.ones(b, patches.shape[1], dtype=torch.long)
    return model(patches, pixel_attention_mask=mask, spatial_shapes=shapes).pooler_output  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A class with the arguments of its config; `answer` is what vitlab's model must answer, `other` that at another size.

    `back` is the class that vitlab writes it as, if it is another one, which `back_answer` reads; "" if it cannot be written.
    """

    model: str
    config: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Answer = logits
    other: Answer | None = None
    back: str | None = None
    back_answer: Answer | None = None
    size: tuple[int, int] = (48, 48)
    sizes: tuple[tuple[int, int], ...] = ((64, 64), (32, 80))
    how: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "ViT": Case(model="ViTForImageClassification", config="ViTConfig", arguments=VIT | LABELS, other=interpolated),
    "DeiT": Case(model="DeiTForImageClassification", config="DeiTConfig", arguments=VIT | LABELS, other=interpolated),
    "MSN": Case(
        model="ViTMSNForImageClassification",
        config="ViTMSNConfig",
        arguments=VIT | LABELS,
        other=interpolated,
        back="ViTForImageClassification",
    ),
    "ViT-MAE": Case(
        model="ViTMAEModel",
        config="ViTMAEConfig",
        arguments=VIT | {"mask_ratio": 0.0},
        answer=class_token,
        back="ViTModel",
        how={"add_pooling_layer": False},
    ),
    "I-JEPA": Case(model="IJepaForImageClassification", config="IJepaConfig", arguments=VIT | LABELS, other=interpolated),
    "DINOv2": Case(model="Dinov2ForImageClassification", config="Dinov2Config", arguments=DINOV2 | LABELS, other=logits),
    "DINOv2 without a head": Case(model="Dinov2Model", config="Dinov2Config", arguments=DINOV2, answer=pooled, other=pooled),
    "DINOv2 with SwiGLU": Case(
        model="Dinov2ForImageClassification", config="Dinov2Config", arguments=DINOV2 | LABELS | {"use_swiglu_ffn": True}
    ),
    "DINOv2 with registers": Case(
        model="Dinov2WithRegistersForImageClassification",
        config="Dinov2WithRegistersConfig",
        arguments=DINOV2 | LABELS | {"num_register_tokens": 3},
        other=logits,
    ),
    "DINOv3": Case(
        model="DINOv3ViTModel", config="DINOv3ViTConfig", arguments=VIT | {"num_register_tokens": 4}, answer=pooled, other=pooled
    ),
    "DINOv3 with a gated MLP and no registers": Case(
        model="DINOv3ViTModel",
        config="DINOv3ViTConfig",
        arguments=VIT | {"use_gated_mlp": True, "hidden_act": "silu", "key_bias": True},
        answer=pooled,
        other=pooled,
    ),
    "CLIP vision": Case(
        model="CLIPVisionModel", config="CLIPVisionConfig", arguments=VIT, answer=pooled, other=pooled_interpolated
    ),
    "CLIP vision with projection": Case(
        model="CLIPVisionModelWithProjection",
        config="CLIPVisionConfig",
        arguments=VIT | {"projection_dim": 24, "hidden_act": "gelu"},
        answer=embedded,
    ),
    "CLIP": Case(
        model="CLIPModel",
        config="CLIPConfig",
        arguments={"vision_config": VIT, "text_config": TEXT, "projection_dim": 24},
        answer=image_features,
        back="CLIPVisionModelWithProjection",
        back_answer=embedded,
    ),
    "CLIP classifier": Case(
        model="CLIPForImageClassification", config="CLIPConfig", arguments={"vision_config": VIT, "text_config": TEXT} | LABELS
    ),
    "SigLIP vision": Case(
        model="SiglipVisionModel", config="SiglipVisionConfig", arguments=VIT, answer=pooled, other=pooled_interpolated
    ),
    "SigLIP vision that crops": Case(
        model="SiglipVisionModel", config="SiglipVisionConfig", arguments=VIT | {"image_size": 50}, answer=pooled, size=(50, 50)
    ),
    "SigLIP": Case(
        model="SiglipModel",
        config="SiglipConfig",
        arguments={"vision_config": VIT, "text_config": TEXT},
        answer=image_features,
        back="SiglipVisionModel",
        back_answer=pooled,
    ),
    "SigLIP classifier": Case(
        model="SiglipForImageClassification",
        config="SiglipConfig",
        arguments={"vision_config": VIT, "text_config": TEXT} | LABELS,
        other=interpolated,
    ),
    "SigLIP 2 vision": Case(
        model="Siglip2VisionModel",
        config="Siglip2VisionConfig",
        arguments={key: value for key, value in VIT.items() if key != "image_size"} | {"num_patches": 9},
        answer=cut_patches,
        other=cut_patches,
        back="SiglipVisionModel",
        back_answer=pooled,
    ),
    "BEiT with a bias in each layer": Case(
        model="BeitForImageClassification", config="BeitConfig", arguments=BEIT | {"use_relative_position_bias": True}
    ),
    "BEiT with a shared bias and positions": Case(
        model="BeitForImageClassification",
        config="BeitConfig",
        arguments=BEIT | {"use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True},
    ),
    "BEiT with a class token": Case(
        model="BeitForImageClassification",
        config="BeitConfig",
        arguments=BEIT | {"use_relative_position_bias": True, "use_mean_pooling": False, "layer_scale_init_value": 0.0},
    ),
    "BEiT without a head": Case(
        model="BeitModel", config="BeitConfig", arguments=VIT | {"use_relative_position_bias": True}, answer=pooled
    ),
    "Data2Vec": Case(
        model="Data2VecVisionForImageClassification",
        config="Data2VecVisionConfig",
        arguments=BEIT | {"use_shared_relative_position_bias": True},
        back="BeitForImageClassification",
    ),
    "Swin": Case(
        model="SwinForImageClassification",
        config="SwinConfig",
        arguments={"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4} | LABELS,
        size=(64, 64),
        other=logits,
        sizes=((64, 64), (72, 96)),  # a map that a window covers along one axis alone is not shifted at all in transformers
    ),
    "Swin without a head": Case(
        model="SwinModel",
        config="SwinConfig",
        arguments={"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        size=(64, 64),
        answer=pooled,
    ),
    "ConvNeXt": Case(
        model="ConvNextForImageClassification",
        config="ConvNextConfig",
        arguments={"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1], "image_size": 64} | LABELS,
        size=(64, 64),
        other=logits,
    ),
    "BiT": Case(
        model="BitForImageClassification",
        config="BitConfig",
        arguments={"hidden_sizes": [128, 128, 128, 256], "depths": [1, 2, 1, 1], "embedding_size": 32} | LABELS,
        size=(64, 64),
        other=logits,
    ),
    "EfficientNet": Case(
        model="EfficientNetForImageClassification",
        config="EfficientNetConfig",
        arguments={"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640, "image_size": 67}
        | {"depthwise_padding": [3]}
        | LABELS,
        size=(67, 67),
        other=logits,
    ),
}


def saved(transformers: ModuleType, case: Case, folder: Path) -> Any:
    torch.manual_seed(0)
    model = randomised(getattr(transformers, case.model)(getattr(transformers, case.config)(**case.arguments)))
    model.save_pretrained(folder)
    return model


def images(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CASES)
def test_a_folder_that_transformers_saves_is_the_same_model_here_and_when_it_comes_back(
    transformers: ModuleType, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    theirs = saved(transformers, case, tmp_path / "theirs")
    checkpoint = load(tmp_path / "theirs", image_size=case.size)
    images_BCHW = images(case.size)
    with torch.inference_mode():
        wanted = case.answer(theirs, images_BCHW)
        assert float((checkpoint.model(images_BCHW) - wanted).abs().max()) < TOLERANCE
    convert(tmp_path / "theirs", tmp_path / "ours", to="huggingface")
    (architecture,) = json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"]
    assert architecture == (case.back or case.model)
    back, info = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True, **case.how)
    left = [key for key in info["missing_keys"] if not key.endswith(UNUSED)]
    assert not any((left, info["unexpected_keys"], info["mismatched_keys"])), info
    with torch.inference_mode():
        again = (case.back_answer or case.answer)(back.eval(), images_BCHW)
    assert float((again - wanted).abs().max()) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name, case in CASES.items() if case.other is not None for size in case.sizes]
)
def test_at_another_image_size_the_answers_agree(
    transformers: ModuleType, name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    case = CASES[name]
    theirs = saved(transformers, case, tmp_path)
    images_BCHW = images(size)
    assert case.other is not None
    with torch.inference_mode():
        wanted = case.other(theirs, images_BCHW)
        assert float((load(tmp_path, image_size=size).model(images_BCHW) - wanted).abs().max()) < TOLERANCE


def test_a_yolos_detects_the_same_at_any_size_and_comes_back(transformers: ModuleType, tmp_path: Path) -> None:
    arguments = VIT | LABELS | {"image_size": [48, 64], "num_detection_tokens": 7}
    theirs = saved(
        transformers, Case(model="YolosForObjectDetection", config="YolosConfig", arguments=arguments), tmp_path / "theirs"
    )
    ours = load(tmp_path / "theirs").model
    assert isinstance(ours, ViT)
    for size in ((48, 64), (64, 64), (32, 80)):
        with torch.inference_mode():
            wanted, found = theirs(images(size)), ours.detect(images(size))
        assert float((found.logits_BQC - wanted.logits).abs().max()) < TOLERANCE
        assert float((found.boxes_BQ4 - wanted.pred_boxes).abs().max()) < TOLERANCE
    convert(tmp_path / "theirs", tmp_path / "ours", to="huggingface")
    back, info = transformers.YolosForObjectDetection.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.inference_mode():
        assert torch.equal(back.eval()(images((48, 64))).logits, theirs(images((48, 64))).logits)
