"""Which samples go into which shard, and at which byte?

The rule, alone: decided sample by sample from keys and sizes, before any byte is written, so that
it does not matter who writes them. A compressed shard is decided frame by frame, and a frame that
would cross the end of a shard is cut there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardloader.format.tar_header import END_OF_ARCHIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardloader.writing.chunks import Frame, Head
    from shardloader.writing.frames import Compression

_END_BYTES = len(END_OF_ARCHIVE)
_BEHIND_ALL_ROWS = 1 << 62

Recut: TypeAlias = "Callable[[Sequence[Sequence[int]]], list[Frame]]"
"""Makes a frame of each group of a chunk's samples; a group may be empty, and makes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a shard holds: samples, and bytes of the file with its end."""

    max_samples: int
    max_bytes: int

    def has_room(self, num_samples: int, size_bytes: int, added_bytes: int) -> bool:
        """Whether a shard takes one more sample; an empty one takes any."""
        if num_samples == 0:
            return True
        return num_samples < self.max_samples and size_bytes + added_bytes <= self.max_bytes


class Position(NamedTuple):
    """Where in the input a shard ends: the next row of a part, and where its chunk began."""

    part: int = 0
    chunk_row: int = 0
    row: int = 0


class Run(NamedTuple):
    """Samples `first` to `last - 1` of a chunk, or one of its frames, lie in a shard at a byte."""

    shard: int
    offset: int
    first: int
    last: int
    frame: Frame | None = None


class Closed(NamedTuple):
    """A shard that takes no more samples."""

    shard: int
    num_samples: int
    size_bytes: int
    end: Position
    last_key: str


@dataclass(slots=True)
class Placed:
    """What becomes of a chunk; `again` are samples whose key was written before."""

    runs: list[Run] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    again: list[int] = field(default_factory=list)


class Placer:
    """Places chunk after chunk; `shard` is the number of the shard that is open.

    `resume` is where the shards before it ended, with the last key there: rows before it are
    passed over.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        compression: Compression | None = None,
        shard: int = 0,
        resume: Position | None = None,
        last_key: str | None = None,
    ) -> None:
        self.shard = shard
        self.num_samples = 0
        self._limits = limits
        self._compression = compression
        self._bytes = 0
        self._num_frames = 0
        self._keys: set[str] = set()
        self._last_key = last_key
        self._resume = resume
        self._end = resume or Position()

    @property
    def size_bytes(self) -> int:
        """The open shard's size if it were closed now."""
        return self._size_with(self._num_frames)

    def place(self, head: Head, recut: Recut) -> Placed:
        """Decide where the samples of a chunk lie."""
        # Where the input ends all of it was seen, also what came after the last sample placed.
        self._end = Position(head.part, head.start, _BEHIND_ALL_ROWS)
        first = self._first(head)
        if head.frames is None:
            return self._place_samples(head, first)
        return self._place_frames(head, first, recut)

    def finish(self) -> Closed | None:
        """Close the open shard at the end of the input; None if it is empty."""
        return self._close(self._end) if self.num_samples else None

    def passes_over(self, head: Head, row: int) -> bool:
        """Whether a row of a chunk lies before the point where this placer began."""
        resume = self._resume
        return resume is not None and (head.part, row) < (resume.part, resume.row)

    def passes_over_all(self, head: Head) -> bool:
        """Whether a chunk lies before that point to its end, also with rows that are no samples."""
        return self.passes_over(head, _BEHIND_ALL_ROWS - 1)

    def _first(self, head: Head) -> int:
        resume = self._resume
        if resume is None or head.part > resume.part:
            return 0
        if head.part < resume.part:
            return len(head.rows)
        return next((at for at, row in enumerate(head.rows) if row >= resume.row), len(head.rows))

    def _place_samples(self, head: Head, first: int) -> Placed:
        placed = Placed()
        if self._takes_all(head, first):
            self._add_run(placed, self._bytes, first, len(head.rows))
            self._take_all(head, first)
            if self.num_samples == self._limits.max_samples:
                end = Position(head.part, head.start, head.rows[-1] + 1)
                placed.closed.append(self._close(end))
            return placed
        rows, run_start, offset = head.rows, first, self._bytes
        limits = self._limits
        for at in range(first, len(rows)):
            key, size = head.keys[at], head.sizes[at]
            if key in self._keys or key == self._last_key:
                self._add_run(placed, offset, run_start, at)
                placed.again.append(at)
                run_start, offset = at + 1, self._bytes
                continue
            if not limits.has_room(self.num_samples, self._bytes + _END_BYTES, size):
                self._add_run(placed, offset, run_start, at)
                placed.closed.append(self._close(Position(head.part, head.start, rows[at])))
                run_start, offset = at, 0
            self._keys.add(key)
            self._last_key = key
            self.num_samples += 1
            self._bytes += size
            if self.num_samples >= limits.max_samples:
                self._add_run(placed, offset, run_start, at + 1)
                placed.closed.append(self._close(Position(head.part, head.start, rows[at] + 1)))
                run_start, offset = at + 1, 0
        self._add_run(placed, offset, run_start, len(rows))
        return placed

    def _takes_all(self, head: Head, first: int) -> bool:
        """Whether all samples of a chunk are new and lie in the open shard."""
        num_samples = self.num_samples + len(head.rows) - first
        size_bytes = self._bytes + sum(head.sizes[first:]) + _END_BYTES
        if num_samples > self._limits.max_samples or size_bytes > self._limits.max_bytes:
            return False
        keys = set(head.keys[first:])
        is_new = self._last_key not in keys and keys.isdisjoint(self._keys)
        return is_new and len(keys) == len(head.rows) - first > 0

    def _take_all(self, head: Head, first: int) -> None:
        self._keys.update(head.keys[first:])
        self._last_key = head.keys[-1]
        self.num_samples += len(head.rows) - first
        self._bytes += sum(head.sizes[first:])

    def _add_run(self, placed: Placed, offset: int, first: int, last: int) -> None:
        if first < last:
            placed.runs.append(Run(self.shard, offset, first, last))

    def _place_frames(self, head: Head, first: int, recut: Recut) -> Placed:
        placed = Placed()
        waiting = deque(head.frames or ())
        while waiting:
            frame = waiting.popleft()
            kept = [at for at in frame.samples if at >= first]
            if self.num_samples and (
                self._size_with(self._num_frames + 1) + frame.size_bytes > self._limits.max_bytes
                and len(kept) == len(frame.samples)
            ):
                end = Position(head.part, head.start, head.rows[frame.samples[0]])
                placed.closed.append(self._close(end))
            kept, rest = self._that_fit(head, kept, placed)
            if len(kept) == len(frame.samples):
                self._add_frame(head, frame, placed)
            else:
                waiting.extendleft(reversed(recut([kept, rest])))
        return placed

    def _that_fit(
        self, head: Head, numbers: list[int], placed: Placed
    ) -> tuple[list[int], list[int]]:
        """Give the samples that the open shard takes, and those that come after it.

        Left out are samples whose key is in the shard, or was the last one of that before.
        """
        room = self._limits.max_samples - self.num_samples
        known, last, kept = set[str](), self._last_key, list[int]()
        for place, at in enumerate(numbers):
            if len(kept) == room:
                return kept, numbers[place:]
            key = head.keys[at]
            if key == last or key in self._keys or key in known:
                placed.again.append(at)
                continue
            known.add(key)
            last = key
            kept.append(at)
        return kept, []

    def _add_frame(self, head: Head, frame: Frame, placed: Placed) -> None:
        first, last = frame.samples[0], frame.samples[-1] + 1
        placed.runs.append(Run(self.shard, self._bytes, first, last, frame))
        self._keys.update(head.keys[at] for at in frame.samples)
        self._last_key = head.keys[last - 1]
        self.num_samples += len(frame.samples)
        self._num_frames += 1
        self._bytes += frame.size_bytes
        if self.num_samples >= self._limits.max_samples:
            end = Position(head.part, head.start, head.rows[last - 1] + 1)
            placed.closed.append(self._close(end))

    def _size_with(self, num_frames: int) -> int:
        if self._compression is None:
            return self._bytes + _END_BYTES
        return self._bytes + self._compression.end_bytes(num_frames)

    def _close(self, end: Position) -> Closed:
        closed = Closed(self.shard, self.num_samples, self.size_bytes, end, str(self._last_key))
        self.shard += 1
        self.num_samples, self._bytes, self._num_frames = 0, 0, 0
        self._keys = set()
        return closed
