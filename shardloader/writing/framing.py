"""How do samples become frames, of which several are compressed at a time?

Samples wait until there are enough for a frame, which threads compress while the next ones come.
Frames come back in the order of the samples, and as late wherever it is, so nothing depends on how
many threads there are and who was quicker.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from shardloader.writing.frames import compress
from shardloader.writing.waiting import Waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shardloader.writing.contents import Outline
    from shardloader.writing.frames import Compression
    from shardloader.writing.tarring import TarredSample

_FRAMES_AHEAD = 4  # that are under way while samples wait for the next


class Packed(NamedTuple):
    """A frame, the keys of the samples in it, and what an index says of them."""

    frame: bytes
    keys: list[str]
    outline: Outline


class _Packing(NamedTuple):
    keys: list[str]
    outline: Outline
    frame: Future[bytes]


class Framing:
    """Samples that have no place in a shard yet.

    `keys` are theirs, and those of the samples that the open shard has; `take` appends a sample as
    `Waiting.take` does. The threads are there from the first frame to `end`.
    """

    def __init__(self, compression: Compression) -> None:
        self.keys: dict[str, None] = {}
        self._compression = compression
        self._waiting = Waiting(self.keys)
        self.take = self._waiting.take
        self._packing: deque[_Packing] = deque()
        self._threads: ThreadPoolExecutor | None = None

    @property
    def is_full(self) -> bool:
        """Whether the samples that wait make a full frame."""
        return self._compression.is_full(len(self._waiting), self._waiting.num_bytes)

    @property
    def is_ahead(self) -> bool:
        """Whether so many frames are under way that the first one is to be waited for."""
        return len(self._packing) > _FRAMES_AHEAD

    def add(self, sample: TarredSample) -> None:
        """Have a sample wait for its frame; its key is new."""
        self._waiting.add(sample)

    def expect(self, names: tuple[str, ...], max_samples: int) -> None:
        """Let `take` take samples with these entries, but for one that fills a frame or the shard.

        The first one of a shard it never takes: that may have the key of the one before it.
        """
        if self.keys:
            to_come = self._compression.frame_samples - len(self._waiting)
            self._waiting.expect(
                names,
                max_samples=min(max_samples, len(self.keys) + to_come) - 1,
                num_bytes=self._compression.full_bytes - self._waiting.num_bytes,
            )

    def pack(self) -> None:
        """Have the samples that wait compressed, if there are any."""
        waiting = self._waiting
        if not waiting:
            return
        keys = waiting.waiting_keys()
        tar, outline = waiting.tar()
        waiting.clear()
        self._threads = self._threads or ThreadPoolExecutor(
            min(_FRAMES_AHEAD, len(os.sched_getaffinity(0))), thread_name_prefix="shardloader"
        )
        frame = self._threads.submit(compress, tar, self._compression.level)
        self._packing.append(_Packing(keys, outline, frame))

    def next(self) -> Packed | None:
        """Give the first frame under way, once it is there; None where there is none."""
        if not self._packing:
            return None
        keys, outline, frame = self._packing[0]
        packed = Packed(frame.result(), keys, outline)
        self._packing.popleft()
        return packed

    def begin_shard(self, packed: Packed | None = None) -> None:
        """Forget the keys of the shard that was open; this frame is the first of the next."""
        waiting = self._waiting.waiting_keys()
        self.keys.clear()
        for keys in (packed.keys if packed else (), *[each.keys for each in self._packing]):
            self.keys.update(dict.fromkeys(keys))
        self.keys.update(dict.fromkeys(waiting))

    def end(self) -> None:
        """Drop what has no place yet, and end the threads."""
        self._waiting.clear()
        self._packing.clear()
        self.keys.clear()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
