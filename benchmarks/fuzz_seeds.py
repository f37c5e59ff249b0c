"""Small sound files of every format that vitlab reads: `fuzz_mutations.py` breaks them, `fuzz.py` opens what comes of it."""

from __future__ import annotations

import base64
import io
import json
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from vitlab.checkpoints import Checkpoint, convert, save
from vitlab.config import Preprocess, ViTConfig, variant
from vitlab.config.data import Augment, LoaderConfig, SplitRule
from vitlab.config.run import RunConfig, RunData
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.models import build

Group = Literal["checkpoint", "image", "manifest", "archive", "run", "scientific", "masks", "boxes"]
GROUPS: tuple[Group, ...] = ("checkpoint", "image", "manifest", "archive", "run", "scientific", "masks", "boxes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Files by name, and which one is opened: "" is the folder itself. `reader` is the prefix of a dataset, or empty.

    `links` are symbolic links by name, with what they point to.
    """

    group: Group
    files: dict[str, bytes]
    opened: str
    reader: str = ""
    links: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the files below an existing folder; returns what is to be opened."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)
        return folder / self.opened if self.opened else folder

    def to_text(self) -> str:
        """As one JSON file."""
        files = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        return json.dumps({"group": self.group, "opened": self.opened, "reader": self.reader, "links": self.links, "files": files})

    @classmethod
    def from_text(cls, text: str) -> Input:
        """The reverse."""
        found = json.loads(text)
        files = {name: base64.b64decode(content) for name, content in found.pop("files").items()}
        return cls(files=files, **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A sound input, and which of its files are broken."""

    sound: Input
    broken: tuple[str, ...]


def _file(group: Group, name: str, content: bytes, *, reader: str = "", beside: Mapping[str, bytes] | None = None) -> Seed:
    return Seed(sound=Input(group=group, files={**(beside or {}), name: content}, opened=name, reader=reader), broken=(name,))


def tiny_checkpoint() -> Checkpoint:
    """A ViT of one layer for images of 16 x 16 pixels."""
    config = variant("ViT-Mini/8", num_classes=3, image_size=16)
    assert isinstance(config, ViTConfig)
    small = replace(config, width=64, heads=1, mlp_width=16, depth=1)  # one head of 64: what a file that does not say is taken for
    preprocess = Preprocess(image_size=(16, 16))
    return Checkpoint(model=build(small).eval(), config=small, preprocess=preprocess, labels=("ant", "bee", "cat"))


def checkpoints() -> list[Seed]:
    """A tiny ViT as every kind of file: native, safetensors, .npz, .pt, .pth of before torch 1.6, folders, shards."""
    sound = tiny_checkpoint()
    seeds = []
    with TemporaryDirectory() as made:
        folder = Path(made)
        save(sound, folder / "native.safetensors")
        native = (folder / "native.safetensors").read_bytes()
        seeds += [_file("checkpoint", "native.safetensors", native)] * 2
        for form, name in (("timm", "timm.safetensors"), ("jax-npz", "jax.npz"), ("big-vision", "big-vision.npz")):
            convert(folder / "native.safetensors", folder / name, to=form)
            seeds.append(_file("checkpoint", name, (folder / name).read_bytes()))
        weights = load_file(folder / "timm.safetensors")
        for name, saved in (("plain.pt", weights), ("with-more.pth", {"model": weights, "epoch": 3, "args": {"lr": 0.1}})):
            stream = io.BytesIO()
            torch.save(saved, stream)
            seeds += [_file("checkpoint", name, stream.getvalue())] * 2
        stream = io.BytesIO()
        torch.save(weights, stream, _use_new_zipfile_serialization=False)
        seeds += [_file("checkpoint", "old.pth", stream.getvalue())] * 2
        convert(folder / "native.safetensors", folder / "hf", to="huggingface")
        files = {path.name: path.read_bytes() for path in (folder / "hf").iterdir()}
        seeds.append(Seed(sound=Input(group="checkpoint", files=files, opened=""), broken=tuple(sorted(files))))
        seeds.append(_sharded(files))
    return seeds


def _sharded(files: Mapping[str, bytes]) -> Seed:
    """The same folder with its weights in two files and an index."""
    weights = load_tensors(files["model.safetensors"])
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    made = {name: content for name, content in files.items() if name != "model.safetensors"}
    made |= {shard: save_tensors({name: weights[name] for name in held}) for shard, held in halves.items()}
    places = {name: shard for shard, held in halves.items() for name in held}
    made["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": places}).encode()
    broken = ("model.safetensors.index.json", "model.safetensors.index.json", "config.json", *halves)
    return Seed(sound=Input(group="checkpoint", files=made, opened=""), broken=broken)


def _scene(height: int = 20, width: int = 24, *, shade: int = 0) -> Image.Image:
    y_H1, x_1W = np.arange(height)[:, None], np.arange(width)[None, :]
    planes = [(y_H1 * 7 + x_1W * step + shade) % 256 for step in (3, 5, 11)]
    return Image.fromarray(np.stack(planes, axis=2).astype(np.uint8))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """An image as a file of that format."""
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def images() -> list[Seed]:
    """Every format, and the variants of each that its reader treats differently."""
    scene = _scene()
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [_scene(shade=shade) for shade in (40, 80)]
    grey16 = Image.fromarray((np.arange(480, dtype=np.uint16) * 100).reshape(20, 24))
    made = {
        "a.jpg": encoded(scene, "JPEG"),
        "large.jpg": encoded(_scene(120, 160), "JPEG", quality=95, subsampling=0),
        "progressive.jpg": encoded(scene, "JPEG", progressive=True),
        "grey.jpg": encoded(scene.convert("L"), "JPEG"),
        "cmyk.jpg": encoded(scene.convert("CMYK"), "JPEG"),
        "turned.jpg": encoded(scene, "JPEG", exif=exif.tobytes()),
        "restarts.jpg": encoded(scene, "JPEG", restart_marker_blocks=1),
        "a.png": encoded(scene, "PNG"),
        "palette.png": encoded(scene.convert("P"), "PNG", transparency=3),
        "alpha.png": encoded(scene.convert("RGBA"), "PNG"),
        "deep.png": encoded(grey16, "PNG"),
        "animated.png": encoded(scene, "PNG", save_all=True, append_images=frames),
        "a.webp": encoded(scene, "WEBP"),
        "lossless.webp": encoded(scene.convert("RGBA"), "WEBP", lossless=True, exif=exif.tobytes()),
        "animated.webp": encoded(scene, "WEBP", save_all=True, append_images=frames),
        "a.gif": encoded(scene, "GIF"),
        "animated.gif": encoded(scene, "GIF", save_all=True, append_images=frames),
        "a.bmp": encoded(scene, "BMP"),
        "palette.bmp": encoded(scene.convert("P"), "BMP"),
        "a.tiff": encoded(scene, "TIFF"),
        "lzw.tiff": encoded(scene, "TIFF", compression="tiff_lzw"),
    }
    often = ("a.jpg", "progressive.jpg", "a.png", "a.webp", "lossless.webp")
    return [_file("image", name, content) for name, content in made.items() for _ in range(1 + (name in often))]


def scientific() -> list[Seed]:
    """Images of numbers: NumPy arrays, TIFF of five channels, and DICOM, plain, by RLE and by JPEG."""
    import tifffile

    rng = np.random.default_rng(0)
    deep_HW = rng.integers(0, 4096, (20, 24)).astype(np.uint16)
    five_HWC = rng.integers(0, 65536, (20, 24, 5)).astype(np.uint16)
    made = {
        "grey.npy": _npy(deep_HW),
        "rgb.npy": _npy(np.asarray(_scene())),
        "real.npy": _npy(np.asfortranarray(rng.random((20, 24, 3), np.float32))),
        "five.npy": _npy(five_HWC),
        "plain.dcm": dicom(deep_HW),
        "windowed.dcm": dicom(deep_HW, WindowCenter=[600, 40], WindowWidth=[1200, 80], RescaleSlope=2, RescaleIntercept=-1024),
        "colour.dcm": dicom(np.asarray(_scene())),
        "frames.dcm": dicom(np.asarray(_scene().convert("L")), frames=3),
        "rle.dcm": dicom(np.asarray(_scene().convert("L")), packed="rle"),
        "jpeg.dcm": dicom(np.asarray(_scene().convert("L")), packed="jpeg"),
    }
    planes_CHW = five_HWC.transpose(2, 0, 1)
    for name, pixels, planar, tile in (
        ("five.tif", five_HWC, "contig", None),
        ("planes.tif", planes_CHW, "separate", None),
        ("tiles.tif", five_HWC, "contig", (16, 16)),
    ):
        stream = io.BytesIO()
        tifffile.imwrite(stream, pixels, photometric="minisblack", planarconfig=planar, tile=tile)
        made[name] = stream.getvalue()
    return [_file("scientific", name, content) for name, content in made.items()]


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def dicom(pixels: np.ndarray[Any, Any], *, packed: Literal["", "rle", "jpeg"] = "", frames: int = 1, **fields: Any) -> bytes:
    """Pixels [H, W] or [H, W, 3] as a DICOM file, with these fields."""
    from pydicom import dcmwrite, uid
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.encaps import encapsulate

    meta = FileMetaDataset()
    syntaxes = {"": uid.ExplicitVRLittleEndian, "rle": uid.RLELossless, "jpeg": uid.JPEGBaseline8Bit}
    meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian if packed == "rle" else syntaxes[packed]
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = uid.SecondaryCaptureImageStorage, uid.UID("1.2.3")
    made = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    made.Rows, made.Columns = pixels.shape[:2]
    made.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    made.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    made.BitsAllocated = made.BitsStored = 8 * pixels.dtype.itemsize
    made.HighBit, made.PixelRepresentation = made.BitsStored - 1, 0
    if pixels.ndim == 3:
        made.PlanarConfiguration = 0
    if frames > 1:
        made.NumberOfFrames = frames
    jpeg = packed == "jpeg"
    made.PixelData = encapsulate([encoded(Image.fromarray(pixels), "JPEG")]) if jpeg else pixels.tobytes() * frames
    made["PixelData"].VR = "OB" if pixels.dtype.itemsize == 1 else "OW"
    made["PixelData"].is_undefined_length = jpeg
    for name, value in fields.items():
        setattr(made, name, value)
    if packed == "rle":
        made.compress(syntaxes["rle"], encoding_plugin="pydicom")
    stream = io.BytesIO()
    dcmwrite(stream, made, enforce_file_format=True)
    return stream.getvalue()


def masks() -> list[Seed]:
    """Images with masks: folders, masks.json, VOC, and COCO's instances and panoptic files."""
    size = (12, 10)
    images = {f"{name}.png": encoded(_scene(*size, shade=shade), "PNG") for shade, name in enumerate("abcd")}
    values_HW = (np.arange(120).reshape(size) // 40).astype(np.uint8)
    index, palette = encoded(Image.fromarray(values_HW), "PNG"), encoded(Image.fromarray(values_HW).convert("P"), "PNG")

    def of(files: dict[str, bytes], *broken: str) -> Seed:
        return Seed(sound=Input(group="masks", files=files, opened=""), broken=broken)

    beside = {f"images/train/{name}": content for name, content in images.items()} | {
        f"masks/train/{name}": index if name < "c" else palette for name in images
    }
    settings = {"images": "images", "masks": "masks", "classes": {"sky": 0, "sea": 1}, "ignore": [2]}
    voc = {f"JPEGImages/{name}": content for name, content in images.items()} | {
        f"SegmentationClass/{name}": index for name in images
    }
    records = [{"id": place, "file_name": name, "height": 12, "width": 10} for place, name in enumerate(images)]
    categories = [{"id": 1, "name": "sky"}, {"id": 7, "name": "sea"}]
    shapes = ([[1, 1, 8, 1, 8, 9.5, 1, 9]], {"size": [12, 10], "counts": [20, 60, 40]}, {"size": [12, 10], "counts": "d0l1X1"})
    objects = [
        {"id": 3 * place + number, "image_id": place, "category_id": 7, "bbox": [1, 1, 2, 2], "iscrowd": 0, "segmentation": shape}
        for place in range(4)
        for number, shape in enumerate(shapes)
    ]
    segments = [{"id": number, "category_id": category, "iscrowd": 0} for number, category in ((300, 1), (70_000, 7))]
    numbers_HW = np.where(values_HW == 1, 300, 70_000)
    colours_HWC = np.stack([numbers_HW % 256, numbers_HW // 256 % 256, numbers_HW // 65_536], axis=2).astype(np.uint8)
    pairs = [{"image_id": place, "file_name": name, "segments_info": segments} for place, name in enumerate(images)]
    train = {f"train/{name}": content for name, content in images.items()}
    files = {kind: f"annotations/{kind}_train.json" for kind in ("instances", "panoptic")}
    lists = {
        kind: json.dumps({"images": records, "categories": categories, "annotations": found}).encode()
        for kind, found in (("instances", objects), ("panoptic", pairs))
    }
    coloured = {f"annotations/panoptic_train/{name}": encoded(Image.fromarray(colours_HWC), "PNG") for name in images}
    both = "masks/train/a.png", "masks/train/d.png"
    return [
        of({**beside, "classes.txt": b"sky\nsea\nland\n"}, "classes.txt", *both),
        of({**beside, "masks.json": json.dumps(settings).encode()}, "masks.json", "masks.json", *both),
        of(
            {**voc, "ImageSets/Segmentation/train.txt": b"a\nb\n", "ImageSets/Segmentation/val.txt": b"c\nd\n"},
            "ImageSets/Segmentation/train.txt",
            "SegmentationClass/a.png",
        ),
        *[of({**train, files["instances"]: lists["instances"]}, files["instances"])] * 3,
        *[
            of(
                {**train, **coloured, files["panoptic"]: lists["panoptic"]},
                *[files["panoptic"]] * 3,
                "annotations/panoptic_train/a.png",
            )
        ]
        * 2,
    ]


def boxes() -> list[Seed]:
    """Images with boxes: a CSV list, boxes.json, VOC's XML, COCO's JSON."""
    images = {f"{name}.png": encoded(_scene(12, 10, shade=shade), "PNG") for shade, name in enumerate("abcd")}
    train = {f"train/{name}": content for name, content in images.items()}
    rows = "".join(f"train/{name},{label},1,2,{right},9.5\n" for name in images for label, right in (("cat", 5), ("dog", 8)))
    listed = {**train, "boxes.csv": f"path,class,x0,y0,x1,y1\n{rows}".encode()}
    settings = json.dumps({"images": "train", "boxes": "boxes.csv", "classes": ["cat", "dog"]}).encode()
    named = {**train, "boxes.json": settings, "boxes.csv": listed["boxes.csv"].replace(b"train/", b"")}
    edges = "".join(f"<{edge}>{place}</{edge}>" for edge, place in (("xmin", 1), ("ymin", 2), ("xmax", 7), ("ymax", 9)))
    thing = f"<object><name>cat</name><difficult>0</difficult><bndbox>{edges}</bndbox></object>"
    xml = f"<annotation><size><width>10</width><height>12</height><depth>3</depth></size>{thing * 2}</annotation>".encode()
    voc = {f"JPEGImages/{name}": content for name, content in images.items()} | {
        f"Annotations/{name.replace('png', 'xml')}": xml for name in images
    }
    records = [{"id": place, "file_name": name, "height": 12, "width": 10} for place, name in enumerate(images)]
    objects = [
        {"id": place, "image_id": place % 4, "category_id": 7, "bbox": [1, 1.5, 4, 6], "area": 20.5, "iscrowd": place % 2}
        for place in range(8)
    ]
    coco = json.dumps({"images": records, "categories": [{"id": 7, "name": "cat"}], "annotations": objects}).encode()

    def of(files: dict[str, bytes], *broken: str) -> Seed:
        return Seed(sound=Input(group="boxes", files=files, opened="", reader="boxes"), broken=broken)

    return [
        of(listed, "boxes.csv"),
        of(named, "boxes.json", "boxes.csv"),
        of(
            {**voc, "ImageSets/Main/train.txt": b"a\nb\nc\nd\n"},
            "Annotations/a.xml",
            "Annotations/b.xml",
            "ImageSets/Main/train.txt",
        ),
        *[of({**train, "annotations/instances_train.json": coco}, "annotations/instances_train.json")] * 2,
    ]


def manifests() -> list[Seed]:
    """Lists of images as CSV, JSON Lines and Parquet, with the images beside them or inside."""
    import pyarrow as pa

    files = {f"{name}.png": encoded(_scene(8, 8, shade=shade), "PNG") for shade, name in enumerate("abcdef")}
    rows = [(name, "cat" if number % 2 else "dog", "train" if number < 4 else "test") for number, name in enumerate(files)]
    table = "image,label,split\n" + "".join(",".join(row) + "\n" for row in rows)
    lines = "".join(json.dumps(dict(zip(("image", "label", "split"), row, strict=True))) + "\n" for row in rows)
    several = "image,labels\n" + "".join(f"{name},{'a|b' if number % 2 else 'b'}\n" for number, name in enumerate(files))
    held = [{"bytes": content, "path": name} for name, content in files.items()]
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    hub = pa.table({"image": held, "label": [0, 1] * 3}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    of = partial(_file, "manifest")
    named = {**files, "labels.csv": table.encode(), "classes.txt": b"dog\ncat\n"}
    return [
        of("list.csv", table.encode(), beside=files),
        of("several.csv", several.encode(), beside=files),
        of("list.tsv", table.replace(",", "\t").encode(), beside=files),
        of("list.jsonl", lines.encode(), beside=files),
        Seed(sound=Input(group="manifest", files=named, opened="labels.csv"), broken=("classes.txt",)),
        of("hub.parquet", parquet_bytes(hub)),
        of("hub.parquet", parquet_bytes(hub)),
    ]


def archives() -> list[Seed]:
    """Datasets in one file: zip, tar, npz, TFRecord, and the classic binary ones."""
    files = {
        f"{label}/{name}.png": encoded(_scene(8, 8, shade=ord(name) + ord(label[0])), "PNG")
        for label in ("cat", "dog")
        for name in "abcde"
    }
    flat = {
        f"{number}.{ending}": content
        for number, (name, image) in enumerate(files.items())
        for ending, content in (("png", image), ("cls", name[:3].encode()))
    }
    packed = {
        "jpeg": np.frombuffer(b"".join(files.values()), np.uint8),
        "offsets": np.cumsum([0, *map(len, files.values())]),
        "labels": np.repeat([0, 1], 5),
        "train": np.arange(10) % 5 < 4,
        "classes": np.array(["cat", "dog"]),
    }
    stream = io.BytesIO()
    np.savez(stream, **packed)  # type: ignore[arg-type]
    of = partial(_file, "archive")
    idx = struct.pack(">IIII", 0x803, 4, 8, 8) + bytes(256)
    digits = {
        f"{part}-{kind}-ubyte": content
        for part in ("train", "t10k")
        for kind, content in (("images-idx3", idx), ("labels-idx1", struct.pack(">II", 0x801, 4) + bytes(4)))
    }
    cifar = {f"{name}.bin": bytes(range(2)) * 1537 for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")}
    cifar = {
        name: bytes(3073 - len(content) % 3073) + content if len(content) % 3073 else content for name, content in cifar.items()
    }
    return [
        of("images.zip", zipped([(name, zipfile.ZIP_STORED, content) for name, content in files.items()])),
        of("packed.zip", zipped([(name, zipfile.ZIP_DEFLATED, content) for name, content in files.items()])),
        of("shard.tar", _tarred(flat)),
        of("folders.tar", _tarred(files)),
        of("pack.npz", stream.getvalue()),
        _tfrecords(list(files.values())),
        Seed(sound=Input(group="archive", files=digits, opened="", reader="mnist"), broken=tuple(digits)),
        Seed(sound=Input(group="archive", files=cifar, opened="", reader="cifar10"), broken=tuple(cifar)),
    ]


def _tarred(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _tfrecords(contents: Sequence[bytes]) -> Seed:
    """DMLab's frames, as its files hold them."""
    from vitlab.data.readers.tfrecord import masked_crc32c

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    def entry(number: int, content: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(content)) + content

    def record(image: bytes, label: int) -> bytes:
        entries = entry(1, entry(1, b"label") + entry(2, entry(3, entry(1, varint(label)))))
        entries += entry(1, entry(1, b"image") + entry(2, entry(1, entry(1, image))))
        content = entry(1, entries)
        head = struct.pack("<Q", len(content))
        return head + struct.pack("<I", masked_crc32c(head)) + content + struct.pack("<I", masked_crc32c(content))

    whole = b"".join(record(image, number % 6) for number, image in enumerate(contents))
    files = {f"dmlab-{part}.tfrecord-00000-of-00001": whole for part in ("train", "validation", "test")}
    return Seed(sound=Input(group="archive", files=files, opened="", reader="dmlab"), broken=tuple(files))


def runs() -> list[Seed]:
    """The folder of a run that stopped half way, and of one that ended."""
    from vitlab.training import train

    with TemporaryDirectory() as made:
        folder = Path(made, "run")
        halves = [_run_seed(folder) for event in train(small_run(), out=folder) if event.event == "saved" and event.step == 2]
        return [*halves, _run_seed(folder)]


def small_run() -> RunConfig:
    """Three steps of a tiny model."""
    config = variant("ViT-Mini/8", num_classes=2, channels=1, image_size=16)
    assert isinstance(config, ViTConfig)
    small = replace(config, width=16, heads=2, mlp_width=16, depth=1)
    return RunConfig(
        name="small",
        model=small,
        preprocess=Preprocess(image_size=(16, 16), resize="squash", mean=(0.5,), std=(0.5,)),
        data=RunData(
            dataset="synthetic:kind=contours,classes=2,samples_per_class=8,image_size=16",
            rule=SplitRule(val=0.25, test=0.25),
            augment=Augment(image_size=(16, 16), mixup=0.3),
            loader=LoaderConfig(batch_size=4, workers=0),
        ),
        train=TrainConfig(
            steps=3,
            optimizer=Optimizer(lr=1e-3),
            schedule=Schedule(warmup=1),
            average=Average(decay=0.9),
            evaluate_every=2,
            save_every=1,
        ),
    )


def _run_seed(folder: Path) -> Seed:
    """What is in a run's folder."""
    links = {path.name: str(path.readlink()) for path in folder.iterdir() if path.is_symlink()}
    paths = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.relative_to(folder).parts[0] not in (*links, "lock")
    ]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    texts = [name for name in files if name.endswith((".json", ".jsonl"))]
    return Seed(sound=Input(group="run", files=files, opened="", links=links), broken=(*texts, *texts, *files))


def zipped(members: Sequence[tuple[str, int, bytes]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.filename = None
        for name, method, content in members:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.compress_type = method
            _write_member(archive, info, content)
    return stream.getvalue()


def _write_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        archive.writestr(info, content)


def parquet_bytes(table: Any) -> bytes:
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()
