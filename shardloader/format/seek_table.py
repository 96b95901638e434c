"""Where do the frames of a compressed shard lie, and what of its tar does each hold?

The "zstd seekable format" of Facebook's zstd (contrib/seekable_format): a skippable frame at the
file's end lists the sizes of all frames before it, and where its writer likes a checksum of what
each holds, the low 32 bits of its XXH64. Numbers are little-endian:

    magic, length of what follows                   4 + 4 bytes
    compressed size, size[, checksum] of a frame    4 + 4 [+ 4] bytes each
    number of frames, descriptor, magic             4 + 1 + 4 bytes

Every decompressor passes over it, so nothing but its own sums says that it is right: they have to
give the file's size. No memory is taken for what the file has no room for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shardloader.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SKIPPABLE: Final = 0x184D2A5E
_SEEKABLE: Final = 0x8F92EAB1
_HEAD: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<II")
_FOOT: Final = struct.Struct("<IBI")
_HAS_CHECKSUMS, _RESERVED = 0x80, 0x7C  # bits of the descriptor; the lowest two say nothing
_CHECKSUM_BYTES: Final = 4

ENTRY_BYTES: Final = _ENTRY.size
FOOT_BYTES: Final = _FOOT.size
MOST_FRAME_BYTES: Final = 1 << 31  # of tar; an entry has 32 bits for it
FULL_FRAME_BYTES: Final = 16 << 20  # of tar: a frame with so much in it takes no more samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeekTable:
    """The frames before a seek table.

    packed_edges, plain_edges: where each frame begins in the file and in the tar, and where the
    last one ends, int64 [frames + 1]; checksums: of what each holds, uint32 [frames], None where
    there are none.
    """

    packed_edges: NDArray[np.int64]
    plain_edges: NDArray[np.int64]
    checksums: NDArray[np.uint32] | None = None

    @property
    def tar_bytes(self) -> int:
        """The size of the tar in the frames."""
        return int(self.plain_edges[-1])

    def frames_of(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last frame that holds of each stretch of the tar, int64 [n] each.

        Stretches have bytes, and lie in the tar.
        """
        first = np.searchsorted(self.plain_edges, starts, side="right") - 1
        last = np.searchsorted(self.plain_edges, stops, side="left") - 1
        return first, last


def seek_table(frames: Sequence[tuple[int, int]]) -> bytes:
    """Return the seek table of frames that are given as (compressed size, size)."""
    entries = b"".join(_ENTRY.pack(*frame) for frame in frames)
    foot = _FOOT.pack(len(frames), 0, _SEEKABLE)
    return _HEAD.pack(_SKIPPABLE, len(entries) + len(foot)) + entries + foot


def seek_table_bytes(num_frames: int) -> int:
    """How long `seek_table` is."""
    return _HEAD.size + _ENTRY.size * num_frames + _FOOT.size


def told_table_bytes(end: bytes, *, file_bytes: int, shard: str) -> int | None:
    """How many bytes at a file's end are its seek table; None where it has none.

    end: at least FOOT_BYTES of the file's end, or all of a smaller file; shard: names the file in
    messages. Raises ShardError for a table that the file has no room for, or of no known version.
    """
    if len(end) < FOOT_BYTES:
        return None
    num_frames, descriptor, magic = _FOOT.unpack(end[-FOOT_BYTES:])
    if magic != _SEEKABLE:
        return None
    at = file_bytes - FOOT_BYTES
    if descriptor & _RESERVED:
        raise _damaged(shard, at, "reserved bits of the seek table are set")
    length = _HEAD.size + _entry_bytes(descriptor) * num_frames + FOOT_BYTES
    if length > file_bytes:
        raise _damaged(
            shard,
            at,
            f"the seek table of {num_frames} frames has {length} bytes, and the file {file_bytes}",
        )
    return int(length)


def parse_seek_table(table: bytes, *, file_bytes: int, shard: str) -> SeekTable:
    """Parse the last bytes of a file, as many as `told_table_bytes` says.

    Raises ShardError for a table whose frames don't fill what lies before it.
    """
    num_frames, descriptor, _ = _FOOT.unpack(table[-FOOT_BYTES:])
    at = file_bytes - len(table)
    magic, length = _HEAD.unpack(table[: _HEAD.size])
    if magic != _SKIPPABLE or length != len(table) - _HEAD.size:
        raise _damaged(
            shard, at, f"a seek table of {num_frames} frames should begin, and there is another"
        )
    columns = _entry_bytes(descriptor) // 4
    entries = np.frombuffer(table[_HEAD.size : -FOOT_BYTES], dtype="<u4")
    entries = entries.reshape(num_frames, columns)
    packed, plain = entries[:, 0], entries[:, 1]
    if not packed.all():
        frame = int(np.flatnonzero(packed == 0)[0])
        raise _damaged(shard, at, f"the seek table says that frame {frame} has no bytes")
    packed_edges, plain_edges = _edges(packed), _edges(plain)
    if packed_edges[-1] != at:
        raise _damaged(
            shard,
            at,
            f"the frames of the seek table have {packed_edges[-1]} bytes together, and {at} lie "
            "before it",
        )
    checksums = entries[:, 2] if descriptor & _HAS_CHECKSUMS else None
    return SeekTable(packed_edges=packed_edges, plain_edges=plain_edges, checksums=checksums)


def _entry_bytes(descriptor: int) -> int:
    return ENTRY_BYTES + (_CHECKSUM_BYTES if descriptor & _HAS_CHECKSUMS else 0)


def _edges(sizes: NDArray[np.uint32]) -> NDArray[np.int64]:
    edges = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, dtype=np.int64, out=edges[1:])
    return edges


def _damaged(shard: str, at: int, problem: str) -> ShardError:
    return ShardError(
        f"{shard}: damaged at byte {at} of the compressed file: {problem}; fetch or write it anew",
        kind="bad_compression",
        offset=at,
    )
