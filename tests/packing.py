"""Compressed streams for tests: built by hand where a library would not, or at its leisure."""

from __future__ import annotations

import gzip
import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

import xxhash
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def gzip_member(
    data: bytes,
    *,
    flags: int = 0,
    fields: bytes = b"",
    method: int = 8,
    crc: int | None = None,
    length: int | None = None,
) -> bytes:
    """A gzip member whose header has the flags, and the fields that belong to them."""
    header = b"\x1f\x8b" + bytes((method, flags)) + bytes(4) + b"\0\3" + fields
    if flags & 2:
        header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    crc = zlib.crc32(data) if crc is None else crc
    length = len(data) if length is None else length
    return header + deflate(data) + struct.pack("<II", crc, length % 2**32)


def zstd_frame(data: bytes, *, size: bool = True, checksum: bool = True, level: int = 3) -> bytes:
    compressor = zstandard.ZstdCompressor(
        level=level, write_content_size=size, write_checksum=checksum
    )
    return compressor.compress(data)


def zstd_of_window(data: bytes, window_log: int) -> bytes:
    """A frame as `zstd --long=N` writes it from a pipe: the decoder has to keep the window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_checksum=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


def skippable(content: bytes, number: int = 0) -> bytes:
    return bytes((0x50 + number,)) + b"*M\x18" + struct.pack("<I", len(content)) + content


def table_of(
    entries: Iterable[tuple[int, ...]],
    *,
    num_frames: int | None = None,
    descriptor: int = 0,
    length: int | None = None,
    magic: int = 0x184D2A5E,
) -> bytes:
    """A seek table of entries of two or three numbers; the rest says of them what it is told."""
    packed = [struct.pack(f"<{len(entry)}I", *entry) for entry in entries]
    body = b"".join(packed)
    foot = struct.pack(
        "<IBI", len(packed) if num_frames is None else num_frames, descriptor, 0x8F92EAB1
    )
    length = len(body) + len(foot) if length is None else length
    return struct.pack("<II", magic, length) + body + foot


def frames_of(data: bytes, edges: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """Frames that begin at byte 0 and at `edges` of some data, each as it is and compressed."""
    parts = [data[start:stop] for start, stop in pairwise((0, *edges, len(data)))]
    return [(part, zstd_frame(part)) for part in parts]


def seekable(data: bytes, edges: Sequence[int], *, checksums: bool = False) -> bytes:
    """Data in frames, as `frames_of` gives them, with a seek table."""
    frames = frames_of(data, edges)
    entries = [
        (len(packed), len(part), *((xxhash.xxh64_intdigest(part) & 0xFFFFFFFF,) * checksums))
        for part, packed in frames
    ]
    table = table_of(entries, descriptor=0x80 if checksums else 0)
    return b"".join(packed for _, packed in frames) + table


def zstd_repeating(byte: bytes, num_blocks: int) -> bytes:
    """A frame of blocks that each say "128 KiB of this byte" in four bytes."""
    block = (128 << 10) << 3 | 1 << 1
    blocks = [(block | (number == num_blocks - 1)) for number in range(num_blocks)]
    body = b"".join(each.to_bytes(3, "little") + byte for each in blocks)
    return b"\x28\xb5\x2f\xfd" + bytes((0, 0x58)) + body  # a window of 2 MiB, nothing else


PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd_frame}
