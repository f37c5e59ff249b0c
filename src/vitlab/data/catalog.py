"""The public data sets of the paper and of VTAB: where they are, what they hold, and how they are read once fetched.

Sizes and SHA-256 sums are those that TensorFlow Datasets publishes for the same addresses; where the publisher has a sum of
its own (Zenodo, CaltechDATA, ImageNet) it is said. A file without a known sum is marked so and never given one by guess:
`fetch` then records the sum it sees, and holds later downloads to it.
"""

from __future__ import annotations

from vitlab.config.check import did_you_mean
from vitlab.data.public.public_set import PublicSet
from vitlab.data.public.sets_of_paper import PAPER_SETS
from vitlab.data.public.sets_of_vtab import VTAB_SETS
from vitlab.errors import DataError

SETS: tuple[PublicSet, ...] = (*PAPER_SETS, *VTAB_SETS)


def find_set(name: str) -> PublicSet:
    """The set of this name; DataError with what was meant where there is none."""
    known = {entry.name: entry for entry in SETS}
    if name not in known:
        raise DataError(
            f"the catalogue has no set called {name!r}",
            hint=did_you_mean(name, list(known)) or "vitlab data list shows them all",
        )
    return known[name]
