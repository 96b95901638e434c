"""What lies in a cache's folder, who uses it, and what may go?

Every fact is in the file system, so that whatever dies leaves nothing to repair:

| file | what it is | its lock (flock) |
|---|---|---|
| `HASH.cached` | a whole tar, never changed | shared, by every map of it: it is in use |
| `HASH.RANDOM.part` | a tar being written, as large as it may grow | exclusive, by its writer |
| `HASH.lock` | the right to write that tar; of the year 1970 if somebody waits for it | exclusive |
| `RANDOM.needs` | what a reader needs next (`needs_files`) | exclusive, by the reader |
| `space.lock` | the right to count, to remove, to grow and to rename | exclusive, for moments |
| `alone.lock` | the right to wait for room; its time: when a waiter last found some | exclusive |

HASH is 32 digits of the origin's identity and 32 of its version.
The kernel drops a lock with its owner. A part without a lock has lost its writer and is removed by
whoever counts next. The sum of the sizes is what the cache takes: nothing is counted elsewhere. A
file's modification time is when it was last opened.

`flock` reaches over a node's containers, and over NFS where the server has locks. Where it does
not reach, two nodes may write the same tar: each under a name of its own, and the last whole one
stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shardloader.errors import CacheError
from shardloader.reading import store
from shardloader.reading.store import WRITE_BYTES, is_still

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger("shardloader")

_OWN_NAME: Final = re.compile(r"[0-9a-f]{64}(\.cached|\.lock|\.[0-9a-f]{16}\.part)")
_KEY_DIGITS: Final = 32
_WANTED_NS: Final = 0
_LOCKS: Final = ("space.lock", "alone.lock")
_FORGOTTEN_S: Final = 86_400.0  # a part on a file system without locks, untouched for so long

_exclusive: set[int] = set()  # descriptors of locks that a forked child must not keep alive


def _let_go_in_child() -> None:
    for descriptor in _exclusive:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _exclusive.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class Entry(NamedTuple):
    """A file of the folder: its name, bytes and time of last use (ns)."""

    name: str
    size: int
    used_ns: int

    @property
    def is_part(self) -> bool:
        """Whether it is still being written."""
        return self.name.endswith(".part")

    @property
    def key(self) -> bytes:
        """The origin that it came from, whichever version."""
        return key_of(self.name)


def key_of(name: str) -> bytes:
    """The 16 bytes that a cached file's name has of its origin's identity."""
    return bytes.fromhex(name[:_KEY_DIGITS])


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that this process has."""

    _descriptor: int

    def is_wanted(self) -> bool:
        """Whether somebody who needs it now waits for it, or has."""
        return os.fstat(self._descriptor).st_mtime_ns == _WANTED_NS


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The folder of a cache; holds no file open."""

    path: Path

    def make(self) -> None:
        """Make the folder, readable for this user alone where it is new."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise failure(self.path, "the cache's folder can't be made", error) from error

    def has(self, name: str) -> bool:
        """Whether a whole tar is here."""
        return os.path.isfile(self.path / f"{name}.cached")  # noqa: PTH113 - never raises

    def size(self, name: str) -> int | None:
        """The bytes of a whole file; None if it is not here."""
        try:
            return (self.path / f"{name}.cached").stat().st_size
        except OSError:
            return None

    def open_cached(self, name: str) -> memoryview | None:
        """Map a whole tar, which is in use until the last view of it is gone; None if not there."""
        path = self.path / f"{name}.cached"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failure(path, "the cached tar can't be opened", error) from error
        try:
            try_lock(descriptor, fcntl.LOCK_SH, wait=True)
            status = os.fstat(descriptor)
            if status.st_nlink == 0 or status.st_size == 0:
                return None  # removed before the lock was there; or cut off by a crash
            _note_use(descriptor)
            return mapped(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[HeldLock]:
        """Hold one of the folder's locks; waits for whoever holds it. Its file goes with it."""
        with self._held(self.path / name, wait=True) as held:
            if held is None:
                raise AssertionError
            yield held

    @contextlib.contextmanager
    def lock_if_free(self, name: str) -> Iterator[HeldLock | None]:
        """Hold a lock as `lock` does; None, at once, where somebody else holds it."""
        with self._held(self.path / name, wait=False) as held:
            yield held

    @contextlib.contextmanager
    def _held(self, path: Path, *, wait: bool) -> Iterator[HeldLock | None]:
        descriptor = self._acquired(path, wait=wait)
        if descriptor is None:
            yield None
            return
        try:
            yield HeldLock(descriptor)
        finally:
            try:
                if path.name not in _LOCKS:
                    path.unlink(missing_ok=True)
            finally:
                release(descriptor)

    def _acquired(self, path: Path, *, wait: bool) -> int | None:
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise failure(path, "no lock can be made", error) from error
            _exclusive.add(descriptor)
            try:
                if try_lock(descriptor, fcntl.LOCK_EX) is False:
                    if not wait:
                        release(descriptor)
                        return None
                    if path.name not in _LOCKS:
                        logger.info("waiting for another process, which holds %s", path)
                        _say_wanted(descriptor)
                    try_lock(descriptor, fcntl.LOCK_EX, wait=True)
                if is_still(descriptor, path):
                    return descriptor
            except BaseException:
                release(descriptor)
                raise
            release(descriptor)  # its last owner has removed the file meanwhile

    def found_room(self) -> None:
        """Note, for those who wait as well, that a waiter has found room now."""
        with contextlib.suppress(OSError):
            os.utime(self.path / "alone.lock")

    def last_found_room(self) -> float:
        """When that was last, in seconds of the clock; 0 for never."""
        try:
            return (self.path / "alone.lock").stat().st_mtime
        except OSError:
            return 0.0

    def keys(self) -> set[bytes]:
        """The origins of the whole tars that are there, as `Entry.key` has them."""
        return {key_of(file.name) for file in self._own_files() if file.name.endswith(".cached")}

    def entries(self) -> list[Entry]:
        """Tars and parts, the least recently used first; parts without a writer are removed.

        Belongs under the lock of `space`.
        """
        found = []
        for entry in self._own_files():
            if entry.name.endswith(".lock"):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if entry.name.endswith(".part") and self._removed_if_forgotten(entry.name, status):
                continue
            found.append(Entry(entry.name, status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda entry: (entry.used_ns, entry.name))

    def _own_files(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as entries:
                yield from (entry for entry in entries if _OWN_NAME.fullmatch(entry.name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(self.path, "the cache's folder can't be read", error) from error

    def _removed_if_forgotten(self, name: str, status: os.stat_result) -> bool:
        may_be_alive = time.time() - status.st_mtime < _FORGOTTEN_S
        removed = self.remove(name, unless_lockless=may_be_alive)
        if removed:
            logger.info("%s: removed %s, whose writer is gone", self.path, name)
        return removed

    def remove(self, name: str, *, unless_lockless: bool = False) -> bool:
        """Remove a file if nobody uses it; say whether it is gone."""
        path = self.path / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # of another user's making
        _exclusive.add(descriptor)
        try:
            locked = try_lock(descriptor, fcntl.LOCK_EX)
            if locked is False or (locked is None and unless_lockless):
                return False
            path.unlink(missing_ok=True)
        except OSError:
            return False
        finally:
            release(descriptor)
        return True

    def remove_unused_locks(self) -> None:
        """Remove the locks of tars that nobody is writing."""
        for entry in list(self._own_files()):
            if entry.name.endswith(".lock"):
                self.remove(entry.name, unless_lockless=True)

    def is_used(self, name: str) -> bool:
        """Whether a process has the file open."""
        try:
            # To write, which is not done: NFS gives an exclusive lock for no other descriptor.
            descriptor = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        _exclusive.add(descriptor)
        try:
            return try_lock(descriptor, fcntl.LOCK_EX) is False
        finally:
            release(descriptor)


class Part:
    """A tar that is being written, under a name that no other process has."""

    def __init__(self, folder: CacheFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        while True:
            self.path = folder.path / f"{name}.{secrets.token_hex(8)}.part"
            try:
                self._descriptor = os.open(
                    self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
                )
            except OSError as error:
                raise failure(self.path, "the cache can't be written to", error) from error
            _exclusive.add(self._descriptor)
            try_lock(self._descriptor, fcntl.LOCK_EX, wait=True)
            if is_still(self._descriptor, self.path):
                break
            release(self._descriptor)  # removed, before it was locked, as one without a writer
        self.length = 0
        self.granted = 0

    def grow(self, num_bytes: int) -> None:
        """Take so many bytes more of the cache's room; belongs under the lock of `space`."""
        os.ftruncate(self._descriptor, self.granted + num_bytes)
        self.granted += num_bytes

    def write(self, piece: bytes | memoryview) -> int:
        """Write at the end, as `os.write` does; give how many bytes were taken."""
        written = os.pwrite(self._descriptor, memoryview(piece)[:WRITE_BYTES], self.length)
        self.length += written
        return written

    def settle(self) -> None:
        """Cut it to its length and see it on the disk; raises OSError if that does not take it."""
        os.ftruncate(self._descriptor, self.length)
        os.fsync(self._descriptor)
        _note_use(self._descriptor)

    def publish(self) -> memoryview | None:
        """Make it a whole tar, map it; None if another node took it for forgotten.

        Belongs under the lock of `space`: who counts meanwhile might see neither name.
        """
        try_lock(self._descriptor, fcntl.LOCK_SH, wait=True)
        try:
            self.path.rename(self._folder.path / f"{self._name}.cached")
        except FileNotFoundError:
            return None
        return mapped(self._descriptor)

    def close(self) -> None:
        """Remove what was not published; the lock of what was stays with its map."""
        self.path.unlink(missing_ok=True)
        # not unlocked: a map that was published shares the lock
        _exclusive.discard(self._descriptor)
        os.close(self._descriptor)


def try_lock(descriptor: int, kind: int, *, wait: bool = False) -> bool | None:
    """Take a lock; False if another has it, None where the file system has none."""
    try:
        return store.try_lock(descriptor, kind, wait=wait)
    except OSError as error:
        raise CacheError(f"a file of the cache can't be locked: {error.strerror}") from error


def exclusively_open(descriptor: int) -> None:
    """Note a descriptor whose lock a forked child must not keep alive; `release` lets go of it."""
    _exclusive.add(descriptor)


def release(descriptor: int) -> None:
    """Unlock and close; unlocked aloud, since a forked child may have the same open file."""
    _exclusive.discard(descriptor)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _say_wanted(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # of another user's making: then it only takes longer
        os.utime(descriptor, ns=(_WANTED_NS, _WANTED_NS))


def _note_use(descriptor: int) -> None:
    now = time.time_ns()
    with contextlib.suppress(OSError):  # of another user's making: it only seems older
        os.utime(descriptor, ns=(now, now))


def mapped(descriptor: int) -> memoryview:
    """Map a file. The map duplicates the descriptor, so that its lock lives as long as the map."""
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


def failure(path: Path, problem: str, error: OSError) -> CacheError:
    """Give the error for what the file system refused."""
    return CacheError(
        f"{path}: {problem}: {error.strerror or error}; compressed and remote shards "
        "need a cache: give another folder for it, as shardloader.Cache(folder) or --cache"
    )
