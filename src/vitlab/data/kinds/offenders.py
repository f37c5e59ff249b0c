"""Everything that is wrong with a pile of pictures, said at once and at the start."""

from __future__ import annotations

from vitlab.data.files.names import shown
from vitlab.errors import DataError

_SHOWN = 10


class Offenders:
    """Collects faults while a source is read, so that a user repairs them in one go.

    `where` names the data at fault; a fault is a place in it and a reason.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._faults: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, place: str, reason: str) -> None:
        """Remember that something at `place` cannot be used, and why."""
        self._faults.append((place, reason))

    def refuse(self, *, hint: str | None = None) -> None:
        """Raise a DataError that counts all faults and lists the first ten; does nothing where there are none."""
        if not self._faults:
            return
        listed = "; ".join(f"{shown(place)}: {reason}" for place, reason in self._faults[:_SHOWN])
        more = f"; and {len(self._faults) - _SHOWN:,} more" if len(self._faults) > _SHOWN else ""
        count = "1 fault" if len(self._faults) == 1 else f"{len(self._faults):,} faults"
        raise DataError(f"{shown(self._where)}: {count}: {listed}{more}", hint=hint)
