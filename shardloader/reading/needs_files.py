"""How do the readers that share a cache's folder tell each other what they need next?

Each leaves one small file, `RANDOM.needs`: the steps that it is at, and its coming needs, 48 bytes
each. It holds a lock on it as long as it lives. A file without its owner is removed by whoever
looks; one of a reader that stands still is right for as long as it does. So a killed run leaves
nothing that counts, and no clocks are compared. What is read while it is written may be mixed:
these are hints, and the worst that a wrong one does is a shard fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shardloader.reading.cache_folder import exclusively_open, release, try_lock
from shardloader.reading.needs import HELD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_NAME: Final = re.compile(r"[0-9a-f]{16}\.needs")
_HEAD: Final = np.dtype([("mark", "V8"), ("start", "<i8"), ("stop", "<i8")])
_NEED: Final = np.dtype([("of_tar", "V16"), ("of_index", "V16"), ("first", "<i8"), ("last", "<i8")])
_MARK: Final = b"needs 1\n"
_MOST: Final = 4096  # needs of a reader that are told: 192 KiB
_FORGOTTEN_S: Final = 3600.0  # a file that can't be locked, and was not written for so long


class Told(NamedTuple):
    """A need, as others can understand it: keys of the origins of a tar and of its index.

    of_index: NO_INDEX where that is not cached; first, last: the steps between which the reader
    opens them; first is FETCHED_AHEAD of what was, and is not opened yet.
    """

    of_tar: bytes
    of_index: bytes
    first: int
    last: int


NO_INDEX: Final = bytes(16)
FETCHED_AHEAD: Final = -1


class NeedsFile:
    """One reader's needs, told to all who use the folder; `close` takes them back.

    Where the folder can't take it, nothing is told.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{secrets.token_hex(8)}.needs"
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            descriptor = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            exclusively_open(descriptor)
            self._descriptor = descriptor
            try_lock(descriptor, fcntl.LOCK_EX)

    def tell(self, start: int, stop: int, needs: Sequence[Told]) -> None:
        """Say anew what is needed, in the order of first steps."""
        if self._descriptor is None:
            return
        head = np.array([(_MARK, start, stop)], dtype=_HEAD)
        data = head.tobytes() + np.array(list(needs[:_MOST]), dtype=_NEED).tobytes()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def move_to(self, start: int, stop: int) -> None:
        """Say the steps that the reader is at."""
        if self._descriptor is not None:
            steps = np.array([start, stop], dtype="<i8").tobytes()
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, steps, len(_MARK))

    def close(self) -> None:
        """Take it back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._path.unlink(missing_ok=True)
            release(descriptor)


def told_needs(folder: Path) -> list[dict[bytes, float]]:
    """What each reader of the folder needs: keys of origins, and their depths."""
    found = []
    for path in _files(folder):
        data = _of_the_living(path)
        if data is not None:
            found.append(_depths(data))
    return found


def least_depths(told: Sequence[dict[bytes, float]]) -> dict[bytes, float]:
    """The depth of each key for whoever needs it first."""
    least: dict[bytes, float] = {}
    for depths in told:
        for key, depth in depths.items():
            if depth < least.get(key, depth + 1):
                least[key] = depth
    return least


def _files(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]


def _of_the_living(path: Path) -> bytes | None:
    """The content; None of a file whose owner is gone, which is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    exclusively_open(descriptor)
    try:
        locked = try_lock(descriptor, fcntl.LOCK_EX)
        is_old = time.time() - os.fstat(descriptor).st_mtime > _FORGOTTEN_S
        if locked or (locked is None and is_old):
            path.unlink(missing_ok=True)
            return None
        return os.pread(descriptor, _HEAD.itemsize + _MOST * _NEED.itemsize, 0)
    except OSError:
        return None
    finally:
        release(descriptor)


def _depths(data: bytes) -> dict[bytes, float]:
    if len(data) < _HEAD.itemsize or not data.startswith(_MARK):
        return {}
    head = np.frombuffer(data, dtype=_HEAD, count=1)
    count = (len(data) - _HEAD.itemsize) // _NEED.itemsize
    needs = np.frombuffer(data, dtype=_NEED, count=count, offset=_HEAD.itemsize)
    needs = needs[needs["last"] >= head["start"]]
    is_held: NDArray[np.bool_] = needs["first"] == FETCHED_AHEAD
    is_later = is_held | (needs["first"] >= head["stop"])
    depth = np.where(is_later, np.cumsum(is_later), 0.0)
    depth[is_held] = HELD
    found: dict[bytes, float] = {}
    keys = zip(needs["of_tar"].tolist(), needs["of_index"].tolist(), depth.tolist(), strict=True)
    for tar, index, value in keys:
        found.setdefault(bytes(tar), value)  # the first of its needs
        if index != NO_INDEX:
            found.setdefault(bytes(index), value)
    return found
