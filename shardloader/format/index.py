"""Where do a shard's samples lie?

A sample index says it in flat arrays, so that it can be used as it lies in a memory map: `fields`
names the distinct fields, and the members of sample `i` are `sample_starts[i]` to
`sample_starts[i + 1]`. On disk it is a safetensors file (no pickle); every array of a file is
checked before it is used. To change the shape, raise `VERSION`: `digest` is part of every
dataset's identity.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from shardloader.errors import IndexFileError
from shardloader.format.notices import Notice, Notices
from shardloader.format.ordinary import index_columns
from shardloader.format.samples import GroupedSample, group
from shardloader.format.tar import scan
from shardloader.format.tensors import read_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT = "shardloader-index"
VERSION = 1

Int64Array: TypeAlias = NDArray[np.int64]

_TENSORS = {
    "sample_starts": "I64",
    "member_offsets": "I64",
    "member_sizes": "I64",
    "member_fields": "U32",
    "key_starts": "I64",
    "key_bytes": "U8",
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SampleIndex:
    """Where the samples of one shard lie; n samples, m members, k bytes of keys.

    `shard_bytes` is the size of the tar file. `fields` holds the distinct field names, sorted by
    their UTF-8 bytes. int64: `sample_starts` and `key_starts` [n + 1], `member_offsets` (where a
    member's data begins in the tar) and `member_sizes` [m]; uint32: `member_fields` [m], indices
    into `fields`; uint8: `key_bytes` [k], UTF-8 with surrogateescape.
    """

    shard_bytes: int
    fields: tuple[str, ...]
    sample_starts: Int64Array
    member_offsets: Int64Array
    member_sizes: Int64Array
    member_fields: NDArray[np.uint32]
    key_starts: Int64Array
    key_bytes: NDArray[np.uint8]

    @property
    def num_samples(self) -> int:
        """How many samples the shard holds."""
        return len(self.sample_starts) - 1

    @property
    def num_members(self) -> int:
        """How many members the samples have together."""
        return len(self.member_offsets)

    def key(self, sample: int) -> str:
        """Give the key of a sample, numbered from 0. Raises IndexError outside the shard."""
        if not 0 <= sample < self.num_samples:
            raise IndexError(f"sample {sample} of a shard with {self.num_samples}")
        return self.key_of(int(self.key_starts[sample]), int(self.key_starts[sample + 1]))

    def key_of(self, start: int, stop: int) -> str:
        """Give the key that lies at these bytes of the keys."""
        return self.key_bytes[start:stop].tobytes().decode("utf-8", "surrogateescape")

    @property
    def digest(self) -> str:
        """The xxh3-128 of all of the above, as 32 hex digits, however the file is laid out."""
        return _digest(self)

    @classmethod
    def build(
        cls, buffer: bytes | bytearray | memoryview, *, shard: str
    ) -> tuple[Self, tuple[Notice, ...]]:
        """Index the tar archive in `buffer`; give what was odd in it as well.

        `shard` names it in messages. An ordinary archive is read a column at a time, any other
        one a member at a time. Raises ShardError where the archive is damaged.
        """
        found = index_columns(buffer)
        if found is None:
            return cls.build_carefully(buffer, shard=shard)
        return cls(
            shard_bytes=len(memoryview(buffer).cast("B")),
            fields=found.fields,
            sample_starts=found.sample_starts,
            member_offsets=found.member_offsets,
            member_sizes=found.member_sizes,
            member_fields=found.member_fields,
            key_starts=found.key_starts,
            key_bytes=found.key_bytes,
        ), ()

    @classmethod
    def build_carefully(
        cls, buffer: bytes | bytearray | memoryview, *, shard: str
    ) -> tuple[Self, tuple[Notice, ...]]:
        """Do the same as `build`, one member at a time."""
        notices = Notices()
        members = scan(buffer, shard=shard, notices=notices)
        grouped = group(members, shard=shard, notices=notices)
        index = cls.of_samples(grouped, shard_bytes=len(memoryview(buffer).cast("B")))
        return index, notices.freeze()

    @classmethod
    def of_samples(
        cls,
        samples: Iterable[GroupedSample | tuple[str, Sequence[tuple[str, int, int]]]],
        *,
        shard_bytes: int,
    ) -> Self:
        """Index samples that are given as (key, [(field, data offset, size), ...])."""
        sample_starts, key_starts = [0], [0]
        offsets: list[int] = []
        sizes: list[int] = []
        numbers: list[int] = []
        first_seen: dict[str, int] = {}
        keys = bytearray()
        for key, members in samples:
            if not members:
                raise ValueError(f"a sample has at least one field, and {key!r} has none")
            keys += key.encode("utf-8", "surrogateescape")
            key_starts.append(len(keys))
            for field, offset, size in members:
                numbers.append(first_seen.setdefault(field, len(first_seen)))
                offsets.append(offset)
                sizes.append(size)
            sample_starts.append(len(offsets))
        fields = tuple(sorted(first_seen, key=_utf8))
        renumber = np.empty(len(fields), dtype=np.uint32)
        renumber[[first_seen[field] for field in fields]] = np.arange(len(fields), dtype=np.uint32)
        return cls(
            shard_bytes=shard_bytes,
            fields=fields,
            sample_starts=np.array(sample_starts, dtype=np.int64),
            member_offsets=np.array(offsets, dtype=np.int64),
            member_sizes=np.array(sizes, dtype=np.int64),
            member_fields=renumber[np.array(numbers, dtype=np.int64)],
            key_starts=np.array(key_starts, dtype=np.int64),
            key_bytes=np.frombuffer(bytes(keys), dtype=np.uint8),
        )

    def to_bytes(self) -> bytes:
        """Give the index file: always the same bytes for the same index."""
        about = {"version": VERSION, "shard_bytes": self.shard_bytes, "fields": self.fields}
        # One entry alone: the library writes several in no particular order.
        metadata = {FORMAT: json.dumps(about, separators=(",", ":"))}
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in _TENSORS}
        saved: bytes = safetensors.numpy.save(tensors, metadata=metadata)
        return saved

    @classmethod
    def from_buffer(cls, buffer: bytes | bytearray | memoryview, *, name: str) -> Self:
        """Read an index file, called `name` in messages, as views over `buffer`.

        Raises IndexFileError for anything that is not a sound index of this version.
        """
        view = memoryview(buffer).cast("B").toreadonly()
        arrays, metadata = read_tensors(view, _TENSORS, name=name)
        shard_bytes, fields = _about(metadata, name)
        index = cls(shard_bytes=shard_bytes, fields=fields, **arrays)
        _check(index, name)
        return index


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _digest(index: SampleIndex) -> str:
    hasher = xxhash.xxh3_128(f"{FORMAT}-{VERSION}".encode())
    fields = [_utf8(field) for field in index.fields]
    lengths = [len(field) for field in fields]
    hasher.update(np.array([index.shard_bytes, len(fields), *lengths], dtype="<i8").tobytes())
    hasher.update(b"".join(fields))
    for name in _TENSORS:
        array = getattr(index, name)
        hasher.update(len(array).to_bytes(8, "little"))
        contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        hasher.update(contiguous.view(np.uint8).data)
    digest: str = hasher.hexdigest()
    return digest


def _about(metadata: dict[str, Any], name: str) -> tuple[int, tuple[str, ...]]:
    """Read the metadata: the shard's size and the field names."""
    if FORMAT not in metadata:
        raise _refusal(name, f"it is a safetensors file without the mark {FORMAT!r}")
    try:
        about = json.loads(metadata[FORMAT])
        version = about["version"]
        if version != VERSION or type(version) is not int:
            raise IndexFileError(
                f"{name}: this release reads sample indexes of version {VERSION}, and this one "
                f"has version {version!r}: make it anew with `shardloader index --force`, or use "
                "the release of shardloader that wrote it"
            )
        shard_bytes, fields = about["shard_bytes"], about["fields"]
        sound = type(shard_bytes) is int and 0 <= shard_bytes < 2**63 and type(fields) is list
        encoded = [_utf8(field) for field in fields] if sound else []
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refusal(name, f"its metadata can't be read ({error!r})") from None
    if not sound:
        raise _refusal(name, "its metadata should hold the shard's size and a list of fields")
    if any(left >= right for left, right in pairwise(encoded)):
        raise _refusal(name, "its field names should be distinct and sorted")
    return shard_bytes, tuple(fields)


def _check(index: SampleIndex, name: str) -> None:
    """Refuse arrays that contradict each other, before anyone follows them."""
    members, fields = index.num_members, len(index.fields)
    offsets, sizes = index.member_offsets, index.member_sizes
    rules = (
        (len(index.member_sizes) == members, "a size for every member"),
        (len(index.member_fields) == members, "a field for every member"),
        (len(index.key_starts) == len(index.sample_starts), "a key for every sample"),
        (_partitions(index.sample_starts, members, least=1), "sample starts that rise"),
        (_partitions(index.key_starts, len(index.key_bytes), least=0), "key starts that rise"),
        (not members or int(index.member_fields.max()) < fields, "field numbers below the count"),
        (not members or int(min(offsets.min(), sizes.min())) >= 0, "no negative offset or size"),
    )
    for holds, rule in rules:
        if not holds:
            raise _refusal(name, f"it should have {rule}")
    outside = np.flatnonzero((offsets > index.shard_bytes) | (sizes > index.shard_bytes - offsets))
    if outside.size:
        first = int(outside[0])
        raise _refusal(
            name,
            f"member {first} should lie in the shard's {index.shard_bytes} bytes, and is said to "
            f"have {sizes[first]} bytes from {offsets[first]} on",
        )


def _partitions(starts: Int64Array, total: int, *, least: int) -> bool:
    """Whether `starts` goes from 0 to `total` in steps of at least `least`."""
    if not len(starts) or starts[0] != 0 or starts[-1] != total:
        return False
    left, right = starts[:-1], starts[1:]  # not left + least, which may overflow
    return bool((right > left if least else right >= left).all())


def _refusal(name: str, problem: str) -> IndexFileError:
    return IndexFileError(
        f"{name}: not a sound sample index: {problem}; delete it, or make it anew with "
        "`shardloader index`"
    )
