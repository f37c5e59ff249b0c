"""timm's state dicts: its Vision Transformers, BiT, Swin, ConvNeXt and EfficientNet, with or without their folder's config.json.

A timm file does not say how many heads there are nor the shape of its grid; config.json, or vitlab's own header, may.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.bit import bit_config, bit_rows, resnet_notes
from vitlab.checkpoints.formats.contract import Expressible, Hints, Reading, State, Written, numerics_notes, refuse, stem_notes
from vitlab.checkpoints.formats.dinov2 import is_dinov2
from vitlab.checkpoints.formats.header import Header, adopted, header_of, metadata_of
from vitlab.checkpoints.formats.infer import (
    WIDE_HEADS,
    cropped,
    described,
    making,
    naflex_note,
    squashed,
    stem_of,
    unwrapped,
    zero_head,
)
from vitlab.checkpoints.formats.sidecar import Sidecar
from vitlab.checkpoints.formats.timm_families import family_notes, family_rows, find_other_family, holds_other_family
from vitlab.checkpoints.formats.timm_sidecar import (
    CONVNEXT_EPS,
    is_timm,
    labels_of,
    preprocess_of,
    said_of,
    sidecar_of,
    styled_architecture,
)
from vitlab.checkpoints.formats.timm_vit import Said, is_vit, vit_config, vit_rows, without_leftovers
from vitlab.checkpoints.table import Row, native_shapes, to_ours, to_theirs
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.timm_names import architecture_config
from vitlab.config.vit import PROFILES, ViTConfig

FORMAT = "timm"
CAN = Expressible(
    format=FORMAT,
    pools=("token", "mean", "map"),
    positions=("learned-1d", "none"),
    bare_positions=True,
    class_token_unpooled=True,
    stem=True,
    distill_token=True,
    register_tokens=True,
    representation=True,
    norm_after_mean=True,
    layer_scale=True,
    without_qkv_bias=True,
    traits=(
        *("the quick GELU", "RMSNorm", "norms after the residual branches", "a norm before the encoder"),
        *("a norm of the patch embeddings", "an encoder without a last norm", "a gated MLP", "a norm inside the MLP"),
        *("an MLP without biases", "keys without a bias", "an attention output without a bias", "norms of queries and keys"),
        *("a norm of attention's output", "shared heads of keys and values", "attention and MLP in parallel", "parallel branches"),
        *("rotary positions", "a relative position bias", "positions of another grid", "pooling over prefix tokens"),
        *("an attention pool of its own size", "layer scale on attention alone", "images cropped to whole patches"),
    ),
)
READER = "timm"


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of timm's VisionTransformer, BiT ResNets, Swin, ConvNeXt or EfficientNet."""
    tensors, _ = unwrapped(raw)
    return (is_vit(tensors) and not is_dinov2(tensors)) or _is_bit(tensors) or holds_other_family(tensors)


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of a timm file; what neither it nor its config.json says is given or guessed, with a note."""
    tensors, notes = unwrapped(raw)
    if is_vit(tensors):
        tensors, left = without_leftovers(tensors)
        notes = (*notes, *left)
    where, header = raw.path.name, header_of(raw)
    beside = raw.sidecar if header is None and is_timm(raw.sidecar) else None
    config: ModelConfig
    if holds_other_family(tensors):
        other = find_other_family(tensors, hints, None if header is None else header.config, beside, where=where)
        config, found, tensors = other.config, list(other.notes), other.tensors
    else:
        config, found = _config(tensors, hints, header, beside, where)
    if header is not None:
        config = adopted(config, header, hints, where=where)
    state = to_ours(tensors, _rows(config, tensors), native_shapes(config), where=where)
    labels: tuple[str, ...] | None = None
    fed: list[str] = []
    if header is not None:
        preprocess = header.preprocess
        labels = header.labels_for(config.num_classes)
    elif beside is not None:
        with making(where):
            preprocess, fed = preprocess_of(beside, config)
        labels, named = labels_of(beside, config.num_classes)
        fed += named
    else:
        preprocess, fed = _guessed_feeding(config)
    if header is None and isinstance(config, ViTConfig) and config.position.grid is not None:
        fed.append(naflex_note(preprocess))
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        labels=labels,
        notes=(*notes, *found, *zero_head(state), *fed),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under timm's names; in a folder, beside the config.json from which timm builds it."""
    alone: list[str] = []
    if isinstance(config, ResNetConfig):
        notes = resnet_notes(config, official=False, reader=READER)
    elif isinstance(config, ViTConfig):
        refuse(config, CAN, also=_unreadable(config))
        notes, alone = _vit_notes(config), _tensors_alone(config)
    else:
        notes = family_notes(config)
        if isinstance(config, ConvNeXtConfig) and config.norm_eps != CONVNEXT_EPS:
            alone = [f"the tensors do not say that norm_eps is {config.norm_eps:g}: timm needs norm_eps={config.norm_eps:g}"]
    tensors = to_theirs(state, _rows(config), native_shapes(config))
    beside = sidecar_of(config, preprocess, labels)
    return Written(
        container="safetensors",
        tensors=tensors,
        metadata=metadata_of(config, preprocess, labels),
        sidecars={} if beside is None else {"config.json": beside},
        no_folder=_unbuilt(config) if beside is None else None,
        notes=tuple(notes),
        alone=tuple(alone),
    )


def _rows(config: ModelConfig, tensors: dict[str, Tensor] | None = None) -> list[Row]:
    if isinstance(config, ViTConfig):
        return list(vit_rows(config))
    return list(bit_rows(config) if isinstance(config, ResNetConfig) else family_rows(config, tensors))


def _is_bit(tensors: dict[str, Tensor]) -> bool:
    return "stem.conv.weight" in tensors and "stages.0.blocks.0.conv1.weight" in tensors


def _config(
    tensors: dict[str, Tensor], hints: Hints, header: Header | None, beside: Sidecar | None, where: str
) -> tuple[ModelConfig, list[str]]:
    if _is_bit(tensors):
        config, notes = bit_config(tensors, hints, where=where)
        return config, notes if header is None else []
    said = Said()
    if header is not None and isinstance(header.config, ViTConfig):
        said = Said(heads=header.config.heads, grid=header.config.grid, pool=header.config.pool, style=header.config)
    elif beside is not None:
        said = said_of(beside)
    return vit_config(tensors, hints, said, where=where)


def _guessed_feeding(config: ModelConfig) -> tuple[Preprocess, list[str]]:
    size, channels = config.image_size, config.channels
    if isinstance(config, ResNetConfig):
        preprocess = cropped(size, channels, interpolation="bilinear")
        return preprocess, [f"preprocessing is a guess ({described(preprocess)}): the file does not say"]
    if not isinstance(config, ViTConfig):
        preprocess = cropped(size, channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
        return preprocess, [f"preprocessing is a guess ({described(preprocess)}): the file does not say"]
    if config.pool == "map":
        preprocess = squashed(size, channels, interpolation="bicubic")
    elif config.stem is not None:
        preprocess = cropped(size, channels, interpolation="bicubic")
    else:
        preprocess = cropped(size, channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
        other = "models converted from JAX (augreg) want pixels to [-1, 1] and a crop of 0.9"
        return preprocess, [f"preprocessing is a guess, as for DeiT ({described(preprocess)}): the file does not say; {other}"]
    return preprocess, [f"preprocessing is a guess ({described(preprocess)}): the file does not say"]


def _unreadable(config: ViTConfig) -> list[str]:
    """timm's distilled class has a position for each of its tokens, and no registers among them."""
    reasons = []
    if config.distill_token and config.register_tokens:
        reasons.append("register tokens beside a distillation token")
    if config.distill_token and (config.position.kind == "none" or not config.position.prefix):
        reasons.append("a distillation token without a position")
    return reasons


def _unbuilt(config: ModelConfig) -> str:
    """Why timm cannot build this model from any config.json."""
    if isinstance(config, ViTConfig) and config.traits:
        return f"timm has no architecture with {', '.join(config.traits)} and the rest of this model under a name"
    if isinstance(config, ViTConfig) and config.representation_width:
        return "timm has had no hidden layer before the head since 0.8"
    if isinstance(config, ViTConfig | ResNetConfig):
        return "timm has no model with this ResNet under a name"
    if isinstance(config, SwinConfig) and not config.num_classes:
        return "timm reads a Swin without a head as a file of Swin's authors"
    return f"timm has no {config.family} of this shape under a name"


def _vit_notes(config: ViTConfig) -> list[str]:
    """Where timm computes something else even with a complete config.json."""
    if (architecture := styled_architecture(config)) is not None:
        style = architecture_config(architecture)
        assert isinstance(style, ViTConfig)
        return numerics_notes(config, style.numerics, reader=f"timm's {architecture}")
    spoken = replace(config, numerics=replace(config.numerics, gelu=PROFILES["timm"].gelu))
    notes = numerics_notes(spoken, PROFILES["timm"], reader=READER)
    if config.stem is not None:
        implied = stem_of(Hints(), config.stem.blocks, config.stem.width, official=False)
        notes += stem_notes(config.stem, implied, reader=READER)
    if config.representation_width:
        notes.append("timm has had no hidden layer before the head (pre_logits) since 0.8: only older versions read these keys")
    return notes


def _tensors_alone(config: ViTConfig) -> list[str]:
    """Where timm builds or computes something else from the tensors without the config.json."""
    notes = []
    if config.traits:
        named = styled_architecture(config) or "which has no name there"
        notes.append(f"the tensors do not say {', '.join(config.traits)}: timm needs the architecture, {named}")
    elif config.numerics.gelu != PROFILES["timm"].gelu:
        notes.append(f"the tensors do not say that the GELU is the {config.numerics.gelu} one: timm needs act_layer='gelu_tanh'")
    usual = WIDE_HEADS.get((config.width, config.depth, config.mlp_width), config.width / 64)
    if config.heads != usual:
        notes.append(f"the tensors do not say that there are {config.heads} heads: timm needs num_heads={config.heads}")
    if config.grid[0] != config.grid[1] or config.position.kind == "none":
        notes.append(f"the tensors do not say that the grid is {config.grid[0]}x{config.grid[1]}: timm needs img_size")
    if config.pool == "mean" and config.class_token and not config.norm_after_pool:
        notes.append("the tensors do not say that the pool is the mean: timm needs global_pool='avg', fc_norm=False")
    return notes
