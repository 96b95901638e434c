"""Is this index of these bytes?

A look at the headers in front of a shard's first and last member: whether they are headers, and
name what the index says. A tar that was replaced by another of the same size is so found out, at
the cost of two blocks. Long and foreign names stand in extension headers, and the header itself
holds only what fits: that much is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shardloader.format.samples import split_name
from shardloader.format.tar_fields import checksum_holds
from shardloader.format.tar_header import BLOCK_BYTES

if TYPE_CHECKING:
    from shardloader.format.index import SampleIndex

NAME_BYTES = 100


class Sliced(Protocol):
    """Bytes of a tar, by slices; not all of them need be there."""

    def __getitem__(self, of: slice, /) -> bytes | memoryview:
        """Some bytes."""
        ...


def seems_to_be_of(index: SampleIndex, data: memoryview) -> bool:
    """Whether the headers of the first and the last member are where `index` says."""
    return len(data) == index.shard_bytes and outermost_hold(index, data)


def outermost_headers(index: SampleIndex) -> list[int]:
    """Where the headers of the first and the last member begin; none of an empty shard."""
    if index.num_samples == 0:
        return []
    return [max(0, int(index.member_offsets[at]) - BLOCK_BYTES) for at in (0, -1)]


def outermost_hold(index: SampleIndex, data: Sliced) -> bool:
    """The same of bytes whose number is known to be right, of which only those blocks are there."""
    if index.num_samples == 0:
        return True
    last = index.num_samples - 1
    return holds_member(index, data, 0, int(index.sample_starts[0])) and holds_member(
        index, data, last, int(index.sample_starts[last + 1]) - 1
    )


def begins_like(index: SampleIndex, header: bytes) -> bool:
    """Whether the first member's header is the block that ends where `end_of_first_header` says."""
    return index.num_samples == 0 or _is_header_of(index, header, 0, 0)


def end_of_first_header(index: SampleIndex) -> int:
    """The byte of the tar behind the header of its first member."""
    return int(index.member_offsets[0]) if index.num_samples else 0


def holds_member(index: SampleIndex, data: Sliced, sample: int, member: int) -> bool:
    """Whether the header in front of a member is where `index` says, and names it."""
    start = int(index.member_offsets[member]) - BLOCK_BYTES
    if start < 0:
        return False
    return _is_header_of(index, bytes(data[start : start + BLOCK_BYTES]), sample, member)


def _is_header_of(index: SampleIndex, block: bytes, sample: int, member: int) -> bool:
    """Whether a block is a header that names a member as `index` does."""
    if not checksum_holds(block):
        return False
    key, field = index.key(sample), index.fields[int(index.member_fields[member])]
    name = block[:NAME_BYTES].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:262] == b"ustar" else b""
    whole = b"/".join(part for part in (prefix, name) if part)
    if split_name(whole.decode("utf-8", "surrogateescape")) == (key, field):
        return True
    # What an extension header overrides: the first bytes of the name, perhaps as ASCII.
    told = f"{key}.{field}"
    written = (told.encode("utf-8", "surrogateescape"), told.encode("ascii", "replace"))
    return any(text[:NAME_BYTES].lower() == name.lower() for text in written)
