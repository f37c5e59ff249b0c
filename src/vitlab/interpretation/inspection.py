"""`vitlab.inspect` behind its options: several figures of one model, drawn, shown and saved."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from vitlab.checkpoints import Checkpoint
from vitlab.errors import ConfigError, DataError, UsageError, did_you_mean
from vitlab.inference.images import ImagesLike
from vitlab.inference.writing import all_images
from vitlab.interpretation.config import OF_THE_WEIGHTS, FigureName, InspectConfig
from vitlab.interpretation.figures import Drawn, Subject, draw
from vitlab.interpretation.images import Seen, see, spread
from vitlab.io.atomic import cannot_write, write_bytes
from vitlab.io.display import Block, Displayed
from vitlab.io.progress import ProgressCallback

NAMES: tuple[FigureName, ...] = get_args(FigureName)
_FEW, _MANY = 12, 128  # images of a sheet; images of the mean distance, as many as in the paper's (app. D.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Displayed):
    """Figures of one model: `save` writes them, `[0].array` are the numbers of the first. `notes` name those it cannot have."""

    figures: tuple[Drawn, ...]
    form: str = "png"
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.figures)

    def __getitem__(self, place: int) -> Drawn:
        return self.figures[place]

    def __iter__(self) -> Iterator[Drawn]:
        return iter(self.figures)

    @property
    def array(self) -> Any:
        """The numbers that the first figure shows."""
        return self.figures[0].array

    def save(self, path: str | Path, *, arrays: bool = False) -> Figures:
        """Write one figure to a file, or any number into a folder, as NAME.png; with `arrays` also their numbers as .npy."""
        place = Path(path)
        one = len(self.figures) == 1 and place.suffix != "" and not place.is_dir()
        folder = place.parent if one else place
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise cannot_write(folder, fault, error=DataError) from fault
        if one and place.suffix.lower() != f".{self.form}":
            raise ConfigError(f"{place.name} is not the name of a .{self.form} file", hint="inspect(..., format='svg') draws SVG")
        files = []
        for figure in self.figures:
            file = place if one else folder / f"{figure.name}.{self.form}"
            write_bytes(file, figure.file)
            files.append(file)
            if arrays:
                array = io.BytesIO()
                np.save(array, figure.array, allow_pickle=False)
                write_bytes(file.with_suffix(".npy"), array.getvalue())
        return Figures(figures=self.figures, form=self.form, notes=self.notes, files=tuple(files))

    def tables(self) -> Iterable[Block]:
        """A row for each figure."""
        columns = ("figure", "shape", "least", "most", "file")
        return [[{column: row.get(column) for column in columns} for row in self.to_json()]]

    def to_json(self) -> list[dict[str, Any]]:
        """What was drawn, its numbers in short, and where it was written."""
        rows = []
        for place, figure in enumerate(self.figures):
            row: dict[str, Any] = {"figure": figure.name}
            if self.files:
                row["file"] = str(self.files[place])
                array = self.files[place].with_suffix(".npy")
                row |= {"array": str(array)} if array.exists() else {}
            row |= {"shape": list(figure.array.shape), "least": float(figure.array.min()), "most": float(figure.array.max())}
            rows.append(row | {"mean": float(figure.array.mean()), **figure.facts})
        return rows

    def _repr_html_(self) -> str:
        from base64 import b64encode

        kind = "svg+xml" if self.form == "svg" else self.form
        return "".join(f'<img src="data:image/{kind};base64,{b64encode(figure.file).decode()}">' for figure in self.figures)


def figure_names(figure: str | Sequence[str]) -> tuple[FigureName, ...]:
    """The figures that `rollout`, `rollout,class`, `all` or a list of names means."""
    words = figure.split(",") if isinstance(figure, str) else list(figure)
    if words == ["all"]:
        return NAMES
    known: dict[str, FigureName] = {name: name for name in NAMES}
    for word in words:
        if word not in known:
            near = did_you_mean(word, NAMES)
            raise UsageError(f"`figure`: {word!r} is not one of {', '.join(NAMES)}, all", hint=near)
    return tuple(dict.fromkeys(known[word] for word in words))


def refuse_present(folder: Path, names: Iterable[str], form: str) -> None:
    """Refuse, before anything is computed, to replace figures."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`out`: {folder} is a file", hint="give a folder")
    for name in names:
        if (file := folder / f"{name}.{form}").exists():
            raise DataError(f"{file} exists already", hint="--overwrite replaces it")


def inspect_checkpoint(
    checkpoint: Checkpoint,
    images: ImagesLike,
    names: tuple[FigureName, ...],
    config: InspectConfig,
    *,
    count: int | None,
    progress: ProgressCallback,
) -> Figures:
    """Draw the figures. Of `all`, those that the model cannot have are left out, with a note."""
    given = [] if isinstance(images, tuple | list) and not images else list(all_images(images)[0])
    wanted = [name for name in names if given or name in OF_THE_WEIGHTS]
    few, many = _seen(checkpoint, given, wanted, count)
    figures, notes = list[Drawn](), list[str]()
    for place, name in enumerate(wanted):
        progress(f"drawing {name}", place, len(wanted))
        try:
            figures.append(draw(name, Subject(checkpoint=checkpoint, config=config, seen=many if name == "distance" else few)))
        except ConfigError as refusal:
            if names != NAMES:
                raise
            notes.append(f"no {name}: {refusal.message}")
    return Figures(figures=tuple(figures), form=config.form, notes=tuple(notes))


def _seen(checkpoint: Checkpoint, images: list[Any], wanted: Sequence[str], count: int | None) -> tuple[Seen | None, Seen | None]:
    """The images of sheets, and those of the mean distance: more, because it is a mean."""
    if not images:
        return None, None
    sheets = any(name not in OF_THE_WEIGHTS and name != "distance" for name in wanted)
    few = see(checkpoint, spread(images, count or _FEW)) if sheets else None
    many = see(checkpoint, spread(images, count or _MANY)) if "distance" in wanted else None
    return few, many
