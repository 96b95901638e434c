"""How are shards fetched before a reader needs them?

By a few threads of the reader's own process, from a list of coming needs that the reader hands over
and that is looked through as far ahead as is worth it. What to fetch next is decided in `needs`.

A fetch ahead never stands in the way of one that is needed now: while the reader itself waits for a
shard, those for later pause, unless somebody waits for what they fetch; and they give their room up
where the reader has none. A fetch that fails is forgotten: the reader meets the fault when its turn
comes. Threads end with the piece they are at once nobody reads any more, and keep no process alive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from shardloader.reading.cache import key_of_identity
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.filling import NotNowError, OthersFetchError
from shardloader.reading.needs import Coming, Need, Needs, Pace, next_to_fetch
from shardloader.reading.needs_files import NO_INDEX, NeedsFile, Told
from shardloader.reading.origin import LocalFile
from shardloader.reading.remote_shard import index_identity, map_remote
from shardloader.reading.tars import map_tar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardloader.reading.catalog import Catalog
    from shardloader.reading.diary import Page

logger = logging.getLogger("shardloader")

NUM_THREADS: Final = 2
MOST_SAMPLES: Final = 2_000_000  # that are looked through ahead of the reader
PACKED_SUFFIXES: Final = (".gz", ".tgz", ".zst")
_LOOK_AGAIN_S: Final = 0.5  # after so long it may be time for what was too early
_GIVES_WAY_S: Final = 5.0  # a request that takes longer is not waited for
_PAUSE_S: Final = 0.02
_SHARE_OF_THE_LAST: Final = 0.3  # in a mean of what was measured


class Block(NamedTuple):
    """What some of a reader's steps need: each shard once; and how many samples that was."""

    needs: Sequence[Need]
    last: int  # step
    num_samples: int


def goes_through_cache(catalog: Catalog, shard: int) -> bool:
    """Whether a shard is read from the node's cache, as far as its name tells."""
    if catalog.source.store is not None or catalog.cache.copy_local:
        return True
    return is_packed(catalog.manifest.names[shard])


def is_packed(name: str) -> bool:
    """Whether a shard is compressed, as far as its name tells."""
    return name.lower().endswith(PACKED_SUFFIXES)


class Prefetcher:
    """Fetches ahead for one reader of one process. All methods may be called by any thread.

    share_bytes: how much may be fetched ahead of it; diary: the reader's, which gets the counts. It
    does nothing between `stop` and `begin`, nor in a forked child before `begin`.
    """

    def __init__(self, catalog: Catalog, *, share_bytes: int, diary: Diary | None = None) -> None:
        self._catalog = catalog
        self._share_bytes = share_bytes
        self._diary = diary or Diary()
        self._session: tuple[int, _Session] | None = None

    def begin(self, blocks: Iterator[Block]) -> None:
        """Fetch for steps to come, which `blocks` gives in order, when it is asked."""
        self.stop()
        session = _Session(
            self._catalog, blocks, share_bytes=self._share_bytes, counts_to=self._diary
        )
        self._session = (os.getpid(), session)
        session.start()

    @property
    def _here(self) -> _Session | None:
        found = self._session
        return found[1] if found is not None and found[0] == os.getpid() else None

    def move_to(self, start: int, stop: int) -> None:
        """The reader opens the shards of the steps start .. stop-1 now."""
        session = self._here
        if session is not None:
            session.move_to(start, stop)

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
        if session is not None:
            session.stop()


class _Fetch:
    """One shard on its way: an `Errand` of the cache."""

    def __init__(self, session: _Session, coming: Coming) -> None:
        self.coming = coming
        self.paused_s = 0.0
        self.is_given_up = False
        self.is_awaited = False  # by the reader itself
        self.is_over = False
        self.page: Page | None = None
        self._session = session

    @property
    def depth(self) -> float:
        return self._session.depth_of(self.coming.shard)

    def go_on(self, is_wanted: Callable[[], bool]) -> None:
        began = time.monotonic()
        while True:
            if self.is_given_up or self._session.is_stopped:
                raise NotNowError
            is_needed_now = self.is_awaited or is_wanted()
            if is_needed_now or not self._session.has_to_pause(self.coming.shard):
                break
            time.sleep(_PAUSE_S)
        self.paused_s += time.monotonic() - began


class _Session:
    """Fetching ahead of one pass of a reader, until it is stopped."""

    def __init__(
        self, catalog: Catalog, blocks: Iterator[Block], *, share_bytes: int, counts_to: Diary
    ) -> None:
        self._catalog = catalog
        self._diary = Diary()  # its threads are none of the reader's, which says what it waits for
        self._counts_to = counts_to
        self._share_bytes = share_bytes
        self._folder = CacheFolder(Path(catalog.cache.folder))
        self._changed = threading.Condition()
        self._blocks: Iterator[Block] | None = blocks
        self._is_looking = False
        self._needs = Needs()
        self._samples_ahead: list[tuple[int, int]] = []  # last steps of blocks, and their samples
        self._begun_at: tuple[float, int] | None = None  # when the reader came to which step
        self._waits = 0
        self._waited_from = 0.0
        self._waited_s = 0.0
        self._pace = Pace()
        self._fetches: dict[int, _Fetch] = {}
        self._elsewhere: set[int] = set()  # others fetch these
        self._has_no_room = False  # until the reader goes on
        self._left_alone: set[int] = set()  # failed, or not cached after all
        self._keys: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._expansion = 1.0  # of compressed shards
        self._file: NeedsFile | None = None
        self.is_stopped = False

    def start(self) -> None:
        for number in range(NUM_THREADS):
            name = f"shardloader-ahead-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    # What the reader says.

    def move_to(self, start: int, stop: int) -> None:
        with self._changed:
            self._measure(start)
            if self._needs.move_to(start, stop):
                if self._file is None:
                    self._tell()
                self._elsewhere.clear()
                self._has_no_room = False
                self._changed.notify_all()
            self._samples_ahead = [each for each in self._samples_ahead if each[0] >= start]
            if self._file is not None:
                self._file.move_to(start, stop)

    def _measure(self, step: int) -> None:
        """Take the time since the last call as that of the steps between, but for waits."""
        now = time.monotonic()
        if self._begun_at is not None and step > self._begun_at[1]:
            since, before = self._begun_at
            a_step = max(0.0, now - since - self._waited_s) / (step - before)
            self._pace = self._pace._replace(a_step=_mean(self._pace.a_step, a_step))
        if self._begun_at is None or step > self._begun_at[1]:
            self._begun_at, self._waited_s = (now, step), 0.0

    def wait_begins(self) -> None:
        with self._changed:
            self._waits += 1
            if self._waits == 1:
                self._waited_from = time.monotonic()

    def wait_ends(self) -> None:
        with self._changed:
            self._waits -= 1
            if self._waits == 0:
                self._waited_s += time.monotonic() - self._waited_from
                self._changed.notify_all()

    def let_come(self, shard: int, page: Page) -> None:
        with self._changed, page.within(Stage.OPENING, shard):
            fetch = self._fetches.get(shard)
            if fetch is None:
                return
            fetch.is_awaited = True
            while not (fetch.is_over or self.is_stopped):
                if fetch.page is not None:
                    page.show(fetch.page.read())
                self._changed.wait(_PAUSE_S)

    def give_way(self) -> None:
        with self._changed:
            self._has_no_room = True
            given_up = list(self._fetches.values())
            for fetch in given_up:
                fetch.is_given_up = True
            self._changed.wait_for(
                lambda: all(fetch.is_over for fetch in given_up), timeout=_GIVES_WAY_S
            )

    def stop(self) -> None:
        with self._changed:
            self.is_stopped = True
            if self._file is not None:
                self._file.close()
                self._file = None
            self._changed.notify_all()

    # What fetches ask.

    def depth_of(self, shard: int) -> float:
        with self._changed:
            depths = (depth for depth, need in self._needs.coming() if need.shard == shard)
            return next(depths, float("inf"))

    def has_to_pause(self, shard: int) -> bool:
        """Whether the reader waits, and for what is needed sooner."""
        return self._waits > 0 and self.depth_of(shard) > 0

    # What the threads do.

    def _run(self) -> None:
        """Look ahead and fetch until the end."""
        while not self.is_stopped:
            with self._changed:
                blocks = self._blocks_to_look_at()
                fetch = None if blocks else self._next_fetch()
                if blocks is None and fetch is None and not self.is_stopped:
                    self._changed.wait(_LOOK_AGAIN_S if self._has_more() else None)
            if blocks is not None:
                self._look(blocks)
            elif fetch is not None:
                self._do(fetch)

    def _has_more(self) -> bool:
        return any(need.shard not in self._left_alone for _, need in self._needs.coming())

    def _blocks_to_look_at(self) -> Iterator[Block] | None:
        """The blocks, where this thread is to take the next one."""
        if self._blocks is None or self._is_looking:
            return None
        ahead = sum(self._size(need.shard) for depth, need in self._needs.coming() if depth > 0)
        if ahead > self._share_bytes and self._begun_at is None:
            return None  # let the first batch be made before looking further than needed
        if sum(samples for _, samples in self._samples_ahead) >= MOST_SAMPLES:
            return None
        self._is_looking = True
        return self._blocks

    def _look(self, blocks: Iterator[Block]) -> None:
        try:
            block = next(blocks, None)
        except Exception as error:  # noqa: BLE001 - the reader evaluates the same, and meets it
            logger.debug("looking ahead ended: %s", error)
            block = None
        needs = [] if block is None else [n for n in block.needs if self._is_cached(n.shard)]
        for need in needs:
            self._key(need.shard)
        with self._changed:
            self._is_looking = False
            if block is None:
                self._blocks = None
            else:
                self._needs.take(needs)
                self._samples_ahead.append((block.last, block.num_samples))
            self._tell()
            self._changed.notify_all()

    def _is_cached(self, shard: int) -> bool:
        return goes_through_cache(self._catalog, shard)

    def _tell(self) -> None:
        """Leave word in the cache's folder."""
        if self.is_stopped:
            return
        needs = self._needs
        told = [
            Told(self._key(need.shard), self._index_key(need.shard), need.first, need.last)
            for _, need in needs.coming()
        ]
        if self._file is None and told and self._folder.path.is_dir():
            self._file = NeedsFile(self._folder.path)
        if self._file is not None:
            self._file.tell(needs.start, needs.stop, told)

    def _next_fetch(self) -> _Fetch | None:
        if self.is_stopped or not self._share_bytes or self._has_no_room:
            return None
        chosen = next_to_fetch(
            self._coming(self._folder.keys()),
            bound_bytes=self._share_bytes,
            pace=self._pace,
            only_now=self._waits > 0,
        )
        if chosen is None:
            return None
        fetch = self._fetches[chosen.shard] = _Fetch(self, chosen)
        return fetch

    def _coming(self, there: set[bytes]) -> Iterator[Coming]:
        for depth, need in self._needs.coming():
            shard = need.shard
            yield Coming(
                shard=shard,
                num_bytes=self._size(shard),
                steps=max(1, need.first - self._needs.start) if depth else 0,
                is_there=shard in self._fetches
                or shard in self._elsewhere
                or self._key(shard) in there,
                is_possible=shard not in self._left_alone,
            )

    def _do(self, fetch: _Fetch) -> None:
        shard, began, size = fetch.coming.shard, time.monotonic(), 0
        fetch.page = self._diary.page
        fetch.page.begin(Stage.OPENING, shard)
        try:
            size = self._fetched(fetch)
        except OthersFetchError:
            with self._changed:
                self._elsewhere.add(shard)
        except NotNowError:
            with self._changed:
                self._has_no_room = True
        except Exception as error:  # noqa: BLE001 - the reader meets it, should it come so far
            logger.debug("%s: not fetched ahead: %s", self._catalog.shard_path(shard), error)
            with self._changed:
                self._left_alone.add(shard)
        with self._changed:
            del self._fetches[shard]
            fetch.is_over = True
            self._counts_to.count(**self._diary.taken()._asdict())
            if self._file is None:  # the folder was not there yet
                self._tell()
            if size:
                took = max(0.0, time.monotonic() - began - fetch.paused_s)
                a_byte = took / NUM_THREADS / size
                self._pace = self._pace._replace(a_byte=_mean(self._pace.a_byte, a_byte))
                self._sizes[shard] = size
                of_file = size / max(1, int(self._catalog.manifest.sizes[shard]))
                self._expansion = _mean(self._expansion, of_file)
            self._changed.notify_all()

    def _fetched(self, fetch: _Fetch) -> int:
        """Bring a shard, and its index where that is remote, into the cache; give the tar's size.

        It is not kept open.
        """
        catalog, shard = self._catalog, fetch.coming.shard
        cache, store = catalog.cache.ahead(fetch), catalog.source.store
        if store is not None:
            tar, _ = map_remote(store, catalog.manifest, shard, cache, diary=self._diary)
        else:
            tar = map_tar(catalog.shard_path(shard), cache, diary=self._diary)
        if not tar.is_cached:
            with self._changed:
                self._left_alone.add(shard)
        return len(tar.data)

    def _size(self, shard: int) -> int:
        """How large its tar is, as far as is known."""
        known = self._sizes.get(shard)
        return known or int(self._catalog.manifest.sizes[shard] * self._expansion)

    def _key(self, shard: int) -> bytes:
        found = self._keys.get(shard)
        if found is None:
            catalog, store = self._catalog, self._catalog.source.store
            if store is not None:
                identity = store.at(catalog.manifest.names[shard]).identity
            else:
                identity = LocalFile(catalog.shard_path(shard)).identity
            found = self._keys[shard] = key_of_identity(identity)
        return found

    def _index_key(self, shard: int) -> bytes:
        if self._catalog.source.store is None:
            return NO_INDEX
        return key_of_identity(index_identity(self._catalog.manifest.index_digests[shard]))


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _SHARE_OF_THE_LAST * (now - before)
