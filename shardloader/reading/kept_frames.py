"""Which unpacked frames of compressed shards are at hand, so that they are not fetched again?

Those that were used last, as many as a limit of bytes holds: the samples of a frame are often asked
for one after another, or in batches that follow one another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple


class FrameName(NamedTuple):
    """A frame of a version of a shard, by their numbers."""

    shard: int
    version: str
    frame: int


class KeptFrames:
    """Unpacked frames, of at most `most_bytes` together; threads may share it.

    >>> kept = KeptFrames(most_bytes=8)
    >>> for frame in range(3):
    ...     kept.keep(FrameName(0, "etag", frame), b"four")
    >>> [kept.get(FrameName(0, "etag", frame)) for frame in range(3)]
    [None, b'four', b'four']
    """

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._frames: OrderedDict[FrameName, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """How many bytes are kept."""
        return self._num_bytes

    def get(self, name: FrameName) -> bytes | None:
        """A frame, if it is kept."""
        with self._lock:
            found = self._frames.get(name)
            if found is not None:
                self._frames.move_to_end(name)
            return found

    def keep(self, name: FrameName, data: bytes) -> None:
        """Keep a frame in place of those that were used least recently; none beyond the limit."""
        if len(data) > self._most_bytes:
            return
        with self._lock:
            if name not in self._frames:
                self._frames[name] = data
                self._num_bytes += len(data)
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= len(self._frames.popitem(last=False)[1])

    def let_go(self, shard: int) -> None:
        """Keep no frame of a shard any longer."""
        with self._lock:
            for name in [each for each in self._frames if each.shard == shard]:
                self._num_bytes -= len(self._frames.pop(name))

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._frames.clear()
            self._num_bytes = 0
