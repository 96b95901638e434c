"""What are the fields of a sample of a remote shard that is not here?

Its index is here; bytes are fetched when they are asked for. They are those that were indexed as
far as can be told without all of them: the shard has the manifest's size, and the headers of its
outermost members lie where the index says. `look` tells that of the version that a store shows.
Where in the shard's file the tar's bytes lie is the affair of its `Contents`: here, of a plain
shard, they are the file's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from shardloader.errors import ManifestError, StoreError
from shardloader.format.agreeing import outermost_headers, outermost_hold
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.reading.calls_ahead import both
from shardloader.reading.ranges import Request, Stretches
from shardloader.reading.shard import Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex
    from shardloader.reading.by_ranges import RangeReader
    from shardloader.reading.remote_shard import RemoteShard

REPLACED: Final = (
    "it was replaced: make index and manifest anew with `shardloader index`; or its names are of a "
    "kind that only a look at all of it can tell: give cache=, then it is fetched whole"
)
Piece: TypeAlias = tuple[int, bytes]
"""Where in the tar some bytes begin, and the bytes."""


class NoRangesError(StoreError):
    """The store gives whole files, whatever is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """How the bytes of a tar are had from those of its file, of the version that was looked at.

    Stretches of the tar are given as int64 [n] each, with a byte in each at least.
    """

    version: str

    def at_hand(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], list[Piece]]:
        """Which stretches need no request, bool [n], and those."""
        del stops
        return np.zeros(len(starts), dtype=np.bool_), []

    def in_file(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which bytes of the file are needed for each stretch."""
        return starts, stops

    def pieces(
        self,
        request: Request,
        body: bytes,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> list[Piece]:
        """What the answer to a request gives of the stretches, each of them in one piece.

        Raises DataError where it is damaged, or not as indexed.
        """
        del starts, stops
        return [(request.start, body)]


class RangedShard(Shard):
    """A shard that a `RangeReader` fetches the bytes of; number: its number in the manifest.

    `contents` are of the version that the store showed when it was looked at.
    """

    is_ranged = True

    def __init__(
        self, index: SampleIndex, origin: RemoteShard, reader: RangeReader, number: int
    ) -> None:
        super().__init__(None, index, name=origin.name)
        self.origin = origin
        self.contents = Contents(version="")
        self._reader = reader
        self._number = number
        self._expected: Stretches | None = None

    def look(self, version: str | None = None) -> bool:
        """Take the version that the store shows now, if it is the one that was indexed.

        version: what it has shown a moment ago, where that is known; if it is another one by now,
        whoever reads from it finds out. False where what it takes to tell is beyond the reader's
        limit.

        Raises ManifestError or ShardError where it is not, NoRangesError where that can't be told.
        """
        version = self.origin.version() if version is None else version
        starts = sorted({*outermost_headers(self.index)})
        bodies = self._read([(start, start + BLOCK_BYTES) for start in starts])
        if bodies is None:
            return False
        if not outermost_hold(self.index, Stretches(starts, bodies)):
            raise ManifestError(
                f"{self.name}: the shard does not begin and end with what its index says, though "
                f"it has the same size: {REPLACED}"
            )
        self.contents = Contents(version=version)
        return True

    def _read(self, ranges: list[tuple[int, int]]) -> list[bytes] | None:
        """Some bytes of the file; None beyond the reader's limit."""
        requests = [Request(shard=self._number, start=start, stop=stop) for start, stop in ranges]
        if not self._reader.take(requests):
            return None
        asks = [partial(fetched, self.origin, start, stop) for start, stop in ranges]
        return [*both(*asks)] if len(asks) == 2 else [ask() for ask in asks]

    @property
    def num_bytes(self) -> int:
        """The size of the tar."""
        return self.index.shard_bytes

    def will_need(self, start: int, stop: int) -> None:
        """Nothing: there is no map."""

    def touch(self, offsets: NDArray[np.int64]) -> None:
        """Nothing: there is no map."""

    def expect(self, samples: NDArray[np.int64], wanted: frozenset[str] | None) -> None:
        """Fetch the fields of some samples (int64 [n]) at once, before `fields` gives them."""
        self._expected = self._fetched(self._members(samples, wanted)) or self._expected

    def fields(self, sample: int, wanted: frozenset[str] | None = None) -> dict[str, memoryview]:
        """Give a sample's fields, which are fetched if they were not expected."""
        index = self.index
        if not 0 <= sample < index.num_samples:
            raise IndexError(f"{self.name}: sample {sample} of a shard with {index.num_samples}")
        members = self._members(np.array([sample], dtype=np.int64), wanted)
        if self._expected is not None:
            try:
                return self._cut(self._expected, members)
            except IndexError:
                pass  # it was not expected
        found = self._fetched(members)
        if found is None:
            return self._reader.whole(self._number).fields(sample, wanted)
        return self._cut(found, members)

    def _members(
        self, samples: NDArray[np.int64], wanted: frozenset[str] | None
    ) -> NDArray[np.int64]:
        """The numbers of the members that are wanted of samples, int64 [m]."""
        index = self.index
        bounds = zip(
            index.sample_starts[samples].tolist(),
            index.sample_starts[samples + 1].tolist(),
            strict=True,
        )
        members = np.concatenate(
            [np.zeros(0, dtype=np.int64), *(np.arange(*each, dtype=np.int64) for each in bounds)]
        )
        if wanted is None:
            return members
        numbers = [at for at, name in enumerate(index.fields) if name in wanted]
        return members[np.isin(index.member_fields[members], numbers)]

    def _fetched(self, members: NDArray[np.int64]) -> Stretches | None:
        """The bytes of members; None where no more may come by ranges."""
        starts = self.index.member_offsets[members]
        found = self._reader.fetch(
            {self._number: self},
            np.full(len(members), self._number, dtype=np.int64),
            starts,
            starts + self.index.member_sizes[members],
        )
        return None if found is None else found[self._number]

    def _cut(self, found: Stretches, members: NDArray[np.int64]) -> dict[str, memoryview]:
        index = self.index
        starts = index.member_offsets[members]
        return {
            index.fields[field]: memoryview(found[start:stop])
            for field, start, stop in zip(
                index.member_fields[members].tolist(),
                starts.tolist(),
                (starts + index.member_sizes[members]).tolist(),
                strict=True,
            )
        }


def fetched(origin: RemoteShard, start: int, stop: int) -> bytes:
    """Bytes of a remote shard, all of them.

    Raises ManifestError where it ends before them, NoRangesError where the store gives more.
    """
    body = b"".join(origin.received(start, stop))
    if len(body) == stop - start:
        return body
    if len(body) > stop - start:
        raise no_ranges(origin.name)
    raise ManifestError(
        f"{origin.name}: the shard ends at byte {start + len(body)}, and the manifest lists "
        f"{origin.file_bytes} bytes: it was replaced; put shards, indexes and manifest of one "
        "`shardloader write` or `index` there together"
    )


def no_ranges(name: str) -> NoRangesError:
    """The error of a store that gives whole files; name: of a shard."""
    return NoRangesError(
        f"{name}: without a cache shards are read by ranges, and the store gives whole files, "
        "whatever is asked for: give cache=shardloader.Cache(folder), or a store that has ranges"
    )
