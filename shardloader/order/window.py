"""Which place of its lane does each place of a shuffled lane take its sample from?

The lane is shuffled by two passes of block permutations. The first pass cuts the lane into blocks
of `window` places; the second cuts it half a window later, so that samples cross the borders of
the first. A place of the shuffled lane is looked up through the second pass, then the first, so a
sample travels up to two windows, and any place is known at the cost of three blocks. A lane no
longer than the window is one block, shuffled whole; the second pass leaves it alone.

The random word of a place is the word of that number in the pass's stream, counted along the
line. So a block is known by where it lies, and lanes need no keys of their own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.integers import checked
from shardloader.order.permutation import (
    WINDOW_FIRST,
    WINDOW_SECOND,
    random_words,
    sorting_order,
)
from shardloader.order.search import edges_at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardloader.order.grid import Places

DEFAULT_WINDOW = 10_000
WORDS_AT_ONCE = 1 << 20  # blocks are sorted in groups of about this many words (8 MiB)
WIDTH_TO_KEEP = 1024  # shorter blocks lie whole in one call, and the next call asks for others


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """Shuffle shards over the dataset, and samples within a window.

    window: the size of the shuffle buffer, in samples; a window of at least a lane's length
    shuffles the whole lane. Raises UsageError if it is not a whole number of at least 1.
    """

    window: int = DEFAULT_WINDOW

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", checked("Shuffle(window=)", self.window, least=1))

    @classmethod
    def of(cls, shuffle: Any) -> Shuffle | None:
        """What `shuffle=` means: True is the default window, False or None is no shuffle."""
        if isinstance(shuffle, cls):
            return shuffle
        if shuffle is None or isinstance(shuffle, bool):
            return cls() if shuffle else None
        raise UsageError(
            f"shuffle= is True, False or Shuffle(window=...), and was {shuffle!r}: for a window of "
            "that size write Shuffle(window=...)"
        )


class _Blocks(NamedTuple):
    """Blocks of one pass: int64 arrays [blocks].

    base: the line's place of column 0, which may lie before the lane; first, stop: the columns
    that lie in the lane.
    """

    base: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]

    def at(self, which: slice | list[int]) -> _Blocks:
        """Some of them."""
        return _Blocks(self.base[which], self.first[which], self.stop[which])


_Block: TypeAlias = tuple[int, int, int]  # base, first and stop of one block


class _Stream(NamedTuple):
    """The words of one pass of blocks: the key (seed, pass number), and the stream's number."""

    key: tuple[int, int]
    number: int


class BlockMemo:
    """The blocks that were permuted last, for a caller that goes along its lanes.

    What it asks for next lies in some of the same blocks; each would be sorted three to five
    times without. Of each stream the last call's blocks are kept: WORDS_AT_ONCE columns, or one
    block that is wider. The caller's window and lanes may change: then nothing that is kept fits.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[tuple[_Stream, int], dict[_Block, NDArray[Any]]]] = {}

    def permuted(self, blocks: _Blocks, width: int, stream: _Stream) -> NDArray[Any]:
        """The blocks' permutations, [blocks, width], as `_permuted` gives them."""
        of = (stream, width)
        kept, known = self._kept.pop(stream.number, (of, {}))
        if kept != of:
            known = {}
        asked = list(zip(*(column.tolist() for column in blocks), strict=True))
        missing = [at for at, block in enumerate(asked) if block not in known]
        narrow = np.int32 if width < 2**31 else np.int64
        columns = np.empty((len(asked), width), dtype=narrow)
        if missing:
            columns[missing] = _permuted(blocks.at(missing), width, stream)
        for at, block in enumerate(asked):
            if block in known:
                columns[at] = known[block]
        self._kept[stream.number] = (of, dict(zip(asked, columns, strict=True)))
        return columns


def shuffled(
    places: Places,
    *,
    window: int,
    longest: int,
    key: tuple[int, int],
    memo: BlockMemo | None = None,
) -> NDArray[np.int64]:
    """The places of the line whose samples stand at `places.at`, int64 of the same shape.

    window: places a block; longest: places of the longest lane; key: (seed, pass number); memo: of
    the caller's earlier calls. The order of `places` does not matter; those of neighbouring places
    are cheapest together.
    """
    width = min(window, longest)
    if places.at.size == 0 or width <= 1:
        return places.at
    lo, hi, at = places.lane_start, places.lane_stop, places.at
    first = _Pass(width, 0, _Stream(key, WINDOW_FIRST), memo)
    second = _Pass(width, width - width // 2, _Stream(key, WINDOW_SECOND), memo)
    at = _taken_in(second, hi - lo > window, lo, hi, at)
    return _taken_in(first, hi - lo > 1, lo, hi, at)  # the tail's places are lanes of one


class _Pass(NamedTuple):
    """One pass of block permutations: blocks of `width`, the first cut short by `shift`."""

    width: int
    shift: int
    stream: _Stream
    memo: BlockMemo | None

    def taken(
        self, lo: NDArray[np.int64], hi: NDArray[np.int64], at: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The places that the places `at` of lanes lo..hi-1 take their samples from."""
        base = at - (at - lo + self.shift) % self.width
        begin = np.maximum(base, lo)
        # A block is known by its first place in the lane: no two blocks of a pass share one. (A
        # sort and a search among few blocks cost a third of np.unique's inverse.)
        ordered = np.sort(begin)
        distinct = ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))]
        block = edges_at_most(distinct, begin) - 1
        sample = np.empty(len(distinct), dtype=np.int64)
        sample[block] = np.arange(len(begin))  # any sample of each block
        base_of = base[sample]
        stop = np.minimum(hi[sample] - base_of, self.width)
        blocks = _Blocks(base_of, begin[sample] - base_of, stop)
        taken = np.empty_like(at)
        column = at - base
        for group, columns in self._permuted(blocks):
            if len(base_of) == group.stop - group.start:
                np.add(base, columns[block, column], out=taken)
                return taken
            inside = np.flatnonzero((block >= group.start) & (block < group.stop))
            taken[inside] = base[inside] + columns[block[inside] - group.start, column[inside]]
        return taken

    def _permuted(self, blocks: _Blocks) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Groups of blocks with their permutations, [blocks in the group, width]."""
        num_blocks = len(blocks.base)
        at_once = max(1, WORDS_AT_ONCE // self.width)
        if self.memo is not None and self.width >= WIDTH_TO_KEEP and num_blocks <= at_once:
            yield slice(0, num_blocks), self.memo.permuted(blocks, self.width, self.stream)
            return
        for start in range(0, num_blocks, at_once):
            group = slice(start, min(start + at_once, num_blocks))
            yield group, _permuted(blocks.at(group), self.width, self.stream)


def _taken_in(
    one: _Pass,
    inside: NDArray[np.bool_],
    lo: NDArray[np.int64],
    hi: NDArray[np.int64],
    at: NDArray[np.int64],
) -> NDArray[np.int64]:
    """What one pass makes of the places that are in it; the others stay."""
    if inside.all():
        return one.taken(lo, hi, at)
    taken = at.copy()
    if inside.any():
        taken[inside] = one.taken(lo[inside], hi[inside], at[inside])
    return taken


def _permuted(blocks: _Blocks, width: int, stream: _Stream) -> NDArray[np.int64]:
    """The blocks' permutations, int64 [blocks, width]: the column that each place takes."""
    words = _words_of_blocks(blocks.base, width, stream)
    return sorting_order(words, blocks.first, blocks.stop)


def _words_of_blocks(base: NDArray[np.int64], width: int, stream: _Stream) -> NDArray[np.uint64]:
    """The words of the blocks that begin at `base`, uint64 [blocks, width].

    Blocks that follow one another on the line are drawn in one go: setting a generator up costs
    as much as some thousand words.
    """
    words = np.zeros((len(base), width), dtype=np.uint64)
    flat = words.reshape(-1)
    breaks = np.flatnonzero(np.diff(base) != width) + 1
    edges = [0, *breaks.tolist(), len(base)]
    for first, stop in itertools.pairwise(edges):
        start = int(base[first])
        drawn = max(start, 0)  # the line has no place before 0; such columns are in no lane
        filled = flat[first * width + drawn - start : stop * width]
        filled[:] = random_words(stream.key, stream.number, drawn, drawn + len(filled))
    return words
