"""Patches read one after the other by an LSTM (Hochreiter and Schmidhuber 1997) or a plain RNN, for comparison.

Axes: B batch, C channels or classes, N tokens, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.config.recurrent import RecurrentConfig
from vitlab.errors import ConfigError
from vitlab.models.model import Draw, Family, Model, init_head, init_norm, zero
from vitlab.models.record import Record
from vitlab.models.vit import PatchEmbedding


class Layer(nn.Module):
    """One layer of torch's LSTM or tanh RNN over a sequence; the first state is zero.

    The rows of `input` and `state` are, for an LSTM, the input gate's, the forget gate's, the cell's and the output gate's.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.cell = config.cell
        self.input = nn.Linear(config.width, config.gates * config.width)
        self.state = nn.Linear(config.width, config.gates * config.width)

    def forward(self, x_BND: Tensor) -> Tensor:
        # torch.nn.LSTM hides its parameters in a list of its own, which torch.compile and FSDP cannot handle.
        weights = [self.input.weight, self.state.weight, self.input.bias, self.state.bias]
        zero_1BD = x_BND.new_zeros(1, x_BND.shape[0], x_BND.shape[2])
        if self.cell == "lstm":
            return torch.lstm(x_BND, [zero_1BD, zero_1BD], weights, True, 1, 0.0, self.training, False, True)[0]
        return torch.rnn_tanh(x_BND, zero_1BD, weights, True, 1, 0.0, self.training, False, True)[0]


class Recurrent(Model):
    """Normalised images (B, C, H, W) of any size to logits (B, classes); `config.image_size` is the size it was built for."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config: RecurrentConfig = config
        self.recompute = False
        self.patches = PatchEmbedding(config.channels, config.width, config.patch_size, pad=True)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head: nn.Linear | None = nn.Linear(config.width, config.num_classes) if config.num_classes else None

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes) of normalised images; without a head (`num_classes` 0) the features."""
        y_BD = self.features(images_BCHW, record)
        return y_BD if self.head is None else self.head(self.dropout(y_BD))

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, D): the last layer's last output or the mean of all, normalised."""
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images are (batch, channels, height, width), not of shape {tuple(images_BCHW.shape)}")
        if images_BCHW.shape[1] != self.config.channels:
            raise ConfigError(f"the images have {images_BCHW.shape[1]} channels and the model takes {self.config.channels}")
        if record is not None:
            record.refuse_all_but_tokens("a recurrent network")
            record.start(len(self.layers))
        z_BND: Tensor = self.patches(images_BCHW)
        for index, layer in enumerate(self.layers):
            z_BND = self._run(layer, z_BND if index == 0 else self.dropout(z_BND))
            if record is not None:
                record.keep_tokens(index, z_BND)
        y_BD: Tensor = self.norm(z_BND[:, -1] if self.config.pool == "last" else z_BND.mean(1))
        return y_BD

    def _run(self, layer: nn.Module, z_BND: Tensor) -> Tensor:
        again = self.recompute and torch.is_grad_enabled()
        z_BND = checkpoint(layer, z_BND, use_reentrant=False) if again else layer(z_BND)
        return z_BND


def init_recurrent(model: Recurrent, draw: Draw) -> None:
    """Matrices uniform as in torch's cells; biases 0, but 1 for an LSTM's forget gate, which otherwise forgets half a step."""
    for module in model.modules():
        match module:
            case PatchEmbedding():
                assert module.bias is not None
                draw.torch_default(module.weight, module.bias)
            case nn.Linear():  # overwritten below; drawn so that a seed gives the values it always gave
                draw.normal(module.weight, math.sqrt(2 / module.weight.shape[0]))
            case nn.LayerNorm():
                init_norm(module)
            case _:
                pass
    for layer in model.modules():
        if isinstance(layer, Layer):
            width = layer.state.weight.shape[1]
            for dense in (layer.input, layer.state):
                draw.uniform(dense.weight, 1 / math.sqrt(width))
                zero(dense.bias)
            if layer.cell == "lstm":
                layer.input.bias[width : 2 * width].fill_(1)  # Jozefowicz et al. 2015
    init_head(model.head, model.config.head_bias)


FAMILY = Family(
    model=Recurrent,
    initialise=init_recurrent,
    layers=(r"layers\.(\d+)\.",),
    hidden=(),
    sharded=(Layer,),
)
