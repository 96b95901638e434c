"""What is fetched next for a reader, and by which thread?

A session is one pass of a reader. Its threads look through the coming needs, as far ahead as is
worth it, and fetch: first the shards that the reader reads by ranges meanwhile (`arrivals`), then
what comes next, as `needs` decides.

A fetch ahead never stands in the way of one that is needed now: while the reader itself waits for a
shard, those for later pause, unless somebody waits for what they fetch; and they give their room up
where the reader has none. A fetch that fails is forgotten: the reader meets the fault when its turn
comes. Threads end with the piece they are at once nobody reads any more, and keep no process alive.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from shardloader.errors import ShardLoaderError
from shardloader.reading.arrivals import Arrivals
from shardloader.reading.cache import key_of_identity
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.cached_sizes import goes_through_cache, index_bytes
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.filling import NotNowError, OthersFetchError
from shardloader.reading.needs import (
    ALL_ROOM,
    Coming,
    Need,
    Needs,
    Pace,
    Room,
    next_to_fetch,
)
from shardloader.reading.needs_files import FETCHED_AHEAD, NO_INDEX, NeedsFile, Told
from shardloader.reading.origin import LocalFile
from shardloader.reading.remote_shard import index_identity, map_remote
from shardloader.reading.tars import map_tar

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from shardloader.reading.catalog import Catalog
    from shardloader.reading.counts import CountRow
    from shardloader.reading.diary import Page

logger = logging.getLogger("shardloader")

NUM_AT_ONCE: Final = 2  # that have bytes to ask for
NUM_THREADS: Final = NUM_AT_ONCE + 1  # so that a next one begins while the last bytes of one come
MOST_SAMPLES: Final = 2_000_000  # that are looked through ahead of the reader
_LOOK_AGAIN_S: Final = 0.5  # after so long it may be time for what was too early
_GIVES_WAY_S: Final = 5.0  # a request that takes longer is not waited for
_PAUSE_S: Final = 0.02
_SHARE_OF_THE_LAST: Final = 0.3  # in a mean of what was measured


class Block(NamedTuple):
    """What some of a reader's steps need: each shard once; and how many samples that was."""

    needs: Sequence[Need]
    last: int  # step
    num_samples: int


class Outlook(NamedTuple):
    """What a reader knows of its pass: see `Needs` and `Room`."""

    reach: int = 0
    linger: int = 0
    stay: Container[int] = ()
    room: Room = ALL_ROOM


class Fetch:
    """One shard on its way: an `Errand` of the cache."""

    def __init__(self, session: Session, coming: Coming) -> None:
        self.coming = coming
        self.paused_s = 0.0
        self.is_given_up = False
        self.is_awaited = False  # by the reader itself
        self.has_room = False
        self.is_ending = False  # nothing is left to ask for
        self.is_over = False
        self.page: Page | None = None
        self._is_wanted = False  # by another process, when that was last looked at
        self._session = session

    def is_needed_now(self) -> bool:
        """Whether somebody waits for it."""
        return self.is_awaited or self._is_wanted

    @property
    def depth(self) -> float:
        """How many shards the reader opens before."""
        return self._session.depth_of(self.coming.shard)

    def go_on(self, is_wanted: Callable[[], bool]) -> None:
        """Wait while it has to pause; see `Errand`."""
        began = time.monotonic()
        while True:
            if self.is_given_up or self._session.is_stopped:
                raise NotNowError
            self._is_wanted = is_wanted()
            if self.is_needed_now() or not self._session.has_to_pause(self.coming.shard):
                break
            time.sleep(_PAUSE_S)
        self.paused_s += time.monotonic() - began

    def took_room(self) -> None:
        """Let the next one begin; see `Errand`."""
        self._session.took_room(self)


class Session:
    """Fetching for one pass of a reader, until it is stopped; catalog: one with a cache.

    blocks: what the pass needs; None of a reader that can't tell. outlook: what it knows of it.
    counts: where the reader counts.
    """

    def __init__(
        self,
        catalog: Catalog,
        blocks: Iterator[Block] | None,
        *,
        share_bytes: int,
        outlook: Outlook | None = None,
        counts: CountRow | None = None,
    ) -> None:
        outlook = outlook or Outlook()
        if catalog.cache is None:
            raise AssertionError
        self._catalog = catalog
        self._cache = catalog.cache
        # Its threads are none of the reader's, which says itself what it waits for.
        self._diary = Diary(counts=counts)
        self._share_bytes = share_bytes
        self._folder = CacheFolder(Path(catalog.cache.folder))
        self._changed = threading.Condition()
        self._blocks = blocks
        self._is_looking = False
        self._needs = Needs(reach=outlook.reach, linger=outlook.linger, stay=outlook.stay)
        self._reach = outlook.reach
        self._goes_to = 0  # the step to which the reader goes on
        self._room = outlook.room
        self._held: set[int] = set()  # fetched ahead, or on the way, and not begun yet
        self._samples_ahead: list[tuple[int, int]] = []  # last steps of blocks, and their samples
        self._begun_at: tuple[float, int] | None = None  # when the reader came to which step
        self._waits = 0
        self._waited_from = 0.0
        self._waited_s = 0.0
        self._pace = Pace()
        self._fetches: dict[int, Fetch] = {}
        self._arrivals = Arrivals()
        self._has_no_room = False  # until the reader goes on
        self._keys: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._expansion = 1.0  # of compressed shards
        self._file: NeedsFile | None = None
        self.is_stopped = False

    def start(self) -> None:
        """Begin."""
        for number in range(NUM_THREADS):
            name = f"shardloader-ahead-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    # What the reader says.

    def move_to(self, start: int, stop: int) -> set[int] | None:
        """The reader opens the shards of the steps start .. stop-1 now; None if nothing changes.

        Else gives those that are to be kept, or are needed later, as far as is known.
        """
        self._look_as_far_as(start)
        with self._changed:
            self._measure(start)
            coming = None
            if self._needs.move_to(start, stop):
                coming = {need.shard: depth for depth, need in self._needs.coming()}
                later = {shard for shard, depth in coming.items() if depth}
                has_begun_held = not self._held <= later
                self._held &= later
                if self._file is None or has_begun_held:
                    self._tell()
                self._arrivals.forget_elsewhere()
                self._arrivals.keep_only(coming)
                self._has_no_room = False
                self._changed.notify_all()
            self._samples_ahead = [each for each in self._samples_ahead if each[0] >= start]
            if self._file is not None:
                self._file.move_to(start, stop)
            return None if coming is None else set(coming)

    def _look_as_far_as(self, start: int) -> None:
        """See to it that it is known which needs are over, once there may be such.

        Whoever reads looks himself where both threads are fetching: a store may keep them long.
        """
        while True:
            with self._changed:
                self._goes_to = start
                blocks = self._blocks
                is_known = not self._reach or self._needs.taken > start + self._reach
                if blocks is None or is_known or self._begun_at is None or self.is_stopped:
                    return
                if self._is_looking:
                    self._changed.wait()
                    continue
                self._is_looking = True
            self._look(blocks)

    def _measure(self, step: int) -> None:
        """Take the time since the last call as that of the steps between, but for waits."""
        now = time.monotonic()
        if self._begun_at is not None and step > self._begun_at[1]:
            since, before = self._begun_at
            a_step = max(0.0, now - since - self._waited_s) / (step - before)
            self._pace = self._pace._replace(a_step=_mean(self._pace.a_step, a_step))
        if self._begun_at is None or step > self._begun_at[1]:
            self._begun_at, self._waited_s = (now, step), 0.0

    def ask(self, shard: int) -> None:
        """The reader begins to read a shard by ranges, whatever became of it before."""
        with self._changed:
            self._arrivals.ask(shard)
            self._has_no_room = False
            self._changed.notify_all()

    def has_come(self, shard: int) -> bool:
        """Whether a shard that the reader reads by ranges is to be read whole from now on."""
        arrivals = self._arrivals
        if arrivals.is_done(shard):
            if arrivals.is_awaited(shard):
                with self._changed:
                    arrivals.taken(shard)
            return True
        if not arrivals.is_awaited(shard):  # of an earlier pass, say
            self.ask(shard)
        return False

    def wait_begins(self) -> None:
        """The reader begins to wait for a shard."""
        with self._changed:
            self._waits += 1
            if self._waits == 1:
                self._waited_from = time.monotonic()

    def wait_ends(self) -> None:
        """It waits no more."""
        with self._changed:
            self._waits -= 1
            if self._waits == 0:
                self._waited_s += time.monotonic() - self._waited_from
                self._changed.notify_all()

    def let_come(self, shard: int, page: Page) -> None:
        """Wait for a shard that is on its way, and say on the page how far it is."""
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
        """Give up what is under way, and wait until that is done."""
        with self._changed:
            self._has_no_room = True
            given_up = list(self._fetches.values())
            for fetch in given_up:
                fetch.is_given_up = True
            self._changed.wait_for(
                lambda: all(fetch.is_over for fetch in given_up), timeout=_GIVES_WAY_S
            )

    def stop(self) -> None:
        """End, each fetch with the piece that it is at."""
        with self._changed:
            self.is_stopped = True
            if self._file is not None:
                self._file.close()
                self._file = None
            self._changed.notify_all()

    # What fetches ask.

    def depth_of(self, shard: int) -> float:
        """How many shards the reader opens before this one."""
        with self._changed:
            if self._arrivals.is_awaited(shard):
                return 0
            depths = (depth for depth, need in self._needs.coming() if need.shard == shard)
            return next(depths, float("inf"))

    def took_room(self, fetch: Fetch) -> None:
        """Room is taken in the order of need: who comes after may take what is left."""
        with self._changed:
            fetch.has_room = True
            self._changed.notify_all()

    def has_to_pause(self, shard: int) -> bool:
        """Whether the reader waits, and for what is needed sooner."""
        return self._waits > 0 and self.depth_of(shard) > 0

    def has_asked_all(self, fetch: Fetch) -> None:
        """Another may begin: its first answers take a while, in which the link would be idle."""
        with self._changed:
            fetch.is_ending = True
            self._changed.notify_all()

    # What the threads do.

    def _run(self) -> None:
        """Look ahead and fetch until the end; the reader meets what is wrong with the cache."""
        try:
            self._look_and_fetch()
        except ShardLoaderError as error:
            logger.debug("nothing more is fetched ahead: %s", error)
        finally:
            self.stop()

    def _look_and_fetch(self) -> None:
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
        return self._arrivals.has_more(need.shard for _, need in self._needs.coming())

    def _blocks_to_look_at(self) -> Iterator[Block] | None:
        """The blocks, where this thread is to take the next one."""
        if self._blocks is None or self._is_looking:
            return None
        ahead = sum(self._size(need.shard) for depth, need in self._needs.coming() if depth > 0)
        if ahead > self._share_bytes and self._begun_at is None:
            return None  # let the first batch be made before looking further than needed
        # Twice as far as the reader waits for, so that it does not.
        is_far = self._needs.taken > max(self._needs.stop, self._goes_to) + 2 * self._reach
        if is_far and sum(samples for _, samples in self._samples_ahead) >= MOST_SAMPLES:
            return None
        self._is_looking = True
        return self._blocks

    def _look(self, blocks: Iterator[Block]) -> None:
        needs: list[Need] = []
        try:
            block = next(blocks, None)
            if block is not None:
                needs = [need for need in block.needs if self._is_cached(need.shard)]
            for need in needs:
                self._key(need.shard)
        except Exception as error:  # noqa: BLE001 - the reader evaluates the same, and meets it
            logger.debug("looking ahead ended: %s", error)
            block = None
        with self._changed:
            self._is_looking = False
            if block is None:
                self._blocks = None
                self._needs.end()
            else:
                self._needs.take(needs, stop=block.last + 1)
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
            Told(
                self._key(need.shard),
                self._index_key(need.shard),
                FETCHED_AHEAD if depth and need.shard in self._held else need.first,
                needs.told_end_of(need),
            )
            for depth, need in needs.coming()
        ]
        if self._file is None and told and self._folder.path.is_dir():
            self._file = NeedsFile(self._folder.path)
        if self._file is not None:
            self._file.tell(needs.start, needs.stop, told)

    def _next_fetch(self) -> Fetch | None:
        num_asking = sum(not each.is_ending for each in self._fetches.values())
        if self.is_stopped or self._has_no_room or num_asking >= NUM_AT_ONCE:
            return None
        chosen = next_to_fetch(
            self._coming(self._folder.keys()),
            bound_bytes=self._share_bytes,
            pace=self._pace,
            room_bytes=self._room.ahead_of(self._bytes_now()),
            only_now=self._waits > 0 or not all(each.has_room for each in self._fetches.values()),
        )
        if chosen is None:
            return None
        fetch = self._fetches[chosen.shard] = Fetch(self, chosen)
        if chosen.steps:
            self._held.add(chosen.shard)
            self._tell()  # before it is there, for whoever needs room
        return fetch

    def _bytes_now(self) -> int:
        """Of what the reader needs now."""
        now = [need.shard for depth, need in self._needs.coming() if not depth]
        return sum(self._size(shard) + index_bytes(self._catalog, shard) for shard in now)

    def _coming(self, there: set[bytes]) -> Iterator[Coming]:
        """What is read by ranges, in the order of the plan where it is in it; then the rest."""
        needs = self._needs
        planned = [each for each in needs.coming() if needs.end_of(each[1]) >= needs.start]
        awaited = dict.fromkeys(need.shard for depth, need in planned if not depth)
        awaited |= dict.fromkeys(self._arrivals.awaited())
        for shard in filter(self._arrivals.is_awaited, awaited):
            yield self._one_coming(shard, 0, there)
        for depth, need in planned if self._share_bytes else ():
            if not self._arrivals.is_awaited(need.shard):
                steps = max(1, need.first - needs.start) if depth else 0
                yield self._one_coming(need.shard, steps, there)

    def _one_coming(self, shard: int, steps: int, there: set[bytes]) -> Coming:
        is_there = self._arrivals.is_there(
            shard, is_in_folder=self._key(shard) in there, now=time.monotonic()
        )
        return Coming(
            shard=shard,
            num_bytes=self._size(shard),
            steps=steps,
            is_there=is_there or shard in self._fetches,
            is_possible=not self._arrivals.is_left_alone(shard),
            index_bytes=index_bytes(self._catalog, shard),
        )

    def _do(self, fetch: Fetch) -> None:
        shard, began, size = fetch.coming.shard, time.monotonic(), 0
        fetch.page = self._diary.page
        fetch.page.begin(Stage.OPENING, shard)
        try:
            size = self._fetched(fetch)
        except OthersFetchError:
            with self._changed:
                again = time.monotonic() + _LOOK_AGAIN_S
                self._arrivals.fetched_elsewhere(shard, ask_again=again)
        except NotNowError:
            with self._changed:
                self._has_no_room = True
        except Exception as error:  # noqa: BLE001 - the reader meets it, should it come so far
            logger.debug("%s: not fetched ahead: %s", self._catalog.shard_path(shard), error)
            with self._changed:
                self._arrivals.failed(shard)
        with self._changed:
            del self._fetches[shard]
            fetch.is_over = True
            if not size:
                self._held.discard(shard)
            if self._file is None or not size:  # the folder may not have been there
                self._tell()
            if size:
                self._arrivals.came(shard)
                took = max(0.0, time.monotonic() - began - fetch.paused_s)
                a_byte = took / NUM_AT_ONCE / size
                self._pace = self._pace._replace(a_byte=_mean(self._pace.a_byte, a_byte))
                self._sizes[shard] = size
                of_file = size / max(1, int(self._catalog.manifest.sizes[shard]))
                self._expansion = _mean(self._expansion, of_file)
            self._changed.notify_all()

    def _fetched(self, fetch: Fetch) -> int:
        """Bring a shard, and its index where that is remote, into the cache; give the tar's size.

        It is not kept open.
        """
        catalog, shard = self._catalog, fetch.coming.shard
        cache = self._cache.ahead(fetch)
        if catalog.source.store is not None:
            tar, _ = map_remote(
                catalog.source.ahead(fetch.is_needed_now),
                catalog.manifest,
                shard,
                cache,
                diary=self._diary,
                all_asked=partial(self.has_asked_all, fetch),
            )
        else:
            tar = map_tar(catalog.shard_path(shard), cache, diary=self._diary)
        if not tar.is_cached:
            with self._changed:
                self._arrivals.failed(shard)
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
        if self._catalog.source.index_store is None:
            return NO_INDEX
        return key_of_identity(index_identity(self._catalog.manifest.index_digests[shard]))


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _SHARE_OF_THE_LAST * (now - before)
