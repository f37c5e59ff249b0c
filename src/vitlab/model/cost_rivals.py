"""What the rivals cost, by formula, as `vitlab.model.cost` counts it. No torch here.

`kept` and `alive` are worked out from what torch saves and holds; rows are cells times width.
"""

from __future__ import annotations

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig, MbStage
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.rivals import RivalConfig
from vitlab.config.swin import SwinConfig
from vitlab.model.tally import Tally


def account_rival(tally: Tally, config: RivalConfig) -> None:
    """Add a whole forward pass of one picture."""
    match config:
        case SwinConfig():
            _swin(tally, config)
        case ConvNeXtConfig():
            _convnext(tally, config)
        case EfficientNetConfig():
            _efficientnet(tally, config)
        case RecurrentConfig():
            _recurrent(tally, config)
    if config.num_classes:
        tally.dense(1, config.feature_width, config.num_classes)
        tally.kept += config.feature_width


def _picture(config: RivalConfig) -> int:
    return config.channels * config.image_size[0] * config.image_size[1]


def _swin(tally: Tally, config: SwinConfig) -> None:
    picture, pixels = _picture(config), config.channels * config.patch_size[0] * config.patch_size[1]
    cells = config.grids[0][0] * config.grids[0][1]
    tally.dense(cells, pixels, config.width)
    tally.norms(config.width)
    tally.kept += cells * (pixels + config.width + 2)
    tally.alive(picture + cells * (2 * pixels + config.width))  # the picture with its edges filled, and cut
    for stage, ((down, across), width) in enumerate(zip(config.grids, config.widths, strict=True)):
        held = picture
        if stage:
            held += cells * width // 2  # the map before stays with the caller
            cells = down * across
            tally.norms(2 * width)
            tally.dense(cells, 2 * width, width, bias=False)
            tally.kept += cells * (4 * width + 2)
            tally.alive(held + cells * 5 * width)
        for block in range(config.depths[stage]):
            _swin_block(tally, config, stage, held)
            held += cells * width if stage == 0 and block == 0 else 0
    tally.norms(config.feature_width)
    tally.kept += cells * (config.feature_width + 2)


def _swin_block(tally: Tally, config: SwinConfig, stage: int, held: int) -> None:
    (down, across), (tall, wide), width = config.grids[stage], config.windows[stage], config.widths[stage]
    heads, hidden, window = config.heads[stage], width * config.mlp_ratio, tall * wide
    windows = -(-down // tall) * -(-across // wide)
    cells, padded = down * across, windows * window
    tally.norms(width, width)
    tally.parameters += (2 * tall - 1) * (2 * wide - 1) * heads
    tally.dense(padded, width, 3 * width, bias=config.qkv_bias)
    tally.macs += 2 * padded * window * width  # q k and the weighted sum of v
    tally.dense(padded, width, width)
    tally.dense(cells, width, hidden)
    tally.dense(cells, hidden, width)
    maps = windows * heads * window**2
    tally.kept += cells * (3 * width + 4 + 2 * hidden) + padded * 5 * width + maps
    tally.alive(held + cells * width + padded * (11 if windows > 1 else 8) * width)  # q, k, v twice: in order, and by heads
    tally.alive(held + cells * (3 * width + 2 * hidden))
    tally.fixed(2 * maps)  # the bias by window and head, and where windows are shifted what it is made of


def _convnext(tally: Tally, config: ConvNeXtConfig) -> None:
    picture, patch = _picture(config), config.patch_size
    x = 0
    for stage, ((down, across), width) in enumerate(zip(config.grids, config.widths, strict=True)):
        cells = down * across
        hidden = width * config.mlp_ratio
        if stage == 0:
            tally.plain_conv(cells, config.channels, width, patch)
            tally.norms(width)
            tally.kept += picture + cells * (width + 2)
        else:
            before = config.widths[stage - 1]
            tally.norms(before)
            tally.plain_conv(cells, before, width, 2)
            places = config.grids[stage - 1][0] * config.grids[stage - 1][1]
            tally.kept += places * (2 * before + 2)
            tally.alive(picture + 2 * x + cells * width)
        x = cells * width
        for _ in range(config.depths[stage]):
            tally.plain_conv(cells, 1, width, config.kernel)
            tally.norms(width)
            tally.dense(cells, width, hidden)
            tally.dense(cells, hidden, width)
            tally.parameters += width if config.layer_scale else 0
            tally.kept += cells * ((4 if config.layer_scale else 3) * width + 2 + 2 * hidden)
            tally.alive(picture + 2 * x + 2 * cells * hidden)
    tally.norms(config.feature_width)
    tally.kept += config.feature_width + 2


def _efficientnet(tally: Tally, config: EfficientNetConfig) -> None:
    picture, size = _picture(config), _strided(config.image_size, 2)
    inputs = config.stem_width
    x = _cells(size) * inputs
    tally.plain_conv(_cells(size), config.channels, inputs, 3, bias=False)
    _batchnorm(tally, inputs)
    tally.kept += picture + 2 * x
    tally.alive(2 * picture + 2 * x)
    for stage in config.plan:
        for unit in range(stage.blocks):
            size = _unit(tally, config, stage, inputs, size, stage.stride if unit == 0 else 1)
            inputs = stage.width
    x, last = _cells(size) * inputs, _cells(size) * config.head_width
    tally.plain_conv(_cells(size), inputs, config.head_width, 1, bias=False)
    _batchnorm(tally, config.head_width)
    tally.kept += x + 2 * last
    tally.alive(picture + x + 2 * last)


def _unit(
    tally: Tally, config: EfficientNetConfig, stage: MbStage, inputs: int, size: tuple[int, int], stride: int
) -> tuple[int, int]:
    """An inverted bottleneck on a map of `size`; the size of the map after it."""
    picture, after, inner = _picture(config), _strided(size, stride), inputs * stage.expansion
    squeezed, outputs = config.squeezed(inputs), stage.width
    x, wide, narrow, out = _cells(size) * inputs, _cells(size) * inner, _cells(after) * inner, _cells(after) * outputs
    if stage.expansion > 1:
        tally.plain_conv(_cells(size), inputs, inner, 1, bias=False)
        _batchnorm(tally, inner)
        tally.kept += x + 2 * wide
        tally.alive(picture + x + 2 * wide)
    tally.plain_conv(_cells(after), 1, inner, stage.kernel, bias=False)
    _batchnorm(tally, inner)
    tally.dense(1, inner, squeezed)
    tally.dense(1, squeezed, inner)
    tally.plain_conv(_cells(after), inner, outputs, 1, bias=False)
    _batchnorm(tally, outputs)
    tally.kept += (wide if stage.expansion > 1 or stride > 1 else x) + 4 * narrow + out + 2 * inner + 2 * squeezed
    tally.alive(picture + x + 2 * wide + narrow if stride > 1 else picture + x + wide + narrow)
    tally.alive(picture + x + 2 * narrow)
    return after


def _recurrent(tally: Tally, config: RecurrentConfig) -> None:
    picture, width, tokens = _picture(config), config.width, config.tokens
    cut = tokens * config.channels * config.patch_size[0] * config.patch_size[1]
    tally.dense(tokens, cut // tokens, width)
    tally.kept += cut
    tally.kept += tokens * width
    tally.alive(picture + 2 * cut + tokens * width)  # the picture with its edges filled, and cut
    for _ in range(config.depth):
        for _ in range(2):  # of the input, and of the state
            tally.dense(tokens, width, config.gates * width)
        # What torch's kernels keep: an LSTM's gates and states in a workspace of their own.
        tally.kept += tokens * width * (65 if config.cell == "lstm" else 8) // 4
        tally.alive(picture + 2 * tokens * width)
    tally.norms(width)
    tally.kept += width + 2


def _batchnorm(tally: Tally, channels: int) -> None:
    """A scale and a bias; in training, the batch's mean and deviation are kept, whatever its size."""
    tally.norms(channels)
    tally.copies += 2 * channels


def _strided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """A map after a stride: "SAME" padding rounds up."""
    return -(-size[0] // stride), -(-size[1] // stride)


def _cells(size: tuple[int, int]) -> int:
    return size[0] * size[1]
