"""Which image or sound do the first bytes of a file begin?

Magic bytes, in the one table that all share who name a field after its bytes, or say in words what
a field is. They are those of each format's specification, as the `file` command knows them too.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Media(NamedTuple):
    """A format of images or sounds; extension: of the files, and so the name of a field."""

    name: str
    kind: str
    extension: str


_JPEG: Final = Media("JPEG", "image", "jpg")
_PNG: Final = Media("PNG", "image", "png")
_GIF: Final = Media("GIF", "image", "gif")
_BMP: Final = Media("BMP", "image", "bmp")
_TIFF: Final = Media("TIFF", "image", "tiff")
_WEBP: Final = Media("WebP", "image", "webp")
_JPEG_2000: Final = Media("JPEG 2000", "image", "jp2")
_JPEG_XL: Final = Media("JPEG XL", "image", "jxl")
_FLAC: Final = Media("FLAC", "audio", "flac")
_OGG: Final = Media("Ogg", "audio", "ogg")
_MP3: Final = Media("MP3", "audio", "mp3")
_WAV: Final = Media("WAV", "audio", "wav")

_MAGICS: Final[tuple[tuple[bytes, Media], ...]] = (
    (b"\xff\xd8\xff", _JPEG),
    (b"\x89PNG\r\n\x1a\n", _PNG),
    (b"GIF8", _GIF),
    (b"BM", _BMP),
    (b"II*\0", _TIFF),
    (b"MM\0*", _TIFF),
    (b"\0\0\0\x0cjP  ", _JPEG_2000),
    (b"\xff\x4f\xff\x51", _JPEG_2000),  # a bare codestream
    (b"\xff\x0a", _JPEG_XL),
    (b"\0\0\0\x0cJXL ", _JPEG_XL),
    (b"fLaC", _FLAC),
    (b"OggS", _OGG),
    (b"ID3", _MP3),
    *((b"\xff" + bytes((second,)), _MP3) for second in (0xF2, 0xF3, 0xFA, 0xFB)),
)
_IN_RIFF: Final = {b"WEBP": _WEBP, b"WAVE": _WAV}  # behind "RIFF" and a length of four bytes


def media_of(first: bytes | memoryview) -> Media | None:
    r"""The format that twelve bytes, or all there are, begin; None for any other.

    >>> media_of(b"\xff\xd8\xff\xe0").extension, media_of(b"RIFF\x24\0\0\0WAVE").name
    ('jpg', 'WAV')
    """
    start = bytes(first[:12])
    if start[:4] == b"RIFF":
        return _IN_RIFF.get(start[8:12])
    return next((media for magic, media in _MAGICS if start.startswith(magic)), None)
