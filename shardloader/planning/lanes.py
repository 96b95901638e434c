"""Which stretches of the line do workers read that have lanes of their own?

Where a step is the grid's, the ranks divide the grid's ranks and the workers its workers, each lane
has one reader, who takes its canonical batches one after another. A lane that is read whole is a
stretch of the line. Where a plan begins or ends inside of a lane, the window's shuffle decides
which samples come: a sample travels less than two windows, so only near such an edge is anything
evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardloader.order.turns import turns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.epoch import Line, Order
    from shardloader.order.grid import Grid
    from shardloader.planning.planned import Plan

WINDOWS_TO_AN_EDGE = 4  # what comes from within two windows of an edge lies within four of it


def block(order: Order) -> int:
    """Places of a block of the shuffle; 0 where there is none."""
    return 0 if order.window is None else min(order.window, order.lanes.longest)


def ragged(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers starts[i] .. starts[i] + lengths[i] - 1 of all i, one after another.

    >>> ragged(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different values, ascending, of some that are at least 0; quicker than np.unique."""
    values = np.sort(values)
    return values[np.diff(values, prepend=-1) != 0] if values.size else values


def lane_positions(
    grid: Grid,
    lane_rank: NDArray[np.int64],
    lane_worker: NDArray[np.int64],
    offset: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The positions of places `offset` of lanes (q, m), all int64 of one shape.

    The inverse of `Lanes.places` in `shardloader.order.grid`, which gives a position's lane.
    """
    turn, in_batch = np.divmod(offset, grid.batch)
    element = (turn * grid.workers + lane_worker) * grid.batch + in_batch
    return element * grid.ranks + turns(grid.ranks).turn[lane_rank]


class Lanes(NamedTuple):
    """Lanes of some ranks, and what is read of them: int64 [lanes].

    rank, worker: the lane (q, m); reader: who reads it, counted from the first worker of the first
    of these ranks; start: its place on the line; begin, end: the offsets read; length: of all.
    """

    rank: NDArray[np.int64]
    worker: NDArray[np.int64]
    reader: NDArray[np.int64]
    start: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    length: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> Lanes:
        """Some of the lanes."""
        return Lanes(*(column[chosen] for column in self))


class PlacesRead(NamedTuple):
    """Places lo .. hi-1 of the line that readers read: int64, one for each run of places."""

    reader: NDArray[np.int64]
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]


def has_lanes_of_its_own(plan: Plan) -> bool:
    """Whether each lane has one reader, and is read batch by batch."""
    order, dealing = plan.schedule.order, plan.dealing
    return (
        order.steps_per_epoch is None
        and dealing.step_size == order.grid.step
        and order.grid.ranks % dealing.world_size == 0
        and order.grid.workers % max(1, plan.num_workers) == 0
        and dealing.consumed % order.grid.step == 0
    )


def lanes_of(plan: Plan, ranks: NDArray[np.int64]) -> Lanes:
    """The lanes of some ranks, int64 [ranks], of a plan whose lanes have one reader each."""
    order, dealing = plan.schedule.order, plan.dealing
    grid, workers = order.grid, max(1, plan.num_workers)
    lane_ranks = grid.ranks // dealing.world_size  # a rank
    rank = ranks[:, None, None] * lane_ranks + np.arange(lane_ranks)[:, None]
    worker = np.arange(grid.workers, dtype=np.int64)
    first = dealing.consumed // grid.step  # canonical batches first .. stop-1 are read
    stop = min(dealing.length, order.lanes.tail_start) // grid.step
    start, length = order.lanes.extents(rank, worker)
    columns = (
        rank,
        worker,
        np.arange(len(ranks))[:, None, None] * workers + (worker - first) % workers,
        start,
        -((worker - first) // grid.workers) * grid.batch,
        -((worker - stop) // grid.workers) * grid.batch,
        length,
    )
    shape = (len(ranks), lane_ranks, grid.workers)
    return Lanes(*(np.broadcast_to(column, shape).ravel() for column in columns))


def read_whole(order: Order, lanes: Lanes) -> PlacesRead:
    """What is read of the lanes whatever the window's shuffle is."""
    margin = 2 * block(order)
    lo = lanes.start + lanes.begin + np.where(lanes.begin > 0, margin, 0)
    hi = lanes.start + lanes.end - np.where(lanes.end < lanes.length, margin, 0)
    is_some = lo < hi
    return PlacesRead(lanes.reader[is_some], lo[is_some], hi[is_some])


def edges(order: Order, lanes: Lanes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Readers and positions of what has to be evaluated near the edges of what is read."""
    reach = WINDOWS_TO_AN_EDGE * block(order)
    readers, positions = [], []
    is_read = lanes.begin < lanes.end
    if reach:
        for chosen, at_end in (
            (lanes.where(is_read & (lanes.begin > 0)), False),
            (lanes.where(is_read & (lanes.end < lanes.length)), True),
        ):
            lengths = np.minimum(reach, chosen.end - chosen.begin)
            offset = ragged(chosen.end - lengths if at_end else chosen.begin, lengths)
            rank, worker = np.repeat(chosen.rank, lengths), np.repeat(chosen.worker, lengths)
            readers.append(np.repeat(chosen.reader, lengths))
            positions.append(lane_positions(order.grid, rank, worker, offset))
    empty = np.zeros(0, dtype=np.int64)
    return np.concatenate([empty, *readers]), np.concatenate([empty, *positions])


def num_edges(lanes: Lanes) -> int:
    """At how many places a plan begins or ends inside of a lane."""
    is_read = lanes.begin < lanes.end
    begun = is_read & (lanes.begin > 0)
    left = is_read & (lanes.end < lanes.length)
    return int(begun.sum()) + int(left.sum())


def read_of_tail(plan: Plan, ranks: NDArray[np.int64], *, valid_only: bool = False) -> PlacesRead:
    """What the ranks read of the tail, in the last step; valid_only: without the pads.

    A rank with a share pads with its own samples; one without, with the tail's first.
    """
    dealing, workers = plan.dealing, max(1, plan.num_workers)
    if dealing.num_steps == dealing.num_full:
        ranks = ranks[:0]
    each, more = divmod(dealing.rest, dealing.world_size)
    share = each + (ranks < more)
    first = np.where(share > 0, ranks * each + np.minimum(ranks, more), 0)
    if dealing.even == "pad" and not valid_only:
        share = np.where(share > 0, share, min(dealing.batch_size, dealing.rest))
    reader = np.arange(len(ranks)) * workers + dealing.num_full % workers
    lo = dealing.length - dealing.rest + first
    return PlacesRead(*(column[share > 0] for column in (reader, lo, lo + share)))


def shards_of(line: Line, read: PlacesRead) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Readers and shards, one of each shard that a run of places has a sample of."""
    holds = np.flatnonzero(np.diff(line.starts))  # turns of shards that are not empty
    starts, shards = line.starts[holds], line.shards[holds]
    first = np.searchsorted(starts, read.lo, side="right") - 1
    stop = np.searchsorted(starts, read.hi, side="left")
    return np.repeat(read.reader, stop - first), shards[ragged(first, stop - first)]
