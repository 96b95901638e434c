"""What are the fields of a sample of a compressed remote shard that is not here?

One that has a seek table comes frame by frame: the table says which frames hold a sample, they are
fetched whole, unpacked and cut. Nothing is believed: the frames of the table fill the file, and
give a tar of the index's size; a frame holds as many bytes as the table says, with the checksum
that the frame has, and the table's where it has some; and the header of the first member that
begins in a frame is the one that the index has there.

What holds no sample is not unpacked, and a frame that is unpacked is limited: a sample's whole
frame is fetched for it, so frames that are large beside their samples are not read in this way.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from shardloader.errors import ManifestError, ShardError, UsageError
from shardloader.format.agreeing import holds_member
from shardloader.format.seek_table import (
    FULL_FRAME_BYTES,
    SeekTable,
    parse_seek_table,
    told_table_bytes,
)
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.unpacking import unpacked_name
from shardloader.format.zstd_frames import frame_content
from shardloader.reading.kept_frames import FrameName
from shardloader.reading.ranged_shard import REPLACED, Contents, Piece, RangedShard
from shardloader.reading.ranges import Stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex
    from shardloader.format.unpacking import Limits
    from shardloader.reading.by_ranges import RangeReader
    from shardloader.reading.kept_frames import KeptFrames
    from shardloader.reading.ranges import Request
    from shardloader.reading.remote_shard import RemoteShard

logger = logging.getLogger("shardloader")

END_BYTES: Final = 64 << 10  # of a file, asked for first: a table of some 8,000 frames
MOST_TABLE_BYTES: Final = 32 << 20
GZIP_SUFFIXES: Final = (".gz", ".tgz")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FramedContents(Contents):
    """The tar in the frames of one version of a shard; number: of the shard, name: of its file."""

    table: SeekTable
    index: SampleIndex
    number: int
    name: str
    kept: KeptFrames = field(repr=False)
    limits: Limits

    def at_hand(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], list[Piece]]:
        """Which stretches lie in frames that are kept, and those."""
        first, last = self.table.frames_of(starts, stops)
        wanted = {frame for pair in _pairs(first, last) for frame in range(pair[0], pair[1] + 1)}
        found = {frame: self.kept.get(self._frame_name(frame)) for frame in sorted(wanted)}
        here = {frame: data for frame, data in found.items() if data is not None}
        is_here = np.fromiter(
            (all(map(here.__contains__, range(a, z + 1))) for a, z in _pairs(first, last)),
            np.bool_,
            len(first),
        )
        stretches = _pairs(starts[is_here], stops[is_here])
        frames = _pairs(first[is_here], last[is_here])
        pieces = [
            self._joined(here, *each, *of) for each, of in zip(stretches, frames, strict=True)
        ]
        return is_here, pieces

    def in_file(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the frames lie that hold each stretch."""
        first, last = self.table.frames_of(starts, stops)
        return self.table.packed_edges[first], self.table.packed_edges[last + 1]

    def pieces(
        self,
        request: Request,
        body: bytes,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> list[Piece]:
        """The stretches whose frames a request has fetched; stretches rise.

        Each frame is unpacked once, and let go of behind the last stretch of it. Raises ShardError
        for a frame that is damaged or not as the table says, ManifestError for one that holds
        another member than the index has there.
        """
        first, last = self.table.frames_of(starts, stops)
        begin, end = self.in_file(starts, stops)
        is_there = (begin >= request.start) & (end <= request.stop)
        stretches = _pairs(starts[is_there], stops[is_there])
        frames = _pairs(first[is_there], last[is_there])
        packed, here, found = memoryview(body), dict[int, bytes](), list[Piece]()
        for stretch, (lowest, highest) in zip(stretches, frames, strict=True):
            here = {frame: data for frame, data in here.items() if frame >= lowest}
            for frame in range(lowest, highest + 1):
                if frame not in here:
                    here[frame] = self._unpacked(frame, packed, request.start)
            found.append(self._joined(here, *stretch, lowest, highest))
        return found

    def _joined(
        self, here: dict[int, bytes], start: int, stop: int, first: int, last: int
    ) -> Piece:
        edges = self.table.plain_edges
        parts = [
            here[frame][max(0, start - int(edges[frame])) : stop - int(edges[frame])]
            for frame in range(first, last + 1)
        ]
        return start, parts[0] if len(parts) == 1 else b"".join(parts)

    def _unpacked(self, frame: int, body: memoryview, offset: int) -> bytes:
        name = self._frame_name(frame)
        found = self.kept.get(name)
        if found is not None:
            return found
        start, stop = self.table.packed_edges[frame : frame + 2].tolist()
        begin, end = self.table.plain_edges[frame : frame + 2].tolist()
        data = frame_content(
            body[start - offset : stop - offset],
            start=start,
            num_bytes=end - begin,
            shard=self.name,
            max_window_bytes=self.limits.max_window_bytes,
        )
        self._check(frame, data, start, begin)
        self.kept.keep(name, data)
        return data

    def _check(self, frame: int, data: bytes, start: int, begin: int) -> None:
        sums = self.table.checksums
        if sums is not None and xxhash.xxh64_intdigest(data) & 0xFFFFFFFF != sums[frame]:
            raise ShardError(
                f"{self.name}: checksum mismatch at byte {start} of the compressed file: the seek "
                f"table stores {int(sums[frame]):08x} for the frame there: its content was "
                "changed; fetch or write it anew",
                kind="checksum_mismatch",
                offset=start,
            )
        offsets, starts = self.index.member_offsets, self.index.sample_starts
        member = int(np.searchsorted(offsets, begin + BLOCK_BYTES))
        if member == len(offsets) or offsets[member] > begin + len(data):
            return  # no header lies in it
        sample = int(np.searchsorted(starts, member, side="right")) - 1
        if not holds_member(self.index, Stretches([begin], [data]), sample, member):
            raise ManifestError(
                f"{self.name}: the frame at byte {start} of the compressed file does not hold what "
                f"the index says, though the shard has the same size: {REPLACED}"
            )

    def _frame_name(self, frame: int) -> FrameName:
        return FrameName(self.number, self.version, frame)


class FramedShard(RangedShard):
    """A compressed shard that a `RangeReader` fetches frames of.

    kept: frames that are at hand, of this and other shards; limits: what frames may ask for.
    """

    def __init__(
        self,
        index: SampleIndex,
        origin: RemoteShard,
        reader: RangeReader,
        number: int,
        *,
        kept: KeptFrames,
        limits: Limits,
    ) -> None:
        super().__init__(index, origin, reader, number)
        self.name = unpacked_name(origin.name)
        self._kept = kept
        self._limits = limits

    def look(self, version: str | None = None) -> bool:
        """Take the version that the store shows now, if its seek table is of the indexed tar.

        A table that is damaged is fetched once more. Raises as for a plain shard, and UsageError
        for a shard that has no table, or frames too large to be read one by one.
        """
        version = self.origin.version() if version is None else version
        try:
            table = self._seek_table()
        except ShardError as error:
            logger.info("%s: fetching it once more", error)
            table = self._seek_table()
        if table is None:
            return False
        self._check(table)
        self.contents = FramedContents(
            version=version,
            table=table,
            index=self.index,
            number=self._number,
            name=self.origin.name,
            kept=self._kept,
            limits=self._limits,
        )
        return True

    def _seek_table(self) -> SeekTable | None:
        """The table; None beyond the reader's limit."""
        name, size = self.origin.name, self.origin.file_bytes
        if name.partition("?")[0].lower().endswith(GZIP_SUFFIXES):
            raise self._refused("compressed by gzip, which has no frames")
        found = self._read([(max(0, size - END_BYTES), size)])
        if found is None:
            return None
        end = found[0]
        length = told_table_bytes(end, file_bytes=size, shard=name)
        if length is None:
            raise self._refused("compressed without a seek table, which says where frames lie")
        if length > MOST_TABLE_BYTES:
            raise self._refused(f"in so many frames that the list of them has {length} bytes")
        if length > len(end):
            rest = self._read([(size - length, size - len(end))])
            if rest is None:
                return None
            end = rest[0] + end
        return parse_seek_table(end[-length:], file_bytes=size, shard=name)

    def _check(self, table: SeekTable) -> None:
        index = self.index
        if table.tar_bytes != index.shard_bytes:
            raise ManifestError(
                f"{self.origin.name}: the seek table says that the frames hold {table.tar_bytes} "
                f"bytes, and the tar had {index.shard_bytes} when it was indexed: it was replaced: "
                "make index and manifest anew with `shardloader index`; or the table is wrong: "
                "give cache=, then it is fetched whole"
            )
        plain, packed, limits = (
            np.diff(table.plain_edges),
            np.diff(table.packed_edges),
            self._limits,
        )
        most = FULL_FRAME_BYTES + _largest_sample(index)
        rules = (
            (np.maximum(plain, packed) <= most, f"at most {most} are taken for one"),
            (
                (plain <= limits.free_bytes) | (plain / packed <= limits.max_expansion),
                f"at most {limits.max_expansion} times as many",
            ),
        )
        for hold, rule in rules:
            if not hold.all():
                frame = int(np.argmin(hold))
                raise self._refused(
                    "compressed in frames that are too large for that: one has "
                    f"{packed[frame]} bytes and holds {plain[frame]}, and {rule}"
                )

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"{self.origin.name}: without a cache shards are read by ranges, and this one is "
            f"{why}: give cache=shardloader.Cache(folder), where it is unpacked, or write the "
            "shards anew with `shardloader write`, plain or with --compression zstd"
        )


def _largest_sample(index: SampleIndex) -> int:
    """Bytes of the tar that the largest sample takes, with its headers."""
    last = index.sample_starts[1:] - 1
    stops = index.member_offsets[last] + index.member_sizes[last]
    stops += -stops % BLOCK_BYTES
    return int(np.diff(stops, prepend=0).max(initial=0))


def _pairs(first: NDArray[np.int64], last: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(first.tolist(), last.tolist(), strict=True))
