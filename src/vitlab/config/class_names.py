"""The class names of public label sets: ImageNet-1k and its supersets, CIFAR-10, CIFAR-100, Oxford-IIIT Pets. No torch here.

`wordnet.txt.gz` has a line for each of ImageNet's 21,844 synsets, sorted by number: the sets that it is in (the bits of `_BITS`, as
two hexadecimal digits), its WordNet number, its synonyms. Models order their classes by that number. Synonyms are WordNet's
(Princeton University; the licence is in `wordnet.LICENSE`); the lists of synsets are those of timm 1.0 (Apache-2.0).
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vitlab.errors import ConfigError, did_you_mean

_BITS = {"imagenet1k": 1, "imagenet21k": 2, "imagenet22k": 4, "imagenet12k": 8, "imagenet21k-miil": 16, "imagenet21k-miil-w21": 32}
_TITLES = {
    "imagenet1k": "ImageNet-1k",
    "imagenet21k": "ImageNet-21k",
    "imagenet22k": "ImageNet-22k",
    "imagenet12k": "ImageNet-12k",
    "imagenet21k-miil": "ImageNet-21k-P (fall 2011)",
    "imagenet21k-miil-w21": "ImageNet-21k-P (winter 2021)",
}
_SIZES = {1000: "imagenet1k", 21843: "imagenet21k", 21841: "imagenet22k", 11821: "imagenet12k"} | {
    11221: "imagenet21k-miil",
    10450: "imagenet21k-miil-w21",
}
_CHOSEN = {  # where the rule of _name gives one name to two classes of ImageNet-1k
    "n02012849": "crane (bird)",
    "n03126707": "crane (machine)",
    "n03710721": "tank suit",
}
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest
    fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit
    raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower
    sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
    worm
"""
_PETS = """
    Abyssinian american_bulldog american_pit_bull_terrier basset_hound beagle Bengal Birman Bombay boxer British_Shorthair
    chihuahua Egyptian_Mau english_cocker_spaniel english_setter german_shorthaired great_pyrenees havanese japanese_chin
    keeshond leonberger Maine_Coon miniature_pinscher newfoundland Persian pomeranian pug Ragdoll Russian_Blue saint_bernard
    samoyed scottish_terrier shiba_inu Siamese Sphynx staffordshire_bull_terrier wheaten_terrier yorkshire_terrier
"""
_LISTS = {"cifar10": _CIFAR10, "cifar100": _CIFAR100, "pets": _PETS}

LABEL_SETS = (*_BITS, *_LISTS)
"""The names that `class_names` knows."""


class _Synset(NamedTuple):
    sets: int
    number: str
    synonyms: tuple[str, ...]


def class_names(label_set: str) -> tuple[str, ...]:
    """The names of a label set in the order of the logits; no two are equal."""
    if label_set in _LISTS:
        return tuple(word.replace("_", " ") for word in _LISTS[label_set].split())
    if label_set not in _BITS:
        raise ConfigError(
            f"no file and no label set called {label_set!r}",
            hint=did_you_mean(label_set, LABEL_SETS) or f"they are {', '.join(LABEL_SETS)}; or give a file with one label per line",
        )
    return _imagenet_names(label_set)


def usual_names(num_classes: int) -> tuple[str, tuple[str, ...]] | None:
    """Title and names of ImageNet's label set of that size, which a public model without labels has; None for other sizes."""
    label_set = _SIZES.get(num_classes)
    return None if label_set is None else (_TITLES[label_set], class_names(label_set))


def aliases(names: Sequence[str]) -> dict[str, list[int]] | None:
    """What else the classes of a label set are called -> their places: synonyms, WordNet numbers. None for other names.

    Words are spelled as `plain` spells them.
    """
    known = tuple(names)
    found: dict[str, list[int]] = defaultdict(list)
    if (usual := usual_names(len(known))) is not None and usual[1] == known:
        for place, synset in enumerate(_members(_SIZES[len(known)])):
            for word in {plain(known[place]), synset.number, *map(plain, synset.synonyms)}:
                found[word].append(place)
        return dict(found)
    if any(known == class_names(label_set) for label_set in _LISTS):
        return {plain(name): [place] for place, name in enumerate(known)}
    return None


def plain(name: str) -> str:
    """A name in lower case and with spaces: `Great_White_Shark` is `great white shark`."""
    return " ".join(name.casefold().replace("_", " ").split())


@cache
def _imagenet_names(label_set: str) -> tuple[str, ...]:
    members = _members(label_set)
    first = [_CHOSEN.get(synset.number) or _name(synset.synonyms) for synset in members]
    counts = Counter(first)
    # Of several synsets with one name all are written out; where that is not enough, the number tells them apart.
    full = [name if counts[name] == 1 else ", ".join(synset.synonyms) for name, synset in zip(first, members, strict=True)]
    counts = Counter(full)
    return tuple(name if counts[name] == 1 else f"{name} ({synset.number})" for name, synset in zip(full, members, strict=True))


def _name(synonyms: Sequence[str]) -> str:
    """The first synonym, or one that begins with it and says more: `cairn terrier` for `cairn, cairn terrier`."""
    return next((word for word in synonyms[1:] if word.startswith(synonyms[0] + " ")), synonyms[0])


def _members(label_set: str) -> list[_Synset]:
    return [synset for synset in _synsets() if synset.sets & _BITS[label_set]]


@cache
def _synsets() -> tuple[_Synset, ...]:
    text = gzip.decompress((Path(__file__).parent / "wordnet.txt.gz").read_bytes()).decode()
    rows = (line.split(" ", 2) for line in text.splitlines())
    return tuple(_Synset(int(sets, 16), number, tuple(words.split(", "))) for sets, number, words in rows)
