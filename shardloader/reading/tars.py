"""Where does the tar of a shard lie, which the shard's index describes?

A plain shard is its tar: the file is mapped as it is. The tar of a compressed one lies in the
node's cache. Which of the two a file is, its first bytes say.
"""

from __future__ import annotations

import mmap
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from shardloader.errors import UsageError, WorldError
from shardloader.format.foreign import packing_of
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.unpacking import tar_pieces, unpacked_name
from shardloader.reading.origin import LocalFile
from shardloader.reading.store import WRITE_BYTES, map_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardloader.format.notices import Notice
    from shardloader.format.unpacking import Limits
    from shardloader.reading.cache import Cache
    from shardloader.reading.diary import Diary
    from shardloader.reading.remote import RemoteFile


PIECE_BYTES: Final = 1 << 20  # of a compressed file, handed on at a time
COPIED_AT_ONCE: Final = 8 << 20  # of a file on a slow file system, by one read


class Tar(NamedTuple):
    """A mapped tar.

    name: what messages call it. compressed_bytes: the size of the compressed file, None of a tar
    that lies there plain. is_cached: whether it lies in the node's cache.
    """

    data: memoryview
    name: str
    compressed_bytes: int | None
    is_cached: bool = False


def map_tar(
    path: str,
    cache: Cache | None,
    *,
    make_way: Callable[[], None] | None = None,
    diary: Diary | None = None,
) -> Tar:
    """Map the tar of a local shard; see `Cache.tar`, also for what is raised.

    With the cache's `copy_local` a plain one is copied into it, too. Raises UsageError for a
    compressed one where there is no cache.
    """
    if cache is not None and cache.copy_local:
        return _copied(path, cache, make_way, diary)
    data = map_file(path)
    if packing_of(bytes(data[:BLOCK_BYTES])) is None:
        return Tar(data, path, None)
    if cache is None:
        raise UsageError(
            f"{path}: a compressed shard is unpacked into the node's cache, and cache=None was "
            "given: give cache=shardloader.Cache(folder), or write the shards with compression=None"
        )
    size = len(data)
    del data
    unpacked = cache.tar(LocalFile(path), make_way=make_way, diary=diary)
    return Tar(unpacked, unpacked_name(path), size, is_cached=True)


def _copied(
    path: str, cache: Cache, make_way: Callable[[], None] | None, diary: Diary | None
) -> Tar:
    """The tar of a shard on a slow file system, which is read once, and never mapped, there."""
    origin = LocalFile(path, piece_bytes=COPIED_AT_ONCE)
    status = origin.status()
    tar = cache.tar(origin, make_way=make_way, diary=diary)
    is_packed = packing_of(origin.first(BLOCK_BYTES)) is not None
    if is_packed:
        return Tar(tar, unpacked_name(path), status.st_size, is_cached=True)
    return Tar(tar, path, None, is_cached=True)


def tar_for_a_look(data: memoryview, path: str, limits: Limits | None = None) -> Tar:
    """The tar of a mapped shard: a compressed one is unpacked into a file without a name.

    Nothing is kept, and no cache is touched. Raises ShardError for a compressed file that is
    damaged or expands beyond the limits, WorldError where there is no room for what it holds.
    """
    if packing_of(bytes(data[:BLOCK_BYTES])) is None:
        return Tar(data, path, None)
    starts = range(0, len(data), PIECE_BYTES)
    pieces = (data[start : start + PIECE_BYTES] for start in starts)
    return unpack_for_a_look(pieces, path, limits)._replace(compressed_bytes=len(data))


def unpack_for_a_look(
    pieces: Iterable[bytes | memoryview], path: str, limits: Limits | None = None
) -> Tar:
    """The tar in a stream, packed or not, as `tar_for_a_look` gives it."""
    stream = iter(pieces)
    first = next(stream, b"")
    is_packed = packing_of(bytes(first[:BLOCK_BYTES])) is not None
    with _file_without_a_name(f"{path}: it is unpacked") as file:
        for piece in tar_pieces(chain((first,), stream), shard=path, limits=limits):
            _write(file, piece)
        file.flush()
        unpacked = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return Tar(unpacked, unpacked_name(path) if is_packed else path, None)


def copy_for_a_look(file: RemoteFile, see: Callable[[bytes], object] = len) -> memoryview:
    """Map a remote file's bytes, fetched into a file without a name, which goes with the map.

    see: is given the bytes on their way, piece after piece. Raises WorldError where the store fails
    or there is no room for them.
    """
    size = file.status().size
    if not size:
        return memoryview(file.whole())
    with _file_without_a_name(f"{file.name}: it is fetched") as copy:
        for piece in file.pieces(size=size):
            see(piece)
            _write(copy, piece)
        copy.flush()
        return memoryview(mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ))


def _write(file: IO[bytes], piece: bytes | memoryview) -> None:
    for at in range(0, len(piece), WRITE_BYTES):
        file.write(piece[at : at + WRITE_BYTES])


@contextmanager
def _file_without_a_name(told: str) -> Iterator[IO[bytes]]:
    """Open a file that goes when it is closed; told: what becomes of what, for WorldError."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise WorldError(
            f"{told} into a temporary file, and no folder takes one: set TMPDIR to a folder with "
            "room that can be written"
        ) from error
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        raise WorldError(
            f"{told} into a file under {folder}, and that failed: {error.strerror or error}; set "
            "TMPDIR to a folder with room"
        ) from error


def index_of(tar: Tar) -> tuple[SampleIndex, tuple[Notice, ...]]:
    """Index a tar; give what was odd in it as well. Raises ShardError where it is damaged."""
    index, notices = SampleIndex.build(tar.data, shard=tar.name)
    return replace(index, compressed_bytes=tar.compressed_bytes), notices


def whole_of(tar: Tar) -> tuple[SampleIndex, tuple[Notice, ...]]:
    """Index a tar, of a damaged one what lies before the damage; give what was odd as well."""
    index, notices = SampleIndex.build_what_is_whole(tar.data, shard=tar.name)
    return replace(index, compressed_bytes=tar.compressed_bytes), notices


def block_before(path: str, stop: int, cache: Cache | None) -> bytes | None:
    """The block of a compressed shard's tar that ends at byte `stop`; None of a plain shard.

    Nothing is cached, nothing behind it is read, and nothing before it is kept.
    """
    first = map_file(path)[:BLOCK_BYTES]
    if packing_of(bytes(first)) is None:
        return None
    found, left = bytearray(), stop - BLOCK_BYTES  # and so many bytes to pass over
    limits = None if cache is None else cache.limits
    for piece in tar_pieces(LocalFile(path).pieces(), shard=path, limits=limits):
        found += piece[max(0, left) :]
        left -= len(piece)
        if len(found) >= BLOCK_BYTES:
            break
    return bytes(found[:BLOCK_BYTES])
