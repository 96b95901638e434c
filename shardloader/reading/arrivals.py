"""Which whole shards have come into the node's cache meanwhile, behind somebody who reads?

One thread fetches what it was asked for, in that order. What it fetches comes through the node's
cache, so that two readers that want a shard wait for one download. What went wrong is not told
here: whoever then asks for the shard meets it, and can say it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shardloader.errors import ShardLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardloader.reading.origin import Origin

logger = logging.getLogger("shardloader")

_ENDING_S: Final = 2.0  # that a process waits at its end for a piece in flight


class _StoppedError(Exception):
    """Nobody waits for the shard any more."""


@dataclass(frozen=True, slots=True)
class _Stoppable:
    """An origin whose bytes end when nobody waits for them any more."""

    origin: Origin
    stop: threading.Event

    @property
    def name(self) -> str:
        return self.origin.name

    @property
    def identity(self) -> str:
        return self.origin.identity

    def version(self) -> str:
        return self.origin.version()

    def pieces(self) -> Iterator[bytes]:
        for piece in self.origin.pieces():
            if self.stop.is_set():
                raise _StoppedError
            yield piece


class Arrivals:
    """Fetches shards in a thread, by their numbers.

    fetch: brings what `origin_of` gives of a number into the cache. Threads may share it. At the
    process's end, and when it is let go, fetching stops; so neither function may refer to it.
    """

    def __init__(
        self, origin_of: Callable[[int], Origin], fetch: Callable[[Origin], object]
    ) -> None:
        self._work = _Work(origin_of, fetch)
        self._finalizer = weakref.finalize(self, self._work.end)

    def ask(self, shard: int) -> None:
        """Fetch a shard when those asked for before are done; once, however often it is asked."""
        self._work.ask(shard)

    def is_done(self, shard: int) -> bool:
        """Whether a shard has come, or will not come this way."""
        return shard in self._work.done

    def wait(self, shard: int, timeout_s: float) -> bool:
        """Wait until `is_done`; False where that took too long."""
        with self._work.changed:
            return self._work.changed.wait_for(lambda: shard in self._work.done, timeout_s)

    def close(self) -> None:
        """Stop, within a piece."""
        self._finalizer()


class _Work:
    """What the thread shares with who asks; it holds no `Arrivals`, which so can be let go."""

    def __init__(
        self, origin_of: Callable[[int], Origin], fetch: Callable[[Origin], object]
    ) -> None:
        self.done: set[int] = set()
        self.changed = threading.Condition()
        self._origin_of = origin_of
        self._fetch = fetch
        self._asked: set[int] = set()
        self._queue: deque[int] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, shard: int) -> None:
        with self.changed:
            if shard in self._asked or self._stop.is_set():
                return
            self._asked.add(shard)
            self._queue.append(shard)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="shardloader-arrivals", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self.changed:
                if not self._queue or self._stop.is_set():
                    self._thread = None
                    return
                shard = self._queue.popleft()
            self._bring(shard)
            with self.changed:
                self.done.add(shard)
                self.changed.notify_all()

    def _bring(self, shard: int) -> None:
        origin = self._origin_of(shard)
        try:
            self._fetch(_Stoppable(origin, self._stop))
        except _StoppedError:
            pass
        except (ShardLoaderError, OSError, MemoryError) as error:
            logger.info("%s: it did not come behind the reader: %s", origin.name, error)

    def end(self) -> None:
        """Stop; waits a little for the piece in flight, so that its file is removed."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ENDING_S)
