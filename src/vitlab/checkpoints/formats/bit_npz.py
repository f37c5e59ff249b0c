"""The BiT ResNets' own files (google-research/big_transfer, TensorFlow): an .npz of `resnet/...` arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Hints, Reading, State, Written
from vitlab.checkpoints.formats.infer import count, described, lost, outputs, shape_of, squashed, zero_head
from vitlab.checkpoints.formats.resnet import IMAGE_SIZE, Sizes, only_resnet, resnet_config, resnet_notes
from vitlab.checkpoints.table import Row, kernel, native_shapes, same, to_ours, to_theirs
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.errors import CheckpointError

FORMAT = "bit-npz"
READER = "the authors' TensorFlow code"
ROOT = "resnet/root_block/standardized_conv2d/kernel"
HEAD = "resnet/head/conv2d"
BRANCHES = ("a", "b", "c")  # the three convolutions of a unit

_NUMBERED = re.compile(r"/(standardized_conv2d|group_norm|conv2d)_\d+(?=/)")


def matches(raw: RawFile) -> bool:
    """Whether the file has the layout of the BiT authors."""
    return any(_plain(key) == ROOT for key in raw.tensors if key.startswith("resnet/root_block/"))


def read(raw: RawFile, hints: Hints) -> Reading:
    """The ResNet of an official BiT file."""
    where, tensors = raw.path.name, _tidied(raw.tensors, raw.path.name)
    stages = count(tensors, "resnet/block{}/", where=where, first=1)
    units = tuple(count(tensors, f"resnet/block{s + 1}/unit{{}}/", where=where, first=1) for s in range(stages))
    _, _, channels, root = shape_of(tensors, ROOT, 4, where=where)
    widths = tuple(
        shape_of(tensors, f"resnet/block{s + 1}/unit01/c/standardized_conv2d/kernel", 4, where=where)[-1] for s in range(stages)
    )
    classes = outputs(tensors, (f"{HEAD}/kernel", f"{HEAD}/bias"), -1)
    sizes = Sizes(blocks=units, widths=widths, root=root, channels=channels, classes=classes)
    config, notes = resnet_config(sizes, hints, official=True, where=where)
    state = to_ours(tensors, list(_rows(config)), native_shapes(config), where=where)
    preprocess = _feeding(config)
    guess = f"preprocessing is that of the authors' code ({described(preprocess)}): the file does not say"
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        notes=(*notes, *zero_head(state), guess),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The ResNet as an official BiT file."""
    resnet = only_resnet(config, FORMAT)
    notes = resnet_notes(resnet, official=True, reader=READER)
    notes += lost(preprocess, labels, assumed=_feeding(resnet), name=FORMAT)
    if resnet.image_size != IMAGE_SIZE:
        notes.append(f"{FORMAT} cannot store the image size {resnet.image_size[0]}x{resnet.image_size[1]}")
    tensors = to_theirs(state, list(_rows(resnet)), native_shapes(resnet))
    return Written(container="npz", tensors=tensors, weights_name="model.npz", notes=tuple(notes))


def _feeding(config: ResNetConfig) -> Preprocess:
    return squashed(config.image_size, config.channels, interpolation="tf-bilinear")


def _rows(config: ResNetConfig) -> Iterator[Row]:
    yield kernel("root.weight", ROOT)
    for s, units in enumerate(config.blocks):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"resnet/block{s + 1}/unit{u + 1:02d}"
            for n, branch in enumerate(BRANCHES, start=1):
                yield kernel(f"{ours}.conv{n}.weight", f"{theirs}/{branch}/standardized_conv2d/kernel")
                yield from _group_norm(f"{ours}.norm{n}", f"{theirs}/{branch}/group_norm")
            if u == 0:
                yield kernel(f"{ours}.shortcut.weight", f"{theirs}/a/proj/standardized_conv2d/kernel")
    yield from _group_norm("norm", "resnet/group_norm")
    if config.num_classes:
        yield Row(
            ours=("head.weight",),
            theirs=(f"{HEAD}/kernel",),
            to_ours=lambda kernels_11DC: [kernels_11DC[0].flatten(0, 2).T],
            to_theirs=lambda weights_CD: [weights_CD[0].T[None, None]],
        )
        yield same("head.bias", f"{HEAD}/bias")


def _group_norm(ours: str, theirs: str) -> Iterator[Row]:
    yield same(f"{ours}.weight", f"{theirs}/gamma")
    yield same(f"{ours}.bias", f"{theirs}/beta")


def _plain(key: str) -> str:
    """Names without the numbers that TensorFlow adds in some files (`standardized_conv2d_17`)."""
    return _NUMBERED.sub(r"/\1", key)


def _tidied(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Plain names, and group norms as (C,): some files keep them as (1, 1, 1, C)."""
    tidy: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = _plain(key)
        if name in tidy:
            raise CheckpointError(f"{where} holds {name} twice, once as {key}")
        flat = name.endswith(("/gamma", "/beta")) and tensor.ndim == 4 and tensor.shape[:3] == (1, 1, 1)
        tidy[name] = tensor.flatten() if flat else tensor
    return tidy
