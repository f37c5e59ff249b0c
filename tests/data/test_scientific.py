"""NumPy arrays, TIFF of any channels and numbers, DICOM: every file gives 8-bit levels or a DataError that names it."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.data.images import encode, jpeg, refusal, scene
from vitlab.config.data import DecodeLimits, PixelScale
from vitlab.data.check import check_dataset
from vitlab.data.contact_sheet import write_sheet
from vitlab.data.decode import as_rgb, decode
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError

pydicom = pytest.importorskip("pydicom")
tifffile = pytest.importorskip("tifffile")

Array = NDArray[Any]
RNG = np.random.default_rng(0)
FIVE_HWC = RNG.integers(0, 65536, (20, 24, 5)).astype(np.uint16)
AS_LEVELS_HWC = np.floor(FIVE_HWC * (255 / 65535) + 0.5).astype(np.uint8)


def npy(array: Array) -> bytes:
    """An array as a file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def tiff(array: Array, **options: Any) -> bytes:
    """An array as a TIFF file."""
    stream = io.BytesIO()
    tifffile.imwrite(stream, array, **options)
    return stream.getvalue()


def dicom(
    pixels: Array, *, syntax: str | None = None, data: bytes | None = None, kind: str = "MONOCHROME2", **fields: Any
) -> bytes:
    """Pixels [H, W] or [H, W, 3] as a DICOM file, with these fields."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = UID(syntax) if syntax else ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = UID("1.2.3")
    made = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    made.Rows, made.Columns = pixels.shape[:2]
    made.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    made.PhotometricInterpretation = kind
    made.BitsAllocated = made.BitsStored = 8 * pixels.dtype.itemsize
    made.HighBit = made.BitsStored - 1
    made.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        made.PlanarConfiguration = 0
    made.PixelData = pixels.tobytes() if data is None else data
    made["PixelData"].VR = "OB" if pixels.dtype.itemsize == 1 or data is not None else "OW"
    made["PixelData"].is_undefined_length = data is not None
    for name, value in fields.items():
        setattr(made, name, value)
    stream = io.BytesIO()
    pydicom.dcmwrite(stream, made, enforce_file_format=True)
    return stream.getvalue()


# ---- arrays and TIFF files of any channels


@pytest.mark.parametrize(
    "content",
    [
        npy(FIVE_HWC),
        npy(np.asfortranarray(FIVE_HWC)),
        npy(FIVE_HWC.astype(">u2")),
        tiff(FIVE_HWC, photometric="minisblack", planarconfig="contig"),
        tiff(FIVE_HWC, photometric="rgb", planarconfig="contig", byteorder=">"),
        tiff(FIVE_HWC, photometric="minisblack", planarconfig="contig", compression="zlib", predictor=True),
        tiff(FIVE_HWC, photometric="minisblack", planarconfig="contig", compression="zlib", tile=(16, 16)),
        tiff(FIVE_HWC.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate"),
        tiff(FIVE_HWC.transpose(2, 0, 1), photometric="minisblack"),
        tiff(FIVE_HWC.transpose(2, 0, 1), imagej=True),
        tiff(FIVE_HWC.transpose(2, 0, 1), photometric="minisblack", bigtiff=True),
        tiff(FIVE_HWC),
    ],
    ids=["npy", "fortran", "big-endian", "tiff", "rgb+2", "deflate", "tiles", "planes", "pages", "imagej", "bigtiff", "rows"],
)
def test_five_channels_are_the_same_from_every_file(content: bytes) -> None:
    np.testing.assert_array_equal(decode(content, name="a", channels=5), AS_LEVELS_HWC)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "float16", "float32", "float64", "bool"])
def test_a_tiff_and_an_array_of_the_same_numbers_are_the_same_image(dtype: str) -> None:
    values_HW = (RNG.random((6, 7)) * (1 if dtype.startswith(("f", "b")) else 100)).round().astype(dtype)
    content = tiff(values_HW, photometric="minisblack")
    np.testing.assert_array_equal(decode(content, name="a"), decode(npy(values_HW), name="a"))


def test_pages_are_channels_only_if_there_are_as_many() -> None:
    pages_PHW = RNG.integers(0, 256, (3, 5, 6)).astype(np.uint8)
    content = tiff(pages_PHW, photometric="minisblack")
    np.testing.assert_array_equal(decode(content, name="a", channels=3), pages_PHW.transpose(1, 2, 0))
    np.testing.assert_array_equal(decode(content, name="a", channels=1)[:, :, 0], pages_PHW[0])
    with pytest.raises(DataError, match=r"stack\.tif is an image of 1 channel; the model takes 5"):
        decode(content, name="stack.tif", channels=5)


def test_a_fourth_channel_that_is_not_opacity_stays() -> None:
    four_HWC = RNG.integers(0, 256, (5, 6, 4)).astype(np.uint8)
    content = tiff(four_HWC, photometric="rgb", extrasamples=["unspecified"])
    np.testing.assert_array_equal(decode(content, name="a", channels=4), four_HWC)


def test_without_a_number_of_channels_an_image_is_rgb_or_as_it_is_stored() -> None:
    assert decode(npy(FIVE_HWC), name="a", channels=None).shape == (20, 24, 5)
    assert decode(npy(FIVE_HWC[:, :, 0]), name="a", channels=None).shape == (20, 24, 3)
    assert decode(encode(scene(), "PNG"), name="a", channels=None).shape == (48, 64, 3)
    assert [as_rgb(AS_LEVELS_HWC[:, :, :count]).shape[2] for count in (1, 2, 3, 5)] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "content", [encode(scene(), "PNG"), jpeg(scene()), npy(FIVE_HWC[:, :, :3]), tiff(scene(), photometric="rgb")]
)
def test_an_image_of_other_channels_is_refused_by_its_name(content: bytes) -> None:
    with pytest.raises(DataError, match=r"odd\.file is .*; the model takes 5"):
        decode(content, name="odd.file", channels=5)


def test_an_array_with_its_channels_first_is_told_how_to_save_it() -> None:
    with pytest.raises(DataError) as caught:
        decode(npy(FIVE_HWC.transpose(2, 0, 1)), name="a.npy", channels=5)
    assert caught.value.hint is not None
    assert "transpose(1, 2, 0)" in caught.value.hint


# ---- the scale of numbers


@pytest.mark.parametrize("make", [npy, tiff, lambda values: encode(Image.fromarray(values), "PNG")], ids=["npy", "tiff", "png"])
def test_16_bits_are_scaled_as_asked(make: Any) -> None:
    values_HW = np.arange(1000, 3000, dtype=np.uint16).reshape(40, 50)
    content = make(values_HW)

    def scaled(scale: PixelScale) -> Array:
        return decode(content, name="a", channels=1, scale=scale)[:, :, 0]

    np.testing.assert_array_equal(scaled("full"), np.floor(values_HW * (255 / 65535) + 0.5))
    assert (scaled("file").min(), scaled("file").max()) == (0, 255)
    low, high = np.percentile(values_HW, (0.5, 99.5))
    np.testing.assert_array_equal(scaled("percentile"), np.floor(np.clip((values_HW - low) * 255 / (high - low) + 0.5, 0, 255)))


def test_each_channel_has_its_own_range_and_8_bits_stay() -> None:
    values_HWC = np.stack([np.arange(100).reshape(10, 10), 50 * np.arange(100).reshape(10, 10)], axis=2).astype(np.float32)
    found_HWC = decode(npy(values_HWC), name="a", channels=2, scale="file")
    np.testing.assert_array_equal(found_HWC[:, :, 0], found_HWC[:, :, 1])
    eight_HWC = RNG.integers(10, 90, (8, 8, 2)).astype(np.uint8)
    for scale in ("full", "percentile", "file"):
        np.testing.assert_array_equal(decode(npy(eight_HWC), name="a", channels=2, scale=scale), eight_HWC)


def test_colours_of_16_bits_keep_them_where_they_are_scaled() -> None:
    dark_HWC = RNG.integers(0, 200, (16, 16, 3)).astype(np.uint16)  # below 256: the upper bytes are all 0
    content = tiff(dark_HWC, photometric="rgb")
    assert decode(content, name="a").max() <= 1
    assert len(np.unique(decode(content, name="a", scale="file"))) > 100


def test_a_channel_that_is_background_nearly_everywhere_is_scaled_to_its_largest_number() -> None:
    sparse_HW = np.zeros((40, 40), np.uint16)
    sparse_HW[3, 4] = 900
    assert decode(npy(sparse_HW), name="a", channels=1, scale="percentile").max() == 255
    assert set(decode(npy(np.full((4, 4), 65535, np.uint16)), name="a", scale="percentile").ravel().tolist()) == {255}


# ---- DICOM


def test_a_dicom_file_is_rescaled_and_windowed() -> None:
    stored_HW = np.arange(0, 4000, 10, dtype=np.int16).reshape(20, 20)
    fields: dict[str, Any] = {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": [40, 400], "WindowWidth": [400, 2000]}
    low, high = 40 - 0.5 - 399 / 2, 40 - 0.5 + 399 / 2
    expected = np.floor(np.clip((2.0 * stored_HW - 1000 - low) * 255 / (high - low) + 0.5, 0, 255))
    np.testing.assert_array_equal(decode(dicom(stored_HW, **fields), name="a", channels=1)[:, :, 0], expected)
    inverted = decode(dicom(stored_HW, kind="MONOCHROME1", **fields), name="a", channels=1)[:, :, 0]
    np.testing.assert_array_equal(inverted, 255 - expected)
    whole = decode(dicom(stored_HW, **fields), name="a", channels=1, scale="file")
    assert (whole.min(), whole.max()) == (0, 255)


def test_without_a_window_the_range_is_that_of_the_bits() -> None:
    stored_HW = np.array([[0, 2048, 4095]], np.uint16)
    assert decode(dicom(stored_HW, BitsStored=12, HighBit=11), name="a", channels=1)[0, :, 0].tolist() == [0, 128, 255]


def test_colours_and_jpegs_in_dicom_files_are_read() -> None:
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEGBaseline8Bit, RLELossless

    colours_HWC = scene(16, 24)
    np.testing.assert_array_equal(decode(dicom(colours_HWC, kind="RGB"), name="a"), colours_HWC)
    file = jpeg(colours_HWC)
    content = dicom(colours_HWC, kind="YBR_FULL_422", syntax=JPEGBaseline8Bit, data=encapsulate([file]))
    np.testing.assert_array_equal(decode(content, name="a"), decode(file, name="a"))
    grey_HW = np.repeat(np.arange(16, dtype=np.uint8)[:, None], 16, axis=1)
    row = b"".join(bytes([257 - 16, level]) for level in range(16))  # a run of sixteen for each row
    frame = (1).to_bytes(4, "little") + (64).to_bytes(4, "little") + b"\0" * 56 + row
    content = dicom(grey_HW, syntax=RLELossless, data=encapsulate([frame]))
    np.testing.assert_array_equal(decode(content, name="a", channels=1)[:, :, 0], grey_HW)


def test_what_is_not_read_of_dicom_is_refused_by_what_it_is() -> None:
    from pydicom.encaps import encapsulate
    from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless

    grey_HW = np.zeros((4, 4), np.uint8)
    with pytest.raises(DataError, match=r"scan\.dcm is compressed in a way .* JPEG 2000"):
        decode(dicom(grey_HW, syntax=JPEG2000Lossless, data=encapsulate([b"\0" * 16])), name="scan.dcm")
    deflated = dicom(grey_HW, syntax=DeflatedExplicitVRLittleEndian)  # not opened: it could inflate to anything
    with pytest.raises(DataError, match=r"scan\.dcm is compressed in a way .* Deflated"):
        decode(deflated, name="scan.dcm")
    with pytest.raises(DataError, match="PALETTE COLOR"):
        decode(dicom(grey_HW, kind="PALETTE COLOR"), name="scan.dcm")


# ---- what is broken or too large


def test_arrays_that_are_no_images_are_refused() -> None:
    objects = io.BytesIO()
    np.save(objects, np.array([[{}]], dtype=object), allow_pickle=True)
    for content, words in (
        (objects.getvalue(), "object"),
        (npy(np.zeros((4, 4), complex)), "complex"),
        (npy(np.zeros(9)), "shape"),
        (npy(np.zeros((2, 3, 4, 5))), "shape"),
        (npy(np.zeros((0, 4))), "empty"),
        (npy(np.full((2, 2), np.nan)), "not finite"),
        (npy(np.array([[1e308, -1e308]])), "too large"),
        (npy(np.zeros((9, 9)))[:-8], "cut short"),
    ):
        assert words in refusal(content).message


def test_the_size_is_checked_before_the_numbers_are_made() -> None:
    limits = DecodeLimits(max_pixels=100)
    wide = np.zeros((11, 10), np.float64)
    for content in (
        npy(wide),
        tiff(wide),
        tiff(np.zeros((11, 10, 5), np.uint8), planarconfig="contig"),
        dicom(wide.astype(np.uint16)),
    ):
        assert "11x10 pixels" in refusal(content, limits=limits).message
    lying = npy(np.zeros((4, 4), np.uint8)).replace(b"(4, 4), }            ", b"(88888, 88888), }    ")
    assert "88888x88888 pixels" in refusal(lying).message
    many = tiff(np.zeros((4, 4, 2000), np.uint8), photometric="minisblack", planarconfig="contig")
    assert "2,000 channels" in refusal(many).message


def test_a_strip_that_inflates_to_more_than_its_pixels_is_refused() -> None:
    content = tiff(np.zeros((8, 8, 5), np.uint8), photometric="minisblack", planarconfig="contig", compression="zlib")
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        page = file.pages.first
        (offset,), (count,) = page.dataoffsets, page.databytecounts
    bomb = zlib.compress(b"\0" * 10_000_000)
    made = bytearray(content)
    at = len(made)
    made += bomb
    for old, new in ((offset, at), (count, len(bomb))):  # one strip: its offset and count stand in their tags
        place = made.find(old.to_bytes(4, "little"))
        assert place > 0
        made[place : place + 4] = new.to_bytes(4, "little")
    with pytest.raises(DataError, match=r"bomb\.tif is a broken TIFF"):
        decode(bytes(made), name="bomb.tif", channels=5)


def test_a_compression_that_is_not_read_is_named() -> None:
    content = bytearray(tiff(np.zeros((8, 8, 5), np.uint8), photometric="minisblack", planarconfig="contig", compression="zlib"))
    place = content.find(bytes([3, 1, 3, 0, 1, 0, 0, 0, 8, 0]))  # the tag of the compression, and deflate
    content[place + 8 : place + 10] = (5).to_bytes(2, "little")
    with pytest.raises(DataError, match="LZW"):
        decode(bytes(content), name="a.tif", channels=5)


_GREY_HW = RNG.integers(0, 4000, (12, 12)).astype(np.uint16)
_SOUND = {
    "npy": npy(FIVE_HWC[:8, :8]),
    "tiff": tiff(FIVE_HWC[:8, :8], photometric="minisblack", planarconfig="contig"),
    "deflate": tiff(FIVE_HWC[:8, :8], photometric="minisblack", planarconfig="contig", compression="zlib", predictor=True),
    "pages": tiff(FIVE_HWC[:8, :8].transpose(2, 0, 1), photometric="minisblack"),
    "dicom": dicom(_GREY_HW, RescaleSlope=2, WindowCenter=40, WindowWidth=400),
}


def _outcome(content: bytes, *, channels: int) -> str | None:
    """The message with which a file is refused, or None if it gives pixels."""
    try:
        found = decode(content, name="hurt.file", channels=channels, limits=DecodeLimits(max_memory=2**26))
    except DataError as error:
        return error.message
    assert found.dtype == np.uint8
    return None


@pytest.mark.parametrize("name", list(_SOUND))
@pytest.mark.filterwarnings("ignore:::pydicom")
def test_a_damaged_file_gives_pixels_or_an_error_with_its_name(name: str) -> None:
    rng, sound = np.random.default_rng(7), _SOUND[name]
    messages: list[str | None] = []
    for round_ in range(300):
        damaged = bytearray(sound)
        # Headers and tags, where damage is worst, get most of it.
        reach = len(sound) if round_ % 3 == 0 else 600
        for place in rng.integers(0, min(reach, len(sound)), rng.integers(1, 5)):
            damaged[place] = rng.integers(0, 256)
        content = bytes(damaged[: rng.integers(1, len(sound))]) if round_ % 10 == 0 else bytes(damaged)
        messages.append(_outcome(content, channels=1 if name == "dicom" else 5))
    assert all(message is None or "hurt.file" in message for message in messages)
    assert sum(message is not None for message in messages) > 20


# ---- datasets


def mixed(root: Path) -> Path:
    """A folder of two classes of five-channel arrays with one colour image among them."""
    for name in ("alpha", "beta"):
        (root / name).mkdir(parents=True)
        for number in range(3):
            (root / name / f"{number}.npy").write_bytes(npy(RNG.integers(0, 256, (40, 40, 5)).astype(np.uint16)))
    (root / "beta" / "photo.png").write_bytes(encode(scene(), "PNG"))
    return root


def test_a_folder_of_other_channels_is_checked_and_shown(tmp_path: Path) -> None:
    folder = mixed(tmp_path / "data")
    found = check_dataset(str(folder))
    assert found.stored == {"npy, 5 channels": 6, "png, colour": 1}
    assert not found.broken
    assert [(odd.image.name.endswith("photo.png"), odd.what) for odd in found.odd if "channels" in odd.what] == [
        (True, "grey or colour, while most are of 5 channels")
    ]
    sheet = write_sheet(open_dataset(str(folder), split="all"), tmp_path / "sheet.png", title="data")
    assert (sheet.images, sheet.broken) == (7, 0)
    assert open_dataset(str(folder), split="all")[0].image.shape == (40, 40, 5)


def test_an_array_beside_an_image_of_the_same_name_is_not_an_image(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encode(scene(), "PNG"))
        (tmp_path / name / "1.npy").write_bytes(npy(np.zeros(192)))
    dataset = open_dataset(str(tmp_path), split="all")
    assert len(dataset) == 2
