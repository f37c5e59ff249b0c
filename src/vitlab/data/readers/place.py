"""A folder or a zip archive of images and of files about them, such as masks, lists and boxes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.dataset import Contents, Faults
from vitlab.data.readers.folder import DiskContents, LeftOut, image_rows, is_hidden, walk_images
from vitlab.errors import DataError, did_you_mean
from vitlab.io.display import printable
from vitlab.io.files import as_text, read_bytes
from vitlab.io.zip import ZipContents, read_zip_index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """The files of a folder or of a zip archive: `rows` of the images among them."""

    contents: Contents
    names: Sequence[str]
    rows: Sequence[int]
    path: Path

    @classmethod
    def open(cls, path: Path, faults: Faults, left_out: LeftOut) -> Place:
        """A folder, searched for images, or a zip."""
        if path.is_dir():
            names, _ = walk_images(path, faults, left_out)
            return cls(contents=DiskContents(path, names), names=list(names), rows=range(len(names)), path=path)
        if not path.exists():
            raise DataError(f"{printable(str(path))} does not exist")
        contents = ZipContents(read_zip_index(path))
        rows = image_rows(contents.index.names, left_out)
        return cls(contents=contents, names=list(contents.index.names), rows=rows, path=path)

    def text(self, name: str) -> str | None:
        """The text of the file of that name, or None; in a zip it may lie inside a single folder around everything."""
        where = f"{self.path}/{name}"
        if self.path.is_dir():
            return as_text(read_bytes(self.path / name), where) if (self.path / name).is_file() else None
        found = [row for row, member in enumerate(self.names) if member == name or member.partition("/")[2] == name]
        return as_text(self._member(found[0]), where) if len(found) == 1 else None

    def files(self, ending: str) -> list[str]:
        """The sorted paths of all files with this ending, upper or lower case, that are not hidden."""
        if self.path.is_dir():
            found = (
                (Path(folder) / name).relative_to(self.path).as_posix()
                for folder, _, names in os.walk(self.path)
                for name in names
                if name.lower().endswith(ending)
            )
        else:
            found = (name for name in self.names if name.lower().endswith(ending))
        return sorted(name for name in found if not is_hidden(name))

    def read(self, name: str, *, most: int) -> bytes:
        """The bytes of the file that `files` names; DataError if it has more than `most`."""
        if self.path.is_dir():
            return read_bytes(self.path / name, most=most)
        content = self._member(self.names.index(name))
        if len(content) > most:
            raise DataError(f"{printable(f'{self.path}/{name}')} has {len(content):,} bytes; the limit is {most:,}")
        return content

    def _member(self, row: int) -> bytes:
        content = self.contents.read(row)
        assert isinstance(content, bytes), "a member of a zip is bytes"
        return content


def read_settings(path: Path, names: Sequence[str]) -> dict[str, object]:
    """The settings of masks.json or boxes.json: a JSON object with some of these names; `classes` is None if it is not there."""
    try:
        found = json.loads(as_text(read_bytes(path), str(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {str(error)[:100]}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} must be a JSON object with {', '.join(names)}")
    for key in found:
        if key not in names:
            raise DataError(f"{path} has no setting {printable(str(key))}", hint=did_you_mean(str(key), list(names)))
    return {"classes": None, **found}
