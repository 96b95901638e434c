"""How does a sample become the bytes of a tar?

A header, the data and padding for each of its fields. Most headers differ from others in their
name, size and checksum only: those are made for many samples at once, when their bytes are needed,
and until then a sample only has room for them. The long way (`format.tar_header.member_header`)
gives the same bytes, and all other headers. A property test holds that.
"""

from __future__ import annotations

from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.format.tar_header import (
    BLOCK_BYTES,
    USTAR_MAX_SIZE,
    member_header,
    member_headers,
    padding,
)
from shardloader.writing.encode import checked, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PADDINGS = tuple(bytes(padding(size)) for size in range(BLOCK_BYTES))
_ROOM = bytes(BLOCK_BYTES)  # for a header
_FEW = 32  # headers are sooner made one by one


class Made(NamedTuple):
    """All bytes of a sample in pieces, with the bytes of each member's header and data."""

    headers: tuple[int, ...]
    sizes: tuple[int, ...]
    pieces: Sequence[bytes]


class TarredSample(NamedTuple):
    """A sample as it will lie in a shard: the data of its members, in the order of `fields`.

    Where `made` is None the headers are ordinary ones, a block each, and yet to be made; else it
    has all bytes, and `data` may be empty.
    """

    key: str
    fields: tuple[str, ...]
    data: Sequence[bytes]
    size_bytes: int
    made: Made | None = None

    @property
    def outline(self) -> TarredSample:
        """The same without its bytes."""
        headers, sizes, _ = self.made or ordinary(self)
        return TarredSample(self.key, self.fields, (), self.size_bytes, Made(headers, sizes, ()))


def tarred(sample: Mapping[str, Any]) -> TarredSample:
    """Encode a sample. Raises SampleError, as `encode_sample` does, before there is any byte."""
    key, layout = checked(sample)
    data: Sequence[bytes] = layout.values(sample)
    size_bytes = 0
    for value in data:
        if type(value) is not bytes:
            data = encoded(key, layout, data)
            size_bytes = sum([-(-len(value) // BLOCK_BYTES) for value in data]) * BLOCK_BYTES
            break
        size = len(value)
        size_bytes += size + -size % BLOCK_BYTES
    size_bytes += layout.num_fields * BLOCK_BYTES
    is_ordinary = len(key) <= layout.longest_key and size_bytes <= USTAR_MAX_SIZE
    if is_ordinary and key.isascii():
        return TarredSample(key, layout.fields, data, size_bytes)
    return _with_headers(key, layout.fields, data)


def _with_headers(key: str, fields: tuple[str, ...], data: Sequence[bytes]) -> TarredSample:
    sizes = tuple(map(len, data))
    headers = [
        member_header(f"{key}.{field}", size) for field, size in zip(fields, sizes, strict=True)
    ]
    pieces = _interleaved(headers, data, sizes)
    made = Made(tuple(map(len, headers)), sizes, pieces)
    return TarredSample(key, fields, data, sum(map(len, pieces)), made)


def ordinary(sample: TarredSample) -> Made:
    """Give what is made of a sample with ordinary headers, but for the bytes."""
    return Made((BLOCK_BYTES,) * len(sample.fields), tuple(map(len, sample.data)), ())


def pieces_of(samples: Iterable[TarredSample]) -> list[bytes]:
    """Give the bytes of samples, one after another, in pieces: data is not copied."""
    pieces: list[bytes] = []
    for has_ordinary, group in groupby(samples, key=is_ordinary):
        if has_ordinary:
            names, sizes, data = _members(group)
            pieces += _interleaved(_headers(names, sizes), data, sizes)
        else:
            for sample in group:
                pieces += sample.made.pieces if sample.made else ()
    return pieces


def tar_of(samples: Sequence[TarredSample]) -> bytes | bytearray:
    """Give the bytes of samples, one after another."""
    if not samples or not all(map(is_ordinary, samples)):
        return b"".join(pieces_of(samples))
    names, sizes, data = _members(samples)
    tar = bytearray().join(_interleaved([_ROOM] * len(names), data, sizes))
    num_blocks = 1 - -np.array(sizes, np.int64) // BLOCK_BYTES
    blocks = np.frombuffer(tar, np.uint8).reshape(-1, BLOCK_BYTES)
    blocks[np.cumsum(num_blocks) - num_blocks] = member_headers(names, sizes)
    return tar


def is_ordinary(sample: TarredSample) -> bool:
    """Whether all headers of a sample are ordinary ones, and yet to be made."""
    return sample.made is None


def _members(samples: Iterable[TarredSample]) -> tuple[list[str], list[int], list[bytes]]:
    """Give the names, sizes and data of the members of samples."""
    keys, fields, of_samples, *_ = zip(*samples, strict=True)
    suffixes = {each: tuple([f".{field}" for field in each]) for each in set(fields)}
    in_turn = map(suffixes.__getitem__, fields)
    names = [key + suffix for key, each in zip(keys, in_turn, strict=True) for suffix in each]
    data = list(chain.from_iterable(of_samples))
    return names, list(map(len, data)), data


def _headers(names: list[str], sizes: list[int]) -> list[bytes]:
    if len(names) < _FEW:
        return list(map(member_header, names, sizes))
    made = member_headers(names, sizes).tobytes()
    return [made[at : at + BLOCK_BYTES] for at in range(0, len(made), BLOCK_BYTES)]


def _interleaved(
    headers: Sequence[bytes], data: Sequence[bytes], sizes: Sequence[int]
) -> list[bytes]:
    """Give headers, data and padding in the order in which they lie in a tar."""
    pieces = [b""] * (3 * len(data))
    pieces[0::3] = headers
    pieces[1::3] = data
    pieces[2::3] = [_PADDINGS[size % BLOCK_BYTES] for size in sizes]
    return pieces
