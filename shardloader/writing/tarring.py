"""How does a sample become the bytes of a tar?

A header, the data and padding for each of its fields. Most headers differ from others in their
name, size and checksum only: those are made for many samples at once, when their bytes are needed,
and until then a sample only has room for them. The long way (`format.tar_header.member_header`)
gives the same bytes, and all other headers. A property test holds that.
"""

from __future__ import annotations

from functools import lru_cache
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

    from numpy.typing import NDArray

_PADDINGS = tuple(bytes(padding(size)) for size in range(BLOCK_BYTES))
_BIG_BYTES = 1 << 12  # of data: less is copied sooner than it is written as a piece of its own
_ROOM = bytes(BLOCK_BYTES)  # for a header
_GAPS = tuple(padding + _ROOM for padding in _PADDINGS)  # between data and data, by its size's rest


class Made(NamedTuple):
    """All bytes of a sample in pieces, with the bytes of each member's header and data."""

    headers: tuple[int, ...]
    sizes: tuple[int, ...]
    pieces: Sequence[bytes]


class TarredSample(NamedTuple):
    """A sample as it will lie in a shard: the data of its members, in the order of `fields`.

    Where `made` is None the headers are ordinary ones, a block each, and yet to be made; else it
    has all bytes.
    """

    key: str
    fields: tuple[str, ...]
    data: Sequence[bytes]
    size_bytes: int
    made: Made | None = None


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


def ordinary_sample(key: str, fields: tuple[str, ...], data: Sequence[bytes]) -> TarredSample:
    """Give a sample that is known to have ordinary headers."""
    num_blocks = len(fields) + sum([-(-len(value) // BLOCK_BYTES) for value in data])
    return TarredSample(key, fields, data, num_blocks * BLOCK_BYTES)


def _with_headers(key: str, fields: tuple[str, ...], data: Sequence[bytes]) -> TarredSample:
    sizes = tuple(map(len, data))
    headers = [
        member_header(f"{key}.{field}", size) for field, size in zip(fields, sizes, strict=True)
    ]
    pieces = _as_they_lie(headers, data, sizes)
    made = Made(tuple(map(len, headers)), sizes, pieces)
    return TarredSample(key, fields, data, sum(map(len, pieces)), made)


def ordinary(sample: TarredSample) -> Made:
    """Give what is made of a sample with ordinary headers, but for the bytes."""
    return Made((BLOCK_BYTES,) * len(sample.fields), tuple(map(len, sample.data)), ())


def pieces_of(samples: Iterable[TarredSample]) -> list[bytes]:
    """Give the bytes of samples, one after another, in pieces: big data is not copied."""
    pieces: list[bytes] = []
    for has_ordinary, group in groupby(samples, key=is_ordinary):
        if has_ordinary:
            pieces += members_of(group).pieces()
        else:
            for sample in group:
                pieces += sample.made.pieces if sample.made else ()
    return pieces


def tar_of(samples: Sequence[TarredSample]) -> bytes | bytearray:
    """Give the bytes of samples, one after another."""
    if not samples or not all(map(is_ordinary, samples)):
        return b"".join(pieces_of(samples))
    return members_of(samples).tar()


def is_ordinary(sample: TarredSample) -> bool:
    """Whether all headers of a sample are ordinary ones, and yet to be made."""
    return sample.made is None


class Members(NamedTuple):
    """Members with ordinary headers, which are yet to be made; at least one.

    Their names are each of `keys` with all of `endings`. `data` and `sizes` (its bytes, int64) have
    an entry for each, in the order of the tar.
    """

    keys: Sequence[str]
    endings: tuple[str, ...]
    data: list[bytes]
    sizes: NDArray[np.int64]

    def tar(self) -> bytearray:
        """Give their bytes."""
        pieces = [_ROOM] * (2 * len(self.data) + 1)
        pieces[1::2] = self.data
        rests = self.sizes % BLOCK_BYTES
        pieces[2::2] = map(_GAPS.__getitem__, rests.tolist())
        pieces[-1] = _PADDINGS[int(rests[-1])]
        tar = bytearray().join(pieces)
        num_blocks = 1 - -self.sizes // BLOCK_BYTES
        blocks = np.frombuffer(tar, np.uint8).reshape(-1, BLOCK_BYTES)
        blocks[np.cumsum(num_blocks) - num_blocks] = self._headers()
        return tar

    def pieces(self) -> list[bytes]:
        """Give the same in pieces: big data is not copied."""
        made = self._headers().tobytes()
        headers = [made[at : at + BLOCK_BYTES] for at in range(0, len(made), BLOCK_BYTES)]
        return _as_they_lie(headers, self.data, self.sizes.tolist())

    def _headers(self) -> NDArray[np.uint8]:
        return member_headers(self.keys, self.endings, self.sizes)


def members_of(samples: Iterable[TarredSample]) -> Members:
    """Give the members of samples with ordinary headers."""
    keys, fields, of_samples, *_ = zip(*samples, strict=True)
    if len(set(fields)) == 1:  # as in most datasets
        return members_alike(keys, fields[0], of_samples)
    data = list(chain.from_iterable(of_samples))
    names = [f"{key}.{field}" for key, each in zip(keys, fields, strict=True) for field in each]
    return Members(names, ("",), data, _sizes(data))


def members_alike(
    keys: Sequence[str], fields: tuple[str, ...], of_samples: Sequence[Sequence[bytes]]
) -> Members:
    """Give the members of samples that all have the same fields, and ordinary headers."""
    data = list(chain.from_iterable(of_samples))
    return Members(keys, _endings(fields), data, _sizes(data))


@lru_cache(maxsize=1024)
def _endings(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([f".{field}" for field in fields])


def _sizes(data: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, data), np.int64, len(data))


def _as_they_lie(
    headers: Sequence[bytes], data: Sequence[bytes], sizes: Sequence[int]
) -> list[bytes]:
    """Give headers, data and padding in the order of a tar, joined but for big data."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for header, value, size in zip(headers, data, sizes, strict=True):
        if size < _BIG_BYTES:
            small += (header, value, _PADDINGS[size % BLOCK_BYTES])
        else:
            small.append(header)
            pieces += (b"".join(small), value)
            small = [_PADDINGS[size % BLOCK_BYTES]]
    pieces.append(b"".join(small))
    return pieces
