"""What is a file that is no tar archive?

Magic bytes and likely causes, in one table. Used for messages, and to tell what a shard came
packed in: names and extensions say nothing here.
"""

from __future__ import annotations

from typing import Final

from shardloader.errors import ShardError
from shardloader.format.media import media_of
from shardloader.format.tar_fields import checksum_holds
from shardloader.format.tar_header import BLOCK_BYTES

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
SKIPPABLE_MAGICS: Final = tuple(bytes((0x50 + n,)) + b"*M\x18" for n in range(16))
ZIP_MAGIC: Final = b"PK\x03\x04"
LEGACY_ZSTD_MAGICS: Final = tuple(bytes((0x1E + n,)) + ZSTD_MAGIC[1:] for n in range(10))

_TWICE = "was it compressed twice? decompress it once"
_READ = "this release reads tar, gzip and zstd: pack it anew as one of these"

_LIKELY_CAUSES: Final[tuple[tuple[bytes, str], ...]] = (
    (GZIP_MAGIC, f"it is gzip-compressed where a tar was expected; {_TWICE} (gunzip)"),
    *(
        (magic, f"it is zstd-compressed where a tar was expected; {_TWICE} (zstd -d)")
        for magic in (ZSTD_MAGIC, *SKIPPABLE_MAGICS)
    ),
    *(
        (magic, "it was compressed by zstd 0.7 or older, whose format is not read: pack it anew")
        for magic in LEGACY_ZSTD_MAGICS
    ),
    (
        b"version https://git-lfs",
        "it looks like a Git LFS pointer: the repository was cloned without LFS (git lfs pull)",
    ),
    (b"<!doctype html", "it looks like HTML: an error or login page was saved under this name"),
    (b"<html", "it looks like HTML: an error or login page was saved under this name"),
    (b"<?xml", "it looks like XML: an object store's error was saved under this name"),
    (b"<error", "it looks like XML: an object store's error was saved under this name"),
    (ZIP_MAGIC, f"it is a zip archive; {_READ}"),
    (b"BZh", f"it is bzip2-compressed; {_READ}"),
    (b"\xfd7zXZ", f"it is xz-compressed; {_READ}"),
    (b"\x04\x22\x4d\x18", f"it is lz4-compressed; {_READ}"),
    (b"LZIP", f"it is lzip-compressed; {_READ}"),
    (b"\x1f\x9d", f"it was packed by compress (.Z); {_READ}"),
    (b"7z\xbc\xaf\x27\x1c", f"it is a 7z archive; {_READ}"),
)


def packing_of(first: bytes) -> str | None:
    """What the file that begins so is packed in: "gzip", "zstd", or None for anything else.

    A tar whose first member has such a name is a tar: its header's checksum says so.
    """
    if first.startswith(GZIP_MAGIC):
        packing = "gzip"
    elif first.startswith((ZSTD_MAGIC, *SKIPPABLE_MAGICS)):
        packing = "zstd"
    else:
        return None
    return None if begins_a_tar(first) else packing


def begins_a_tar(first: bytes) -> bool:
    """Whether the first block is a tar header, or the end of an empty archive."""
    block = first[:BLOCK_BYTES]
    return len(block) == BLOCK_BYTES and (not block.strip(b"\0") or checksum_holds(block))


def check_beginning(first: bytes, *, shard: str) -> None:
    """Raise ShardError unless the first 512 bytes, or all there are, begin a tar."""
    if not first:
        raise empty_file(shard)
    if len(first) < BLOCK_BYTES:
        raise not_a_tar(first, too_short(len(first)), shard=shard)
    if not begins_a_tar(first):
        raise not_a_tar(first, "its first 512 bytes are no tar header", shard=shard)


def what_no_image_is(data: bytes) -> str:
    """Say what a field that begins so probably is, where it is not the image its name promises.

    >>> what_no_image_is(b"<!doctype html><title>Not found")
    'it looks like HTML: an error or login page was saved under this name'
    """
    if not data:
        return "it has 0 bytes: was a download interrupted?"
    media = media_of(data)
    if media is not None:
        return f"it begins as a {media.name} does: name its decoder, decode={{FIELD: ...}}"
    return _cause_of(data) or f"it begins {bytes(data[:16])!r}"


def _cause_of(first: bytes) -> str | None:
    start = bytes(first[:64]).lstrip().lower()
    return next((why for magic, why in _LIKELY_CAUSES if start.startswith(magic.lower())), None)


def too_short(size: int) -> str:
    """Say that a file is shorter than a tar can be."""
    return f"it has {size} bytes, and a tar at least {BLOCK_BYTES}"


def empty_file(shard: str) -> ShardError:
    """Give the error for a file of no bytes."""
    return ShardError(
        f"{shard}: 0 bytes is not a tar archive; was an upload or a copy interrupted?",
        kind="empty_file",
        offset=0,
    )


def not_a_tar(first: bytes, problem: str, *, shard: str) -> ShardError:
    """Give the error for a file that begins with `first`, with what it probably is."""
    shown = first.lstrip()[:40]
    cause = _cause_of(first) or "fetch or write it anew"
    return ShardError(
        f"{shard}: not a tar archive: {problem} (they begin {shown!r}); {cause}",
        kind="not_a_tar",
        offset=0,
    )
