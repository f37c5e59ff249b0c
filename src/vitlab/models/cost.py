"""What a model costs before it is built: parameters, multiply-adds and memory, by formula. No torch here.

How it is counted:

- **Multiply-adds** (MACs) are those of matrix products and convolutions in one forward pass of one image to logits, attention's
  two products among them, zeros of a padding included. Norms, activations, softmax, additions and interpolation are left out.
  torch's flop counter gives exactly twice this. Local attention is counted as it is computed: all pairs, then masked.
- **Memory** is counted in numbers: parameters, and tensors of activations. The two memory figures are estimates, held to what
  torch really allocates by the tests: operators may need a little working space of their own.

Letters: n patches, p prefix tokens, N = p + n tokens, D width, M mlp_width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig, MbStage
from vitlab.config.model import ConvStem, ModelConfig, ResNetConfig, ResNetStem, ViTConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.variants import RivalConfig
from vitlab.errors import pair

# The running account behind `vitlab.models.cost`: what each kind of layer adds to it. No torch here.

MAXIMUM = 2  # a pooled cell also says where its maximum was, in 8 bytes: two numbers


@dataclass(slots=True)
class CostCounter:
    """Sums of parameters, of multiply-adds, of numbers put out and kept; and the largest of what was alive at once.

    `copies` are numbers made from the weights whatever the batch, `largest_copy` those of one layer.
    """

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    peak: int = 0
    kept: int = 0
    copies: int = 0
    largest_copy: int = 0

    def dense(self, rows: int, inputs: int, outputs: int, *, bias: bool = True) -> None:
        """A dense layer on `rows` vectors."""
        self.parameters += inputs * outputs + (outputs if bias else 0)
        self.macs += rows * inputs * outputs
        self.activations += rows * outputs

    def conv(self, cells: int, inputs: int, outputs: int, kernel: int) -> None:
        """A standardised convolution that puts out `cells` places; its kernel is centred, then scaled: two copies."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights
        self.macs += cells * weights
        self.activations += cells * outputs
        self.copies += 2 * weights
        self.largest_copy = max(self.largest_copy, 2 * weights)

    def plain_conv(self, cells: int, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        """A convolution that puts out `cells` places; `inputs` are those that one output sees, 1 for a depthwise one."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights + (outputs if bias else 0)
        self.macs += cells * weights
        self.activations += cells * outputs

    def fixed(self, numbers: int) -> None:
        """Numbers alive within one layer whatever the batch."""
        self.largest_copy = max(self.largest_copy, numbers)

    def norms(self, *channels: int) -> None:
        """Norms with a scale and a bias, one for each width given."""
        self.parameters += 2 * sum(channels)

    def alive(self, numbers: int) -> None:
        """A moment at which so many numbers are alive."""
        self.peak = max(self.peak, numbers)


# What the rivals cost, by formula, as `vitlab.models.cost` counts it. No torch here.
#
# `kept` and `alive` are worked out from what torch saves and holds; rows are cells times width.


def account_rival(counter: CostCounter, config: RivalConfig) -> None:
    """Add a whole forward pass of one image."""
    match config:
        case SwinConfig():
            _swin(counter, config)
        case ConvNeXtConfig():
            _convnext(counter, config)
        case EfficientNetConfig():
            _efficientnet(counter, config)
        case RecurrentConfig():
            _recurrent(counter, config)
    if config.num_classes:
        counter.dense(1, config.feature_width, config.num_classes)
        counter.kept += config.feature_width


def _image(config: RivalConfig) -> int:
    return config.channels * config.image_size[0] * config.image_size[1]


def _swin(counter: CostCounter, config: SwinConfig) -> None:
    image, pixels = _image(config), config.channels * config.patch_size[0] * config.patch_size[1]
    cells = config.grids[0][0] * config.grids[0][1]
    counter.dense(cells, pixels, config.width)
    counter.norms(config.width)
    counter.kept += cells * (pixels + config.width + 2)
    counter.alive(image + cells * (2 * pixels + config.width))  # the image with its edges filled, and cut
    for stage, ((down, across), width) in enumerate(zip(config.grids, config.widths, strict=True)):
        held = image
        if stage:
            held += cells * width // 2  # the map before stays with the caller
            cells = down * across
            counter.norms(2 * width)
            counter.dense(cells, 2 * width, width, bias=False)
            counter.kept += cells * (4 * width + 2)
            counter.alive(held + cells * 5 * width)
        for block in range(config.depths[stage]):
            _swin_block(counter, config, stage, held)
            held += cells * width if stage == 0 and block == 0 else 0
    counter.norms(config.feature_width)
    counter.kept += cells * (config.feature_width + 2)


def _swin_block(counter: CostCounter, config: SwinConfig, stage: int, held: int) -> None:
    (down, across), (tall, wide), width = config.grids[stage], config.windows[stage], config.widths[stage]
    heads, hidden, window = config.heads[stage], width * config.mlp_ratio, tall * wide
    windows = -(-down // tall) * -(-across // wide)
    cells, padded = down * across, windows * window
    counter.norms(width, width)
    counter.parameters += (2 * tall - 1) * (2 * wide - 1) * heads
    counter.dense(padded, width, 3 * width, bias=config.qkv_bias)
    counter.macs += 2 * padded * window * width  # q k and the weighted sum of v
    counter.dense(padded, width, width)
    counter.dense(cells, width, hidden)
    counter.dense(cells, hidden, width)
    maps = windows * heads * window**2
    counter.kept += cells * (3 * width + 4 + 2 * hidden) + padded * 5 * width + maps
    counter.alive(held + cells * width + padded * (11 if windows > 1 else 8) * width)  # q, k, v twice: in order, and by heads
    counter.alive(held + cells * (3 * width + 2 * hidden))
    counter.fixed(2 * maps)  # the bias by window and head, and where windows are shifted what it is made of


def _convnext(counter: CostCounter, config: ConvNeXtConfig) -> None:
    image, patch = _image(config), config.patch_size
    x = 0
    for stage, ((down, across), width) in enumerate(zip(config.grids, config.widths, strict=True)):
        cells = down * across
        hidden = width * config.mlp_ratio
        if stage == 0:
            counter.plain_conv(cells, config.channels, width, patch)
            counter.norms(width)
            counter.kept += image + cells * (width + 2)
        else:
            before = config.widths[stage - 1]
            counter.norms(before)
            counter.plain_conv(cells, before, width, 2)
            places = config.grids[stage - 1][0] * config.grids[stage - 1][1]
            counter.kept += places * (2 * before + 2)
            counter.alive(image + 2 * x + cells * width)
        x = cells * width
        for _ in range(config.depths[stage]):
            counter.plain_conv(cells, 1, width, config.kernel)
            counter.norms(width)
            counter.dense(cells, width, hidden)
            counter.dense(cells, hidden, width)
            counter.parameters += width if config.layer_scale else 0
            counter.kept += cells * ((4 if config.layer_scale else 3) * width + 2 + 2 * hidden)
            counter.alive(image + 2 * x + 2 * cells * hidden)
    counter.norms(config.feature_width)
    counter.kept += config.feature_width + 2


def _efficientnet(counter: CostCounter, config: EfficientNetConfig) -> None:
    image, size = _image(config), _strided(config.image_size, 2)
    inputs = config.stem_width
    x = _cells(size) * inputs
    counter.plain_conv(_cells(size), config.channels, inputs, 3, bias=False)
    _batchnorm(counter, inputs)
    counter.kept += image + 2 * x
    counter.alive(2 * image + 2 * x)
    for stage in config.plan:
        for unit in range(stage.blocks):
            size = _unit(counter, config, stage, inputs, size, stage.stride if unit == 0 else 1)
            inputs = stage.width
    x, last = _cells(size) * inputs, _cells(size) * config.head_width
    counter.plain_conv(_cells(size), inputs, config.head_width, 1, bias=False)
    _batchnorm(counter, config.head_width)
    counter.kept += x + 2 * last
    counter.alive(image + x + 2 * last)


def _unit(
    counter: CostCounter, config: EfficientNetConfig, stage: MbStage, inputs: int, size: tuple[int, int], stride: int
) -> tuple[int, int]:
    """An inverted bottleneck on a map of `size`; the size of the map after it."""
    image, after, inner = _image(config), _strided(size, stride), inputs * stage.expansion
    squeezed, outputs = config.squeezed(inputs), stage.width
    x, wide, narrow, out = _cells(size) * inputs, _cells(size) * inner, _cells(after) * inner, _cells(after) * outputs
    if stage.expansion > 1:
        counter.plain_conv(_cells(size), inputs, inner, 1, bias=False)
        _batchnorm(counter, inner)
        counter.kept += x + 2 * wide
        counter.alive(image + x + 2 * wide)
    counter.plain_conv(_cells(after), 1, inner, stage.kernel, bias=False)
    _batchnorm(counter, inner)
    counter.dense(1, inner, squeezed)
    counter.dense(1, squeezed, inner)
    counter.plain_conv(_cells(after), inner, outputs, 1, bias=False)
    _batchnorm(counter, outputs)
    counter.kept += (wide if stage.expansion > 1 or stride > 1 else x) + 4 * narrow + out + 2 * inner + 2 * squeezed
    counter.alive(image + x + 2 * wide + narrow if stride > 1 else image + x + wide + narrow)
    counter.alive(image + x + 2 * narrow)
    return after


def _recurrent(counter: CostCounter, config: RecurrentConfig) -> None:
    image, width, tokens = _image(config), config.width, config.tokens
    cut = tokens * config.channels * config.patch_size[0] * config.patch_size[1]
    counter.dense(tokens, cut // tokens, width)
    counter.kept += cut
    counter.kept += tokens * width
    counter.alive(image + 2 * cut + tokens * width)  # the image with its edges filled, and cut
    for _ in range(config.depth):
        for _ in range(2):  # of the input, and of the state
            counter.dense(tokens, width, config.gates * width)
        # What torch's kernels keep: an LSTM's gates and states in a workspace of their own.
        counter.kept += tokens * width * (65 if config.cell == "lstm" else 8) // 4
        counter.alive(image + 2 * tokens * width)
    counter.norms(width)
    counter.kept += width + 2


def _batchnorm(counter: CostCounter, channels: int) -> None:
    """A scale and a bias; in training, the batch's mean and deviation are kept, whatever its size."""
    counter.norms(channels)
    counter.copies += 2 * channels


def _strided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """A map after a stride: "SAME" padding rounds up."""
    return -(-size[0] // stride), -(-size[1] // stride)


def _cells(size: tuple[int, int]) -> int:
    return size[0] * size[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a model; all but `parameters` and the copies are for one image.

    `parameters`: trainable numbers. `macs`: multiply-adds of a forward pass. `activations`: numbers that dense layers and
    convolutions put out (Radosavovic et al. 2020), which tells speed better than `macs` where memory is the limit.
    `inference_peak`: numbers alive at once, the image's own included, in the worst moment of a forward pass.
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
    counter = CostCounter()
    if isinstance(config, ResNetConfig):
        _resnet(counter, config)
    elif isinstance(config, ViTConfig):
        _vit(counter, config)
    else:
        account_rival(counter, config)
    return Cost(
        parameters=counter.parameters,
        macs=counter.macs,
        activations=counter.activations,
        inference_peak=counter.peak,
        inference_copies=counter.largest_copy,
        training_kept=counter.kept,
        training_copies=counter.copies,
    )


def _vit(counter: CostCounter, config: ViTConfig) -> None:
    width, hidden, tokens = config.width, config.mlp_width, config.tokens
    patches = config.grid[0] * config.grid[1]
    inputs, held, early = config.channels, config.channels * config.image_size[0] * config.image_size[1], 0
    if config.stem is not None:
        inputs = config.stem.out_width
        held += _stem(counter, config.stem, config.channels, config.image_size)
    elif config.early is not None:
        inputs = config.early.out_width
        early = _early(counter, config.early, config.channels, config.image_size)
    cut = patches * inputs * config.patch_size[0] * config.patch_size[1]
    counter.dense(patches, cut // patches, width)
    counter.kept += cut
    counter.alive(held + early + cut + patches * width)
    counter.parameters += config.prefix_tokens * width
    counter.parameters += _position_parameters(config)
    held += tokens * width  # z_0 stays with the caller of the encoder
    if config.dropout:
        counter.kept += tokens * width

    for layer in range(config.layers):
        _layer(counter, config, layer, held)
    counter.norms(width)  # after the encoder, or after the pool
    counter.kept += 2 * _trained_tokens(config) * width

    if config.pool == "map":
        counter.parameters += width  # the probe
        counter.dense(1, width, width)
        counter.dense(patches, width, 2 * width)
        counter.macs += 2 * patches * width
        counter.dense(1, width, width)
        counter.norms(width)
        counter.dense(1, width, hidden)
        counter.dense(1, hidden, width)
        counter.kept += 2 * _trained_tokens(config) * width
    if config.representation_width:
        counter.dense(1, width, config.representation_width)
    if config.num_classes:
        for _ in range(2 if config.distill_token else 1):
            counter.dense(1, config.feature_width, config.num_classes)


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


def _layer(counter: CostCounter, config: ViTConfig, layer: int, held: int) -> None:
    """Attention and MLP, with `held` numbers alive around them.

    Kept: the input of each norm and dense layer and of the GELU, q, k, v, attention's output; about 8 N D + 2 N M.
    """
    width, hidden, tokens, trained = config.width, config.mlp_width, config.tokens, _trained_tokens(config)
    rows = tokens * width
    counter.norms(width, width)
    counter.dense(tokens, width, 3 * width, bias=config.qkv_bias)
    if config.attention == "axial":
        inside = _axial(counter, config, layer)
    elif config.position.kind == "relative" and (layer == 0 or config.position.place != "stem"):
        inside = _relative(counter, config)
    else:
        counter.macs += 2 * tokens * rows  # q k and the weighted sum of v
        counter.kept += trained * (width + config.heads)  # the output, and one logsumexp a row of attention
        inside = rows
    counter.alive(held + 6 * rows + inside)  # z, its norm, q, k, v, and the output
    counter.dense(tokens, width, width)
    counter.dense(tokens, width, hidden)
    counter.dense(tokens, hidden, width)
    counter.kept += trained * (7 * width + 2 * hidden + 4)
    counter.alive(held + 3 * rows + 2 * tokens * hidden)
    if config.layer_scale:
        counter.parameters += 2 * width
        counter.kept += 2 * trained * width
    if config.dropout:
        counter.kept += trained * (2 * width + hidden)  # the masks


def _relative(counter: CostCounter, config: ViTConfig) -> int:
    """Attention with offsets for keys, which no fused kernel has: the maps of attention are real. Numbers alive within."""
    patches = config.grid[0] * config.grid[1]
    rows, maps, offsets = config.tokens * config.width, config.heads * config.tokens**2, 2 * patches - 1
    counter.macs += 2 * config.tokens * rows
    counter.macs += patches * config.width * offsets  # each patch's query with every offset
    counter.kept += 4 * rows + maps + offsets * config.width
    return rows + 4 * maps


def _axial(counter: CostCounter, config: ViTConfig, layer: int) -> int:
    """Attention along rows, then columns: a patch sees its line and the prefix, the prefix sees all. Numbers alive within."""
    prefix, (down, across) = config.prefix_tokens, config.grid
    lines, length = (down, across) if layer % 2 == 0 else (across, down)
    patches, seen = down * across, lines * (prefix + length)
    counter.macs += 2 * config.width * (patches * (prefix + length) + prefix * config.tokens)
    # Queries in lines, keys and values in lines with the prefix before each, and the output in lines and in order.
    counter.kept += (patches + 2 * seen + config.tokens) * config.width
    return (2 * seen + 2 * config.tokens) * config.width


def _stem(counter: CostCounter, config: ResNetStem, channels: int, image_size: tuple[int, int]) -> int:
    """The post-activation ResNet of a hybrid; the numbers of its feature maps."""
    image = channels * image_size[0] * image_size[1]
    size = _halved(image_size)
    root = _cells(size) * config.width
    counter.conv(_cells(size), channels, config.width, 7)
    counter.norms(config.width)
    size = _halved(size)
    x = _cells(size) * config.width
    counter.kept += image + 3 * root + MAXIMUM * x  # the image padded; the root before its norm, after it, and padded
    counter.alive(image + 3 * root + (1 + MAXIMUM) * x)  # the root, padded, and with its channels last to be pooled
    inputs = config.width
    for stage, units in enumerate(config.blocks):
        width, begun = config.width * 2**stage, 0
        for unit in range(units):
            after = _halved(size) if unit == 0 and stage else size
            _bottleneck(counter, (inputs, width, width * 4), size, after, first=unit == 0)
            counter.norms(width, width, width * 4, *([width * 4] if unit == 0 else []))
            wide, narrow, out = _cells(size) * width, _cells(after) * width, _cells(after) * width * 4
            shortcut = out if unit == 0 else 0
            padded = wide if after != size else 0
            # Inputs of the convolutions and of the norms after them.
            counter.kept += x + 2 * wide + padded + 2 * narrow + out + shortcut
            within = max(2 * wide, wide + padded + narrow, wide + 2 * narrow, narrow + 2 * out)
            counter.alive(image + begun + x + shortcut + within)
            begun = begun or x
            x, size, inputs = out, after, width * 4
    counter.kept += x if config.blocks else 0
    return x


def _early(counter: CostCounter, config: ConvStem, channels: int, image_size: tuple[int, int]) -> int:
    """Plain convolutions, each with its norm and GELU, the later ones of a stage with a shortcut; the numbers of the last map.

    The image is copied once, channels last.
    """
    image = channels * image_size[0] * image_size[1]
    size, inputs, x = image_size, channels, image
    for width, units in zip(config.widths, config.units, strict=True):
        size = _halved(size)
        for _ in range(units):
            out, groups = _cells(size) * width, width // config.group_width
            counter.plain_conv(_cells(size), inputs, width, 3, bias=False)
            counter.norms(width)
            # The convolution's input, the norm's with its means and deviations, and the GELU's.
            counter.kept += x + 2 * out + 2 * groups
            counter.alive(image + x + 2 * out)
            x, inputs = out, width
    return x


def _resnet(counter: CostCounter, config: ResNetConfig) -> None:
    """A BiT ResNet, pre-activation."""
    image = config.channels * config.image_size[0] * config.image_size[1]
    inputs = config.root_width * config.width_factor
    size = _halved(config.image_size)
    root = _cells(size) * inputs
    counter.conv(_cells(size), config.channels, inputs, 7)
    size = _halved(size)
    x = _cells(size) * inputs
    counter.kept += image + root + MAXIMUM * x
    counter.alive(image + 3 * root + (1 + MAXIMUM) * x)
    for stage, (units, stage_width) in enumerate(zip(config.blocks, config.stage_widths, strict=True)):
        outputs, begun = stage_width * config.width_factor, 0
        width = outputs // 4
        for unit in range(units):
            after = _halved(size) if unit == 0 and stage else size
            _bottleneck(counter, (inputs, width, outputs), size, after, first=unit == 0)
            counter.norms(inputs, width, width)
            wide, narrow, out = _cells(size) * width, _cells(after) * width, _cells(after) * outputs
            shortcut = out if unit == 0 else 0
            # Inputs of the three norms and of the convolutions after them.
            counter.kept += 2 * x + 2 * wide + 2 * narrow
            within = max(2 * wide + narrow, 2 * narrow + out, 2 * out)
            counter.alive(image + begun + 2 * x + shortcut + within)
            begun = begun or x
            x, size, inputs = out, after, outputs
    counter.norms(inputs)
    counter.kept += 2 * x + inputs
    counter.alive(image + 2 * x)
    if config.num_classes:
        counter.dense(1, inputs, config.num_classes)


def _bottleneck(
    counter: CostCounter, channels: tuple[int, int, int], before: tuple[int, int], after: tuple[int, int], *, first: bool
) -> None:
    """The convolutions 1x1, 3x3 with the stride, 1x1, and the first unit's projected shortcut."""
    inputs, width, outputs = channels
    counter.conv(_cells(before), inputs, width, 1)
    counter.conv(_cells(after), width, width, 3)
    counter.conv(_cells(after), width, outputs, 1)
    if first:
        counter.conv(_cells(after), inputs, outputs, 1)


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    """A map after a stride of 2: every padding used here rounds up."""
    return -(-size[0] // 2), -(-size[1] // 2)
