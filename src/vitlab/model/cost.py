"""What a model costs before it is built: parameters, multiply-adds and memory, by formula. No torch here.

How it is counted:

- **Multiply-adds** (MACs) are those of matrix products and convolutions in one forward pass of one picture to logits, attention's
  two products among them, zeros of a padding included. Norms, activations, softmax, additions and interpolation are left out.
  torch's flop counter gives exactly twice this. Local attention is counted as it is computed: all pairs, then masked.
- **Memory** is counted in numbers: parameters, and tensors of activations. The two memory figures are estimates, held to what
  torch really allocates by the tests: operators may need a little working space of their own.

Letters: n patches, p prefix tokens, N = p + n tokens, D width, M mlp_width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitlab.config.check import pair
from vitlab.config.early import EarlyConvolutions
from vitlab.config.model import ModelConfig, ResNetConfig, ResNetStem, ViTConfig
from vitlab.model.cost_rivals import account_rival
from vitlab.model.tally import MAXIMUM, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a model; all but `parameters` and the copies are for one picture.

    `parameters`: trainable numbers. `macs`: multiply-adds of a forward pass. `activations`: numbers that dense layers and
    convolutions put out (Radosavovic et al. 2020), which tells speed better than `macs` where memory is the limit.
    `inference_peak`: numbers alive at once, the picture's own included, in the worst moment of a forward pass.
    `training_kept`: numbers that a forward pass keeps for the backward pass, without the patches that `patch_dropout` leaves out.
    `inference_copies` and `training_copies`: numbers alive or kept whatever the batch, because a standardised kernel, or the
    bias of a Swin's windows, is made anew from the weights in each pass; 0 for a plain ViT.
    """

    parameters: int
    macs: int
    activations: int
    inference_peak: int
    inference_copies: int
    training_kept: int
    training_copies: int

    def weight_bytes(self, *, number_bytes: int = 4) -> int:
        """Bytes of the weights, 4 a number for float32, 2 for bfloat16."""
        return self.parameters * number_bytes

    def inference_bytes(self, *, batch: int = 1, number_bytes: int = 4) -> int:
        """Bytes to run a batch: weights and activations at their peak."""
        return (self.parameters + self.inference_copies + batch * self.inference_peak) * number_bytes

    def training_bytes(self, *, batch: int = 1, number_bytes: int = 4, optimizer_slots: int = 2) -> int:
        """Bytes to train on a batch: weights, gradients, the optimizer's slots (2 for Adam, 1 for momentum) and what is kept.

        `number_bytes` is that of activations and copies; weights, gradients and slots are float32.
        """
        fixed = self.parameters * (2 + optimizer_slots) * 4
        return fixed + (self.training_copies + batch * self.training_kept) * number_bytes


def cost(config: ModelConfig, *, image_size: int | Sequence[int] | None = None) -> Cost:
    """The cost of a model at its own image size, or at another, (height, width) or one number for both.

    At another size the model is the one made for it, with its own table of positions; a `dynamic_size` ViT keeps its table.
    """
    if image_size is None:
        return _account(config)
    size = pair("image_size", image_size)
    there = _account(replace(config, image_size=size))
    if isinstance(config, ViTConfig) and config.dynamic_size:
        return replace(there, parameters=_account(config).parameters)
    return there


def _account(config: ModelConfig) -> Cost:
    tally = Tally()
    if isinstance(config, ResNetConfig):
        _resnet(tally, config)
    elif isinstance(config, ViTConfig):
        _vit(tally, config)
    else:
        account_rival(tally, config)
    return Cost(
        parameters=tally.parameters,
        macs=tally.macs,
        activations=tally.activations,
        inference_peak=tally.peak,
        inference_copies=tally.largest_copy,
        training_kept=tally.kept,
        training_copies=tally.copies,
    )


def _vit(tally: Tally, config: ViTConfig) -> None:
    width, hidden, tokens = config.width, config.mlp_width, config.tokens
    patches = config.grid[0] * config.grid[1]
    inputs, held, early = config.channels, config.channels * config.image_size[0] * config.image_size[1], 0
    if config.stem is not None:
        inputs = config.stem.out_width
        held += _stem(tally, config.stem, config.channels, config.image_size)
    elif config.early is not None:
        inputs = config.early.out_width
        early = _early(tally, config.early, config.channels, config.image_size)
    cut = patches * inputs * config.patch_size[0] * config.patch_size[1]
    tally.dense(patches, cut // patches, width)
    tally.kept += cut
    tally.alive(held + early + cut + patches * width)
    tally.parameters += config.prefix_tokens * width
    tally.parameters += _position_parameters(config)
    held += tokens * width  # z_0 stays with the caller of the encoder
    if config.dropout:
        tally.kept += tokens * width

    for layer in range(config.layers):
        _layer(tally, config, layer, held)
    tally.norms(width)  # after the encoder, or after the pool
    tally.kept += 2 * _trained_tokens(config) * width

    if config.pool == "map":
        tally.parameters += width  # the probe
        tally.dense(1, width, width)
        tally.dense(patches, width, 2 * width)
        tally.macs += 2 * patches * width
        tally.dense(1, width, width)
        tally.norms(width)
        tally.dense(1, width, hidden)
        tally.dense(1, hidden, width)
        tally.kept += 2 * _trained_tokens(config) * width
    if config.representation_width:
        tally.dense(1, width, config.representation_width)
    if config.num_classes:
        for _ in range(2 if config.distill_token else 1):
            tally.dense(1, config.feature_width, config.num_classes)


def _trained_tokens(config: ViTConfig) -> int:
    """Tokens of a training pass, from which patch dropout takes some."""
    patches = config.grid[0] * config.grid[1]
    return config.prefix_tokens + max(1, round(patches * (1 - config.patch_dropout)))


def _position_parameters(config: ViTConfig) -> int:
    tables = config.layers if config.position.place == "every" else 1
    placed = config.prefix_tokens if config.position.prefix else 0
    down, across = config.grid
    match config.position.kind:
        case "learned-1d":
            return tables * (placed + down * across) * config.width
        case "learned-2d":
            return tables * ((down + across) * (config.width // 2) + placed * config.width)
        case "relative":
            return tables * (2 * down * across - 1) * config.width
        case "none" | "sincos-2d":
            return 0


def _layer(tally: Tally, config: ViTConfig, layer: int, held: int) -> None:
    """Attention and MLP, with `held` numbers alive around them.

    Kept: the input of each norm and dense layer and of the GELU, q, k, v, attention's output; about 8 N D + 2 N M.
    """
    width, hidden, tokens, trained = config.width, config.mlp_width, config.tokens, _trained_tokens(config)
    rows = tokens * width
    tally.norms(width, width)
    tally.dense(tokens, width, 3 * width, bias=config.qkv_bias)
    if config.attention == "axial":
        inside = _axial(tally, config, layer)
    elif config.position.kind == "relative" and (layer == 0 or config.position.place != "stem"):
        inside = _relative(tally, config)
    else:
        tally.macs += 2 * tokens * rows  # q k and the weighted sum of v
        tally.kept += trained * (width + config.heads)  # the output, and one logsumexp a row of attention
        inside = rows
    tally.alive(held + 6 * rows + inside)  # z, its norm, q, k, v, and the output
    tally.dense(tokens, width, width)
    tally.dense(tokens, width, hidden)
    tally.dense(tokens, hidden, width)
    tally.kept += trained * (7 * width + 2 * hidden + 4)
    tally.alive(held + 3 * rows + 2 * tokens * hidden)
    if config.layer_scale:
        tally.parameters += 2 * width
        tally.kept += 2 * trained * width
    if config.dropout:
        tally.kept += trained * (2 * width + hidden)  # the masks


def _relative(tally: Tally, config: ViTConfig) -> int:
    """Attention with offsets for keys, which no fused kernel has: the maps of attention are real. Numbers alive within."""
    patches = config.grid[0] * config.grid[1]
    rows, maps, offsets = config.tokens * config.width, config.heads * config.tokens**2, 2 * patches - 1
    tally.macs += 2 * config.tokens * rows
    tally.macs += patches * config.width * offsets  # each patch's query with every offset
    tally.kept += 4 * rows + maps + offsets * config.width
    return rows + 4 * maps


def _axial(tally: Tally, config: ViTConfig, layer: int) -> int:
    """Attention along rows, then columns: a patch sees its line and the prefix, the prefix sees all. Numbers alive within."""
    prefix, (down, across) = config.prefix_tokens, config.grid
    lines, length = (down, across) if layer % 2 == 0 else (across, down)
    patches, seen = down * across, lines * (prefix + length)
    tally.macs += 2 * config.width * (patches * (prefix + length) + prefix * config.tokens)
    # Queries in lines, keys and values in lines with the prefix before each, and the output in lines and in order.
    tally.kept += (patches + 2 * seen + config.tokens) * config.width
    return (2 * seen + 2 * config.tokens) * config.width


def _stem(tally: Tally, config: ResNetStem, channels: int, image_size: tuple[int, int]) -> int:
    """The post-activation ResNet of a hybrid; the numbers of its feature maps."""
    picture = channels * image_size[0] * image_size[1]
    size = _halved(image_size)
    root = _cells(size) * config.width
    tally.conv(_cells(size), channels, config.width, 7)
    tally.norms(config.width)
    size = _halved(size)
    x = _cells(size) * config.width
    tally.kept += picture + 3 * root + MAXIMUM * x  # the picture padded; the root before its norm, after it, and padded
    tally.alive(picture + 3 * root + (1 + MAXIMUM) * x)  # the root, padded, and with its channels last to be pooled
    inputs = config.width
    for stage, units in enumerate(config.blocks):
        width, begun = config.width * 2**stage, 0
        for unit in range(units):
            after = _halved(size) if unit == 0 and stage else size
            _bottleneck(tally, (inputs, width, width * 4), size, after, first=unit == 0)
            tally.norms(width, width, width * 4, *([width * 4] if unit == 0 else []))
            wide, narrow, out = _cells(size) * width, _cells(after) * width, _cells(after) * width * 4
            shortcut = out if unit == 0 else 0
            padded = wide if after != size else 0
            # Inputs of the convolutions and of the norms after them.
            tally.kept += x + 2 * wide + padded + 2 * narrow + out + shortcut
            within = max(2 * wide, wide + padded + narrow, wide + 2 * narrow, narrow + 2 * out)
            tally.alive(picture + begun + x + shortcut + within)
            begun = begun or x
            x, size, inputs = out, after, width * 4
    tally.kept += x if config.blocks else 0
    return x


def _early(tally: Tally, config: EarlyConvolutions, channels: int, image_size: tuple[int, int]) -> int:
    """Plain convolutions, each with its norm and GELU, the later ones of a stage with a shortcut; the numbers of the last map.

    The picture is copied once, channels last.
    """
    picture = channels * image_size[0] * image_size[1]
    size, inputs, x = image_size, channels, picture
    for width, units in zip(config.widths, config.units, strict=True):
        size = _halved(size)
        for _ in range(units):
            out, groups = _cells(size) * width, width // config.group_width
            tally.plain_conv(_cells(size), inputs, width, 3, bias=False)
            tally.norms(width)
            # The convolution's input, the norm's with its means and deviations, and the GELU's.
            tally.kept += x + 2 * out + 2 * groups
            tally.alive(picture + x + 2 * out)
            x, inputs = out, width
    return x


def _resnet(tally: Tally, config: ResNetConfig) -> None:
    """A BiT ResNet, pre-activation."""
    picture = config.channels * config.image_size[0] * config.image_size[1]
    inputs = config.root_width * config.width_factor
    size = _halved(config.image_size)
    root = _cells(size) * inputs
    tally.conv(_cells(size), config.channels, inputs, 7)
    size = _halved(size)
    x = _cells(size) * inputs
    tally.kept += picture + root + MAXIMUM * x
    tally.alive(picture + 3 * root + (1 + MAXIMUM) * x)
    for stage, (units, stage_width) in enumerate(zip(config.blocks, config.stage_widths, strict=True)):
        outputs, begun = stage_width * config.width_factor, 0
        width = outputs // 4
        for unit in range(units):
            after = _halved(size) if unit == 0 and stage else size
            _bottleneck(tally, (inputs, width, outputs), size, after, first=unit == 0)
            tally.norms(inputs, width, width)
            wide, narrow, out = _cells(size) * width, _cells(after) * width, _cells(after) * outputs
            shortcut = out if unit == 0 else 0
            # Inputs of the three norms and of the convolutions after them.
            tally.kept += 2 * x + 2 * wide + 2 * narrow
            within = max(2 * wide + narrow, 2 * narrow + out, 2 * out)
            tally.alive(picture + begun + 2 * x + shortcut + within)
            begun = begun or x
            x, size, inputs = out, after, outputs
    tally.norms(inputs)
    tally.kept += 2 * x + inputs
    tally.alive(picture + 2 * x)
    if config.num_classes:
        tally.dense(1, inputs, config.num_classes)


def _bottleneck(
    tally: Tally, channels: tuple[int, int, int], before: tuple[int, int], after: tuple[int, int], *, first: bool
) -> None:
    """The convolutions 1x1, 3x3 with the stride, 1x1, and the first unit's projected shortcut."""
    inputs, width, outputs = channels
    tally.conv(_cells(before), inputs, width, 1)
    tally.conv(_cells(after), width, width, 3)
    tally.conv(_cells(after), width, outputs, 1)
    if first:
        tally.conv(_cells(after), inputs, outputs, 1)


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    """A map after a stride of 2: every padding used here rounds up."""
    return -(-size[0] // 2), -(-size[1] // 2)


def _cells(size: tuple[int, int]) -> int:
    return size[0] * size[1]
