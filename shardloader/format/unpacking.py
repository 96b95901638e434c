"""What are the bytes of a shard's tar, however the shard is packed?

A stream goes in, and the tar comes out in pieces: as it is, or unpacked from gzip or zstd, told by
the first bytes. When the last piece has come out, every checksum on the way has held and the
stream has reached its end.

What comes out is limited. A few bytes can stand for gigabytes, so more than `FREE_BYTES` has to
keep to `max_expansion` times what went in. The free part is what any machine can bear; beyond it
text and JSON shrink ten- to fiftyfold, masks and tables of zeros a few hundredfold, and a
bomb a thousandfold (gzip) to thirty-thousandfold (zstd).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from shardloader.errors import ShardError
from shardloader.format.feed import Feed
from shardloader.format.foreign import check_beginning, packing_of
from shardloader.format.gzip_members import gzip_pieces
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.zstd_frames import zstd_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FREE_BYTES: Final = 256 << 20
MAX_EXPANSION: Final = 500
MAX_WINDOW_BYTES: Final = 128 << 20  # what zstd itself takes without --long


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a shard may expand, and how much memory a zstd frame's window may take."""

    max_expansion: int = MAX_EXPANSION
    max_window_bytes: int = MAX_WINDOW_BYTES
    free_bytes: int = FREE_BYTES


def tar_pieces(
    pieces: Iterable[bytes | memoryview], *, shard: str, limits: Limits | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the tar in a stream of bytes; `shard` names it in messages.

    Raises ShardError for a stream that is damaged, cut, or of no kind that is read; for one that
    expands further than `limits` let it; and, with the likely cause, for what holds no tar. What
    was yielded before is not to be trusted then.
    """
    limits = Limits() if limits is None else limits
    feed = Feed(pieces, shard=shard)
    first = feed.take(BLOCK_BYTES)
    feed.give_back(first)
    unpacked = _unpacked(feed, packing_of(first), limits)
    if unpacked is None:
        check_beginning(first, shard=shard)
        yield from iter(feed.some, b"")
        return
    yield from _with_sound_beginning(_limited(unpacked, feed, limits), unpacked_name(shard))


def unpacked_pieces(
    pieces: Iterable[bytes], *, name: str, limits: Limits | None = None
) -> Iterator[bytes | memoryview]:
    """Yield what is in a stream of anything, however much that is, with the same errors."""
    limits = Limits() if limits is None else limits
    feed = Feed(pieces, shard=name)
    first = feed.take(BLOCK_BYTES)
    feed.give_back(first)
    unpacked = _unpacked(feed, packing_of(first), limits)
    yield from iter(feed.some, b"") if unpacked is None else unpacked


def _unpacked(feed: Feed, packing: str | None, limits: Limits) -> Iterator[bytes] | None:
    if packing is None:
        return None
    if packing == "gzip":
        return gzip_pieces(feed)
    return zstd_pieces(feed, max_window_bytes=limits.max_window_bytes)


def unpacked_name(shard: str) -> str:
    """How messages call the tar in a compressed shard: offsets in it are not the file's."""
    return f"{shard} (decompressed)"


def _limited(unpacked: Iterable[bytes], feed: Feed, limits: Limits) -> Iterator[bytes]:
    length = 0
    for piece in unpacked:
        length += len(piece)
        if length > max(limits.free_bytes, limits.max_expansion * feed.offset):
            raise ShardError(
                f"{feed.shard}: expands too far: the first {feed.offset} bytes of the compressed "
                f"file stand for more than {length}, which is beyond {limits.max_expansion} times: "
                "if that is as it should be, raise max_expansion= of the cache",
                kind="expands_too_far",
                offset=feed.offset,
            )
        yield piece


def _with_sound_beginning(unpacked: Iterator[bytes], shard: str) -> Iterator[bytes]:
    """Hold back the first block until it can be seen that it begins a tar.

    What can't be one because it is short is refused after the stream's end has been checked.
    """
    first = bytearray()
    for piece in unpacked:
        first += piece
        if len(first) >= BLOCK_BYTES:
            break
    check_beginning(bytes(first[:BLOCK_BYTES]), shard=shard)
    yield from chain((bytes(first),), unpacked)
