"""Data and model must mean the same by a class; what differs is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitlab.config.class_names import aliases, class_names
from vitlab.errors import DataError
from vitlab.evaluation.label_mapping import match_by_file, match_by_name

MODEL = ("ant", "bee", "cat", "dog")


def test_the_same_classes_in_the_same_order_are_their_own() -> None:
    targets = match_by_name(MODEL, MODEL, classes=4)
    assert targets.correct == ((0,), (1,), (2,), (3,))
    assert targets.one_to_one
    assert not targets.is_subset
    assert targets.notes == ()


def test_another_order_is_refused_with_what_differs_and_taken_when_asked() -> None:
    data = ("bee", "ant", "cat", "dog")
    with pytest.raises(DataError, match="bee instead of") as caught:
        match_by_name(data, MODEL, classes=4)
    assert caught.value.hint is not None
    assert "`subset=True`" in caught.value.hint
    targets = match_by_name(data, MODEL, classes=4, subset=True)
    assert targets.correct == ((1,), (0,), (2,), (3,))
    assert any("order" in note for note in targets.notes)


def test_some_of_the_classes_are_refused_with_what_is_missing_and_accepted_with_subset() -> None:
    with pytest.raises(DataError, match="does not have ant, cat"):
        match_by_name(("bee", "dog"), MODEL, classes=4)
    targets = match_by_name(("bee", "dog"), MODEL, classes=4, subset=True)
    assert targets.correct == ((1,), (3,))
    assert targets.is_subset


def test_a_class_the_model_does_not_know_is_refused_even_with_subset() -> None:
    for subset in (False, True):
        with pytest.raises(DataError, match="does not know emu"):
            match_by_name(("ant", "emu"), MODEL, classes=4, subset=subset)


def test_a_checkpoint_without_labels_takes_as_many_classes_and_says_so() -> None:
    targets = match_by_name(MODEL, None, classes=4)
    assert targets.correct == ((0,), (1,), (2,), (3,))
    assert any("no labels" in note for note in targets.notes)
    with pytest.raises(DataError, match="4 classes and the model 5"):
        match_by_name(MODEL, None, classes=5)


def test_folders_named_by_wordnet_numbers_synonyms_or_nothing_known_are_matched_with_imagenet() -> None:
    names = class_names("imagenet1k")
    some = match_by_name(["n02096177", "Egyptian_cat", "tench"], names, classes=1000, subset=True)
    assert some.correct == ((192,), (285,), (0,))
    assert some.labels == ("n02096177", "Egyptian_cat", "tench")
    known = aliases(names) or {}
    numbers = [next(word for word, places in known.items() if places == [i] and word[1:].isdigit()) for i in range(1000)]
    assert match_by_name(numbers, names, classes=1000).correct == tuple((place,) for place in range(1000))
    counted = match_by_name([f"{place:03}" for place in range(1000)], names, classes=1000)
    assert counted.correct == tuple((place,) for place in range(1000))
    assert "in the data's order" in counted.notes[0]
    with pytest.raises(DataError, match="does not know"):
        match_by_name(["tench", "no such thing"], names, classes=1000, subset=True)


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(DataError, match="no labels"):
        match_by_name((), MODEL, classes=4)


def test_two_classes_of_one_name_are_fine_in_order_and_not_by_name() -> None:
    twins = ("crane", "crane", "dog")
    assert match_by_name(twins, twins, classes=3).correct == ((0,), (1,), (2,))
    with pytest.raises(DataError, match="crane"):
        match_by_name(("dog", "crane"), twins, classes=3, subset=True)


def mapping(tmp_path: Path, table: object) -> Path:
    file = tmp_path / "map.json"
    file.write_text(table if isinstance(table, str) else json.dumps(table))
    return file


def test_a_mapping_takes_names_numbers_lists_and_nothing(tmp_path: Path) -> None:
    file = mapping(tmp_path, {"pet": ["cat", 3], "insect": [0, "bee"], "chair": [], "extra": "dog"})
    targets = match_by_file(file, ("chair", "insect", "pet"), MODEL, classes=4)
    assert targets.correct == ((), (0, 1), (2, 3))
    assert not targets.one_to_one
    assert any("chair" in note for note in targets.notes)
    assert any("extra" in note for note in targets.notes)
    assert match_by_file(mapping(tmp_path, {"pet": 2}), ("pet",), None, classes=4).correct == ((2,),)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"pet": ["cat"]}, "does not map insect"),
        ({"pet": ["kat"], "insect": []}, "maps pet to kat, which is not a class"),
        ({"pet": [4], "insect": []}, "class 4, and the model has 0 to 3"),
        ({"pet": [-1], "insect": []}, "class -1"),
        ({"pet": [True], "insect": []}, "not to classes by name or number"),
        ({"pet": None, "insect": []}, "not to classes by name or number"),
        ({"pet": [], "insect": []}, "every class of the data to nothing"),
        ([], "not a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(tmp_path: Path, table: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        match_by_file(mapping(tmp_path, table), ("insect", "pet"), MODEL, classes=4)


def test_a_mapping_by_name_needs_unique_class_names(tmp_path: Path) -> None:
    file = mapping(tmp_path, {"bird": ["crane"]})
    with pytest.raises(DataError, match="two classes"):
        match_by_file(file, ("bird",), ("crane", "crane"), classes=2)
    with pytest.raises(DataError, match="checkpoint has no labels"):
        match_by_file(file, ("bird",), None, classes=2)
    with pytest.raises(DataError, match="cannot be read"):
        match_by_file(tmp_path / "nowhere.json", ("bird",), None, classes=2)
