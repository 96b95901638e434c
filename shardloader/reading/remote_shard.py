"""How do a remote shard and its index come into the node's cache, and are they those listed?

The index comes first, and is kept by its digest: one file for whoever has the same index. The tar
is fetched when the store says the size that the manifest lists, and published when it begins as a
tar, has that size and, where the manifest has one, that content digest. So an error page that a
server gives in a shard's place never gets into the cache. What is not as listed is fetched once
more, since it may have been damaged on the way, and then it is an error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import xxhash

from shardloader.errors import DataError, ManifestError
from shardloader.format.foreign import check_beginning, packing_of
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.unpacking import unpacked_name
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.remote import ShortBodyError
from shardloader.reading.source import INDEX_SUFFIX
from shardloader.reading.store import map_file
from shardloader.reading.tars import Tar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from shardloader.format.manifest import Manifest
    from shardloader.reading.cache import Cache
    from shardloader.reading.remote import RemoteFile, Store
    from shardloader.reading.source import Source

_T = TypeVar("_T")

logger = logging.getLogger("shardloader")

_WAY_OUT = "put shards, indexes and manifest of one `shardloader write` or `index` there together"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteShard:
    """The origin of a remote shard's tar, with what the manifest says of the file.

    tar_bytes: of the tar, as its index says; None where that was not looked at. note: is told each
    version that the store says; all_asked: is called when the last of its bytes have been asked
    for.
    """

    file: RemoteFile
    file_bytes: int
    content_digest: str | None = None
    tar_bytes: int | None = None
    note: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    all_asked: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        return self.file.name

    @property
    def identity(self) -> str:
        """The whole URL but for its user, and the options that say which store is meant."""
        return self.file.identity

    def version(self) -> str:
        """Size and etag, or time. Raises ManifestError for another size than the manifest's.

        Where what lies there is no shard at all, ShardError says what it is.
        """
        status = self.file.status()
        if status.size is not None and status.size != self.file_bytes:
            first = self.file.read(0, BLOCK_BYTES)[:BLOCK_BYTES]
            if packing_of(first) is None:
                check_beginning(first, shard=self.name)
            raise self._differs(f"has {status.size} bytes")
        if self.note is not None:
            self.note(status.version)
        return status.version

    def pieces(self) -> Iterator[bytes]:
        """Yield the file; raises ManifestError at the end if it is not the one listed."""
        hasher, length = xxhash.xxh3_128(), 0
        with self.file.diary.page.within(Stage.FETCHING, total=self.file_bytes) as page:
            for piece in self.received(0, self.file_bytes):
                hasher.update(piece)
                length += len(piece)
                page.at_byte(length)
                yield piece
        if length != self.file_bytes:
            raise self._differs(f"gave {length} bytes")
        digest = hasher.hexdigest()
        if self.content_digest is not None and digest != self.content_digest:
            raise ManifestError(
                f"{self.name}: the shard's bytes have the digest {digest}, and the manifest lists "
                f"{self.content_digest}: it was changed or damaged; {_WAY_OUT}"
            )

    def received(self, start: int, stop: int) -> Iterator[bytes]:
        """The store's bytes; ShardError for a page in the shard's place that says it is none.

        A store without ranges gives all from `start` on.
        """
        try:
            yield from self.file.pieces(
                size=self.file_bytes, start=start, stop=stop, all_asked=self.all_asked
            )
        except ShortBodyError as error:
            if error.first and packing_of(error.first) is None:
                check_beginning(error.first, shard=self.name)
            raise

    def _differs(self, problem: str) -> ManifestError:
        return ManifestError(
            f"{self.name}: the shard {problem}, and the manifest lists {self.file_bytes}: it was "
            f"replaced, or its upload broken off; {_WAY_OUT}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndex:
    """The origin of a remote shard's index, which is its digest, wherever it lies."""

    file: RemoteFile
    digest: str

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        return self.file.name

    @property
    def tar_bytes(self) -> None:
        """It is none."""

    @property
    def identity(self) -> str:
        """The digest, wherever it lies."""
        return index_identity(self.digest)

    def version(self) -> str:
        """The digest that the manifest lists."""
        return self.digest

    def pieces(self) -> Iterator[bytes]:
        """Yield the file once it is known to be the index that the manifest lists."""
        data = self.file.whole()
        found = SampleIndex.from_buffer(memoryview(data), name=self.name).digest
        if found != self.digest:
            raise ManifestError(
                f"{self.name}: the index has the digest {found}, and the manifest lists "
                f"{self.digest}: it is of another version of the shard; {_WAY_OUT}"
            )
        yield data


def index_identity(digest: str) -> str:
    """What tells an index from every other in the cache."""
    return f"sample index {digest}"


def shard_of(source: Source, manifest: Manifest, shard: int, diary: Diary) -> RemoteShard:
    """The origin of a shard, by its number in the manifest."""
    digests = manifest.content_digests
    return RemoteShard(
        file=_store_of(source).at(manifest.names[shard], diary),
        file_bytes=int(manifest.sizes[shard]),
        content_digest=None if digests is None else digests[shard],
    )


def index_of_remote(
    source: Source,
    manifest: Manifest,
    shard: int,
    cache: Cache | None,
    *,
    make_way: Callable[[], None] | None = None,
    diary: Diary,
) -> SampleIndex:
    """The index of a remote shard: mapped from the cache, or in memory where there is none.

    One that lies in a local folder is mapped there, and not compared with the manifest.
    """
    name, store = manifest.names[shard], source.index_store
    if store is None:
        path = source.index_path(name)
        return SampleIndex.from_buffer(map_file(path), name=path)
    file = store.at(f"{name}{INDEX_SUFFIX}", diary)
    origin = RemoteIndex(file=file, digest=manifest.index_digests[shard])
    if cache is None:
        data = _twice(lambda: b"".join(origin.pieces()))
        return SampleIndex.from_buffer(data, name=file.name)
    kept = _twice(lambda: cache.file(origin, make_way=make_way, diary=diary))
    return SampleIndex.from_buffer(kept, name=file.name)


def map_remote(
    source: Source,
    manifest: Manifest,
    shard: int,
    cache: Cache,
    *,
    make_way: Callable[[], None] | None = None,
    diary: Diary | None = None,
    versions: MutableMapping[int, str] | None = None,
    all_asked: Callable[[], None] | None = None,
) -> tuple[Tar, SampleIndex]:
    """Map a remote shard's tar and its index, fetched if they are not in the cache yet.

    versions: of the shards that the store was asked for before, by their numbers, and after this of
    this one. It is asked nothing of one that is in the cache still, as if that had stayed open.
    all_asked: called when the last bytes of a tar that is fetched have been asked for.
    """
    diary = diary or Diary()
    index = index_of_remote(source, manifest, shard, cache, make_way=make_way, diary=diary)
    remote = replace(shard_of(source, manifest, shard, diary), tar_bytes=index.shard_bytes)
    versions = {} if versions is None else versions
    known = versions.get(shard)
    data = None if known is None else cache.tar_again(remote, known, diary=diary)
    if data is None:
        note = partial(versions.__setitem__, shard)
        asked = replace(remote, note=note, all_asked=all_asked)
        data = _twice(lambda: cache.tar(asked, make_way=make_way, diary=diary))
    is_packed = index.compressed_bytes is not None
    called = unpacked_name(remote.name) if is_packed else remote.name
    return Tar(data, called, index.compressed_bytes, is_cached=True), index


def _store_of(source: Source) -> Store:
    if source.store is None:
        raise AssertionError
    return source.store


def _twice(fetch: Callable[[], _T]) -> _T:
    """What is fetched, or is fetched once more where it is not what it should be."""
    try:
        return fetch()
    except DataError as error:
        logger.info("%s: fetching it once more", error)
    return fetch()
