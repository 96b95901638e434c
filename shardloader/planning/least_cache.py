"""How large must a node's cache be, at the least?

Each reader (a worker, or a rank without any) has one shard open whatever it does, and lets go of it
before it needs the room of the next. In some epoch the readers of a node may meet at the largest
shards, and two of them at one. So the least is the sum of as many of the largest shards as there
are readers. With less, readers would wait for each other for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardloader.errors import CacheError
from shardloader.reading.cached_sizes import cached_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.reading.catalog import Catalog


def readers_a_node(*, world_size: int, num_workers: int, ranks_per_node: int | None) -> int:
    """How many read on a node at the most; ranks_per_node: None where all ranks are on one.

    >>> readers_a_node(world_size=16, num_workers=4, ranks_per_node=8)
    32
    """
    ranks = world_size if ranks_per_node is None else min(ranks_per_node, world_size)
    return ranks * max(1, num_workers)


def least_cache_bytes(sizes: NDArray[np.int64], *, num_readers: int) -> int:
    """What all readers of a node have open at once at the worst.

    sizes: what each shard takes in the cache, int64 [shards].

    >>> least_cache_bytes(np.array([5, 9, 7]), num_readers=2)
    16
    """
    if num_readers >= len(sizes):
        return int(sizes.sum())
    return int(np.partition(sizes, len(sizes) - num_readers)[-num_readers:].sum())


def check_cache(catalog: Catalog, *, num_readers: int) -> None:
    """Raise CacheError if there is a cache, and too small a one for so many readers of a node."""
    cache = catalog.cache
    if cache is None:
        return
    least = least_cache_bytes(cached_bytes(catalog), num_readers=num_readers)
    if int(cache.max_bytes) < least:
        raise CacheError(
            f"a cache has room for what all readers of a node have open at once, here {least} "
            f"bytes for {num_readers} (each a worker, or a rank without any, with one of the "
            f"largest shards), and {cache.folder} holds at most {cache.max_bytes}: raise "
            "max_bytes=, or use fewer workers"
        )
