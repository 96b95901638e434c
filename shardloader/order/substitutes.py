"""Which sample may fill a place when all of its batch are bad?

The next good one of its lane: the positions that follow the batch's last one in the same lane, and
where the lane has no more, all other positions of the pass from there on. A position of the tail
has no lane, and begins with the positions behind it. Like everything here a function of integers:
the same rank at the same step asks for the same samples in the same order, after a resume too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardloader.order.integers import checked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardloader.order.epoch import Samples
    from shardloader.order.grid import Lanes
    from shardloader.order.schedule import Schedule

FIRST_AT_ONCE = 32
MOST_AT_ONCE = 8192


class Candidates(NamedTuple):
    """Some samples, the first to be tried first, and the pass that they belong to."""

    number: int
    samples: Samples


def followers(lanes: Lanes, position: int) -> Iterator[NDArray[np.int64]]:
    """Positions to try after `position`, int64, some at a time; each other position is among them.

    Those of the rest of the lane come twice.
    """
    position = checked("position", position, least=0, below=lanes.num_samples)
    if position < lanes.tail_start:
        yield from _rest_of_lane(lanes, position)
    yield from _ranges(position + 1, lanes.num_samples)
    yield from _ranges(0, position)


def candidates(schedule: Schedule, rank: int, step: int) -> Iterator[Candidates]:
    """Samples that may fill the batch of `rank` at `step`, some at a time."""
    slots = schedule.dealing.slots(np.array([step], dtype=np.int64), rank)
    last = max(0, int(slots.size[0]) - 1)
    number, position = int(slots.number[0, last]), int(slots.position[0, last])
    one_pass = schedule.one_pass(number)
    for positions in followers(schedule.order.lanes, position):
        yield Candidates(number, one_pass.locate(positions))


def _rest_of_lane(lanes: Lanes, position: int) -> Iterator[NDArray[np.int64]]:
    grid = lanes.grid
    element, turn = divmod(position, grid.ranks)
    batch, in_batch = divmod(element, grid.batch)
    round_, worker = divmod(batch, grid.workers)
    even, extra = divmod(lanes.num_batches, grid.workers)
    length = grid.batch * (even + (worker < extra))
    for offset in _ranges(round_ * grid.batch + in_batch + 1, length):
        rounds, place = np.divmod(offset, grid.batch)
        yield ((rounds * grid.workers + worker) * grid.batch + place) * grid.ranks + turn


def _ranges(start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """The numbers start .. stop-1, few at first and then many at a time."""
    at_once = FIRST_AT_ONCE
    while start < stop:
        end = min(start + at_once, stop)
        yield np.arange(start, end, dtype=np.int64)
        start, at_once = end, min(4 * at_once, MOST_AT_ONCE)
