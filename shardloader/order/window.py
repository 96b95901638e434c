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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.integers import checked
from shardloader.order.permutation import (
    WINDOW_FIRST,
    WINDOW_SECOND,
    random_words,
    sorting_order,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardloader.order.grid import Places

DEFAULT_WINDOW = 10_000
WORDS_AT_ONCE = 1 << 20  # blocks are sorted in groups of about this many words (8 MiB)


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


def shuffled(
    places: Places, *, window: int, longest: int, key: tuple[int, int]
) -> NDArray[np.int64]:
    """The places of the line whose samples stand at `places.at`, int64 of the same shape.

    window: places a block; longest: places of the longest lane; key: (seed, pass number). The
    order of `places` does not matter; those of neighbouring places are cheapest together.
    """
    width = min(window, longest)
    if places.at.size == 0 or width <= 1:
        return places.at
    lo, hi, at = places.lane_start, places.lane_stop, places.at
    long = hi - lo > window
    if long.all():
        at = _block_pass(lo, hi, at, width=width, shift=width - width // 2, to=(key, WINDOW_SECOND))
    elif long.any():
        at = at.copy()
        at[long] = _block_pass(
            lo[long],
            hi[long],
            at[long],
            width=width,
            shift=width - width // 2,
            to=(key, WINDOW_SECOND),
        )
    return _block_pass(lo, hi, at, width=width, shift=0, to=(key, WINDOW_FIRST))


def _block_pass(
    lo: NDArray[np.int64],
    hi: NDArray[np.int64],
    at: NDArray[np.int64],
    *,
    width: int,
    shift: int,
    to: tuple[tuple[int, int], int],
) -> NDArray[np.int64]:
    """One pass of block permutations; `to` is the key and the stream of its words."""
    base = at - (at - lo + shift) % width
    begin = np.maximum(base, lo)
    # A block is known by its first place in the lane: no two blocks of a pass share one. (A sort
    # and a search among few blocks cost a third of np.unique's inverse.)
    ordered = np.sort(begin)
    distinct = ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))]
    block = np.searchsorted(distinct, begin)
    sample = np.empty(len(distinct), dtype=np.int64)
    sample[block] = np.arange(len(begin))  # any sample of each block
    base_of = base[sample]
    blocks = _Blocks(base_of, begin[sample] - base_of, np.minimum(hi[sample] - base_of, width))
    taken = np.empty_like(at)
    column = at - base
    for group, columns in _permuted_blocks(blocks, width, to):
        if len(blocks.base) == group.stop - group.start:
            return base + columns[block, column]
        inside = np.flatnonzero((block >= group.start) & (block < group.stop))
        taken[inside] = base[inside] + columns[block[inside] - group.start, column[inside]]
    return taken


def _permuted_blocks(
    blocks: _Blocks, width: int, to: tuple[tuple[int, int], int]
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Groups of blocks with their permutations, int64 [blocks in the group, width]."""
    at_once = max(1, WORDS_AT_ONCE // width)
    for start in range(0, len(blocks.base), at_once):
        group = slice(start, min(start + at_once, len(blocks.base)))
        words = _words_of_blocks(blocks.base[group], width, to)
        yield group, sorting_order(words, blocks.first[group], blocks.stop[group])


def _words_of_blocks(
    base: NDArray[np.int64], width: int, to: tuple[tuple[int, int], int]
) -> NDArray[np.uint64]:
    """The words of the blocks that begin at `base`, uint64 [blocks, width].

    Blocks that follow one another on the line are drawn in one go: setting a generator up costs
    as much as some thousand words.
    """
    key, stream = to
    words = np.zeros((len(base), width), dtype=np.uint64)
    flat = words.reshape(-1)
    breaks = np.flatnonzero(np.diff(base) != width) + 1
    edges = [0, *breaks.tolist(), len(base)]
    for first, stop in itertools.pairwise(edges):
        start = int(base[first])
        drawn = max(start, 0)  # the line has no place before 0; such columns are in no lane
        filled = flat[first * width + drawn - start : stop * width]
        filled[:] = random_words(key, stream, drawn, drawn + len(filled))
    return words
