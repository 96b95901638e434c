"""How many shards does a rank open over the rest of an epoch, when the topology is not the grid?

1,024 equal shards on a grid of 16 ranks, 4 workers, batch 8: a lane-rank is 64 shards. The share
of a rank is `1024 / world_size`. Any run of positions holds each lane-rank equally often, to one,
spread evenly, and a step deals them lane-rank by lane-rank. So

- as long as the number of ranks stays, each keeps its own lane-rank, whatever its batch size;
- otherwise a rank's slots reach over as many neighbouring lane-ranks as its stretch of them
  touches, two as a rule: about twice its share, less when ranks were lost, and more when there are
  more ranks than lane-ranks, which have to share them;
- where a step is no whole number of rounds the edges move by a place or so from step to step, which
  makes a third lane-rank for some.

Dealt in the order of positions, a rank would go through every lane: that is tested too, so that
these bounds are seen to hold because of the sort.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from shardloader.order.epoch import Order
from shardloader.order.grid import Grid
from shardloader.order.schedule import Schedule

NUM_SHARDS, SAMPLES_A_SHARD = 1024, 64
GRID = Grid(ranks=16, workers=4, batch=8)


class Change(NamedTuple):
    """What a run goes on with, and how many shares of the shards a rank opens at most."""

    world_size: int
    batch_size: int
    shares: float


CHANGES = {
    "nothing changed": Change(16, 8, 1.0),
    "a rank was lost": Change(15, 8, 2.0),
    "two ranks were lost": Change(14, 8, 2.0),
    "three ranks were lost": Change(13, 8, 2.5),
    "four ranks were lost": Change(12, 8, 1.5),
    "five ranks were lost": Change(11, 8, 2.1),
    "seven ranks were lost": Change(9, 8, 2.0),
    "half of the ranks were lost": Change(8, 8, 1.0),
    "all but one were lost": Change(1, 8, 1.0),
    "a rank was added": Change(17, 8, 2 * 17 / 16 + 0.1),
    "four ranks were added": Change(20, 8, 2 * 20 / 16 + 0.1),
    "twice the ranks": Change(32, 8, 1.0),
    "half of the ranks, twice the batch": Change(8, 16, 1.0),
    "twice the ranks, half of the batch": Change(32, 4, 2.0),
    "twice the batch": Change(16, 16, 1.0),
    "nine eighths of the batch": Change(16, 9, 1.0),
    "seven eighths of the batch": Change(16, 7, 1.0),
    "half of the batch": Change(16, 4, 1.0),
    "three eighths of the batch": Change(16, 3, 1.0),
    "one sample": Change(16, 1, 1.0),
    "other ranks and another batch": Change(10, 7, 2.0),
}


def order_of(window: int | None) -> Order:
    counts = np.full(NUM_SHARDS, SAMPLES_A_SHARD)
    return Order(counts=counts, seed=5, window=window, grid=GRID)


def shards_opened(order: Order, change: Change, consumed: int) -> list[int]:
    """Different shards that each rank reads over the rest of the epoch."""
    schedule = Schedule.of(
        order,
        epoch=1,
        consumed=consumed,
        world_size=change.world_size,
        batch_size=change.batch_size,
        even="drop",
    )
    steps = np.arange(schedule.dealing.num_steps)
    return [
        len(np.unique(schedule.reader(rank).steps(steps).shard))
        for rank in range(change.world_size)
    ]


def shards_opened_unsorted(order: Order, change: Change) -> list[int]:
    """The same for a whole epoch, if slot k of a step were simply its k-th position."""
    step_size = change.world_size * change.batch_size
    num_steps = order.num_samples // step_size
    positions = np.arange(num_steps * step_size).reshape(num_steps, change.world_size, -1)
    shard = order.one_pass(1).locate(positions).shard
    return [len(np.unique(shard[:, rank])) for rank in range(change.world_size)]


@pytest.mark.parametrize("window", [None, 100, 10_000])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_rank_opens_few_shares_of_the_shards_after_a_change(change, window):
    share = NUM_SHARDS / change.world_size
    order = order_of(window)
    for consumed in (0, 100 * GRID.step):
        assert max(shards_opened(order, change, consumed)) <= change.shares * share


@pytest.mark.parametrize("name", ["a rank was lost", "a rank was added"])
def test_dealt_unsorted_a_rank_would_open_almost_every_shard(name):
    change = CHANGES[name]
    order = order_of(10_000)
    unsorted = shards_opened_unsorted(order, change)
    assert min(unsorted) > 0.95 * NUM_SHARDS
    assert max(shards_opened(order, change, 0)) < 0.15 * NUM_SHARDS


@pytest.mark.parametrize("lost", [1, 8])
def test_a_lost_rank_or_node_of_a_large_run_leaves_every_rank_two_lane_ranks(lost):
    grid = Grid(ranks=128, workers=2, batch=4)
    order = Order(counts=np.full(64, 1000), seed=0, window=None, grid=grid)
    dealing = Schedule.of(
        order, epoch=0, consumed=0, world_size=128 - lost, batch_size=4, even="drop"
    ).dealing
    steps = np.arange(dealing.num_full - 1)  # the last full one reaches into the tail
    for rank in range(dealing.world_size):
        lanes = order.lanes.lane_numbers(dealing.slots(steps, rank).position)
        assert len(np.unique(lanes // grid.workers)) <= 2
