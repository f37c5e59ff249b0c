"""Pack any dataset into tar shards in the WebDataset layout; the same data gives the same bytes.

The folder holds `train-000000.tar` and so on, each written atomically; `classes.txt`, the class names in order; and `pack.json`,
written last, which lists the shards with their sizes and checksums. An interrupted pack resumes after its last complete shard.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.data import DecodeLimits, ImageFormat, PackConfig, Split, SplitRule
from vitlab.config.renamed import current
from vitlab.data.dataset import SPLITS, UNDECLARED, Dataset, ImageDataset, RawSample
from vitlab.data.decode import CHANNELS, Header, check, decode
from vitlab.data.opening import open_dataset
from vitlab.data.readers.manifest import CLASSES_NAME
from vitlab.errors import DataError
from vitlab.io.atomic import write_text
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.machine import chunks, prefetched
from vitlab.io.tar import RECORD, ShardWriter, member_bytes

_ENDINGS: dict[ImageFormat, str] = {
    "jpeg": "jpg", "png": "png", "webp": "webp", "bmp": "bmp", "gif": "gif", "tiff": "tif", "npy": "npy", "dicom": "dcm",
}  # fmt: skip
_LIMITS = DecodeLimits()
_GREY_PNG = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An image ready to be written: its file's bytes and ending."""

    content: bytes
    ending: str


def prepared(sample: RawSample, config: PackConfig) -> Prepared:
    """The image file for a shard: unchanged, or resized and encoded again. Pixels become PNG, which is lossless.

    TIFF and DICOM files and arrays are never resized, and pixels of other channels than grey and colour become an array.
    """
    content = sample.content
    if not isinstance(content, bytes) and content.shape[2] not in CHANNELS:
        return Prepared(content=_npy(content), ending="npy")  # at its own size
    if not isinstance(content, bytes):
        return Prepared(content=_png(_smaller(_image(content), config.max_side)), ending="png")
    header = check(content, name=sample.name, limits=_LIMITS)
    if config.max_side is None or max(header.height, header.width) <= config.max_side:
        return Prepared(content=content, ending=_ENDINGS[header.format])
    pixels_HWC = decode(content, name=sample.name, channels=1 if _is_grey(content, header) else 3)
    image = _smaller(_image(pixels_HWC), config.max_side)
    if header.format == "jpeg":
        return Prepared(content=_encoded(image, "JPEG", config.quality), ending="jpg")
    if header.format == "webp":
        return Prepared(content=_encoded(image, "WEBP", config.quality), ending="webp")
    return Prepared(content=_png(image), ending="png")


def _image(pixels_HWC: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(pixels_HWC[:, :, 0] if pixels_HWC.shape[2] == 1 else pixels_HWC)


def _is_grey(content: bytes, header: Header) -> bool:
    if header.jpeg is not None:
        return header.jpeg.components == 1
    return header.format == "png" and content[25] == _GREY_PNG


def _smaller(image: Image.Image, max_side: int | None) -> Image.Image:
    if max_side is None or max(image.size) <= max_side:
        return image
    scale = max_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, kind: str, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, quality=quality)
    return out.getvalue()


def _npy(pixels_HWC: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    np.save(out, pixels_HWC, allow_pickle=False)
    return out.getvalue()


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


INDEX_NAME = "pack.json"

_FORMAT = "vitlab pack 1"
_JOURNAL_NAME = ".pack.json.journal"
_CHUNK = 16  # images prepared at a time
_NUMBER = re.compile(r"-?\d+(\.0)?")

Indices = NDArray[np.int64]
Member = tuple[str, bytes]
"""ending and content of a file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One shard: its name, number of images, bytes and SHA-256; `end` is the position in its split where the next one starts."""

    name: str
    images: int
    end: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A finished pack. `skipped` are images that could not be read; `reused` counts the shards of an earlier, interrupted call."""

    folder: Path
    images: int
    shards: tuple[Shard, ...]
    skipped: tuple[str, ...]
    reused: int


def pack(
    spec: str,
    folder: Path,
    *,
    split: Split = "all",
    rule: SplitRule | None = None,
    config: PackConfig | None = None,
    progress: ProgressCallback = silent,
) -> Packed:
    """Pack one split of a dataset into shards in `folder`, which is new or an interrupted pack.

    Shards are named after the split that the data declares for their images, else after `split`.
    """
    progress("reading the dataset", 0, None)
    dataset = open_dataset(spec, split=split, rule=rule)
    return pack_dataset(dataset, folder, split=None if split == "all" else split.split("+")[0], config=config, progress=progress)


def pack_dataset(
    dataset: Dataset,
    folder: Path,
    *,
    split: str | None = None,
    config: PackConfig | None = None,
    progress: ProgressCallback = silent,
) -> Packed:
    """Pack an open dataset; `split` is the split of images for which the data declares none."""
    config = config or PackConfig()
    if isinstance(dataset, ImageDataset) and (dataset.masks is not None or dataset.boxes is not None):
        raise DataError("shards hold labels of images, and these have masks or boxes", hint="a zip of the folder is read as it is")
    label_of = _label_members(dataset)
    plan = {"format": _FORMAT, "source": dataset.fingerprint(), "part": split, "config": asdict(config)}
    pack = _Pack(folder=folder, plan=plan, shards=[], skipped=[])
    complete = pack.resume()
    reused = len(pack.shards)
    if not complete:
        if dataset.labels:
            write_text(folder / CLASSES_NAME, "".join(f"{name}\n" for name in dataset.labels))
        done = 0
        for name, order in _series(dataset, split, config):
            start = pack.end_of(name)
            with closing(_samples(dataset, order, config, label_of, start=start)) as samples:
                _write(pack, name, _with_progress(samples, progress, done=done + start, total=len(dataset)), config)
            done += len(order)
        pack.finish()
    return Packed(
        folder=folder,
        images=sum(shard.images for shard in pack.shards),
        shards=tuple(pack.shards),
        skipped=tuple(pack.skipped),
        reused=reused,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    """A pack on disk: what it is made of, and which shards are complete."""

    folder: Path
    plan: dict[str, Any]
    shards: list[Shard]
    skipped: list[str]

    def resume(self) -> bool:
        """Read the state of an earlier call; True if it was complete. DataError if the folder holds something else."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.folder} cannot be created: {error.strerror}") from error
        for name, complete in ((INDEX_NAME, True), (_JOURNAL_NAME, False)):
            state = _read(self.folder / name)
            if state is None:
                continue
            if {key: state.get(key) for key in self.plan} != self.plan:
                raise DataError(
                    f"{self.folder} holds a pack of other images or settings",
                    hint="give another folder, or remove this one",
                )
            self.shards.extend(Shard(**current("Shard", shard)) for shard in state["shards"])
            self.skipped.extend(state["skipped"])
            for shard in self.shards:
                path = self.folder / shard.name
                if not path.is_file() or path.stat().st_size != shard.bytes:
                    raise DataError(
                        f"{path} is missing or has changed since it was packed", hint=f"remove {self.folder} and pack again"
                    )
            return complete
        if found := next(self.folder.glob("*.tar"), None):
            raise DataError(f"{self.folder} holds shards already ({found.name})", hint="give another folder, or remove this one")
        return False

    def end_of(self, series: str) -> int:
        """The position in its split where the next shard of a series starts."""
        return max((shard.end for shard in self.of(series)), default=0)

    def of(self, series: str) -> list[Shard]:
        """The shards of a series."""
        return [shard for shard in self.shards if re.fullmatch(re.escape(series) + r"-\d{6}\.tar", shard.name)]

    def add(self, shard: Shard) -> None:
        """Record a complete shard."""
        self.shards.append(shard)
        write_text(self.folder / _JOURNAL_NAME, self._text())

    def finish(self) -> None:
        """Write the index, because all shards are complete."""
        write_text(self.folder / INDEX_NAME, self._text())
        (self.folder / _JOURNAL_NAME).unlink(missing_ok=True)

    def _text(self) -> str:
        state = {**self.plan, "skipped": self.skipped, "shards": [asdict(shard) for shard in self.shards]}
        return json.dumps(state, indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One image of a series: its position, its name in the dataset, its file or the reason why it cannot be read."""

    position: int
    name: str
    made: Prepared | DataError
    label: Member | None

    def members(self) -> list[tuple[str, bytes]]:
        """The files of the sample: the image, and its label after it."""
        assert isinstance(self.made, Prepared)
        # For readers, the name up to the first dot is that of the sample.
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", PurePosixPath(self.name).stem)[:60]
        key = f"{self.position:08d}-{stem}"
        files = [(f"{key}.{self.made.ending}", self.made.content)]
        return files if self.label is None else [*files, (f"{key}.{self.label[0]}", self.label[1])]


def _write(pack: _Pack, series: str, samples: Iterator[_Sample], config: PackConfig) -> None:
    """Write the samples of a series shard by shard, and record each complete shard."""
    number = len(pack.of(series))
    sample = _next_readable(samples, pack, config)
    while sample is not None:
        images, end = 0, sample.position
        with ShardWriter(pack.folder / f"{series}-{number:06d}.tar") as writer:
            while sample is not None:
                members = sample.members()
                needed = sum(member_bytes(len(content)) for _, content in members)
                if images and writer.bytes + needed + RECORD > config.shard_bytes:
                    break
                for name, content in members:
                    writer.add(name, content)
                images, end = images + 1, sample.position + 1
                sample = _next_readable(samples, pack, config)
        pack.add(Shard(name=writer.path.name, images=images, end=end, bytes=writer.bytes, sha256=writer.sha256))
        number += 1


def _with_progress(samples: Iterator[_Sample], progress: ProgressCallback, *, done: int, total: int) -> Iterator[_Sample]:
    for number, sample in enumerate(samples, start=done + 1):
        progress("packing images", number, total)
        yield sample


def _next_readable(samples: Iterator[_Sample], pack: _Pack, config: PackConfig) -> _Sample | None:
    for sample in samples:
        if not isinstance(sample.made, DataError):
            return sample
        if config.broken == "fail":
            raise DataError(
                sample.made.message, hint="`vitlab data check` finds all such images; `broken=skip` packs the others"
            ) from sample.made
        if sample.name not in pack.skipped:
            pack.skipped.append(sample.name)
    return None


def _series(dataset: Dataset, split: str | None, config: PackConfig) -> Iterator[tuple[str, Indices]]:
    """The name of each series of shards, and its images, in order."""
    codes = dataset.splits if isinstance(dataset, ImageDataset) else np.full(len(dataset), UNDECLARED, np.int8)
    for code in sorted(set(codes.tolist())):
        order = np.flatnonzero(codes == code)
        if config.shuffle is not None:
            order = np.random.default_rng([config.shuffle, code + 1]).permutation(order)
        words = [config.name, split if code == UNDECLARED else SPLITS[code]]
        yield "-".join(word for word in words if word) or "shard", order


def _samples(
    dataset: Dataset, order: Indices, config: PackConfig, label_of: Callable[[int], Member | None], *, start: int
) -> Generator[_Sample, None, None]:
    def made(positions: range) -> list[_Sample]:
        return [_sample(dataset, int(order[start + place]), start + place, config, label_of) for place in positions]

    with closing(prefetched(made, chunks(len(order) - start, _CHUNK))) as ready:
        for samples in ready:
            yield from samples


def _sample(dataset: Dataset, index: int, position: int, config: PackConfig, label_of: Callable[[int], Member | None]) -> _Sample:
    name = dataset.name(index) if isinstance(dataset, ImageDataset) else ""
    try:
        sample = dataset.read(index)
        return _Sample(position=position, name=sample.name, made=prepared(sample, config), label=label_of(index))
    except DataError as fault:
        return _Sample(position=position, name=name, made=fault, label=None)


def _label_members(dataset: Dataset) -> Callable[[int], Member | None]:
    """A function that gives an image's label file: `.cls` with one number, `.json` with several, or none.

    If a class has a number as its name, names are written instead of numbers, which a reader would take for names.
    """
    by_name = any(_NUMBER.fullmatch(name) for name in dataset.labels)
    unknown = sum(dataset.label(index) is None for index in range(len(dataset)))
    if unknown and unknown < len(dataset):
        raise DataError(
            f"{unknown:,} of {len(dataset):,} images have no label: readers of shards need all or none",
            hint="pack images with labels by `split=train+val`, and those without by `split=test`",
        )

    def member(index: int) -> Member | None:
        label = dataset.label(index)
        if label is None:
            return None
        if isinstance(label, tuple):
            labels = [dataset.labels[code] if by_name else code for code in label]
            return "json", json.dumps({"labels": labels}, ensure_ascii=False).encode()
        return "cls", (dataset.labels[label] if by_name else str(label)).encode()

    return member


def _read(path: Path) -> dict[str, Any] | None:
    """The state of a pack in a file, or None if there is none."""
    if not path.is_file():
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read", hint="remove its folder and pack again") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise DataError(f"{path} is not an index of shards that vitlab knows", hint="give another folder")
    return state
