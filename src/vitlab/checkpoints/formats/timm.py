"""timm's state dicts: its Vision Transformers, BiT, Swin, ConvNeXt and EfficientNet, with or without their folder's config.json.

A timm file does not say how many heads there are nor the shape of its grid; config.json, or vitlab's own header, may.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import convnext, sidecar, swin
from vitlab.checkpoints.formats.bit import bit_config, bit_rows, resnet_notes
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Found,
    Hints,
    Reading,
    Row,
    State,
    Written,
    native_shapes,
    not_of,
    numerics_notes,
    refuse,
    stem_notes,
    to_ours,
    to_theirs,
)
from vitlab.checkpoints.formats.convnext import convnext_config, convnext_rows
from vitlab.checkpoints.formats.dinov2 import is_dinov2
from vitlab.checkpoints.formats.efficientnet import efficientnet_config, efficientnet_rows, is_efficientnet, without_counters
from vitlab.checkpoints.formats.header import Header, adopted, header_of, metadata_of
from vitlab.checkpoints.formats.infer import (
    UNUSED,
    WIDE_HEADS,
    cropped,
    described,
    making,
    naflex_note,
    numerics_of,
    per_channel,
    squashed,
    stem_of,
    unwrapped,
    zero_head,
)
from vitlab.checkpoints.formats.sidecar import Sidecar, number, size, text, within
from vitlab.checkpoints.formats.swin import swin_config, swin_rows, without_computed
from vitlab.checkpoints.formats.timm_vit import Said, is_evas, is_vit, vit_config, vit_rows, without_leftovers
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess, Resize
from vitlab.config.efficientnet import SCALES, EfficientNetConfig, Padding
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.serialize import Json, to_json
from vitlab.config.swin import SwinConfig
from vitlab.config.timm_names import STYLES, architecture_config, need_of, style_of
from vitlab.config.vit import PROFILES, Gelu, Pool, ViTConfig
from vitlab.errors import CheckpointError

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


# --- the config.json of a folder ----------------------------------------------------------------------------------------------

CLASSIFIERS = {"swin": "head.fc", "convnext": "head.fc", "efficientnet": "classifier"}
FIRST = {"swin": "patch_embed.proj", "convnext": "stem.0", "efficientnet": "conv_stem"}


def architecture_of(config: ModelConfig) -> str | None:
    """A name under which timm builds a model whose shape can be given by arguments, or None."""
    match config:
        case SwinConfig():
            # timm 1.0 fails to resize the table of a window that is not square, and reads a file without a head as the authors'.
            square = all(down == across for down, across in (config.patch_size, *config.windows))
            builds = square and config.num_classes and _timms_windows(config) == config.windows
            return "swin_base_patch4_window7_224" if builds else None
        case ConvNeXtConfig():
            return "convnext_base" if len(config.depths) == 4 else None
        case EfficientNetConfig():
            size = (config.name or "").removeprefix("EfficientNet-")
            prefix = "tf_" if config.padding == "same" else ""
            usual = config.norm_eps == (1e-3 if config.padding == "same" else 1e-5) and config.squeeze == 0.25
            return f"{prefix}efficientnet_{size.lower()}" if size in SCALES and usual else None
        case _:
            return None


def arguments_of(config: ModelConfig) -> dict[str, Json]:
    """The arguments that make timm's model of that name this one."""
    match config:
        case SwinConfig():
            return {
                "img_size": list(config.image_size),
                "patch_size": config.patch_size[0],
                "in_chans": config.channels,
                "embed_dim": config.width,
                "depths": list(config.depths),
                "num_heads": list(config.heads),
                "window_size": config.window[0] if config.window[0] == config.window[1] else list(config.window),
                "mlp_ratio": config.mlp_ratio,
                "qkv_bias": config.qkv_bias,
            }
        case ConvNeXtConfig():
            return {
                "in_chans": config.channels,
                "depths": list(config.depths),
                "dims": list(config.widths),
                "kernel_sizes": config.kernel,
                "patch_size": config.patch_size,
                "ls_init_value": config.layer_scale or None,
                **({} if config.norm_eps == CONVNEXT_EPS else {"norm_eps": config.norm_eps}),
            }
        case _:
            return {"in_chans": config.channels}


def _timms_windows(config: SwinConfig) -> tuple[tuple[int, int], ...] | None:
    """The windows that timm makes, which counts odd maps without their last row; None for an image that patches do not divide."""
    (height, width), (down, across) = config.image_size, config.patch_size
    if height % down or width % across:
        return None
    grids = [(height // down >> stage, width // across >> stage) for stage in range(len(config.depths))]
    return tuple((min(config.window[0], g), min(config.window[1], j)) for g, j in grids)


POOLS: dict[str, Pool] = {"token": "token", "avg": "mean", "map": "map"}
CROPS: dict[str, Resize] = {"center": "short-side", "squash": "squash", "border": "pad"}
INTERPOLATIONS: dict[str, Interpolation] = {"bilinear": "bilinear", "bicubic": "bicubic"}
# Arguments of a timm ViT that its tensors show, that a style has, or that only training sees.
READ = re.compile(
    r"img_size|patch_size|in_chans|num_classes|embed_dim|depth|num_heads|num_kv_heads|mlp_ratio|qkv_bias|class_token|(num_)?reg_tokens"
    r"|no_embed_class|pos_embed|global_pool|(use_)?fc_norm|act_layer|init_values|pool_include_prefix|attn_pool_mlp_ratio"
    r"|\w*drop\w*_rate|dynamic_img_size|strict_img_size|weight_init|fix_init|head_init_scale"
)
CONVNEXT_EPS = 1e-6  # of timm's ConvNeXts by default
# The same for its Swins, ConvNeXts and EfficientNets: name -> the values vitlab has (None: the argument is not given).
UNSEEN_IN_FAMILY: dict[str, dict[str, tuple[str | None, ...]]] = {
    "swin": {"act_layer": (None, "gelu")},
    "convnext": {"act_layer": (None, "gelu")},
    "efficientnet": {"act_layer": (None, "swish", "silu"), "aa_layer": (None,)},
}
# Architectures that set such an argument by themselves.
ARGUMENTS = {
    "efficientnet_blur_b0": {"aa_layer": "blurpc"},
    "test_convnext": {"act_layer": "gelu_tanh"},
    "test_convnext2": {"act_layer": "gelu_tanh"},
}

# The units of a hybrid's stages -> a timm model with that ResNet; everything after the ResNet is an argument.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# timm's names of the models that vitlab's `name_of` names as the paper does.
RESNETS = {
    "BiT-R50x1": "resnetv2_50x1_bit",
    "BiT-R50x3": "resnetv2_50x3_bit",
    "BiT-R101x1": "resnetv2_101x1_bit",
    "BiT-R101x3": "resnetv2_101x3_bit",
    "BiT-R152x2": "resnetv2_152x2_bit",
    "BiT-R152x4": "resnetv2_152x4_bit",
}


def is_timm(data: Sidecar | None) -> bool:
    """Whether a config.json is timm's; transformers' has `architectures` and `model_type` instead."""
    return data is not None and isinstance(data.get("architecture"), str)


def said_of(data: Sidecar) -> Said:
    """What timm's config.json says about the model itself; CheckpointError for an architecture that vitlab does not have."""
    arguments = sidecar.within(data, "model_args")
    style = _style(data, arguments)
    pool = sidecar.text(data, "global_pool") or sidecar.text(arguments, "global_pool")
    if pool and pool not in POOLS:
        raise CheckpointError(f"config.json says global_pool={pool!r}, which vitlab does not have", hint="token, avg or map")
    return Said(
        heads=sidecar.whole(arguments, "num_heads"),
        image_size=image_size_of(data),
        pool=POOLS[pool] if pool else None,
        gelu=_gelu(arguments),
        style=style,
    )


def _style(data: Sidecar, arguments: Sidecar) -> ViTConfig:
    """The architecture that config.json names, with those arguments that its tensors cannot show."""
    architecture = (sidecar.text(data, "architecture") or "").partition(".")[0]
    style = architecture_config(architecture)
    if style is None:
        need = need_of(architecture)
        lacks = f"it needs {need}, which vitlab does not have" if need else "vitlab does not know it"
        raise CheckpointError(
            f"config.json names timm's architecture {architecture!r}: {lacks}", hint="`vitlab models` lists what it reads"
        )
    if not isinstance(style, ViTConfig):
        raise CheckpointError(f"config.json names timm's {architecture}, and the tensors are those of a Vision Transformer")
    unread = [f"{key}={value!r}" for key, value in arguments.items() if not READ.fullmatch(key) and value is not None]
    if unread:
        raise CheckpointError(f"config.json says {', '.join(unread)}, which vitlab does not read")
    prefix = sidecar.flag(arguments, "pool_include_prefix", style.pooling.prefix)
    if prefix and not style.pooling.prefix:
        raise CheckpointError(f"config.json says pool_include_prefix=True, which vitlab does not have for {architecture}")
    return style


def refuse_unseen(data: Sidecar, family: str) -> None:
    """Refuse a model that computes, by its config.json, something that vitlab does not have."""
    arguments = {**ARGUMENTS.get(sidecar.text(data, "architecture") or "", {}), **sidecar.within(data, "model_args")}
    for key, known in UNSEEN_IN_FAMILY[family].items():
        if (value := sidecar.text(arguments, key)) not in known:
            raise CheckpointError(f"config.json says {key}={value!r}, which vitlab does not have for this {family}")


def image_size_of(data: Sidecar) -> tuple[int, int] | None:
    """The image size of the model in timm's config.json."""
    return sidecar.size(sidecar.within(data, "model_args"), "img_size") or _input_size(data)


def preprocess_of(data: Sidecar, config: ModelConfig) -> tuple[Preprocess, list[str]]:
    """The preprocessing with which timm evaluates this model, and notes of what vitlab cannot do in the same way."""
    fed = _pretrained(data)
    height, width = _input_size(data) or config.image_size
    interpolation, crop = sidecar.text(fed, "interpolation") or "bicubic", sidecar.text(fed, "crop_mode") or "center"
    share = sidecar.number(fed, "crop_pct") or 0.875
    if not 0.1 <= share <= 1:
        raise CheckpointError(f"config.json says crop_pct={share}, which is not a share of the image")
    notes = []
    if interpolation not in INTERPOLATIONS:
        notes.append(f"config.json says interpolation={interpolation!r}: bicubic is used")
    if crop not in CROPS:
        notes.append(f"config.json says crop_mode={crop!r}: the centre is used")
    if (height, width) != config.image_size:
        seen = f"{config.image_size[0]}x{config.image_size[1]}"
        notes.append(f"config.json says images of {height}x{width}, and the model sees {seen}: fed with that")
    mean, std = sidecar.numbers(fed, "mean") or (0.5,), sidecar.numbers(fed, "std") or (0.5,)
    resize = CROPS.get(crop, "short-side")
    fits = len(mean) == len(std) == config.channels
    preprocess = Preprocess(
        image_size=config.image_size,
        resize=resize,
        resize_to=max(math.floor(max(height, width) / share), max(config.image_size)) if resize == "short-side" else UNUSED,
        interpolation=INTERPOLATIONS.get(interpolation, "bicubic"),
        mean=mean if fits else per_channel(mean, config.channels),
        std=std if fits else per_channel(mean, config.channels),
    )
    return preprocess, notes


def labels_of(data: Sidecar, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names of the classes, if there is one for each."""
    value = data.get("label_names", _pretrained(data).get("label_names"))
    if value is None or not classes:
        return None, []
    labels = sidecar.names(value, classes, key="label_names")
    return labels, [] if labels else [f"config.json's label_names are not {classes} names: left out"]


def sidecar_of(config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Json:
    """A config.json from which timm builds this model, or None if timm cannot build it."""
    architecture = _architecture(config)
    if architecture is None:
        return None
    arguments: dict[str, Json] = {}
    if isinstance(config, ViTConfig):
        arguments = _styled_arguments(config) if config.traits else _arguments(config)
    elif not isinstance(config, ResNetConfig):
        arguments = arguments_of(config)
    crop = {resize: mode for mode, resize in CROPS.items()}[preprocess.resize]
    fed: dict[str, Json] = {
        "input_size": [config.channels, *preprocess.image_size],
        "fixed_input_size": isinstance(config, ViTConfig | SwinConfig),
        "interpolation": "bicubic" if preprocess.interpolation == "bicubic" else "bilinear",
        "crop_pct": _share(preprocess) if crop == "center" else 1.0,
        "crop_mode": crop,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.num_classes,
        "classifier": _classifier(config),
    }
    if config.channels == 3:  # timm adapts what it finds under this name to other images as if it were made for three channels
        fed["first_conv"] = _first_convolution(config)
    named: dict[str, Json] = {} if labels is None else {"label_names": list(labels)}
    return {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.feature_width,
        "global_pool": _timm_pool(config),
        **named,
        "model_args": arguments,
        "pretrained_cfg": fed,
    }


def _architecture(config: ModelConfig) -> str | None:
    """A name under which timm builds a model whose arguments can all be given; a hybrid's ResNet cannot."""
    if isinstance(config, ResNetConfig):
        return RESNETS.get(config.name or "") if config.groups == 32 else None
    if not isinstance(config, ViTConfig):
        return architecture_of(config)
    if config.traits:
        return styled_architecture(config)
    if config.representation_width:
        return None
    if config.stem is not None:
        return HYBRIDS.get(config.stem.blocks) if (config.stem.width, config.stem.groups) == (64, 32) else None
    return "deit_base_distilled_patch16_224" if config.distill_token else "vit_base_patch16_224"


def _classifier(config: ModelConfig) -> Json:
    """The layers that timm replaces for another number of classes."""
    if isinstance(config, ResNetConfig):
        return "head.fc"
    if not isinstance(config, ViTConfig):
        return CLASSIFIERS[config.family]
    return ["head", "head_dist"] if config.distill_token else "head"


def _first_convolution(config: ModelConfig) -> str:
    if isinstance(config, ResNetConfig):
        return "stem.conv"
    if not isinstance(config, ViTConfig):
        return FIRST[config.family]
    if config.stem is None:
        return "patch_embed.proj"
    return "patch_embed.backbone.stem.conv" if config.stem.blocks else "patch_embed.backbone.conv"


def styled_architecture(config: ViTConfig) -> str | None:
    """The architecture of timm that is this model in all but its sizes, or None; for models with traits."""
    if config.representation_width or config.before is not None or not config.traits:
        return None
    wanted = style_of(replace(config, numerics=replace(config.numerics, resize="bicubic")))
    for style, names in STYLES:
        if style_of(replace(style, numerics=replace(style.numerics, resize="bicubic"))) == wanted:
            return names.split()[0]
    return None


def _styled_arguments(config: ViTConfig) -> dict[str, Json]:
    """The sizes that make timm's architecture this model."""
    arguments: dict[str, Json] = {
        "img_size": list(config.image_size),
        "patch_size": to_json(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config, 2 if config.mlp.gated and config.mlp.bias and not is_evas(config) else 1),
    }
    if config.position.grid is not None:  # NaFlex takes any size
        del arguments["img_size"]
    if config.projections.kv_heads:
        arguments["num_kv_heads"] = list(config.projections.kv_heads)
    if config.pooling.mlp_width:
        arguments["attn_pool_mlp_ratio"] = config.pooling.mlp_width / config.width
    return arguments


def _arguments(config: ViTConfig) -> dict[str, Json]:
    grid, step = config.grid, config.step
    arguments: dict[str, Json] = {
        "img_size": [grid[0] * step[0], grid[1] * step[1]],  # timm rounds down where a padded model rounds up
        "patch_size": to_json(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config),
        "qkv_bias": config.qkv_bias,
        "class_token": config.class_token,
        "reg_tokens": config.register_tokens,
        "no_embed_class": bool(config.prefix_tokens) and not config.position.prefix,
        "pos_embed": "none" if config.position.kind == "none" else "learn",
        "global_pool": _timm_pool(config),
        "fc_norm": config.norm_after_pool,
        "act_layer": "gelu_tanh" if config.numerics.gelu == "tanh" else "gelu",
    }
    if config.layer_scale:
        arguments["init_values"] = config.layer_scale
    return arguments


def _ratio(config: ViTConfig, times: int = 1) -> float:
    """timm's MLP width is int(width * ratio): a ratio whose rounded product is the model's, or twice it where gates count too."""
    wanted = times * config.mlp_width
    ratio = wanted / config.width
    return ratio if int(config.width * ratio) == wanted else (wanted + 0.5) / config.width


def _share(preprocess: Preprocess) -> float:
    """timm scales the short side to floor(size / fraction): a fraction whose rounded quotient is the model's."""
    size = max(preprocess.image_size)
    share = size / preprocess.resize_to
    return share if math.floor(size / share) == preprocess.resize_to else size / (preprocess.resize_to + 0.5)


def _timm_pool(config: ModelConfig) -> str:
    if not isinstance(config, ViTConfig):
        return "avg"
    return {pool: word for word, pool in POOLS.items()}[config.pool]


def _pretrained(data: Sidecar) -> Sidecar:
    """The settings of the preprocessing: an object of their own, in the oldest files the whole file."""
    return sidecar.within(data, "pretrained_cfg") if "pretrained_cfg" in data else data


def _input_size(data: Sidecar) -> tuple[int, int] | None:
    fed = _pretrained(data)
    shape = sidecar.numbers(fed, "input_size")
    if shape is None:
        return None
    if len(shape) != 3:
        raise CheckpointError(f"config.json says input_size={list(shape)}, which is not channels, height, width")
    return sidecar.size({"input_size": [int(side) for side in shape[1:]]}, "input_size")


def _gelu(arguments: Sidecar) -> Gelu | None:
    match sidecar.text(arguments, "act_layer"):
        case "gelu_tanh":
            return "tanh"
        case "gelu":
            return "exact"
        case "quick_gelu":
            return "quick"
        case None:
            return None
        case other:
            raise CheckpointError(f"config.json says act_layer={other!r}, which vitlab does not have", hint="gelu or gelu_tanh")
