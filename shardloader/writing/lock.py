"""The lock of a destination: one writer at a time; a second is refused, and does not wait.

Knows one file. The lock is the kernel's (flock), so it ends with its process however that ends;
the file that carries it may stay behind a killed writer and means nothing by itself.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shardloader.errors import UsageError
from shardloader.reading.store import is_still, try_lock

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("shardloader")

LOCK_NAME = ".shardloader-writer.lock"
# A worker that was forked just before its writer was killed lets go as soon as it runs.
_TRIES = 10
_BETWEEN_TRIES_S = 0.03


class FolderLock:
    """The right to write to a place, by a file's lock; not acquired by being made.

    `shown` is what messages call the place.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        self._shown = shown
        self._handle: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object has the lock."""
        return self._handle is not None

    @property
    def handle(self) -> int | None:
        """The descriptor that holds the lock."""
        return self._handle

    def acquire(self) -> None:
        """Take the lock; raises UsageError if another writer has it, OSError if the disk fails."""
        tries = _TRIES
        while self._handle is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self._path, flags, 0o666)
            try:
                is_locked = try_lock(handle)
                if is_locked is None:
                    _log.warning("%s: the file system has no locks; going on without", self._path)
                # the file may have been removed by its last owner between the two calls
                if is_locked is not False and is_still(handle, self._path):
                    self._handle = handle
            finally:
                if self._handle is None:
                    os.close(handle)
            if is_locked is False:
                tries -= 1
                if not tries:
                    raise UsageError(
                        f"another writer is writing to {self._shown!r}: "
                        "wait for it, or give another folder"
                    )
                time.sleep(_BETWEEN_TRIES_S)

    def release(self) -> None:
        """Give the lock back and remove its file; does nothing if it is not held."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        try:
            self._path.unlink(missing_ok=True)
        finally:
            # said aloud, since a forked child may hold the same open file for longer
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
