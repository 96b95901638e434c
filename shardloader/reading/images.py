"""What pixels do the bytes of an image stand for?

Decoders of JPEG and PNG, by libjpeg-turbo and Pillow; the docstring of `decode` says what each
gives. An image file claims its own size, and a hundred bytes can claim gigabytes: more than
`max_pixels` is refused before anything is allocated.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.errors import MissingExtraError, UsageError
from shardloader.format.foreign import what_no_image_is
from shardloader.order.integers import checked
from shardloader.reading.sizes import checked_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from PIL.Image import Image

Array = np.ndarray[Any, np.dtype[Any]]

# As many pixels as Pillow opens without a warning: a quarter of a gigabyte as RGB.
MAX_PIXELS = 1024**3 // 4 // 3

_JPEG_START = b"\xff\xd8"
_PNG_START = b"\x89PNG\r\n\x1a\n"


def decode_jpeg(data: memoryview) -> Array:
    """Return a JPEG as uint8 RGB, (height, width, 3)."""
    return _jpeg(data, (0, 0), MAX_PIXELS)


def _jpeg(data: memoryview, min_size: tuple[int, int], max_pixels: int) -> Array:
    try:
        import simplejpeg
    except ImportError as error:
        raise _missing("simplejpeg", "JPEG") from error
    if data[:2] != _JPEG_START:  # what libjpeg says of other files helps nobody
        raise ValueError(f"it is no JPEG: {what_no_image_is(bytes(data[:64]))}")
    height, width, colourspace, _ = simplejpeg.decode_jpeg_header(data)
    _check_pixels(width, height, max_pixels)
    if colourspace in {"CMYK", "YCCK"}:  # print data; libjpeg-turbo does not convert it
        return np.array(_open_image(data, "JPEG", max_pixels).convert("RGB"))
    min_height, min_width = min_size
    if not (min_height or min_width):
        return np.asarray(simplejpeg.decode_jpeg(data, colorspace="RGB"))
    pixels = simplejpeg.decode_jpeg(
        data, colorspace="RGB", min_height=min_height, min_width=min_width
    )
    return np.asarray(pixels)


@dataclass(frozen=True, slots=True)
class Jpeg:
    """A decoder of JPEGs at a reduced scale: `decode={"jpg": sl.Jpeg(min_size=(224, 224))}`.

    min_size: the least height and width that are wanted, in pixels. libjpeg-turbo then decodes at
    the smallest of its scales (eighths of the image) that has both: up to a half this costs less
    than the whole; above, decoding costs a little more, and what resizes the image much less. An
    image that is smaller comes as it is. None: the whole image. max_pixels: an image that
    claims more is refused, before anything is allocated for it. Returns uint8 RGB, (height,
    width, 3). Raises UsageError for a size or limit below 1.
    """

    min_size: tuple[int, int] | None = None
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        checked("Jpeg(max_pixels=)", self.max_pixels, least=1)
        if self.min_size is None:
            return
        sizes = checked_sides("Jpeg(min_size=)", self.min_size, below=2**16)
        if len(sizes) != 2:
            raise UsageError(f"Jpeg(min_size=) is (height, width), and was {self.min_size!r}")
        object.__setattr__(self, "min_size", sizes)

    def __call__(self, data: memoryview) -> Array:
        """The decoded image."""
        return _jpeg(data, self.min_size or (0, 0), self.max_pixels)


@dataclass(frozen=True, slots=True)
class Png:
    """A decoder of PNGs with a limit of its own: `decode={"png": sl.Png("rgb", max_pixels=...)}`.

    read_as: "png", "rgb" or "mask", as the decoders of these names. max_pixels: an image that
    claims more is refused, before anything is allocated for it. Raises UsageError for another
    name, or a limit below 1.
    """

    read_as: str = "png"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        checked("Png(max_pixels=)", self.max_pixels, least=1)
        if self.read_as not in _PNG_READERS:
            raise UsageError(
                f"Png(read_as=) is one of {', '.join(_PNG_READERS)}, and was {self.read_as!r}"
            )

    def __call__(self, data: memoryview) -> Array:
        """The decoded image."""
        return _PNG_READERS[self.read_as](_open_png(data, self.max_pixels))


def decode_png(data: memoryview) -> Array:
    """Return a PNG with the channels it is stored with, (height, width, channels)."""
    return _as_stored(_open_png(data, MAX_PIXELS))


def decode_rgb(data: memoryview) -> Array:
    """Return a PNG of any mode as uint8 RGB, (height, width, 3)."""
    return _as_rgb(_open_png(data, MAX_PIXELS))


def decode_mask(data: memoryview) -> Array:
    """Return a PNG's stored numbers, (height, width): palette indices or grey levels."""
    return _as_mask(_open_png(data, MAX_PIXELS))


def _as_stored(image: Image) -> Array:
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    pixels = _pixels(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _as_rgb(image: Image) -> Array:
    if image.mode.startswith("I"):
        grey = (_pixels(image) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
    return np.array(image.convert("RGB"))


def _as_mask(image: Image) -> Array:
    pixels = _pixels(image)
    if pixels.ndim != 2:
        raise ValueError(f"a mask has one channel, and this image is {image.mode}")
    return pixels.astype(np.uint8) if pixels.dtype == np.bool_ else pixels


_PNG_READERS: Mapping[str, Callable[[Image], Array]] = {
    "png": _as_stored,
    "rgb": _as_rgb,
    "mask": _as_mask,
}


def _open_png(data: memoryview, max_pixels: int) -> Image:
    if bytes(data[: len(_PNG_START)]) != _PNG_START:
        what = what_no_image_is(bytes(data[:64]))
        raise ValueError(f"it does not begin as a PNG does: {what}")
    width, height = data[16:20], data[20:24]  # before anything else is looked at
    _check_pixels(int.from_bytes(width, "big"), int.from_bytes(height, "big"), max_pixels)
    return _open_image(data, "PNG", max_pixels)


def _open_image(data: memoryview, kind: str, max_pixels: int) -> Image:
    """Open an image whose size is known to be sane before its pixels are given room.

    Not by `Image.open`, whose limit is one for the whole process, and at first only a warning.
    """
    try:
        from PIL import JpegImagePlugin, PngImagePlugin
    except ImportError as error:
        raise _missing("pillow", kind) from error
    opener = PngImagePlugin.PngImageFile if kind == "PNG" else JpegImagePlugin.JpegImageFile
    image: Image = opener(io.BytesIO(data))
    _check_pixels(*image.size, max_pixels)
    image.load()
    return image


def _pixels(image: Image) -> Array:
    """Return the numbers of an image; 16-bit grey as uint16 also where Pillow widens it."""
    pixels = np.array(image)
    return pixels.astype(np.uint16) if image.mode.startswith("I") else pixels


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ValueError(
            f"the image claims {width} x {height} pixels, more than the {max_pixels} that are "
            "decoded; if that is its true size, raise the limit for this field: decode={'jpg': "
            "sl.Jpeg(max_pixels=...)}, or sl.Png(max_pixels=...)"
        )


def _missing(package: str, kind: str) -> MissingExtraError:
    return MissingExtraError(
        f"decoding {kind} images needs the package {package}: "
        "pip install 'shardloader[images]', or read the field with decode='bytes'"
    )
