"""How do bytes of remote shards come before the shards are here, or where there is no cache at all?

Many requests at once, and after them one for each shard that asks whether it still is the version
that was looked at; where it is not, it is looked at and fetched again.

Where there is a cache, whole shards arrive meanwhile (`prefetch`), so what is fetched here comes
twice. It is limited, for each process that reads: beyond it shards are waited for, whole. What is
wrong with a shard is not told here then: it is opened whole, and whoever does that says it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from shardloader.errors import (
    CacheError,
    DataError,
    ManifestError,
    StoreError,
    UsageError,
    WorldError,
)
from shardloader.reading.calls_ahead import both
from shardloader.reading.diary import Stage
from shardloader.reading.ranged_shard import NoRangesError, RangedShard, fetched, no_ranges
from shardloader.reading.ranges import Request, Stretches, coalesce
from shardloader.reading.remote import PIECE_BYTES
from shardloader.reading.remote_shard import index_of_remote, shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex
    from shardloader.reading.catalog import Catalog
    from shardloader.reading.diary import Diary
    from shardloader.reading.prefetch import Prefetcher
    from shardloader.reading.remote_shard import RemoteShard
    from shardloader.reading.shard import Shard

logger = logging.getLogger("shardloader")

NUM_AT_ONCE: Final = 16  # requests of one process
LEAST_SHARD_BYTES: Final = PIECE_BYTES  # a smaller shard comes whole by one request
_VERSIONS_TRIED: Final = 4


class RangeReader:
    """Reads shards of one catalog by ranges, in one process; threads may share it.

    whole: gives the whole shard of a number, mapped; make_way: a method of whoever maps them, which
    lets go of what lies in the cache; ahead: who fetches whole shards meanwhile, None for nobody;
    diary: where the process writes what it does. `num_bytes` and `num_requests` count what was
    asked for.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        whole: Callable[[int], Shard],
        make_way: Callable[[], None],
        ahead: Prefetcher | None,
        diary: Diary,
    ) -> None:
        self.whole = whole
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
        requests = coalesce(number, starts, stops)
        if self._cache is None:
            return self._good(shards, requests)
        try:
            return self._good(shards, requests)
        except NoRangesError:
            self._end("the store has no ranges")
        except StoreError:
            raise
        except (DataError, WorldError) as error:
            logger.debug("opened whole: %s", error)
        return None

    def _good(
        self, shards: Mapping[int, RangedShard], requests: list[Request]
    ) -> dict[int, Stretches] | None:
        """The answers, each of a version that was looked at; None beyond the limit."""
        bodies: dict[Request, bytes] = {}
        left = dict(shards)
        for _ in range(_VERSIONS_TRIED):
            looked_at = {number: shard.version for number, shard in left.items()}
            asked = [request for request in requests if request.shard in left]
            if not self._take(asked):
                return None
            bodies.update(self._answers(left, asked))
            shown = dict(zip(left, self._workers().map(_version, left.values()), strict=True))
            left = {n: shard for n, shard in left.items() if shown[n] != looked_at[n]}
            if not left:
                return _by_shard(shards, bodies)
            for shard in left.values():
                logger.info("%s: it changed while it was read; reading again", shard.name)
                if not self._look(shard):
                    return None
        raise WorldError(
            f"{next(iter(left.values())).name}: the shard changed each of {_VERSIONS_TRIED} times "
            "while it was read: wait until it is whole, or read a copy"
        )

    def _answers(
        self, shards: Mapping[int, RangedShard], requests: list[Request]
    ) -> Iterator[tuple[Request, bytes]]:
        def ask(request: Request) -> bytes:
            return fetched(shards[request.shard].origin, request.start, request.stop)

        first = requests[0].shard if requests else None
        done, total = 0, sum(request.num_bytes for request in requests)
        with self._diary.page.within(Stage.FETCHING, first, total) as page:
            for request, body in zip(requests, self._workers().map(ask, requests), strict=True):
                done += len(body)
                page.at_byte(done)
                yield request, body

    def _take(self, requests: list[Request]) -> bool:
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
        if index.compressed_bytes is not None:
            raise UsageError(
                f"{origin.name}: without a cache shards are read by ranges, and this one is "
                "compressed: give cache=shardloader.Cache(folder), where it is unpacked, or "
                "write the shards with compression=None"
            )
        if index.digest != catalog.manifest.index_digests[shard]:
            raise ManifestError(
                f"{catalog.index_path(shard)}: the index is not the one that the manifest lists: "
                "make both anew with `shardloader index`"
            )
        if self._has_ranges is None:
            self._has_ranges = origin.file.has_ranges(size=origin.file_bytes)
        if not self._has_ranges:
            raise no_ranges(origin.name)
        opened = RangedShard(index, origin, self, shard)
        return opened if self._look(opened, version) else None

    def _look(self, shard: RangedShard, version: str | None = None) -> bool:
        """Look at the version that the store shows; False beyond the limit."""
        if not self._take(shard.outermost):
            return False
        shard.look(version)
        return True

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


def _version(shard: RangedShard) -> str:
    return shard.origin.version()


def _by_shard(
    shards: Mapping[int, RangedShard], bodies: Mapping[Request, bytes]
) -> dict[int, Stretches]:
    found: dict[int, tuple[list[int], list[bytes]]] = {number: ([], []) for number in shards}
    for request in sorted(bodies, key=lambda request: (request.shard, request.start)):
        starts, answers = found[request.shard]
        starts.append(request.start)
        answers.append(bodies[request])
    return {number: Stretches(*each) for number, each in found.items()}
