"""What verbs that use a checkpoint take to open it: the file, what the file does not say, and how images are fed to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vitlab.cli.parse import Count, Existing, HeightWidth, Profile, one, positional, unset
from vitlab.cli.talk import UsageError, note
from vitlab.config.data import Interpolation, Preprocess, Resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vitlab.checkpoints import Checkpoint


def among(options: Any) -> PrimitiveConstructorSpec[Any]:
    """One of the words of a `Literal` type, for a field that may be left out."""
    words = get_args(options)

    def read(word: str) -> str:
        if word not in words:
            raise ValueError(f"{word!r} is not one of {', '.join(words)}")
        return word

    return one("{" + ",".join(words) + "}", read)


# None first, as in vitlab.cli.parse.
ResizeWord = Annotated[Union[None, Resize], among(Resize)]  # noqa: UP007, RUF036
InterpolationWord = Annotated[Union[None, Interpolation], among(Interpolation)]  # noqa: UP007, RUF036
File = Annotated[Union[None, str], one("FILE", str)]  # noqa: UP007, RUF036
Device = Literal["cpu", "cuda", "mps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """How a checkpoint is opened and fed."""

    image_size: Annotated[HeightWidth, unset("the checkpoint's own")] = None
    """pixels the model sees, 384 or 160x224; its positions are fitted to another size"""

    resize: Annotated[ResizeWord, unset("the checkpoint's own")] = None
    """how an image comes to that size: short side scaled and the centre cut out, squashed, or padded"""

    resize_to: Annotated[Count, unset("the checkpoint's own")] = None
    """pixels of the short side before the cut"""

    interpolation: Annotated[InterpolationWord, unset("the checkpoint's own")] = None
    """how pixels are scaled"""

    labels: Annotated[File, unset("the checkpoint's own")] = None
    """file with the names of the classes, one a line"""

    heads: Annotated[Count, unset("what the file says, else width / 64")] = None
    """attention heads, for a file that does not say"""

    grid: Annotated[HeightWidth, unset("what the file says, else square")] = None
    """patches down x across, for a file that does not say"""

    profile: Annotated[Profile, unset("what the file implies")] = None
    """whose numerics the weights are run with"""

    device: Device = "cpu"
    """where the model runs"""

    def load(self, path: str) -> Checkpoint:
        """Load a checkpoint on its device, and say what was guessed or changed."""
        from vitlab.checkpoints import load

        checkpoint = load(
            path,
            image_size=self.image_size,
            heads=self.heads,
            grid=self.grid,
            profile=self.profile,
            labels=None if self.labels is None else _lines(self.labels),
        )
        for line in checkpoint.notes:
            note(f"note: {line}")
        checkpoint.model.to(_available(self.device))
        return replace(checkpoint, preprocess=self._fed(checkpoint.preprocess))

    def _fed(self, preprocess: Preprocess) -> Preprocess:
        asked: dict[str, object] = {"resize": self.resize, "resize_to": self.resize_to, "interpolation": self.interpolation}
        given = {name: value for name, value in asked.items() if value is not None}
        if self.resize_to is not None and (self.resize or preprocess.resize) != "short-side":
            raise UsageError(f"--resize-to is for --resize short-side, not {self.resize or preprocess.resize}")
        if self.resize == "short-side" and self.resize_to is None and preprocess.resize != "short-side":
            given["resize_to"] = max(preprocess.resize_to, *preprocess.image_size)
        return replace(preprocess, **given)  # type: ignore[arg-type]  # each checked by Preprocess itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Feeding):
    """A checkpoint to be used, and how."""

    checkpoint: Annotated[tyro.conf.Positional[Existing], positional("CHECKPOINT")]
    """a checkpoint of any format, which is found out from the file itself, or hub:owner/name"""

    def open(self) -> Checkpoint:
        """Load it."""
        return self.load(self.checkpoint)


def _lines(path: str) -> Sequence[str]:
    from pathlib import Path

    from vitlab.data.readers.manifest import read_bytes, read_classes

    return read_classes(read_bytes(Path(path)), path)


def _available(device: Device) -> str:
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[device]:
        raise UsageError(f"--device {device}: this machine has none", hint="leave it out to use the processor")
    return device
