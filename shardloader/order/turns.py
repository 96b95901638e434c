"""In which turn does each lane-rank come, when positions take one sample of each in a round?

In the order of their numbers with the bits reversed (van der Corput's sequence; 0, 4, 2, 6, 1, 5,
3, 7 for eight). Any run of positions then holds each lane-rank equally often, to one, and what it
holds more than whole rounds is spread evenly over them. So when a step's size is no whole number
of rounds, the edges between ranks hardly move from step to step, and each rank stays with its
lane-ranks. In the order of numbers they would move by as much as the round is broken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Turns(NamedTuple):
    """rank: the lane-rank of each turn; turn: the turn of each lane-rank. int64 [ranks]."""

    rank: NDArray[np.int64]
    turn: NDArray[np.int64]


@lru_cache(maxsize=8)
def turns(ranks: int) -> Turns:
    """The turns of one round; read-only."""
    number = np.arange(ranks, dtype=np.int64)
    reversed_bits = np.zeros_like(number)
    for bit in range((ranks - 1).bit_length()):
        reversed_bits = reversed_bits << 1 | number >> bit & 1
    rank = np.argsort(reversed_bits)
    turn = np.argsort(rank)
    rank.flags.writeable = turn.flags.writeable = False
    return Turns(rank, turn)


class Counts:
    """How many positions below given ones belong to the first lane-ranks?

    positions: int64 of any shape. The table has a row for each place in a round that occurs.
    """

    def __init__(self, positions: NDArray[np.int64], ranks: int) -> None:
        self._whole, place = np.divmod(positions, ranks)
        places, row = np.unique(place, return_inverse=True)
        self._row = row.reshape(place.shape)
        self._table = np.zeros((len(places), ranks + 1), dtype=np.int32)
        taken = turns(ranks).turn < places[:, None]
        np.cumsum(taken, axis=1, out=self._table[:, 1:])

    def below(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions below the given ones whose lane-rank is less than `rank` (0 .. ranks)."""
        return self._whole * rank + self._table[self._row, rank]
