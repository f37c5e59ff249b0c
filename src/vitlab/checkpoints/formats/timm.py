"""timm's state dicts: its Vision Transformers, BiT, Swin, ConvNeXt and EfficientNet, with or without their folder's config.json.

A timm file does not say how many heads there are nor the shape of its grid; config.json, or vitlab's own header, may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import convnext, swin
from vitlab.checkpoints.formats.bit import bit_config, bit_rows, resnet_notes
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Found,
    Hints,
    Reading,
    State,
    Written,
    not_of,
    numerics_notes,
    refuse,
    stem_notes,
)
from vitlab.checkpoints.formats.convnext import convnext_config, convnext_rows
from vitlab.checkpoints.formats.dinov2 import is_dinov2
from vitlab.checkpoints.formats.efficientnet import efficientnet_config, efficientnet_rows, is_efficientnet, without_counters
from vitlab.checkpoints.formats.header import Header, adopted, header_of, metadata_of
from vitlab.checkpoints.formats.infer import (
    WIDE_HEADS,
    cropped,
    described,
    making,
    naflex_note,
    numerics_of,
    squashed,
    stem_of,
    unwrapped,
    zero_head,
)
from vitlab.checkpoints.formats.sidecar import Sidecar, number, size, text, within
from vitlab.checkpoints.formats.swin import swin_config, swin_rows, without_computed
from vitlab.checkpoints.formats.timm_sidecar import (
    CONVNEXT_EPS,
    image_size_of,
    is_timm,
    labels_of,
    preprocess_of,
    refuse_unseen,
    said_of,
    sidecar_of,
    styled_architecture,
)
from vitlab.checkpoints.formats.timm_vit import Said, is_vit, vit_config, vit_rows, without_leftovers
from vitlab.checkpoints.table import Row, native_shapes, to_ours, to_theirs
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.config.efficientnet import EfficientNetConfig, Padding
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.timm_names import architecture_config
from vitlab.config.vit import PROFILES, ViTConfig

# --- Swin, ConvNeXt and EfficientNet: which of them a file holds, by its tensors and its config.json --------------------------

Tensors = dict[str, Tensor]
# ConvNeXts whose LayerNorms have another eps than the authors': depths, widths -> eps. This one is ConvNeXt-XXL, of CLIP.
EPS: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {((3, 4, 30, 3), (384, 768, 1536, 3072)): 1e-5}


def holds_other_family(tensors: Tensors) -> bool:
    """Whether the tensors carry timm's names of a Swin, a ConvNeXt or an EfficientNet."""
    if swin.names_of(tensors) is swin.TIMM:
        return True
    return _is_timms(convnext.names_of(tensors)) or is_efficientnet(tensors)


def find_other_family(tensors: Tensors, hints: Hints, stated: ModelConfig | None, beside: Sidecar | None, *, where: str) -> Found:
    """The model in a file if `holds_other_family`; `stated` is the config of vitlab's own header, `beside` timm's config.json."""
    numerics_of(hints, PROFILES["timm"])  # refuses a profile nobody knows
    said = stated.image_size if stated is not None else image_size_of(beside) if beside is not None else None
    if swin.names_of(tensors) is swin.TIMM:
        tensors = without_computed(tensors)
        if beside is not None:
            refuse_unseen(beside, "swin")
        window = stated.window if isinstance(stated, SwinConfig) else None
        if beside is not None and isinstance(within(beside, "model_args").get("window_size"), list):
            window = size(within(beside, "model_args"), "window_size")
        told_beside = swin.Said(image_size=said, window=window)
        windowed, notes = swin_config(tensors, swin.TIMM, hints, told_beside, where=where)
        return Found(config=replace(windowed, pad_first=hints.profile == "official"), tensors=tensors, notes=tuple(notes))
    names = convnext.names_of(tensors)
    if names is not None:
        plain, notes = convnext_config(tensors, names, hints, said, where=where)
        eps = EPS.get((plain.depths, plain.widths), plain.norm_eps)
        if beside is not None:
            refuse_unseen(beside, "convnext")
            eps = number(within(beside, "model_args"), "norm_eps") or eps
        with making(where):
            return Found(config=replace(plain, norm_eps=eps), tensors=tensors, notes=tuple(notes))
    stages = tuple(stage.stride for stage in stated.plan) if isinstance(stated, EfficientNetConfig) else None
    padding: Padding | None = stated.padding if isinstance(stated, EfficientNetConfig) else None
    if beside is not None:
        refuse_unseen(beside, "efficientnet")
        padding = "same" if (text(beside, "architecture") or "").startswith("tf_") else "half"
    if hints.profile is not None:
        padding = "same" if hints.profile == "official" else "half"
    tensors = without_counters(tensors)
    net, notes = efficientnet_config(tensors, hints, said, strides=stages, padding=padding, where=where)
    return Found(config=net, tensors=tensors, notes=tuple(notes))


def family_rows(config: ModelConfig, tensors: Tensors | None = None) -> Iterator[Row]:
    """The rows of a model under timm's names; `tensors` are those of the file, which may have older names."""
    match config:
        case SwinConfig():
            return swin_rows(config, swin.TIMM)
        case ConvNeXtConfig():
            names = None if tensors is None else convnext.names_of(tensors)
            return convnext_rows(config, names or convnext.TIMM)
        case EfficientNetConfig():
            return efficientnet_rows(config)
        case _:
            raise not_of("timm", "ViTs, ResNets, Swins, ConvNeXts and EfficientNets", config)


def family_notes(config: ModelConfig) -> list[str]:
    """Notes of where timm computes something else than this model."""
    match config:
        case SwinConfig():
            notes = _swin_notes(config)
            if config.norm_eps != 1e-5:
                notes.append(f"this model's norm_eps is {config.norm_eps:g} and timm uses 1e-05: its logits will differ slightly")
            return notes
        case ConvNeXtConfig() if config.last_norm_eps not in (None, config.norm_eps):
            return [
                f"this model's last norm has eps {config.last_norm_eps:g} and timm uses {config.norm_eps:g}: logits differ slightly"
            ]
        case EfficientNetConfig() if config.padding == "uneven":
            return [
                "this model pads as transformers does, one cell less before than after, and timm does not: its logits will differ"
            ]
        case _:
            return []


def _swin_notes(config: SwinConfig) -> list[str]:
    padded = any(
        g % w for grid, window in zip(config.grids, config.windows, strict=True) for g, w in zip(grid, window, strict=True)
    )
    if padded and config.pad_first:
        return ["this model pads its maps and then shifts them, and timm shifts them first: its logits will differ"]
    return []


def _is_timms(names: convnext.Names | None) -> bool:
    return names is not None and names.block == convnext.TIMM.block


# --- every family -------------------------------------------------------------------------------------------------------------

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
