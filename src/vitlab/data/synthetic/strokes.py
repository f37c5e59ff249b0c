"""Pen strokes like letters of an unknown script: a class is a sequence of pen movements, a sample is one handwriting of it.

A stroke consists of pieces of line, straight or bent, with or without a corner between them. A handwriting varies lengths, bends,
corners and pressure, and slants and stretches the whole. It does not rotate the letter, so the orientation belongs to the class,
unlike that of contours.

Axes: B images, S strokes, G pieces of a stroke, T points of a piece.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitlab.data.random_numbers import TURN, Choice, Choices, Floats, Keys, cosine, keys, sine, turns, uniforms

COARSEST = 0.22
"""The strongest blur that still shows the class, as a fraction of the pixels along a side: 7 of 32."""

_STROKES = 3
_PIECES = 4
_FEWEST_POINTS, _MOST_POINTS = 10, 64
_FIELDS = 3  # of a piece: length, bend (turns), corner before it (turns)
_STARTS = 4  # of a stroke: heading (turns), where it meets the first stroke, where on itself, how far beside
_FORMULA_STREAM = 21
_CANDIDATES = 64
_CELLS = 6
_STROKE_COUNTS = (0.55, 0.9)  # more than half of the classes are written in one stroke, nine of ten in at most two
_BEND_COUNTS = (0.4, 0.62, 0.88)
_BENDS = ((0.0, 0.0), (0.2, 0.2), (0.4, 0.25), (0.75, 0.2))  # straight, quarter, half, loop: turns, at least and on top
_EASY = 2.5  # lengths of line per side of the drawing that still take any pen
_NEARLY_STRAIGHT = 0.25  # turns over the fewest points: below, the wedge left open between two steps does not show
_HAND_FRACTION = np.array([0.28, 0.18, 0.15])  # how far a hand strays from a length, a bend, a corner
_X_THEN_Y = np.array([TURN // 4, 0])[:, None, None, None]
_ASIDE = np.array([1.0, -1.0])[:, None]

# How a sample varies its class. Sizes are fractions of the image's side; angles are in turns.
_SAMPLE = Choices(
    {
        "hand": Choice(-1, 1, times=_STROKES * _PIECES * _FIELDS),
        "waver": Choice(-0.035, 0.035, times=_STROKES * _PIECES),
        "start": Choice(-0.06, 0.06, times=_STROKES * _STARTS),
        "tilt": Choice(-0.06, 0.06),
        "slant": Choice(-0.35, 0.35),
        "stretch": Choice(0.72, 1.3, 1),
        "size": Choice(0.7, 1.0, 0.92),
        "place": Choice(0, 1, times=2),
        "pen": Choice(0.05, 0.18, 0.1),
        "pressure": Choice(0.8, 1.2, 1, _STROKES * _PIECES),
    }
)


@lru_cache(maxsize=1 << 14)
def _formula(seed: int, label: int) -> tuple[Floats, Floats]:
    """The class: pieces [S, G, 3] and starts [S, 4]."""
    for attempt in range(_CANDIDATES):
        pieces_SG3, starts_S4 = _candidate(seed, label, attempt)
        if _legible(_walk(pieces_SG3[None], starts_S4[None], _FEWEST_POINTS)[0], pieces_SG3):
            break
    return pieces_SG3, starts_S4


def _candidate(seed: int, label: int, attempt: int) -> tuple[Floats, Floats]:
    key_1 = keys(seed, _FORMULA_STREAM, np.array([label]), np.array([attempt]))
    uniform_1K = uniforms(key_1, 4 + _STROKES * (_STARTS + 7 * _PIECES))
    count_4, start_K, piece_K = np.split(uniform_1K[0], [4, 4 + _STROKES * _STARTS])
    strokes = int(np.searchsorted(_STROKE_COUNTS, count_4[0])) + 1
    pieces_SG3 = np.zeros((_STROKES, _PIECES, _FIELDS))
    for stroke in range(strokes):
        least, most = (2, _PIECES) if strokes == 1 else ((1, _PIECES), (1, 2), (1, 1))[stroke]
        for piece in range(least + int(count_4[1 + stroke] * (most - least + 1))):
            length, bend_kind, bend, bend_sign, corner_kind, corner, corner_sign = piece_K.reshape(_STROKES, _PIECES, 7)[
                stroke, piece
            ]
            least_bend, more_bend = _BENDS[int(np.searchsorted(_BEND_COUNTS, bend_kind))]
            arc = least_bend + more_bend * bend
            sharp = piece > 0 and corner_kind > 0.4
            pieces_SG3[stroke, piece] = (
                (0.5 + 0.7 * length) * (1 + 0.8 * arc) * 0.75**stroke,  # what bends more is longer; later strokes are shorter
                np.copysign(arc, bend_sign - 0.5),
                np.copysign(0.18 + 0.22 * corner, corner_sign - 0.5) if sharp else 0.0,
            )
    starts_S4 = start_K.reshape(_STROKES, _STARTS).copy()
    starts_S4[:, 3] = (starts_S4[:, 3] - 0.5) * 0.3
    return pieces_SG3, starts_S4


def _legible(points_2SN: Floats, pieces_SG3: Floats) -> bool:
    """Whether the ink fills a reasonable part of the square around it: not a speck, a bare line or a knot."""
    points_2N = points_2SN.reshape(2, -1)
    low_2 = points_2N.min(axis=1)
    span_2 = points_2N.max(axis=1) - low_2
    longest = float(span_2.max())
    cell_2N = np.minimum((points_2N - low_2[:, None]) * (_CELLS / longest), _CELLS - 1).astype(np.int64)
    inked = len(np.unique(cell_2N[0] * _CELLS + cell_2N[1]))
    crowd = float(np.cumsum(pieces_SG3[..., 0])[-1]) / longest
    return float(span_2.min()) >= 0.45 * longest and 9 <= inked <= 24 and 1.6 <= crowd <= 4.5


def _walk(pieces_BSG3: Floats, starts_BS4: Floats, points: int) -> Floats:
    """The strokes' beginnings and `points` along each of their pieces, [B, 2, S, 1 + G * T], x (right) before y (down), in the
    units of the lengths. A piece or stroke of length 0 is a point on the first stroke.
    """
    length_BSG, bend_BSG, corner_BSG = pieces_BSG3[..., 0], pieces_BSG3[..., 1], pieces_BSG3[..., 2]
    # heading at the middle of each step: all earlier bends and corners, and the part of this piece's bend done so far
    before_BSG = np.cumsum(bend_BSG + corner_BSG, axis=2) - bend_BSG + starts_BS4[:, :, :1]
    done_T = (np.arange(points) + 0.5) / points
    heading_BSGT = turns(before_BSG[..., None] + bend_BSG[..., None] * done_T)
    step_B2SGT = sine(heading_BSGT[:, None] + _X_THEN_Y) * (length_BSG / points)[:, None, :, :, None]
    points_B2SN = np.zeros((len(length_BSG), 2, _STROKES, 1 + _PIECES * points))
    np.cumsum(step_B2SGT.reshape(len(length_BSG), 2, _STROKES, -1), axis=3, out=points_B2SN[..., 1:])
    # A later stroke touches or crosses the first: a point of its own meets a point of the first, give or take a shift.
    last_BS = np.count_nonzero(length_BSG, axis=2) * points
    there_BS = (starts_BS4[:, :, 1] * last_BS[:, :1] + 0.5).astype(np.int64)
    here_BS = (starts_BS4[:, :, 2] * last_BS + 0.5).astype(np.int64)
    shift_BS = starts_BS4[:, :, 3] * (last_BS > 0)
    meet_B2S = (
        np.take_along_axis(points_B2SN[:, :, 0], there_BS[:, None], axis=2)
        - np.take_along_axis(points_B2SN, here_BS[:, None, :, None], axis=3)[..., 0]
        + shift_BS[:, None] * _ASIDE
    )
    meet_B2S[:, :, 0] = 0
    points_B2SN += meet_B2S[..., None]
    return points_B2SN


def coverage(
    seed: int, label_B: NDArray[np.int64], key_B: Keys, image_size: tuple[int, int], *, variety: float
) -> NDArray[np.uint8]:
    """How much of each pixel the ink covers, 0 to 255, [B, H, W]; `key_B` holds the samples' own keys."""
    formulas = [_formula(seed, int(label)) for label in label_B]
    pieces_BSG3 = np.array([pieces for pieces, _ in formulas])
    starts_BS4 = np.array([starts for _, starts in formulas])
    sample = _SAMPLE.draw(key_B, variety=variety)
    batch = len(label_B)

    # The handwriting: lengths, bends and corners vary by a fraction, headings and meeting points by a little.
    pieces_BSG3 *= 1 + sample["hand"].reshape(pieces_BSG3.shape) * _HAND_FRACTION
    pieces_BSG3[..., 1] += sample["waver"].reshape(pieces_BSG3.shape[:3])
    starts_BS4 += sample["start"].reshape(starts_BS4.shape)
    np.clip(starts_BS4[:, :, 1:3], 0, 1, out=starts_BS4[:, :, 1:3])
    points = max(_FEWEST_POINTS, min(max(image_size) // 3, _MOST_POINTS))
    points_B2SN = _walk(pieces_BSG3, starts_BS4, points)

    # The whole drawing is rotated, slanted and stretched, then scaled and placed where it fits.
    tilt_B1 = turns(sample["tilt"])
    cos_B1, sin_B1 = cosine(tilt_B1), sine(tilt_B1)
    x_BN, y_BN = points_B2SN.reshape(batch, 2, -1).transpose(1, 0, 2)
    points_B2N = np.empty((batch, 2, x_BN.shape[1]))
    points_B2N[:, 1] = down_BN = x_BN * sin_B1 + y_BN * cos_B1
    points_B2N[:, 0] = (x_BN * cos_B1 - y_BN * sin_B1 + sample["slant"] * down_BN) * sample["stretch"]
    low_B2 = points_B2N.min(axis=2)
    span_B2 = points_B2N.max(axis=2) - low_B2
    longest_B1 = span_B2.max(axis=1, keepdims=True)

    # The pen is finer if a long line has little space, and its pressure varies.
    size_B1 = sample["size"] * (min(image_size) - 1)
    crowd_B1 = np.cumsum(pieces_BSG3[..., 0].reshape(batch, -1), axis=1)[:, -1:] / longest_B1
    pen_B1 = size_B1 * sample["pen"] * np.minimum(1, _EASY / crowd_B1)
    scale_B1 = (size_B1 - pen_B1) / longest_B1
    room_B2 = np.array(image_size[::-1]) - pen_B1 - span_B2 * scale_B1
    start_B2 = pen_B1 / 2 + room_B2 * sample["place"] - low_B2 * scale_B1
    finer = 4 if max(image_size) <= 96 else 2  # drawn larger and reduced, so that edges are soft
    points_BN2 = ((points_B2N * scale_B1[..., None] + start_B2[..., None]) * finer).transpose(0, 2, 1)
    pen_BD = pen_B1 * sample["pressure"] * finer
    jointed_BD = (points > _FEWEST_POINTS) | (np.abs(pieces_BSG3[..., 1]).reshape(batch, -1) > _NEARLY_STRAIGHT)
    sheets = zip(
        points_BN2.reshape(batch, _STROKES, -1).tolist(),
        pen_BD.tolist(),
        jointed_BD.tolist(),
        np.count_nonzero(pieces_BSG3[..., 0], axis=2).tolist(),
        strict=True,
    )
    large = (image_size[1] * finer, image_size[0] * finer)
    return np.array([np.asarray(_ink(*sheet, large).reduce(finer)) for sheet in sheets])


def _ink(
    strokes: list[list[float]], pens: list[float], jointed: list[bool], drawn: list[int], size: tuple[int, int]
) -> Image.Image:
    """One drawing on a sheet of `size` (width, height): each stroke's points (x, y, x, y, ...); each piece's pen width, and
    whether its joints show; how many pieces of each stroke to draw. All in pixels."""
    sheet = Image.new("L", size)
    draw = ImageDraw.Draw(sheet)
    for stroke, (points, pieces) in enumerate(zip(strokes, drawn, strict=True)):
        values = (len(points) - 2) // _PIECES
        for piece in range(pieces):
            line = points[piece * values : (piece + 1) * values + 2]  # a piece begins where the one before ends
            pen = pens[stroke * _PIECES + piece]
            half = pen / 2
            draw.line(line, fill=255, width=round(pen))
            # Round ends, and round joints where they show.
            every = 2 if jointed[stroke * _PIECES + piece] else len(line) - 2
            for x, y in zip(line[::every], line[1::every], strict=True):
                draw.ellipse((x - half, y - half, x + half, y + half), fill=255)
    return sheet
