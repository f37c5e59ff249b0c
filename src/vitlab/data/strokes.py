"""Pen strokes like the letters of an unknown script: a class is a sequence of pen movements, a sample is one hand's version of it.

A stroke is a walk: pieces of line that run straight or bend by so much, with or without a corner between them. A hand varies
lengths, bends and corners, slants and stretches the whole, and presses more or less; it does not turn a letter over, which is
why the orientation of these classes, unlike that of contours, is part of the class.

Axes: B pictures, S strokes, G pieces of a stroke, T points of a piece.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitlab.data.keyed import TURN, Draws, Floats, cosine, keys, sine, turns

_STROKES = 3
_PIECES = 4
_POINTS = 10
_FIELDS = 3  # length, bend and corner of a piece
_FORMULA_STREAM = 21
_CANDIDATES = 64
_CELLS = 6
_EASY = 2.5  # lengths of line per side of the drawing that still take any pen
_HAND_SHARE = np.array([0.28, 0.18, 0.15])  # how far a hand strays from a length, a bend, a corner
_DONE_T = (np.arange(_POINTS) + 0.5) / _POINTS
_X_THEN_Y = np.array([TURN // 4, 0])[:, None, None, None]
_ASIDE = np.array([1.0, -1.0])[:, None]

DRAWS = _STROKES * _PIECES * (_FIELDS + 2) + _STROKES * 4 + 8
"""Random numbers that one picture takes."""


@lru_cache(maxsize=1 << 14)
def _formula(seed: int, label: int) -> tuple[Floats, Floats]:
    """The class: pieces [S, G, 3] (length, bend in turns, corner in turns) and starts [S, 4] (heading, where, own share, shift)."""
    for attempt in range(_CANDIDATES):
        pieces_SG3, starts_S4 = _candidate(seed, label, attempt)
        if _legible(_walk(pieces_SG3[None], starts_S4[None])[0], pieces_SG3):
            break
    return pieces_SG3, starts_S4


def _candidate(seed: int, label: int, attempt: int) -> tuple[Floats, Floats]:
    draws = Draws(keys(seed, _FORMULA_STREAM, np.array([label]), np.array([attempt])), count=128)
    strokes = int(np.searchsorted([0.55, 0.9], draws.between(0, 1)[0])) + 1
    pieces_SG3 = np.zeros((_STROKES, _PIECES, _FIELDS))
    for stroke in range(strokes):
        most = (_PIECES, 2, 1)[stroke] if strokes > 1 else _PIECES
        least = 2 if strokes == 1 else 1
        count = least + int(draws.between(0, most - least + 1)[0])
        for piece in range(count):
            length, bend_kind, bend_size, bend_sign, corner_kind, corner_size, corner_sign = draws.several(7, 0, 1)[0]
            arc = (0.0, 0.2 + 0.2 * bend_size, 0.4 + 0.25 * bend_size, 0.75 + 0.2 * bend_size)[
                int(np.searchsorted([0.4, 0.62, 0.88], bend_kind))
            ]
            corner = 0.0 if piece == 0 or corner_kind < 0.4 else 0.18 + 0.22 * corner_size
            pieces_SG3[stroke, piece] = (
                # a full loop is a small one: its length is that of its circle
                (0.5 + 0.7 * length) * (1 + 0.8 * arc) / (1.35**stroke),
                np.copysign(arc, bend_sign - 0.5),
                np.copysign(corner, corner_sign - 0.5),
            )
    heading_S, where_S, own_S, shift_S = draws.several(4 * _STROKES, 0, 1).reshape(4, _STROKES)
    return pieces_SG3, np.stack([heading_S, where_S, own_S, (shift_S - 0.5) * 0.3], axis=1)


def _legible(points_2SN: Floats, pieces_SG3: Floats) -> bool:
    """Neither a speck, nor a bare line, nor a knot: the ink takes up some of the square around it, spread over it."""
    points_2N = points_2SN.reshape(2, -1)
    low_2 = points_2N.min(axis=1)
    span_2 = points_2N.max(axis=1) - low_2
    longest = float(span_2.max())
    cell_2N = np.minimum((points_2N - low_2[:, None]) * (_CELLS / longest), _CELLS - 1).astype(np.int64)
    inked = len(np.unique(cell_2N[0] * _CELLS + cell_2N[1]))
    crowd = float(np.cumsum(pieces_SG3[..., 0])[-1]) / longest
    return float(span_2.min()) >= 0.45 * longest and 9 <= inked <= 24 and 1.6 <= crowd <= 4.5


def _walk(pieces_BSG3: Floats, starts_BS4: Floats) -> Floats:
    """Points along the strokes, [B, 2, S, G * T], x (right) before y (down), in the units of the lengths.

    A piece or stroke of length 0 is a point on the first stroke.
    """
    length_BSG, bend_BSG, corner_BSG = pieces_BSG3[..., 0], pieces_BSG3[..., 1], pieces_BSG3[..., 2]
    # heading at the middle of each step: all earlier bends and corners, and the part of this piece's bend done so far
    before_BSG = np.cumsum(bend_BSG + corner_BSG, axis=2) - bend_BSG + starts_BS4[:, :, :1]
    heading_BSGT = turns(before_BSG[..., None] + bend_BSG[..., None] * _DONE_T)
    step_B2SGT = sine(heading_BSGT[:, None] + _X_THEN_Y) * (length_BSG / _POINTS)[:, None, :, :, None]
    points_B2SN = np.cumsum(step_B2SGT.reshape(len(length_BSG), 2, _STROKES, _PIECES * _POINTS), axis=3)
    # A later stroke touches or crosses the first: a point of its own meets a point of the first, give or take a shift.
    last_BS = (np.count_nonzero(length_BSG, axis=2) * _POINTS - 1).clip(0)
    there_BS = (starts_BS4[:, :, 1] * last_BS[:, :1]).astype(np.int64)
    here_BS = (starts_BS4[:, :, 2] * last_BS).astype(np.int64)
    shift_BS = starts_BS4[:, :, 3] * (last_BS > 0)
    meet_B2S = (
        np.take_along_axis(points_B2SN[:, :, 0], there_BS[:, None], axis=2)
        - np.take_along_axis(points_B2SN, here_BS[:, None, :, None], axis=3)[..., 0]
        + shift_BS[:, None] * _ASIDE
    )
    meet_B2S[:, :, 0] = 0
    points_B2SN += meet_B2S[..., None]
    return points_B2SN


def coverage(seed: int, label_B: NDArray[np.int64], draws: Draws, image_size: tuple[int, int]) -> NDArray[np.uint8]:
    """How much of each pixel the ink covers, 0 to 255, [B, H, W]."""
    formulas = [_formula(seed, int(label)) for label in label_B]
    pieces_BSG3 = np.array([pieces for pieces, _ in formulas])
    starts_BS4 = np.array([starts for _, starts in formulas])
    batch = len(label_B)
    side = min(image_size)

    # The hand: lengths, bends and corners by a share, headings and meeting points by a little.
    share_BSG3 = draws.several(pieces_BSG3[0].size, -1, 1).reshape(pieces_BSG3.shape) * _HAND_SHARE
    waver_BSG = draws.several(_STROKES * _PIECES, -0.035, 0.035).reshape(pieces_BSG3.shape[:3])
    pieces_BSG3 *= 1 + share_BSG3
    pieces_BSG3[..., 1] += waver_BSG
    starts_BS4 += draws.several(_STROKES * 4, -0.06, 0.06).reshape(starts_BS4.shape)
    np.clip(starts_BS4[:, :, 1:3], 0, 1, out=starts_BS4[:, :, 1:3])
    points_B2SN = _walk(pieces_BSG3, starts_BS4)

    # The sheet: turned, slanted and stretched, then scaled and put where it fits.
    tilt_B1 = turns(draws.several(1, -0.06, 0.06))
    slant_B1 = draws.several(1, -0.35, 0.35)
    stretch_B1 = draws.several(1, 0.72, 1.3, middle=1)
    x_BN, y_BN = points_B2SN.reshape(batch, 2, -1).transpose(1, 0, 2)
    down_BN = x_BN * sine(tilt_B1) + y_BN * cosine(tilt_B1)
    across_BN = (x_BN * cosine(tilt_B1) - y_BN * sine(tilt_B1) + slant_B1 * down_BN) * stretch_B1
    points_B2N = np.stack([across_BN, down_BN], axis=1)
    low_B2 = points_B2N.min(axis=2)
    span_B2 = points_B2N.max(axis=2) - low_B2
    longest_B1 = span_B2.max(axis=1, keepdims=True)

    # The pen: finer where a long line is crowded into a small place; pressed more or less.
    size_B1 = draws.several(1, 0.62, 1.0, middle=0.92) * (side - 1)
    crowd_B1 = np.cumsum(pieces_BSG3[..., 0].reshape(batch, -1), axis=1)[:, -1:] / longest_B1
    pen_B1 = size_B1 * draws.several(1, 0.05, 0.18, middle=0.1) * np.minimum(1, _EASY / crowd_B1)
    scale_B1 = (size_B1 - pen_B1) / longest_B1
    room_B2 = np.array(image_size[::-1]) - pen_B1 - span_B2 * scale_B1
    start_B2 = pen_B1 / 2 + room_B2 * draws.several(2, 0, 1) - low_B2 * scale_B1
    points_B2N = points_B2N * scale_B1[..., None] + start_B2[..., None]
    pen_BD = pen_B1 * draws.several(_STROKES * _PIECES, 0.8, 1.2, middle=1)

    drawn_BS = np.count_nonzero(pieces_BSG3[..., 0], axis=2)
    points_BDT2 = points_B2N.transpose(0, 2, 1).reshape(batch, _STROKES * _PIECES, 2 * _POINTS)
    return np.stack(
        [
            _ink(points, pens, drawn, image_size)
            for points, pens, drawn in zip(points_BDT2.tolist(), pen_BD.tolist(), drawn_BS.tolist(), strict=True)
        ]
    )


def _ink(
    points: list[list[float]], pens: list[float], drawn: list[int], image_size: tuple[int, int]
) -> NDArray[np.uint8]:
    """One drawing: each piece's points (x, y, x, y, ...) and pen width, all in pixels; how many pieces of each stroke to draw."""
    # Drawn larger and reduced, so that edges are soft.
    finer = 4 if max(image_size) <= 96 else 2
    sheet = Image.new("L", (image_size[1] * finer, image_size[0] * finer))
    draw = ImageDraw.Draw(sheet)
    for stroke, pieces in enumerate(drawn):
        last: list[float] = []
        for piece in range(stroke * _PIECES, stroke * _PIECES + pieces):
            line = [value * finer for value in points[piece]]
            pen = pens[piece] * finer
            half = pen / 2
            draw.line(last + line, fill=255, width=round(pen))
            for x, y in zip(line[::2], line[1::2], strict=True):  # round joints and ends
                draw.ellipse((x - half, y - half, x + half, y + half), fill=255)
            last = line[-2:]
    return np.asarray(sheet.reduce(finer))
