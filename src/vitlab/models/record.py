"""What a caller wants to see of a model's inside, passed to the model as an argument: no hooks.

Axes: B batch, H heads, N tokens (class, distillation and register tokens first), K width of a head, D width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from vitlab.errors import ConfigError

if TYPE_CHECKING:
    from vitlab.models.attention_variants import AttentionCapture


class Record:
    """Ask for the inside of one forward pass: `record = Record(); model(images_BCHW, record); record.attention_BHNN[-1]`.

    `layers` chooses layers, or a ResNet's stages, by number, negative from the end; None means all. The lists hold one tensor a
    chosen layer, in order, and `recorded` their numbers. Attention is computed beside the fused kernel, whose output is used as
    always: recording changes no output bit. A record can be used again: each pass clears it first.
    `captures` are for long sequences: they give any rows of a layer's attention without ever holding all of it.
    """

    def __init__(
        self,
        *,
        layers: Sequence[int] | None = None,
        attention: bool = True,
        tokens: bool = False,
        queries_keys: bool = False,
        captures: bool = False,
        maps: bool = False,
    ) -> None:
        self.layers = None if layers is None else tuple(layers)
        self.wants_attention = attention
        self.wants_tokens = tokens
        self.wants_queries_keys = queries_keys
        self.wants_captures = captures
        self.wants_maps = maps
        self._clear(set())

    def _clear(self, chosen: set[int]) -> None:
        self._chosen = chosen
        self.recorded: list[int] = sorted(chosen)
        self.attention_BHNN: list[Tensor] = []
        self.tokens_BND: list[Tensor] = []
        self.queries_BHNK: list[Tensor] = []
        self.keys_BHNK: list[Tensor] = []
        self.captures: list[AttentionCapture] = []
        self.maps_BCHW: list[Tensor] = []

    def start(self, layers: int) -> None:
        """Begin a pass through a model of that many layers, forgetting the last one."""
        asked = range(layers) if self.layers is None else self.layers
        for layer in asked:
            if not -layers <= layer < layers:
                raise ConfigError(f"there is no layer {layer} to record: the model has {layers}, numbered from 0")
        self._clear({layer % layers for layer in asked})

    def sees_attention(self, layer: int) -> bool:
        """Whether this layer's attention, or what it is made of, is wanted."""
        return layer in self._chosen and self._wants_attention_in_some_form()

    def sees(self, layer: int) -> bool:
        """Whether anything of this layer is wanted."""
        return layer in self._chosen and (self._wants_attention_in_some_form() or self.wants_tokens)

    def _wants_attention_in_some_form(self) -> bool:
        return self.wants_attention or self.wants_queries_keys or self.wants_captures

    def keep_tokens(self, layer: int, z_BND: Tensor) -> None:
        """Called by the encoder after each layer."""
        if self.wants_tokens and layer in self._chosen:
            self.tokens_BND.append(z_BND)

    def keep_maps(self, stage: int, x_BCHW: Tensor) -> None:
        """Called by a convolutional model after each stage."""
        if self.wants_maps and stage in self._chosen:
            self.maps_BCHW.append(x_BCHW)

    def refuse_attention(self, model: str, why: str = "has no attention and no tokens to record") -> None:
        """Called by a model that has no attention among all tokens; `why` says so."""
        if self._wants_attention_in_some_form() or self.wants_tokens:
            raise ConfigError(f"{model} {why}", hint="Record(attention=False, maps=True)")

    def refuse_all_but_tokens(self, model: str) -> None:
        """Called by a model of tokens that has neither attention nor maps."""
        if self._wants_attention_in_some_form() or self.wants_maps:
            raise ConfigError(f"{model} has tokens to record and nothing else", hint="Record(attention=False, tokens=True)")

    def refuse_maps(self, model: str) -> None:
        """Called by a model that has no stages of feature maps."""
        if self.wants_maps:
            raise ConfigError(f"{model} has no stages of feature maps to record", hint="Record(tokens=True)")
