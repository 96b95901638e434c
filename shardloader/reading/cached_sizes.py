"""Which shards of a dataset come through the node's cache, and how many bytes are they there?

Of a plain shard its size says it, and of a compressed one its index, where that is at hand: beside
the shard, or in the cache since it was fetched. Of one whose index is not here the compressed size
counts, so what is told is the least. An index that comes from a store is in the cache as well: as
large as it is there, or else no larger than one of a tar of that size, whose names have up to 255
bytes, can be. No shard is read, and no store is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from shardloader.errors import ShardLoaderError
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.reading.cache import name_of
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.remote_shard import index_identity
from shardloader.reading.store import map_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.reading.catalog import Catalog

INDEX_BYTES: Final = 2048  # at most, but for its samples: six arrays, and some dozens of fields
INDEX_BYTES_A_SAMPLE: Final = 8 + 8 + 255  # where it begins, and where its key does; the key
INDEX_BYTES_A_MEMBER: Final = 8 + 8 + 4  # where it begins, its size, its field
MOST_INDEXES: Final = 10_000  # looked at for what is packed
PACKED_SUFFIXES: Final = (".gz", ".tgz", ".zst")


def goes_through_cache(catalog: Catalog, shard: int) -> bool:
    """Whether a shard is read from the node's cache, as far as its name tells."""
    if catalog.cache is None:
        return False
    if catalog.source.store is not None or catalog.cache.copy_local:
        return True
    return is_packed(catalog.manifest.names[shard])


def any_goes_through_cache(catalog: Catalog) -> bool:
    """Whether one of the shards does: some ten milliseconds for a million of them."""
    if catalog.cache is None or catalog.source.store is not None or catalog.cache.copy_local:
        return catalog.cache is not None and catalog.num_shards > 0
    told = "\n".join(catalog.manifest.names).lower() + "\n"
    return any(f"{suffix}\n" in told for suffix in PACKED_SUFFIXES)


def is_packed(name: str) -> bool:
    """Whether a shard is compressed, as far as its name tells."""
    return name.lower().endswith(PACKED_SUFFIXES)


def cached_bytes(catalog: Catalog) -> NDArray[np.int64]:
    """Bytes in the cache of each shard with its index, int64 [shards]; 0 if it is not cached."""
    manifest = catalog.manifest
    if not any_goes_through_cache(catalog):
        return np.zeros(catalog.num_shards, dtype=np.int64)
    shards = range(catalog.num_shards)
    cached = np.fromiter((goes_through_cache(catalog, n) for n in shards), bool, len(shards))
    sizes = np.where(cached, manifest.sizes, 0)
    packed = [n for n in np.flatnonzero(cached).tolist() if is_packed(manifest.names[n])]
    for shard in packed[:MOST_INDEXES]:
        sizes[shard] = max(int(sizes[shard]), _unpacked_bytes(catalog, shard))
    if catalog.source.index_store is None:
        return sizes
    return sizes + _index_bytes(catalog, sizes)


def _index_bytes(catalog: Catalog, tar_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of each shard's index in the cache, at most, int64 [shards]; tar_bytes: as known."""
    manifest = catalog.manifest
    num_members = np.maximum(tar_bytes // BLOCK_BYTES, manifest.counts)
    found: NDArray[np.int64] = (
        INDEX_BYTES + INDEX_BYTES_A_SAMPLE * manifest.counts + INDEX_BYTES_A_MEMBER * num_members
    )
    largest = np.argsort(tar_bytes)[::-1][:MOST_INDEXES]
    for shard in largest.tolist() if Path(_folder(catalog).path).is_dir() else ():
        digest = manifest.index_digests[shard]
        here = _folder(catalog).size(name_of(index_identity(digest), digest))
        found[shard] = here or found[shard]
    return found


def index_bytes(catalog: Catalog, shard: int) -> int:
    """Bytes of a shard's index in the cache, at most, by its size in the manifest."""
    if catalog.source.index_store is None:
        return 0
    count = int(catalog.manifest.counts[shard])
    num_members = max(int(catalog.manifest.sizes[shard]) // BLOCK_BYTES, count)
    return INDEX_BYTES + INDEX_BYTES_A_SAMPLE * count + INDEX_BYTES_A_MEMBER * num_members


def _folder(catalog: Catalog) -> CacheFolder:
    if catalog.cache is None:
        raise AssertionError
    return CacheFolder(Path(catalog.cache.folder))


class CachedSizes:
    """Bytes of a catalog's tars in the cache, as far as is known, each looked up when asked for."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[int, int] = {}

    def of(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sizes of some shards, both int64 [n]; 0 for one that is not cached."""
        return np.fromiter(map(self._of, shards.tolist()), np.int64, len(shards))

    def _of(self, shard: int) -> int:
        known = self._known.get(shard)
        if known is not None:
            return known
        catalog, size, is_known = self._catalog, 0, True
        if goes_through_cache(catalog, shard):
            size = int(catalog.manifest.sizes[shard])
            if is_packed(catalog.manifest.names[shard]):
                unpacked = _unpacked_bytes(catalog, shard)
                size, is_known = max(size, unpacked), unpacked > 0
        if is_known:
            self._known[shard] = size
        return size


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
    if catalog.source.index_store is None or catalog.cache is None:
        path = catalog.index_path(shard)
        return map_file(path) if Path(path).exists() else None
    digest = catalog.manifest.index_digests[shard]
    return _folder(catalog).open_cached(name_of(index_identity(digest), digest))
