"""What readers of a node need at one time, by arithmetic, and as it comes out when they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardloader.order.epoch import Order
from shardloader.order.grid import Grid, default_grid
from shardloader.order.reach import Reach
from shardloader.order.schedule import Schedule
from shardloader.planning.least_cache import LeastCache

MANY = 1 << 60


def needs_of(schedule: Schedule, rank: int, worker: int, num_workers: int) -> Any:
    """In which of its rows a reader first and last reads each shard; and how many rows it has."""
    steps = np.arange(worker, schedule.dealing.num_batches(rank), num_workers)
    num_shards = len(schedule.order.counts)
    first, last = np.full(num_shards, MANY), np.full(num_shards, -1)
    read = schedule.reader(rank).steps(steps)
    for row in range(len(steps)):
        shards = np.unique(read.shard[row, : read.size[row]])
        first[shards] = np.minimum(first[shards], row)
        last[shards] = row
    return first, last, len(steps)


def most_at_once(sizes: Any, of_reader: Any, span: int) -> int:
    """Bytes that are needed in some `span` rows, at the most."""
    first, last, num_rows = of_reader
    at_once = [((first < row + span) & (last >= row)) @ sizes for row in range(num_rows)]
    return max(map(int, at_once), default=0)


def needed(schedule: Schedule, reach: Reach, sizes: Any, ranks: range, num_workers: int) -> Any:
    """What the readers of a node need at one time, and the most that one of them does.

    Shards of several readers are needed all the time, where each lane has one; else all of them
    are taken to be at the same row.
    """
    readers = [
        needs_of(schedule, rank, worker, num_workers)
        for rank in ranks
        for worker in range(num_workers)
    ]
    span, longest = reach.rows + reach.rows_ahead, max(rows for _, _, rows in readers)
    alone = [most_at_once(sizes, each, span) for each in readers]
    if reach.is_shared:
        first = np.min([first for first, _, _ in readers], axis=0)
        last = np.max([last for _, last, _ in readers], axis=0)
        return most_at_once(sizes, (first, last, longest), span), max(alone)
    shared = sum((last >= 0).astype(int) for _, last, _ in readers) > 1
    own = np.where(shared, 0, sizes)
    total = sum(most_at_once(own, each, span) for each in readers)
    return total + int(sizes[shared].sum()), max(alone)


CASES = st.fixed_dictionaries(
    {
        "shards": st.lists(st.tuples(st.integers(0, 25), st.integers(1, 50)), min_size=1).filter(
            lambda shards: sum(count for count, _ in shards) >= 40
        ),
        "window": st.sampled_from([None, 1, 2, 5, 10, 30, 100]),
        "world_size": st.integers(1, 4),
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 5),
        "ranks_per_node": st.integers(1, 4),
        "epoch": st.integers(0, 3),
        "grid": st.none()
        | st.builds(
            Grid, ranks=st.integers(1, 5), workers=st.integers(1, 3), batch=st.integers(1, 5)
        ),
    }
)


@settings(deadline=None)
@given(case=CASES)
def test_readers_need_no_more_than_the_least_cache_has_room_for(case: Any) -> None:
    """On each node, in any epoch, at any time."""
    counts, sizes = np.array(case["shards"], dtype=np.int64).T
    world_size, window = case["world_size"], case["window"]
    own = {"num_workers": case["num_workers"], "batch_size": case["batch_size"]}
    grid = case["grid"] or default_grid(world_size=world_size, shuffled=bool(window), **own)
    order = Order(counts=counts, seed=3, window=window, grid=grid)
    schedule = Schedule.of(
        order,
        epoch=case["epoch"],
        consumed=0,
        world_size=world_size,
        batch_size=case["batch_size"],
        even="pad",
    )
    reach = Reach.of(
        order,
        schedule.dealing,
        num_workers=case["num_workers"],
        ranks_per_node=case["ranks_per_node"],
    )
    least = LeastCache.of(sizes, counts, reach)
    workers, ranks_per_node = max(1, case["num_workers"]), min(case["ranks_per_node"], world_size)
    for first in range(0, world_size - ranks_per_node + 1, ranks_per_node):
        ranks = range(first, first + ranks_per_node)
        total, alone = needed(schedule, reach, sizes, ranks, workers)
        assert total <= least.least_bytes <= least.all_bytes
        assert least.a_reader_bytes is None or alone <= least.a_reader_bytes


@pytest.mark.parametrize(
    ("window", "num_workers", "shards"),
    [
        (None, 0, 2),  # one is left while the next is begun
        (20, 0, 2),
        (100, 0, 4),  # three blocks of the shuffle, and two ends
        (100, 4, 4 * 5),  # and the one at each border
        (1000, 4, 50),  # a lane and more: all
    ],
)
def test_of_shards_of_one_size_it_is_not_much_more_than_is_needed(window, num_workers, shards):
    counts = np.full(50, 100, dtype=np.int64)
    of = {"world_size": 1, "batch_size": 2}
    grid = default_grid(num_workers=num_workers, shuffled=window is not None, **of)
    order = Order(counts=counts, seed=0, window=window, grid=grid)
    schedule = Schedule.of(order, epoch=0, consumed=0, even="pad", **of)
    reach = Reach.of(order, schedule.dealing, num_workers=num_workers, ranks_per_node=None)
    assert LeastCache.of(np.ones_like(counts), counts, reach).least_bytes == shards
