"""What does the manifest say of one shard: from its index if that is current, or by indexing it?

An index is current if it is not older than its shard, knows its size, and agrees with the header
of its first member. Of a damaged shard what is whole can be kept, and the damage with it; one that
was beyond a limit is tried again, as the limit may be another now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardloader.errors import CacheError, IndexFileError, ShardError, WorldError
from shardloader.format.agreeing import begins_like, end_of_first_header, seems_to_be_of
from shardloader.format.damage import UNREADABLE, Damage
from shardloader.format.index import SampleIndex
from shardloader.reading.content import content_digest
from shardloader.reading.store import is_of_the_file, map_file, publish
from shardloader.reading.tars import block_before, index_of, map_tar, whole_of

if TYPE_CHECKING:
    from shardloader.format.notices import Notice
    from shardloader.reading.cache import Cache
    from shardloader.reading.source import Source


_BEYOND_LIMITS = frozenset(("expands_too_far", "unsupported_compression"))  # or perhaps beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the manifest says of one shard, and what was odd when it was indexed just now."""

    file_bytes: int
    num_samples: int
    digest: str
    content_digest: str | None = None
    notices: tuple[Notice, ...] = ()
    damage: Damage | None = None

    @classmethod
    def of(cls, index: SampleIndex) -> Entry:
        """What an index says."""
        return cls(
            file_bytes=index.file_bytes,
            num_samples=index.num_samples,
            digest=index.digest,
            damage=index.damage,
        )


def current_entry(
    place: Source, name: str, cache: Cache | None, *, keep_damaged: bool
) -> Entry | None:
    """What a shard's index says; None if there is none that is sound and current.

    With keep_damaged that of a shard which is gone, or can't be read any more, stays: its samples
    are bad, and no others take their numbers.
    """
    index_path, shard_path = place.index_path(name), place.shard_path(name)
    try:
        made = Path(index_path).stat()
    except OSError:
        return None
    index = _read_index(index_path)
    if index is None or (index.damage is not None and index.damage.kind in _BEYOND_LIMITS):
        return None
    try:
        shard = Path(shard_path).stat()
        if made.st_mtime_ns < shard.st_mtime_ns:
            return None
        is_same = index.file_bytes == shard.st_size and _agrees(index, shard_path, cache)
    except (OSError, WorldError):
        is_same = keep_damaged or _is_unreadable(index)  # else it is reported when it is mapped
    except ShardError:
        is_same = keep_damaged
    return Entry.of(index) if is_same else None  # or the shard was replaced by one of its size


def _read_index(path: str) -> SampleIndex | None:
    """The index of a shard; None if there is none that is sound and can be read."""
    try:
        return SampleIndex.from_buffer(map_file(path), name=path)
    except (IndexFileError, WorldError):
        return None


def index_shard(
    place: Source, name: str, *, cache: Cache | None, keep_damaged: bool, digest: bool
) -> Entry:
    """Index a shard, publish its index, and give its entry.

    keep_damaged: keep what is whole of a damaged shard, and that is nothing of one that can't be
    read; digest: of the file's bytes, too. Raises ShardError for a damaged shard otherwise, and
    WorldError.
    """
    path = place.shard_path(name)
    index, notices = _what_is_whole(path, cache) if keep_damaged else index_of(map_tar(path, cache))
    publish(place.index_path(name), index.to_bytes())
    content = content_digest(map_file(path)) if digest and not _is_unreadable(index) else None
    return replace(Entry.of(index), content_digest=content, notices=notices)


def _what_is_whole(path: str, cache: Cache | None) -> tuple[SampleIndex, tuple[Notice, ...]]:
    nothing = SampleIndex.of_samples([], shard_bytes=0)
    try:
        tar = map_tar(path, cache)
    except CacheError:
        raise
    except WorldError as error:
        if isinstance(error.__cause__, OSError) and is_of_the_file(error):
            return replace(nothing, damage=Damage(kind=UNREADABLE, offset=0)), ()
        raise
    except ShardError as error:  # of a compressed shard nothing is known to be whole
        size = Path(path).stat().st_size
        return replace(nothing, compressed_bytes=size, damage=Damage.of(error)), ()
    return whole_of(tar)


def _agrees(index: SampleIndex, shard_path: str, cache: Cache | None) -> bool:
    """Whether the shard seems to be what was indexed; of a compressed one the beginning is read."""
    if index.compressed_bytes is None:
        return seems_to_be_of(index, map_file(shard_path))
    if index.num_samples == 0:
        return True
    header = block_before(shard_path, end_of_first_header(index), cache)
    return header is not None and begins_like(index, header)


def _is_unreadable(index: SampleIndex) -> bool:
    return index.damage is not None and index.damage.kind == UNREADABLE
