"""Which pictures of a data set are the same, byte for byte or nearly, and whether that crosses its parts or its labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from vitlab.data.care.findings import Picture, Twins
from vitlab.data.care.likeness import NearPair, is_flat, near_pairs
from vitlab.data.care.looks import Look
from vitlab.data.care.progress import Tell, silent


def exact_twins(looks: Sequence[Look | None], pictures: Sequence[Picture]) -> list[Twins]:
    """Groups of pictures with the same content."""
    same: dict[bytes, list[int]] = defaultdict(list)
    for index, look in enumerate(looks):
        if look is not None:
            same[look.digest].append(index)
    return [_twins(members, pictures, likeness=1.0, exact=True) for members in same.values() if len(members) > 1]


def near_twins(looks: Sequence[Look | None], pictures: Sequence[Picture], *, tell: Tell = silent) -> list[Twins]:
    """Groups of pictures that are not the same bytes and show nearly the same; of identical files the first stands for all.

    Pictures too small for a thumbnail, and those with nothing to be seen in them, are left out.
    """
    seen: set[bytes] = set()
    members, thumbs = [], []
    for index, look in enumerate(looks):
        if look is not None and look.thumb is not None and look.digest not in seen:
            seen.add(look.digest)
            members.append(index)
            thumbs.append(look.thumb)
    if len(thumbs) < 2:
        return []
    thumb_NHW = np.stack(thumbs)
    kept = np.flatnonzero(~is_flat(thumb_NHW))
    if len(kept) < 2:
        return []
    pairs = near_pairs(thumb_NHW[kept], tell=tell)
    return [
        _twins(
            [members[kept[place]] for place in group],
            pictures,
            likeness=min(pair.likeness for pair in within),
            mirrored=any(pair.mirrored for pair in within),
        )
        for group, within in _groups(pairs)
    ]


def _twins(
    members: Sequence[int], pictures: Sequence[Picture], *, likeness: float, exact: bool = False, mirrored: bool = False
) -> Twins:
    group = tuple(pictures[index] for index in members)
    return Twins(
        exact=exact,
        likeness=likeness,
        mirrored=mirrored,
        leak=len({picture.part for picture in group if picture.part is not None}) > 1,
        conflict=len({picture.label for picture in group if picture.label is not None}) > 1,
        pictures=group,
    )


def _groups(pairs: Iterable[NearPair]) -> list[tuple[list[int], list[NearPair]]]:
    """Pictures that hang together by pairs, in order, with the pairs among them."""
    leader: dict[int, int] = {}

    def lead(place: int) -> int:
        while (above := leader.setdefault(place, place)) != place:
            leader[place] = leader[above]  # the way up gets shorter each time it is gone
            place = leader[above]
        return place

    listed = list(pairs)
    for pair in listed:
        one, other = sorted((lead(pair.first), lead(pair.second)))
        leader[other] = one
    within: dict[int, list[NearPair]] = defaultdict(list)
    for pair in listed:
        within[lead(pair.first)].append(pair)
    return [
        (sorted({place for pair in group for place in (pair.first, pair.second)}), group) for _, group in sorted(within.items())
    ]
