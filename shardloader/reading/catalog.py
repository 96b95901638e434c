"""Which shards does a dataset have, where do they lie, and are they those that were indexed?

Opening a dataset reads its manifest, or makes it by indexing. A catalog is that manifest joined to
folders; it holds no open file, and can be sent to other processes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shardloader.errors import ManifestError, UsageError
from shardloader.reading.cache import default_cache
from shardloader.reading.indexing import existing_manifest, index_on_first_use, read_manifest
from shardloader.reading.source import Source, find_shards, resolve

if TYPE_CHECKING:
    from shardloader.format.manifest import Manifest
    from shardloader.reading.cache import Cache
    from shardloader.reading.source import PathText, SourceText

logger = logging.getLogger("shardloader")

MAX_CHECKED_SHARDS = 10_000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Catalog:
    """A dataset's manifest, where its files lie, and where compressed ones are unpacked."""

    manifest: Manifest
    source: Source
    cache: Cache = field(default_factory=default_cache)

    @property
    def location(self) -> str:
        """What the user gave as the dataset, for messages."""
        return self.source.location

    @property
    def root(self) -> str:
        """The folder that the manifest's names are relative to."""
        return self.source.root

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return self.manifest.num_shards

    def shard_path(self, shard: int) -> str:
        """Give the path of a shard, by its number in the manifest."""
        return self.source.shard_path(self.manifest.names[shard])

    def index_path(self, shard: int) -> str:
        """Give the path of a shard's index."""
        return self.source.index_path(self.manifest.names[shard])


def open_catalog(
    source: SourceText,
    *,
    index_dir: PathText | None = None,
    may_index: bool = True,
    cache: Cache | None = None,
) -> Catalog:
    """Open a dataset: a folder, a brace pattern, or a list of shards.

    A folder with no manifest, or shards with no index, are indexed first, and that is remembered:
    beside the shards, or under `index_dir`; unless `may_index` is False, then they are refused.
    Compressed shards are unpacked into `cache`, by default into this user's. Raises UsageError
    for what is no dataset, ManifestError for shards that are not those of the manifest (looked at
    when there are at most 10,000), and ShardError for a damaged shard.
    """
    place = resolve(source, index_dir=index_dir)
    cache = default_cache() if cache is None else cache
    manifest = read_manifest(place) if may_index else existing_manifest(place, cache)
    if manifest is None and not may_index:
        raise UsageError(
            f"{place.location} is not indexed yet, and no shard is read here: run "
            "`shardloader index` first"
        )
    if manifest is None:
        manifest = index_on_first_use(place, cache)
    catalog = Catalog(manifest=manifest, source=place, cache=cache)
    if manifest.num_shards <= MAX_CHECKED_SHARDS:
        check(catalog)
    return catalog


def check(catalog: Catalog) -> None:
    """Compare the shards on disk with the manifest, by presence and size.

    Raises ManifestError for the first that differs. Shards of the folder that the manifest does
    not list are logged.
    """
    manifest = catalog.manifest
    for number, size in enumerate(manifest.sizes.tolist()):
        path = catalog.shard_path(number)
        try:
            found = Path(path).stat().st_size
        except OSError as error:
            raise ManifestError(
                f"{path}: the manifest lists this shard, and it can't be found "
                f"({error.strerror}): put it back, or make the manifest anew with "
                "`shardloader index`"
            ) from None
        if found != size:
            raise ManifestError(
                f"{path}: the shard has {found} bytes, and had {size} when it was indexed: fetch "
                "it again, or if it is meant to have changed, make index and manifest anew with "
                "`shardloader index`"
            )
    if catalog.source.names is None:
        _log_unlisted(catalog)


def _log_unlisted(catalog: Catalog) -> None:
    listed = set(catalog.manifest.names)
    unlisted = [name for name in find_shards(catalog.root) if name not in listed]
    if unlisted:
        logger.warning(
            "%s: %d shards are not in the manifest and are not read, such as %s: take them in "
            "with `shardloader index`",
            catalog.location,
            len(unlisted),
            unlisted[0],
        )
