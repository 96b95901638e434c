"""What do the members of a gzip stream hold?

RFC 1952: a stream is members one after another, and zeros may follow. The framing is read here, so
that every fault has its byte; the deflate data goes through zlib. A member is whole when its
trailer has been read, and its CRC and length are those of what came out.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from shardloader.format.foreign import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.format.feed import Feed

OUT_BYTES: Final = 1 << 20  # at most so much comes out at once
_LEAST_IN, _MOST_IN = 512, 1 << 16  # what is given to zlib: little first, as members may be tiny

_DEFLATE = 8
_HEADER_CRC, _EXTRA, _NAME, _COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0


def gzip_pieces(feed: Feed) -> Iterator[bytes]:
    """Yield what the members hold, in pieces of at most 1 MiB.

    Raises ShardError at the first fault, with the byte of the compressed file.
    """
    while True:
        _read_header(feed)
        yield from _content(feed)
        if not _another_member(feed):
            return


def _read_header(feed: Feed) -> None:
    start = feed.offset
    fixed = feed.exactly(10, what="a gzip header")
    method, flags = fixed[2], fixed[3]
    if method != _DEFLATE:
        raise feed.damaged(start + 2, f"a gzip member has the method 8 (deflate), not {method}")
    if flags & _RESERVED:
        raise feed.damaged(start + 3, f"the flags of a gzip header are below 32, not {flags}")
    crc = zlib.crc32(fixed)
    if flags & _EXTRA:
        length = feed.exactly(2, what="the length of a gzip header's extra field")
        extra = feed.exactly(int.from_bytes(length, "little"), what="a gzip header's extra field")
        crc = zlib.crc32(extra, zlib.crc32(length, crc))
    for flag, what in ((_NAME, "name"), (_COMMENT, "comment")):
        if flags & flag:
            crc = _pass_text(feed, crc, what)
    if flags & _HEADER_CRC:
        at = feed.offset
        stored = int.from_bytes(feed.exactly(2, what="a gzip header's checksum"), "little")
        if stored != crc & 0xFFFF:
            raise feed.mismatch(
                at, f"the gzip header stores {stored:04x} and has {crc & 0xFFFF:04x}"
            )


def _pass_text(feed: Feed, crc: int, what: str) -> int:
    """Pass over a text that ends with a NUL; give the CRC that goes on over it."""
    start = feed.offset
    while piece := feed.some(_LEAST_IN):
        text, nul, rest = bytes(piece).partition(b"\0")
        crc = zlib.crc32(text + nul, crc)
        if nul:
            feed.give_back(rest)
            return crc
    raise feed.truncated(
        start, f"a gzip header's {what} begins at byte {start} and should end with a NUL"
    )


def _content(feed: Feed) -> Iterator[bytes]:
    start = feed.offset
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    crc = length = 0
    most_in = _LEAST_IN
    while not inflater.eof:
        given = inflater.unconsumed_tail or feed.some(most_in)
        most_in = min(2 * most_in, _MOST_IN)
        at_end = not given
        try:
            out = inflater.decompress(given, OUT_BYTES)
        except zlib.error as error:
            raise feed.damaged(
                feed.offset, f"the deflate data from byte {start} on can't be decoded ({error})"
            ) from None
        if out:
            crc, length = zlib.crc32(out, crc), length + len(out)
            yield out
        elif at_end and not inflater.eof:
            raise feed.truncated(
                feed.offset,
                f"the deflate data from byte {start} on should go on, and the file ends at byte "
                f"{feed.offset}",
            )
    feed.give_back(inflater.unused_data)
    _check_trailer(feed, crc, length)


def _check_trailer(feed: Feed, crc: int, length: int) -> None:
    at = feed.offset
    trailer = feed.exactly(8, what="a gzip trailer (CRC and length)")
    stored = int.from_bytes(trailer[:4], "little")
    if stored != crc:
        raise feed.mismatch(at, f"the gzip trailer stores the CRC {stored:08x}, it is {crc:08x}")
    stored = int.from_bytes(trailer[4:], "little")
    if stored != length % 2**32:
        raise feed.mismatch(
            at + 4, f"the gzip trailer stores the length {stored}, it is {length % 2**32}"
        )


def _another_member(feed: Feed) -> bool:
    """Pass over zeros, which tapes and block devices leave; say whether a member follows."""
    while piece := feed.some():
        if (rest := bytes(piece).lstrip(b"\0")) == b"":
            continue
        feed.give_back(rest)
        at, magic = feed.offset, feed.take(2)
        if GZIP_MAGIC.startswith(magic):  # also when it was cut, which the header then says
            feed.give_back(magic)
            return True
        raise feed.damaged(
            at, f"a gzip member, zeros or the end were expected, and there is {magic!r}"
        )
    return False
