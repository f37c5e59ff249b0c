"""The catalog of models: names found by pattern in either spelling, with what they cost and the public weights they have."""

from __future__ import annotations

import sys

import pytest

from tests import processes
from vitlab.config.model import NAMES, variant
from vitlab.config.timm_names import architectures
from vitlab.models.catalog import model_rows
from vitlab.models.cost import cost


def test_every_name_of_either_spelling_is_listed_once() -> None:
    rows = model_rows()
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    assert set(NAMES) <= set(names)
    assert set(architectures()) <= {*names, *(row.timm_name for row in rows)}


@pytest.mark.parametrize("pattern", ["ViT-B/16", "vit-b/16", "vit_base_patch16_224", "VIT_BASE_PATCH16_22?"])
def test_a_model_is_found_by_either_spelling_in_any_case(pattern: str) -> None:
    (row,) = [row for row in model_rows(pattern) if row.name == "ViT-B/16"]
    assert row.timm_name == "vit_base_patch16_224"
    assert (row.parameters, row.image_size) == (86_567_656, (224, 224))
    assert row.macs == cost(variant("ViT-B/16")).macs
    assert row.weights[0].address == "hub:timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"


@pytest.mark.parametrize(
    ("pattern", "some"),
    [
        ("swin*", {"Swin-T", "swin_base_patch4_window12_384"}),
        ("*dinov2", {"vit_small_patch14_dinov2", "vit_large_patch14_reg4_dinov2"}),
        ("siglip", {"vit_base_patch16_siglip_224"}),
        ("ViT-[gG]/14", {"ViT-g/14", "ViT-G/14"}),
        ("R50+*", {"R50+ViT-B/16", "R50+ViT-L/32"}),
    ],
)
def test_a_pattern_gives_what_fits_it(pattern: str, some: set[str]) -> None:
    found = {row.name for row in model_rows(pattern)}
    assert some <= found
    assert "ConvNeXt-T" not in found


def test_a_pattern_that_fits_nothing_gives_nothing() -> None:
    assert model_rows("vit_enormous*") == []


def test_the_catalog_needs_no_torch() -> None:
    code = """
import sys
from vitlab.models.catalog import model_rows
assert len(model_rows()) > 150
assert "torch" not in sys.modules
"""
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
