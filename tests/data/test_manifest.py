"""Manifests: the dataset has what CSV and JSON Lines say, and one error names every bad row."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.containers import as_folder, as_zip
from vitlab.config.data import Split
from vitlab.data.dataset import ImageDataset, LabelTable
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError

FILES = {f"images/{number}.jpg": f"image {number}".encode() for number in range(6)}


def opened(path: Path, *, label_column: str | None = None, split: Split = "all") -> ImageDataset:
    dataset = open_dataset(path, split=split, label_column=label_column)
    assert isinstance(dataset, ImageDataset)
    return dataset


def written(folder: Path, text: str, name: str = "labels.csv") -> Path:
    as_folder(folder, FILES)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def labels_of(dataset: ImageDataset) -> list[object]:
    return [dataset.label(index) for index in range(len(dataset))]


def lines(cells: list[object], *, column: str) -> str:
    return "\n".join(json.dumps({"path": f"images/{number}.jpg", column: cell}) for number, cell in enumerate(cells))


def rows(*labels: str, column: str = "label") -> str:
    return f"path,{column}\n" + "".join(f"images/{number}.jpg,{label}\n" for number, label in enumerate(labels))


@pytest.mark.parametrize(
    "header", ["path,label", "file,class", "filename,label", "file_name,label", "Image,Label", '"path","label"']
)
def test_images_are_in_the_order_of_the_list_with_its_labels(tmp_path: Path, header: str) -> None:
    text = f"{header}\nimages/3.jpg,dog\nimages/1.jpg,cat\nimages/0.jpg,dog\n"
    dataset = opened(written(tmp_path, text))
    assert dataset.labels == ("cat", "dog")
    assert labels_of(dataset) == [1, 0, 1]
    assert [dataset.read(index).content for index in range(3)] == [b"image 3", b"image 1", b"image 0"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", 'path;label\nimages/0.jpg;"a, b"\nimages/1.jpg;c\n'),
        ("list.tsv", "path\tlabel\nimages/0.jpg\ta, b\nimages/1.jpg\tc\n"),
        ("list.csv", '\ufeffpath,label\r\nimages/0.jpg,"a, b"\r\nimages/1.jpg,c\r\n'),
        ("list.csv", 'note,path,label\n"two\nlines",images/0.jpg,"a, b"\n,images/1.jpg,c\n'),
        (
            "list.jsonl",
            '{"path": "images/0.jpg", "label": "a, b", "size": [1, 2]}\n\n{"file": 1, "path": "images/1.jpg", "label": "c"}\n',
        ),
    ],
)
def test_every_dialect_says_the_same(tmp_path: Path, name: str, text: str) -> None:
    dataset = opened(written(tmp_path, text, name))
    assert (dataset.labels, labels_of(dataset)) == (("a, b", "c"), [0, 1])


@pytest.mark.parametrize("place", ["", "images/"])
def test_paths_are_relative_to_the_list_or_to_images_beside_it_or_absolute(tmp_path: Path, place: str) -> None:
    text = f"path,label\n{place}0.jpg,a\n{tmp_path}/images/1.jpg,b\n"
    dataset = opened(written(tmp_path, text))
    assert [dataset.read(index).content for index in range(2)] == [b"image 0", b"image 1"]


def test_a_folder_with_a_list_in_it_and_a_zip_of_it_are_that_list(tmp_path: Path) -> None:
    written(tmp_path / "set", rows("a", "b", "a"))
    everything = FILES | {"labels.csv": (tmp_path / "set" / "labels.csv").read_bytes()}
    datasets = [
        opened(tmp_path / "set"),
        opened(tmp_path / "set" / "labels.csv"),
        opened(as_zip(tmp_path / "it.zip", everything, method=zipfile.ZIP_DEFLATED)),
        opened(as_zip(tmp_path / "wrapped.zip", {f"set/{name}": content for name, content in everything.items()})),
    ]
    assert len({dataset.fingerprint() for dataset in datasets}) == 1
    assert all(len(dataset) == 3 for dataset in datasets)


def test_splits_are_those_of_the_column(tmp_path: Path) -> None:
    text = "path,label,split\n" + "".join(
        f"images/{number}.jpg,{'ab'[number % 2]},{part}\n"
        for number, part in enumerate(["train", "Train", "valid", "dev", "test", "testing"])
    )
    path = written(tmp_path, text)
    assert [labels_of(opened(path, split=split)) for split in ("train", "val", "test")] == [[0, 1]] * 3


def test_numbers_are_indices_and_names_are_sorted(tmp_path: Path) -> None:
    dataset = opened(written(tmp_path / "numbers", rows("10", "2", "0")))
    assert (len(dataset.labels), labels_of(dataset)) == (11, [10, 2, 0])
    assert "8 of 11 classes have no image" in dataset.notes[0]
    dataset = opened(written(tmp_path / "spreadsheet", rows("1.0", "0.0", "1.0")))
    assert (dataset.labels, labels_of(dataset)) == (("0", "1"), [1, 0, 1])
    dataset = opened(written(tmp_path / "names", rows("v10", "v2", "v2")))
    assert (dataset.labels, labels_of(dataset)) == (("v10", "v2"), [0, 1, 1])


@pytest.mark.parametrize(
    ("classes", "cells", "expected"),
    [
        (["cat", "ant", "bee"], ["ant", "bee", "cat"], [1, 2, 0]),
        (["cat", "ant", "bee"], ["1", "2", "0"], [1, 2, 0]),
        (["7", "3", "5"], ["3", "5", "7"], [1, 2, 0]),  # names that are numbers are names
        (["crane", "crane", "bee"], ["1", "0", "2"], [1, 0, 2]),  # two of one name, distinguished by number
    ],
)
def test_a_list_of_classes_beside_it_gives_their_order(
    tmp_path: Path, classes: list[str], cells: list[str], expected: list[int]
) -> None:
    path = written(tmp_path, rows(*cells))
    (tmp_path / "classes.txt").write_text("\n".join(classes))
    dataset = opened(path)
    assert (dataset.labels, labels_of(dataset)) == (tuple(classes), expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", rows("cat|dog", "", "dog", column="labels")),
        ("list.csv", rows("cat;dog", "", "dog", column="tags")),
        ("list.jsonl", lines([["dog", "cat", "dog"], [], ["dog"]], column="labels")),
        ("list.jsonl", lines([["dog", "cat"], [], "dog"], column="label")),
    ],
)
def test_several_labels_make_a_multi_label_dataset(tmp_path: Path, name: str, text: str) -> None:
    dataset = opened(written(tmp_path, text, name))
    assert (dataset.labels, dataset.multi_label) == (("cat", "dog"), True)
    assert labels_of(dataset) == [(0, 1), (), (1,)]
    assert labels_of(opened(tmp_path / name).take(np.array([2, 0]))) == [(1,), (0, 1)]


def test_another_column_of_labels_can_be_asked_for(tmp_path: Path) -> None:
    text = "file,label,real_labels\n0.jpg,0,0 2\n1.jpg,1,\n2.jpg,2,1\n"
    path = written(tmp_path, text)
    assert labels_of(opened(path)) == [0, 1, 2]
    assert labels_of(opened(path, label_column="real_labels")) == [(0, 2), (), (1,)]
    with pytest.raises(DataError, match=r"has no column 'other', only file, label, real_labels"):
        opened(path, label_column="other")


def test_a_list_without_labels_has_images_without_labels(tmp_path: Path) -> None:
    assert labels_of(opened(written(tmp_path, "path\nimages/0.jpg\nimages/1.jpg\n"))) == [None, None]


def test_rows_of_the_test_split_may_lack_a_label_and_others_may_not(tmp_path: Path) -> None:
    text = "path,label,split\nimages/0.jpg,a,train\nimages/1.jpg,b,train\nimages/2.jpg,,test\n"
    assert labels_of(opened(written(tmp_path / "a", text), split="test")) == [None]
    with pytest.raises(DataError, match=r"1 fault: line 4 \(images/2.jpg\): no label"):
        opened(written(tmp_path / "b", text.replace("test", "val")))


def test_every_bad_row_is_in_one_error(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "path,label,split",
            "images/0.jpg,a,train",
            "images/gone.jpg,a,train",
            "images/1.jpg,,train",
            "images/2.jpg,b,tarin",
            "images/0.jpg,b,train",
            "images/3.jpg,b",
            ",b,train",
            "images,b,train",
            "http://example.org/x.jpg,b,train",
            "images/4.jpg,b,",
        ]
    )
    with pytest.raises(DataError) as caught:
        opened(written(tmp_path, text))
    message = caught.value.message
    for fault in (
        "line 3 (images/gone.jpg): no such file",
        "line 4 (images/1.jpg): no label",
        "line 5 (images/2.jpg): split 'tarin' is not train, val or test",
        "line 6 (images/0.jpg): listed already in line 2",
        "line 7: does not have 3 columns",
        "line 8: no path in column path",
        "line 9 (images): a folder instead of a file",
        "line 10 (http://example.org/x.jpg): an address",
        "line 11 (images/4.jpg): no split, although other rows have one",
    ):
        assert fault in message, fault
    assert "\n" not in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("[" * 100_000, "is not JSON"),
        ('{"path": 3}', "no path in column path"),
        ('{"path": "images/1.jpg", "label": 1.5}', "a label is a name, a whole number"),
        ('{"path": "images/1.jpg", "label": true}', "a label is a name, a whole number"),
        ('{"path": "images/1.jpg", "label": {"a": 1}}', "a label is a name, a whole number"),
        ('{"path": "images/1.jpg\\u0000", "label": "a"}', "no such file"),
        ('{"path": "images/\\ud800.jpg", "label": "a"}', "no such file"),
        ('{"path": "images/1.jpg", "label": "a\\nb"}', "may not contain line ends"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, line: str, reason: str) -> None:
    good = '{"path": "images/0.jpg", "label": "a"}'
    with pytest.raises(DataError, match=reason) as caught:
        opened(written(tmp_path, f"{good}\n{line}\n", "list.jsonl"))
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lists no image"),
        ("path,label\n", "lists no image"),
        ("name,label\nx,y\n", "no column of paths, only name, label"),
        ("path,path,label\nx,y,z\n", "two columns called"),
        ('path,label\n"images/0.jpg,a\n', "is not CSV"),
        ("path,label\n" + "x" * 200_000 + ",a\n", "is not CSV|no such file"),
        (rows("a", "a"), "is the only class: a classifier needs two"),
        (rows("5000000", "1"), "too large for the index"),
        (rows("-1", "1"), "label -1 is outside"),
    ],
)
def test_a_list_that_is_no_list_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        opened(written(tmp_path, text))


def test_a_list_in_latin_letters_of_old_is_refused_with_the_byte(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.write_bytes("path,label\nimages/0.jpg,café\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 27\)"):
        opened(path)


def test_a_path_in_a_zip_cannot_leave_it(tmp_path: Path) -> None:
    files = FILES | {"labels.csv": b"path,label\n/etc/passwd,a\n../it.zip,b\n0.jpg,b\n"}
    with pytest.raises(DataError, match=r"2 faults: .*no such file in the archive"):
        opened(as_zip(tmp_path / "it.zip", files))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=20), st.data())
def test_a_table_of_labels_gives_back_what_was_put_in_and_taken(several: list[list[int]], data: st.DataObject) -> None:
    table = LabelTable.several(several)
    expected = [tuple(sorted(set(row))) for row in several]
    assert [table[index] for index in range(len(table))] == expected
    if several:
        chosen = data.draw(st.lists(st.integers(0, len(several) - 1), max_size=20))
        taken = table.take(np.array(chosen, np.int64))
        assert [taken[index] for index in range(len(taken))] == [expected[index] for index in chosen]
