"""Images and sounds are told by their first bytes, wherever that is asked."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from shardloader.format.media import media_of

JP2 = b"\0\0\0\x0cjP  \r\n\x87\n"
JXL = b"\0\0\0\x0cJXL \r\n\x87\n"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WebP"])
def test_what_pillow_writes_is_told_by_its_name(kind):
    file = io.BytesIO()
    Image.fromarray(np.zeros((2, 3), np.uint8)).save(file, kind)
    media = media_of(file.getbuffer())
    assert media is not None
    assert (media.name, media.kind) == (kind, "image")


@pytest.mark.parametrize(
    ("first", "extension"),
    [
        (JP2, "jp2"),
        (b"\xff\x4f\xff\x51\0\x2f", "jp2"),
        (JXL, "jxl"),
        (b"\xff\x0a\xfa", "jxl"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "wav"),
        (b"\xff\xfb\x90\x64", "mp3"),
        (b"ID3\4", "mp3"),
        (b"fLaC", "flac"),
        (b"OggS", "ogg"),
    ],
)
def test_formats_are_told_by_the_magic_bytes_of_their_specifications(first, extension):
    media = media_of(first)
    assert media is not None
    assert media.extension == extension


@pytest.mark.parametrize("first", [b"", b"RIFF", b"RIFF\0\0\0\0AVI ", b"\x89PNG\n\x1a\n", b"text"])
def test_anything_else_is_none_of_them(first):
    assert media_of(first) is None
