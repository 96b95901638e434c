"""How are shards indexed, once for a node, and what came of it?

One process holds the lock and indexes; others wait, and then find the indexes there. Much work is
spread over processes, which are forked, so that a user's script needs no main guard. Every index
is published as soon as it is made, and the manifest last: whatever is interrupted is taken up
again where it was.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from tqdm import tqdm

from shardloader.errors import (
    ManifestError,
    ShardError,
    ShardLoaderError,
    UsageError,
    WorldError,
)
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.reading.cache import DEFAULT, cache_for
from shardloader.reading.entry import Entry, current_entry, index_shard
from shardloader.reading.faults import MissingFileError
from shardloader.reading.source import (
    INDEX_SUFFIX,
    MANIFEST_NAME,
    SHARD_SUFFIXES,
    UNFINISHED_NAME,
    Source,
    find_shards,
    is_unfinished,
    resolve,
    unfinished,
)
from shardloader.reading.store import (
    file_lock,
    map_file,
    publish,
    read_file,
    require_writable,
)
from shardloader.reading.storing import may_hold_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardloader.format.notices import Notice
    from shardloader.reading.cache import Cache
    from shardloader.reading.remote import Store
    from shardloader.reading.source import PathText, SourceText

_T = TypeVar("_T")

logger = logging.getLogger("shardloader")

LOCK_NAME = ".shardloader.lock"
# Processes take 50 to 100 ms to start and end, and two save half of the work: up to 5 GB a second
# of ordinary shards of small members, but 0.2 GB of odd ones, which weigh more. An index to be
# published costs 2 to 5 ms, of waiting for the disk.
_PARALLEL_BYTES = 256 << 20
_INDEX_BYTES = 8 << 20  # that can be read meanwhile
_MAX_TASK_SHARDS = 64
_INDEXES_AT_ONCE = 32  # that are asked for, of remote shards in a list


def index_dataset(
    source: SourceText,
    *,
    index_dir: PathText | None = None,
    num_workers: int | None = None,
    force: bool = False,
    digest: bool = False,
    progress: bool = True,
    cache: Cache | str | None = DEFAULT,
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    """Index the shards that lack a current index, and write the manifest of a folder anew.

    An index is current if it is not older than its shard and knows its size; `force` makes all
    anew. Compressed shards are unpacked into `cache`, "default" for this user's. `digest` reads the
    shards whose content digest is not known, and puts that into the manifest; known ones of shards
    with a current index are kept. Gives the manifest, and the notices of each shard that was
    indexed now and had any. Raises ShardError for the first damaged shard, with the number of
    others; UsageError where the folder can't be written to and `index_dir` is not given, and for
    `digest` without a folder.
    """
    place = resolve(source, index_dir=index_dir)
    if digest and place.names is not None:
        raise UsageError(
            "content digests are kept in a folder's manifest, and a list of shards has none: give "
            "the folder they lie in"
        )
    job = _Job(
        num_workers=num_workers or available_cpus(),
        force=force,
        progress=progress,
        cache=cache_for(cache),
        digest=digest,
    )
    indexed = _index(place, job)
    if place.names is None:
        (Path(place.root) / UNFINISHED_NAME).unlink(missing_ok=True)
    return indexed


def index_on_first_use(
    place: Source, cache: Cache | None, *, keep_damaged: bool = False
) -> Manifest:
    """Give the manifest of a dataset that had none, by indexing whatever has no index yet.

    keep_damaged: index what is whole of a damaged shard, where otherwise it is an error. Raises
    UsageError for a folder that a writer has not finished.
    """
    refuse_unfinished(place)
    job = _Job(
        num_workers=available_cpus(),
        force=False,
        progress=True,
        cache=cache,
        keep_damaged=keep_damaged,
    )
    manifest, _ = _index(place, job, accept_manifest=True)
    return manifest


def refuse_unfinished(place: Source) -> None:
    """Raise UsageError for a local folder that a writer has not finished."""
    if place.names is None and is_unfinished(place.root):
        raise unfinished(place.location)


def no_manifest(place: Source) -> UsageError:
    """The error of a remote folder that can't be read for want of a manifest.

    The store is asked whether a writer has not finished there, and whether anything is there.
    """
    if place.store is not None and _is_unfinished(place.store):
        return unfinished(place.location)
    if place.store is not None and not may_hold_files(place.store):
        return UsageError(
            f"{place.location}: the store has no such bucket, or nothing in that folder: give the "
            "right URL, and the right endpoint among storage_options= if it has one of its own"
        )
    where = "" if place.index_store is not None else f" --index-dir {place.index_root}"
    return UsageError(
        f"{place.location}: a folder on a remote store is read by its manifest, and there is no "
        f"{place.manifest_path}: make it with `shardloader index {place.location}{where}`"
    )


def _is_unfinished(store: Store) -> bool:
    try:
        store.at(UNFINISHED_NAME).status()
    except WorldError:  # not there; or refused, as a web server may refuse hidden files
        return False
    return True


def existing_manifest(place: Source, cache: Cache | None) -> Manifest | None:
    """Give the manifest of a dataset that is indexed already, and change nothing; else None."""
    if place.names is None:
        return read_manifest(place)
    entries = _current_entries(place, place.names, cache, keep_damaged=True)
    return joined(place.names, entries) if len(entries) == len(place.names) else None


def read_manifest(place: Source) -> Manifest | None:
    """Read the manifest of a folder; None if there is none yet."""
    if place.index_store is not None:
        return manifest_at(place.index_store, MANIFEST_NAME)
    path = place.manifest_path
    data = None if path is None else read_file(path)
    return None if data is None else Manifest.from_json_bytes(data, name=str(path))


def manifest_at(store: Store, name: str) -> Manifest | None:
    """Read a manifest of a remote folder; None if there is none of that name."""
    file = store.at(name)
    return file.parsed_if_there(partial(Manifest.from_json_bytes, name=file.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    num_workers: int
    force: bool
    progress: bool
    cache: Cache | None
    digest: bool = False
    keep_damaged: bool = False


def _index(
    place: Source, job: _Job, *, accept_manifest: bool = False
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    if place.names is not None and not job.force:
        entries = _current_entries(place, place.names, job.cache, keep_damaged=job.keep_damaged)
        if len(entries) == len(place.names) and not job.digest:
            return _conclude(place, place.names, entries)  # nothing to write: no lock is taken
    # What is no dataset is refused before a lock file is left there, or a folder made for it.
    if place.names is None:
        find_shards(place.root)
    else:
        _require_one(place, place.names)
    with _lock(place) as lock:
        if accept_manifest and (manifest := read_manifest(place)) is not None:
            return manifest, {}  # the process that held the lock before has made it
        if accept_manifest:
            refuse_unfinished(place)  # also if a writer began while this process waited
        names = find_shards(place.root) if place.names is None else place.names
        return _conclude(place, names, _entries(place, names, job, lock))


def _require_one(place: Source, names: Sequence[str]) -> None:
    """Raise WorldError where none of the shards of a list can be seen."""
    first: OSError | None = None
    for name in names:
        try:
            Path(place.shard_path(name)).stat()
        except OSError as error:
            first = first or error
        else:
            return
    raise WorldError(
        f"{place.shard_path(names[0])}: {first and first.strerror}, and none of the {len(names)} "
        "shards can be seen: look whether the disk is mounted, and whether these are the paths "
        "that you mean"
    ) from first


def _conclude(
    place: Source, names: tuple[str, ...], by_name: Mapping[str, Entry]
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    """Join the entries to a manifest, and publish that where it has a place."""
    manifest = joined(names, by_name)
    if place.manifest_path is not None:
        publish(place.manifest_path, manifest.to_json_bytes())
    return manifest, {name: by_name[name].notices for name in names if by_name[name].notices}


def joined(names: tuple[str, ...], by_name: Mapping[str, Entry]) -> Manifest:
    """The manifest of shards whose entries are known."""
    entries = [by_name[name] for name in names]
    return Manifest(
        names=names,
        sizes=np.array([entry.file_bytes for entry in entries], dtype=np.int64),
        counts=np.array([entry.num_samples for entry in entries], dtype=np.int64),
        index_digests=tuple(entry.digest for entry in entries),
        content_digests=_all_or_none([entry.content_digest for entry in entries]),
        damage=tuple((i, entry.damage) for i, entry in enumerate(entries) if entry.damage),
    )


def _all_or_none(digests: Sequence[str | None]) -> tuple[str, ...] | None:
    """Give the content digests of a manifest, which has those of all shards or of none."""
    known = tuple(digest for digest in digests if digest is not None)
    if known and len(known) < len(digests):
        logger.warning(
            "%d of %d shards have no content digest, and the manifest has those of all or of none: "
            "make them with `shardloader index --digest`",
            len(digests) - len(known),
            len(digests),
        )
    return known if known and len(known) == len(digests) else None


@contextmanager
def _lock(place: Source) -> Iterator[int]:
    """Hold the dataset's lock, which lies beside the first index."""
    folder = Path(place.index_root)
    if place.names is not None:
        folder = Path(place.index_path(place.names[0])).parent
    require_writable(folder)
    with file_lock(folder / LOCK_NAME) as lock:
        yield lock


def _current_entries(
    place: Source, names: Sequence[str], cache: Cache | None, *, keep_damaged: bool
) -> dict[str, Entry]:
    """Give the entries of the shards whose index is current.

    That of a damaged shard is so only for those who keep it: others are to see the error.
    """
    entries = (
        (name, current_entry(place, name, cache, keep_damaged=keep_damaged)) for name in names
    )
    return {
        name: entry
        for name, entry in entries
        if entry is not None and (keep_damaged or entry.damage is None)
    }


def _entries(place: Source, names: Sequence[str], job: _Job, lock: int) -> dict[str, Entry]:
    """Give every shard's entry, having indexed those without a current index."""
    entries = {}
    if not job.force:
        known = _current_entries(place, names, job.cache, keep_damaged=job.keep_damaged)
        entries = with_digests(place, known)
    missing = [
        name
        for name in names
        if name not in entries or (job.digest and entries[name].content_digest is None)
    ]
    failures: list[ShardLoaderError] = []
    for name, result in zip(missing, _run(place, missing, job, lock), strict=True):
        if isinstance(result, ShardLoaderError):
            failures.append(result)
            continue
        entries[name] = result
        for notice in result.notices:
            if notice.is_warning:
                logger.warning("%s: %s", name, notice)
    if failures:
        raise first_of(failures)
    return entries


def with_digests(place: Source, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Join the content digests that the manifest has of shards with a current index."""
    try:
        manifest = read_manifest(place)
    except ManifestError:
        return entries  # it is made anew
    if manifest is None or manifest.content_digests is None:
        return entries
    listed = zip(manifest.names, manifest.index_digests, manifest.content_digests, strict=True)
    known = {(name, index): content for name, index, content in listed}
    return {
        name: replace(entry, content_digest=known.get((name, entry.digest)))
        for name, entry in entries.items()
    }


def first_of(failures: Sequence[ShardLoaderError]) -> ShardLoaderError:
    """The first error, with the number of others."""
    first, others = failures[0], len(failures) - 1
    if not others:
        return first
    message = f"{first} ({others} more of the shards {'have' if others > 1 else 'has'} errors)"
    if isinstance(first, ShardError):
        return ShardError(message, kind=first.kind, offset=first.offset)
    return type(first)(message)


def _index_one(place: Source, name: str, job: _Job) -> Entry | ShardLoaderError:
    """Index one shard; errors are values, as others are to be counted."""
    try:
        return index_shard(
            place, name, cache=job.cache, keep_damaged=job.keep_damaged, digest=job.digest
        )
    except ShardLoaderError as error:
        return error


def _index_some(
    place: Source, job: _Job, names: Sequence[str]
) -> dict[str, Entry | ShardLoaderError]:
    return {name: _index_one(place, name, job) for name in names}


def _run(
    place: Source, names: Sequence[str], job: _Job, lock: int
) -> list[Entry | ShardLoaderError]:
    """Index shards, here or in several processes, and show how far it is."""
    sizes = dict(zip(names, map(_size, map(place.shard_path, names)), strict=True))
    workers = _workers(list(sizes.values()), job)
    tasks = _tasks(sizes, workers)
    results: dict[str, Entry | ShardLoaderError] = {}
    # tqdm's None: silent where stderr is no terminal
    disable = None if job.progress else True
    with tqdm(total=len(names), unit="shard", desc="indexing", disable=disable) as bar:
        for done in _map(partial(_index_some, place, job), tasks, workers, lock):
            results.update(done)
            bar.update(len(done))
    return [results[name] for name in names]


def _workers(sizes: Sequence[int], job: _Job) -> int:
    """Decide how many processes are worth starting; 1 is this one."""
    if multiprocessing.current_process().daemon:
        return 1  # a DataLoader's worker may have no children
    workers = min(job.num_workers, len(sizes))
    if workers < 2 or sum(sizes) + len(sizes) * _INDEX_BYTES <= _PARALLEL_BYTES:
        return 1
    return workers


def _tasks(sizes: Mapping[str, int], workers: int) -> list[list[str]]:
    """Deal shards, by their sizes in bytes, into tasks; in order for one process.

    For several the largest come first, and a task has a quarter of a worker's share of what is
    left: the last ones are small, so that all end together.
    """
    if workers < 2:
        return [[name] for name in sizes]
    tasks: list[list[str]] = []
    left = sum(sizes.values()) + len(sizes) * _INDEX_BYTES
    room = 0
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        cost = sizes[name] + _INDEX_BYTES
        if cost > room or len(tasks[-1]) == _MAX_TASK_SHARDS:
            tasks.append([])
            room = left // (4 * workers)
        tasks[-1].append(name)
        room -= cost
        left -= cost
    return tasks


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # reported when it is mapped


def _map(
    work: Callable[[list[str]], _T], tasks: Sequence[list[str]], workers: int, lock: int
) -> Iterator[_T]:
    if workers < 2:
        yield from map(work, tasks)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_live_no_longer_than_parent,
        initargs=(lock,),
    )
    try:
        with pool:
            yield from pool.map(work, tasks)
    except BrokenProcessPool as error:
        raise WorldError(
            "a process that indexed shards was killed, perhaps for want of memory: run it again "
            "(what is done is kept), with fewer workers"
        ) from error


def _live_no_longer_than_parent(lock: int) -> None:
    """Give up the inherited lock, and end when the parent was killed, even by SIGKILL."""
    os.close(lock)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def available_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def manifest_of_indexes(place: Source) -> Manifest:
    """The manifest of remote shards in a list, from the indexes that lie beside them.

    Raises UsageError, with the command that makes them, where one is missing.
    """
    names = place.names or ()
    with ThreadPoolExecutor(_INDEXES_AT_ONCE) as threads:
        entries = list(threads.map(partial(_entry_of_index, place), names))
    return joined(names, dict(zip(names, entries, strict=True)))


def _entry_of_index(place: Source, name: str) -> Entry:
    index = index_at(place, name)
    if index is None:
        _require_shard(place, name)
        raise UsageError(
            f"{place.index_path(name)}: shards in a list of URLs have their indexes beside them, "
            f"and this one is not there: {_way_to_index(name)}"
        )
    return Entry.of(index)


def _require_shard(place: Source, name: str) -> None:
    """Raise UsageError where the store says that the shard is not there either."""
    if place.store is None or not name.endswith(SHARD_SUFFIXES):
        return
    try:
        place.store.at(name).status()
    except MissingFileError as error:
        raise UsageError(
            f"{place.shard_path(name)}: there is no such shard, nor an index of one: give the "
            "right URL, and the right endpoint among storage_options= if the store has its own"
        ) from error
    except WorldError:  # it does not say: as a web server may have no HEAD
        return


def _way_to_index(name: str) -> str:
    if "*" in name:
        return "* stands for nothing in a URL: give the folder, or a brace pattern"
    if not name.endswith(SHARD_SUFFIXES):
        return "if it is a folder, give one folder, or list the shards in it"
    return "make them with `shardloader index` and the same URLs"


def index_at(place: Source, name: str) -> SampleIndex | None:
    """The index of a shard, wherever it lies; None if it has none. Raises as reading it does."""
    path = place.index_path(name)
    if place.index_store is not None:
        data = place.index_store.at(f"{name}{INDEX_SUFFIX}").whole_if_there()
        return None if data is None else SampleIndex.from_buffer(data, name=path)
    if not Path(path).is_file():
        return None
    return SampleIndex.from_buffer(map_file(path), name=path)
