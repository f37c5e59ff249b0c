"""What the image gate lets through: which formats, how large, and which library reads JPEG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.config.check import at_least, choice
from vitlab.errors import ConfigError

ImageFormat = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff"]
JpegDecoder = Literal["auto", "pillow", "simplejpeg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """The limits a picture must keep before a single pixel of it is decoded.

    `formats` are the ones accepted, told by the file's content and never by its name; `tiff` is known and off by default.
    `max_pixels` is height x width as the header states it.
    `jpeg_decoder`: `auto` takes simplejpeg where it is installed and Pillow where not. Both are libjpeg-turbo with the same
    settings and give the same bits (a test holds it on the installed pair), so this changes speed only. Name one of the two
    to be sure which library runs: `pillow` where Pillow was built on another JPEG library and must be matched.
    """

    formats: tuple[ImageFormat, ...] = ("jpeg", "png", "webp", "bmp", "gif")
    max_pixels: int = 89_478_485  # a quarter of a GiB in three channels: Pillow's own line, past which it would warn
    jpeg_decoder: JpegDecoder = "auto"

    def __post_init__(self) -> None:
        for word in self.formats:
            choice("formats", word, ImageFormat)
        if not self.formats:
            raise ConfigError("formats is empty: no picture could pass")
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int):
            raise ConfigError(f"max_pixels={self.max_pixels!r} must be a whole number")
        at_least("max_pixels", self.max_pixels, 1)
        choice("jpeg_decoder", self.jpeg_decoder, JpegDecoder)
