"""Which requests fetch these stretches of some shards, and where in their answers does each lie?

Decided on integers; nothing is fetched here. Stretches that lie near one another come by one
request, the bytes between them too: a request costs about as much as a few hundred kilobytes. A
request is no larger than a limit, unless one stretch alone is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

GAP_BYTES: Final = 256 << 10
MOST_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Bytes start..stop-1 of the file of a shard, by its number."""

    shard: int
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """How many bytes."""
        return self.stop - self.start


def coalesce(
    shard: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    gap_bytes: int = GAP_BYTES,
    most_bytes: int = MOST_BYTES,
) -> list[Request]:
    """The requests that cover stretches, given as int64 [n] each, by shard and start.

    Stretches of no bytes need none. Two are joined where at most gap_bytes lie between them.

    >>> three = np.array([7, 7, 7]), np.array([0, 900, 50]), np.array([10, 950, 60])
    >>> [(each.start, each.stop) for each in coalesce(*three, gap_bytes=100)]
    [(0, 60), (900, 950)]
    """
    order = np.lexsort((starts, shard))
    order = order[stops[order] > starts[order]]
    requests: list[Request] = []
    wanted = (shard[order].tolist(), starts[order].tolist(), stops[order].tolist())
    number, first, last = -1, 0, 0
    for of, start, stop in zip(*wanted, strict=True):
        is_within = stop <= last or stop - first <= most_bytes
        if of == number and start - last <= gap_bytes and is_within:
            last = max(last, stop)
            continue
        if last > first:
            requests.append(Request(shard=number, start=first, stop=last))
        number, first, last = of, start, stop
    if last > first:
        requests.append(Request(shard=number, start=first, stop=last))
    return requests


def distinct(
    starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stretches by start and then by stop, each once, and none without bytes; int64 [n] each.

    >>> distinct(np.array([9, 0, 4, 0]), np.array([9, 5, 6, 5]))
    (array([0, 4]), array([5, 6]))
    """
    both = np.stack([starts, stops])[:, stops > starts]
    first, last = np.unique(both, axis=1)
    return first, last


class Stretches:
    """Bytes of one shard's tar that were fetched: slices of what they cover are bytes.

    starts: where each body begins in the shard, rising.
    """

    __slots__ = ("_bodies", "_starts")

    def __init__(self, starts: Sequence[int], bodies: Sequence[bytes]) -> None:
        self._starts = starts
        self._bodies = bodies

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, bytes]]) -> Self:
        """Of bytes and where they begin, in any order."""
        rising = sorted(pieces, key=lambda piece: (piece[0], len(piece[1])))
        return cls([start for start, _ in rising], [body for _, body in rising])

    def __getitem__(self, of: slice) -> bytes:
        """Bytes of the shard; raises IndexError for bytes that were not fetched."""
        start, stop = int(of.start), int(of.stop)
        if stop <= start:
            return b""
        at = bisect_right(self._starts, start) - 1
        first = start - self._starts[at] if at >= 0 else 0
        found = self._bodies[at][first : first + stop - start] if at >= 0 else b""
        if len(found) != stop - start:
            raise IndexError(f"bytes {start} to {stop} of the shard were not fetched")
        return found
