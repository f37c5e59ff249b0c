"""Words of a command line become images: all of them, once, in an order that does not depend on the disk."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from vitlab.errors import DataError
from vitlab.inference.images import find_images


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    """A folder with images, folders, hidden files and other things; empty files are enough to be found."""
    for name in ("b.jpg", "a.PNG", "10.jpg", "9.jpg", "notes.txt", ".hidden.jpg", "sub/c.webp", "sub/deep/d.gif", ".git/e.jpg"):
        file = tmp_path / "pile" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "pile"


def below(pile: Path, *words: str | Path) -> list[str]:
    return [Path(path).relative_to(pile).as_posix() for path in find_images(map(str, words))]


def test_a_folder_gives_its_images_and_those_of_its_folders_sorted(pile: Path) -> None:
    assert below(pile, pile) == ["10.jpg", "9.jpg", "a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.gif"]


def test_words_keep_their_order_and_a_named_file_is_taken_whatever_it_is_called(pile: Path) -> None:
    assert below(pile, pile / "notes.txt", pile / "sub", pile / "a.PNG") == ["notes.txt", "sub/c.webp", "sub/deep/d.gif", "a.PNG"]


def test_patterns_find_images_and_no_other_files(pile: Path) -> None:
    assert below(pile, pile / "*.jpg") == ["10.jpg", "9.jpg", "b.jpg"]
    assert below(pile, pile / "*") == ["10.jpg", "9.jpg", "a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.gif"]
    assert below(pile, pile / "**") == below(pile, pile / "*")
    assert below(pile, pile / "[ab].*") == ["a.PNG", "b.jpg"]


def test_a_file_whose_name_looks_like_a_pattern_is_itself(pile: Path) -> None:
    (pile / "[b].jpg").touch()
    assert below(pile, pile / "[b].jpg") == ["[b].jpg"]


def test_links_are_followed_and_no_folder_is_entered_twice(pile: Path) -> None:
    (pile / "sub" / "loop").symlink_to(pile)
    (pile / "link.jpg").symlink_to(pile / "b.jpg")
    (pile / "gone.jpg").symlink_to(pile / "nothing")
    assert below(pile, pile).count("sub/c.webp") == 1
    assert {"link.jpg", "gone.jpg"} <= set(below(pile, pile))  # a dangling link is reported when it is read


def test_a_zip_gives_its_images_and_a_file_inside_it_itself(pile: Path) -> None:
    archive = pile.parent / "photos.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("in/b.jpg", "in/a.jpg", "labels.csv", "__MACOSX/b.jpg"):
            file.writestr(name, b"")
    assert list(find_images([str(archive)])) == [f"{archive}/in/b.jpg", f"{archive}/in/a.jpg"]
    assert list(find_images([f"{archive}/in/a.jpg"])) == [f"{archive}/in/a.jpg"]


@pytest.mark.parametrize("word", ["nowhere", "nowhere.jpg", "*.jgp", "", "nowhere.zip/a.jpg"])
def test_a_word_that_names_nothing_is_refused(word: str, pile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pile)
    with pytest.raises(DataError, match=r"no file or folder|nothing matches"):
        list(find_images([word]))


def test_finding_is_lazy(pile: Path) -> None:
    found = find_images([str(pile), "nowhere"])
    assert next(found).endswith("10.jpg")
