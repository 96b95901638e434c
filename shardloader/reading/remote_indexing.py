"""How are shards on a remote store indexed, where they lie?

Each shard is read once, from its first byte to its last, into a file without a name; its index is
put beside it, or into a local folder, and the manifest last. A shard that has an index of its size,
and begins and ends with what that says, is not read again. Nobody locks a store: two that index at
once do the same work, and write the same files.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import xxhash
from tqdm import tqdm

from shardloader.errors import (
    IndexFileError,
    ShardLoaderError,
    StoreError,
    UsageError,
    WorldError,
)
from shardloader.format.agreeing import outermost_headers, outermost_hold
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.reading.clients import HUB
from shardloader.reading.entry import Entry
from shardloader.reading.faults import MissingFileError
from shardloader.reading.indexing import (
    available_cpus,
    first_of,
    index_at,
    joined,
    with_digests,
)
from shardloader.reading.ranges import Stretches
from shardloader.reading.remote_source import resolve_remote
from shardloader.reading.source import INDEX_SUFFIX, MANIFEST_NAME, shards_among
from shardloader.reading.store import publish, require_writable
from shardloader.reading.storing import put
from shardloader.reading.tars import copy_for_a_look, index_of, tar_for_a_look

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.format.index import SampleIndex
    from shardloader.format.manifest import Manifest
    from shardloader.format.notices import Notice
    from shardloader.format.unpacking import Limits
    from shardloader.reading.remote import RemoteFile, Store
    from shardloader.reading.source import PathText, Source, SourceText

logger = logging.getLogger("shardloader")

MOST_AT_ONCE: Final = 4  # shards that are read at a time, each held in a temporary file


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    place: Source
    store: Store
    force: bool
    digest: bool
    limits: Limits | None


def index_remote(
    source: SourceText,
    *,
    index_dir: PathText | None = None,
    storage_options: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
    force: bool = False,
    digest: bool = False,
    progress: bool = True,
    limits: Limits | None = None,
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    """Index the shards of a remote folder, pattern or list that lack a current index.

    Indexes and the manifest of a folder are put into the store, or into index_dir, a local folder.
    The content digest of each shard that is read is taken on the way, and `digest` reads those
    whose is not known. limits: how far compressed shards may expand. Gives what `index_dataset`
    gives, and raises as it does; StoreError, which names index_dir, where the store can't be
    written to.
    """
    place = resolve_remote(source, index_dir=index_dir, storage_options=storage_options)
    if place.store is None:
        raise AssertionError
    if digest and place.names is not None:
        raise UsageError(
            "content digests are kept in a folder's manifest, and a list of shards has none: give "
            "the folder they lie in"
        )
    if place.index_store is None:
        require_writable(place.index_root)
    elif place.store.scheme in HUB:
        raise UsageError(
            f"{place.location}: indexes and manifest are put beside the shards, and on the Hub "
            "each would be a commit: give index_dir=, a local folder for them, and upload what is "
            "in it in one commit"
        )
    names = find_remote_shards(place.store) if place.names is None else place.names
    job = _Job(place=place, store=place.store, force=force, digest=digest, limits=limits)
    entries = _entries(job, names, num_workers or min(MOST_AT_ONCE, available_cpus()), progress)
    manifest = joined(names, entries)
    if place.names is None:
        _put(place, MANIFEST_NAME, manifest.to_json_bytes())
    return manifest, {name: entries[name].notices for name in names if entries[name].notices}


def find_remote_shards(store: Store) -> tuple[str, ...]:
    """List the shards in a remote folder and below it, as `find_shards` does for a local one."""

    def listed(client: Any) -> list[str]:
        client.invalidate_cache()
        root = str(client._strip_protocol(store.folder_url)).partition("?")[0].rstrip("/")  # noqa: SLF001 - all backends have it
        found = client.find(store.folder_url)
        return [path[len(root) + 1 :] for path in found if path.startswith(f"{root}/")]

    try:
        names = store.ask(listed, shown=store.name)
    except MissingFileError:
        raise  # there is no such bucket
    except WorldError as error:
        raise type(error)(
            f"{error}: to be indexed a folder is listed, and this one can't be: give its shards as "
            "a pattern or a list of URLs"
        ) from None
    seen = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    return shards_among(seen, store.name)


def _entries(
    job: _Job, names: tuple[str, ...], num_workers: int, progress: bool
) -> dict[str, Entry]:
    known = {} if job.force else _current(job, names)
    missing = [
        name
        for name in names
        if name not in known or (job.digest and known[name].content_digest is None)
    ]
    failures: list[ShardLoaderError] = []
    # tqdm's None: silent where stderr is no terminal
    disable = None if progress else True
    with (
        tqdm(total=len(missing), unit="shard", desc="indexing", disable=disable) as bar,
        ThreadPoolExecutor(num_workers) as threads,
    ):
        results = threads.map(partial(_index_one, job), missing)
        for name, result in zip(missing, results, strict=True):
            bar.update()
            if isinstance(result, ShardLoaderError):
                failures.append(result)
                continue
            known[name] = result
            for notice in result.notices:
                if notice.is_warning:
                    logger.warning("%s: %s", name, notice)
    if failures:
        raise first_of(failures)
    return known


def _current(job: _Job, names: tuple[str, ...]) -> dict[str, Entry]:
    """The entries of the shards whose index is there and seems to be of them."""
    with ThreadPoolExecutor(16) as threads:
        indexes = zip(names, threads.map(partial(_current_index, job), names), strict=True)
        found = {name: Entry.of(index) for name, index in indexes if index is not None}
    return with_digests(job.place, found)


def _current_index(job: _Job, name: str) -> SampleIndex | None:
    try:
        index = index_at(job.place, name)
    except IndexFileError:
        return None  # it is made anew
    file = job.store.at(name)
    if index is None or index.damage is not None or file.status().size != index.file_bytes:
        return None
    if index.compressed_bytes is not None or not file.has_ranges(size=index.file_bytes):
        return index
    starts = sorted({*outermost_headers(index)})
    bodies = [_block(file, start, index.file_bytes) for start in starts]
    try:
        return index if outermost_hold(index, Stretches(starts, bodies)) else None
    except IndexError:
        return None


def _block(file: RemoteFile, start: int, size: int) -> bytes:
    return b"".join(file.pieces(size=size, start=start, stop=start + BLOCK_BYTES))


def _index_one(job: _Job, name: str) -> Entry | ShardLoaderError:
    """Read a shard and put its index; errors are values, as others are to be counted."""
    file, hasher = job.store.at(name), xxhash.xxh3_128()
    try:
        before = file.status().version
        data = copy_for_a_look(file, hasher.update)
        index, notices = index_of(tar_for_a_look(data, file.name, job.limits))
        if file.status().version != before:
            raise WorldError(
                f"{file.name}: the shard changed while it was read: wait until it is whole"
            )
        _put(job.place, f"{name}{INDEX_SUFFIX}", index.to_bytes())
    except ShardLoaderError as error:
        return error
    return replace(Entry.of(index), content_digest=hasher.hexdigest(), notices=notices)


def _put(place: Source, name: str, data: bytes) -> None:
    """Write a file where indexes and manifest lie, in place of an older one."""
    if place.index_store is None:
        publish(f"{place.index_root}/{name}", data)
        return
    file = place.index_store.at(name)
    try:
        put(file, data)
    except WorldError as error:
        raise StoreError(
            f"{file.name}: indexes and manifest are put beside the shards, and this can't be "
            f"written ({error}): give index_dir=, a local folder for them"
        ) from None
