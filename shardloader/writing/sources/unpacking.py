"""How is a compressed input unpacked, and is all of it there?

In blocks, so that memory stays flat, through all members of a gzip file and all frames of a zstd
file. A file whose last one has no end is cut short, and an error, whatever came out of it.
"""

from __future__ import annotations

import zlib
from typing import IO, TYPE_CHECKING, Any

import zstandard

from shardloader.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BLOCK_BYTES = 1 << 20
_GZIP = 31  # zlib's word for a gzip header with the largest window
GZIP_SUFFIXES = (".gz", ".tgz")
ZSTD_SUFFIXES = (".zst",)


def is_compressed(name: str) -> bool:
    """Whether a name ends as compressed files' do."""
    return name.lower().endswith((*GZIP_SUFFIXES, *ZSTD_SUFFIXES))


def blocks(handle: IO[bytes], *, name: str) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if its name says that it is compressed.

    Raises ShardError for one that is cut or damaged.
    """
    if name.lower().endswith(ZSTD_SUFFIXES):
        yield from _unpacked(handle, lambda: zstandard.ZstdDecompressor().decompressobj(), name)
    elif name.lower().endswith(GZIP_SUFFIXES):
        yield from _unpacked(handle, lambda: zlib.decompressobj(_GZIP), name)
    else:
        while block := handle.read(_BLOCK_BYTES):
            yield block


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of some bytes, without their ends."""
    rest: list[bytes] = []
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    last = b"".join(rest)
    if last:
        yield last


def _unpacked(handle: IO[bytes], make: Callable[[], Any], name: str) -> Iterator[bytes]:
    member: Any = None
    try:
        while block := handle.read(_BLOCK_BYTES):
            while block:
                if member is None:
                    block = block.lstrip(b"\0")  # zeros may pad the end of a tape's file
                    member = make() if block else None
                if member is None:
                    break
                plain = member.decompress(block)
                if plain:
                    yield plain
                block = member.unused_data if member.eof else b""
                if member.eof:
                    member = None
    except (zlib.error, zstandard.ZstdError) as error:
        raise ShardError(f"{name}: the file is damaged: {error}", kind="bad_header") from error
    if member is not None:
        raise ShardError(f"{name}: the file is cut short: it has no end", kind="truncated")
