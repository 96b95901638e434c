"""How does a sample become the bytes of a tar?

A header, the data and padding for each of its fields, in pieces that are joined when they are
written. Most headers differ from others in their name, size and checksum only, and are put
together from parts that were made before; the long way (`format.tar_header.member_header`) gives
the same bytes, and all others. A property test holds that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import adler32

from shardloader.format.tar_header import (
    BLOCK_BYTES,
    NAME_BYTES,
    USTAR_MAX_SIZE,
    end_of_header,
    member_header,
    middle_of_header,
    padding,
)
from shardloader.writing.encode import checked, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.writing.encode import FieldLayout

_PADDINGS = tuple(bytes(padding(size)) for size in range(BLOCK_BYTES))
_AFTER_NAME = tuple(bytes(NAME_BYTES - size) for size in range(NAME_BYTES + 1))


class TarredSample(NamedTuple):
    """A sample as it will lie in a shard: its bytes in pieces, offsets from its own start.

    `fields`, `offsets` of the data and `sizes` have an entry for each member.
    """

    key: str
    fields: tuple[str, ...]
    offsets: list[int]
    sizes: list[int]
    pieces: list[bytes]
    size_bytes: int


@lru_cache(maxsize=1024)
def _names(layout: tuple[FieldLayout, ...]) -> tuple[str, ...]:
    """Give the fields' names: one and the same tuple for all samples of a kind."""
    return tuple(each.field for each in layout)


def tarred(sample: Mapping[str, Any]) -> TarredSample:
    """Encode a sample. Raises SampleError, as `encode_sample` does, before there is any byte."""
    key, layout = checked(sample)
    key_bytes = key.encode()
    offsets: list[int] = []
    sizes: list[int] = []
    pieces: list[bytes] = []
    at = 0
    for field, encode, suffix in layout:
        value = sample[field]
        data = value if type(value) is bytes else encoded(key, field, encode, value)
        size = len(data)
        name = key_bytes + suffix
        if len(name) <= NAME_BYTES and size <= USTAR_MAX_SIZE:
            middle, checksum = middle_of_header(size)
            # Adler-32's lower half is 1 plus the sum of the bytes: exact for so few of them.
            checksum += (adler32(name) & 0xFFFF) - 1
            pieces += (name, _AFTER_NAME[len(name)], middle, end_of_header(checksum))
            at += BLOCK_BYTES
        else:
            header = member_header(f"{key}.{field}", size)
            pieces.append(header)
            at += len(header)
        pad = _PADDINGS[size % BLOCK_BYTES]
        pieces += (data, pad)
        offsets.append(at)
        sizes.append(size)
        at += size + len(pad)
    return TarredSample(key, _names(layout), offsets, sizes, pieces, at)
