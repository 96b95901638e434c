"""What are the fields of one sample of a shard?

A shard is a mapped tar beside its mapped index: a field is a slice of the map, and one that is not
asked for costs nothing.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Self

import numpy as np

from shardloader.errors import ManifestError, ShardError, UsageError
from shardloader.format.agreeing import seems_to_be_of
from shardloader.format.index import SampleIndex
from shardloader.reading.extents import layout_of
from shardloader.reading.store import map_file
from shardloader.reading.tars import Tar, index_of, whole_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.reading.columns import Buffer
    from shardloader.reading.extents import Layout

WAY_OUT = "make index and manifest anew with `shardloader index`"


class Shard:
    """An open shard: the bytes of a tar, and the index that says what they are.

    `name` is used in messages. `cached_bytes` of it lie in the node's cache, which can't remove
    them before the last view of `data` is gone. Raises ManifestError if the index was made of a
    tar of another size.
    """

    is_ranged = False  # whether its bytes are fetched when they are asked for

    def __init__(
        self, data: memoryview | None, index: SampleIndex, *, name: str, cached_bytes: int = 0
    ) -> None:
        if data is not None and len(data) != index.shard_bytes:
            raise ManifestError(
                f"{name}: the shard has {len(data)} bytes, and had {index.shard_bytes} when it was "
                f"indexed: fetch it again, or {WAY_OUT}"
            )
        self.name = name
        self.index = index
        self.cached_bytes = cached_bytes
        self._data: memoryview | None = data
        self._layouts: dict[frozenset[str] | None, Layout | None] = {}
        self._keys: str | None = None
        self._told = 0  # up to where the kernel knows what will be read

    @classmethod
    def open(cls, path: str, index_path: str) -> Self:
        """Map a shard and its index."""
        index = SampleIndex.from_buffer(map_file(index_path), name=index_path)
        return cls(map_file(path), index, name=path)

    @classmethod
    def of_tar(cls, tar: Tar, index: SampleIndex) -> Self:
        """Join a mapped tar and its index."""
        cached_bytes = len(tar.data) if tar.is_cached else 0
        return cls(tar.data, index, name=tar.name, cached_bytes=cached_bytes)

    def is_as_indexed(self) -> bool:
        """Whether the tar is the one that was indexed, by its outermost members.

        Where their headers tell nothing (a name of another writer's making), by all of it.
        """
        data = self._data
        if data is None or seems_to_be_of(self.index, data):
            return data is not None
        tar = Tar(data, self.name, self.index.compressed_bytes)
        try:
            found, _ = whole_of(tar) if self.index.damage else index_of(tar)
        except ShardError:
            return False
        return found.digest == self.index.digest

    @property
    def num_samples(self) -> int:
        """How many samples the shard holds."""
        return self.index.num_samples

    @property
    def num_whole(self) -> int:
        """How many of its first samples can be read: all, but for a shard that was cut."""
        return self.index.num_samples

    def key(self, sample: int) -> str:
        """Give the key of a sample, numbered from 0."""
        return self.index.key(sample)

    def fields(self, sample: int, wanted: frozenset[str] | None = None) -> dict[str, memoryview]:
        """Give a sample's fields in the shard's order, or those `wanted` of them.

        The values are read-only views of the map: they stay good when the shard is closed. Raises
        IndexError for a sample that the shard does not have.
        """
        data, index = self._data, self.index
        if data is None:
            raise UsageError(f"{self.name}: the shard was closed; open it again")
        if not 0 <= sample < index.num_samples:
            raise IndexError(f"{self.name}: sample {sample} of a shard with {index.num_samples}")
        start, stop = index.sample_starts[sample : sample + 2].tolist()
        members = zip(
            index.member_fields[start:stop].tolist(),
            index.member_offsets[start:stop].tolist(),
            index.member_sizes[start:stop].tolist(),
            strict=True,
        )
        names = index.fields
        return {
            names[field]: data[offset : offset + size]
            for field, offset, size in members
            if wanted is None or names[field] in wanted
        }

    @property
    def buffer(self) -> Buffer:
        """The tar's bytes, as an object whose slices are bytes."""
        if self._data is None:
            raise UsageError(f"{self.name}: the shard was closed; open it again")
        owner = self._data.obj
        if isinstance(owner, (bytes, mmap.mmap)) and len(owner) == len(self._data):
            return owner
        return bytes(self._data)

    def will_need(self, start: int, stop: int) -> None:
        """Tell the kernel that these bytes will be read soon; it fetches them meanwhile."""
        buffer = self.buffer
        if isinstance(buffer, mmap.mmap) and start < stop:
            first = start - start % mmap.PAGESIZE
            buffer.madvise(mmap.MADV_WILLNEED, first, stop - first)

    def will_need_up_to(self, start: int, stop: int) -> None:
        """The same, without what was told before: readers move through a shard from its start."""
        self.will_need(max(start, self._told), stop)
        self._told = max(self._told, stop)

    @property
    def num_bytes(self) -> int:
        """The size of the tar."""
        return 0 if self._data is None else len(self._data)

    def touch(self, offsets: NDArray[np.int64]) -> None:
        """Bring these bytes of the tar near the processor, many at once (int64 [n]).

        Reading one after another waits for memory at each; together they cost little more than
        one. Raises IndexError for a byte that is not there.
        """
        if self._data is not None:
            np.frombuffer(self._data, dtype=np.uint8).take(offsets)

    @property
    def keys(self) -> str | None:
        """All keys, one after another as the index has them; None if they are not ASCII.

        Without it byte and letter are not the same number.
        """
        if self._keys is None:
            keys = self.index.key_bytes.tobytes()
            if not keys.isascii():
                return None
            self._keys = keys.decode("ascii")
        return self._keys

    def layout(self, wanted: frozenset[str] | None) -> Layout | None:
        """Where the fields of all samples lie, as `layout_of` says; worked out once."""
        if wanted not in self._layouts:
            self._layouts[wanted] = layout_of(self.index, wanted)
        return self._layouts[wanted]

    def offset(self, sample: int, field: str) -> int:
        """Give the byte where a field's data begins in the tar, for messages.

        Raises KeyError for a field that the sample does not have.
        """
        start, stop = self.index.sample_starts[sample : sample + 2].tolist()
        for member in range(start, stop):
            if self.index.fields[int(self.index.member_fields[member])] == field:
                return int(self.index.member_offsets[member])
        raise KeyError(field)

    def close(self) -> None:
        """Let go of the map; it goes when the last field that was given out does."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
