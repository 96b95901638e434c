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
    from numpy.typing import NDArray

    from shardloader.order.grid import Places

DEFAULT_WINDOW = 10_000
WORDS_AT_ONCE = 1 << 20  # blocks are sorted in groups of about this many words (8 MiB)
WIDTH_TO_KEEP = 1024  # shorter blocks lie whole in one call, and the next call asks for others
WIDTHS_TO_KEEP = 1 << 21  # of all lanes together: up to three blocks a lane and pass, 24 MiB each


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
    times without. Of each stream it holds as many blocks as one call needed at most, four bytes a
    place.
    """

    def __init__(self) -> None:
        self._pools: dict[int, _Pool] = {}

    def permuted(
        self, blocks: _Blocks, width: int, stream: _Stream
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Permutations [n, width], and at which of them each block's lies, int64 [blocks]."""
        pool = self._pools.get(stream.number)
        if pool is None or pool.stream != stream or pool.columns.shape[1] != width:
            pool = self._pools[stream.number] = _Pool(stream, width)
        return pool.columns_of(blocks)


class _Pool:
    """Permutations of blocks of one stream, each known by all that it is."""

    def __init__(self, stream: _Stream, width: int) -> None:
        self.stream = stream
        self.columns = np.empty((0, width), dtype=np.int32 if width < 2**31 else np.int64)
        self._at: dict[_Block, int] = {}

    def columns_of(self, blocks: _Blocks) -> tuple[NDArray[Any], NDArray[np.int64]]:
        asked = list(zip(*(column.tolist() for column in blocks), strict=True))
        self._at = {block: self._at[block] for block in asked if block in self._at}
        missing = [number for number, block in enumerate(asked) if block not in self._at]
        self._grow_to(len(asked))
        used = set(self._at.values())
        free = [at for at in range(len(self.columns)) if at not in used][: len(missing)]
        width = self.columns.shape[1]
        at_once = max(1, WORDS_AT_ONCE // width)
        for start in range(0, len(missing), at_once):
            some, to = missing[start : start + at_once], free[start : start + at_once]
            self.columns[to] = _permuted(blocks.at(some), width, self.stream)
        self._at |= {asked[number]: at for number, at in zip(missing, free, strict=True)}
        return self.columns, np.array([self._at[block] for block in asked], dtype=np.int64)

    def _grow_to(self, num_blocks: int) -> None:
        if num_blocks <= len(self.columns):
            return
        grown = np.empty((num_blocks, self.columns.shape[1]), dtype=self.columns.dtype)
        kept = list(self._at.values())
        grown[: len(kept)] = self.columns[kept]
        self._at = {block: at for at, block in enumerate(self._at)}
        self.columns = grown


def is_remembered(*, lanes: int, width: int) -> bool:
    """Whether a memo holds the blocks of somebody who reads so many lanes, with such blocks."""
    return width >= WIDTH_TO_KEEP and (lanes <= 1 or lanes * width <= WIDTHS_TO_KEEP)


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
        column, taken = at - base, np.empty_like(at)
        if self.memo is not None and is_remembered(lanes=len(distinct) // 2, width=self.width):
            columns, row = self.memo.permuted(blocks, self.width, self.stream)
            np.add(base, columns[row[block], column], out=taken)
            return taken
        at_once = max(1, WORDS_AT_ONCE // self.width)
        for start in range(0, len(distinct), at_once):
            stop_at = start + at_once
            columns = _permuted(blocks.at(slice(start, stop_at)), self.width, self.stream)
            inside = np.flatnonzero((block >= start) & (block < stop_at))
            taken[inside] = base[inside] + columns[block[inside] - start, column[inside]]
        return taken


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
    breaks = np.flatnonzero(np.diff(base) != width) + 1
    edges = [0, *breaks.tolist(), len(base)]
    if len(edges) == 2 and base[0] >= 0:
        begin = int(base[0])
        row = random_words(stream.key, stream.number, begin, begin + len(base) * width)
        return row.reshape(len(base), width)
    words = np.zeros((len(base), width), dtype=np.uint64)
    flat = words.reshape(-1)
    for first, stop in itertools.pairwise(edges):
        start = int(base[first])
        drawn = max(start, 0)  # the line has no place before 0; such columns are in no lane
        filled = flat[first * width + drawn - start : stop * width]
        filled[:] = random_words(stream.key, stream.number, drawn, drawn + len(filled))
    return words
