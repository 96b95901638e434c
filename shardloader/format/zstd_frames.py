"""What do the frames of a zstd stream hold?

RFC 8878: a stream is frames one after another, some of them skippable. The framing is walked here
and given to the library block by block: so every fault has its byte, a frame that is not finished
is noticed (the library's stream readers give what they have), and no call puts out more than a
block holds, which is 128 KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zstandard

from shardloader.errors import ShardError
from shardloader.format.feed import Feed
from shardloader.format.foreign import LEGACY_ZSTD_MAGICS, SKIPPABLE_MAGICS, ZSTD_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BLOCK_BYTES: Final = 128 << 10
_ONE_BYTE_REPEATED, _RESERVED = 1, 3  # types of blocks
_LEAST_WINDOW = 1 << 10  # which the library takes as a limit


class _Header(NamedTuple):
    raw: bytes
    window_bytes: int
    has_checksum: bool


def zstd_pieces(feed: Feed, *, max_window_bytes: int) -> Iterator[bytes]:
    """Yield what the frames hold, in pieces of at most a block.

    A frame whose window is larger than `max_window_bytes` is refused before any memory is taken
    for it. Raises ShardError at the first fault, with the byte of the compressed file.
    """
    while True:
        at, magic = feed.offset, feed.take(4)
        if not magic:
            return
        if magic == ZSTD_MAGIC:
            yield from _frame(feed, at, max_window_bytes)
        elif magic in SKIPPABLE_MAGICS:
            size = feed.exactly(4, what="the length of a skippable zstd frame")
            feed.skip(int.from_bytes(size, "little"), what="a skippable zstd frame")
        else:
            raise _no_frame(feed, at, magic)


def frame_content(
    packed: bytes | memoryview,
    *,
    start: int,
    num_bytes: int,
    shard: str,
    max_window_bytes: int,
) -> bytes:
    """What one frame of a file holds, that should begin at byte `start` and hold `num_bytes`.

    packed: the bytes that it should lie in, and no others. Raises ShardError as `zstd_pieces` does,
    and where the frame is longer than those bytes, or holds another number of bytes; no more than
    a block beyond that number is unpacked.
    """
    feed = Feed((packed,), shard=shard, offset=start)
    told = f"a zstd frame of {num_bytes} bytes should lie in the {len(packed)} bytes from there on"
    pieces: list[bytes] = []
    length = 0
    try:
        for piece in zstd_pieces(feed, max_window_bytes=max_window_bytes):
            pieces.append(piece)
            length += len(piece)
            if length > num_bytes:
                raise feed.damaged(start, f"{told}, and it holds more")
    except ShardError as error:
        if error.kind != "truncated":
            raise
        raise feed.damaged(start, f"{told}, and it does not end there") from None
    if length != num_bytes:
        raise feed.damaged(start, f"{told}, and it holds {length}")
    return b"".join(pieces)


def _no_frame(feed: Feed, at: int, magic: bytes) -> Exception:
    if any(known.startswith(magic) for known in (ZSTD_MAGIC, *SKIPPABLE_MAGICS)):
        return feed.truncated(
            at, f"a zstd frame begins at byte {at}, and the file ends in its magic"
        )
    if magic in LEGACY_ZSTD_MAGICS:
        return feed.unsupported(at, "lies a frame of zstd 0.7 or older: pack the shard anew")
    return feed.damaged(at, f"a zstd frame or the end was expected, and there is {magic!r}")


def _frame(feed: Feed, start: int, max_window_bytes: int) -> Iterator[bytes]:
    header = _read_header(feed, start)
    if header.window_bytes > max_window_bytes:
        raise feed.unsupported(
            start,
            f"a zstd frame needs a window of {header.window_bytes} bytes (zstd --long), and at "
            f"most {max_window_bytes} are taken for one: raise max_window= "
            "of the cache",
        )
    limit = max(max_window_bytes, _LEAST_WINDOW)
    decoder = zstandard.ZstdDecompressor(max_window_size=limit).decompressobj()
    _decoded(decoder, ZSTD_MAGIC + header.raw, feed, start)
    last = False
    while not last:
        at = feed.offset
        block, last = _read_block(feed, at)
        out = _decoded(decoder, block, feed, at)
        if out:
            yield out
    if header.has_checksum:
        _check(decoder, feed)
    if not decoder.eof:  # the library walks the frame as well, and counts what comes out
        raise feed.damaged(start, "the zstd frame is not at its end after its last block")


def _read_header(feed: Feed, start: int) -> _Header:
    what = "a zstd frame's header"
    descriptor = feed.exactly(1, what=what)[0]
    if descriptor & 8:
        raise feed.damaged(start + 4, "a reserved bit of a zstd frame's header is set")
    is_single = bool(descriptor & 32)
    window = b"" if is_single else feed.exactly(1, what=what)
    dictionary = feed.exactly((0, 1, 2, 4)[descriptor & 3], what=what)
    content = feed.exactly((1 if is_single else 0, 2, 4, 8)[descriptor >> 6], what=what)
    number = int.from_bytes(dictionary, "little")
    if number:
        raise feed.unsupported(
            start,
            f"begins a zstd frame that needs the dictionary {number}, and dictionaries are not "
            "read: pack the shard anew without one",
        )
    return _Header(
        raw=bytes((descriptor,)) + window + dictionary + content,
        window_bytes=_window_bytes(window[0]) if window else int.from_bytes(content, "little"),
        has_checksum=bool(descriptor & 4),
    )


def _window_bytes(descriptor: int) -> int:
    base = 1 << (10 + (descriptor >> 3))
    return base + (base >> 3) * (descriptor & 7)


def _read_block(feed: Feed, at: int) -> tuple[bytes, bool]:
    """Read a block with its header; say whether it is the frame's last."""
    head = feed.exactly(3, what="the header of a zstd block")
    number = int.from_bytes(head, "little")
    is_last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
    if kind == _RESERVED or size > MAX_BLOCK_BYTES:
        raise feed.damaged(
            at,
            f"a zstd block has the type 0, 1 or 2 and at most {MAX_BLOCK_BYTES} bytes, and this "
            f"one the type {kind} and {size} bytes",
        )
    stored = 1 if kind == _ONE_BYTE_REPEATED else size
    return head + feed.exactly(stored, what="a zstd block"), is_last


def _decoded(decoder: Any, data: bytes, feed: Feed, at: int) -> bytes:
    try:
        out: bytes = decoder.decompress(data)
    except zstandard.ZstdError as error:
        raise feed.damaged(
            at,
            f"the zstd data can't be decoded ({error}), unless a dictionary is missing",
        ) from None
    return out


def _check(decoder: Any, feed: Feed) -> None:
    """Give the frame's checksum to the library, which compares it."""
    at = feed.offset
    stored = feed.exactly(4, what="a zstd frame's checksum")
    try:
        decoder.decompress(stored)
    except zstandard.ZstdError as error:
        raise feed.mismatch(
            at, f"the zstd frame stores {int.from_bytes(stored, 'little'):08x} ({error})"
        ) from None
