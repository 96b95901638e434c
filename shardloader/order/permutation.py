"""Where do random numbers come from, and how do they become permutations?

One law: a permutation of n places is the order in which n keyed random words sort. The words are
those of numpy's Philox (4x64, ten rounds) through `random_raw`, the one stream that numpy promises
to keep; nothing here calls a numpy method whose algorithm may change. A word is addressed, not
drawn: `random_words(key, stream, start, stop)` are words number start to stop-1 of a stream, at a
cost that does not depend on `start`.

To sort quickly and never to depend on a sorting algorithm, the place's number replaces the lowest
bits of its word: keys are then distinct, and every sort gives the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.random import Philox

if TYPE_CHECKING:
    from numpy.typing import NDArray


# One number a purpose, so that no two purposes ever share a word. Never renumber.
SHARDS: Final = 0
WINDOW_FIRST: Final = 1
WINDOW_SECOND: Final = 2
SAMPLE: Final = 3
PACKING: Final = 4

WORDS_A_COUNTER: Final = 4  # Philox 4x64 makes four words for each value of its counter


def random_words(key: tuple[int, int], stream: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Words `start` to `stop - 1` of one stream, uint64, shape [stop - start]."""
    counter, skipped = divmod(start, WORDS_A_COUNTER)
    philox = Philox(
        key=np.array(key, dtype=np.uint64),
        counter=np.array([counter, 0, 0, stream], dtype=np.uint64),
    )
    words: NDArray[np.uint64] = philox.random_raw(stop - start + skipped)
    return words[skipped:]


def sample_bits(seed: int, epoch: int, sample: int) -> Philox:
    """The bit generator of one sample's augmentation: the same wherever the sample is read."""
    return Philox(
        key=np.array((seed, epoch), dtype=np.uint64),
        counter=np.array([0, sample, 0, SAMPLE], dtype=np.uint64),
    )


def sorting_order(
    words: NDArray[np.uint64], first: NDArray[np.int64], stop: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Turn each row of words into a permutation of its columns.

    words: uint64 [rows, width], overwritten. Columns outside [first, stop) of a row stay where
    they are (first, stop: int64 [rows]); the others are permuted among themselves. Returns int64
    [rows, width]: the column that each place takes.
    """
    _, width = words.shape
    mask = np.uint64((1 << max(1, (width - 1).bit_length())) - 1)
    column = np.arange(width, dtype=np.uint64)
    words &= ~mask
    words |= column
    ragged = np.flatnonzero((first > 0) | (stop < width))
    for row in ragged.tolist():
        words[row, : first[row]] = column[: first[row]]
        words[row, stop[row] :] = ~mask | column[stop[row] :]
    words.sort(axis=1)
    words &= mask
    return words.view(np.int64)


def permutation(key: tuple[int, int], stream: int, num: int) -> NDArray[np.int64]:
    """A permutation of 0 .. num-1, int64 [num]."""
    if num == 0:
        return np.zeros(0, dtype=np.int64)
    words = random_words(key, stream, 0, num).reshape(1, num).copy()
    order = sorting_order(words, np.zeros(1, np.int64), np.full(1, num, np.int64))
    return order.reshape(num)
