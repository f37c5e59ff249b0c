"""Where pictures come from: what a source is, and the one spelling by which every kind of it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.config.generated import GeneratedConfig
from vitlab.config.source import Split as Split
from vitlab.config.source import SplitRule

if TYPE_CHECKING:
    from vitlab.data.listed import ListedSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One picture as its source gives it.

    `name` says where it came from, for messages; `content` is an encoded file, or decoded pixels (H, W, C);
    `label` is one class, several where the source is multi-label, or None where unknown.
    """

    name: str
    content: bytes | NDArray[np.uint8]
    label: int | tuple[int, ...] | None


class Source(Protocol):
    """Labelled pictures by number. Picklable, and cheap to open again in another process."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index in it. Empty where no picture has a label."""
        ...

    @property
    def multi_label(self) -> bool:
        """Whether a label is a tuple of classes, rather than one."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def label(self, index: int) -> int | tuple[int, ...] | None:
        """The label of a picture, without reading the picture."""
        ...

    def fingerprint(self) -> str:
        """Changes when the pictures, their order or their labels change."""
        ...
