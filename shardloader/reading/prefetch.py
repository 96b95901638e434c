"""How are shards fetched before a reader needs them, and those that it reads by ranges meanwhile?

By a few threads of the reader's own process (`fetching`): from a list of coming needs that the
reader hands over, which is looked through as far ahead as is worth it, and at once where a shard is
read by ranges until it is here. One prefetcher serves one reader, whatever it reads.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardloader.reading.fetching import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.reading.catalog import Catalog
    from shardloader.reading.counts import CountRow
    from shardloader.reading.diary import Page
    from shardloader.reading.fetching import Block, Outlook


class Prefetcher:
    """Fetches ahead for one reader of one process. All methods may be called by any thread.

    share_bytes: how much may be fetched ahead of it. A reader that knows its coming steps says
    `begin` and `stop`, and between a `stop` and a `begin` nothing is fetched, nor in a forked child
    before its `begin`. For one that never says `begin`, only what it reads by ranges is fetched;
    that stops when the prefetcher is let go. counts: where the reader counts; None for nowhere.
    """

    def __init__(
        self, catalog: Catalog, *, share_bytes: int, counts: CountRow | None = None
    ) -> None:
        self._catalog = catalog
        self._counts = counts
        self._share_bytes = share_bytes
        self._lock = threading.Lock()
        self._has_plan = False
        self._session: tuple[int, Session] | None = None
        self._let_go: weakref.finalize[..., Prefetcher] | None = None

    def begin(self, blocks: Iterator[Block], outlook: Outlook | None = None) -> None:
        """Fetch for steps to come, which `blocks` gives in order, when it is asked."""
        self.stop()
        self._has_plan = True
        self._started(blocks, outlook)

    def _started(self, blocks: Iterator[Block] | None, outlook: Outlook | None = None) -> Session:
        session = Session(
            self._catalog,
            blocks,
            share_bytes=self._share_bytes,
            outlook=outlook,
            counts=self._counts,
        )
        self._session = (os.getpid(), session)
        session.start()
        return session

    @property
    def _here(self) -> Session | None:
        found = self._session
        return found[1] if found is not None and found[0] == os.getpid() else None

    def ask(self, shard: int) -> None:
        """Fetch a shard whole before all others: the reader reads it by ranges until it is here."""
        with self._lock:
            session = self._here
            if session is None and not self._has_plan:
                session = self._started(None)
                self._let_go = weakref.finalize(self, session.stop)
                self._let_go.atexit = False  # its threads are daemons
        if session is not None:
            session.ask(shard)

    def has_come(self, shard: int) -> bool:
        """Whether a shard that is read by ranges has come, or will not; else it is asked for."""
        session = self._here
        return session is not None and session.has_come(shard)

    def move_to(self, start: int, stop: int) -> set[int] | None:
        """The reader opens the shards of the steps start .. stop-1 now: see `Session.move_to`."""
        session = self._here
        return None if session is None else session.move_to(start, stop)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the reader opens a shard, which may have to be fetched."""
        session = self._here
        if session is None:
            yield
            return
        session.wait_begins()
        try:
            yield
        finally:
            session.wait_ends()

    def let_come(self, shard: int, page: Page) -> None:
        """Wait while a shard that the reader needs now is on its way; its page says how far."""
        session = self._here
        if session is not None:
            session.let_come(shard, page)

    def give_way(self) -> None:
        """The reader needs room that fetches ahead have taken: wait until they have given up."""
        session = self._here
        if session is not None:
            session.give_way()

    def stop(self) -> None:
        """Nobody needs the rest: fetches end with the piece they are at."""
        session, self._session = self._here, None
        if self._let_go is not None:
            self._let_go.detach()
        if session is not None:
            session.stop()
