"""How is a cached file written, and where does its room come from?

By whoever holds its lock. Room is taken before bytes are written, for all of a file whose size is
known before it is fetched, and made by removing whole files: what is needed last goes first
(`needs`), then the least recently used, but none that a process has open. Who needs the file now
waits for room, one at a time, for a while; who fetches it ahead of its need neither waits nor takes
the room of what is needed sooner.
"""

from __future__ import annotations

import errno
import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from shardloader.errors import CacheError, DataError
from shardloader.format.unpacking import tar_pieces
from shardloader.reading.cache_folder import Part, failure
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.needs import removal_order
from shardloader.reading.needs_files import least_depths, told_needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardloader.reading.cache import Cache
    from shardloader.reading.cache_folder import CacheFolder, Entry, HeldLock
    from shardloader.reading.origin import Origin

logger = logging.getLogger("shardloader")

PATIENCE_S: Final = 30.0  # how long a writer waits for readers to let go
_POLL_S: Final = 0.05
_GROWTH_BYTES: Final = 64 << 20  # room is taken in such steps, or in sixteenths of a small cache
_NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


class NotNowError(Exception):
    """A file is not fetched ahead: there is no room, or nobody wants it any more."""


class OthersFetchError(NotNowError):
    """A file is not fetched ahead, since somebody else is fetching it."""


class Errand(Protocol):
    """A fetch ahead of its need."""

    @property
    def depth(self) -> float:
        """How many shards its reader opens before: see `needs`."""
        ...

    def go_on(self, is_wanted: Callable[[], bool]) -> None:
        """Return when the next piece may be fetched; is_wanted: whether somebody waits for it.

        Raises NotNowError to give up.
        """
        ...

    def took_room(self) -> None:
        """Note that the tar has its room, or the first of it where its size is not known yet."""
        ...


class _NoRoomError(Exception):
    """The cache's room is all in use."""


@dataclass(frozen=True, slots=True)
class Use:
    """Who asks for a file; see `Cache.tar`."""

    make_way: Callable[[], None] | None
    patience_s: float
    diary: Diary


@contextmanager
def locked(folder: CacheFolder, name: str, diary: Diary, stage: Stage) -> Iterator[HeldLock]:
    """Hold a lock of the folder; the diary says that it is waited for, until it is there."""
    lock = folder.lock(name)
    with diary.page.within(stage):
        held = lock.__enter__()
    try:
        yield held
    finally:
        lock.__exit__(None, None, None)


class Filling:
    """The writing of one tar, by whoever holds its lock."""

    def __init__(
        self,
        cache: Cache,
        folder: CacheFolder,
        origin: Origin,
        version: str,
        name: str,
        held: HeldLock,
        *,
        unpack: bool,
        errand: Errand | None,
    ) -> None:
        self._cache = cache
        self._held = held
        self._errand = errand
        self._folder = folder
        self._origin = origin
        self._version = version
        self._name = name
        self._unpack = unpack
        self._max_bytes = int(cache.max_bytes)
        self._patience_s = 0.0
        self._diary = Diary()
        self._is_last_try = False

    def run(self, use: Use) -> memoryview | None:
        """Write and publish; None if the origin changed meanwhile.

        Two writers that each hold half of the room would wait for one another: so nobody waits
        with a part in hand but the one who has the lock for it.
        """
        self._diary = use.diary
        with suppress(_NoRoomError):
            return self._write()
        if self._errand is not None:
            raise NotNowError
        if use.make_way is not None:
            use.make_way()
        began = time.time()
        logger.info("%s: the cache is full; waiting for room", self._cache.folder)
        with locked(self._folder, "alone.lock", use.diary, Stage.ROOM):
            # Those who wait behind somebody who waits in vain have waited as long as he has.
            since = max(began, self._folder.last_found_room())
            self._patience_s = since + use.patience_s - time.time()
            self._is_last_try = True
            try:
                found = self._write()
            except _NoRoomError:
                raise self._full() from None
            self._folder.found_room()
            return found

    def _write(self) -> memoryview | None:
        what = "its tar" if self._unpack else "it"
        logger.info("%s: writing %s to the cache %s", self._origin.name, what, self._cache.folder)
        part = Part(self._folder, self._name)
        try:
            if self._origin.tar_bytes:  # before a byte is fetched that would be thrown away
                self._take_room(part, self._origin.tar_bytes)
            with self._diary.page.within(Stage.UNPACKING) as page:
                for piece in self._pieces():
                    if self._errand is not None:
                        self._errand.go_on(self._held.is_wanted)
                    self._append(part, memoryview(piece))
                    page.at_byte(part.length)
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
        is_known = bool(self._origin.tar_bytes) or not self._unpack
        wanted = least if is_known else max(least, min(_GROWTH_BYTES, self._max_bytes // 16))
        began = time.monotonic()
        with self._diary.page.within(Stage.ROOM, total=least):
            while True:
                with self._folder.lock("space.lock"):
                    room = self._room(least, wanted)
                    if room >= least:
                        self._grow(part, min(room, wanted))
                        if self._errand is not None and self._unpack:
                            self._errand.took_room()
                        self._patience_s -= time.monotonic() - began
                        return
                if time.monotonic() - began >= self._patience_s:
                    raise _NoRoomError
                time.sleep(_POLL_S)

    def _grow(self, part: Part, num_bytes: int) -> None:
        try:
            part.grow(num_bytes)
        except OSError as error:
            raise failure(part.path, "the cache can't be written to", error) from error

    def _room(self, least: int, wanted: int) -> int:
        """Make room, where there is something to remove; give what there is.

        For more than the least nothing is removed that somebody needs.
        """
        entries = self._folder.entries()
        room = self._max_bytes - sum(entry.size for entry in entries)
        if room >= wanted:
            return room
        return room + self._removed(entries, least - room, wanted - room)

    def _removed(self, entries: list[Entry], least: int, wanted: int) -> int:
        """Remove whole files of so many bytes, or of fewer; give how many. Under `space.lock`."""
        depths = least_depths(told_needs(self._folder.path))
        below = -1.0 if self._errand is None else self._errand.depth
        freed = 0
        for entry in removal_order(entries, depths, below=below):
            if freed >= (least if entry.key in depths else wanted):
                break
            if self._folder.remove(entry.name):
                freed += entry.size
        return freed

    def _free_disk(self, wanted: int, error: OSError) -> None:
        """Remove files where the disk is full; raises if there is none that may go."""
        with self._folder.lock("space.lock"):
            freed = self._removed(self._folder.entries(), wanted, wanted)
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
