"""How do samples become frames, of which several are compressed at a time?

Samples wait until there are enough for a frame, which threads compress while the next ones come.
Frames come back in the order of the samples, so the bytes do not depend on who was quicker.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from shardloader.writing.frames import compress
from shardloader.writing.tarring import tar_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shardloader.writing.frames import Compression
    from shardloader.writing.tarring import TarredSample

_MOST_THREADS = 4  # one caller gives no more of them work


class Packed(NamedTuple):
    """A frame, and the samples in it."""

    frame: bytes
    samples: list[TarredSample]


class Framing:
    """Samples that have no place in a shard yet; `key in framing` tells whether one has this key.

    The threads are there from the first frame to `end`.
    """

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._waiting: dict[str, TarredSample] = {}
        self._waiting_bytes = 0
        self._packing: deque[tuple[dict[str, TarredSample], Future[bytes]]] = deque()
        self._num_packing = 0
        self._num_threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self._threads: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self._num_packing + len(self._waiting)

    def __contains__(self, key: str) -> bool:
        return key in self._waiting or any(key in samples for samples, _ in self._packing)

    @property
    def is_full(self) -> bool:
        """Whether the samples that wait make a full frame."""
        return self._compression.is_full(len(self._waiting), self._waiting_bytes)

    @property
    def is_ahead(self) -> bool:
        """Whether so many frames are under way that the first one should be waited for."""
        return len(self._packing) > self._num_threads

    def add(self, sample: TarredSample) -> None:
        """Have a sample wait for its frame; its key is new."""
        self._waiting[sample.key] = sample
        self._waiting_bytes += sample.size_bytes

    def pack(self) -> None:
        """Have the samples that wait compressed, if there are any."""
        samples = self._waiting
        if not samples:
            return
        tar = tar_of(list(samples.values()))
        self._threads = self._threads or ThreadPoolExecutor(
            self._num_threads, thread_name_prefix="shardloader"
        )
        packing = self._threads.submit(compress, tar, self._compression.level)
        self._packing.append((samples, packing))
        self._num_packing += len(samples)
        self._waiting, self._waiting_bytes = {}, 0

    def take(self) -> Packed | None:
        """Give the first frame under way, once it is there; None where there is none."""
        if not self._packing:
            return None
        samples, packing = self._packing.popleft()
        self._num_packing -= len(samples)
        return Packed(packing.result(), list(samples.values()))

    def end(self) -> None:
        """Drop what has no place yet, and end the threads."""
        self._waiting, self._waiting_bytes = {}, 0
        self._packing.clear()
        self._num_packing = 0
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
