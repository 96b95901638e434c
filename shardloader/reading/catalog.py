"""Which shards does a dataset have, where do they lie, and are they those that were indexed?

Opening a dataset reads its manifest, or makes it by indexing. A catalog is that manifest joined to
folders; it holds no open file, and can be sent to other processes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.errors import ManifestError, ShardError, UsageError, WorldError
from shardloader.format.damage import UNREADABLE
from shardloader.format.manifest import Manifest
from shardloader.reading.cache import DEFAULT, cache_for, default_cache
from shardloader.reading.counts import Counts
from shardloader.reading.indexing import (
    existing_manifest,
    index_on_first_use,
    manifest_at,
    manifest_of_indexes,
    no_manifest,
    read_manifest,
    refuse_unfinished,
)
from shardloader.reading.remote_source import place_of
from shardloader.reading.source import Source, earlier_manifest_name, find_shards
from shardloader.reading.store import read_file, why_unread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.reading.cache import Cache
    from shardloader.reading.counts import CountRow
    from shardloader.reading.source import PathText, SourceText

logger = logging.getLogger("shardloader")

MAX_CHECKED_SHARDS = 10_000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Catalog:
    """A dataset's manifest, where its files lie, and where remote and compressed ones are kept.

    cache: None where nothing is kept.
    """

    manifest: Manifest
    source: Source
    cache: Cache | None = field(default_factory=default_cache)

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

    @property
    def counts(self) -> Counts:
        """What was asked of the dataset's store to open it, if it has one."""
        store = self.source.store
        return Counts() if store is None else store.counts.now

    def counted_in(self, counts: CountRow) -> Catalog:
        """The same for a reader; what is asked of the store counts elsewhere."""
        source = self.source
        if source.store is None:
            return self
        store = source.store.counted_in(counts)
        index_store = None if source.index_store is None else store  # indexes lie beside shards
        return replace(self, source=replace(source, store=store, index_store=index_store))

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
    cache: Cache | str | None = DEFAULT,
    keep_damaged: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Catalog:
    """Open a dataset: a folder, a brace pattern, or a list of shards, also by their URLs.

    A folder with no manifest, or shards with no index, are indexed first, and that is remembered:
    beside the shards, or under `index_dir`; unless `may_index` is False, then they are refused.
    Compressed shards are unpacked into `cache`, "default" for this user's. Raises UsageError
    for what is no dataset, ManifestError for shards that are not those of the manifest (looked at
    when there are at most 10,000), and ShardError for a damaged shard. With `keep_damaged` shards
    are no error: of a damaged one what is whole is indexed, one that is missing or changed stays in
    the manifest, and both are logged. Nor is a missing or changed one where none is read.

    A remote folder is opened by its manifest alone, and shards in a list or pattern of URLs by
    their indexes, through fsspec with `storage_options`: shards are compared with those when they
    are fetched. Raises UsageError where they are missing, and WorldError where the store does not
    give them.
    """
    cache = cache_for(cache)
    place = place_of(source, index_dir=index_dir, storage_options=storage_options)
    if place.store is not None:
        return _open_remote(place, cache, keep_damaged=keep_damaged)
    manifest = read_manifest(place) if may_index else existing_manifest(place, cache)
    if manifest is None and not may_index:
        refuse_unfinished(place)
        raise UsageError(
            f"{place.location} is not indexed yet, and no shard is read here: run "
            "`shardloader index` first"
        )
    if manifest is None:
        manifest = index_on_first_use(place, cache, keep_damaged=keep_damaged)
    catalog = Catalog(manifest=manifest, source=place, cache=cache)
    if keep_damaged:
        _log_damage(catalog)
    if manifest.num_shards <= MAX_CHECKED_SHARDS:
        check(catalog, keep_damaged=keep_damaged or not may_index)
    return catalog


def _open_remote(place: Source, cache: Cache | None, *, keep_damaged: bool) -> Catalog:
    manifest = read_manifest(place) if place.names is None else manifest_of_indexes(place)
    if manifest is None:
        raise no_manifest(place)
    catalog = Catalog(manifest=manifest, source=place, cache=cache)
    if keep_damaged:
        _log_damage(catalog)
    return catalog


def earlier(catalog: Catalog, digest: str, *, keep_damaged: bool = False) -> Catalog | None:
    """The dataset as it was when its manifest had this digest; None if that was not kept.

    Writing keeps the manifest of a dataset that it appends to. Raises ManifestError for one that is
    damaged, or that lists shards which are not there any more (unless those are skipped).
    """
    name = earlier_manifest_name(digest)
    path, store = f"{catalog.root}/{name}", catalog.source.store
    if store is not None:
        manifest = manifest_at(store, name)  # beside the shards, where writers keep it
    else:
        data = None if catalog.source.names is not None else read_file(path)
        manifest = None if data is None else Manifest.from_json_bytes(data, name=path)
    if manifest is None:
        return None
    if manifest.digest != digest:
        raise ManifestError(
            f"{path}: a kept manifest is named by its digest, and this one has {manifest.digest}: "
            "it was changed; fetch or write it anew"
        )
    found = replace(catalog, manifest=manifest)
    if store is None and manifest.num_shards <= MAX_CHECKED_SHARDS:
        check(found, keep_damaged=keep_damaged, is_all=False)
    return found


def _log_damage(catalog: Catalog) -> None:
    for shard, damage in catalog.manifest.damage:
        logger.warning(
            "%s: %s: its %d samples before the damage are read, and what follows is skipped: mend "
            "it and make index and manifest anew with `shardloader index`",
            catalog.shard_path(shard),
            damage,
            catalog.manifest.counts[shard],
        )


def refuse_damage(catalog: Catalog) -> None:
    """Raise ShardError for a dataset that was indexed past damage: who plans it needs no shard."""
    if not catalog.manifest.damage:
        return
    shard, damage = catalog.manifest.damage[0]
    others = len(catalog.manifest.damage) - 1
    more = f" ({others} more of the shards were, too)" if others else ""
    raise ShardError(
        f"{catalog.shard_path(shard)}: damaged when it was indexed for a run with on_error='skip': "
        f"{damage}{more}: fetch or write it anew and run `shardloader index`, or skip it with "
        "on_error='skip'",
        kind=damage.kind,
        offset=damage.offset,
    )


def check(catalog: Catalog, *, keep_damaged: bool = False, is_all: bool = True) -> int:
    """Compare the shards on disk with the manifest, by presence and size; give how many differ.

    Raises ManifestError for the first that differs, or logs all that do with `keep_damaged`.
    Shards of the folder that the manifest does not list are logged, unless it is not to list all.
    """
    unread = {number for number, damage in catalog.manifest.damage if damage.kind == UNREADABLE}
    num_different = 0
    for number, size in enumerate(catalog.manifest.sizes.tolist()):
        problem = None if number in unread else _difference(catalog.shard_path(number), size)
        if problem and not keep_damaged:
            raise ManifestError(problem)
        if problem:
            logger.warning("%s", problem)
            num_different += 1
    if catalog.source.names is None and is_all:
        _log_unlisted(catalog)
    return num_different


def _difference(path: str, size: int) -> str | None:
    """Say how a shard on disk differs from its line in the manifest; None if it does not."""
    try:
        found = Path(path).stat().st_size
    except PermissionError as error:
        return f"{path}: the manifest lists this shard, and it can't be read: {why_unread(error)}"
    except OSError as error:
        return (
            f"{path}: the manifest lists this shard, and it can't be found "
            f"({error.strerror}): put it back, or make the manifest anew with "
            "`shardloader index`"
        )
    if found == size:
        return None
    return (
        f"{path}: the shard has {found} bytes, and had {size} when it was indexed: fetch "
        "it again, or if it is meant to have changed, make index and manifest anew with "
        "`shardloader index`"
    )


def _log_unlisted(catalog: Catalog) -> None:
    listed = set(catalog.manifest.names)
    try:
        unlisted = [name for name in find_shards(catalog.root) if name not in listed]
    except WorldError as error:  # the manifest lists what is to be read
        logger.warning("%s", error)
        return
    if unlisted:
        logger.warning(
            "%s: %d shards are not in the manifest and are not read, such as %s: take them in "
            "with `shardloader index`",
            catalog.location,
            len(unlisted),
            unlisted[0],
        )
