"""The class names that vitlab ships: one for each logit, in the order that public models have."""

from __future__ import annotations

import pytest

from vitlab.config.class_names import LABEL_SETS, aliases, class_names, usual_names
from vitlab.data.readers.array_files import CIFAR10_CLASSES
from vitlab.errors import ConfigError

SIZES = {"imagenet1k": 1000, "imagenet21k": 21843, "imagenet22k": 21841, "imagenet12k": 11821, "imagenet21k-miil": 11221}
SIZES |= {"imagenet21k-miil-w21": 10450, "cifar10": 10, "cifar100": 100, "pets": 37}


def test_every_set_has_a_different_name_for_each_class() -> None:
    assert set(SIZES) == set(LABEL_SETS)
    for label_set in LABEL_SETS:
        names = class_names(label_set)
        assert len(names) == len(set(names)) == SIZES[label_set]
        assert all(name == name.strip() and name for name in names)


def test_the_order_is_that_of_the_published_heads() -> None:
    names = class_names("imagenet1k")
    known = {0: "tench", 1: "goldfish", 192: "cairn terrier", 207: "golden retriever", 281: "tabby cat", 284: "Siamese cat"}
    known |= {134: "crane (bird)", 517: "crane (machine)", 639: "tank suit", 999: "toilet tissue"}
    assert {place: names[place] for place in known} == known
    assert class_names("cifar10") == CIFAR10_CLASSES
    assert class_names("pets") == tuple(sorted(class_names("pets"), key=str.casefold))
    assert class_names("cifar100") == tuple(sorted(class_names("cifar100")))


def test_a_smaller_set_of_imagenet_keeps_the_order_of_the_larger_one() -> None:
    numbers = {name: word for word, name in _numbers("imagenet21k").items()}
    for label_set in ("imagenet22k", "imagenet12k", "imagenet21k-miil"):
        within = list(_numbers(label_set))
        assert within == sorted(within)
        assert set(within) <= set(numbers.values())


def _numbers(label_set: str) -> dict[str, int]:
    known = aliases(class_names(label_set)) or {}
    return {word: places[0] for word, places in sorted(known.items()) if word[0] == "n" and word[1:].isdigit()}


def test_only_sizes_that_mean_one_set_are_recognised() -> None:
    usual = usual_names(1000)
    assert usual == ("ImageNet-1k", class_names("imagenet1k"))
    assert usual_names(10) is usual_names(100) is usual_names(37) is None


def test_an_unknown_set_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no label set called 'imagenet-1k'") as refused:
        class_names("imagenet-1k")
    assert refused.value.hint == "did you mean imagenet1k?"
