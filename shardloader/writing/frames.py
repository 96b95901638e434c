"""How are samples compressed so that they can be read from the middle?

A compressed shard is a sequence of zstd frames, each of whole samples, each with its size and a
checksum in it; then the archive's end in a frame of its own, and a seek table, which lists all
frames' sizes (`shardloader.format.seek_table`). So one sample costs one frame.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import lru_cache

import zstandard

from shardloader.errors import UsageError
from shardloader.format.seek_table import FULL_FRAME_BYTES, MOST_FRAME_BYTES, seek_table_bytes
from shardloader.format.tar_header import END_OF_ARCHIVE

MAX_LEVEL = 22


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

    @property
    def full_bytes(self) -> int:
        """Bytes of tar with which a frame is full, however few samples they are."""
        return FULL_FRAME_BYTES

    def end_bytes(self, num_frames: int) -> int:
        """Bytes that follow the last frame of samples, of which there are so many."""
        return len(self.end) + seek_table_bytes(num_frames + 1)


def compress(data: bytes | bytearray, level: int) -> bytes:
    """Return one frame; the same bytes for the same data, level and release of zstd."""
    if len(data) >= MOST_FRAME_BYTES:
        raise UsageError(
            f"a frame holds less than 2 GiB, and these samples have {len(data)} bytes: write them "
            "without compression, or fewer samples a frame"
        )
    return _own.compressor(level).compress(data)


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


class _OfThread(threading.local):
    """A thread's own compressors, by level: two threads must not use one at a time."""

    def __init__(self) -> None:
        self.compressor = lru_cache(maxsize=4)(_compressor)


_own = _OfThread()
