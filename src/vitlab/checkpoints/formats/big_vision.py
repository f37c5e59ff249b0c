"""big_vision's files (google-research/big_vision, Flax): ViTs with class token, mean or attention pooling, SigLIP's image tower.

Read with the blocks apart or scanned into one with a leading depth axis; written apart, under `params/`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import (
    Expressible,
    Hints,
    Reading,
    Row,
    State,
    Written,
    kernel,
    native_shapes,
    numerics_notes,
    only_vit,
    refuse,
    same,
    to_ours,
    to_theirs,
)
from vitlab.checkpoints.formats.flax import BY_CLASS, Tree, dense, encoder, is_official, map_pool, tree_of
from vitlab.checkpoints.formats.infer import (
    Places,
    count,
    cropped,
    described,
    image_size_of,
    lost,
    making,
    numerics_of,
    outputs,
    places_of,
    shape_of,
    squashed,
    zero_head,
)
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import PROFILES, Pool, Position, ViTConfig
from vitlab.errors import CheckpointError

FORMAT = "big-vision"
CAN = Expressible(
    format=FORMAT,
    pools=("token", "mean", "map"),
    positions=("learned-1d", "sincos-2d"),
    bare_positions=True,
    representation=True,
)
READER = "big_vision"
TABLE = "pos_embedding"
SCANNED = "Transformer/encoderblock/"
# Keys of earlier big_vision code, by their present name.
RENAMED = {"Transformer/pos_embedding": TABLE}
INLINED = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")  # MAP heads once had no name of their own


def matches(raw: RawFile) -> bool:
    """Whether the file has big_vision's layout."""
    tree = tree_of(raw)
    return tree is not None and not is_official(tree)


def read(raw: RawFile, hints: Hints) -> Reading:
    """The image model of a big_vision file; a text tower is ignored with a note."""
    tree = tree_of(raw)
    assert tree is not None
    where, tensors = raw.path.name, _tidied(tree.tensors, raw.path.name)
    config, notes = _config(tensors, hints, where)
    state = to_ours(tensors, list(_rows(config)), native_shapes(config), where=where)
    preprocess = _feeding(config)
    guess = f"preprocessing is big_vision's usual ({described(preprocess)}): the file does not say"
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        notes=(*tree.notes, *_tower(tree), *notes, *zero_head(state), guess),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model as a big_vision file; what its code cannot express is refused."""
    vit = only_vit(config, FORMAT)
    grid = vit.grid
    refuse(vit, CAN, also=_unreadable(vit))
    notes = numerics_notes(vit, PROFILES["official"], reader=READER)
    if vit.position.kind == "learned-1d" and vit.class_token and vit.position.prefix:
        notes.append("the class token's position is the table's first row: big_vision adds it to the token as it loads")
    if grid[0] != grid[1] or vit.position.kind == "sincos-2d":
        notes.append(f"the file does not say that the grid is {grid[0]}x{grid[1]}: give it when you read the file")
    notes += lost(preprocess, labels, assumed=_feeding(vit), name=FORMAT)
    tensors = to_theirs(state, list(_rows(vit)), native_shapes(vit))
    tensors = {f"params/{key}": tensor for key, tensor in tensors.items()}
    return Written(container="npz", tensors=tensors, weights_name="model.npz", notes=tuple(notes))


def _unreadable(config: ViTConfig) -> list[str]:
    """big_vision sees a class token's row in a table only if the rest of the table is a square."""
    with_row = config.position.kind == "learned-1d" and config.class_token and config.position.prefix
    if with_row and config.grid[0] != config.grid[1]:
        return ["a class token with a position beside a grid that is not square"]
    return []


def _feeding(config: ViTConfig) -> Preprocess:
    if config.pool == "map":  # SigLIP's evaluation squashes, the classifiers' crops
        return squashed(config.image_size, config.channels, interpolation="tf-bilinear")
    return cropped(config.image_size, config.channels, interpolation="bilinear")


def _tower(tree: Tree) -> list[str]:
    return ["this is the image tower of a model of images and text"] if tree.prefix == "params/img/" else []


def _config(tensors: dict[str, Tensor], hints: Hints, where: str) -> tuple[ViTConfig, list[str]]:
    *patch, channels, width = shape_of(tensors, "embedding/kernel", 4, where=where)
    depth = count(tensors, "Transformer/encoderblock_{}/", where=where)
    block = "Transformer/encoderblock_0"
    _, heads, _ = shape_of(tensors, f"{block}/{BY_CLASS.attention}/query/kernel", 3, where=where)
    if hints.heads not in (None, heads):
        raise CheckpointError(f"{where} has {heads} heads in the shapes of its attention, not heads={hints.heads}")
    _, mlp_width = shape_of(tensors, f"{block}/{BY_CLASS.mlp}/Dense_0/kernel", 2, where=where)
    class_token = "cls" in tensors
    by_attention = any(key.startswith("MAPHead_0/") for key in tensors)
    pool: Pool = "map" if by_attention else "token" if class_token else "mean"
    patch_size = (patch[0], patch[1])
    position, places = _position(tensors, hints, patch_size, class_token, where)
    numerics = numerics_of(hints, PROFILES["official"])
    with making(where):
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            patch_size=patch_size,
            image_size=image_size_of(places.grid, patch_size, None),
            channels=channels,
            num_classes=outputs(tensors, ("head/kernel", "head/bias"), -1),
            pool=pool,
            class_token=class_token,
            representation_width=outputs(tensors, ("pre_logits/kernel", "pre_logits/bias"), -1),
            position=position,
            numerics=numerics,
        )
    return config, list(places.notes)


def _position(
    tensors: dict[str, Tensor], hints: Hints, patch_size: tuple[int, int], class_token: bool, where: str
) -> tuple[Position, Places]:
    """Learned positions if there is a table, else sine waves, whose grid no tensor shows."""
    if TABLE in tensors:
        _, rows, _ = shape_of(tensors, TABLE, 3, where=where)
        places = places_of(rows, int(class_token), given=hints.grid, said=None, without=True, where=where)
        return Position(kind="learned-1d", place="stem", prefix=places.prefix), places
    grid = hints.grid or (max(1, 224 // patch_size[0]), max(1, 224 // patch_size[1]))
    notes = ["there is no pos_embedding: sine-cosine positions, as big_vision computes them"]
    if hints.grid is None:
        notes.append(f"grid={grid[0]}x{grid[1]} is a guess (224 pixels): fixed positions leave no trace in the file")
    return Position(kind="sincos-2d", place="stem", prefix=False), Places(grid=grid, prefix=False, notes=tuple(notes))


def _rows(config: ViTConfig) -> Iterator[Row]:
    yield kernel("patches.weight", "embedding/kernel")
    yield same("patches.bias", "embedding/bias")
    if config.class_token:
        yield same("class_token", "cls")
    if config.position.kind == "learned-1d":
        yield same("position.table", TABLE)
    yield from encoder(config, BY_CLASS)
    if config.pool == "map":
        yield from map_pool(config)
    if config.representation_width:
        yield from dense("representation", "pre_logits")
    if config.num_classes:
        yield from dense("head", "head")


def _tidied(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors under today's names, with scanned blocks split."""
    tidy: dict[str, Tensor] = {}
    inlined = "probe" in tensors
    for key, tensor in tensors.items():
        name = RENAMED.get(key, key)
        if inlined and key.startswith(INLINED):
            name = f"MAPHead_0/{key}"
        if not key.startswith(SCANNED):
            _put(tidy, name, tensor, where)
            continue
        if tensor.ndim == 0:
            raise CheckpointError(f"{where}: {key} has no depth axis")
        for i, part in enumerate(tensor.unbind(0)):
            _put(tidy, f"Transformer/encoderblock_{i}/{key.removeprefix(SCANNED)}", part, where)
    return tidy


def _put(tidy: dict[str, Tensor], key: str, tensor: Tensor, where: str) -> None:
    if key in tidy:
        raise CheckpointError(f"{where} holds {key} twice, under names of two versions of big_vision")
    tidy[key] = tensor
