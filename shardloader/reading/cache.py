"""How does a node get a shard's tar as one local file, once for all its processes?

A cache turns an origin's bytes into a whole tar that is mapped. Whoever asks first writes it, under
a lock that dies with its owner; the others wait, and then map the same file. It is published when
every checksum has held and the origin is still the same, so that half a file, an error page or a
mixture of two versions is never seen.

The size holds, whoever else uses the folder: room is taken before bytes are written, and made by
removing whole tars, the least recently used first, but none that a process has open. Where all of
it is in use, one writer at a time waits, for a while; then it is an error.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import CacheError, DataError, UsageError, WorldError
from shardloader.format.unpacking import MAX_EXPANSION, MAX_WINDOW_BYTES, Limits, tar_pieces
from shardloader.reading.cache_folder import CacheFolder, Part, failure
from shardloader.reading.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardloader.reading.origin import Origin

logger = logging.getLogger("shardloader")

DEFAULT: Final = "default"
DEFAULT_MAX_BYTES: Final = "50GB"
DEFAULT_RANGE_BYTES: Final = "64MB"
PATIENCE_S: Final = 30.0  # how long a writer waits for readers to let go
_POLL_S: Final = 0.05
_VERSIONS_TRIED: Final = 4
_GROWTH_BYTES: Final = 64 << 20  # room is taken in such steps, or in sixteenths of a small cache
_NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_LARGEST_WINDOW: Final = 1 << 31  # that zstd's library decodes


class _NoRoomError(Exception):
    """The cache's room is all in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What a cache holds: whole tars, those of them that are open somewhere, unfinished ones."""

    tars: int = 0
    tar_bytes: int = 0
    used: int = 0
    used_bytes: int = 0
    parts: int = 0
    part_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """Where this node keeps remote shards and the tars of compressed ones, and how many bytes.

    folder: made when first needed; several jobs may share it. max_bytes: the most that it holds,
    a number or a text such as "200GB". max_expansion: how many times its own size a compressed
    shard may stand for, beyond the first 256 MiB. max_window: the largest window of a zstd frame
    (`zstd --long=31` needs "2GiB"). range_bytes: how many bytes each process that reads may fetch
    by ranges of remote shards which are still on their way, so that the first batches need not wait
    for whole ones; those bytes come twice. 0: none.

    Raises UsageError for what makes no sense. It holds nothing open, and travels to workers.
    """

    folder: str | os.PathLike[str]
    max_bytes: int | str = field(default="200GB", kw_only=True)
    max_expansion: int = field(default=MAX_EXPANSION, kw_only=True)
    max_window: int | str = field(default=MAX_WINDOW_BYTES, kw_only=True)
    range_bytes: int | str = field(default=DEFAULT_RANGE_BYTES, kw_only=True)

    def __post_init__(self) -> None:
        given: Any = self.folder
        if not isinstance(given, str | os.PathLike) or not os.fspath(given):
            raise UsageError(f"Cache(folder) takes a folder, and was given {given!r}")
        try:
            folder = Path(os.fspath(given)).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(f"Cache({given!r}): there is no such home folder ({error})") from None
        object.__setattr__(self, "folder", str(folder))
        object.__setattr__(self, "max_bytes", parse_bytes(self.max_bytes))
        object.__setattr__(self, "max_window", parse_bytes(self.max_window))
        if self.range_bytes != 0 or isinstance(self.range_bytes, bool):
            object.__setattr__(self, "range_bytes", parse_bytes(self.range_bytes))
        if int(self.max_window) > _LARGEST_WINDOW:
            raise UsageError(f"max_window= is at most 2GiB, as zstd has it, not {self.max_window}")
        expansion: Any = self.max_expansion
        if isinstance(expansion, bool) or not isinstance(expansion, int) or expansion < 1:
            raise UsageError(f"max_expansion= is a whole number of at least 1, not {expansion!r}")

    @property
    def limits(self) -> Limits:
        """What a compressed shard may ask for."""
        return Limits(max_expansion=self.max_expansion, max_window_bytes=int(self.max_window))

    def tar(
        self,
        origin: Origin,
        *,
        make_way: Callable[[], None] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> memoryview:
        """Map the tar of a shard, which is fetched and unpacked if it is not there yet.

        The file stays in use, and is not removed, until the last view of the map is gone. make_way
        is called where all room is in use, to let go of maps that can be had again.

        Raises ShardError for a shard that is damaged or none, WorldError where the store fails or
        the origin keeps changing, CacheError where the cache's disk fails, or it is too small for
        what is in use at once.
        """
        return self._kept(origin, make_way, patience_s, unpack=True)

    def file(self, origin: Origin, *, make_way: Callable[[], None] | None = None) -> memoryview:
        """Map a file that is no tar, as `tar` does: its bytes are kept as they come."""
        return self._kept(origin, make_way, PATIENCE_S, unpack=False)

    def has(self, origin: Origin) -> bool:
        """Whether the file of an origin, as it is now, is here; it may be gone the next moment."""
        name = name_of(origin.identity, origin.version())
        return CacheFolder(Path(self.folder)).has(name)

    def _kept(
        self,
        origin: Origin,
        make_way: Callable[[], None] | None,
        patience_s: float,
        *,
        unpack: bool,
    ) -> memoryview:
        folder = CacheFolder(Path(self.folder))
        for _ in range(_VERSIONS_TRIED):
            version = origin.version()
            name = name_of(origin.identity, version)
            found = folder.open_cached(name)
            if found is not None:
                return found
            folder.make()
            with folder.lock(f"{name}.lock"):
                found = folder.open_cached(name)
                if found is None:
                    filling = _Filling(self, folder, origin, version, name, unpack=unpack)
                    found = filling.run(make_way, patience_s)
            if found is not None:
                return found
            logger.info("%s: it changed while it was read; reading it again", origin.name)
        raise WorldError(
            f"{origin.name}: the shard changed each of {_VERSIONS_TRIED} times while it was read: "
            "wait until it is whole, or read a copy"
        )

    def use(self) -> CacheUse:
        """What the folder holds now. Changes nothing but for parts whose writer is gone."""
        folder = CacheFolder(Path(self.folder))
        if not folder.path.is_dir():
            return CacheUse()
        with folder.lock("space.lock"):
            entries = folder.entries()
        parts = [entry for entry in entries if entry.is_part]
        tars = [entry for entry in entries if not entry.is_part]
        used = [entry for entry in tars if folder.is_used(entry.name)]
        return CacheUse(
            tars=len(tars),
            tar_bytes=sum(entry.size for entry in tars),
            used=len(used),
            used_bytes=sum(entry.size for entry in used),
            parts=len(parts),
            part_bytes=sum(entry.size for entry in parts),
        )

    def clear(self) -> tuple[int, int]:
        """Remove every tar that is not in use; give how many, and their bytes."""
        folder = CacheFolder(Path(self.folder))
        if not folder.path.is_dir():
            return 0, 0
        with folder.lock("space.lock"):
            removed = [
                entry.size
                for entry in folder.entries()
                if not entry.is_part and folder.remove(entry.name)
            ]
            folder.remove_unused_locks()
        return len(removed), sum(removed)


def cache_for(given: Cache | str | None) -> Cache | None:
    """What `cache=` means: a cache, "default" for this user's, None for none.

    Raises UsageError for anything else.
    """
    if given is None or isinstance(given, Cache):
        return given
    if given == DEFAULT:
        return default_cache()
    raise UsageError(
        "cache= is a Cache(folder, max_bytes=), 'default' (~/.cache/shardloader), or None: nothing "
        f"is kept, and remote shards are read by ranges alone; it was {given!r}"
    )


def default_cache() -> Cache:
    """The cache of those who gave none: this user's, in the home folder.

    A user without one, as in some containers, has it among the temporary files.
    """
    try:
        return Cache("~/.cache/shardloader", max_bytes=DEFAULT_MAX_BYTES)
    except UsageError:
        folder = Path(tempfile.gettempdir(), f"shardloader-{os.getuid()}")
        return Cache(folder, max_bytes=DEFAULT_MAX_BYTES)


def name_of(identity: str, version: str) -> str:
    """How a cached file is called: by a hash of the whole identity and version."""
    text = f"{len(identity)} {identity} {version}"
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class _Filling:
    """The writing of one tar, by whoever holds its lock."""

    def __init__(
        self,
        cache: Cache,
        folder: CacheFolder,
        origin: Origin,
        version: str,
        name: str,
        *,
        unpack: bool,
    ) -> None:
        self._cache = cache
        self._folder = folder
        self._origin = origin
        self._version = version
        self._name = name
        self._unpack = unpack
        self._max_bytes = int(cache.max_bytes)
        self._patience_s = 0.0
        self._is_last_try = False

    def run(self, make_way: Callable[[], None] | None, patience_s: float) -> memoryview | None:
        """Write and publish; None if the origin changed meanwhile.

        Two writers that each hold half of the room would wait for one another: so nobody waits
        with a part in hand but the one who has the lock for it.
        """
        with suppress(_NoRoomError):
            return self._write()
        if make_way is not None:
            make_way()
        logger.info("%s: the cache is full; waiting for room", self._cache.folder)
        with self._folder.lock("alone.lock"):
            self._patience_s, self._is_last_try = patience_s, True
            try:
                return self._write()
            except _NoRoomError:
                raise self._full() from None

    def _write(self) -> memoryview | None:
        what = "its tar" if self._unpack else "it"
        logger.info("%s: writing %s to the cache %s", self._origin.name, what, self._cache.folder)
        part = Part(self._folder, self._name)
        try:
            for piece in self._pieces():
                self._append(part, memoryview(piece))
            if self._origin.version() != self._version:
                return None
            return self._published(part)
        except DataError:
            if self._origin.version() != self._version:
                return None  # a mixture of two versions is no damage
            raise
        finally:
            part.close()

    def _pieces(self) -> Iterator[bytes | memoryview]:
        pieces = self._origin.pieces()
        if not self._unpack:
            return pieces
        return tar_pieces(pieces, shard=self._origin.name, limits=self._cache.limits)

    def _published(self, part: Part) -> memoryview | None:
        try:
            part.settle()
            with self._folder.lock("space.lock"):
                return part.publish()
        except OSError as error:
            raise failure(part.path, "the cache can't be written to", error) from error

    def _append(self, part: Part, piece: memoryview) -> None:
        if part.length + len(piece) > part.granted:
            self._take_room(part, part.length + len(piece) - part.granted)
        try:
            while piece:
                try:
                    piece = piece[part.write(piece) :]
                except OSError as error:
                    if error.errno not in _NO_SPACE:
                        raise
                    self._free_disk(len(piece), error)
        except OSError as error:
            hint = "; nothing that is not in use is left to remove" * (error.errno in _NO_SPACE)
            raise CacheError(
                f"{self._origin.name}: its tar can't be written to the cache {self._cache.folder}: "
                f"{error.strerror or error}{hint}: make room there, or give another folder, as "
                "shardloader.Cache(folder) or --cache"
            ) from error

    def _take_room(self, part: Part, least: int) -> None:
        """Let the part grow by at least so many bytes, and more if there is room."""
        if part.granted + least > self._max_bytes:
            raise CacheError(
                f"{self._origin.name}: its tar has {part.length + least} bytes or more, and the "
                f"cache {self._cache.folder} holds at most {self._max_bytes}: raise max_bytes="
            )
        wanted = max(least, min(_GROWTH_BYTES, self._max_bytes // 16))
        deadline = time.monotonic() + self._patience_s
        while True:
            with self._folder.lock("space.lock"):
                room = self._room(wanted)
                if room >= least:
                    self._grow(part, min(room, wanted))
                    return
            if time.monotonic() >= deadline:
                raise _NoRoomError
            time.sleep(_POLL_S)

    def _grow(self, part: Part, num_bytes: int) -> None:
        try:
            part.grow(num_bytes)
        except OSError as error:
            raise failure(part.path, "the cache can't be written to", error) from error

    def _room(self, wanted: int) -> int:
        """Make so much room by removing what was used least recently; give what there is."""
        entries = self._folder.entries()
        room = self._max_bytes - sum(entry.size for entry in entries)
        for entry in entries:
            if room >= wanted:
                break
            if not entry.is_part and self._folder.remove(entry.name):
                room += entry.size
        return room

    def _free_disk(self, wanted: int, error: OSError) -> None:
        """Remove what was used least recently, where the disk is full; raises if there is none."""
        freed = 0
        with self._folder.lock("space.lock"):
            for entry in self._folder.entries():
                if freed >= wanted:
                    break
                if not entry.is_part and self._folder.remove(entry.name):
                    freed += entry.size
        if not freed:
            raise error if self._is_last_try else _NoRoomError

    def _full(self) -> CacheError:
        use = self._cache.use()
        return CacheError(
            f"{self._origin.name}: the cache {self._cache.folder} holds at most {self._max_bytes} "
            f"bytes, and all of them are in use at once: {use.used_bytes} by {use.used} tars that "
            f"are being read, {use.part_bytes} by {use.parts} that are being written. Raise "
            "max_bytes=, or read from fewer shards at once (fewer workers, a smaller window or "
            "batch)"
        )
