"""How are shards indexed, once for a node, and what came of it?

One process holds the lock and indexes; others wait, and then find the indexes there. Much work is
spread over processes, which are forked, so that a user's script needs no main guard. Every index
is published as soon as it is made, and the manifest last: whatever is interrupted is taken up
again where it was.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from shardloader.errors import (
    IndexFileError,
    ShardError,
    ShardLoaderError,
    UsageError,
    WorldError,
)
from shardloader.format.agreeing import seems_to_be_of
from shardloader.format.damage import UNREADABLE, Damage
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.reading.source import UNFINISHED_NAME, Source, find_shards, resolve
from shardloader.reading.store import file_lock, map_file, publish, read_file, require_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardloader.format.notices import Notice
    from shardloader.reading.source import PathText, SourceText

logger = logging.getLogger("shardloader")

LOCK_NAME = ".shardloader.lock"
_NOT_THE_SHARD = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_PARALLEL_BYTES = 64 << 20  # less is indexed faster than processes start


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What the manifest says of one shard, and what was odd when it was indexed just now."""

    shard_bytes: int
    num_samples: int
    digest: str
    notices: tuple[Notice, ...] = ()
    damage: Damage | None = None


def index_dataset(
    source: SourceText,
    *,
    index_dir: PathText | None = None,
    num_workers: int | None = None,
    force: bool = False,
    progress: bool = True,
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    """Index the shards that lack a current index, and write the manifest of a folder anew.

    An index is current if it is not older than its shard and knows its size; `force` makes all
    anew. Gives the manifest, and the notices of each shard that was indexed now and had any.
    Raises ShardError for the first damaged shard, with the number of others; UsageError where the
    folder can't be written to and `index_dir` is not given.
    """
    place = resolve(source, index_dir=index_dir)
    job = _Job(num_workers=num_workers or _available_cpus(), force=force, progress=progress)
    indexed = _index(place, job)
    if place.names is None:
        (Path(place.root) / UNFINISHED_NAME).unlink(missing_ok=True)
    return indexed


def index_on_first_use(place: Source, *, keep_damaged: bool = False) -> Manifest:
    """Give the manifest of a dataset that had none, by indexing whatever has no index yet.

    keep_damaged: index what is whole of a damaged shard, where otherwise it is an error. Raises
    UsageError for a folder that a writer has not finished.
    """
    _refuse_unfinished(place)
    job = _Job(num_workers=_available_cpus(), force=False, progress=True, keep_damaged=keep_damaged)
    manifest, _ = _index(place, job, accept_manifest=True)
    return manifest


def _refuse_unfinished(place: Source) -> None:
    if place.names is None and (Path(place.root) / UNFINISHED_NAME).exists():
        raise UsageError(
            f"{place.location}: a writer was broken off here, or still writes: finish it, or write "
            "anew with overwrite=True; to take the shards that are there as the dataset, run "
            "`shardloader index`"
        )


def existing_manifest(place: Source) -> Manifest | None:
    """Give the manifest of a dataset that is indexed already, and change nothing; else None."""
    if place.names is None:
        return read_manifest(place)
    entries = _current_entries(place, place.names, keep_damaged=True)
    return _joined(place.names, entries) if len(entries) == len(place.names) else None


def read_manifest(place: Source) -> Manifest | None:
    """Read the manifest of a folder; None if there is none yet."""
    path = place.manifest_path
    data = None if path is None else read_file(path)
    return None if data is None else Manifest.from_json_bytes(data, name=str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    num_workers: int
    force: bool
    progress: bool
    keep_damaged: bool = False


def _index(
    place: Source, job: _Job, *, accept_manifest: bool = False
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    if place.names is not None and not job.force:
        entries = _current_entries(place, place.names, keep_damaged=job.keep_damaged)
        if len(entries) == len(place.names):
            return _conclude(place, place.names, entries)  # nothing to write: no lock is taken
    if place.names is None:
        find_shards(place.root)  # what is no dataset is refused before a lock file is left there
    with _lock(place) as lock:
        if accept_manifest and (manifest := read_manifest(place)) is not None:
            return manifest, {}  # the process that held the lock before has made it
        if accept_manifest:
            _refuse_unfinished(place)  # also if a writer began while this process waited
        names = find_shards(place.root) if place.names is None else place.names
        return _conclude(place, names, _entries(place, names, job, lock))


def _conclude(
    place: Source, names: tuple[str, ...], by_name: Mapping[str, _Entry]
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    """Join the entries to a manifest, and publish that where it has a place."""
    manifest = _joined(names, by_name)
    if place.manifest_path is not None:
        publish(place.manifest_path, manifest.to_json_bytes())
    return manifest, {name: by_name[name].notices for name in names if by_name[name].notices}


def _joined(names: tuple[str, ...], by_name: Mapping[str, _Entry]) -> Manifest:
    entries = [by_name[name] for name in names]
    return Manifest(
        names=names,
        sizes=np.array([entry.shard_bytes for entry in entries], dtype=np.int64),
        counts=np.array([entry.num_samples for entry in entries], dtype=np.int64),
        index_digests=tuple(entry.digest for entry in entries),
        damage=tuple((i, entry.damage) for i, entry in enumerate(entries) if entry.damage),
    )


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
    place: Source, names: Sequence[str], *, keep_damaged: bool
) -> dict[str, _Entry]:
    """Give the entries of the shards whose index is current.

    That of a damaged shard is so only for those who keep it: others are to see the error.
    """
    entries = ((name, _current_entry(place, name)) for name in names)
    return {
        name: entry
        for name, entry in entries
        if entry is not None and (keep_damaged or entry.damage is None)
    }


def _entries(place: Source, names: Sequence[str], job: _Job, lock: int) -> dict[str, _Entry]:
    """Give every shard's entry, having indexed those without a current index."""
    entries = {} if job.force else _current_entries(place, names, keep_damaged=job.keep_damaged)
    missing = [name for name in names if name not in entries]
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
        raise _first_of(failures)
    return entries


def _first_of(failures: Sequence[ShardLoaderError]) -> ShardLoaderError:
    first, others = failures[0], len(failures) - 1
    if not others:
        return first
    message = f"{first} ({others} more of the shards {'have' if others > 1 else 'has'} errors)"
    if isinstance(first, ShardError):
        return ShardError(message, kind=first.kind, offset=first.offset)
    return type(first)(message)


def _current_entry(place: Source, name: str) -> _Entry | None:
    """Give what a shard's index says, if that is sound and not older than the shard."""
    index_path, shard_path = place.index_path(name), place.shard_path(name)
    try:
        made, shard = Path(index_path).stat(), Path(shard_path).stat()
    except OSError:
        return _unreadable_entry(index_path, shard_path)
    if made.st_mtime_ns < shard.st_mtime_ns:
        return None
    try:
        index = SampleIndex.from_buffer(map_file(index_path), name=index_path)
    except IndexFileError:
        return None
    is_unreadable = index.damage is not None and index.damage.kind == UNREADABLE
    try:
        data = map_file(shard_path)
    except WorldError:
        return _entry(index) if is_unreadable else None
    if not seems_to_be_of(index, data):
        return None  # of another shard, or the shard was replaced by one of its size
    return _entry(index) if index.shard_bytes == shard.st_size else None


def _entry(index: SampleIndex, notices: tuple[Notice, ...] = ()) -> _Entry:
    return _Entry(
        shard_bytes=index.shard_bytes,
        num_samples=index.num_samples,
        digest=index.digest,
        notices=notices,
        damage=index.damage,
    )


def _unreadable_entry(index_path: str, shard_path: str) -> _Entry | None:
    """Give the entry of a shard that is still as unreadable as when it was indexed; else None."""
    if not Path(index_path).is_file() or Path(shard_path).exists():
        return None  # no index yet
    try:
        index = SampleIndex.from_buffer(map_file(index_path), name=index_path)
    except IndexFileError:
        return None
    is_known = index.damage is not None and index.damage.kind == UNREADABLE
    return _entry(index) if is_known else None  # otherwise it is reported when it is mapped


def _index_one(place: Source, name: str) -> _Entry | ShardLoaderError:
    """Index one shard and publish its index; errors are values, as others are to be counted."""
    return _published(place, name, _whole)


def _index_what_is_whole(place: Source, name: str) -> _Entry | ShardLoaderError:
    """Do the same, of a damaged shard with what is whole."""
    return _published(place, name, _what_is_whole)


def _published(
    place: Source, name: str, build: Callable[[str], tuple[SampleIndex, tuple[Notice, ...]]]
) -> _Entry | ShardLoaderError:
    try:
        index, notices = build(place.shard_path(name))
        publish(place.index_path(name), index.to_bytes())
    except ShardLoaderError as error:
        return error
    return _entry(index, notices)


def _whole(path: str) -> tuple[SampleIndex, tuple[Notice, ...]]:
    return SampleIndex.build(map_file(path), shard=path)


def _what_is_whole(path: str) -> tuple[SampleIndex, tuple[Notice, ...]]:
    """Index what is whole of a shard, and that is nothing of one that can't be read."""
    try:
        data = map_file(path)
    except WorldError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NOT_THE_SHARD:
            raise
        empty = SampleIndex.of_samples([], shard_bytes=0)
        return replace(empty, damage=Damage(kind=UNREADABLE, offset=0)), ()
    return SampleIndex.build_what_is_whole(data, shard=path)


def _run(
    place: Source, names: Sequence[str], job: _Job, lock: int
) -> Iterator[_Entry | ShardLoaderError]:
    """Index shards, here or in several processes, and show how far it is."""
    work = partial(_index_what_is_whole if job.keep_damaged else _index_one, place)
    # tqdm's None: silent where stderr is no terminal
    disable = None if job.progress else True
    with tqdm(total=len(names), unit="shard", desc="indexing", disable=disable) as bar:
        for result in _map(work, names, _workers(place, names, job), lock):
            bar.update()
            yield result


def _workers(place: Source, names: Sequence[str], job: _Job) -> int:
    """Decide how many processes are worth starting; 1 is this one."""
    if multiprocessing.current_process().daemon:
        return 1  # a DataLoader's worker may have no children
    workers = min(job.num_workers, len(names))
    if workers < 2 or sum(map(_size, map(place.shard_path, names))) <= _PARALLEL_BYTES:
        return 1
    return workers


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # reported when it is mapped


def _map(
    work: Callable[[str], _Entry | ShardLoaderError],
    names: Sequence[str],
    workers: int,
    lock: int,
) -> Iterable[_Entry | ShardLoaderError]:
    if workers < 2:
        yield from map(work, names)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_live_no_longer_than_parent,
        initargs=(lock,),
    )
    try:
        with pool:
            chunk = max(1, min(64, len(names) // (8 * workers)))
            yield from pool.map(work, names, chunksize=chunk)
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


def _available_cpus() -> int:
    return len(os.sched_getaffinity(0))
