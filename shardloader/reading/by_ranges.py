"""How do bytes of remote shards come before the shards are here, or where there is no cache at all?

Many requests at once, and after them one for each shard that asks whether it still is the version
that was looked at; where it is not, it is looked at and fetched again. What a shard makes of the
answers may tell that they are damaged: they are fetched once more then, and after that it is an
error. Unpacked frames are kept as far as a limit allows, and few are unpacked at a time.

Where there is a cache, whole shards arrive meanwhile (`prefetch`), so what is fetched here comes
twice. It is limited, for each process that reads: beyond it shards are waited for, whole. What is
wrong with a shard is not told here then: it is opened whole, and whoever does that says it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shardloader.errors import (
    CacheError,
    DataError,
    ManifestError,
    StoreError,
    UsageError,
    WorldError,
)
from shardloader.format.unpacking import Limits
from shardloader.reading.calls_ahead import both
from shardloader.reading.diary import Stage
from shardloader.reading.framed_shard import FramedShard
from shardloader.reading.frames import without_frames
from shardloader.reading.kept_frames import KeptFrames
from shardloader.reading.ranged_shard import (
    NoRangesError,
    Piece,
    RangedShard,
    fetched,
    no_ranges,
)
from shardloader.reading.ranges import Request, Stretches, coalesce, distinct
from shardloader.reading.remote import PIECE_BYTES
from shardloader.reading.remote_shard import index_of_remote, shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex
    from shardloader.reading.catalog import Catalog
    from shardloader.reading.diary import Diary
    from shardloader.reading.prefetch import Prefetcher
    from shardloader.reading.ranged_shard import Contents
    from shardloader.reading.remote_shard import RemoteShard
    from shardloader.reading.shard import Shard

logger = logging.getLogger("shardloader")

NUM_AT_ONCE: Final = 16  # requests of one process
LEAST_SHARD_BYTES: Final = PIECE_BYTES  # a smaller shard comes whole by one request
KEPT_BYTES: Final = 64 << 20  # of unpacked frames
NUM_UNPACKED_AT_ONCE: Final = 4  # requests whose frames are unpacked
_VERSIONS_TRIED: Final = 4


class _Asked(NamedTuple):
    """What is asked of one shard: stretches of its tar, and the contents that they are had from."""

    contents: Contents
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class RangeReader:
    """Reads shards of one catalog by ranges, in one process; threads may share it.

    whole: gives the whole shard of a number, mapped; make_way: a method of whoever maps them, which
    lets go of what lies in the cache; ahead: who fetches whole shards meanwhile, None for nobody;
    note: is told the version of each shard, when the store says it; diary: where the process writes
    what it does. `num_bytes` and `num_requests` count what was
    asked for.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        whole: Callable[[int], Shard],
        make_way: Callable[[], None],
        ahead: Prefetcher | None,
        note: Callable[[int, str], None],
        diary: Diary,
    ) -> None:
        self.whole = whole
        self._note = note
        self.num_bytes = 0
        self.num_requests = 0
        self._catalog = catalog
        self._cache = catalog.cache
        self._make_way = make_way
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._refused: set[int] = set()  # shards that come whole, or not at all
        self._is_over = False  # whether no more shards are to be read by ranges
        self._has_ranges: bool | None = None  # what is known of the store
        self._ahead = ahead
        self._diary = diary
        self._kept = KeptFrames(most_bytes=KEPT_BYTES)
        self._unpacking = threading.BoundedSemaphore(NUM_UNPACKED_AT_ONCE)

    def open(self, shard: int) -> RangedShard | None:
        """A shard to be read by ranges; None for one that is to be opened whole.

        With a cache a shard begins to arrive whole. Raises StoreError, and without a cache
        whatever is wrong with the shard.
        """
        if self._cache is None:
            return self._looked_at(shard, *self._asked(shard))
        if not self.may_come(shard):
            return None
        opened = None
        try:
            version, index = self._asked(shard)
            self._note(shard, version)
            if self._cache.has(self._origin(shard), version):
                return None
            opened = self._looked_at(shard, version, index)
        except NoRangesError:
            self._end("the store has no ranges")
        except (CacheError, StoreError):
            raise
        except (DataError, UsageError, WorldError) as error:
            logger.debug("%s: it is opened whole: %s", self._catalog.shard_path(shard), error)
        if opened is None:
            self.refuse(shard)
        elif self._ahead is not None:
            self._ahead.ask(shard)
        return opened

    def open_all(self, shards: Iterable[int]) -> dict[int, RangedShard]:
        """Several at once, where they are to be read by ranges."""
        numbers = list(shards)
        opened = zip(numbers, self._workers().map(self.open, numbers), strict=True)
        return {number: shard for number, shard in opened if shard is not None}

    def has_come(self, shard: int) -> bool:
        """Whether a shard that was read by ranges is to be opened whole now."""
        return shard in self._refused or (self._ahead is not None and self._ahead.has_come(shard))

    def refuse(self, shard: int) -> None:
        """Read no more of a shard by ranges."""
        self._refused.add(shard)
        self.let_go(shard)

    def let_go(self, shard: int) -> None:
        """Keep no bytes of a shard."""
        self._kept.let_go(shard)

    def fetch(
        self,
        shards: Mapping[int, RangedShard],
        number: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> dict[int, Stretches] | None:
        """Bytes of shards, by their numbers: stretches of the shards `number`, all int64 [n].

        None where they are to be opened whole. Raises as `open` does.
        """
        wanted = {of: distinct(starts[number == of], stops[number == of]) for of in shards}
        if self._cache is None:
            return self._good(shards, wanted)
        try:
            return self._good(shards, wanted)
        except NoRangesError:
            self._end("the store has no ranges")
        except StoreError:
            raise
        except (DataError, WorldError) as error:
            logger.debug("opened whole: %s", error)
        return None

    def _good(
        self,
        shards: Mapping[int, RangedShard],
        wanted: Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]],
    ) -> dict[int, Stretches] | None:
        """The answers, each of a version that was looked at; None beyond the limit."""
        pieces: dict[int, list[Piece]] = {}
        damaged: dict[int, str] = {}  # versions that came damaged once
        left = dict(shards)
        for _ in range(_VERSIONS_TRIED):
            asked = {n: _Asked(shard.contents, *wanted[n]) for n, shard in left.items()}
            found = self._pieces(left, asked)
            if found is None:
                return None
            pieces.update(found[0])
            changed = self._changed(left, asked)
            failed = {n: error for n, error in found[1].items() if n not in changed}
            for number, error in failed.items():
                if damaged.get(number) == asked[number].contents.version:
                    raise error
                damaged[number] = asked[number].contents.version
                logger.info("%s: fetching it once more", error)
            left = {n: shard for n, shard in left.items() if n in changed or n in failed}
            if not left:
                return {n: Stretches.of(pieces[n]) for n in shards}
            for number in changed:
                logger.info("%s: it changed while it was read; reading again", left[number].name)
                self.let_go(number)
                if not left[number].look():
                    return None
        raise next(iter(failed.values()), None) or WorldError(
            f"{next(iter(left.values())).name}: the shard changed each of {_VERSIONS_TRIED} times "
            "while it was read: wait until it is whole, or read a copy"
        )

    def _changed(
        self, shards: Mapping[int, RangedShard], asked: Mapping[int, _Asked]
    ) -> frozenset[int]:
        """Those of some shards that are not of the version any more that was asked for."""
        shown = zip(shards, self._workers().map(_version, shards.values()), strict=True)
        return frozenset(n for n, version in shown if version != asked[n].contents.version)

    def _pieces(
        self, shards: Mapping[int, RangedShard], asked: Mapping[int, _Asked]
    ) -> tuple[dict[int, list[Piece]], dict[int, DataError]] | None:
        """What is asked for, and what was wrong with which shard; None beyond the limit."""
        pieces, requests = dict[int, list[Piece]](), list[Request]()
        missing: dict[int, _Asked] = {}
        for number, (contents, starts, stops) in asked.items():
            is_here, pieces[number] = contents.at_hand(starts, stops)
            missing[number] = _Asked(contents, starts[~is_here], stops[~is_here])
            begin, end = contents.in_file(*missing[number][1:])
            requests += coalesce(np.full(len(begin), number, dtype=np.int64), begin, end)
        if not self.take(requests):
            return None
        failed: dict[int, DataError] = {}
        for number, answer in self._answers(shards, missing, requests):
            if isinstance(answer, DataError):
                failed.setdefault(number, answer)
            else:
                pieces[number] += answer
        return pieces, failed

    def _answers(
        self,
        shards: Mapping[int, RangedShard],
        asked: Mapping[int, _Asked],
        requests: list[Request],
    ) -> Iterator[tuple[int, list[Piece] | DataError]]:
        """What comes of each request, with its shard's number; errors of what came are values."""

        def ask(request: Request) -> list[Piece] | DataError:
            body = fetched(shards[request.shard].origin, request.start, request.stop)
            contents, starts, stops = asked[request.shard]
            try:
                with self._unpacking:
                    return contents.pieces(request, body, starts, stops)
            except DataError as error:
                return without_frames(error)  # which hold the body

        first = requests[0].shard if requests else None
        done, total = 0, sum(request.num_bytes for request in requests)
        with self._diary.page.within(Stage.FETCHING, first, total) as page:
            for request, answer in zip(requests, self._workers().map(ask, requests), strict=True):
                done += request.num_bytes
                page.at_byte(done)
                yield request.shard, answer

    def take(self, requests: list[Request]) -> bool:
        """Count requests, if the limit allows them; where it does not nothing more comes so."""
        num_bytes = sum(request.num_bytes for request in requests)
        with self._lock:
            if self._cache is None or self.num_bytes + num_bytes <= int(self._cache.range_bytes):
                self.num_bytes += num_bytes
                self.num_requests += len(requests)
                return True
        self._end("more would be beyond range_bytes=")
        return False

    def _end(self, why: str) -> None:
        if not self._is_over:
            logger.info(
                "%s: whole shards are waited for from now on, as %s; %d bytes came by %d ranges",
                self._catalog.location,
                why,
                self.num_bytes,
                self.num_requests,
            )
        self._is_over = True

    def may_come(self, shard: int) -> bool:
        """Whether a shard that is not open may be one to be read by ranges."""
        return self._cache is None or (
            not self._is_over
            and shard not in self._refused
            and int(self._catalog.manifest.sizes[shard]) > LEAST_SHARD_BYTES
        )

    def _asked(self, shard: int) -> tuple[str, SampleIndex]:
        """The version that the store shows of a shard, and its index, asked for at once."""
        return both(self._origin(shard).version, partial(self._index, shard))

    def _index(self, shard: int) -> SampleIndex:
        catalog = self._catalog
        return index_of_remote(
            catalog.source,
            catalog.manifest,
            shard,
            self._cache,
            make_way=self._make_way,
            diary=self._diary,
        )

    def _looked_at(self, shard: int, version: str, index: SampleIndex) -> RangedShard | None:
        """The shard of a version shown just now, if it is as indexed; None beyond the limit."""
        catalog, origin = self._catalog, self._origin(shard)
        if index.digest != catalog.manifest.index_digests[shard]:
            raise ManifestError(
                f"{catalog.index_path(shard)}: the index is not the one that the manifest lists: "
                "make both anew with `shardloader index`"
            )
        if self._has_ranges is None:
            self._has_ranges = origin.file.has_ranges(size=origin.file_bytes)
        if not self._has_ranges:
            raise no_ranges(origin.name)
        opened = self._of_index(index, origin, shard)
        return opened if opened.look(version) else None

    def _of_index(self, index: SampleIndex, origin: RemoteShard, shard: int) -> RangedShard:
        if index.compressed_bytes is None:
            return RangedShard(index, origin, self, shard)
        limits = Limits() if self._cache is None else self._cache.limits
        return FramedShard(index, origin, self, shard, kept=self._kept, limits=limits)

    def _origin(self, shard: int) -> RemoteShard:
        return shard_of(self._catalog.source, self._catalog.manifest, shard, self._diary)

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    NUM_AT_ONCE, thread_name_prefix="shardloader-ranges"
                )
            return self._threads

    def close(self) -> None:
        """End the threads; they start anew if more is asked for."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)
        self._kept.clear()


def _version(shard: RangedShard) -> str:
    return shard.origin.version()
