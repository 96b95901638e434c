"""Which shards of a dataset are open, and how is one that its manifest lists opened?

A pool keeps those that were used last. A local shard is mapped as it is, a compressed one unpacked
into the node's cache, a remote one fetched into it; or it is read by ranges, until it is there or
where there is no cache.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shardloader.errors import ManifestError, ShardLoaderError, UsageError, WorldError
from shardloader.format.index import SampleIndex
from shardloader.reading.by_ranges import RangeReader
from shardloader.reading.cut_shard import cut_shard
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.prefetch import Prefetcher
from shardloader.reading.ranged_shard import RangedShard
from shardloader.reading.remote_shard import map_remote, shard_of
from shardloader.reading.shard import WAY_OUT, Shard
from shardloader.reading.store import files_to_keep_open, map_file, publish
from shardloader.reading.tars import index_of, map_tar, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from shardloader.reading.catalog import Catalog
    from shardloader.reading.ranges import Stretches
    from shardloader.reading.tars import Tar

logger = logging.getLogger("shardloader")

_SHARE_KEPT_OPEN = 64  # of the cache, what a process may keep open: a node has dozens that read


class ShardPool:
    """The shards of a dataset, opened when asked for; the last `max_open` used stay open.

    By default as many as half of `files_to_keep_open`: a shard and its index are two files. Of
    tars in the node's cache no more stay open than a small part of the cache holds, as what is
    open can't be removed. Threads may share it. It can be pickled: a copy opens its own files.
    Opening raises ManifestError for an index or a shard that is not the manifest's; with
    `keep_damaged` a shard that was cut opens as a CutShard. `ranges` reads remote shards by ranges,
    and counts that; None of other datasets. is_glance: few samples are wanted, so no whole shard
    is fetched meanwhile. ahead: who fetches ahead of it, and gives way where a shard is opened;
    without one the pool has its own for the shards that it reads by ranges. diary: where the
    process that reads writes what it does; a copy has its own.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        max_open: int | None = None,
        keep_damaged: bool = False,
        is_glance: bool = False,
        ahead: Prefetcher | None = None,
        diary: Diary | None = None,
    ) -> None:
        max_open = files_to_keep_open() // 2 if max_open is None else max_open
        if max_open < 1:
            raise UsageError(f"max_open is at least 1, not {max_open}")
        self.catalog = catalog
        self.diary = Diary() if diary is None else diary
        self.max_open = max_open
        cache_bytes = 0 if catalog.cache is None else int(catalog.cache.max_bytes)
        self._cache_share = cache_bytes // _SHARE_KEPT_OPEN
        self.keep_damaged = keep_damaged
        self.is_glance = is_glance
        reads_by_ranges = _may_read_by_ranges(catalog)
        has_own = ahead is None and reads_by_ranges and catalog.cache is not None and not is_glance
        self._own_ahead = Prefetcher(catalog, share_bytes=0) if has_own else None
        self._ahead = self._own_ahead if ahead is None else ahead
        self._versions: dict[int, str] = {}  # of remote shards, as the store said last
        self.ranges = self._range_reader() if reads_by_ranges else None
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: int) -> Shard:
        ranges = self.ranges
        with self._lock:
            found = self._open.get(shard)
            if found is not None:
                self._open.move_to_end(shard)
        if found is not None and not (found.is_ranged and ranges and ranges.has_come(shard)):
            return found
        # Unpacking may take long: threads that read other shards don't wait for it.
        opened: Shard | None = None
        with self._waiting(), self.diary.page.within(Stage.OPENING, shard) as page:
            if ranges is not None and found is None and not self._is_here(shard):
                opened = ranges.open(shard)
            if opened is None and self._ahead is not None:
                self._ahead.let_come(shard, page)
            if opened is None:
                opened = self._opened_whole(shard)
                if ranges is not None:
                    ranges.let_go(shard)
        return self._kept(shard, opened)

    def _opened_whole(self, shard: int) -> Shard:
        try:
            return _open_listed(
                self.catalog,
                shard,
                make_way=self._make_way,
                keep_damaged=self.keep_damaged,
                diary=self.diary,
                versions=self._versions,
            )
        except ShardLoaderError:
            self._versions.pop(shard, None)  # what lies there may be mended
            raise

    def _is_here(self, shard: int) -> bool:
        """Whether the version of a remote shard is known, and is in the node's cache still."""
        version, cache = self._versions.get(shard), self.catalog.cache
        if version is None or cache is None:
            return False
        origin = shard_of(self.catalog.source, self.catalog.manifest, shard, self.diary)
        return cache.has(origin, version)

    def _waiting(self) -> AbstractContextManager[None]:
        """While something is waited for: fetches ahead give way."""
        return nullcontext() if self._ahead is None else self._ahead.waiting()

    def _range_reader(self) -> RangeReader:
        return RangeReader(
            self.catalog,
            whole=self.whole,
            make_way=self._make_way,
            ahead=None if self.is_glance or self.catalog.cache is None else self._ahead,
            note=self._versions.__setitem__,
            diary=self.diary,
        )

    def whole(self, shard: int) -> Shard:
        """The shard, mapped, whatever may come by ranges."""
        if self.ranges is not None:
            self.ranges.refuse(shard)
        return self[shard]

    def open_ahead(self, shards: Iterable[int]) -> None:
        """Open remote shards that are asked for soon, many at a time, where that can be told now.

        Raises what opening them one by one would.
        """
        if self.ranges is None:
            return
        may_come = self.ranges.may_come
        missing = [
            number
            for number in shards
            if number not in self._open and may_come(number) and not self._is_here(number)
        ]
        if len(missing) > 1:
            with self._waiting(), self.diary.page.within(Stage.OPENING, missing[0]):
                found = self.ranges.open_all(missing[: self.max_open])
            for number, opened in found.items():
                self._kept(number, opened)

    def fetch(
        self, shard: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Mapping[int, Stretches]:
        """Bytes of those shards that are read by ranges, by their numbers; int64 [n] each.

        The others are mapped when they are asked for.
        """
        if self.ranges is None:
            return {}
        ranged: dict[int, RangedShard] = {}
        for number in np.unique(shard).tolist():
            # With a cache only what is open: to open others anew costs a request each.
            each = self[number] if self.reads_by_ranges else self._open.get(number)
            if isinstance(each, RangedShard):
                ranged[number] = each
        if not ranged:
            return {}
        of = np.isin(shard, list(ranged))
        with self._waiting():
            found = self.ranges.fetch(ranged, shard[of], starts[of], stops[of])
        if found is None:
            for number in ranged:
                self.ranges.refuse(number)
        return found or {}

    @property
    def may_read_by_ranges(self) -> bool:
        """Whether some shards may be read by ranges: remote ones that are not in the cache."""
        return self.ranges is not None

    @property
    def reads_by_ranges(self) -> bool:
        """Whether nothing but ranges is read: every sample waits for a store."""
        return self.ranges is not None and self.catalog.cache is None

    def _kept(self, shard: int, opened: Shard) -> Shard:
        """Keep an opened shard, or the one that another thread has opened meanwhile."""
        with self._lock:
            found = self._open.get(shard)
            if found is None or found.is_ranged:
                self._open[shard] = opened  # in the place of one that was read by ranges
            else:
                opened = found
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
        """Let go of all others that are mapped: the next steps don't need them.

        What is read by ranges stays: it takes no room, and to open it anew costs requests.
        """
        kept = set(shards)
        with self._lock:
            for number in self._open.keys() - kept:
                if not self._open[number].is_ranged:
                    del self._open[number]

    def _make_way(self) -> None:
        """Let go of what lies in the cache, and of what is on its way: room is needed there."""
        if self._ahead is not None:
            self._ahead.give_way()
        with self._lock:
            kept = [(number, shard) for number, shard in self._open.items()]
            for number, shard in kept:
                if shard.cached_bytes or shard.is_ranged:  # the index of that one is mapped
                    del self._open[number]

    @property
    def num_open(self) -> int:
        """How many shards are open now."""
        return len(self._open)

    def close(self) -> None:
        """Let go of all shards; one that is asked for again is opened again."""
        if self._own_ahead is not None:
            self._own_ahead.stop()
        if self.ranges is not None:
            self.ranges.close()
        with self._lock:
            self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        names = ("catalog", "max_open", "keep_damaged", "is_glance")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _may_read_by_ranges(catalog: Catalog) -> bool:
    cache = catalog.cache
    return catalog.source.store is not None and (cache is None or bool(cache.range_bytes))


def _open_listed(
    catalog: Catalog,
    shard: int,
    *,
    make_way: Callable[[], None],
    keep_damaged: bool,
    diary: Diary,
    versions: dict[int, str],
) -> Shard:
    if not 0 <= shard < catalog.num_shards:
        raise IndexError(f"shard {shard} of a dataset with {catalog.num_shards}")
    path, index_path = catalog.shard_path(shard), catalog.index_path(shard)
    expected = catalog.manifest.index_digests[shard]
    if catalog.source.store is not None:
        if catalog.cache is None:
            raise AssertionError
        source, manifest = catalog.source, catalog.manifest
        tar, index = map_remote(
            source,
            manifest,
            shard,
            catalog.cache,
            make_way=make_way,
            diary=diary,
            versions=versions,
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
            f"was replaced; {WAY_OUT}"
        )
    if opened.index.digest != expected:
        raise ManifestError(
            f"{index_path}: the index has the digest {opened.index.digest}, and the manifest lists "
            f"{expected}: it is of another version of the shard; {WAY_OUT}"
        )
    return opened


def _opened_cut(tar: Tar, index: SampleIndex, expected: str) -> Shard | None:
    """Open a shard that was cut since it was indexed; None if it is another one."""
    if index.digest != expected or tar.compressed_bytes is not None:
        return None
    return cut_shard(tar.data, index, name=tar.name)


def _reindexed(tar: Tar, index_path: str, expected: str, *, keep_damaged: bool) -> Shard:
    """Make a lost index again, which is right if it is the one that the manifest lists."""
    index, _ = whole_of(tar) if keep_damaged else index_of(tar)
    if index.digest != expected:
        raise ManifestError(
            f"{tar.name}: its index is missing, and made anew it has the digest {index.digest}, "
            f"where the manifest lists {expected}: the shard was changed; {WAY_OUT}"
        )
    logger.info("%s: the index was missing and is made again", index_path)
    try:
        publish(index_path, index.to_bytes())
    except WorldError as error:
        logger.info("%s: it is kept in memory only: %s", index_path, error)
    return Shard.of_tar(tar, index)
