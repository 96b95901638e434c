"""How large must a node's cache be, so that no shard is fetched into it twice in an epoch?

Each lane of samples that is read on the node needs the shards between the first and the last of
what is needed at one time (`order.reach`), whichever these are in some epoch; and the shard at its
start until the epoch's end, where the lane before it ends in the same one. So the least is what
that many of the largest shards take, or all shards, where that is less. It is the same in every
epoch, and where each lane has one reader it makes no difference how fast they go. With less, shards
would be fetched again and again.

What a cache holds beyond that is room for what is fetched ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardloader.errors import CacheError
from shardloader.order.reach import Reach
from shardloader.reading.cached_sizes import cached_bytes
from shardloader.reading.needs import ALL_ROOM, Room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.epoch import Order
    from shardloader.order.schedule import Schedule
    from shardloader.reading.catalog import Catalog

_ENDS = 2  # shards of which a stretch of the line has only a part


def readers_a_node(*, world_size: int, num_workers: int, ranks_per_node: int | None) -> int:
    """How many read on a node at the most; ranks_per_node: None where all ranks are on one.

    >>> readers_a_node(world_size=16, num_workers=4, ranks_per_node=8)
    32
    """
    ranks = world_size if ranks_per_node is None else min(ranks_per_node, world_size)
    return ranks * max(1, num_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastCache:
    """What a node's cache has to hold, in bytes.

    least_bytes: for all its readers; a_reader_bytes: of which one reader needs as much as this at
    the most, None where readers share lanes; all_bytes: of all shards; readers: of the node.
    """

    least_bytes: int
    a_reader_bytes: int | None
    all_bytes: int
    readers: int

    @classmethod
    def of(cls, sizes: NDArray[np.int64], counts: NDArray[np.int64], reach: Reach) -> LeastCache:
        """sizes, counts: bytes that each shard takes in the cache, and its samples, int64 [shards].

        >>> reach = Reach(readers=1, lanes=1, samples=100, tail=0, is_shared=False,
        ...               is_shuffled=True, rows=1, rows_ahead=8, steps=10)
        >>> LeastCache.of(np.full(20, 7), np.full(20, 30), reach).least_bytes  # of five shards
        35
        """
        holds = counts > 0
        sizes, counts = sizes[holds], counts[holds]
        total = int(sizes.sum())
        borders = int(reach.lanes > 1)

        def of_lanes(lanes: int) -> int:
            whole = _whole(sizes, counts, lanes=lanes, samples=reach.samples - _ENDS)
            whole += _whole(sizes, counts, lanes=1, samples=reach.tail - _ENDS)
            parts = lanes * (min(_ENDS, reach.samples) + borders) + min(_ENDS, reach.tail)
            return min(total, whole + _largest(sizes, parts))

        least = of_lanes(reach.lanes)
        a_reader = None if reach.is_shared else of_lanes(-(-reach.lanes // reach.readers))
        return cls(
            least_bytes=least, a_reader_bytes=a_reader, all_bytes=total, readers=reach.readers
        )

    def room_in(self, max_bytes: int) -> Room:
        """How much of a cache of that size each reader may take; see `Room`."""
        if max_bytes >= self.all_bytes:
            return ALL_ROOM
        part = max_bytes // self.readers
        has_part = self.a_reader_bytes is not None and part >= self.a_reader_bytes
        spare = max(0, max_bytes - self.least_bytes) // self.readers
        return Room(part if has_part else 0, spare // 2)  # the other half is for rows at once


def _largest(sizes: NDArray[np.int64], number: int) -> int:
    if not 0 < number < len(sizes):
        return int(sizes.sum()) if number else 0
    return int(np.partition(sizes, len(sizes) - number)[len(sizes) - number :].sum())


def _whole(sizes: NDArray[np.int64], counts: NDArray[np.int64], *, lanes: int, samples: int) -> int:
    """The most bytes of shards that lie whole in stretches of so many samples, one of each lane."""
    if samples <= 0 or not len(sizes):
        return 0
    most = int(np.searchsorted(np.cumsum(np.sort(counts)), samples, side="right"))
    by_number = _largest(sizes, lanes * most)
    # By samples: those with the most bytes a sample first, and as much of the next as is left.
    # With all of it, the figure might grow where sizes turn out to be smaller.
    dense = np.argsort(-sizes / counts, kind="stable")
    filled = np.cumsum(counts[dense])
    num = int(np.searchsorted(filled, lanes * samples, side="right"))
    by_samples = int(sizes[dense[:num]].sum())
    if num < len(dense):
        left = lanes * samples - (int(filled[num - 1]) if num else 0)
        by_samples += -(-int(sizes[dense[num]]) * left // int(counts[dense[num]]))
    return min(by_number, by_samples)


def reach_of(schedule: Schedule, *, num_workers: int, ranks_per_node: int | None) -> Reach:
    """The reach of a schedule's order in its topology."""
    return Reach.of(
        schedule.order, schedule.dealing, num_workers=num_workers, ranks_per_node=ranks_per_node
    )


def checked_room(catalog: Catalog, order: Order, reach: Reach) -> Room:
    """The room that each reader of a node has in the catalog's cache, if it has one.

    Raises CacheError for a cache that is too small for them. No shard is read.
    """
    cache = catalog.cache
    if cache is None:
        return ALL_ROOM
    found = LeastCache.of(cached_bytes(catalog), order.counts, reach)
    if int(cache.max_bytes) < found.least_bytes:
        is_remote = catalog.source.store is not None
        by_ranges = ", or read by ranges alone, which needs no disk (cache=None)" * is_remote
        raise CacheError(
            "a cache has room for the shards that all readers of a node need at one time, so that "
            f"each is fetched once an epoch, here {found.least_bytes} bytes for {found.readers} "
            f"(workers, or ranks without any), and {cache.folder} holds at most "
            f"{cache.max_bytes}: raise max_bytes=, or use a smaller window (sl.Shuffle(window=)) "
            f"or fewer workers{by_ranges}"
        )
    return found.room_in(int(cache.max_bytes))
