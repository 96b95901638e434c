"""How are samples compressed so that they can be read from the middle?

A compressed shard is a sequence of zstd frames, each of whole samples, each with its size and a
checksum in it; then the archive's end in a frame of its own, and a seek table: a skippable frame
that lists all frames' sizes (the "zstd seekable format" of Facebook's zstd, contrib/
seekable_format), which every decompressor passes over. So one sample costs one frame.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, field
from functools import lru_cache

import zstandard

from shardloader.errors import UsageError
from shardloader.format.tar_header import END_OF_ARCHIVE

_SKIPPABLE = 0x184D2A5E
_SEEKABLE = 0x8F92EAB1
_ENTRY = struct.Struct("<II")
_HEAD = struct.Struct("<II")
TABLE_ENTRY_BYTES = _ENTRY.size
_FOOT = struct.Struct("<IBI")
_MAX_FRAME_BYTES = 1 << 31  # the seek table has 32 bits for a frame
MAX_LEVEL = 22
FULL_FRAME_BYTES = 16 << 20  # of tar: a frame with so much in it takes no more samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """zstd at a level, with a frame for so many samples, or fewer where they are big."""

    level: int = 3
    frame_samples: int = 64
    end: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.level) is not int or not 1 <= self.level <= MAX_LEVEL:
            raise UsageError(f"a zstd level is 1 to {MAX_LEVEL}, not {self.level!r}")
        if type(self.frame_samples) is not int or self.frame_samples < 1:
            raise UsageError(f"a frame holds at least one sample, not {self.frame_samples!r}")
        object.__setattr__(self, "end", compress(END_OF_ARCHIVE, self.level))

    def is_full(self, num_samples: int, plain_bytes: int) -> bool:
        """Whether a frame ends here."""
        return num_samples >= self.frame_samples or plain_bytes >= FULL_FRAME_BYTES

    def end_bytes(self, num_frames: int) -> int:
        """Bytes that follow the last frame of samples, of which there are so many."""
        return len(self.end) + _HEAD.size + _ENTRY.size * (num_frames + 1) + _FOOT.size


def compress(data: bytes | bytearray, level: int) -> bytes:
    """Return one frame; the same bytes for the same data, level and release of zstd."""
    if len(data) >= _MAX_FRAME_BYTES:
        raise UsageError(
            f"a frame holds less than 2 GiB, and these samples have {len(data)} bytes: write them "
            "without compression, or fewer samples a frame"
        )
    return _own.compressor(level).compress(data)


def seek_table(frames: list[tuple[int, int]]) -> bytes:
    """Return the seek table of frames that are given as (compressed size, size)."""
    entries = b"".join(_ENTRY.pack(*frame) for frame in frames)
    foot = _FOOT.pack(len(frames), 0, _SEEKABLE)
    return _HEAD.pack(_SKIPPABLE, len(entries) + len(foot)) + entries + foot


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


class _OfThread(threading.local):
    """A thread's own compressors, by level: two threads must not use one at a time."""

    def __init__(self) -> None:
        self.compressor = lru_cache(maxsize=4)(_compressor)


_own = _OfThread()
