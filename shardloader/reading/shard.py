"""What are the fields of one sample of a shard?

A shard is a mapped tar beside its mapped index: a field is a slice of the map, and one that is not
asked for costs nothing. A pool keeps the shards of a dataset that were used last.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shardloader.errors import ManifestError, ShardError, UsageError, WorldError
from shardloader.format.agreeing import seems_to_be_of
from shardloader.format.index import SampleIndex
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.extents import layout_of
from shardloader.reading.remote_shard import map_remote
from shardloader.reading.store import files_to_keep_open, map_file, publish
from shardloader.reading.tars import Tar, index_of, map_tar, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from shardloader.reading.catalog import Catalog
    from shardloader.reading.columns import Buffer
    from shardloader.reading.extents import Layout
    from shardloader.reading.prefetch import Prefetcher

logger = logging.getLogger("shardloader")

_SHARE_KEPT_OPEN = 64  # of the cache, what a process may keep open: a node has dozens that read
_WAY_OUT = "make index and manifest anew with `shardloader index`"


class Shard:
    """An open shard: the bytes of a tar, and the index that says what they are.

    `name` is used in messages. `cached_bytes` of it lie in the node's cache, which can't remove
    them before the last view of `data` is gone. Raises ManifestError if the index was made of a
    tar of another size.
    """

    def __init__(
        self, data: memoryview, index: SampleIndex, *, name: str, cached_bytes: int = 0
    ) -> None:
        if len(data) != index.shard_bytes:
            raise ManifestError(
                f"{name}: the shard has {len(data)} bytes, and had {index.shard_bytes} when it was "
                f"indexed: fetch it again, or {_WAY_OUT}"
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


class ShardPool:
    """The shards of a dataset, opened when asked for; the last `max_open` used stay open.

    By default as many as half of `files_to_keep_open`: a shard and its index are two files. Of
    tars in the node's cache no more stay open than a small part of the cache holds, as what is
    open can't be removed. Threads may share it. It can be pickled: a copy opens its own files.
    Opening raises ManifestError for an index or a shard that is not the manifest's; with
    `keep_damaged` a shard that was cut opens as a CutShard. ahead: who fetches ahead of it, and
    gives way where a shard is opened. diary: where the process that reads writes what it does; a
    copy has its own.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        max_open: int | None = None,
        keep_damaged: bool = False,
        ahead: Prefetcher | None = None,
        diary: Diary | None = None,
    ) -> None:
        max_open = files_to_keep_open() // 2 if max_open is None else max_open
        if max_open < 1:
            raise UsageError(f"max_open is at least 1, not {max_open}")
        self.catalog = catalog
        self.diary = Diary() if diary is None else diary
        self.max_open = max_open
        self._cache_share = int(catalog.cache.max_bytes) // _SHARE_KEPT_OPEN
        self.keep_damaged = keep_damaged
        self._ahead = ahead
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: int) -> Shard:
        with self._lock:
            found = self._open.get(shard)
            if found is not None:
                self._open.move_to_end(shard)
                return found
        # Unpacking may take long: threads that read other shards don't wait for it.
        gives_way = nullcontext() if self._ahead is None else self._ahead.waiting()
        with gives_way, self.diary.page.within(Stage.OPENING, shard) as page:
            if self._ahead is not None:
                self._ahead.let_come(shard, page)
            opened = _open_listed(
                self.catalog,
                shard,
                make_way=self._make_way,
                keep_damaged=self.keep_damaged,
                diary=self.diary,
            )
        return self._kept(shard, opened)

    def _kept(self, shard: int, opened: Shard) -> Shard:
        """Keep an opened shard, or the one that another thread has opened meanwhile."""
        with self._lock:
            opened = self._open.setdefault(shard, opened)
            # Not closed: another thread may be reading it. Its map goes with the last reference.
            while len(self._open) > self.max_open:
                self._open.popitem(last=False)
            cached = [n for n, kept in reversed(self._open.items()) if kept.cached_bytes]
            spare = self._cache_share
            for number in cached:
                spare -= self._open[number].cached_bytes
                if spare < 0 and number != cached[0]:
                    del self._open[number]
            return opened

    def together(self, shards: Iterable[int]) -> dict[int, Shard] | None:
        """Open several shards; None where at once they would hold too much of the node's cache."""
        opened: dict[int, Shard] = {}
        spare = self._cache_share
        for number in shards:
            if spare < 0:
                return None  # the next one may need the room of those that are open
            opened[number] = self[number]
            spare -= opened[number].cached_bytes
        return opened if spare >= 0 or len(opened) == 1 else None

    def keep_only(self, shards: Iterable[int]) -> None:
        """Let go of all other shards: the next steps don't need them."""
        kept = set(shards)
        with self._lock:
            for number in self._open.keys() - kept:
                del self._open[number]

    def _make_way(self) -> None:
        """Let go of what lies in the cache, and of what is on its way: room is needed there."""
        if self._ahead is not None:
            self._ahead.give_way()
        with self._lock:
            for number in [n for n, kept in self._open.items() if kept.cached_bytes]:
                del self._open[number]

    @property
    def num_open(self) -> int:
        """How many shards are open now."""
        return len(self._open)

    def close(self) -> None:
        """Let go of all shards; one that is asked for again is opened again."""
        with self._lock:
            self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("catalog", "max_open", "keep_damaged")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _open_listed(
    catalog: Catalog,
    shard: int,
    *,
    make_way: Callable[[], None],
    keep_damaged: bool,
    diary: Diary,
) -> Shard:
    if not 0 <= shard < catalog.num_shards:
        raise IndexError(f"shard {shard} of a dataset with {catalog.num_shards}")
    path, index_path = catalog.shard_path(shard), catalog.index_path(shard)
    expected = catalog.manifest.index_digests[shard]
    if catalog.source.store is not None:
        store, manifest = catalog.source.store, catalog.manifest
        tar, index = map_remote(
            store, manifest, shard, catalog.cache, make_way=make_way, diary=diary
        )
    else:
        tar = map_tar(path, catalog.cache, make_way=make_way, diary=diary)
        if not Path(index_path).exists():
            return _reindexed(tar, index_path, expected, keep_damaged=keep_damaged)
        index = SampleIndex.from_buffer(map_file(index_path), name=index_path)
    try:
        opened = Shard.of_tar(tar, index)
    except ManifestError:
        cut = _opened_cut(tar, index, expected) if keep_damaged else None
        if cut is None:
            raise
        return cut
    if not opened.is_as_indexed():
        raise ManifestError(
            f"{path}: the shard does not hold what its index says, though it has the same size: it "
            f"was replaced; {_WAY_OUT}"
        )
    if opened.index.digest != expected:
        raise ManifestError(
            f"{index_path}: the index has the digest {opened.index.digest}, and the manifest lists "
            f"{expected}: it is of another version of the shard; {_WAY_OUT}"
        )
    return opened


def _opened_cut(tar: Tar, index: SampleIndex, expected: str) -> Shard | None:
    """Open a shard that was cut since it was indexed; None if it is another one."""
    from shardloader.reading.cut_shard import cut_shard

    if index.digest != expected or tar.compressed_bytes is not None:
        return None
    return cut_shard(tar.data, index, name=tar.name)


def _reindexed(tar: Tar, index_path: str, expected: str, *, keep_damaged: bool) -> Shard:
    """Make a lost index again, which is right if it is the one that the manifest lists."""
    index, _ = whole_of(tar) if keep_damaged else index_of(tar)
    if index.digest != expected:
        raise ManifestError(
            f"{tar.name}: its index is missing, and made anew it has the digest {index.digest}, "
            f"where the manifest lists {expected}: the shard was changed; {_WAY_OUT}"
        )
    logger.info("%s: the index was missing and is made again", index_path)
    try:
        publish(index_path, index.to_bytes())
    except WorldError as error:
        logger.info("%s: it is kept in memory only: %s", index_path, error)
    return Shard.of_tar(tar, index)
