"""The classes of ImageNet and its subsets are timm's, in the same order."""

from __future__ import annotations

from typing import Any

import pytest

from vitlab.config.class_names import aliases, class_names

pytestmark = pytest.mark.peer


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("imagenet1k", "imagenet-1k"),
        ("imagenet21k", "imagenet-21k-goog"),
        ("imagenet22k", "imagenet-22k"),
        ("imagenet12k", "imagenet-12k"),
        ("imagenet21k-miil", "imagenet-21k-miil"),
    ],
)
def test_timm_has_the_same_synsets_in_the_same_order(timm: Any, ours: str, theirs: str) -> None:
    known = aliases(class_names(ours)) or {}
    place_of = {word: places[0] for word, places in known.items() if word[0] == "n" and word[1:].isdigit()}
    synsets = timm.data.ImageNetInfo(theirs).label_names()
    assert [place_of[synset] for synset in synsets] == list(range(len(synsets))) == list(range(len(place_of)))
