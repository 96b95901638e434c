"""How many bytes does each shard of a dataset take in the node's cache?

Of a plain shard its size says it, and of a compressed one its index, where that is at hand: beside
the shard, or in the cache since it was fetched. Of one whose index is not here the compressed size
counts, so what is told is the least. No shard is read, and no store is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from shardloader.errors import ShardLoaderError
from shardloader.format.index import SampleIndex
from shardloader.reading.cache import name_of
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.prefetch import goes_through_cache, is_packed
from shardloader.reading.remote_shard import index_identity
from shardloader.reading.store import map_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.reading.catalog import Catalog

INDEX_BYTES_A_SAMPLE: Final = 36  # at least: where it begins, one member of it, and its key
MOST_INDEXES: Final = 10_000  # looked at for what is packed


def cached_bytes(catalog: Catalog) -> NDArray[np.int64]:
    """Bytes in the cache of each shard with its index, int64 [shards]; 0 if it is not cached."""
    manifest, is_remote = catalog.manifest, catalog.source.store is not None
    shards = range(catalog.num_shards)
    cached = np.fromiter((goes_through_cache(catalog, n) for n in shards), bool, len(shards))
    sizes = np.where(cached, manifest.sizes, 0)
    packed = [n for n in np.flatnonzero(cached).tolist() if is_packed(manifest.names[n])]
    for shard in packed[:MOST_INDEXES]:
        sizes[shard] = max(int(sizes[shard]), _unpacked_bytes(catalog, shard))
    return sizes + manifest.counts * (INDEX_BYTES_A_SAMPLE if is_remote else 0)


def _unpacked_bytes(catalog: Catalog, shard: int) -> int:
    """The size of its tar; 0 where the index is not here, or is none: reading it says so."""
    try:
        data = _index_here(catalog, shard)
        if data is None:
            return 0
        return SampleIndex.from_buffer(data, name=catalog.index_path(shard)).shard_bytes
    except ShardLoaderError:
        return 0


def _index_here(catalog: Catalog, shard: int) -> memoryview | None:
    if catalog.source.store is None:
        path = catalog.index_path(shard)
        return map_file(path) if Path(path).exists() else None
    digest = catalog.manifest.index_digests[shard]
    folder = CacheFolder(Path(catalog.cache.folder))
    return folder.open_cached(name_of(index_identity(digest), digest))
